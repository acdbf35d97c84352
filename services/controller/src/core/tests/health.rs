//! Replicas that fail or have no room while their node lives.

use super::{replicas::Trio, *};

fn tp() -> TopicPartition {
    TopicPartition {
        topic_id: topic_id(1),
        partition: PartitionIndex(0),
    }
}

fn say(trio: &mut Trio, id: u32, failed: bool, full: bool) {
    let set = |on: bool| on.then(tp).into_iter().collect();
    let event = Event::Health {
        stream: trio.stream(id),
        health: Health {
            failed: set(failed),
            full: set(full),
        },
    };
    trio.world.event(event);
    trio.world.settle();
}

fn beat(trio: &mut Trio, time: Duration) {
    let until = trio.world.clock + time;
    while trio.world.clock < until {
        for id in [1, 2, 3] {
            let stream = trio.stream(id);
            trio.world.heartbeat(stream);
        }
        trio.world.pass(TIMEOUT / 4);
        trio.world.settle();
    }
}

/// The leader's folder failed: the next in sync leads, in the change that takes
/// the failed one out; a proposal with it is refused while it fails.
#[test]
fn a_leader_whose_folder_failed_is_replaced_at_once() {
    let mut trio = Trio::new(&[]);
    say(&mut trio, 1, true, false);
    assert_eq!(trio.shown(), (2, 1, vec![2, 3], vec![], vec![2, 3]));
    // Its session lives, and what it holds elsewhere is untouched.
    assert!(trio.world.core.session(NodeId(1)).is_some());
    let p = trio.p().clone();
    let member = |id| (NodeId(id), Incarnation(1));
    let asked = AlterInSync {
        node: p.leader,
        incarnation: p.leader_incarnation,
        proposals: vec![InSyncProposal {
            partition: tp(),
            leader_epoch: p.leader_epoch,
            partition_epoch: p.partition_epoch,
            members: [1, 2, 3].map(member).to_vec(),
            attempt: 0,
        }],
    };
    let Ok(Reply::InSync(results)) = trio.world.ask(Request::AlterInSync(asked)) else {
        panic!("answered")
    };
    assert!(
        results[0]
            .refused
            .as_ref()
            .is_some_and(|why| why.contains("has failed")),
        "{results:?}"
    );
    // It works again: it may come in, and leads again in its turn.
    say(&mut trio, 1, false, false);
    trio.sync(&[1, 2, 3]);
    beat(&mut trio, PREFERRED_AFTER + TIMEOUT);
    assert_eq!(trio.shown().0, 1);
}

/// A follower's failure costs no epoch.
#[test]
fn a_follower_whose_folder_failed_leaves_the_set() {
    let mut trio = Trio::new(&[]);
    say(&mut trio, 3, true, false);
    assert_eq!(trio.shown(), (1, 0, vec![1, 2], vec![], vec![1, 2]));
    // Whoever dies next is not replaced by the failed one.
    trio.die(2);
    trio.die(1);
    assert_eq!(trio.shown().0, 0);
    assert!(!trio.p().in_sync.contains(&NodeId(3)));
}

/// Below the minimum: on `synced` the failed one has all that was acknowledged on
/// its disk and stays eligible; on `replicated` nobody knows what it has.
#[test]
fn what_a_failed_replica_may_have_lost_depends_on_durability() {
    for (durability, eligible) in [("synced", vec![1]), ("replicated", vec![])] {
        let mut trio = Trio::new(&[("durability", durability)]);
        trio.die(2);
        trio.die(3);
        assert_eq!(trio.shown().0, 1);
        say(&mut trio, 1, true, false);
        let (leader, _, in_sync, now, last) = trio.shown();
        assert_eq!((leader, in_sync), (0, vec![]), "{durability}");
        assert!(last.contains(&1), "{durability}: {last:?}");
        assert_eq!(
            now.contains(&1),
            !eligible.is_empty(),
            "{durability}: {now:?}"
        );
        // An unclean election does not take it either.
        let elect = trio.world.request(Request::Elect(ElectLeader {
            topic: "t".into(),
            partition: PartitionIndex(0),
            unclean: true,
        }));
        beat(&mut trio, Duration::from_secs(20));
        let refused = trio.world.reply(elect);
        assert!(
            matches!(refused, Some(Err(Refusal::NoLeader { .. }))),
            "{durability}: {refused:?}"
        );
    }
}

/// Over another stream it is still failed; as another process it has to say so.
#[test]
fn a_failure_lasts_as_long_as_the_process() {
    let mut trio = Trio::new(&[]);
    say(&mut trio, 1, true, false);
    trio.world.register(registration(1, 1, 1));
    trio.world.settle();
    assert!(trio.world.core.has_failed(tp(), NodeId(1)));
    trio.start(1, replicas::Boot::Whole);
    assert!(!trio.world.core.has_failed(tp(), NodeId(1)));
    assert_eq!(trio.shown().2, vec![2, 3], "it comes in by its leader");
}

/// Full is not failed: it stays in sync, and leads again when there is room.
#[test]
fn a_full_leader_hands_over_and_leads_again_when_there_is_room() {
    let mut trio = Trio::new(&[]);
    say(&mut trio, 1, false, true);
    assert_eq!(trio.shown(), (2, 1, vec![1, 2, 3], vec![], vec![1, 2, 3]));
    beat(&mut trio, PREFERRED_AFTER * 2);
    assert_eq!(trio.shown().0, 2, "still full");
    // Everybody is full: nobody is better.
    say(&mut trio, 2, false, true);
    assert_eq!(trio.shown().0, 3);
    say(&mut trio, 3, false, true);
    assert_eq!(trio.shown().0, 3);
    // A death is worse than a full disk.
    trio.die(3);
    assert_eq!(trio.shown().0, 1);
    trio.start(3, replicas::Boot::Whole);
    say(&mut trio, 2, false, false);
    assert_eq!(trio.shown().0, 2);
    say(&mut trio, 1, false, false);
    beat(&mut trio, PREFERRED_AFTER + TIMEOUT);
    assert_eq!(trio.shown().0, 1);
}
