//! A clean history, and ways to spoil it, each of which the checker names.

use super::{Bounds, History, Outcome, Poll, Send, check};
use std::time::Duration;

const CALLS: u64 = 5;
const RECORDS: i64 = 2;

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn value(partition: u32, offset: i64) -> Vec<u8> {
    format!("w0-{partition}-{offset}").into_bytes()
}

fn send(partition: u32, number: u64) -> Send {
    let base = i64::try_from(number).expect("few") * RECORDS;
    Send {
        number,
        client: 0,
        partition,
        key: b"k".to_vec(),
        values: (base..base + RECORDS)
            .map(|offset| value(partition, offset))
            .collect(),
        lasting: true,
        invoked: at(number * 10),
        completed: at(number * 10 + 5),
        outcome: Outcome::Ok { base },
    }
}

fn records(partition: u32, offsets: std::ops::Range<i64>) -> Vec<(i64, Vec<u8>)> {
    offsets.map(|o| (o, value(partition, o))).collect()
}

fn poll(partition: u32, seek: Option<i64>, offsets: std::ops::Range<i64>) -> Poll {
    Poll {
        client: 7,
        partition,
        seek,
        next: offsets.end,
        records: records(partition, offsets),
        at: at(100),
    }
}

fn bounds(high_watermark: i64) -> Bounds {
    Bounds {
        observer: "gateway".into(),
        partition: 0,
        log_start: 0,
        last_stable: high_watermark,
        high_watermark,
        at: at(100),
    }
}

/// Two partitions of ten records from five calls each, read in two polls and once more at
/// the end; beside them a call that failed, one without an answer, and one that
/// was acknowledged by its leader alone and is gone: all three are allowed to be absent.
fn clean() -> History {
    let mut history = History::default();
    history.readers.insert(7);
    for partition in 0..2 {
        let calls = (0..CALLS).map(|number| send(partition, number));
        history.sends.extend(calls);
        history.polls.push(poll(partition, Some(0), 0..4));
        history.polls.push(poll(partition, None, 4..10));
        history.end.insert(partition, records(partition, 0..10));
    }
    for (number, name, outcome) in [
        (0, "failed", Outcome::Failed),
        (1, "unknown", Outcome::Unknown),
        (2, "alone", Outcome::Ok { base: 3 }),
    ] {
        history.sends.push(Send {
            number,
            client: 1,
            values: vec![name.into()],
            lasting: false,
            outcome,
            ..send(0, 0)
        });
    }
    history.bounds = [0, 4, 4, 10].map(bounds).to_vec();
    history
}

#[test]
fn a_clean_history_has_no_findings() {
    assert_eq!(check(&clean()), []);
}

#[test]
fn a_write_without_an_answer_may_be_there_once() {
    let mut history = clean();
    history.push_everywhere(b"unknown");
    assert_eq!(check(&history), []);
}

impl History {
    /// One more record in partition 0, at the end and in the last poll.
    fn push_everywhere(&mut self, value: &[u8]) {
        let end = self.end.get_mut(&0).expect("partition 0");
        let offset = end.last().expect("records").0 + 1;
        end.push((offset, value.to_vec()));
        self.polls[1].records.push((offset, value.to_vec()));
        self.polls[1].next = offset + 1;
    }

    fn end_of(&mut self, partition: u32) -> &mut Vec<(i64, Vec<u8>)> {
        self.end.get_mut(&partition).expect("a partition")
    }
}

type Spoil = fn(&mut History);

/// (the finding that is expected, what was done, how).
const SPOILT: &[(&str, &str, Spoil)] = &[
    ("LostWrite", "the last record is dropped everywhere", |h| {
        h.end_of(0).pop();
        h.polls[1].records.pop();
        h.polls[1].next = 9;
    }),
    (
        "LostWrite",
        "a record is replaced by an unknown write",
        |h| {
            h.end_of(0)[4].1 = b"unknown".to_vec();
        },
    ),
    ("Vanished", "what a reader saw is not at the end", |h| {
        h.push_everywhere(b"unknown");
        h.end_of(0).pop();
    }),
    (
        "Vanished",
        "what one leader alone acknowledged was read and is gone",
        |h| {
            h.push_everywhere(b"alone");
            h.end_of(0).pop();
        },
    ),
    ("Gap", "a record in the middle is dropped at the end", |h| {
        h.end_of(0).remove(2);
    }),
    ("Unseen", "the last record never reaches the reader", |h| {
        h.polls[1].records.pop();
        h.polls[1].next = 9;
    }),
    ("Unseen", "a reader stops before the end", |h| {
        h.polls.remove(1);
    }),
    ("Unseen", "a reader is given nothing of a partition", |h| {
        h.polls.retain(|poll| poll.partition != 1);
    }),
    ("Unseen", "a reader is given nothing at all", |h| {
        h.polls.clear();
    }),
    ("Duplicate", "a record is there twice", |h| {
        h.push_everywhere(&value(0, 3));
    }),
    (
        "Duplicate",
        "a write without an answer is there twice",
        |h| {
            h.push_everywhere(b"unknown");
            h.push_everywhere(b"unknown");
        },
    ),
    ("Duplicate", "one value in two partitions", |h| {
        let last = h.end_of(1).len() - 1;
        h.end_of(1)[last].1 = value(0, 1);
    }),
    (
        "Duplicate",
        "acknowledged at one offset, found at another",
        |h| {
            let moved = h.end_of(0)[1].1.clone();
            h.end_of(0)[1].1 = value(0, 2);
            h.end_of(0)[2].1 = moved;
        },
    ),
    (
        "InconsistentOffset",
        "a reader saw another value there",
        |h| {
            h.polls[0].records[2].1 = b"unknown".to_vec();
        },
    ),
    (
        "InconsistentOffset",
        "an offset is acknowledged twice",
        |h| {
            let again = Send {
                client: 2,
                values: vec![b"other".to_vec()],
                outcome: Outcome::Ok { base: 3 },
                ..send(0, 0)
            };
            h.sends.push(again);
        },
    ),
    ("AbortedRead", "a failed write is read", |h| {
        h.push_everywhere(b"failed");
    }),
    (
        "AbortedRead",
        "a failed write is seen by a reader only",
        |h| {
            h.polls[1].records.push((10, b"failed".to_vec()));
            h.polls[1].next = 11;
        },
    ),
    ("Duplicate", "a failed write is seen twice", |h| {
        h.push_everywhere(b"failed");
        h.push_everywhere(b"failed");
    }),
    ("Invented", "nobody sent it", |h| {
        h.push_everywhere(b"from nowhere");
    }),
    ("SkippedPoll", "a poll leaves out a record", |h| {
        h.polls[1].records.remove(2);
    }),
    ("SkippedPoll", "a poll begins too late", |h| {
        h.polls[1].records.remove(0);
    }),
    ("SkippedPoll", "a poll leads past a record", |h| {
        h.polls[0].next = 5;
        h.polls[1].records.remove(0);
    }),
    ("NonMonotonicPoll", "a poll steps back", |h| {
        h.polls[1].records.insert(0, (3, value(0, 3)));
    }),
    ("NonMonotonicPoll", "a poll is given twice", |h| {
        let again = h.polls[1].clone();
        h.polls.push(again);
    }),
    (
        "NonMonotonicPoll",
        "two records of a poll are swapped",
        |h| {
            h.polls[0].records.swap(1, 2);
        },
    ),
    (
        "NonMonotonicPoll",
        "a reader is told to go on before what it has",
        |h| {
            h.polls[1].next = 8;
        },
    ),
    (
        "SkippedSend",
        "another record between those of one call",
        |h| {
            h.sends[4].values.remove(0);
            h.sends[4].outcome = Outcome::Ok { base: 9 };
            h.sends[3].values = vec![value(0, 6), value(0, 8)];
            h.sends[3].outcome = Outcome::Unknown;
        },
    ),
    ("NonMonotonicSend", "two calls swap their offsets", |h| {
        h.sends[1].number = 2;
        h.sends[2].number = 1;
    }),
    (
        "NonMonotonicSend",
        "an acknowledged offset is given again",
        |h| {
            h.sends[2].outcome = h.sends[1].outcome;
        },
    ),
    (
        "KeyOrder",
        "two calls of a key are swapped in the log",
        |h| {
            h.sends[1].number = 2;
            h.sends[2].number = 1;
            for send in &mut h.sends {
                send.lasting = false;
            }
        },
    ),
    ("SteppedBack", "the watermark steps back", |h| {
        h.bounds.push(bounds(9));
    }),
    ("SteppedBack", "the last stable offset steps back", |h| {
        let last_stable = 3;
        h.bounds.push(Bounds {
            last_stable,
            ..bounds(10)
        });
    }),
    ("SteppedBack", "the log start steps back", |h| {
        let log_start = 2;
        h.bounds.push(Bounds {
            log_start,
            ..bounds(10)
        });
        h.bounds.push(bounds(10));
    }),
    (
        "Bounds",
        "the last stable offset lies above the watermark",
        |h| {
            let last_stable = 11;
            h.bounds.push(Bounds {
                last_stable,
                ..bounds(10)
            });
        },
    ),
];

#[test]
fn doctored_histories_are_rejected_by_name() {
    for (name, what, spoil) in SPOILT {
        let mut history = clean();
        spoil(&mut history);
        let findings = check(&history);
        let named = |f: &super::Finding| format!("{f:?}").starts_with(&format!("{name} "));
        assert!(
            findings.iter().any(named),
            "{what}: {name} is not among {findings:#?}"
        );
    }
}

/// Two lives of a node are two observers: what one of them had not yet stored is no step back.
#[test]
fn another_observer_begins_anew() {
    let mut history = clean();
    let observer = "storage-1 life 2".to_owned();
    history.bounds.push(Bounds {
        observer,
        ..bounds(2)
    });
    assert_eq!(check(&history), []);
}
