//! Transactions: atomicity, compares, races.

use super::{Store, commit, delete, get, put, refused};
use crate::{Compare, Op, Revision, Txn, TxnOutcome};

/// One compare that fails keeps every operation from happening.
pub async fn a_transaction_is_all_or_nothing(store: Store) {
    let at = put(&store, "a", "1").await;
    put(&store, "gone", "1").await;
    let ops = |txn: Txn| {
        txn.then(Op::put("x", "1"))
            .then(Op::put("a", "2"))
            .then(Op::delete("gone"))
    };
    let good = Compare::mod_revision("a", at);
    refused(
        &store,
        ops(Txn::new().when(good.clone()).when(Compare::absent("gone"))),
    )
    .await;
    assert_eq!(get(&store, "x").await, None);
    assert!(get(&store, "gone").await.is_some());

    let revision = commit(&store, ops(Txn::new().when(good))).await;
    let (x, a) = (
        get(&store, "x").await.expect("x"),
        get(&store, "a").await.expect("a"),
    );
    assert_eq!(
        (x.mod_revision, a.mod_revision),
        (revision, revision),
        "one revision for all"
    );
    assert_eq!(get(&store, "gone").await, None);
}

/// The loser learns what it lost to, key by key in the order it asked.
pub async fn a_refused_transaction_brings_what_is_there(store: Store) {
    let at = put(&store, "k", "theirs").await;
    let txn = Txn::new()
        .when(Compare::absent("none"))
        .when(Compare::absent("k"))
        .then(Op::put("k", "mine"));
    let current = refused(&store, txn).await;
    assert_eq!(current.len(), 2);
    assert_eq!(current[0], None);
    let found = current[1].as_ref().expect("k is there");
    assert_eq!(
        (found.value.as_ref(), found.mod_revision),
        (&b"theirs"[..], at)
    );
}

/// Mod revision, absence and value, each once true and once false.
pub async fn every_kind_of_compare_decides(store: Store) {
    let at = put(&store, "k", "v").await;
    let empty = put(&store, "empty", "").await;
    let cases = [
        (Compare::mod_revision("k", at), true),
        (Compare::mod_revision("k", Revision(at.0 + 1)), false),
        (Compare::mod_revision("none", at), false),
        (Compare::mod_revision("empty", empty), true),
        (Compare::absent("none"), true),
        (Compare::absent("k"), false),
        (Compare::absent("empty"), false),
        (Compare::value("k", "v"), true),
        (Compare::value("k", "w"), false),
        (Compare::value("empty", ""), true),
        (Compare::value("none", ""), false),
    ];
    for (compare, holds) in cases {
        let outcome = store
            .txn(Txn::new().when(compare.clone()))
            .await
            .expect("txn");
        assert_eq!(outcome.committed().is_some(), holds, "{compare:?}");
    }
}

/// Deleting what is absent, or only comparing, moves no revision; putting the
/// same value again does.
pub async fn nothing_changed_is_no_revision(store: Store) {
    let at = put(&store, "k", "v").await;
    assert_eq!(delete(&store, "none").await, at);
    assert_eq!(
        commit(&store, Txn::new().when(Compare::value("k", "v"))).await,
        at
    );
    assert_eq!(put(&store, "k", "v").await, at.next());
}

/// Thirty-two writers claim one key at once; one wins and all others see it.
pub async fn of_many_racing_writers_exactly_one_wins(store: Store) {
    let tasks: Vec<_> = (0..32)
        .map(|i| {
            let store = store.clone();
            tokio::spawn(async move {
                let claim = Txn::new()
                    .when(Compare::absent("k"))
                    .then(Op::put("k", format!("{i}")));
                (i, store.txn(claim).await.expect("txn"))
            })
        })
        .collect();
    let (mut winners, mut seen) = (Vec::new(), Vec::new());
    for task in tasks {
        match task.await.expect("join") {
            (i, TxnOutcome::Committed { .. }) => winners.push(format!("{i}")),
            (_, TxnOutcome::Refused { current, .. }) => seen.push(current[0].clone().expect("won")),
        }
    }
    assert_eq!(winners.len(), 1, "{winners:?}");
    assert_eq!(seen.len(), 31);
    assert!(seen.iter().all(|entry| entry.value == winners[0]));
}

/// Eight counters of ten by read, compare and set end at eighty.
pub async fn counting_by_compare_and_set_loses_nothing(store: Store) {
    put(&store, "n", "0").await;
    let tasks: Vec<_> = (0..8)
        .map(|_| tokio::spawn(count_to_ten(store.clone())))
        .collect();
    for task in tasks {
        task.await.expect("join");
    }
    let entry = get(&store, "n").await.expect("there");
    assert_eq!((entry.value.as_ref(), entry.version), (&b"80"[..], 81));
}

async fn count_to_ten(store: Store) {
    let mut done = 0;
    while done < 10 {
        let entry = get(&store, "n").await.expect("there");
        let n: u32 = String::from_utf8_lossy(&entry.value)
            .parse()
            .expect("a number");
        let txn = Txn::new()
            .when(Compare::mod_revision("n", entry.mod_revision))
            .then(Op::put("n", format!("{}", n + 1)));
        if store.txn(txn).await.expect("txn").committed().is_some() {
            done += 1;
        }
    }
}
