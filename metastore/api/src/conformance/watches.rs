//! Watches: order, gaplessness, ranges, compaction, progress.

use super::{Store, commit, delete, next_events, put, within};
use crate::{Event, KeyRange, MetastoreError, Op, Revision, Txn, WatchItem, WatchStream};
use futures::StreamExt;

async fn watch(store: &Store, prefix: &str, from: Revision) -> WatchStream {
    store
        .watch(KeyRange::prefix(prefix.as_bytes()), from)
        .await
        .expect("watch")
}

/// Three hundred changes made before the watch come in order, each once.
pub async fn a_watch_from_an_old_revision_replays_in_order_without_gap(store: Store) {
    let mut expected = Vec::new();
    for i in 0..300 {
        let key = format!("k{}", i % 7);
        expected.push(match i % 10 {
            9 => (delete(&store, &key).await, key, None),
            _ => (
                put(&store, &key, &format!("{i}")).await,
                key,
                Some(format!("{i}")),
            ),
        });
    }
    // Deleting an absent key is no change.
    expected.dedup_by_key(|(revision, ..)| *revision);
    let from = 17;
    let mut events = watch(&store, "", expected[from].0).await;
    for (revision, key, value) in &expected[from..] {
        let (at, events) = next_events(&mut events).await.expect("events");
        assert_eq!((at, events.len()), (*revision, 1));
        assert_eq!(events[0].revision(), *revision);
        assert_eq!(events[0].key(), key.as_bytes());
        match (&events[0], value) {
            (Event::Put(entry), Some(value)) => assert_eq!(entry.value, value.as_bytes()),
            (Event::Delete { .. }, None) => {}
            (event, value) => panic!("{event:?} is not {value:?}"),
        }
    }
}

/// All changes of one transaction are one item.
pub async fn a_watch_never_splits_a_revision(store: Store) {
    let at = put(&store, "k/000", "v").await;
    let mut watch = watch(&store, "k/", at.next()).await;
    let put_all = |value: &'static str| Txn {
        compares: vec![],
        then: (0..100)
            .map(|i| Op::put(format!("k/{i:03}"), value))
            .collect(),
    };
    for value in ["1", "2"] {
        let revision = commit(&store, put_all(value)).await;
        let (at, events) = next_events(&mut watch).await.expect("events");
        assert_eq!((at, events.len()), (revision, 100));
    }
}

/// Neighbours of a prefix stay outside, also within one transaction.
pub async fn a_watch_sees_only_its_range(store: Store) {
    let at = put(&store, "start", "v").await;
    let mut watch = watch(&store, "a/", at.next()).await;
    put(&store, "a", "v").await;
    put(&store, "a0", "v").await;
    let both = Txn::new().then(Op::put("a/1", "v")).then(Op::put("b", "v"));
    let revision = commit(&store, both).await;
    let (at, events) = next_events(&mut watch).await.expect("events");
    assert_eq!(at, revision);
    let keys: Vec<_> = events.iter().map(|event| event.key().clone()).collect();
    assert_eq!(keys, ["a/1"]);
}

/// A writer runs while the watch replays; nothing falls between the two.
pub async fn a_watch_joins_replay_and_live_changes(store: Store) {
    let first = put(&store, "k", "0").await;
    for i in 1..100 {
        put(&store, "k", &format!("{i}")).await;
    }
    let writer = tokio::spawn({
        let store = store.clone();
        async move {
            for i in 100..300 {
                put(&store, "k", &format!("{i}")).await;
            }
        }
    });
    let mut watch = watch(&store, "k", first).await;
    for i in 0..300 {
        let (_, events) = next_events(&mut watch).await.expect("events");
        let [Event::Put(entry)] = events.as_slice() else {
            panic!("{events:?}")
        };
        assert_eq!(entry.value, format!("{i}"));
        assert_eq!(entry.version, i + 1);
    }
    writer.await.expect("writer");
}

/// A watch from three revisions ahead shows the third, not the first two.
pub async fn a_watch_from_the_future_waits_for_it(store: Store) {
    let at = put(&store, "k", "0").await;
    let third = Revision(at.0 + 3);
    let mut watch = watch(&store, "k", third).await;
    for value in ["1", "2", "3"] {
        put(&store, "k", value).await;
    }
    let (revision, _) = next_events(&mut watch).await.expect("events");
    assert_eq!(revision, third);
}

/// Refused at the call or as the first item, with the oldest revision; a watch
/// from above the compaction works.
pub async fn a_watch_below_a_compaction_says_so(store: Store) {
    let first = put(&store, "k", "1").await;
    put(&store, "k", "2").await;
    let third = put(&store, "k", "3").await;
    let fourth = put(&store, "k", "4").await;
    store.compact(third).await.expect("compact");

    let error = match store.watch(KeyRange::all(), first).await {
        Err(error) => error,
        Ok(mut watch) => next_events(&mut watch).await.expect_err("compacted"),
    };
    let MetastoreError::Compacted { oldest } = error else {
        panic!("{error}")
    };
    assert!(oldest > first && oldest <= fourth, "{oldest}");

    let mut above = watch(&store, "k", fourth).await;
    assert_eq!(next_events(&mut above).await.expect("events").0, fourth);
}

/// Changes outside the range move the watch's progress.
pub async fn a_watch_makes_progress_past_foreign_changes(store: Store) {
    let at = put(&store, "mine", "v").await;
    let mut watch = watch(&store, "mine", at).await;
    assert_eq!(next_events(&mut watch).await.expect("events").0, at);
    let foreign = put(&store, "other", "v").await;
    within("progress", async {
        loop {
            match watch
                .next()
                .await
                .expect("a watch ends with an error only")
                .expect("item")
            {
                WatchItem::Progress { revision } if revision >= foreign => return,
                WatchItem::Progress { .. } => {}
                WatchItem::Events { events, .. } => panic!("{events:?}"),
            }
        }
    })
    .await;
}

/// Ten watches that start at different moments agree from there on.
pub async fn many_watches_see_the_same(store: Store) {
    let mut watches = Vec::new();
    let mut revisions = Vec::new();
    for i in 0..10 {
        revisions.push(put(&store, "k", &format!("{i}")).await);
        watches.push(watch(&store, "k", revisions[i]).await);
    }
    for (i, watch) in watches.iter_mut().enumerate() {
        for revision in &revisions[i..] {
            assert_eq!(next_events(watch).await.expect("events").0, *revision);
        }
    }
}
