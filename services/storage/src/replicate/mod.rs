//! Replication between storage nodes: the IO around the cores of
//! `talweg_replication`.
//!
//! ```text
//!   loop (follower core) ── Outbox ──▶ Puller, one a leader node ══ Replicate ══▶ Server ──▶ loop (leader core)
//!            ▲                            │    stream of the pair                    │
//!            └────── Command::Fetched ◀───┘                     reads the log itself ┘
//! ```
//! A position on the wire is a fetch or a report; both are sent after the write
//! or flush that they speak of has returned, because the loops say them. Memory
//! is bounded by the credit that a puller grants and gives back once a loop has
//! written what came. What waits in an [`Outbox`] is at most one word per
//! partition: a newer one takes its place.

mod outbox;
mod proposer;
mod puller;
mod server;
mod wire;

pub use outbox::{CreditBack, Letters, NewNodes, Outbox, ReplicaFrame, Word};
pub use proposer::propose;
pub use puller::pull;
pub use server::ReplicateHandler;

use std::time::Duration;
use talweg_log::LogReader;
use talweg_replication::History;
use talweg_types::{LeaderEpoch, Offset};

/// Bytes of batches that may be outstanding between two nodes, each way.
const CREDIT_BYTES: u64 = 16 << 20;
/// Both sides say something at least this often.
const HEARTBEAT: Duration = Duration::from_millis(1_000);
/// A peer that says nothing for so long is given up.
const SILENCE: Duration = Duration::from_millis(3_000);

/// The epochs of a log, as the cores ask for them.
pub struct LogHistory<'a>(pub &'a LogReader);

impl History for LogHistory<'_> {
    fn last_epoch(&self) -> LeaderEpoch {
        self.0.last_epoch()
    }

    fn end_of(&self, epoch: LeaderEpoch) -> (LeaderEpoch, Offset) {
        self.0.epoch_end_offset(epoch)
    }
}
