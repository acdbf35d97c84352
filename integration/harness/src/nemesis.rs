//! Faults by role, each undone before the next one: what is struck is "the
//! leader of partition 1", never a number.

use crate::{Cluster, Stack};
use rand::{Rng, rngs::SmallRng};
use std::{fmt, time::Duration};

const START: Duration = Duration::from_secs(30);
/// As configured by default.
pub const SESSION: Duration = Duration::from_secs(3);
/// Of a partition's disk or link while it is slow.
const SLOW_KBIT: u32 = 256;

/// Whom a cut parts from its victim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peers {
    Controllers,
    Storages,
    Gateways,
    /// All but clients.
    Everybody,
}

/// Which way nothing gets through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Both,
    /// What the victim sends.
    Out,
    /// What is sent to it.
    In,
}

/// What happens to a storage node (or the active controller) for a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// SIGKILL, then a start.
    Kill,
    /// SIGSTOP, then SIGCONT.
    Pause,
    Cut(Peers, Way),
    /// A link of 256 kbit/s.
    Slow,
    /// What it sends arrives so many milliseconds later.
    Delay(u64),
    /// Not a byte is free.
    FullDisk,
    /// Writes and flushes wait.
    FrozenDisk,
    KillController,
    PauseController,
}

/// One fault with its victim and its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strike {
    pub fault: Fault,
    /// The leader of this partition is struck.
    pub partition: u32,
    pub lasts: Duration,
}

impl fmt::Display for Strike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (fault, partition, lasts) = (self.fault, self.partition, self.lasts);
        write!(f, "{fault:?} of the leader of {partition} for {lasts:?}")
    }
}

impl Strike {
    pub fn new(fault: Fault, partition: u32, milliseconds: u64) -> Self {
        Self {
            fault,
            partition,
            lasts: Duration::from_millis(milliseconds),
        }
    }

    /// Any, for up to two session time-outs.
    pub fn random(random: &mut SmallRng, partitions: u32) -> Self {
        use {Fault as F, Peers as P, Way as W};
        let peers = [P::Controllers, P::Storages, P::Gateways, P::Everybody];
        let peers = peers[random.random_range(0..peers.len())];
        let way = [W::Both, W::Out, W::In][random.random_range(0..3)];
        let faults = [
            F::Kill,
            F::Kill,
            F::Pause,
            F::Cut(peers, way),
            F::Cut(peers, way),
            F::Cut(peers, way),
            F::Slow,
            F::Delay(random.random_range(20..300)),
            F::FullDisk,
            F::FrozenDisk,
            F::KillController,
            F::PauseController,
        ];
        let longest = 2 * u64::try_from(SESSION.as_millis()).expect("seconds");
        Self::new(
            faults[random.random_range(0..faults.len())],
            random.random_range(0..partitions),
            random.random_range(0..=longest),
        )
    }

    /// Does it, waits as long as it lasts, undoes it.
    pub async fn run(self, stack: &mut Stack, cluster: &Cluster) {
        match self.fault {
            Fault::KillController | Fault::PauseController => {
                self.strike_controller(stack, cluster).await;
            }
            _ => {
                let victim = cluster.leader(self.partition).await;
                self.strike_storage(stack, victim).await;
            }
        }
    }

    async fn strike_storage(self, stack: &mut Stack, victim: usize) {
        let role = format!("storage-{victim}");
        println!("{self}: {role}");
        match self.fault {
            Fault::Kill => {
                stack.storages[victim].kill9();
                self.lasting().await;
                tokio::task::block_in_place(|| stack.storages[victim].start(START));
            }
            Fault::Pause => {
                stack.storages[victim].pause();
                self.lasting().await;
                stack.storages[victim].resume();
            }
            Fault::Cut(peers, way) => {
                let links = links(stack, &role, peers, way);
                let network = stack.network();
                links
                    .iter()
                    .for_each(|(from, to)| network.cut_one_way(from, to));
                self.lasting().await;
                links
                    .iter()
                    .for_each(|(from, to)| network.mend_one_way(from, to));
            }
            Fault::Slow => {
                stack.network().slow(&role, SLOW_KBIT);
                self.lasting().await;
                stack.network().unslow(&role);
            }
            Fault::Delay(milliseconds) => {
                let by = Duration::from_millis(milliseconds);
                stack.network().delay(&role, by);
                self.lasting().await;
                stack.network().undelay(&role);
            }
            Fault::FullDisk => {
                stack.disk(victim).fill(0);
                self.lasting().await;
                stack.disk(victim).empty();
            }
            Fault::FrozenDisk => {
                tokio::task::block_in_place(|| stack.disk(victim).freeze());
                self.lasting().await;
                stack.disk(victim).thaw();
            }
            Fault::KillController | Fault::PauseController => unreachable!("not a storage node"),
        }
    }

    async fn strike_controller(self, stack: &mut Stack, cluster: &Cluster) {
        let active = cluster.active_controller(stack).await;
        println!("{self}: controller-{active}");
        let kill = self.fault == Fault::KillController;
        if kill {
            stack.controller_at(active).kill9();
        } else {
            stack.controller_at(active).pause();
        }
        self.lasting().await;
        if kill {
            tokio::task::block_in_place(|| stack.restart_controller(active));
        } else {
            stack.controller_at(active).resume();
        }
    }

    /// A fault has no event that says when it is over: this is its length.
    async fn lasting(self) {
        tokio::time::sleep(self.lasts).await;
    }
}

/// (from, to) of every direction in which nothing gets through.
pub fn links(stack: &Stack, victim: &str, peers: Peers, way: Way) -> Vec<(String, String)> {
    let roles = |name: &str, count: usize| (0..count).map(|i| format!("{name}-{i}")).collect();
    let controllers: Vec<String> = roles("controller", stack.controllers().len());
    let storages: Vec<String> = roles("storage", stack.storages.len());
    let gateways: Vec<String> = roles("gateway", stack.gateways.len());
    let peers = match peers {
        Peers::Controllers => controllers,
        Peers::Storages => storages,
        Peers::Gateways => gateways,
        Peers::Everybody => [controllers, storages, gateways].concat(),
    };
    let mut links = Vec::new();
    for peer in peers.into_iter().filter(|peer| peer != victim) {
        if way != Way::In {
            links.push((victim.to_owned(), peer.clone()));
        }
        if way != Way::Out {
            links.push((peer, victim.to_owned()));
        }
    }
    links
}
