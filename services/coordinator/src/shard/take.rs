//! Taking a shard: a fence, what the kept view has, a replay up to the fence.

use crate::{kept::Mark, log::ShardLog, node::Node, producer::Producer};
use bytes::Bytes;
use std::{sync::Arc, time::Duration};
use talweg_coordinator_runtime::{Limits, LoadError, Loading, Shard};
use talweg_group::{Group, Settings};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_types::{LeaderEpoch, MonotonicMs, Offset, ShardEpoch, TopicPartition};

/// A view that was written longer ago than half of this is not used: the log may
/// have removed tombstones that it needs.
const DELETE_RETENTION_MS_DEFAULT: i64 = 24 * 60 * 60 * 1_000;
pub const DELETE_RETENTION_KEY: &str = "delete.retention.ms";

pub struct Taken {
    pub shard: Shard<Group>,
    pub producer: Producer,
    /// Of the leader that has committed our fence.
    pub leader_epoch: LeaderEpoch,
    /// Nobody else has written since.
    pub fenced_at: MonotonicMs,
}

/// One attempt.
///
/// # Errors
/// SHARD_FENCED: another has it, for good. Anything else: worth another attempt.
pub async fn take(node: &Node, at: TopicPartition, epoch: ShardEpoch) -> Result<Taken, Refusal> {
    let largest = {
        let view = node.view.get();
        let topic = view.topic(at.topic_id);
        let topic = topic.ok_or_else(|| talweg_client::view::unknown(&at.topic_id))?;
        topic.config.max_message_bytes
    };
    let producer = node.log.producer_id().await?;
    let fence = node.log.fence(at, epoch).await?;
    let fenced_at = node.now().monotonic;
    let until = fence.last.plus(1);
    let (loading, last_epoch) = match kept(node, at, until).await {
        Some((mark, loading)) => (loading, Some(mark.leader_epoch)),
        None => (Loading::default(), None),
    };
    let loading = match replay(&node.log, at, until, loading, last_epoch).await {
        Err(refusal) if is_of_another_history(&refusal) => {
            tracing::info!(%at, %refusal, "the kept view of a shard is dropped and made anew from the log");
            forget(node, at).await;
            replay(&node.log, at, until, Loading::default(), None).await?
        }
        other => other?,
    };
    let limits = Limits::for_batches_of(largest);
    let settings = Settings {
        decision_bytes: limits.append_bytes,
        ..Settings::default()
    };
    let shard = loading.finish(settings, limits, node.now());
    Ok(Taken {
        shard: shard.map_err(unreadable)?,
        producer: Producer::new(producer),
        leader_epoch: fence.leader_epoch,
        fenced_at,
    })
}

/// The log no longer has what comes after the view, or has lost what the view holds:
/// an election has cut it, and others have written there since.
fn is_of_another_history(refusal: &Refusal) -> bool {
    matches!(
        refusal.code,
        ErrorCode::OffsetOutOfRange | ErrorCode::LogTruncated
    )
}

/// Everything below `until`, on top of what `loading` has, whose newest batch is of
/// `last_epoch`.
pub async fn replay(
    log: &Arc<dyn ShardLog>,
    at: TopicPartition,
    until: Offset,
    mut loading: Loading<Group>,
    last_epoch: Option<LeaderEpoch>,
) -> Result<Loading<Group>, Refusal> {
    let from = loading.next();
    let mut sink = |batch: Bytes| loading.apply_batch(&batch).map_err(unreadable);
    log.read(at, from, last_epoch, until, &mut sink).await?;
    loading.skip_to(until);
    Ok(loading)
}

fn unreadable(error: LoadError) -> Refusal {
    Refusal::internal(format!("the shard's log cannot be loaded: {error}"))
}

/// What the kept view has, if it may be used.
async fn kept(node: &Node, at: TopicPartition, until: Offset) -> Option<(Mark, Loading<Group>)> {
    let (view, shard) = (node.kept.clone(), at.partition.0);
    let loaded = tokio::task::spawn_blocking(move || view.load(shard)).await;
    let why = match loaded {
        Ok(Ok(None)) => return None,
        Ok(Ok(Some((mark, loading)))) => match refused(node, mark, at, until) {
            None => return Some((mark, loading)),
            Some(why) => why.to_owned(),
        },
        Ok(Err(error)) => {
            node.metrics.kept_view_failures.inc();
            error.to_string()
        }
        Err(_) => return None,
    };
    tracing::info!(%at, why, "the kept view of a shard is dropped and made anew from the log");
    forget(node, at).await;
    None
}

fn refused(node: &Node, mark: Mark, at: TopicPartition, until: Offset) -> Option<&'static str> {
    let retention = {
        let view = node.view.get();
        let topic = view.topic(at.topic_id);
        let config = topic.map(|topic| &topic.topic.config);
        let set = config.and_then(|config| config.get(DELETE_RETENTION_KEY));
        set.and_then(|text| text.parse().ok())
            .unwrap_or(DELETE_RETENTION_MS_DEFAULT)
    };
    let age = node.now().wall.0.saturating_sub(mark.written_at.0);
    if mark.topic_id != at.topic_id {
        Some("it is of another topic")
    } else if mark.applied >= until {
        // The last record that is replayed is our own fence, which no view has yet.
        Some("it is ahead of the log")
    } else if !(0..retention / 2).contains(&age) {
        Some("it is older than tombstones are sure to live")
    } else {
        None
    }
}

async fn forget(node: &Node, at: TopicPartition) {
    let (view, shard) = (node.kept.clone(), at.partition.0);
    let dropped = tokio::task::spawn_blocking(move || view.drop_shard(shard)).await;
    if !matches!(dropped, Ok(Ok(()))) {
        node.metrics.kept_view_failures.inc();
    }
}

/// Between attempts.
pub const AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// True: no further attempt can succeed in this epoch.
pub fn is_final(refusal: &Refusal) -> bool {
    refusal.code == ErrorCode::ShardFenced
}
