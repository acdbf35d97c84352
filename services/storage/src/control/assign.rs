//! What the view asks of this node, partition by partition. Pure.
//!
//! | the view says | this node has | action |
//! | --- | --- | --- |
//! | a replica is here | nothing | open |
//! | this process leads in epoch e | open, told otherwise, or of other members | lead in e |
//! | another leads in epoch e | open, told otherwise | follow in e |
//! | nobody leads, or an earlier process | open, told otherwise | resign |
//! | other settings | open | configure |
//! | a tombstone or a removal that names this node | the replica | delete |
//! | a tombstone that names this node | nothing of the topic | confirm |
//! | nothing | the replica | resign; never delete |

use crate::{
    partition::{Following, Leadership},
    view::{ClusterView, TopicView},
};
use std::sync::Arc;
use talweg_types::{Incarnation, LeaderEpoch, NodeId, PartitionEpoch, TopicPartition};

/// How far a replica has been brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// A worker recovers it.
    Opening,
    /// Its loop has it.
    Open,
    /// It could not be opened.
    Failed,
    /// Its loop deletes it.
    Deleting,
}

/// What a replica is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Role {
    Leads(Leadership),
    Follows(Following),
    /// Nobody leads; the epoch in which that was so.
    Rests(LeaderEpoch),
}

/// What was done about a replica.
#[derive(Clone, Debug)]
pub struct Known {
    pub phase: Phase,
    /// The role that its loop was told; none yet.
    pub told: Option<Role>,
    /// The topic whose settings its loop was told.
    pub topic: Arc<TopicView>,
}

/// What to do about a replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    Open,
    Take(Role),
    Configure,
    Delete,
}

/// Who this process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Me {
    pub node_id: u32,
    pub incarnation: Incarnation,
}

/// The next action for a replica, if any; called again when it is done.
pub fn decide(
    view: &ClusterView,
    me: Me,
    tp: &TopicPartition,
    known: Option<&Known>,
    on_disk: bool,
) -> Option<Action> {
    let is_doomed = is_doomed(view, me, tp);
    let wanted = role(view, me, tp);
    let Some(known) = known else {
        let open = is_doomed && on_disk || wanted.is_some();
        return open.then_some(Action::Open);
    };
    match known.phase {
        Phase::Opening | Phase::Deleting | Phase::Failed => None,
        Phase::Open if is_doomed => Some(Action::Delete),
        Phase::Open => {
            let wanted = wanted.or_else(|| at_rest(view, tp, known.told.as_ref()));
            if let Some(wanted) = wanted.filter(|wanted| known.told.as_ref() != Some(wanted)) {
                return Some(Action::Take(wanted));
            }
            view.topics
                .get(&tp.topic_id)
                .filter(|topic| differ(topic, &known.topic))
                .map(|_| Action::Configure)
        }
    }
}

/// An explicit order, for the topic or for this replica: absence is none.
fn is_doomed(view: &ClusterView, me: Me, tp: &TopicPartition) -> bool {
    let of_topic = view
        .tombstones
        .get(&tp.topic_id)
        .is_some_and(|pending| pending.contains(&me.node_id));
    of_topic || is_removed(view, me, tp)
}

/// A reassignment has moved the replica elsewhere.
pub fn is_removed(view: &ClusterView, me: Me, tp: &TopicPartition) -> bool {
    view.partition(tp)
        .is_some_and(|(_, state)| state.removed.contains(&me.node_id))
}

/// What the view gives this process to do; `None` if it holds no replica.
fn role(view: &ClusterView, me: Me, tp: &TopicPartition) -> Option<Role> {
    let (topic, state) = view.partition(tp)?;
    let holders = || state.replicas.iter().chain(&state.adding);
    if topic.topic.name.is_empty() || !holders().any(|node| *node == me.node_id) {
        return None;
    }
    let epoch = LeaderEpoch(state.leader_epoch);
    let nodes = |ids: &[u32]| ids.iter().copied().map(NodeId).collect();
    Some(match state.leader {
        0 => Role::Rests(epoch),
        own if own == me.node_id && state.leader_incarnation == me.incarnation.0 => {
            Role::Leads(Leadership {
                epoch,
                incarnation: me.incarnation,
                partition_epoch: PartitionEpoch(state.partition_epoch),
                in_sync: nodes(&state.in_sync),
                replicas: holders().copied().map(NodeId).collect(),
            })
        }
        // An earlier process of this node: a new epoch is to come.
        own if own == me.node_id => Role::Rests(epoch),
        leader => Role::Follows(Following {
            leader: NodeId(leader),
            epoch,
            incarnation: me.incarnation,
            recovered: state
                .recovered
                .as_ref()
                .map_or(LeaderEpoch::NONE, |recovered| {
                    LeaderEpoch(recovered.leader_epoch)
                }),
        }),
    })
}

/// A replica that is not in the view, or not of this node, does nothing more.
fn at_rest(view: &ClusterView, tp: &TopicPartition, told: Option<&Role>) -> Option<Role> {
    let told = match told? {
        Role::Leads(leadership) => leadership.epoch,
        Role::Follows(following) => following.epoch,
        Role::Rests(_) => return None,
    };
    let newest = view
        .partition(tp)
        .map_or(told, |(_, state)| LeaderEpoch(state.leader_epoch));
    Some(Role::Rests(newest.max(told)))
}

/// Whether a loop must be told.
fn differ(one: &TopicView, other: &TopicView) -> bool {
    one.config != other.config || one.topic.replication_factor != other.topic.replication_factor
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use talweg_proto::{controller::v1::PartitionState, v1::Topic};
    use talweg_types::{PartitionIndex, TopicConfig, TopicId};
    use uuid::Uuid;

    const ME: Me = Me {
        node_id: 1,
        incarnation: Incarnation(7),
    };

    fn tp() -> TopicPartition {
        TopicPartition {
            topic_id: TopicId(Uuid::from_u128(5)),
            partition: PartitionIndex(0),
        }
    }

    fn topic(leader: u32, leader_incarnation: u64, leader_epoch: i32) -> Arc<TopicView> {
        let state = PartitionState {
            leader,
            leader_incarnation,
            leader_epoch,
            replicas: vec![1, 2],
            in_sync: vec![1],
            ..Default::default()
        };
        Arc::new(TopicView {
            id: tp().topic_id,
            topic: Topic {
                name: "t".into(),
                partitions: 1,
                replication_factor: 1,
                ..Default::default()
            },
            config: TopicConfig::default(),
            partitions: BTreeMap::from([(0, state)]),
            earlier_counts: Vec::new(),
        })
    }

    fn removed(topic: Arc<TopicView>) -> Arc<TopicView> {
        let mut topic = TopicView::clone(&topic);
        if let Some(state) = topic.partitions.get_mut(&0) {
            state.replicas = vec![2];
            state.removed = vec![1];
        }
        Arc::new(topic)
    }

    fn view(topic: Option<Arc<TopicView>>, tombstone: &[u32]) -> ClusterView {
        let mut view = ClusterView::empty();
        view.topics.extend(topic.map(|topic| (topic.id, topic)));
        if !tombstone.is_empty() {
            view.tombstones.insert(tp().topic_id, tombstone.to_vec());
        }
        view
    }

    fn led(epoch: i32) -> Role {
        Role::Leads(Leadership {
            epoch: LeaderEpoch(epoch),
            incarnation: Incarnation(7),
            partition_epoch: PartitionEpoch(0),
            in_sync: [NodeId(1)].into(),
            replicas: [NodeId(1), NodeId(2)].into(),
        })
    }

    fn follows(leader: u32, epoch: i32) -> Role {
        Role::Follows(Following {
            leader: NodeId(leader),
            epoch: LeaderEpoch(epoch),
            incarnation: Incarnation(7),
            recovered: LeaderEpoch::NONE,
        })
    }

    fn rests(epoch: i32) -> Role {
        Role::Rests(LeaderEpoch(epoch))
    }

    type Row = (
        &'static str,
        ClusterView,
        Option<Known>,
        bool,
        Option<Action>,
    );

    #[test]
    fn each_row_of_the_table() {
        let known = |phase, leads| Known {
            phase,
            told: leads,
            topic: topic(1, 7, 3),
        };
        let open = |leads| known(Phase::Open, leads);
        let rows: &[Row] = &[
            (
                "leads, has nothing",
                view(Some(topic(1, 7, 3)), &[]),
                None,
                false,
                Some(Action::Open),
            ),
            (
                "another leads",
                view(Some(topic(2, 7, 3)), &[]),
                None,
                true,
                Some(Action::Open),
            ),
            (
                "another leads, opened",
                view(Some(topic(2, 7, 3)), &[]),
                Some(open(None)),
                true,
                Some(Action::Take(follows(2, 3))),
            ),
            (
                "follows already",
                view(Some(topic(2, 7, 3)), &[]),
                Some(open(Some(follows(2, 3)))),
                true,
                None,
            ),
            (
                "an earlier incarnation leads",
                view(Some(topic(1, 6, 3)), &[]),
                Some(open(None)),
                true,
                Some(Action::Take(rests(3))),
            ),
            (
                "nobody leads",
                view(Some(topic(0, 0, 4)), &[]),
                Some(open(Some(led(3)))),
                true,
                Some(Action::Take(rests(4))),
            ),
            (
                "opening",
                view(Some(topic(1, 7, 3)), &[]),
                Some(known(Phase::Opening, None)),
                true,
                None,
            ),
            (
                "opened",
                view(Some(topic(1, 7, 3)), &[]),
                Some(open(None)),
                true,
                Some(Action::Take(led(3))),
            ),
            (
                "leads already",
                view(Some(topic(1, 7, 3)), &[]),
                Some(open(Some(led(3)))),
                true,
                None,
            ),
            (
                "new epoch",
                view(Some(topic(1, 7, 4)), &[]),
                Some(open(Some(led(3)))),
                true,
                Some(Action::Take(led(4))),
            ),
            (
                "leadership moved",
                view(Some(topic(2, 9, 4)), &[]),
                Some(open(Some(led(3)))),
                true,
                Some(Action::Take(follows(2, 4))),
            ),
            (
                "rests already",
                view(Some(topic(0, 0, 4)), &[]),
                Some(open(Some(rests(4)))),
                true,
                None,
            ),
            (
                "not in the view",
                view(None, &[]),
                Some(open(Some(led(3)))),
                true,
                Some(Action::Take(rests(3))),
            ),
            (
                "not in the view, not led",
                view(None, &[]),
                Some(open(None)),
                true,
                None,
            ),
            (
                "not in the view, on disk",
                view(None, &[]),
                None,
                true,
                None,
            ),
            (
                "moved elsewhere, open",
                view(Some(removed(topic(2, 9, 4))), &[]),
                Some(open(Some(follows(2, 4)))),
                true,
                Some(Action::Delete),
            ),
            (
                "moved elsewhere, nothing here",
                view(Some(removed(topic(2, 9, 4))), &[]),
                None,
                false,
                None,
            ),
            (
                "tombstone, open",
                view(None, &[1]),
                Some(open(Some(led(3)))),
                true,
                Some(Action::Delete),
            ),
            (
                "tombstone, on disk",
                view(None, &[2, 1]),
                None,
                true,
                Some(Action::Open),
            ),
            (
                "tombstone, nothing here",
                view(None, &[1]),
                None,
                false,
                None,
            ),
            (
                "tombstone of others",
                view(None, &[2]),
                Some(open(None)),
                true,
                None,
            ),
            (
                "deleting",
                view(None, &[1]),
                Some(known(Phase::Deleting, None)),
                true,
                None,
            ),
            (
                "failed",
                view(Some(topic(1, 7, 3)), &[]),
                Some(known(Phase::Failed, None)),
                true,
                None,
            ),
        ];
        for (story, view, known, on_disk, expected) in rows {
            assert_eq!(
                &decide(view, ME, &tp(), known.as_ref(), *on_disk),
                expected,
                "{story}"
            );
        }
    }

    #[test]
    fn changed_settings_are_told_and_others_are_not() {
        let mut changed = TopicView::clone(&topic(1, 7, 3));
        changed.config.retention_ms = 5;
        let known = Known {
            phase: Phase::Open,
            told: Some(led(3)),
            topic: topic(1, 7, 3),
        };
        let decided = decide(
            &view(Some(Arc::new(changed)), &[]),
            ME,
            &tp(),
            Some(&known),
            true,
        );
        assert_eq!(decided, Some(Action::Configure));
        let mut same = TopicView::clone(&topic(1, 7, 3));
        same.topic.created_ms = 99;
        assert_eq!(
            decide(
                &view(Some(Arc::new(same)), &[]),
                ME,
                &tp(),
                Some(&known),
                true
            ),
            None
        );
    }
}
