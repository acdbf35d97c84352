//! A network of our own: every process in a network namespace, all of them
//! wired to one that forwards between them and drops, slows and delays.
//!
//! ```text
//! storage-0 (10.213.s.2) ──veth──┐
//! gateway-0 (10.213.s.3) ──veth──┤ hub ──veth── this machine (10.213.s.1): the clients
//! etcd      (10.213.s.4) ──veth──┘
//! ```
//!
//! A cut is a rule in the hub: packets from one address to another go into a
//! black hole. Neither end hears of it, as when a cable is pulled. Names begin with `twg-<pid>-`; what a
//! process that is gone has left is swept away by the next one.

mod delay;
mod sweep;

pub use sweep::sweep;

use crate::system::{require_root, run, run_in};
use delay::Delayer;
use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

/// The role of the test's own process.
pub const CLIENTS: &str = "clients";
/// Rules with a cut come before those that delay.
const CUT: &str = "10";
const SUBNETS: u32 = 250;
static NETWORKS: AtomicU32 = AtomicU32::new(0);

/// Where a process lives.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its address.
    pub host: String,
    /// Its network namespace; `None`: this machine's.
    pub namespace: Option<String>,
}

impl Place {
    /// On this machine, as it is.
    pub fn loopback() -> Self {
        Self {
            host: "127.0.0.1".into(),
            namespace: None,
        }
    }
}

/// Namespaces and links; all gone when dropped.
pub struct Network {
    prefix: String,
    link: String,
    subnet: u32,
    /// Role → last part of its address.
    hosts: BTreeMap<String, u32>,
    delayer: Mutex<Option<Delayer>>,
}

impl Network {
    /// A hub with this machine attached to it.
    pub fn start() -> Self {
        require_root();
        sweep();
        let (pid, number) = (std::process::id(), NETWORKS.fetch_add(1, Ordering::Relaxed));
        let mut network = Self {
            prefix: format!("twg-{pid}-{number}"),
            link: format!("twg{pid}x{number}"),
            subnet: 0,
            hosts: BTreeMap::from([(CLIENTS.to_owned(), 1)]),
            delayer: Mutex::new(None),
        };
        let (hub, link) = (network.hub(), network.link.clone());
        run("ip", &["netns", "add", &hub]);
        // Forwarding; and packets may come from where no answer would be sent to.
        run_in(
            &hub,
            "sh",
            &[
                "-c",
                "cd /proc/sys/net/ipv4 && echo 1 >ip_forward && echo 0 >conf/all/rp_filter && echo 0 >conf/default/rp_filter",
            ],
        );
        run("ip", &["-n", &hub, "link", "set", "lo", "up"]);
        let wire = ["link", "add", &link, "type", "veth", "peer", "name"];
        let peer = interface(CLIENTS);
        run("ip", &[&wire[..], &[&peer, "netns", &hub]].concat());
        run("ip", &["link", "set", &link, "up"]);
        network.claim_subnet();
        network.attach(CLIENTS);
        let (host, gate) = (network.address(1), network.address(GATE));
        run("ip", &["addr", "add", &host, "dev", &link]);
        let all = network.address(0) + "/24";
        run(
            "ip",
            &[
                "route", "add", &all, "via", &gate, "dev", &link, "src", &host,
            ],
        );
        network
    }

    /// Takes the first part of 10.213 that no other network here uses: the
    /// kernel refuses a route that exists.
    fn claim_subnet(&mut self) {
        let first = std::process::id() % SUBNETS;
        for step in 0..SUBNETS {
            self.subnet = (first + step) % SUBNETS;
            let gate = self.address(GATE);
            let args = ["route", "add", &gate, "dev", &self.link];
            if crate::system::try_run("ip", &args).is_ok() {
                return;
            }
        }
        panic!("no free network in 10.213.0.0/16");
    }

    fn hub(&self) -> String {
        format!("{}-hub", self.prefix)
    }

    fn address(&self, host: u32) -> String {
        format!("10.213.{}.{host}", self.subnet)
    }

    /// The address of a role.
    pub fn host(&self, role: &str) -> String {
        let host = self.hosts.get(role);
        self.address(*host.unwrap_or_else(|| panic!("no {role} in this network")))
    }

    /// The hub's end of a role's wire.
    fn attach(&self, role: &str) {
        let (hub, interface, host) = (self.hub(), interface(role), self.host(role));
        let gate = self.address(GATE);
        run("ip", &["-n", &hub, "addr", "add", &gate, "dev", &interface]);
        run("ip", &["-n", &hub, "link", "set", &interface, "up"]);
        run(
            "ip",
            &["-n", &hub, "route", "add", &host, "dev", &interface],
        );
    }

    /// A namespace for `role`, wired to the hub.
    pub fn place(&mut self, role: &str) -> Place {
        let last = self.hosts.values().max().expect("the clients");
        self.hosts.insert(role.to_owned(), last + 1);
        let (hub, namespace) = (self.hub(), format!("{}-{role}", self.prefix));
        let (host, gate, peer) = (self.host(role), self.address(GATE), interface(role));
        run("ip", &["netns", "add", &namespace]);
        let inside = |args: &[&str]| run("ip", &[&["-n", &namespace], args].concat());
        inside(&["link", "set", "lo", "up"]);
        let wire = ["link", "add", WIRE, "type", "veth", "peer", "name"];
        inside(&[&wire[..], &[&peer, "netns", &hub]].concat());
        inside(&["addr", "add", &host, "dev", WIRE]);
        inside(&["link", "set", WIRE, "up"]);
        self.attach(role);
        inside(&["route", "add", &gate, "dev", WIRE]);
        inside(&["route", "add", "default", "via", &gate]);
        Place {
            host,
            namespace: Some(namespace),
        }
    }

    /// From now on nothing goes from `from` to `to`; the other way is open.
    pub fn cut_one_way(&self, from: &str, to: &str) {
        self.rule("add", from, to);
    }

    /// Nothing goes either way.
    pub fn cut(&self, one: &str, other: &str) {
        self.cut_one_way(one, other);
        self.cut_one_way(other, one);
    }

    /// Undoes [`Network::cut_one_way`].
    pub fn mend_one_way(&self, from: &str, to: &str) {
        self.rule("del", from, to);
    }

    /// Undoes [`Network::cut`].
    pub fn mend(&self, one: &str, other: &str) {
        self.mend_one_way(one, other);
        self.mend_one_way(other, one);
    }

    fn rule(&self, what: &str, from: &str, to: &str) {
        let (from, to) = (self.host(from), self.host(to));
        let rule = ["rule", what, "pref", CUT, "from", &from, "to", &to];
        run(
            "ip",
            &[&["-n", &self.hub()], &rule[..], &["blackhole"]].concat(),
        );
    }

    /// What goes to `role` and what comes from it is squeezed to so many kilobits a second each way.
    pub fn slow(&self, role: &str, kbit: u32) {
        let rate = format!("{kbit}kbit");
        let tbf = [
            "root", "tbf", "rate", &rate, "burst", "16kb", "latency", "200ms",
        ];
        self.shape(role, "replace", &tbf);
    }

    /// Undoes [`Network::slow`].
    pub fn unslow(&self, role: &str) {
        self.shape(role, "del", &["root"]);
    }

    fn shape(&self, role: &str, what: &str, how: &[&str]) {
        let (hub, own) = (self.hub(), format!("{}-{role}", self.prefix));
        for (namespace, device) in [(hub, interface(role)), (own, WIRE.to_owned())] {
            let device = ["-n", &namespace, "qdisc", what, "dev", &device];
            run("tc", &[&device[..], how].concat());
        }
    }

    /// What comes from `role` arrives so much later. One delay at a time.
    pub fn delay(&self, role: &str, by: Duration) {
        let mut delayer = self.delayer.lock().expect("not poisoned");
        let hub = self.hub();
        delayer.get_or_insert_with(|| Delayer::start(&hub)).set(by);
        self.detour("add", role);
    }

    /// Undoes [`Network::delay`].
    pub fn undelay(&self, role: &str) {
        self.detour("del", role);
    }

    fn detour(&self, what: &str, role: &str) {
        let (hub, from) = (self.hub(), interface(role));
        let rule = [
            "rule",
            what,
            "pref",
            "20",
            "iif",
            &from,
            "lookup",
            delay::TABLE,
        ];
        run("ip", &[&["-n", &hub], &rule[..]].concat());
    }
}

/// The hub's own address, on each of its wires.
const GATE: u32 = 254;
/// A process's end of its wire.
const WIRE: &str = "wire";

/// The hub's end: "h-s0" for "storage-0".
fn interface(role: &str) -> String {
    let number = role.rsplit('-').next().filter(|n| n.parse::<u32>().is_ok());
    format!("h-{}{}", &role[..2], number.unwrap_or_default())
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Ok(delayer) = self.delayer.get_mut() {
            drop(delayer.take());
        }
        sweep::remove(&self.prefix);
    }
}

#[cfg(test)]
mod tests;
