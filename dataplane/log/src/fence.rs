//! Fences of internal topics: which coordinator may append to a shard.
//!
//! ```text
//! fence e ……… batches of e ……… fence e' > e ……… batches of e'
//! ```
//! The newest fence in the log is part of what follows from the log, like producer
//! sessions: saved in `sessions` files, replayed, copied by followers, and gone again
//! when a truncation takes it. A batch of a fenced log names the shard epoch of its
//! coordinator and is appended only if that is the fence's. So once a fence is
//! committed no lower epoch appends, whoever leads.
//!
//! A fence of a higher epoch also ends all producer sessions: who had them cannot
//! append any more.

use crate::{
    append::{Appended, Group},
    error::AppendError,
    fault::{Fault, planted},
    partition::PartitionLog,
    sessions::Sessions,
};
use bytes::Bytes;
use talweg_batch::{BatchHeader, CheckedBatch, fence_batch, read_fence};
use talweg_types::{Offset, ShardEpoch, TimestampMs};

/// The newest fence of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fence {
    /// From 1.
    pub epoch: ShardEpoch,
    /// Where it is.
    pub offset: Offset,
}

/// As whom a batch comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// A client's.
    Nobody,
    /// The coordinator's that holds this shard epoch.
    Shard(ShardEpoch),
    /// The fence itself.
    Fence(ShardEpoch),
}

/// What a fence changed, for taking back an append that failed.
pub(crate) struct Unfence {
    fence: Option<Fence>,
    sessions: Sessions,
    /// Sessions that changed before it in the same group.
    pub(crate) after: usize,
}

/// The epoch of a fence that is in the log, or comes into it.
pub(crate) fn fence_in(header: &BatchHeader, batch: &Bytes) -> Option<ShardEpoch> {
    read_fence(header, batch).unwrap_or_else(|error| {
        // Written by a later version; older epochs are fenced by whoever knows it.
        tracing::warn!(offset = %header.base_offset, %error, "control batch not understood");
        None
    })
}

/// A fence is in the log: the one state change of it, for serving, following and replay.
pub(crate) fn apply_fence(
    fence: &mut Option<Fence>,
    sessions: &mut Sessions,
    epoch: ShardEpoch,
    offset: Offset,
) {
    if fence.is_none_or(|newest| newest.epoch < epoch) {
        sessions.clear();
    }
    *fence = Some(Fence { epoch, offset });
}

impl PartitionLog {
    /// The newest fence in the log.
    pub fn fence(&self) -> Option<Fence> {
        self.fence
    }

    /// Appends a fence: no lower shard epoch appends from now on. One of the newest
    /// fence's epoch is appended again.
    ///
    /// # Errors
    /// [`AppendError::ShardFenced`] below the newest fence; `Invalid` below 1.
    pub fn append_fence(
        &mut self,
        epoch: ShardEpoch,
        now: TimestampMs,
    ) -> Result<Appended, AppendError> {
        if epoch <= ShardEpoch::NONE {
            return Err(AppendError::Invalid("a shard epoch is 1 or more"));
        }
        let bytes = fence_batch(epoch, now).map_err(|_| AppendError::Invalid("timestamp"))?;
        let header = BatchHeader::parse(&bytes).map_err(|_| AppendError::Invalid("fence"))?;
        let batch = CheckedBatch {
            header,
            bytes,
            idempotency_keys: Vec::new(),
            max_timestamp_delta: 0,
        };
        self.append_one(&batch, Claim::Fence(epoch), now)
    }

    /// As [`Self::append`], for the coordinator that holds the shard in `epoch`.
    ///
    /// # Errors
    /// [`AppendError::ShardFenced`] below the newest fence, [`AppendError::FenceMissing`]
    /// above it, [`AppendError::FenceDamaged`]; what `append` refuses.
    pub fn append_in_shard(
        &mut self,
        batch: &CheckedBatch,
        epoch: ShardEpoch,
        now: TimestampMs,
    ) -> Result<Appended, AppendError> {
        self.append_one(batch, Claim::Shard(epoch), now)
    }

    fn append_one(
        &mut self,
        batch: &CheckedBatch,
        claim: Claim,
        now: TimestampMs,
    ) -> Result<Appended, AppendError> {
        let mut results = self.append_as(std::slice::from_ref(batch), claim, now);
        results
            .pop()
            .unwrap_or(Err(AppendError::Invalid("no result")))
    }

    pub(crate) fn check_claim(&self, claim: Claim) -> Result<(), AppendError> {
        if planted(Fault::FenceNotChecked) {
            return Ok(());
        }
        if let (Some(from), Claim::Shard(_) | Claim::Fence(_)) = (self.holes_from, claim) {
            return Err(AppendError::FenceDamaged { from });
        }
        let current = self.fence.map_or(ShardEpoch::NONE, |fence| fence.epoch);
        let asked = match claim {
            Claim::Nobody => ShardEpoch::NONE,
            Claim::Shard(epoch) | Claim::Fence(epoch) => epoch,
        };
        if asked < current {
            return Err(AppendError::ShardFenced { asked, current });
        }
        match claim {
            Claim::Shard(_) if asked > current => Err(AppendError::FenceMissing { asked, current }),
            Claim::Shard(_) | Claim::Fence(_) | Claim::Nobody => Ok(()),
        }
    }

    /// A batch that is being staged, if it is a fence.
    pub(crate) fn stage_fence(&mut self, header: &BatchHeader, bytes: &Bytes, group: &mut Group) {
        let Some(epoch) = fence_in(header, bytes) else {
            return;
        };
        if group.unfence.is_none() {
            group.unfence = Some(Unfence {
                fence: self.fence,
                sessions: self.sessions.clone(),
                after: group.undo.len(),
            });
        }
        apply_fence(
            &mut self.fence,
            &mut self.sessions,
            epoch,
            header.base_offset,
        );
    }

    /// Takes back what a group that was not written changed.
    pub(crate) fn take_back(&mut self, group: Group) {
        let mut undo = group.undo;
        if let Some(unfence) = group.unfence {
            // What came after the first fence is in its copy already.
            undo.truncate(unfence.after);
            self.fence = unfence.fence;
            self.sessions = unfence.sessions;
        }
        for (producer, session) in undo.into_iter().rev() {
            self.sessions.restore(producer, session);
        }
    }

    pub(crate) fn check_fence(&self) -> Result<(), String> {
        let Some(fence) = self.fence else {
            return Ok(());
        };
        if fence.epoch <= ShardEpoch::NONE || fence.offset >= self.bounds().log_end {
            return Err(format!("{fence:?} is not in the log"));
        }
        Ok(())
    }
}
