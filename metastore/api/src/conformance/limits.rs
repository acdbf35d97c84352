//! Limits, each at its edge and one past it.

use super::{Store, commit, get, put};
use crate::{
    Compare, Happened, MAX_KEY_BYTES, MAX_TXN_BYTES, MAX_TXN_OPERATIONS, MetastoreError, Op, Txn,
};

/// 128 compares and operations together are taken, 129 are refused whole.
pub async fn too_many_operations_are_refused(store: Store) {
    let of = |compares: usize, ops: usize| Txn {
        compares: (0..compares)
            .map(|i| Compare::absent(format!("c{i}")))
            .collect(),
        then: (0..ops).map(|i| Op::put(format!("k{i}"), "v")).collect(),
    };
    for (compares, ops) in [(0, 129), (129, 0), (65, 64)] {
        let error = store.txn(of(compares, ops)).await.expect_err("too many");
        let expected = MetastoreError::TooManyOperations {
            given: 129,
            limit: MAX_TXN_OPERATIONS,
        };
        assert_eq!(error, expected);
        assert_eq!(get(&store, "k0").await, None);
    }
    commit(&store, of(64, 64)).await;
    commit(&store, of(0, 128)).await;
}

type Expected = fn(&MetastoreError) -> bool;

/// Each is refused with its own error, certainly not done, and the store is
/// where it was.
pub async fn malformed_transactions_are_refused_and_change_nothing(store: Store) {
    let at = put(&store, "k", "v").await;
    let long_key = "k".repeat(MAX_KEY_BYTES + 1);
    let big = vec![0u8; MAX_TXN_BYTES];
    let good = || Txn::new().then(Op::put("x", "1"));
    let cases: [(Txn, Expected); 6] = [
        (good().then(Op::put("", "v")), |e| {
            matches!(e, MetastoreError::EmptyKey)
        }),
        (good().when(Compare::absent("")), |e| {
            matches!(e, MetastoreError::EmptyKey)
        }),
        (good().then(Op::put(long_key, "v")), |e| {
            matches!(e, MetastoreError::TooLarge { .. })
        }),
        (good().then(Op::put("y", big)), |e| {
            matches!(e, MetastoreError::TooLarge { .. })
        }),
        (good().then(Op::put("x", "2")), |e| {
            matches!(e, MetastoreError::DuplicateKey { .. })
        }),
        (good().then(Op::delete("x")), |e| {
            matches!(e, MetastoreError::DuplicateKey { .. })
        }),
    ];
    for (txn, expected) in cases {
        let error = store.txn(txn).await.expect_err("malformed");
        assert!(expected(&error), "{error}");
        assert_eq!(error.happened(), Happened::No);
    }
    assert_eq!(get(&store, "x").await, None);
    assert_eq!(
        put(&store, "k", "w").await,
        at.next(),
        "no revision was used up"
    );

    let longest = Op::put("k".repeat(MAX_KEY_BYTES), "v");
    let largest = Op::put("y", vec![0u8; MAX_TXN_BYTES - 1]);
    commit(&store, Txn::new().then(longest)).await;
    commit(&store, Txn::new().then(largest)).await;
}
