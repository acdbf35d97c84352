//! Delay by hand (kernels without `netem`): the hub sends packets to a tun device,
//! a thread holds each for a while and hands it back to be forwarded.

use crate::system::run;
use rustix::{
    ioctl::{Setter, ioctl},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::{
    fs::File,
    io::{Read, Write},
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Routing table that leads to the device.
pub(super) const TABLE: &str = "77";
const DEVICE: &str = "delay0";
/// Larger than any packet that a tun device without offloads is given.
const PACKET_BYTES: usize = 65_536;
/// Packets held at a time; more are dropped, as by any full queue.
const HELD: usize = 20_000;

/// The device and its threads; they end when it is dropped.
pub(super) struct Delayer {
    hub: String,
    milliseconds: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Delayer {
    /// Makes the device in the namespace `hub`.
    pub(super) fn start(hub: &str) -> Self {
        let namespace = File::open(format!("/run/netns/{hub}")).expect("the hub's namespace");
        // A thread moves there to make the device, and ends.
        let opened = std::thread::spawn(move || {
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), network).expect("moves into the hub");
            tun(DEVICE)
        });
        let device = opened.join().expect("a tun device");
        run("ip", &["-n", hub, "link", "set", DEVICE, "up"]);
        run(
            "ip",
            &[
                "-n", hub, "route", "add", "default", "dev", DEVICE, "table", TABLE,
            ],
        );
        let milliseconds = Arc::new(AtomicU64::new(0));
        let (held, due) = mpsc::sync_channel(HELD);
        let (reads, delay) = (
            device.try_clone().expect("a descriptor"),
            Arc::clone(&milliseconds),
        );
        let threads = vec![
            std::thread::spawn(move || hold(reads, &delay, &held)),
            std::thread::spawn(move || release(device, &due)),
        ];
        Self {
            hub: hub.into(),
            milliseconds,
            threads,
        }
    }

    pub(super) fn set(&self, by: Duration) {
        let by = u64::try_from(by.as_millis()).expect("a short delay");
        self.milliseconds.store(by, Ordering::Relaxed);
    }
}

type Held = (Instant, Vec<u8>);

/// Until the device is gone.
fn hold(mut device: File, delay: &AtomicU64, held: &mpsc::SyncSender<Held>) {
    let mut packet = vec![0; PACKET_BYTES];
    while let Ok(length) = device.read(&mut packet) {
        let delay = Duration::from_millis(delay.load(Ordering::Relaxed));
        // A full queue drops it.
        let _ = held.try_send((Instant::now() + delay, packet[..length].to_vec()));
    }
}

fn release(mut device: File, due: &mpsc::Receiver<Held>) {
    for (at, packet) in due {
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        // Refused once the device is gone; then the sender ends too.
        let _ = device.write(&packet);
    }
}

/// `TUNSETIFF`.
const ATTACH: rustix::ioctl::Opcode = 0x4004_54ca;
/// IP packets, without a header of their own.
const IFF_TUN_NO_PI: u16 = 0x1001;

/// `struct ifreq`: a name, flags, and room for the rest of the union.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

#[allow(unsafe_code)]
fn tun(name: &str) -> File {
    let device = File::options().read(true).write(true).open("/dev/net/tun");
    let device = device.expect("/dev/net/tun opens");
    let mut request = InterfaceRequest {
        name: [0; 16],
        flags: IFF_TUN_NO_PI,
        rest: [0; 22],
    };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: TUNSETIFF reads a `struct ifreq` of 40 bytes, which the type has,
    // and keeps no pointer to it.
    unsafe { ioctl(&device, Setter::<ATTACH, _>::new(request)) }.expect("a tun device");
    device
}

impl Drop for Delayer {
    fn drop(&mut self) {
        // Reads of the device fail from now on.
        run("ip", &["-n", &self.hub, "link", "del", DEVICE]);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
