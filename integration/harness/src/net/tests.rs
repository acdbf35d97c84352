//! Datagrams between two namespaces, one of which is cut off, slowed, delayed.

use super::*;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{fs::File, net::UdpSocket, os::fd::AsFd, time::Instant};

/// A socket that lives in a place; it stays there, the thread that made it ends.
fn socket(place: &Place) -> UdpSocket {
    let namespace = place.namespace.clone().expect("a namespace");
    let host = place.host.clone();
    let opened = std::thread::spawn(move || {
        let namespace = File::open(format!("/run/netns/{namespace}")).expect("the namespace");
        let network = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(namespace.as_fd(), network).expect("moves there");
        UdpSocket::bind((host, 7000)).expect("a socket")
    });
    let socket = opened.join().expect("a socket");
    let wait = Some(Duration::from_millis(400));
    socket.set_read_timeout(wait).expect("a time-out");
    socket
}

/// How long a datagram takes; `None` if it does not arrive.
fn travel(from: &UdpSocket, to: &UdpSocket) -> Option<Duration> {
    let began = Instant::now();
    let address = to.local_addr().expect("bound");
    from.send_to(b"hello", address)
        .expect("sending says nothing of a cut");
    let mut bytes = [0; 16];
    to.recv(&mut bytes).ok().map(|_| began.elapsed())
}

#[test]
fn links_are_cut_one_way_slowed_and_delayed_and_nothing_is_left() {
    let prefix;
    {
        let mut network = Network::start();
        prefix = network.prefix.clone();
        let (a, b) = (network.place("storage-0"), network.place("gateway-0"));
        let (a, b) = (socket(&a), socket(&b));
        assert!(travel(&a, &b).is_some() && travel(&b, &a).is_some());

        network.cut_one_way("storage-0", "gateway-0");
        assert!(travel(&a, &b).is_none() && travel(&b, &a).is_some());
        network.mend_one_way("storage-0", "gateway-0");
        network.cut("storage-0", "gateway-0");
        assert!(travel(&a, &b).is_none() && travel(&b, &a).is_none());
        network.mend("storage-0", "gateway-0");

        let by = Duration::from_millis(80);
        network.delay("storage-0", by);
        let took = travel(&a, &b).expect("late, not lost");
        assert!(took >= by, "{took:?}");
        let other_way = travel(&b, &a).expect("arrives");
        assert!(other_way < by, "{other_way:?}");
        network.undelay("storage-0");

        // 16 KiB go at once, the rest at 8 KB a second.
        network.slow("storage-0", 64);
        let address = b.local_addr().expect("bound");
        for _ in 0..18 {
            a.send_to(&[0; 1_000], address).expect("queued");
        }
        let (began, mut last) = (Instant::now(), Duration::ZERO);
        while b.recv(&mut [0; 1_000]).is_ok() {
            last = began.elapsed();
        }
        assert!(last > Duration::from_millis(100), "{last:?}");
        network.unslow("storage-0");
        assert!(travel(&a, &b).is_some() && travel(&b, &a).is_some());
    }
    let left = run("ip", &["netns", "list"]);
    assert!(!left.contains(&prefix), "{left}");
}
