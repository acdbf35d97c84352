//! Reads: revisions, ranges, limits, compaction.

use super::{Store, delete, get, put};
use crate::{KeyRange, MetastoreError, Revision};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

async fn keys(store: &Store, range: KeyRange) -> Vec<String> {
    let ranged = store.range(range, None, 0).await.expect("range");
    ranged
        .entries
        .iter()
        .map(|entry| text(&entry.key))
        .collect()
}

/// What is not there is an empty answer, not an error.
pub async fn absent_keys_and_empty_ranges_are_empty_answers(store: Store) {
    assert_eq!(get(&store, "nothing").await, None);
    let all = store.range(KeyRange::all(), None, 0).await.expect("range");
    assert!(all.entries.is_empty() && !all.more);
    assert!(all.revision >= Revision::FIRST);
    put(&store, "m", "1").await;
    assert_eq!(
        keys(&store, KeyRange::between("z", "a")).await,
        Vec::<String>::new()
    );
    assert_eq!(
        keys(&store, KeyRange::between("m", "m")).await,
        Vec::<String>::new()
    );
}

/// Created, changed, deleted, created anew: revisions and version tell which.
pub async fn entries_carry_their_revisions_and_versions(store: Store) {
    let created = put(&store, "k", "1").await;
    let changed = put(&store, "k", "2").await;
    assert_eq!(changed, created.next(), "one revision per transaction");
    let entry = get(&store, "k").await.expect("there");
    assert_eq!(
        (entry.create_revision, entry.mod_revision, entry.version),
        (created, changed, 2)
    );
    assert_eq!(entry.value, "2");

    delete(&store, "k").await;
    assert_eq!(get(&store, "k").await, None);
    let again = put(&store, "k", "3").await;
    let entry = get(&store, "k").await.expect("there");
    assert_eq!(
        (entry.create_revision, entry.mod_revision, entry.version),
        (again, again, 1)
    );
}

/// A reader of an old revision sees neither later puts nor later deletes.
pub async fn a_read_at_a_revision_sees_that_moment(store: Store) {
    put(&store, "a", "1").await;
    let moment = put(&store, "b", "1").await;
    put(&store, "a", "2").await;
    delete(&store, "b").await;
    put(&store, "c", "1").await;

    let then = store
        .range(KeyRange::all(), Some(moment), 0)
        .await
        .expect("range");
    let seen: Vec<_> = then
        .entries
        .iter()
        .map(|e| (text(&e.key), text(&e.value)))
        .collect();
    assert_eq!(seen, [("a".into(), "1".into()), ("b".into(), "1".into())]);
    assert!(
        then.revision > moment,
        "the answer names the newest revision"
    );
    assert_eq!(keys(&store, KeyRange::all()).await, ["a", "c"]);

    let future = Revision(then.revision.0 + 1000);
    let error = store
        .range(KeyRange::all(), Some(future), 0)
        .await
        .expect_err("future");
    assert!(matches!(error, MetastoreError::FutureRevision { asked, .. } if asked == future));
}

/// Reading page by page at one revision gives every entry once.
pub async fn limited_reads_are_in_order_and_continue_without_gap(store: Store) {
    for i in 0..10 {
        put(&store, &format!("k{i}"), "v").await;
    }
    let mut range = KeyRange::prefix(b"k");
    let first = store.range(range.clone(), None, 3).await.expect("range");
    let at = first.revision;
    let mut seen = Vec::new();
    let mut page = first;
    loop {
        seen.extend(page.entries.iter().map(|e| text(&e.key)));
        if !page.more {
            break;
        }
        assert_eq!(page.entries.len(), 3);
        // A key put in between belongs to no page of this revision.
        put(&store, "k5a", "late").await;
        range = range.after(&page.entries[2].key);
        page = store
            .range(range.clone(), Some(at), 3)
            .await
            .expect("range");
    }
    assert_eq!(seen, (0..10).map(|i| format!("k{i}")).collect::<Vec<_>>());
    let exact = store
        .range(KeyRange::prefix(b"k"), Some(at), 10)
        .await
        .expect("range");
    assert!(!exact.more, "a limit that is just enough leaves nothing");
}

/// `a/` holds neither `a`, `a0` nor `b`; `topic/` does not hold `topic-name/`.
pub async fn prefixes_end_where_they_should(store: Store) {
    for key in [
        "a",
        "a/",
        "a/1",
        "a/1/2",
        "a/~",
        "a0",
        "b",
        "topic-name/x",
        "topic/x",
    ] {
        put(&store, key, "v").await;
    }
    assert_eq!(
        keys(&store, KeyRange::prefix(b"a/")).await,
        ["a/", "a/1", "a/1/2", "a/~"]
    );
    assert_eq!(keys(&store, KeyRange::key(b"a/1")).await, ["a/1"]);
    assert_eq!(keys(&store, KeyRange::prefix(b"topic/")).await, ["topic/x"]);
    assert_eq!(keys(&store, KeyRange::all()).await.len(), 9);
}

/// Below the compaction `Compacted` with the oldest revision, at it the entry.
pub async fn reads_below_a_compaction_say_so(store: Store) {
    let first = put(&store, "k", "1").await;
    let second = put(&store, "k", "2").await;
    put(&store, "k", "3").await;
    store.compact(second).await.expect("compact");

    let error = store.get(b"k", Some(first)).await.expect_err("compacted");
    assert_eq!(error, MetastoreError::Compacted { oldest: second });
    let kept = store
        .get(b"k", Some(second))
        .await
        .expect("kept")
        .expect("there");
    assert_eq!(kept.value, "2");

    store
        .compact(first)
        .await
        .expect("an older compaction is no error");
    let newest = store
        .range(KeyRange::all(), None, 0)
        .await
        .expect("range")
        .revision;
    let error = store
        .compact(Revision(newest.0 + 1))
        .await
        .expect_err("future");
    assert!(
        matches!(error, MetastoreError::FutureRevision { .. }),
        "{error}"
    );
}

/// Compaction at the newest revision takes nothing that is current.
pub async fn compaction_keeps_what_is_current(store: Store) {
    let old = put(&store, "old", "1").await;
    put(&store, "gone", "1").await;
    put(&store, "changed", "1").await;
    delete(&store, "gone").await;
    let newest = put(&store, "changed", "2").await;
    store.compact(newest).await.expect("compact");

    assert_eq!(keys(&store, KeyRange::all()).await, ["changed", "old"]);
    let entry = get(&store, "old").await.expect("there");
    assert_eq!((entry.mod_revision, entry.version), (old, 1));
    assert_eq!(get(&store, "changed").await.expect("there").version, 2);
    assert_eq!(
        put(&store, "gone", "again").await,
        newest.next(),
        "compaction is no revision"
    );
}
