//! What the view asks of this node, partition by partition. Pure.
//!
//! | the view says | this node has | action |
//! | --- | --- | --- |
//! | this process leads | nothing | open |
//! | this process leads in epoch e | open, told otherwise | lead in e |
//! | another leads, or nobody | open, told to lead | resign |
//! | other settings | open | configure |
//! | a tombstone that names this node | the replica | delete |
//! | a tombstone that names this node | nothing of the topic | confirm |
//! | nothing | the replica | resign; never delete |

use crate::{
    partition::Leadership,
    view::{ClusterView, TopicView},
};
use std::sync::Arc;
use talweg_types::{Incarnation, LeaderEpoch, TopicPartition};

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

/// What was done about a replica.
#[derive(Clone, Debug)]
pub struct Known {
    pub phase: Phase,
    /// The leadership that its loop was told.
    pub leads: Option<Leadership>,
    /// The topic whose settings its loop was told.
    pub topic: Arc<TopicView>,
}

/// What to do about a replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    Open,
    Lead(Leadership),
    Resign(LeaderEpoch),
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
    let is_doomed = view
        .tombstones
        .get(&tp.topic_id)
        .is_some_and(|pending| pending.contains(&me.node_id));
    let Some(known) = known else {
        let wanted = is_doomed && on_disk || leadership(view, me, tp).is_some();
        return wanted.then_some(Action::Open);
    };
    match known.phase {
        Phase::Opening | Phase::Deleting | Phase::Failed => None,
        Phase::Open if is_doomed => Some(Action::Delete),
        Phase::Open => match leadership(view, me, tp) {
            Some(wanted) if known.leads != Some(wanted) => Some(Action::Lead(wanted)),
            Some(_) => view
                .topics
                .get(&tp.topic_id)
                .filter(|topic| differ(topic, &known.topic))
                .map(|_| Action::Configure),
            None => known
                .leads
                .map(|told| Action::Resign(resign_epoch(view, tp, told))),
        },
    }
}

fn leadership(view: &ClusterView, me: Me, tp: &TopicPartition) -> Option<Leadership> {
    let (topic, state) = view.partition(tp)?;
    let mine = state.leader == me.node_id && state.leader_incarnation == me.incarnation.0;
    (mine && !topic.topic.name.is_empty()).then_some(Leadership {
        epoch: LeaderEpoch(state.leader_epoch),
        incarnation: me.incarnation,
    })
}

fn resign_epoch(view: &ClusterView, tp: &TopicPartition, told: Leadership) -> LeaderEpoch {
    let newest = view
        .partition(tp)
        .map_or(told.epoch, |(_, state)| LeaderEpoch(state.leader_epoch));
    newest.max(told.epoch)
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

    fn view(topic: Option<Arc<TopicView>>, tombstone: &[u32]) -> ClusterView {
        let mut view = ClusterView::empty();
        view.topics.extend(topic.map(|topic| (topic.id, topic)));
        if !tombstone.is_empty() {
            view.tombstones.insert(tp().topic_id, tombstone.to_vec());
        }
        view
    }

    fn led(epoch: i32) -> Leadership {
        Leadership {
            epoch: LeaderEpoch(epoch),
            incarnation: Incarnation(7),
        }
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
            leads,
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
                None,
            ),
            (
                "an earlier incarnation leads",
                view(Some(topic(1, 6, 3)), &[]),
                None,
                true,
                None,
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
                Some(Action::Lead(led(3))),
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
                Some(Action::Lead(led(4))),
            ),
            (
                "leadership moved",
                view(Some(topic(2, 9, 4)), &[]),
                Some(open(Some(led(3)))),
                true,
                Some(Action::Resign(LeaderEpoch(4))),
            ),
            (
                "resigned already",
                view(Some(topic(2, 9, 4)), &[]),
                Some(open(None)),
                true,
                None,
            ),
            (
                "not in the view",
                view(None, &[]),
                Some(open(Some(led(3)))),
                true,
                Some(Action::Resign(LeaderEpoch(3))),
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
            leads: Some(led(3)),
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
