//! One suite for every [`IndexKv`].

use std::{collections::BTreeMap, ops::Bound};

use bytes::Bytes;
use proptest::prelude::*;

use super::{IndexKv, KvOp, MemKv, RocksKv, rocks::RocksKvConfig};

fn on_each(check: impl Fn(&dyn IndexKv)) {
    check(&MemKv::new());
    let folder = tempfile::tempdir().expect("a folder");
    let rocks = RocksKv::open(&folder.path().join("index"), RocksKvConfig::default());
    check(&rocks.expect("a database"));
}

fn put(key: &str, value: &str) -> KvOp {
    KvOp::Put(
        Bytes::copy_from_slice(key.as_bytes()),
        Bytes::copy_from_slice(value.as_bytes()),
    )
}

fn delete_range(low: &str, high: &str) -> KvOp {
    KvOp::DeleteRange(
        Bytes::copy_from_slice(low.as_bytes()),
        Bytes::copy_from_slice(high.as_bytes()),
    )
}

fn keys(found: Vec<(Bytes, Bytes)>) -> Vec<String> {
    found
        .into_iter()
        .map(|(key, _)| String::from_utf8_lossy(&key).into_owned())
        .collect()
}

#[test]
fn bounds_are_as_they_say() {
    // Offset look-ups live on the inclusive end of last_in and the exclusive end of scan.
    on_each(|kv| {
        kv.write(["a", "b", "bb", "c"].map(|key| put(key, "1")).into())
            .unwrap();
        let scan = |low: &str, high: &str, limit| {
            keys(kv.scan(low.as_bytes(), high.as_bytes(), limit).unwrap())
        };
        assert_eq!(scan("a", "c", 9), ["a", "b", "bb"]);
        assert_eq!(scan("aa", "z", 2), ["b", "bb"]);
        assert!(scan("a", "z", 0).is_empty());
        assert!(scan("c", "a", 9).is_empty());
        assert!(scan("a", "a", 9).is_empty());
        let last = |low: &str, high: &str| {
            let found = kv.last_in(low.as_bytes(), high.as_bytes()).unwrap();
            keys(found.into_iter().collect())
        };
        assert_eq!(last("a", "c"), ["c"]);
        assert_eq!(last("a", "bz"), ["bb"]);
        assert_eq!(last("b", "b"), ["b"]);
        assert!(last("bc", "bz").is_empty());
        assert!(last("d", "z").is_empty());
        assert!(last("c", "a").is_empty());
    });
}

#[test]
fn a_write_applies_its_changes_in_order() {
    // Entries and the offset they are valid to go in one write; a later change wins.
    on_each(|kv| {
        kv.write(vec![put("a", "1"), put("b", "1"), put("c", "1")])
            .unwrap();
        kv.write(vec![
            put("a", "2"),
            delete_range("a", "c"),
            put("b", "3"),
            delete_range("z", "a"),
            KvOp::Delete(Bytes::from_static(b"c")),
            KvOp::Delete(Bytes::from_static(b"never there")),
        ])
        .unwrap();
        assert_eq!(kv.get(b"a").unwrap(), None);
        assert_eq!(kv.get(b"b").unwrap(), Some(Bytes::from_static(b"3")));
        assert_eq!(kv.get(b"c").unwrap(), None);
        kv.write(Vec::new()).unwrap();
        kv.write(vec![put("", "")]).unwrap();
        assert_eq!(
            kv.get(b"").unwrap(),
            Some(Bytes::new()),
            "empty is not missing"
        );
    });
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn apply(model: &mut Model, ops: &[KvOp]) {
    for op in ops {
        match op {
            KvOp::Put(key, value) => drop(model.insert(key.to_vec(), value.to_vec())),
            KvOp::Delete(key) => drop(model.remove(key.as_ref())),
            KvOp::DeleteRange(low, high) => {
                model.retain(|key, _| key.as_slice() < low || key.as_slice() >= high);
            }
        }
    }
}

/// Short keys of few letters, so that ranges hit and prefixes meet.
fn key() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(prop::sample::select(vec![0, 1, b'a', 255]), 0..4).prop_map(Bytes::from)
}

fn kv_op() -> impl Strategy<Value = KvOp> {
    prop_oneof![
        6 => (key(), key()).prop_map(|(key, value)| KvOp::Put(key, value)),
        2 => key().prop_map(KvOp::Delete),
        1 => (key(), key()).prop_map(|(low, high)| KvOp::DeleteRange(low, high)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn all_agree_with_a_map(
        writes in prop::collection::vec(prop::collection::vec(kv_op(), 0..8), 0..12),
        questions in prop::collection::vec((key(), key(), 0..6_usize), 1..20),
    ) {
        // Any writes, any questions: the answers are those of an ordered map.
        let mut model = Model::new();
        writes.iter().for_each(|ops| apply(&mut model, ops));
        on_each(|kv| {
            for ops in &writes {
                kv.write(ops.clone()).expect("a write");
            }
            for (low, high, limit) in &questions {
                check(kv, &model, low, high, *limit);
            }
        });
    }
}

fn check(kv: &dyn IndexKv, model: &Model, low: &[u8], high: &[u8], limit: usize) {
    let plain = |(key, value): (Bytes, Bytes)| (key.to_vec(), value.to_vec());
    let owned = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.clone(), value.clone());
    let found = kv.get(low).expect("an answer").map(|value| value.to_vec());
    assert_eq!(found.as_ref(), model.get(low));

    let from = Bound::Included(low);
    let ordered = low <= high;
    let last = ordered.then(|| {
        model
            .range::<[u8], _>((from, Bound::Included(high)))
            .next_back()
    });
    let found = kv.last_in(low, high).expect("an answer").map(plain);
    assert_eq!(
        found,
        last.flatten().map(owned),
        "last in {low:?} to {high:?}"
    );

    let range = (low < high).then(|| model.range::<[u8], _>((from, Bound::Excluded(high))));
    let wanted: Vec<_> = range.into_iter().flatten().take(limit).map(owned).collect();
    let found = kv
        .scan(low, high, limit)
        .expect("an answer")
        .into_iter()
        .map(plain);
    assert_eq!(
        found.collect::<Vec<_>>(),
        wanted,
        "scan {low:?} to {high:?}"
    );
}

#[test]
fn an_earlier_state_can_be_put_back() {
    // The index may be older than the log, or gone.
    let kv = MemKv::new();
    kv.write(vec![put("a", "1")]).unwrap();
    let earlier = kv.snapshot();
    kv.write(vec![put("a", "2"), put("b", "2")]).unwrap();
    let later = kv.snapshot();
    kv.restore(&earlier);
    assert_eq!(
        (kv.get(b"a").unwrap(), kv.len()),
        (Some(Bytes::from_static(b"1")), 1)
    );
    kv.restore(&later);
    assert_eq!(kv.len(), 2);
    kv.clear();
    assert!(kv.is_empty());
}
