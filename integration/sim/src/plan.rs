//! What a seed is: the cluster, its clients, and the faults that it will meet.
//! A fault can be left out by its number without changing any other.

use crate::rng::Rng;
use std::collections::BTreeSet;
use talweg_types::Durability;

/// A link's end: storage nodes from 0, then the two controllers' machines.
pub type End = usize;

#[derive(Clone, Debug)]
pub struct TopicPlan {
    pub durability: Durability,
    pub partitions: u32,
    pub min_insync: u32,
}

#[derive(Clone, Debug)]
pub struct Fault {
    /// Milliseconds after the cluster stands.
    pub at: u64,
    pub kind: Kind,
}

/// Spans are in milliseconds.
#[derive(Clone, Debug)]
pub enum Kind {
    /// The process dies; the page cache stays.
    Kill {
        node: usize,
        down: u64,
    },
    /// The machine goes down; what was not flushed is gone, or part of it.
    PowerLoss {
        node: usize,
        down: u64,
        some: bool,
    },
    /// In the middle of a change on the disk that is to come.
    PowerLossWithin {
        node: usize,
        changes: u64,
        down: u64,
    },
    /// All at once; they return in some order.
    PowerLossOfAll {
        apart: u64,
        some: bool,
    },
    Pause {
        node: usize,
        span: u64,
    },
    /// Nothing gets from one to the other.
    Cut {
        from: End,
        to: End,
        span: u64,
    },
    /// Nothing gets into a node, or out of it, or both; its clients reach it.
    Isolate {
        node: usize,
        into: bool,
        out: bool,
        span: u64,
    },
    SlowLink {
        from: End,
        to: End,
        extra: u64,
        span: u64,
    },
    /// Every stream of the node breaks; what is under way may come later.
    BreakStreams {
        node: usize,
    },
    SlowFlush {
        node: usize,
        flush: u64,
        span: u64,
    },
    DiskFull {
        node: usize,
        span: u64,
    },
    FlushFails {
        node: usize,
        after: u64,
    },
    /// The process comes back on an empty disk.
    Wipe {
        node: usize,
        down: u64,
    },
    /// Another controller is elected; `zombie`: the old one goes on for a while.
    Failover {
        gap: u64,
        zombie: u64,
    },
    /// Writes to the metastore take long or end unclearly.
    UnclearWrites {
        span: u64,
    },
    /// The leader's log start moves.
    Retain {
        partition: usize,
        keep: u64,
    },
    /// A leader is moved although nobody died.
    Drain {
        node: usize,
        span: u64,
    },
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub nodes: usize,
    pub topics: Vec<TopicPlan>,
    /// Messages outside of streams get lost and come twice; old words of
    /// positions come again.
    pub wild: bool,
    /// Parts per million that each node's monotonic clock is fast, may be below 0.
    pub drift: Vec<i64>,
    pub storm: u64,
    pub faults: Vec<Fault>,
}

/// Fewer say little about what happens together.
pub const FAULTS_MIN: usize = 3;

impl Plan {
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed, 1);
        let nodes = [3, 3, 3, 4, 4, 5][rng.below(6)];
        let topics = topics(&mut rng, nodes);
        let partitions: u32 = topics.iter().map(|topic| topic.partitions).sum();
        let storm = rng.between(25_000, 45_000);
        let count = FAULTS_MIN as u64 + rng.between(1, 16);
        let mut faults: Vec<_> = (0..count)
            .map(|_| Fault {
                at: rng.between(500, storm),
                kind: kind(&mut rng, nodes, partitions as usize),
            })
            .collect();
        faults.sort_by_key(|fault| fault.at);
        Self {
            seed,
            nodes,
            topics,
            wild: rng.percent(50),
            drift: (0..nodes)
                .map(|_| rng.between(0, 100_000) as i64 - 50_000)
                .collect(),
            storm,
            faults,
        }
    }

    /// Without these faults, by number.
    #[must_use]
    pub fn without(mut self, left_out: &BTreeSet<usize>) -> Self {
        let all = std::mem::take(&mut self.faults).into_iter().enumerate();
        self.faults = all
            .filter(|(number, _)| !left_out.contains(number))
            .map(|(_, fault)| fault)
            .collect();
        self
    }
}

fn topics(rng: &mut Rng, nodes: usize) -> Vec<TopicPlan> {
    let more = u32::from(nodes > 3);
    let mut topic = |durability, partitions: u32| TopicPlan {
        durability,
        partitions,
        min_insync: [1, 2, 2, 2, 2, 3][rng.below(6)],
    };
    vec![
        topic(Durability::Replicated, 1 + more),
        topic(Durability::Synced, 1 + more),
    ]
}

fn kind(rng: &mut Rng, nodes: usize, partitions: usize) -> Kind {
    let node = rng.below(nodes);
    let (from, to) = (rng.below(nodes + 2), rng.below(nodes + 2));
    let span = rng.between(200, 14_000);
    // From at once to two session time-outs.
    let down = if rng.percent(50) {
        rng.between(20, 800)
    } else {
        rng.between(800, 7_000)
    };
    match rng.below(100) {
        0..18 => Kind::Kill { node, down },
        18..28 => Kind::PowerLoss {
            node,
            down,
            some: rng.percent(60),
        },
        28..34 => Kind::PowerLossWithin {
            node,
            changes: rng.between(1, 80),
            down,
        },
        34..39 => Kind::PowerLossOfAll {
            apart: rng.between(10, 4_000),
            some: rng.percent(60),
        },
        39..46 => Kind::Pause {
            node,
            span: rng.between(100, 9_000),
        },
        46..54 => Kind::Cut { from, to, span },
        54..65 => {
            let both = rng.percent(50);
            let into = both || rng.percent(50);
            Kind::Isolate {
                node,
                into,
                out: both || !into,
                span,
            }
        }
        65..69 => Kind::SlowLink {
            from,
            to,
            extra: rng.between(50, 3_000),
            span,
        },
        69..74 => Kind::BreakStreams { node },
        74..79 => Kind::SlowFlush {
            node,
            flush: rng.between(100, 12_000),
            span,
        },
        79..82 => Kind::DiskFull { node, span },
        82..84 => Kind::FlushFails {
            node,
            after: rng.between(0, 20),
        },
        84..86 => Kind::Wipe { node, down },
        86..93 => Kind::Failover {
            gap: rng.between(20, 4_000),
            zombie: if rng.percent(50) {
                rng.between(100, 8_000)
            } else {
                0
            },
        },
        93..95 => Kind::UnclearWrites { span },
        95..98 => Kind::Retain {
            partition: rng.below(partitions),
            keep: rng.between(0, 40),
        },
        _ => Kind::Drain { node, span },
    }
}
