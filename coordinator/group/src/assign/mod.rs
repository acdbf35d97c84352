//! Assignors: who shall own what. Pure functions of the members and the topics.
//!
//! | assignor | balanced | moves | order |
//! | --- | --- | --- | --- |
//! | sticky | as even as subscriptions allow, over all topics | as few as that allows | racks, where the first two leave a choice |
//! | range | each topic within one partition | as they fall | neighbours stay together; equal topics are split alike |
//! | round-robin | within one partition where subscriptions are equal | as they fall | – |
//!
//! Every partition of a topic that somebody subscribes to has exactly one owner.

mod board;
mod even;
mod in_turn;
mod rack;
mod sticky;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use talweg_types::{MemberId, PartitionIndex, TopicId, TopicPartition};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Assignor {
    Sticky,
    Range,
    RoundRobin,
}

/// A member as assignors see it.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    pub instance: Option<&'a str>,
    /// Empty: none.
    pub rack: &'a str,
    pub topics: Arc<BTreeSet<TopicId>>,
    /// Its present target.
    pub before: BTreeSet<TopicPartition>,
}

/// Members and the topics that any of them subscribes to; a topic as its
/// partitions, each as the racks of its replicas.
#[derive(Clone, Debug, Default)]
pub struct Problem<'a> {
    pub members: BTreeMap<MemberId, Candidate<'a>>,
    pub topics: BTreeMap<TopicId, &'a [Vec<String>]>,
}

/// All members, those with nothing too.
pub type Assignment = BTreeMap<MemberId, BTreeSet<TopicPartition>>;

pub fn assign(assignor: Assignor, problem: &Problem<'_>) -> Assignment {
    match assignor {
        Assignor::Sticky => sticky::assign(problem),
        Assignor::Range => in_turn::range(problem),
        Assignor::RoundRobin => in_turn::round_robin(problem),
    }
}

impl Problem<'_> {
    /// Static members by instance id, then the others by member id, that is as
    /// they joined.
    fn ordered(&self) -> Vec<MemberId> {
        let mut order: Vec<_> = self.members.iter().collect();
        order.sort_by_key(|(id, member)| (member.instance.is_none(), member.instance, **id));
        order.into_iter().map(|(id, _)| *id).collect()
    }

    fn nothing(&self) -> Assignment {
        self.members
            .keys()
            .map(|id| (*id, BTreeSet::new()))
            .collect()
    }

    fn partitions(&self) -> impl Iterator<Item = TopicPartition> + '_ {
        self.topics
            .iter()
            .flat_map(|(id, racks)| (0..racks.len()).map(|number| partition(*id, number)))
    }
}

fn partition(topic_id: TopicId, number: usize) -> TopicPartition {
    TopicPartition {
        topic_id,
        partition: PartitionIndex(u32::try_from(number).unwrap_or(u32::MAX)),
    }
}
