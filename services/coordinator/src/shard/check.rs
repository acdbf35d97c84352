//! A shard's hashes at one moment.

use talweg_types::{Offset, ShardEpoch};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checked {
    pub epoch: ShardEpoch,
    /// Exclusive.
    pub applied: Offset,
    pub groups: u64,
    /// Of the live state with all below `applied`, and nothing else.
    pub live_hash: u64,
    /// Of what a load of the kept view gives; 0: there is none.
    pub view_hash: u64,
}
