//! A partition on a Replicate stream: how far its follower was sent, and what it
//! was last told.

use crate::{
    node::Node,
    partition::{PartitionHandle, StreamWaker, Watcher},
    replicate::{server::pace::Pace, wire},
    resolve,
};
use std::sync::Arc;
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::storage::v1::{ReplicaUpdate, replica_update::Trouble};
use talweg_replication::{Bounds, SessionTag};
use talweg_types::{LeaderEpoch, Offset};

/// A follower of one partition.
pub struct Cursor {
    pub handle: Arc<PartitionHandle>,
    pub session: SessionTag,
    /// The next offset to send.
    pub next: Offset,
    /// In the round of partitions with data.
    pub queued: bool,
    pub pace: Pace,
    epoch: LeaderEpoch,
    watcher: Arc<Watcher>,
    told: Option<Bounds>,
}

impl Cursor {
    pub fn new(
        handle: Arc<PartitionHandle>,
        epoch: LeaderEpoch,
        session: SessionTag,
        next: Offset,
        waker: &Arc<StreamWaker>,
        key: u32,
    ) -> Self {
        Self {
            watcher: handle.copiers.register(waker, key),
            handle,
            session,
            next,
            queued: false,
            pace: Pace::default(),
            epoch,
            told: None,
        }
    }

    /// Wake me at the next move of the log end or the bounds.
    pub fn arm(&self) {
        self.watcher.arm();
    }

    /// Why the follower must look elsewhere, if it must.
    pub fn check(&self, node: &Node) -> Result<(), Refusal> {
        if let Some(why) = self.handle.failure() {
            return Err(Refusal::new(ErrorCode::FolderFailed, why));
        }
        match self.handle.leads() {
            Some(epoch) if epoch == self.epoch => Ok(()),
            _ => Err(resolve::not_leading(node, &self.handle.tp)),
        }
    }

    pub fn has_data(&self) -> bool {
        self.handle.reader.bounds().log_end > self.next
    }

    /// The bounds differ from what was last told.
    pub fn has_news(&self) -> bool {
        self.told != Some(self.bounds())
    }

    fn bounds(&self) -> Bounds {
        let bounds = self.handle.reader.bounds();
        Bounds {
            high_watermark: self
                .handle
                .knows_watermark()
                .then_some(bounds.high_watermark),
            log_start: bounds.log_start,
        }
    }

    /// The bounds as a frame tells them.
    pub fn update(&mut self, trouble: Option<Trouble>) -> ReplicaUpdate {
        let bounds = self.bounds();
        self.told = Some(bounds);
        let log_end = self.handle.reader.bounds().log_end;
        ReplicaUpdate {
            trouble,
            ..wire::update(&self.handle.tp, self.epoch, self.session, bounds, log_end)
        }
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        self.handle.copiers.remove(&self.watcher);
    }
}
