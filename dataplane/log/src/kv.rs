//! The one door to the index store: ordered keys and values that may be lost,
//! old or new at any time without losing data, because the log is the truth.

use bytes::Bytes;
use thiserror::Error;

pub mod mem;
pub mod rocks;

pub use mem::MemKv;
pub use rocks::RocksKv;

#[cfg(test)]
mod conformance;

/// The index store failed; the caller works without it and rebuilds later.
#[derive(Clone, Debug, Error)]
#[error("index store: {0}")]
pub struct KvError(pub String);

/// One change within a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KvOp {
    Put(Bytes, Bytes),
    Delete(Bytes),
    /// From the first key (inclusive) to the second (exclusive).
    DeleteRange(Bytes, Bytes),
}

/// An ordered map of bytes. Writes are atomic; none is durable by itself.
pub trait IndexKv: Send + Sync + 'static {
    /// Applies all of `ops` in order, or none.
    fn write(&self, ops: Vec<KvOp>) -> Result<(), KvError>;
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError>;
    /// The greatest entry with `low <= key <= high`.
    fn last_in(&self, low: &[u8], high: &[u8]) -> Result<Option<(Bytes, Bytes)>, KvError>;
    /// Entries with `low <= key < high` in order, at most `limit`.
    fn scan(&self, low: &[u8], high: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, KvError>;
}
