//! The network: links that are cut and slow, streams that keep their order and
//! break, single messages that get lost and come twice.
//!
//! A stream is what TCP makes of a link: nothing in it is lost or overtaken as
//! long as it lives. When it breaks, each end learns of it for itself, and what
//! was under way may still come.

use crate::{client::OpId, plan::End, rng::Rng};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use talweg_controller::core::{AlterInSync, InSyncResult, LogEnd, Registration};
use talweg_proto::controller::v1::WatchClusterResponse;
use talweg_replication::{Bounds, SessionTag};
use talweg_storage::parts::{Outcome, Word};
use talweg_types::{Incarnation, LeaderEpoch, NodeId, Offset, TimestampMs, TopicPartition};

/// One stream, or one call.
pub type Conn = u64;

/// The process of a node that a message is for; later ones do not get it.
pub type Life = u64;

#[derive(Clone, Debug)]
pub enum Trouble {
    Diverged { epoch: LeaderEpoch, end: Offset },
    BelowStart { sessions: Bytes },
    Refused,
}

/// A leader's word about one partition, as a Replicate stream carries it.
#[derive(Clone, Debug)]
pub struct Answer {
    pub tp: TopicPartition,
    pub session: SessionTag,
    pub epoch: LeaderEpoch,
    pub bounds: Bounds,
    pub trouble: Option<Trouble>,
    /// Whole batches; empty: only bounds.
    pub batches: Bytes,
    pub append_times: Vec<(Offset, TimestampMs)>,
}

#[derive(Clone, Debug)]
pub enum Message {
    /// The other end has closed the stream, or nobody is there.
    Closed,
    // Follower to leader and back.
    Open {
        node: NodeId,
        incarnation: Incarnation,
    },
    Opened,
    Ask(Vec<(TopicPartition, Word)>),
    Answers(Vec<Answer>),
    Beat,
    // Node to controller and back.
    Register(Box<Registration>),
    Registered {
        incarnation: Incarnation,
        cluster: uuid::Uuid,
    },
    Heartbeat {
        failed: bool,
    },
    Ack,
    Fenced,
    AskEnds(Vec<TopicPartition>),
    Ends(Vec<(TopicPartition, LogEnd)>),
    Watch,
    View(Arc<WatchClusterResponse>),
    Alter(AlterInSync),
    Altered(Option<Vec<InSyncResult>>),
    // Client to node and back.
    Produce {
        op: OpId,
        attempt: u32,
    },
    Produced {
        op: OpId,
        attempt: u32,
        outcome: Outcome,
    },
}

/// The end of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    pub end: End,
    /// A node's process, or a controller's term.
    pub life: Life,
}

pub struct Stream {
    /// Who opened it, and the other.
    pub peers: [Peer; 2],
    /// When the last message arrives, each way.
    last: [u64; 2],
}

pub struct Net {
    rng: Rng,
    /// Until when nothing gets through.
    cut: BTreeMap<(End, End), u64>,
    slow: BTreeMap<(End, End), (u64, u64)>,
    pub streams: BTreeMap<Conn, Stream>,
    next: Conn,
    /// Single messages get lost and come twice.
    wild: bool,
}

impl Net {
    pub fn new(rng: Rng, wild: bool) -> Self {
        Self {
            rng,
            cut: BTreeMap::new(),
            slow: BTreeMap::new(),
            streams: BTreeMap::new(),
            next: 0,
            wild,
        }
    }

    pub fn cut(&mut self, from: End, to: End, until: u64) {
        let old = self.cut.entry((from, to)).or_insert(until);
        *old = until.max(*old);
    }

    pub fn slow(&mut self, from: End, to: End, extra: u64, until: u64) {
        self.slow.insert((from, to), (extra, until));
    }

    /// Everything gets through again, and nothing is lost.
    pub fn heal(&mut self) {
        self.cut.clear();
        self.slow.clear();
        self.wild = false;
    }

    pub fn is_cut(&self, from: End, to: End, now: u64) -> bool {
        self.cut.get(&(from, to)).is_some_and(|until| *until > now)
    }

    fn delay(&mut self, from: End, to: End, now: u64) -> u64 {
        let slow = self.slow.get(&(from, to)).filter(|(_, until)| *until > now);
        let extra = slow.map_or(0, |(extra, _)| *extra);
        let usual = if self.rng.percent(3) {
            self.rng.between(20, 400)
        } else {
            self.rng.between(0, 6)
        };
        usual + extra
    }

    pub fn name(&mut self) -> Conn {
        self.next += 1;
        self.next
    }

    pub fn open(&mut self, from: Peer, to: Peer) -> Conn {
        let conn = self.name();
        let stream = Stream {
            peers: [from, to],
            last: [0; 2],
        };
        self.streams.insert(conn, stream);
        conn
    }

    /// When a message from `side` of a stream arrives; `None`: there is no such stream.
    pub fn on_stream(&mut self, conn: Conn, side: usize, now: u64) -> Option<u64> {
        let stream = self.streams.get(&conn)?;
        let (from, to) = (stream.peers[side].end, stream.peers[1 - side].end);
        let held = self.cut.get(&(from, to)).copied().unwrap_or(0).max(now);
        let at = held + self.delay(from, to, now);
        let last = &mut self.streams.get_mut(&conn)?.last[side];
        *last = at.max(*last);
        Some(*last)
    }

    /// When a single message arrives: not at all, once, or twice.
    pub fn single(&mut self, from: End, to: End, now: u64) -> Vec<u64> {
        let held = self.cut.get(&(from, to)).copied().unwrap_or(0).max(now);
        if held > now && self.rng.percent(50) || self.wild && self.rng.percent(3) {
            return Vec::new();
        }
        let mut times = vec![held + self.delay(from, to, now)];
        if self.wild && self.rng.percent(4) {
            times.push(held + self.rng.between(5, 4_000));
        }
        times
    }
}
