//! Producer sessions and idempotency keys: repeats are recognised by what was
//! appended, not by what is still stored, and alike after restarts, retention,
//! deletion and truncation.

use crate::common::*;
use talweg_log::{AppendError, LogConfig};
use talweg_types::{Offset, ProducerEpoch, Sequence};

#[test]
fn gaps_repeats_and_fenced_epochs_have_their_answers() {
    let node = Node::new(1);
    let mut log = node.log(config());
    let one = |sequence| numbered(9, 0, sequence, &[rec("v")]);
    let unknown = try_append(&mut log, one(5), NOW).expect_err("starts in the middle");
    assert_eq!(unknown, AppendError::UnknownProducer);
    for sequence in 0..8 {
        assert_eq!(
            append(&mut log, one(sequence), NOW).base_offset,
            Offset(i64::from(sequence))
        );
    }
    for sequence in 3..8 {
        let repeat = append(&mut log, one(sequence), at(5));
        assert!(repeat.duplicate && repeat.offset_known);
        assert_eq!(
            (repeat.base_offset, repeat.append_time),
            (Offset(i64::from(sequence)), NOW)
        );
    }
    for sequence in 0..3 {
        let old = append(&mut log, one(sequence), NOW);
        assert!(
            old.duplicate && !old.offset_known,
            "older than the remembered five"
        );
        assert_eq!(
            old.last_offset,
            Offset(2),
            "below the oldest that is remembered"
        );
    }
    let gap = try_append(&mut log, one(9), NOW).expect_err("a gap");
    assert_eq!(
        gap,
        AppendError::OutOfOrderSequence {
            expected: Sequence(8)
        }
    );
    // The same sequence with another number of records is not the same batch.
    let changed = numbered(9, 0, 5, &[rec("a"), rec("b")]);
    let changed = try_append(&mut log, changed, NOW).expect_err("changed");
    assert_eq!(
        changed,
        AppendError::OutOfOrderSequence {
            expected: Sequence(8)
        }
    );
    // A new epoch starts at 0, and fences the old one.
    let late = try_append(&mut log, numbered(9, 1, 3, &[rec("v")]), NOW).expect_err("not at 0");
    assert_eq!(
        late,
        AppendError::OutOfOrderSequence {
            expected: Sequence(0)
        }
    );
    append(&mut log, numbered(9, 1, 0, &[rec("v")]), NOW);
    let fenced = try_append(&mut log, one(8), NOW).expect_err("fenced");
    assert_eq!(
        fenced,
        AppendError::Fenced {
            current: ProducerEpoch(1)
        }
    );
    assert_eq!(
        log.bounds().log_end,
        Offset(9),
        "only what was new is in the log"
    );
}

#[test]
fn batches_of_one_call_are_judged_against_each_other() {
    let node = Node::new(1);
    let mut log = node.log(config());
    let batches = [
        numbered(1, 0, 0, &[rec("a"), rec("b")]),
        numbered(1, 0, 2, &[rec("c")]),
        numbered(1, 0, 0, &[rec("a"), rec("b")]),
        numbered(1, 0, 7, &[rec("gap")]),
        numbered(1, 0, 3, &[rec("d")]),
    ];
    let results = log.append(&batches, NOW);
    let offsets: Vec<_> = results
        .iter()
        .map(|result| result.as_ref().map(|a| (a.base_offset.0, a.duplicate)))
        .collect();
    let gap = AppendError::OutOfOrderSequence {
        expected: Sequence(3),
    };
    assert_eq!(
        offsets,
        [
            Ok((0, false)),
            Ok((2, false)),
            Ok((0, true)),
            Err(&gap),
            Ok((3, false))
        ]
    );
}

#[test]
fn sequences_wrap_around_as_in_kafka() {
    let node = Node::new(1);
    let mut log = node.log(config());
    // Close to the end of the circle by one long jump: the log only sees batches,
    // so a session is loaded that stands there.
    append(&mut log, numbered(1, 0, 0, &[rec("a")]), NOW);
    let mut sequence = 1;
    // Largest allowed step per batch is its record count; go on with the real
    // thing at the end of the circle in the unit test of the sessions.
    for _ in 0..20 {
        append(
            &mut log,
            numbered(1, 0, sequence, &[rec("a"), rec("b")]),
            NOW,
        );
        sequence += 2;
    }
    let behind = append(&mut log, numbered(1, 0, 1, &[rec("a"), rec("b")]), NOW);
    assert!(behind.duplicate && !behind.offset_known);
}

#[test]
fn short_retention_does_not_erase_sequence_state() {
    // KAFKA-7190 / KIP-360: every record is gone, the producer goes on. Adapted:
    // retention by time and by deletion, with and without a restart.
    for restart in [false, true] {
        let config = LogConfig {
            retention_ms: 1000,
            file_delete_delay_ms: 0,
            ..config()
        };
        let mut node = Node::new(2);
        let mut log = node.log(config.clone());
        for sequence in 0..10 {
            append(
                &mut log,
                numbered(5, 0, sequence, &[sized(1, 900)]),
                at(i64::from(sequence)),
            );
        }
        commit(&mut log);
        for step in 0..6 {
            log.tick(at(10_000 + step * 1000), true);
            commit(&mut log);
        }
        assert_eq!(log.bounds().log_start, Offset(10), "everything expired");
        assert_eq!(node.segments(), Vec::<i64>::new());
        if restart {
            log.close().expect("closed");
            node = node.restarted();
            log = node.log(config.clone());
            assert_eq!(log.bounds().log_end, Offset(10));
        }
        let repeat = append(&mut log, numbered(5, 0, 9, &[sized(1, 900)]), at(20_000));
        assert!(repeat.duplicate, "recognised although its record is gone");
        assert_eq!(
            append(&mut log, numbered(5, 0, 10, &[rec("next")]), at(20_000)).base_offset,
            Offset(10)
        );
        commit(&mut log);
        log.delete_before(Offset(11), at(20_000)).expect("trimmed");
        if restart {
            drop(log);
            node = node.power_lost();
            log = node.log(config.clone());
        }
        assert_eq!(
            append(&mut log, numbered(5, 0, 11, &[rec("next")]), at(20_001)).base_offset,
            Offset(11)
        );
        drop(node);
    }
}

#[test]
fn a_repeat_is_answered_with_its_offset_after_its_segment_is_gone() {
    // redpanda #5355, KAFKA-14034.
    let config = LogConfig {
        retention_bytes: 1,
        file_delete_delay_ms: 0,
        ..config()
    };
    let node = Node::new(3);
    let mut log = node.log(config.clone());
    let batch = || numbered(5, 0, 0, &[sized(1, 900), sized(2, 900)]);
    append(&mut log, batch(), NOW);
    fill(&mut log, 20, 900, NOW);
    for step in 0..4 {
        log.tick(at(step * 1000), true);
        commit(&mut log);
    }
    assert!(log.bounds().log_start > Offset(2));
    for _ in 0..2 {
        let repeat = append(&mut log, batch(), at(5));
        assert!(repeat.duplicate && repeat.offset_known);
        assert_eq!(
            (repeat.base_offset, repeat.last_offset),
            (Offset(0), Offset(1))
        );
    }
    assert_eq!(log.bounds().log_end, Offset(22));
}

#[test]
fn the_answer_to_a_repeat_is_the_same_before_and_after_a_restart() {
    // nats-io/nats-server #3272: delete up to the end, retry, restart, retry.
    for kind in 0..3 {
        let node = Node::new(4);
        let mut log = node.log(config());
        let batch = || numbered(5, 2, 0, &[rec("a"), rec("b")]);
        append(&mut log, batch(), NOW);
        commit(&mut log);
        log.delete_before(Offset(2), NOW)
            .expect("deleted to the end");
        let before = append(&mut log, batch(), at(1));
        let node = match kind {
            0 => {
                log.close().expect("closed");
                node.restarted()
            }
            1 => node.killed(),
            _ => node.power_lost(),
        };
        let mut log = node.log(config());
        let after = append(&mut log, batch(), at(2));
        assert!(before.duplicate && after.duplicate);
        assert_eq!(
            (before.base_offset, before.last_offset),
            (after.base_offset, after.last_offset)
        );
        assert_eq!(log.bounds().log_end, Offset(2));
    }
}

#[test]
fn sessions_live_by_their_own_expiry() {
    let config = LogConfig {
        producer_id_expiration_ms: 1000,
        ..config()
    };
    let node = Node::new(5);
    let mut log = node.log(config.clone());
    append(&mut log, numbered(1, 0, 0, &[rec("a")]), NOW);
    append(&mut log, numbered(2, 0, 0, &[rec("a")]), at(900));
    assert!(
        append(&mut log, numbered(1, 0, 0, &[rec("a")]), at(1000)).duplicate,
        "at the limit it lives"
    );
    let gone = try_append(&mut log, numbered(1, 0, 1, &[rec("b")]), at(1001)).expect_err("expired");
    assert_eq!(gone, AppendError::UnknownProducer);
    assert!(
        !append(&mut log, numbered(1, 0, 0, &[rec("a")]), at(1002)).duplicate,
        "a new life"
    );
    log.tick(at(1950), true);
    assert_eq!(log.producers(), 1, "idle sessions are dropped");
}

#[test]
fn sessions_right_after_truncation_are_those_of_the_kept_log() {
    let node = Node::new(6);
    let mut log = node.log(config());
    for sequence in 0..40 {
        append(&mut log, numbered(1, 0, sequence, &[sized(1, 300)]), NOW);
        if sequence % 3 == 0 {
            append(
                &mut log,
                numbered(2 + i64::from(sequence), 0, 0, &[sized(2, 300)]),
                NOW,
            );
        }
        if sequence == 10 {
            commit(&mut log);
        }
    }
    let watermark = log.bounds().high_watermark;
    for cut in (watermark.0..log.bounds().log_end.0).rev() {
        let reader = log.reader();
        let kept = read_all(&reader, 0);
        let truncation = log.truncate_to(Offset(cut)).expect("truncated");
        log.check().expect("invariants after truncation");
        assert_eq!(truncation.log_end, Offset(cut));
        assert_eq!(read_all(&reader, 0), kept[..cut as usize]);
        // The next sequence is the one after the last kept batch of producer 1.
        let next = kept[..cut as usize]
            .iter()
            .filter(|(_, record, _)| {
                record
                    .value
                    .as_deref()
                    .expect("value")
                    .starts_with(b"00000001")
            })
            .count();
        let gap = try_append(&mut log, numbered(1, 0, next as i32 + 1, &[rec("x")]), NOW)
            .expect_err("a gap");
        assert_eq!(
            gap,
            AppendError::OutOfOrderSequence {
                expected: Sequence(next as i32)
            }
        );
        assert!(
            append(
                &mut log,
                numbered(1, 0, next as i32 - 1, &[sized(1, 300)]),
                NOW
            )
            .duplicate
        );
    }
    let refused = log
        .truncate_to(Offset(watermark.0 - 1))
        .expect_err("below the watermark");
    assert!(
        matches!(refused, talweg_log::LogError::OutOfRange { .. }),
        "{refused}"
    );
    // What was cut stays cut, and the log goes on from there.
    append(&mut log, batch(&[rec("after")]), NOW);
    commit(&mut log);
    let all = read_all(&log.reader(), 0);
    drop(log);
    let node = node.power_lost();
    assert_eq!(read_all(&node.log(config()).reader(), 0), all);
}

#[test]
fn a_truncated_offset_is_not_found_through_an_old_index() {
    let node = Node::new(7);
    let mut log = node.log(config());
    for n in 0..60 {
        append(&mut log, batch(&[sized(n, 200)]), NOW);
    }
    flush(&mut log);
    let old = node.kv.snapshot();
    log.truncate_to(Offset(20)).expect("truncated");
    for n in 0..60 {
        append(&mut log, batch(&[sized(n, 90)]), NOW);
    }
    commit(&mut log);
    let all = read_all(&log.reader(), 0);
    node.kv.restore(&old);
    drop(log);
    let node = node.killed();
    let (log, report) = node.recover(config());
    assert_eq!(
        report.index,
        talweg_log::IndexFound::Ahead,
        "of another generation"
    );
    for from in 0..80 {
        assert_eq!(read_all(&log.reader(), from), all[from as usize..]);
    }
}

#[test]
fn a_record_with_a_known_key_is_appended_once() {
    let node = Node::new(8);
    let config = LogConfig {
        idempotency_window_ms: 1000,
        ..config()
    };
    let mut log = node.log(config.clone());
    assert_eq!(append(&mut log, keyed(&["a"]), NOW).base_offset, Offset(0));
    assert_eq!(
        append(&mut log, keyed(&["b", "c"]), at(10)).base_offset,
        Offset(1)
    );
    let repeat = append(&mut log, keyed(&["a"]), at(20));
    assert!(repeat.duplicate);
    assert_eq!((repeat.base_offset, repeat.append_time), (Offset(0), NOW));
    let both = append(&mut log, keyed(&["c", "a"]), at(20));
    assert_eq!(both.key_offsets, [Offset(2), Offset(0)]);
    let part = try_append(&mut log, keyed(&["a", "new"]), at(20)).expect_err("a part repeats");
    assert_eq!(
        part,
        AppendError::KeyRepeatedInPart {
            key: "a".into(),
            offset: Offset(0)
        }
    );
    let unkeyed =
        try_append(&mut log, keyed(&["a", ""]), at(20)).expect_err("the other has no key");
    assert_eq!(
        unkeyed,
        AppendError::KeyRepeatedInPart {
            key: "a".into(),
            offset: Offset(0)
        }
    );
    let twice = try_append(&mut log, keyed(&["x", "x"]), at(20)).expect_err("twice in one batch");
    assert_eq!(twice, AppendError::DuplicateKeyInBatch { key: "x".into() });
    // A batch with keyed and other records is recognised as a whole.
    assert_eq!(
        append(&mut log, keyed(&["", "d", ""]), at(30)).base_offset,
        Offset(3)
    );
    let whole = append(&mut log, keyed(&["", "d", ""]), at(40));
    assert_eq!(
        (whole.duplicate, whole.key_offsets),
        (true, vec![Offset(4)])
    );
    // Outside its window a key is new.
    assert!(!append(&mut log, keyed(&["a"]), at(1001)).duplicate);
    assert_eq!(log.bounds().log_end, Offset(7));
}

#[test]
fn keys_are_known_after_every_kind_of_restart_and_after_deletion() {
    for kind in 0..3 {
        let node = Node::new(9);
        let mut log = node.log(config());
        for n in 0..60 {
            append(&mut log, keyed(&[&format!("key-{n}")]), at(n));
        }
        commit(&mut log);
        log.delete_before(Offset(40), NOW).expect("deleted");
        let node = match kind {
            0 => {
                log.close().expect("closed");
                node.restarted()
            }
            1 => node.killed(),
            _ => node.power_lost(),
        };
        let mut log = node.log(config());
        for n in 0..60 {
            let repeat = append(&mut log, keyed(&[&format!("key-{n}")]), at(1000));
            assert!(repeat.duplicate, "key {n} after restart of kind {kind}");
            assert_eq!(repeat.base_offset, Offset(n));
        }
    }
}

#[test]
fn the_state_replayed_from_the_log_is_the_state_of_the_one_that_served() {
    // Faults of kind nine: a shadow opens the log and must judge alike.
    let node = Node::new(10);
    let mut log = node.log(config());
    let mut sequences = [0i32; 7];
    for n in 0..400usize {
        let producer = (n * 31) % 7;
        let count = 1 + n % 3;
        let records: Vec<Rec> = (0..count).map(|k| sized(k, 20)).collect();
        append(
            &mut log,
            numbered(producer as i64, 0, sequences[producer], &records),
            at(n as i64),
        );
        sequences[producer] += count as i32;
        if n % 40 == 0 {
            commit(&mut log);
        }
    }
    drop(log);
    let node = node.killed();
    let mut shadow = node.log(config());
    assert_eq!(shadow.producers(), 7);
    for (producer, sequence) in sequences.iter().enumerate() {
        let gap = try_append(
            &mut shadow,
            numbered(producer as i64, 0, sequence + 1, &[rec("x")]),
            at(500),
        );
        assert_eq!(
            gap.expect_err("a gap"),
            AppendError::OutOfOrderSequence {
                expected: Sequence(*sequence)
            }
        );
    }
}
