use super::*;

/// A row of the story: key ("" is null), value, timestamp.
type Row = (&'static str, &'static str, i64);

const SENT: &[Row] = &[
    ("a", "1", 10),
    ("b", "1", 10),
    ("", "x", 5),
    ("a", "2", 11),
    ("b", "2", 9),
    ("", "y", 5),
    ("a", "3", 12),
];

fn record(row: &Row) -> RecordRef<'static> {
    RecordRef {
        key: (!row.0.is_empty()).then_some(row.0.as_bytes()),
        value: Some(row.1.as_bytes()),
        timestamp_ms: row.2,
    }
}

fn sent() -> Ledger {
    let mut ledger = Ledger::default();
    SENT.iter().for_each(|row| ledger.sent(record(row)));
    ledger
}

/// What a faithful reader gets: `a` in partition 0, `b` in 1, rows without a key spread over both.
fn log() -> Vec<(u32, Row)> {
    vec![
        (1, SENT[1]),
        (0, SENT[0]),
        (0, SENT[5]),
        (1, SENT[4]),
        (0, SENT[3]),
        (1, SENT[2]),
        (0, SENT[6]),
    ]
}

fn read(log: &[(u32, Row)]) -> Ledger {
    let mut ledger = Ledger::default();
    let mut next = BTreeMap::new();
    for (partition, row) in log {
        let offset = next.entry(*partition).or_insert(0i64);
        ledger.read(*partition, *offset, record(row));
        *offset += 1;
    }
    ledger
}

fn findings(log: &[(u32, Row)]) -> Vec<Finding> {
    let refuted = prove(&sent(), &read(log)).expect_err("the log was doctored");
    assert_ne!(refuted.sent_digest, "", "both digests are told");
    refuted.findings
}

#[test]
fn a_faithful_log_is_proven_whatever_the_order_between_keys() {
    let proven = prove(&sent(), &read(&log())).expect("nothing was changed");
    assert_eq!((proven.rows, proven.keys), (7, 2));
    let mut other = log();
    other.swap(0, 1); // Another interleaving of two partitions.
    other.swap(2, 5); // Two rows without a key change places.
    let again = prove(&sent(), &read(&other)).expect("order between keys is free");
    assert_eq!(proven.digest, again.digest);
}

#[test]
fn counts_are_of_what_was_read() {
    let ledger = read(&log());
    assert_eq!(ledger.partitions().collect::<Vec<_>>(), [(0, 4), (1, 3)]);
    assert_eq!((ledger.rows(), ledger.bytes()), (7, 12));
}

#[test]
fn a_dropped_row_is_named() {
    let mut doctored = log();
    doctored.remove(4);
    assert_eq!(
        findings(&doctored),
        [Finding::Dropped {
            key: "key a".into(),
            rows: 1
        }]
    );
    let mut doctored = log();
    doctored.remove(2);
    assert_eq!(
        findings(&doctored),
        [Finding::Dropped {
            key: "rows without a key".into(),
            rows: 1
        }]
    );
}

#[test]
fn a_doubled_row_is_named() {
    let mut doctored = log();
    doctored.push(doctored[1]);
    assert_eq!(
        findings(&doctored),
        [Finding::Doubled {
            key: "key a".into(),
            rows: 1
        }]
    );
    // Right after the first one, so that the order of different rows is kept.
    let mut doctored = log();
    doctored.insert(2, doctored[1]);
    assert_eq!(
        findings(&doctored),
        [Finding::Doubled {
            key: "key a".into(),
            rows: 1
        }]
    );
}

#[test]
fn rows_swapped_within_a_key_are_named() {
    let mut doctored = log();
    doctored.swap(1, 4);
    assert_eq!(
        findings(&doctored),
        [Finding::Reordered {
            key: "key a".into(),
            at: 0
        }]
    );
    let mut doctored = log();
    doctored.swap(4, 6);
    assert_eq!(
        findings(&doctored),
        [Finding::Reordered {
            key: "key a".into(),
            at: 1
        }]
    );
}

#[test]
fn an_altered_row_is_named_whichever_part_was_altered() {
    let mut doctored = log();
    doctored[4].1.1 = "2!";
    assert_eq!(
        findings(&doctored),
        [Finding::Altered {
            key: "key a".into(),
            rows: 1
        }]
    );
    let mut doctored = log();
    doctored[4].1.2 += 1;
    assert_eq!(
        findings(&doctored),
        [Finding::Altered {
            key: "key a".into(),
            rows: 1
        }]
    );
    // A changed key: gone from one key, never sent under the other.
    let mut doctored = log();
    doctored[4].1.0 = "c";
    let dropped = Finding::Dropped {
        key: "key a".into(),
        rows: 1,
    };
    assert_eq!(
        findings(&doctored),
        [
            dropped,
            Finding::Foreign {
                key: "key c".into(),
                rows: 1
            }
        ]
    );
}

#[test]
fn a_null_that_became_empty_is_an_altered_row() {
    let mut sent = Ledger::default();
    let mut got = Ledger::default();
    sent.sent(RecordRef {
        key: Some(b"k"),
        value: None,
        timestamp_ms: 0,
    });
    got.read(
        0,
        0,
        RecordRef {
            key: Some(b"k"),
            value: Some(b""),
            timestamp_ms: 0,
        },
    );
    let refuted = prove(&sent, &got).expect_err("null is not empty");
    assert_eq!(
        refuted.findings,
        [Finding::Altered {
            key: "key k".into(),
            rows: 1
        }]
    );
}

#[test]
fn one_row_lost_and_another_doubled_do_not_cancel() {
    let mut doctored = log();
    doctored[4] = doctored[1];
    let key = || "key a".to_owned();
    assert_eq!(
        findings(&doctored),
        [
            Finding::Dropped {
                key: key(),
                rows: 1
            },
            Finding::Doubled {
                key: key(),
                rows: 1
            }
        ]
    );
}

#[test]
fn a_key_in_two_partitions_is_named() {
    let mut doctored = log();
    doctored[6].0 = 1;
    assert_eq!(
        findings(&doctored),
        [Finding::Scattered {
            key: "key a".into(),
            partitions: vec![0, 1]
        }]
    );
}

#[test]
fn an_offset_that_goes_back_is_named() {
    let mut got = read(&log());
    let last = SENT[6];
    got.read(0, 2, record(&last));
    let refuted = prove(&sent(), &got).expect_err("offset 2 came twice");
    assert!(
        refuted.findings.contains(&Finding::NotAscending {
            partition: 0,
            offset: 2
        }),
        "{refuted:?}"
    );
}

#[test]
fn findings_are_bounded_and_counted() {
    let mut sent = Ledger::default();
    for n in 0..100u8 {
        sent.sent(RecordRef {
            key: Some(&[n]),
            value: None,
            timestamp_ms: 0,
        });
    }
    let refuted = prove(&sent, &Ledger::default()).expect_err("nothing was read");
    assert_eq!((refuted.findings.len(), refuted.total), (FINDINGS_MAX, 100));
}
