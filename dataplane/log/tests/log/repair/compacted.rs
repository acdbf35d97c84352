//! Copies that compaction has made different: no deletion is undone.

use super::*;

fn compacted() -> LogConfig {
    LogConfig {
        retention_ms: -1,
        compaction: Some(CompactionConfig {
            delete_retention_ms: 1_000,
            min_dirty_ratio: Ratio::of(0, 1),
            min_lag_ms: 0,
            max_lag_ms: u64::MAX,
            map_bytes: 1 << 20,
        }),
        ..config()
    }
}

fn compact(log: &mut PartitionLog, now: TimestampMs) {
    while let Some(mut round) = log.compaction(now, true) {
        let done = round.run(&|| false);
        log.rewrite_done(round);
        if done.is_err() {
            return;
        }
    }
}

fn put(key: u8, value: Option<usize>) -> Rec {
    Rec {
        key: Some(vec![key]),
        value: value.map(|value| format!("{value:0200}").into_bytes()),
        ..rec("")
    }
}

/// The newest value of each key that has one.
fn table(reader: &LogReader) -> std::collections::BTreeMap<Bytes, Bytes> {
    let mut table = std::collections::BTreeMap::new();
    for (_, record, _) in read_all(reader, 0) {
        let key = record.key.expect("a key");
        match record.value {
            Some(value) => table.insert(key, value),
            None => table.remove(&key),
        };
    }
    table
}

/// Story: a deletion is complete here, tombstone and all, while the other replica has
/// compacted nothing: its old record of that key must not come back with a repair.
#[test]
fn a_deleted_key_does_not_come_back_from_a_replica_that_was_not_compacted() {
    let (source, node) = (Node::new(11), Node::new(12));
    let mut good = source.log(compacted());
    append(&mut good, batch(&[put(1, Some(1))]), NOW);
    append(&mut good, batch(&[put(2, Some(2))]), NOW);
    append(&mut good, batch(&[put(1, None)]), NOW);
    for n in 0..60 {
        append(
            &mut good,
            batch(&[put(3 + n % 3, Some(100 + n as usize))]),
            NOW,
        );
    }
    commit(&mut good);
    let mut log = opened(&node, compacted());
    follow(&good, &mut log);
    // The tombstone gets its date in the first round and goes in a later one.
    compact(&mut log, NOW);
    compact(&mut log, at(5_000));
    let before = table(&log.reader());
    let tombstones = read_all(&log.reader(), 0);
    assert!(
        tombstones
            .iter()
            .all(|(_, record, _)| record.value.is_some())
    );
    let path = node.segment_path(0);
    node.fs.flip_bit(&path, 30, 1).expect("flipped");
    log.close().expect("closed");
    drop(log);
    let node = node.restarted();
    let mut log = opened(&node, compacted());
    log.set_high_watermark(good.bounds().high_watermark);
    assert!(!meet_damage(&log).is_empty());
    let refused = repair(&mut log, &good.reader()).expect("due");
    assert!(
        matches!(&refused, Err(RewriteError::Source { reason, .. }) if reason.contains("compacted")),
        "{refused:?}"
    );
    compact(&mut good, NOW);
    repair_all(&mut log, &good.reader());
    assert_eq!(table(&log.reader()), before);
    compact(&mut log, at(9_000));
    assert_eq!(table(&log.reader()), before);
}

/// Two replicas are written, compacted each in its own time, damaged anywhere and
/// repaired from one another: what a reader makes of either is always the same.
#[test]
fn replicas_that_compact_in_their_own_time_repair_one_another() {
    let mut repaired = 0;
    for seed in 0..60 {
        let mut random = SmallRng::seed_from_u64(seed);
        let nodes = [Node::new(seed * 2), Node::new(seed * 2 + 1)];
        let mut logs = [nodes[0].log(compacted()), opened(&nodes[1], compacted())];
        let mut now = 0;
        for _ in 0..6 {
            now += 700;
            for _ in 0..random.random_range(10..40) {
                let value = random.random_bool(0.8).then(|| random.random_range(0..999));
                let records = [put(random.random_range(0..6), value)];
                append(&mut logs[0], batch(&records), at(now));
            }
            commit(&mut logs[0]);
            let [good, copy] = &mut logs;
            follow(good, copy);
            for log in &mut logs {
                if random.random_bool(0.5) {
                    compact(log, at(now));
                }
            }
            let expected = table(&logs[0].reader());
            assert_eq!(table(&logs[1].reader()), expected, "seed {seed}");
            let hurt = random.random_range(0..2);
            let bases = nodes[hurt].segments();
            if bases.len() < 2 {
                continue;
            }
            let base = bases[random.random_range(0..bases.len() - 1)];
            let path = nodes[hurt].segment_path(base);
            let size = nodes[hurt].fs.open(&path, false).expect("there").len();
            let position = random.random_range(0..size.expect("length"));
            nodes[hurt]
                .fs
                .flip_bit(&path, position, 2)
                .expect("flipped");
            // As a look at the whole log finds it.
            logs[hurt].close().expect("closed");
            logs[hurt] = opened(&nodes[hurt], compacted());
            let end = logs[1 - hurt].bounds().high_watermark;
            logs[hurt].set_high_watermark(end);
            if hurt == 0 {
                let epoch = LeaderEpoch(logs[0].reader().last_epoch().0 + 1);
                logs[0].begin_epoch(epoch).expect("epoch");
            }
            assert!(!meet_damage(&logs[hurt]).is_empty(), "seed {seed}");
            let other = logs[1 - hurt].reader();
            if let Some(Err(error)) = repair(&mut logs[hurt], &other) {
                assert!(error.to_string().contains("compacted"), "{seed}: {error}");
                compact(&mut logs[1 - hurt], at(now));
            }
            repair_all(&mut logs[hurt], &other);
            assert_eq!(table(&logs[hurt].reader()), expected, "seed {seed}");
            repaired += 1;
        }
    }
    assert!(repaired > 100, "{repaired}");
}

/// Story: the tombstone of a key lies in the damage, and the other replica is
/// compacted beyond it: key and tombstone are gone there. The key is to be gone here
/// as well, not to have its old value again.
#[test]
fn a_deletion_that_was_damaged_is_not_undone_by_a_replica_compacted_further() {
    let (source, node) = (Node::new(21), Node::new(22));
    let mut good = source.log(compacted());
    append(&mut good, batch(&[put(1, Some(1))]), NOW);
    for n in 0..30 {
        append(&mut good, batch(&[put(2 + n % 5, Some(n.into()))]), NOW);
    }
    append(&mut good, batch(&[put(1, None)]), NOW);
    for n in 0..60 {
        append(
            &mut good,
            batch(&[put(2 + n % 5, Some(50 + usize::from(n)))]),
            NOW,
        );
    }
    commit(&mut good);
    let mut log = opened(&node, compacted());
    follow(&good, &mut log);
    let expected = table(&good.reader());
    assert!(!expected.contains_key(&Bytes::from_static(&[1])));
    compact(&mut good, NOW);
    compact(&mut good, at(5_000));
    assert_eq!(table(&good.reader()), expected);
    log.close().expect("closed");
    drop(log);
    let bases = node.segments();
    let hurt = *bases.iter().rfind(|base| **base <= 31).expect("a segment");
    assert!(hurt > 0, "the key's value lies in another segment");
    flip_batch(&node, hurt, 31);
    let mut log = opened(&node, compacted());
    log.set_high_watermark(good.bounds().high_watermark);
    assert_eq!(meet_damage(&log), [(31, 32)]);
    let report = repair(&mut log, &good.reader())
        .expect("due")
        .expect("repaired");
    assert!(report.segments > 1, "{report:?}");
    assert_eq!(table(&log.reader()), expected);
    compact(&mut log, at(9_000));
    assert_eq!(table(&log.reader()), expected);
    rebuild(&log.reader());
}

/// Compaction that meets damage says so: nobody else may read there for long.
#[test]
fn damage_that_compaction_meets_is_known() {
    let node = Node::new(31);
    let mut log = node.log(compacted());
    for n in 0..60 {
        append(&mut log, batch(&[put(n % 3, Some(n.into()))]), NOW);
    }
    commit(&mut log);
    flip_batch(&node, node.segments()[1], node.segments()[1] + 2);
    assert!(!log.reader().is_damaged());
    compact(&mut log, NOW);
    assert!(log.reader().is_damaged());
}
