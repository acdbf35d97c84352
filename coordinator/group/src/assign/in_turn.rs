//! Range and round-robin: by order alone.

use super::{Assignment, Problem, partition};
use talweg_types::{MemberId, TopicId};

/// Each topic in as many runs of neighbours as it has members; the first members
/// get one more where it does not divide.
pub(super) fn range(problem: &Problem<'_>) -> Assignment {
    let order = problem.ordered();
    let mut assignment = problem.nothing();
    for (topic, racks) in &problem.topics {
        let members = subscribers(problem, &order, *topic);
        if members.is_empty() {
            continue;
        }
        let (each, more) = (racks.len() / members.len(), racks.len() % members.len());
        let mut first = 0;
        for (rank, id) in members.into_iter().enumerate() {
            let end = first + each + usize::from(rank < more);
            let run = (first..end).map(|number| partition(*topic, number));
            assignment.entry(id).or_default().extend(run);
            first = end;
        }
    }
    assignment
}

/// Partitions in order, members in turn; one who does not subscribe is passed over.
pub(super) fn round_robin(problem: &Problem<'_>) -> Assignment {
    let order = problem.ordered();
    let mut assignment = problem.nothing();
    let mut turn = 0;
    for at in problem.partitions() {
        let from = (0..order.len()).map(|step| (turn + step) % order.len());
        let reads = |rank: &usize| {
            let member = order.get(*rank).and_then(|id| problem.members.get(id));
            member.is_some_and(|member| member.topics.contains(&at.topic_id))
        };
        if let Some((rank, id)) = from
            .into_iter()
            .find(reads)
            .and_then(|rank| Some((rank, order.get(rank)?)))
        {
            assignment.entry(*id).or_default().insert(at);
            turn = rank + 1;
        }
    }
    assignment
}

fn subscribers(problem: &Problem<'_>, order: &[MemberId], topic: TopicId) -> Vec<MemberId> {
    let reads = |id: &&MemberId| {
        let member = problem.members.get(id);
        member.is_some_and(|member| member.topics.contains(&topic))
    };
    order.iter().filter(reads).copied().collect()
}
