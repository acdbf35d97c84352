//! A partition on a fetch stream: where its reader stands, and what it was last
//! told.

use crate::{
    node::Node,
    partition::{PartitionHandle, StreamWaker, Watcher},
    resolve,
    view::TopicView,
};
use bytes::Bytes;
use std::sync::Arc;
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_log::ReadError;
use talweg_proto::v1::{FetchPartition, PartitionPosition, fetch_partition::Start};
use talweg_types::{LeaderEpoch, LogBounds, Offset, TimestampMs};

/// A reader of one partition.
pub struct Cursor {
    pub topic: String,
    pub handle: Arc<PartitionHandle>,
    pub generation: u64,
    /// The next offset to send; everything visible below it was sent.
    pub next: Offset,
    /// In the round of partitions with data.
    pub queued: bool,
    /// Bytes of the batch at `next`, if it was found too large for the credit.
    pub needs: usize,
    /// Served by a follower in the reader's rack.
    near: bool,
    watcher: Arc<Watcher>,
    told: Option<(Offset, LogBounds, i32)>,
}

/// Where a reader begins.
pub struct Started {
    pub topic: String,
    pub handle: Arc<PartitionHandle>,
    pub next: Offset,
    pub largest_batch: u32,
    near: bool,
}

impl Cursor {
    pub fn new(started: Started, generation: u64, waker: &Arc<StreamWaker>, key: u32) -> Self {
        Self {
            watcher: started.handle.watchers.register(waker, key),
            topic: started.topic,
            handle: started.handle,
            generation,
            next: started.next,
            queued: false,
            needs: 0,
            near: started.near,
            told: None,
        }
    }

    pub fn arm(&self) {
        self.watcher.arm();
    }

    /// Why the reader must stop, if it must.
    pub fn check(&self, node: &Node) -> Result<(), Refusal> {
        if node
            .view
            .get()
            .topics
            .get(&self.handle.tp.topic_id)
            .is_none_or(|topic| topic.topic.name.is_empty())
        {
            return Err(Refusal::new(
                ErrorCode::UnknownTopic,
                format!("topic {:?} was deleted", self.topic),
            ));
        }
        if let Some(why) = self.handle.failure() {
            return Err(Refusal::new(ErrorCode::FolderFailed, why));
        }
        if self.epoch().is_none() {
            return Err(resolve::not_leading(node, &self.handle.tp));
        }
        let bounds = self.handle.reader.bounds();
        if self.next < bounds.log_start {
            return Err(out_of_range(self.next, bounds));
        }
        Ok(())
    }

    /// The leader's epoch, while this replica may serve the reader.
    fn epoch(&self) -> Option<LeaderEpoch> {
        match self.near {
            true => self.handle.follows(),
            false => self.handle.leads(),
        }
    }

    /// First offset that this reader may not see.
    pub fn visible_end(&self) -> Offset {
        self.handle.reader.bounds().high_watermark
    }

    /// The position as a frame tells it.
    pub fn position(&mut self) -> PartitionPosition {
        let (bounds, epoch) = (
            self.handle.reader.bounds(),
            self.epoch().unwrap_or(LeaderEpoch::NONE).0,
        );
        self.told = Some((self.next, seen(bounds), epoch));
        PartitionPosition {
            topic_id: Bytes::copy_from_slice(self.handle.tp.topic_id.as_bytes()),
            topic: self.topic.clone(),
            partition: self.handle.tp.partition.0,
            next_offset: self.next.0,
            log_start_offset: bounds.log_start.0,
            last_stable_offset: bounds.last_stable.0,
            high_watermark: bounds.high_watermark.0.max(self.next.0),
            generation: self.generation,
            leader_epoch: epoch,
        }
    }

    /// Position or bounds differ from what was last told.
    pub fn has_news(&self) -> bool {
        let epoch = self.epoch().unwrap_or(LeaderEpoch::NONE).0;
        self.told != Some((self.next, seen(self.handle.reader.bounds()), epoch))
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        self.handle.watchers.remove(&self.watcher);
    }
}

/// What clients see of the bounds.
fn seen(bounds: LogBounds) -> LogBounds {
    LogBounds {
        log_end: bounds.high_watermark,
        flushed_end: Offset::ZERO,
        ..bounds
    }
}

pub fn out_of_range(offset: Offset, bounds: LogBounds) -> Refusal {
    let message = format!(
        "offset {offset} is outside [{}, {}]",
        bounds.log_start, bounds.high_watermark
    );
    Refusal::new(ErrorCode::OffsetOutOfRange, message)
        .with_bounds(bounds.log_start.0, bounds.high_watermark.0)
}

/// A failed read in the words of the catalogue.
pub fn read_refusal(error: &ReadError) -> Refusal {
    match error {
        ReadError::OutOfRange { offset, bounds } => out_of_range(*offset, *bounds),
        ReadError::Damaged { from, next_good } => {
            Refusal::new(ErrorCode::DataDamaged, error.to_string()).with_damage(from.0, next_good.0)
        }
        ReadError::FolderFailed(why) => Refusal::new(ErrorCode::FolderFailed, why.clone()),
        ReadError::Io { .. } => Refusal::unavailable(error.to_string()),
        ReadError::Deleted => Refusal::new(ErrorCode::UnknownTopic, "the topic was deleted"),
    }
}

/// Finds where a reader begins. May wait for a worker when asked for a time.
/// `near`: the reader is of this node's rack, and a follower serves it too.
pub async fn start(node: &Node, request: &FetchPartition, near: bool) -> Result<Started, Refusal> {
    resolve::wait_for_news(node, &request.topic, &request.topic_id, request.partition).await;
    let topic = resolve::topic(node, &request.topic, &request.topic_id)?;
    if near
        && let Some(Start::Offset(offset)) = request.start
        && let Some(followed) = resolve::followed_partition(node, &topic, request.partition)
    {
        return start_near(request, &topic, followed, Offset(offset));
    }
    let (handle, epoch) = resolve::readable_partition(node, &topic, request.partition)?;
    resolve::check_epoch(request.leader_epoch, epoch)?;
    let bounds = handle.reader.bounds();
    let next = match request.start {
        Some(Start::Offset(offset)) => Offset(offset),
        Some(Start::TimestampMs(timestamp)) => {
            offset_for_time(node, &handle, TimestampMs(timestamp))
                .await?
                .map_or(bounds.high_watermark, |(at, _)| at)
        }
        Some(Start::Earliest(true)) => bounds.log_start,
        Some(Start::Latest(true)) => bounds.high_watermark,
        Some(Start::Earliest(false) | Start::Latest(false)) => {
            return Err(Refusal::invalid(
                "partition.start",
                "must be true where it is given",
            ));
        }
        None => {
            return Err(Refusal::invalid(
                "partition.start",
                "one of its fields must be set",
            ));
        }
    };
    if next < bounds.log_start || next > handle.reader.bounds().high_watermark {
        return Err(out_of_range(next, bounds));
    }
    check_history(&handle, request.last_epoch, next, bounds)?;
    Ok(Started {
        topic: topic.topic.name.clone(),
        handle,
        next,
        largest_batch: topic.config.max_message_bytes,
        near: false,
    })
}

/// At a follower. Only a known offset begins here: what lies at the ends of the
/// log is the leader's to say. A follower that is in sync holds all that any
/// reader has read, though it may hear of the watermark later: the reader waits.
fn start_near(
    request: &FetchPartition,
    topic: &TopicView,
    (handle, epoch): (Arc<PartitionHandle>, LeaderEpoch),
    next: Offset,
) -> Result<Started, Refusal> {
    resolve::check_epoch(request.leader_epoch, epoch)?;
    let bounds = handle.reader.bounds();
    if next < bounds.log_start {
        return Err(out_of_range(next, bounds));
    }
    if next > bounds.log_end {
        let message = format!("this replica has not got as far as offset {next}; its leader has");
        return Err(Refusal::new(ErrorCode::OffsetNotAvailable, message));
    }
    check_history(&handle, request.last_epoch, next, bounds)?;
    Ok(Started {
        topic: topic.topic.name.clone(),
        handle,
        next,
        largest_batch: topic.config.max_message_bytes,
        near: true,
    })
}

/// The first record at or after a time, found on a worker.
pub async fn offset_for_time(
    node: &Node,
    handle: &PartitionHandle,
    timestamp: TimestampMs,
) -> Result<Option<(Offset, TimestampMs)>, Refusal> {
    let reader = Arc::clone(&handle.reader);
    let visible_end = reader.bounds().high_watermark;
    on_reader(node, move || reader.offset_for_time(timestamp, visible_end)).await
}

/// Runs a read on a worker, a bounded number at a time.
pub async fn on_reader<T: Send + 'static>(
    node: &Node,
    read: impl FnOnce() -> Result<T, ReadError> + Send + 'static,
) -> Result<T, Refusal> {
    let permit = Arc::clone(&node.readers).acquire_owned().await;
    let permit = permit.map_err(|_| resolve::draining())?;
    let done = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        read()
    });
    match done.await {
        Ok(result) => result.map_err(|error| read_refusal(&error)),
        Err(_) => Err(Refusal::internal("a read broke off")),
    }
}

/// The reader's last batch must be in this log, as far as the log reaches back.
fn check_history(
    handle: &PartitionHandle,
    last_epoch: Option<i32>,
    next: Offset,
    bounds: LogBounds,
) -> Result<(), Refusal> {
    let Some(last) = last_epoch.filter(|_| next > bounds.log_start) else {
        return Ok(());
    };
    let (epoch, end) = handle.reader.epoch_end_offset(LeaderEpoch(last));
    if epoch.0 == last && end >= next {
        return Ok(());
    }
    let message = format!("the log has no batch of epoch {last} just below offset {next}");
    Err(Refusal::new(ErrorCode::LogTruncated, message).with_truncation(epoch.0, end.min(next).0))
}
