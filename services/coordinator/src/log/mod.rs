//! The log of a shard, as the coordinator needs it.

mod leader;
mod memory;

pub use leader::LeaderLog;
pub use memory::{Fault, MemoryLog};

use async_trait::async_trait;
use bytes::Bytes;
use talweg_kit::errors::Refusal;
use talweg_types::{LeaderEpoch, Offset, ProducerId, ShardEpoch, TopicPartition};

/// Takes what is read, batch by batch.
pub type Sink<'a> = dyn FnMut(Bytes) -> Result<(), Refusal> + Send + 'a;

/// Where the newest record of a call is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub last: Offset,
    /// Of the leader that has committed it.
    pub leader_epoch: LeaderEpoch,
}

/// One attempt each; whoever calls decides about another. A [`Refusal`] says
/// whether it may have been done.
#[async_trait]
pub trait ShardLog: Send + Sync + 'static {
    /// A producer id that nobody else has.
    async fn producer_id(&self) -> Result<ProducerId, Refusal>;

    /// Appends a fence and waits until it is committed: from then on no lower epoch
    /// can append. SHARD_FENCED: a higher epoch has the shard.
    async fn fence(&self, at: TopicPartition, epoch: ShardEpoch) -> Result<Place, Refusal>;

    /// Appends one batch of an idempotent producer and waits until it is committed.
    /// The place of its last record; a repeat of the same bytes is recognised.
    async fn append(
        &self,
        at: TopicPartition,
        epoch: ShardEpoch,
        batch: Bytes,
    ) -> Result<Place, Refusal>;

    /// All whole batches with offsets in `from..until`, in order; the first may begin
    /// before. Returns when `until` is reached. `last_epoch`: of the batch below `from`
    /// that the caller has; LOG_TRUNCATED if the log has another there.
    async fn read(
        &self,
        at: TopicPartition,
        from: Offset,
        last_epoch: Option<LeaderEpoch>,
        until: Offset,
        sink: &mut Sink<'_>,
    ) -> Result<(), Refusal>;
}
