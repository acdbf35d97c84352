//! The limit of a copy that a reassignment makes: from the metadata, for a
//! follower that is being added and not in sync yet. So it is the same after
//! another leader, another stream or another controller, and ends by itself.

use super::{FRAME_BYTES, Server};
use crate::{clock, view::ClusterView};
use std::time::Duration;
use talweg_replication::{MonotonicMs, Throttle};
use talweg_types::{NodeId, TopicPartition};
use tokio::time::Instant;

/// What is held back is looked at again after this at the latest: the limit may
/// have changed.
const HOLD_MAX: Duration = Duration::from_secs(1);

/// The metadata of this node is behind the follower's: it follows soon.
const UNKNOWN_PEER: Duration = Duration::from_millis(20);

/// How fast one cursor may go.
#[derive(Default)]
pub struct Pace(Option<Throttle>);

impl Pace {
    /// The limit, 0 for none, and how long to wait until it allows a frame.
    fn wait(&mut self, now: MonotonicMs, limit: u64) -> Duration {
        match &mut self.0 {
            Some(throttle) if limit > 0 => {
                if throttle.rate() != limit {
                    throttle.set_rate(now, limit);
                }
            }
            throttle => *throttle = Throttle::new(now, limit),
        }
        let wait = self.0.as_mut().map_or(0, |throttle| throttle.wait(now));
        Duration::from_millis(wait)
    }

    fn frame_bytes(&self) -> usize {
        let bytes = self.0.as_ref().map(Throttle::frame_bytes);
        bytes.map_or(FRAME_BYTES, |bytes| {
            usize::try_from(bytes)
                .unwrap_or(FRAME_BYTES)
                .min(FRAME_BYTES)
        })
    }

    pub fn sent(&mut self, now: MonotonicMs, bytes: u64) {
        if let Some(throttle) = &mut self.0 {
            throttle.take(now, bytes);
        }
    }
}

/// Bytes per second for a copy to `peer`; 0: no limit. `None`: it is no replica
/// as far as is known here. It may have heard of its copy, and its limit, first.
fn limit(view: &ClusterView, peer: NodeId, tp: &TopicPartition) -> Option<u64> {
    let (_, state) = view.partition(tp)?;
    let copies = state.adding.contains(&peer.0) && !state.in_sync.contains(&peer.0);
    let limit = if copies {
        state.throttle_bytes_per_second
    } else {
        0
    };
    state.replicas.contains(&peer.0).then_some(limit)
}

impl Server {
    /// Bytes of the cursor's next frame; `None`: it is held back for a while.
    pub(super) fn frame_bytes(&mut self, key: u32) -> Option<usize> {
        let cursor = self.cursors.get_mut(&key)?;
        let limit = limit(&self.node.view.get(), self.peer, &cursor.handle.tp);
        let wait = match limit {
            Some(limit) => cursor.pace.wait(clock::monotonic_now(), limit),
            None => UNKNOWN_PEER,
        };
        if wait.is_zero() {
            return Some(cursor.pace.frame_bytes());
        }
        // It counts as queued, so that nothing queues it again meanwhile.
        cursor.queued = true;
        self.held.insert(key, Instant::now() + wait.min(HOLD_MAX));
        None
    }

    pub(super) fn next_held(&self) -> Instant {
        let first = self.held.values().min().copied();
        first.unwrap_or_else(Instant::now)
    }

    /// Those whose time has come have their turn.
    pub(super) fn release(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = self
            .held
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(key, _)| *key)
            .collect();
        for key in due {
            self.held.remove(&key);
            self.ready.push_back(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::TopicView;
    use std::{collections::BTreeMap, sync::Arc};
    use talweg_proto::controller::v1::PartitionState;
    use talweg_types::{PartitionIndex, TopicConfig, TopicId};

    fn view(state: PartitionState) -> ClusterView {
        let mut view = ClusterView::empty();
        let topic = TopicView {
            id: tp().topic_id,
            topic: Default::default(),
            config: TopicConfig::default(),
            partitions: BTreeMap::from([(0, state)]),
            earlier_counts: Vec::new(),
        };
        view.topics.insert(topic.id, Arc::new(topic));
        view
    }

    fn tp() -> TopicPartition {
        TopicPartition {
            topic_id: TopicId(uuid::Uuid::from_u128(5)),
            partition: PartitionIndex(0),
        }
    }

    /// Only a copy that a reassignment makes is limited, and only until it is in sync.
    #[test]
    fn only_a_copy_that_is_not_in_sync_is_limited() {
        let moving = PartitionState {
            replicas: vec![4, 2, 3, 1],
            in_sync: vec![1, 2, 3],
            adding: vec![4],
            throttle_bytes_per_second: 1_000,
            ..Default::default()
        };
        assert_eq!(limit(&view(moving.clone()), NodeId(4), &tp()), Some(1_000));
        assert_eq!(limit(&view(moving.clone()), NodeId(3), &tp()), Some(0));
        let caught_up = PartitionState {
            in_sync: vec![1, 2, 3, 4],
            ..moving
        };
        assert_eq!(limit(&view(caught_up), NodeId(4), &tp()), Some(0));
    }

    /// A copy is told to its source and its destination in any order.
    #[test]
    fn a_copy_that_is_not_known_here_yet_waits() {
        let before = PartitionState {
            replicas: vec![2, 3, 1],
            in_sync: vec![1, 2, 3],
            ..Default::default()
        };
        assert_eq!(limit(&view(before), NodeId(4), &tp()), None);
        assert_eq!(limit(&ClusterView::empty(), NodeId(4), &tp()), None);
    }

    #[test]
    fn a_limit_comes_changes_and_goes() {
        let mut pace = Pace::default();
        let now = MonotonicMs(1_000);
        assert_eq!(pace.wait(now, 0), Duration::ZERO);
        assert_eq!(pace.frame_bytes(), FRAME_BYTES);
        assert_eq!(pace.wait(now, 1 << 20), Duration::ZERO);
        assert!(pace.frame_bytes() < 200_000);
        pace.sent(now, 1 << 20);
        assert_eq!(pace.wait(now, 1 << 20), Duration::from_secs(1));
        assert_eq!(pace.wait(now, 2 << 20), Duration::from_millis(500));
        assert_eq!(pace.wait(now, 0), Duration::ZERO);
    }
}
