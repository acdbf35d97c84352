//! The shards of this coordinator: taken when the controller gives them, dropped
//! when it gives them to another.

use crate::{
    node::Node,
    refusals::{loading, not_coordinator},
    shard::{Command, ShardHandle},
    topics::topics,
};
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use talweg_client::delivery::Routes;
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1::LeaderHint;
use talweg_types::{PartitionIndex, ShardEpoch, TopicId, TopicPartition};
use tokio::{sync::Notify, time::sleep};

/// Without news.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longer than any call of an earlier taking may still be under way.
const TAKEN_AGAIN_AFTER: Duration = Duration::from_secs(15);

#[derive(Default)]
pub struct Shards {
    held: Mutex<BTreeMap<TopicPartition, Arc<ShardHandle>>>,
    /// Given up; they may still write their last.
    ending: Mutex<BTreeMap<TopicPartition, Arc<ShardHandle>>>,
    /// Topics that were deleted for good and that shards have not been told of.
    deleted: Mutex<BTreeSet<TopicId>>,
    look: Notify,
}

impl Shards {
    /// Something may have changed.
    pub fn look(&self) {
        self.look.notify_one();
    }

    pub fn deleted(&self, ids: BTreeSet<TopicId>) {
        if !ids.is_empty() {
            self.deleted.lock().extend(ids);
            self.look();
        }
    }

    /// Those that are served or on their way up.
    pub fn all(&self) -> Vec<Arc<ShardHandle>> {
        self.held.lock().values().cloned().collect()
    }

    fn get(&self, at: TopicPartition) -> Option<Arc<ShardHandle>> {
        self.held.lock().get(&at).cloned()
    }
}

/// The shard of a group, served here.
///
/// # Errors
/// NOT_COORDINATOR, with the coordinator if one is known; LOADING.
pub fn route(node: &Node, group: &str) -> Result<Arc<ShardHandle>, Refusal> {
    let view = node.view.get();
    let Some((topic_id, shard)) = view.shard_of(group) else {
        return Err(Refusal::new(
            ErrorCode::NotCoordinator,
            "this coordinator knows no shards yet",
        ));
    };
    let at = TopicPartition {
        topic_id,
        partition: PartitionIndex(shard),
    };
    match node.shards.get(at) {
        Some(handle) if handle.is_serving() => Ok(handle),
        Some(handle) if !handle.is_over() => Err(loading(shard)),
        Some(_) | None => {
            let refusal = not_coordinator(shard);
            Err(match view.coordinator(group) {
                Ok(other) if Some(other.node) != node.identity().map(|(id, _)| id) => refusal
                    .with_leader(LeaderHint {
                        node_id: other.node.0,
                        addresses: vec![other.address.to_string()],
                        leader_epoch: other.epoch.0,
                    }),
                Ok(_) | Err(_) => refusal,
            })
        }
    }
}

/// Follows the view; never ends.
pub async fn follow(node: Arc<Node>) {
    let mut changes = node.view.changes();
    loop {
        look(&node);
        tokio::select! {
            biased;
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = node.shards.look.notified() => {}
            () = sleep(LOOK_EVERY) => {}
        }
    }
}

fn look(node: &Arc<Node>) {
    let view = node.view.get();
    if view.cluster_id.is_empty() {
        return;
    }
    let seen = topics(&view);
    node.topics.send_if_modified(|known| {
        let changed = **known != seen;
        if changed {
            *known = Arc::new(seen);
        }
        changed
    });
    if !node.leaving.is_cancelled() {
        give_and_take(node, &mine(node));
    }
    tell_deleted(node);
}

/// What the controller has given to this process.
fn mine(node: &Node) -> BTreeMap<TopicPartition, ShardEpoch> {
    let Some((id, incarnation)) = node.identity() else {
        return BTreeMap::new();
    };
    let view = node.view.get();
    let shards = view.shards();
    let mine =
        shards.filter(|(_, _, shard)| shard.coordinator == id && shard.incarnation == incarnation);
    mine.map(|(topic_id, shard, state)| {
        let partition = PartitionIndex(shard);
        (
            TopicPartition {
                topic_id,
                partition,
            },
            state.epoch,
        )
    })
    .collect()
}

fn give_and_take(node: &Arc<Node>, mine: &BTreeMap<TopicPartition, ShardEpoch>) {
    let mut held = node.shards.held.lock();
    let mut ending = node.shards.ending.lock();
    held.retain(|at, handle| {
        // Given up although nobody else has it: its log had lost our fence.
        let stays = mine.get(at) == Some(&handle.epoch) && !handle.is_over_since(TAKEN_AGAIN_AFTER);
        if !stays {
            handle.drop_it();
            ending.insert(*at, Arc::clone(handle));
        }
        stays
    });
    for (at, epoch) in mine {
        held.entry(*at).or_insert_with(|| {
            let before = ending.remove(at);
            ShardHandle::take(Arc::clone(node), *at, *epoch, before)
        });
    }
    let serving = held.values().filter(|handle| handle.is_serving()).count();
    let over = held.values().filter(|handle| handle.is_over()).count();
    let loading = held.len().saturating_sub(serving + over);
    let metrics = &node.metrics;
    metrics
        .shards
        .set(i64::try_from(serving).unwrap_or(i64::MAX));
    metrics
        .shards_loading
        .set(i64::try_from(loading).unwrap_or(i64::MAX));
}

/// Shards on their way up look at the topics' deletions again when they serve.
fn tell_deleted(node: &Node) {
    let ids = std::mem::take(&mut *node.shards.deleted.lock());
    if ids.is_empty() {
        return;
    }
    let mut missed = false;
    for handle in node.shards.all() {
        let told = handle.tell(Command::Deleted(ids.clone()));
        missed |= told.is_err() && !handle.is_over();
    }
    if missed {
        // A full mailbox, or a shard that is loading: again with the next look.
        node.shards.deleted.lock().extend(ids);
    }
}

/// All shards go, before the process ends: who waits is told, and gateways too.
pub async fn drop_all(node: &Node) {
    let all: Vec<_> = std::mem::take(&mut *node.shards.held.lock())
        .into_values()
        .collect();
    for handle in &all {
        handle.drop_it();
    }
    for handle in all {
        handle.ended().await;
    }
}
