//! The partition log: segments, sidecar files, indexes, recovery, retention
//! and producer sessions. All file access goes through [`fs::LogFs`], all index
//! access through [`kv::IndexKv`]; every call is synchronous, so that a driver's
//! threads and a simulator step the same code.
//!
//! Four moments, in this order, never standing in for one another:
//! *accepted* (offsets given), *written* (log end moved, readers may see it),
//! *flushed* (flushed end moved), *committed* (high watermark moved by the caller).
//!
//! [`PartitionLog`] has one owner and decides; [`LogReader`] is shared and only
//! reads; a [`FlushTicket`] carries the slow part of making things durable to
//! another thread. `docs/formats` draws the files.

mod active;
mod append;
mod append_times;
mod backlog;
mod buffers;
mod check;
mod compact;
mod config;
mod delete;
pub mod dump;

mod epochs;
mod error;
#[doc(hidden)]
pub mod fault;
mod fd_cache;
mod fence;
mod flush;
mod folder;
mod follow;
pub mod fs;
mod idempotency;
mod index;
pub mod kv;
mod marker;
mod names;
mod partition;
mod read;
mod reader;
mod rebuild;
mod recovery;
mod repair;
mod replay;
mod retention;
mod rewrite;
mod segment;
mod sessions;
pub mod sidecar;
mod snapshot;
mod tail;
mod time_index;
mod truncate;
mod verify;
mod walk;

pub use append::Appended;
pub use backlog::Backlog;
pub use compact::{Compaction, CompactionNeed, CompactionReport};
pub use config::{CompactionConfig, FolderOptions, LogConfig};
pub use error::{AppendError, FolderError, LogError, ReadError};
pub use fence::Fence;
pub use flush::{FlushTicket, run_together};
pub use folder::{FolderReport, LogFolder};
pub use follow::{ReplicaBatch, ReplicaError};
pub use marker::Boot;
pub use partition::PartitionLog;
pub use reader::{LogReader, ReadOutcome};
pub use recovery::{DamagedRange, IndexFound, RecoveryReport};
pub use repair::{Repair, RepairPart, RepairReport, RepairSource, RepairWish};
pub use retention::TickReport;
pub use rewrite::{Rewrite, RewriteError};
pub use truncate::Truncation;
