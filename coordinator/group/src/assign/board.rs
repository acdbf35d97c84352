//! The assignment under work, with dense numbers instead of ids.

use super::{Assignment, Problem};
use std::collections::{BTreeMap, BTreeSet};
use talweg_types::{MemberId, TopicId, TopicPartition};

/// A member, a topic, a partition: positions in the vectors of a [`Board`].
pub(super) type M = usize;
pub(super) type T = usize;
pub(super) type P = usize;

pub(super) struct Partition<'a> {
    pub at: TopicPartition,
    pub topic: T,
    pub racks: &'a [String],
    /// Who had it, if it may have it still.
    pub before: Option<M>,
    pub holder: Option<M>,
}

pub(super) struct Member<'a> {
    pub id: MemberId,
    pub rack: &'a str,
    pub held: BTreeMap<T, BTreeSet<P>>,
    /// Partitions in `held`.
    pub load: usize,
}

pub(super) struct Board<'a> {
    pub members: Vec<Member<'a>>,
    pub partitions: Vec<Partition<'a>>,
    /// By topic.
    pub subscribers: Vec<Vec<M>>,
    /// By member: the topics it reads.
    reads: Vec<BTreeSet<T>>,
}

impl<'a> Board<'a> {
    /// Nobody holds anything.
    pub fn new(problem: &'a Problem<'a>) -> Self {
        let order = problem.ordered();
        let known = order
            .iter()
            .filter_map(|id| Some((*id, problem.members.get(id)?)));
        let known: Vec<_> = known.collect();
        let numbers: BTreeMap<TopicId, T> = problem
            .topics
            .keys()
            .enumerate()
            .map(|(t, id)| (*id, t))
            .collect();
        let mut subscribers = vec![Vec::new(); numbers.len()];
        let mut reads = Vec::with_capacity(known.len());
        let mut before = BTreeMap::new();
        for (m, (_, member)) in known.iter().enumerate() {
            let topics = member
                .topics
                .iter()
                .filter_map(|id| numbers.get(id).copied());
            let topics: BTreeSet<T> = topics.collect();
            topics.iter().for_each(|t| subscribers[*t].push(m));
            let kept = member
                .before
                .iter()
                .filter(|at| member.topics.contains(&at.topic_id));
            before.extend(kept.map(|at| (*at, m)));
            reads.push(topics);
        }
        let partitions = problem.partitions().map(|at| {
            let racks = problem.topics.get(&at.topic_id);
            let racks = racks.and_then(|racks| racks.get(at.partition.0 as usize));
            Partition {
                at,
                topic: numbers.get(&at.topic_id).copied().unwrap_or_default(),
                racks: racks.map_or(&[][..], Vec::as_slice),
                before: before.get(&at).copied(),
                holder: None,
            }
        });
        let members = known.iter().map(|(id, member)| Member {
            id: *id,
            rack: member.rack,
            held: BTreeMap::new(),
            load: 0,
        });
        Self {
            partitions: partitions.collect(),
            members: members.collect(),
            subscribers,
            reads,
        }
    }

    pub fn reads(&self, m: M, t: T) -> bool {
        self.reads[m].contains(&t)
    }

    /// A replica stands in the member's rack.
    pub fn is_near(&self, p: P, m: M) -> bool {
        let rack = self.members[m].rack;
        !rack.is_empty() && self.partitions[p].racks.iter().any(|near| near == rack)
    }

    /// Held by the one who had it before.
    pub fn is_kept(&self, p: P) -> bool {
        let partition = &self.partitions[p];
        partition.before.is_some() && partition.before == partition.holder
    }

    /// Into `to`'s hands, out of anyone else's.
    pub fn place(&mut self, p: P, to: M) {
        let topic = self.partitions[p].topic;
        if let Some(from) = self.partitions[p].holder.replace(to) {
            let member = &mut self.members[from];
            member.load -= 1;
            if let Some(held) = member.held.get_mut(&topic) {
                held.remove(&p);
                if held.is_empty() {
                    member.held.remove(&topic);
                }
            }
        }
        let member = &mut self.members[to];
        member.load += 1;
        member.held.entry(topic).or_default().insert(p);
    }

    pub fn assignment(&self) -> Assignment {
        let members = self.members.iter().map(|member| {
            let held = member.held.values().flatten();
            (member.id, held.map(|p| self.partitions[*p].at).collect())
        });
        members.collect()
    }
}
