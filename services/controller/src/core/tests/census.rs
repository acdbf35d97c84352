//! What the alarms go by.

use super::{
    replicas::{Boot, Trio},
    *,
};

/// Story: three replicas; one node goes, then another, then the last one's
/// machine loses power; then all come back. Each figure rises and falls.
#[test]
fn figures_follow_what_happens_to_replicas() {
    let mut trio = Trio::new(&[("durability", "replicated")]);
    let quiet = Census {
        storage_nodes: 3,
        ..Census::default()
    };
    assert_eq!(trio.world.core.census(), quiet);
    trio.die(3);
    let one_gone = Census {
        under_replicated: 1,
        offline_replicas: 1,
        offline_nodes: 1,
        ..quiet
    };
    assert_eq!(trio.world.core.census(), one_gone);
    trio.die(2);
    let two_gone = Census {
        below_min_in_sync: 1,
        offline_replicas: 2,
        offline_nodes: 2,
        ..one_gone
    };
    assert_eq!(trio.world.core.census(), two_gone);
    trio.die(1);
    let all_gone = Census {
        without_leader: 1,
        offline_replicas: 3,
        offline_nodes: 3,
        ..two_gone
    };
    assert_eq!(trio.world.core.census(), all_gone);
    for id in 1..=3 {
        trio.start(id, Boot::Unclean);
    }
    let waiting = trio.world.core.census();
    assert_eq!((waiting.without_leader, waiting.unclean_nodes), (1, 3));
    assert_eq!((waiting.offline_replicas, waiting.recovered), (0, None));
    for id in 1..=3 {
        trio.tell_end(id, 0, i64::from(id));
    }
    let back = trio.world.core.census();
    assert_eq!(back.without_leader, 0);
    assert!(
        back.recovered.is_some() && back.unclean.is_none(),
        "{back:?}"
    );
}

/// A topic that was deleted or grows is not counted by partitions that nobody sees.
#[test]
fn deleted_topics_do_not_count() {
    let mut trio = Trio::new(&[]);
    trio.die(2);
    trio.die(3);
    assert_eq!(trio.world.core.census().below_min_in_sync, 1);
    let request = DeleteTopic {
        name: Some("t".into()),
        id: None,
    };
    trio.world.ask(Request::Delete(request)).expect("deleted");
    let left = trio.world.core.census();
    assert_eq!((left.below_min_in_sync, left.offline_replicas), (0, 0));
}
