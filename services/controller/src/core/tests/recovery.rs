//! Elections after bytes were lost.

use super::{
    replicas::{Boot, Trio},
    *,
};

fn asked(world: &World, asked: StreamId) -> usize {
    let of =
        |effect: &&Effect| matches!(effect, Effect::AskEnds { stream, .. } if *stream == asked);
    world.seen.iter().filter(of).count()
}

/// Power goes everywhere: all of the last in-sync set must be back, and the
/// greatest (epoch, end) leads, with a record that says so.
#[test]
fn the_greatest_log_leads_when_all_are_back() {
    // Ends of nodes 1, 2 and 3 as (epoch, offset), and who leads then.
    for (ends, leader) in [
        ([(0, 10), (0, 12), (0, 11)], 2),
        ([(1, 5), (0, 12), (0, 11)], 1),
        ([(-1, 0), (-1, 0), (0, 1)], 3),
        ([(0, 7), (0, 7), (0, 7)], 1),
        ([(-1, 0), (-1, 0), (-1, 0)], 1),
    ] {
        let mut trio = Trio::new(&[]);
        trio.world.crash(false);
        trio.world.pass(TIMEOUT * 2);
        trio.world.settle();
        for id in 1..=3 {
            trio.start(id, Boot::Unclean);
        }
        assert_eq!(trio.shown(), (0, 1, vec![], vec![], vec![1, 2, 3]));
        for (id, (epoch, end)) in (1..=3).zip(ends) {
            assert!(asked(&trio.world, trio.stream(id)) >= 1, "{id} is asked");
            assert_eq!(trio.shown().0, 0, "not all have answered");
            trio.tell_end(id, epoch, end);
        }
        let (leads, epoch, in_sync, ..) = trio.shown();
        assert_eq!(
            (leads, epoch, in_sync),
            (leader, 2, vec![leader]),
            "{ends:?}"
        );
        let recovered = trio.p().recovered.expect("recorded");
        assert_eq!(
            (recovered.epoch, recovered.unclean),
            (LeaderEpoch(2), false)
        );
        let (_, end) = ends[leader as usize - 1];
        assert_eq!(
            recovered.from,
            Some(talweg_types::Offset(end)),
            "names what may be missing"
        );
        let told = |e: &&Effect| matches!(e, Effect::Recovered { .. });
        assert_eq!(trio.world.seen.iter().filter(told).count(), 1);
        // What comes after is ordinary, and the record stays.
        trio.sync(&[1, 2, 3]);
        trio.die(leader);
        assert_ne!(trio.shown().0, 0);
        assert_eq!(trio.p().recovered, Some(recovered));
    }
}

/// One of them did not lose anything: no election of this kind.
#[test]
fn one_whole_log_is_enough() {
    let mut trio = Trio::new(&[]);
    trio.die(3);
    trio.die(2);
    trio.die(1);
    trio.start(1, Boot::Unclean);
    assert_eq!(trio.shown(), (0, 1, vec![], vec![2], vec![1, 2]));
    trio.start(2, Boot::Whole);
    assert_eq!(trio.shown().0, 2);
    assert_eq!(trio.p().recovered, None);
}

/// A single replica whose machine went down waits for its own answer only; on
/// a `synced` topic for nothing.
#[test]
fn a_single_replica_recovers_by_itself() {
    let mut synced = Trio::of(1, &[]);
    synced.start(1, Boot::Unclean);
    assert_eq!((synced.shown().0, synced.p().recovered), (1, None));
    let mut one = Trio::of(1, &[("durability", "replicated")]);
    one.start(1, Boot::Unclean);
    assert_eq!(one.shown(), (0, 1, vec![], vec![], vec![1]));
    one.tell_end(1, -1, 0);
    assert_eq!(one.shown(), (1, 2, vec![1], vec![], vec![1]));
    assert!(one.p().recovered.is_some_and(|r| !r.unclean));
}

/// An answer counts for the process that gave it, and is asked for again until
/// it comes.
#[test]
fn answers_are_those_of_live_processes() {
    let mut two = Trio::of(2, &[("min.insync.replicas", "2")]);
    two.die(1);
    two.die(2);
    two.start(1, Boot::Unclean);
    two.tell_end(1, 0, 9);
    let again = two.start(1, Boot::Whole);
    two.start(2, Boot::Unclean);
    two.tell_end(2, 0, 5);
    assert_eq!(two.shown().0, 0, "node 1 has another process now");
    let before = asked(&two.world, again);
    for _ in 0..6 {
        for id in [1, 2] {
            let stream = two.stream(id);
            two.world.heartbeat(stream);
        }
        two.world.pass(TIMEOUT / 4);
    }
    assert!(asked(&two.world, again) > before, "asked again");
    two.tell_end(1, 0, 9);
    assert_eq!(two.shown().0, 1);
}

/// Story: a leader was elected from answers, and its machine goes down again. The
/// other one has written since it answered: it is asked anew.
#[test]
fn an_answer_from_before_the_last_leader_says_nothing() {
    let mut two = Trio::of(2, &[("min.insync.replicas", "2")]);
    for id in [1, 2] {
        two.start(id, Boot::Unclean);
    }
    two.tell_end(1, 0, 9);
    two.tell_end(2, 0, 5);
    assert_eq!(two.shown().0, 1);
    two.start(1, Boot::Unclean);
    let (leads, epoch, ..) = two.shown();
    assert_eq!(leads, 0);
    two.tell_end(1, epoch - 1, 7);
    assert_eq!(two.shown().0, 0, "node 2 has not answered in this epoch");
    two.tell_end(2, epoch - 1, 9);
    assert_eq!(two.shown().0, 2);
}

/// Fewer are back: it waits, or an operator says so.
#[test]
fn an_operator_elects_the_best_that_is_there() {
    let mut trio = Trio::new(&[]);
    for id in [3, 2, 1] {
        trio.die(id);
    }
    let elect = |unclean| {
        Request::Elect(ElectLeader {
            topic: "t".into(),
            partition: PartitionIndex(0),
            unclean,
        })
    };
    let refused = trio.world.ask(elect(true));
    assert!(matches!(refused, Err(Refusal::NoLeader { .. })));
    trio.start(3, Boot::Whole);
    assert_eq!(trio.shown(), (0, 1, vec![], vec![1, 2], vec![1, 2]));
    let refused = trio.world.ask(elect(false));
    assert!(matches!(refused, Err(Refusal::NoLeader { .. })));
    let call = trio.world.request(elect(true));
    trio.world.settle();
    assert_eq!(trio.world.reply(call), None, "node 3 is asked first");
    trio.world.pass(TIMEOUT / 4);
    assert_eq!(asked(&trio.world, trio.stream(3)), 1);
    trio.tell_end(3, 0, 4);
    let reply = trio.world.reply(call);
    let elected = Reply::Elected {
        leader: NodeId(3),
        epoch: LeaderEpoch(2),
    };
    assert_eq!(reply, Some(Ok(elected)));
    assert_eq!(trio.shown(), (3, 2, vec![3], vec![], vec![1, 2]));
    assert!(trio.p().recovered.is_some_and(|r| r.unclean));
}

/// A lost disk: an empty log where there was one proves nothing.
#[test]
fn an_empty_log_of_a_lost_folder_is_no_answer() {
    let mut one = Trio::of(1, &[]);
    one.die(1);
    let mut asking = registration(1, 70, 1);
    // One of two folders is another one now.
    asking.fresh = asking.folders.clone();
    asking.folders.insert(FolderId(Uuid::from_u128(99)));
    let stream = one.world.register(asking);
    one.world.settle();
    assert!(one.world.registered(stream).is_some());
    let end = (
        TopicPartition {
            topic_id: topic_id(1),
            partition: PartitionIndex(0),
        },
        LogEnd::EMPTY,
    );
    one.world.event(Event::ReplicaEnds {
        stream,
        ends: vec![end],
    });
    one.world.settle();
    assert_eq!(one.shown(), (0, 1, vec![], vec![], vec![1]));
}
