//! The storage node: keeps partition logs, appends what producers send to the
//! partitions that it leads, and serves readers.
//!
//! ```text
//! streams (tokio tasks) ──commands──▶ partition loops (threads) ──tickets──▶ flushers (threads)
//!        ▲   │                              │   ▲                               │
//!        │   └── reads: page cache inline,  │   └────────── results ───────────┘
//!        │       else a worker              │
//!        └── answers, wake-ups ─────────────┘        control (a runtime of its own):
//!                                                     session, view, opening and leading
//! ```
//! Each partition has one owner, a loop. A disk never holds up a stream's
//! task or the session. What is acknowledged has been decided by the leader's
//! state machine (`talweg-replication`), nowhere else.

mod arrivals;
mod compactor;
mod config;
mod control;
mod fetch;
mod flusher;
mod folders;
mod housekeeping;
mod metrics;
mod node;
mod partition;
mod produce;
mod repairer;
mod replicate;
mod resolve;
mod rewrites;
mod services;
mod start;
mod stop;
mod stream;
mod view;
mod worker;

use talweg_kit::clock;

pub use config::StorageConfig;
pub use control::Stopped;
#[cfg(feature = "power-loss")]
pub use start::start_losing_power;
pub use start::{Handle, StartError, start};

/// The parts that decide, without the threads, tasks and sockets around them:
/// what the simulation of a whole cluster steps. No interface for others.
#[doc(hidden)]
pub mod parts {
    pub use crate::{
        control::{
            assign::{Action, Known, Me, Phase, Role, decide},
            assigner::{leader_settings, log_config},
        },
        partition::{
            AppendRefusal, AppendRequest, AppendedRound, Completion, Completions, Deliveries,
            Following, Leadership, Opened, Outcome, PartitionHandle, ProposalAnswer, Replica,
            Reservation, Taken,
        },
        replicate::{CreditBack, Letters, LogHistory, NewNodes, Outbox, ReplicaFrame, Word},
        view::{ClusterView, TopicView, ViewUpdate},
    };
}
