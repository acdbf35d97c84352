//! Assignors on random groups: complete, even, sticky; and the figures stated.

use super::*;
use proptest::prelude::*;

fn member(n: usize) -> MemberId {
    MemberId::from_slice(&id_bytes(1, n)).unwrap()
}

fn topic(n: usize) -> TopicId {
    TopicId::from_slice(&id_bytes(2, n)).unwrap()
}

fn id_bytes(kind: u8, n: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[0] = kind;
    bytes[8..].copy_from_slice(&u64::try_from(n).unwrap().to_be_bytes());
    bytes
}

/// Owned forms of a [`Problem`].
#[derive(Clone, Debug)]
struct World {
    /// By topic, by partition: racks.
    topics: Vec<Vec<Vec<String>>>,
    /// Member, rack, topics.
    members: Vec<(usize, String, BTreeSet<usize>)>,
    before: Assignment,
}

impl World {
    fn plain(members: usize, partitions: usize) -> Self {
        Self {
            topics: vec![vec![Vec::new(); partitions]],
            members: (0..members)
                .map(|m| (m, String::new(), BTreeSet::from([0])))
                .collect(),
            before: Assignment::new(),
        }
    }

    fn problem(&self) -> Problem<'_> {
        let members = self.members.iter().map(|(m, rack, topics)| {
            let candidate = Candidate {
                instance: None,
                rack,
                topics: Arc::new(topics.iter().map(|t| topic(*t)).collect()),
                before: self.before.get(&member(*m)).cloned().unwrap_or_default(),
            };
            (member(*m), candidate)
        });
        let read = |t: &usize| self.members.iter().any(|(_, _, topics)| topics.contains(t));
        let topics = (0..self.topics.len()).filter(read);
        Problem {
            members: members.collect(),
            topics: topics
                .map(|t| (topic(t), self.topics[t].as_slice()))
                .collect(),
        }
    }

    fn assign(&mut self, assignor: Assignor) -> (Assignment, usize) {
        let after = assign(assignor, &self.problem());
        let moves = moves(&self.before, &after);
        self.before = after.clone();
        (after, moves)
    }
}

/// Partitions that had another owner before, or none.
fn moves(before: &Assignment, after: &Assignment) -> usize {
    let gained = after.iter().map(|(id, now)| {
        let had = before.get(id);
        now.iter()
            .filter(|at| had.is_none_or(|had| !had.contains(at)))
            .count()
    });
    gained.sum()
}

fn loads(assignment: &Assignment) -> Vec<usize> {
    let mut loads: Vec<_> = assignment.values().map(BTreeSet::len).collect();
    loads.sort_unstable();
    loads
}

/// Every partition that somebody reads has one owner, who reads it.
fn check_complete(problem: &Problem<'_>, assignment: &Assignment) -> Result<(), String> {
    if assignment.keys().ne(problem.members.keys()) {
        return Err("members differ".into());
    }
    let mut owned = BTreeSet::new();
    for (id, partitions) in assignment {
        for at in partitions {
            if !owned.insert(*at) {
                return Err(format!("{at} twice"));
            }
            if !problem.members[id].topics.contains(&at.topic_id) {
                return Err(format!("{at} is not read by its owner"));
            }
        }
    }
    let all: BTreeSet<_> = problem.partitions().collect();
    if all != owned {
        return Err("some partition has no owner".into());
    }
    Ok(())
}

/// No member can reach one with two fewer by passing partitions on: found here
/// by transitive closure, not by the assignor's search.
fn check_even(problem: &Problem<'_>, assignment: &Assignment) -> Result<(), String> {
    let ids: Vec<_> = assignment.keys().copied().collect();
    let mut reaches: BTreeSet<(MemberId, MemberId)> = BTreeSet::new();
    for a in &ids {
        for b in &ids {
            let topics = &problem.members[b].topics;
            if assignment[a].iter().any(|at| topics.contains(&at.topic_id)) {
                reaches.insert((*a, *b));
            }
        }
    }
    for via in &ids {
        for a in &ids {
            for b in &ids {
                if reaches.contains(&(*a, *via)) && reaches.contains(&(*via, *b)) {
                    reaches.insert((*a, *b));
                }
            }
        }
    }
    for (a, b) in reaches {
        if assignment[&a].len() >= assignment[&b].len() + 2 {
            return Err(format!("{a} could pass one on to {b}"));
        }
    }
    Ok(())
}

/// The least possible number of moves for equal subscriptions: of `had` per
/// surviving member, each keeps an even share, and as many as shares of one more
/// there are keep that.
fn least_moves(had: &[usize], partitions: usize) -> usize {
    let (share, more) = (partitions / had.len(), partitions % had.len());
    let kept: usize = had.iter().map(|had| *had.min(&share)).sum();
    let fuller = had.iter().filter(|had| **had > share).count();
    partitions - kept - fuller.min(more)
}

#[test]
fn from_12_to_13_to_12_members_on_48_partitions_three_move_each_time() {
    let mut world = World::plain(12, 48);
    assert_eq!(world.assign(Assignor::Sticky).1, 48);
    assert_eq!(world.assign(Assignor::Sticky).1, 0, "nothing changed");
    world.members = World::plain(13, 48).members;
    let (thirteen, moved) = world.assign(Assignor::Sticky);
    assert_eq!(loads(&thirteen), [vec![3; 4], vec![4; 9]].concat());
    assert_eq!(moved, 3);
    // The one that came goes again.
    world.members.truncate(12);
    let (twelve, moved) = world.assign(Assignor::Sticky);
    assert_eq!(loads(&twelve), vec![4; 12]);
    assert_eq!(moved, 3);
}

#[test]
fn when_a_full_member_of_13_goes_its_four_move() {
    let mut world = World::plain(12, 48);
    world.assign(Assignor::Sticky);
    world.members = World::plain(13, 48).members;
    let (thirteen, _) = world.assign(Assignor::Sticky);
    let full = (0..13).find(|m| thirteen[&member(*m)].len() == 4).unwrap();
    world.members.retain(|(m, _, _)| *m != full);
    assert_eq!(world.assign(Assignor::Sticky).1, 4);
}

#[test]
fn range_gives_the_first_member_the_first_neighbours() {
    let (assignment, _) = World::plain(2, 3).assign(Assignor::Range);
    assert_eq!(
        assignment[&member(0)],
        [0, 1].map(|p| partition(topic(0), p)).into()
    );
    assert_eq!(
        assignment[&member(1)],
        [2].map(|p| partition(topic(0), p)).into()
    );
}

#[test]
fn range_puts_static_members_first_and_by_name() {
    let world = World::plain(3, 3);
    let mut problem = world.problem();
    for (m, instance) in [(1, "b"), (2, "a")] {
        problem.members.get_mut(&member(m)).unwrap().instance = Some(instance);
    }
    let assignment = assign(Assignor::Range, &problem);
    for (number, m) in [2, 1, 0].into_iter().enumerate() {
        assert_eq!(assignment[&member(m)], [partition(topic(0), number)].into());
    }
}

/// Three racks, replication factor 1 and 2, four members a rack: all are near.
#[test]
fn readers_are_near_where_that_is_possible() {
    for replicas in [1, 2] {
        let mut world = World::plain(12, 48);
        for (p, racks) in world.topics[0].iter_mut().enumerate() {
            *racks = (0..replicas).map(|r| format!("r{}", (p + r) % 3)).collect();
        }
        for (m, rack, _) in &mut world.members {
            *rack = format!("r{}", *m / 4);
        }
        let (assignment, _) = world.assign(Assignor::Sticky);
        assert_eq!(loads(&assignment), vec![4; 12]);
        assert_eq!(far(&world, &assignment), 0);
    }
}

fn far(world: &World, assignment: &Assignment) -> usize {
    let problem = world.problem();
    let pairs = assignment
        .iter()
        .flat_map(|(id, held)| held.iter().map(move |at| (id, at)));
    let is_far = |(id, at): &(&MemberId, &TopicPartition)| {
        let racks = &problem.topics[&at.topic_id][at.partition.0 as usize];
        !racks.iter().any(|rack| rack == problem.members[id].rack)
    };
    pairs.filter(is_far).count()
}

/// Ten members that read one topic each and one that reads all: it is left free
/// of what the others can carry, through chains of passes.
#[test]
fn unequal_subscriptions_are_levelled_through_chains() {
    let mut world = World::plain(3, 0);
    world.topics = vec![vec![vec![]; 4], vec![vec![]; 4]];
    world.members[0].2 = BTreeSet::from([0]);
    world.members[1].2 = BTreeSet::from([0, 1]);
    world.members[2].2 = BTreeSet::from([1]);
    // All of topic 0 with the first, all of topic 1 with the second.
    for (m, t) in [(0, 0), (1, 1)] {
        let all = (0..4).map(|p| partition(topic(t), p));
        world.before.insert(member(m), all.collect());
    }
    let (assignment, moved) = world.assign(Assignor::Sticky);
    assert_eq!(loads(&assignment), [2, 3, 3]);
    assert!(moved <= 3, "{moved}");
}

#[test]
fn nobody_and_nothing_are_answered() {
    for assignor in [Assignor::Sticky, Assignor::Range, Assignor::RoundRobin] {
        assert!(World::plain(0, 5).assign(assignor).0.is_empty());
        assert_eq!(loads(&World::plain(2, 0).assign(assignor).0), [0, 0]);
    }
}

/// A large group: within what a coordinator can spare, also after a departure.
#[test]
fn a_large_group_is_assigned_whole() {
    let mut world = World::plain(500, 5_000);
    world.assign(Assignor::Sticky);
    world.members.truncate(499);
    let (assignment, moved) = world.assign(Assignor::Sticky);
    assert_eq!(check_complete(&world.problem(), &assignment), Ok(()));
    assert_eq!(moved, 10);
}

fn world(equal: bool) -> impl Strategy<Value = World> {
    let racks = || prop::collection::vec("[abc]", 0..3);
    let topics = prop::collection::vec(prop::collection::vec(racks(), 0..12), 1..5);
    let members = prop::collection::btree_map(0_usize..12, ("[abc]?", any::<u8>()), 1..10);
    (topics, members).prop_map(move |(topics, members)| {
        let all: BTreeSet<_> = (0..topics.len()).collect();
        let members = members.into_iter().map(|(m, (rack, bits))| {
            let some = all.iter().copied().filter(|t| bits >> t & 1 == 1).collect();
            (m, rack, if equal { all.clone() } else { some })
        });
        World {
            members: members.collect(),
            topics,
            before: Assignment::new(),
        }
    })
}

/// Two groups over the same topics: the members of the second come after.
fn change(equal: bool) -> impl Strategy<Value = (World, World)> {
    (world(equal), world(equal)).prop_map(|(mut old, mut new)| {
        let topics = old.topics.len().min(new.topics.len());
        for world in [&mut old, &mut new] {
            world.members.iter_mut().for_each(|(_, _, read)| {
                read.retain(|t| *t < topics);
            });
        }
        old.topics.truncate(topics);
        new.topics.clone_from(&old.topics);
        (old, new)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn every_assignor_is_complete_and_repeats_itself(mut world in world(false)) {
        for assignor in [Assignor::Sticky, Assignor::Range, Assignor::RoundRobin] {
            world.before.clear();
            let (first, _) = world.assign(assignor);
            prop_assert_eq!(check_complete(&world.problem(), &first), Ok(()));
            let (second, moved) = world.assign(assignor);
            prop_assert_eq!((second, moved), (first, 0));
        }
    }

    #[test]
    fn sticky_is_as_even_as_subscriptions_allow((mut old, mut new) in change(false)) {
        new.before = old.assign(Assignor::Sticky).0;
        let had = new.before.clone();
        let (after, _) = new.assign(Assignor::Sticky);
        let problem = new.problem();
        prop_assert_eq!(check_complete(&problem, &after), Ok(()));
        prop_assert_eq!(check_even(&problem, &after), Ok(()));
        prop_assert_eq!(needless(&problem, &had, &after), None);
    }

    #[test]
    fn sticky_moves_the_least_possible((mut old, mut new) in change(true)) {
        new.before = old.assign(Assignor::Sticky).0;
        let had: Vec<_> = new.members.iter().map(|(m, _, _)| new.before.get(&member(*m)).map_or(0, BTreeSet::len)).collect();
        let (after, moved) = new.assign(Assignor::Sticky);
        let partitions = new.problem().partitions().count();
        let loads = loads(&after);
        prop_assert!(loads.last().unwrap() - loads.first().unwrap() <= 1);
        prop_assert_eq!(moved, least_moves(&had, partitions));
    }

    #[test]
    fn range_and_round_robin_are_even(mut world in world(true)) {
        let (range, _) = world.assign(Assignor::Range);
        for t in 0..world.topics.len() {
            let of_topic = |held: &BTreeSet<TopicPartition>| held.iter().filter(|at| at.topic_id == topic(t)).count();
            let counts: Vec<_> = range.values().map(of_topic).collect();
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
        }
        let loads = loads(&world.assign(Assignor::RoundRobin).0);
        prop_assert!(loads.last().unwrap() - loads.first().unwrap() <= 1);
    }
}

/// A partition that could go back to who had it without making loads less even.
fn needless(problem: &Problem<'_>, had: &Assignment, after: &Assignment) -> Option<TopicPartition> {
    for (holder, held) in after {
        for at in held {
            let before = had
                .iter()
                .find(|(_, had)| had.contains(at))
                .map(|(id, _)| id);
            let Some(before) = before.filter(|before| *before != holder) else {
                continue;
            };
            let reads = problem
                .members
                .get(before)
                .is_some_and(|m| m.topics.contains(&at.topic_id));
            if reads && after[before].len() < held.len() {
                return Some(*at);
            }
        }
    }
    None
}

/// The checkers see doctored assignments.
#[test]
fn the_checkers_reject_what_is_wrong() {
    let mut world = World::plain(3, 6);
    let (good, _) = world.assign(Assignor::Sticky);
    let problem = world.problem();
    let at = partition(topic(0), 0);
    let mut missing = good.clone();
    missing
        .values_mut()
        .for_each(|held| held.retain(|p| *p != at));
    assert!(check_complete(&problem, &missing).is_err());
    let mut twice = good.clone();
    twice.values_mut().for_each(|held| held.extend([at]));
    assert!(check_complete(&problem, &twice).is_err());
    let mut heaped = good.clone();
    let taken: Vec<_> = heaped
        .values_mut()
        .filter_map(BTreeSet::pop_first)
        .collect();
    heaped.get_mut(&member(0)).unwrap().extend(taken);
    assert!(check_even(&problem, &heaped).is_err());
    assert_eq!(moves(&good, &heaped), 2);
}
