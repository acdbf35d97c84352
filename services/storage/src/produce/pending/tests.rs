//! What a client is told, and when.

use super::*;
use talweg_kit::errors::ErrorCode;
use talweg_types::{LeaderEpoch, PartitionIndex, TopicId};
use uuid::Uuid;

fn tp(partition: u32) -> TopicPartition {
    TopicPartition {
        topic_id: TopicId(Uuid::from_u128(7)),
        partition: PartitionIndex(partition),
    }
}

fn batch(sequence: u64) -> (u64, Amount) {
    (
        sequence,
        Amount {
            bytes: 100,
            records: 10,
        },
    )
}

fn done(offset: i64, flushed: u32) -> Fate {
    let reached = Reached {
        holding: 1,
        flushed,
        epoch: LeaderEpoch(3),
    };
    Fate::Done {
        base_offset: Offset(offset),
        append_time: TimestampMs(offset),
        duplicate: false,
        reached,
    }
}

fn refused(code: ErrorCode) -> Fate {
    Fate::Refused(Refusal::new(code, "no"))
}

fn pending() -> Pending {
    Pending::new(Amount {
        bytes: 1_000,
        records: 50,
    })
}

fn answers(pending: &mut Pending, slot: u32) -> Vec<Answer> {
    let mut answers = Vec::new();
    pending.answers(slot, &mut answers);
    answers
}

/// Story: batches are done out of order; nothing is said to be done "up to"
/// a sequence before all below it are.
#[test]
fn acknowledgements_say_up_to_and_mean_it() {
    let (mut p, far) = (pending(), Instant::now());
    let slot = p.push(tp(0), [0, 1, 2, 3].map(batch).into_iter(), false, far);
    let other = p.push(tp(1), [4].map(batch).into_iter(), false, far);
    assert!(p.decide(slot, 1, done(11, 0)));
    assert_eq!(answers(&mut p, slot), []);
    assert!(p.decide(other, 4, done(5, 1)));
    assert_eq!(
        answers(&mut p, other).len(),
        1,
        "partitions do not wait for one another"
    );
    p.decide(slot, 0, done(10, 1));
    p.decide(slot, 2, refused(ErrorCode::OutOfOrderSequence));
    p.decide(slot, 3, done(12, 1));
    assert!(
        !p.decide(slot, 3, refused(ErrorCode::Internal)),
        "decided once"
    );
    let said = answers(&mut p, slot);
    let [
        Answer::Ack(first),
        Answer::Refusal(refusal),
        Answer::Ack(last),
    ] = &said[..]
    else {
        panic!("{said:?}")
    };
    assert_eq!(
        (first.up_to_sequence, &first.base_offsets[..]),
        (1, &[10, 11][..])
    );
    assert_eq!(
        first.durability.expect("durability").replicas_flushed,
        0,
        "the lowest of both"
    );
    assert_eq!(first.timestamp_ms, 11);
    assert_eq!(refusal.sequences, [2]);
    assert_eq!(
        (last.up_to_sequence, &last.base_offsets[..]),
        (3, &[12][..])
    );
    assert!(p.is_empty());
    assert_eq!(p.outstanding(), Amount::default());
}

#[test]
fn credit_is_what_is_unanswered() {
    let (mut p, far) = (pending(), Instant::now());
    assert!(
        p.fits(Amount {
            bytes: 5_000,
            records: 1
        }),
        "alone, anything goes"
    );
    let slot = p.push(tp(0), [0, 1, 2, 3].map(batch).into_iter(), false, far);
    assert!(p.fits(Amount {
        bytes: 600,
        records: 10
    }));
    assert!(!p.fits(Amount {
        bytes: 601,
        records: 1
    }));
    assert!(!p.fits(Amount {
        bytes: 1,
        records: 11
    }));
    (0..4).for_each(|n| assert!(p.decide(slot, n, refused(ErrorCode::DiskFull))));
    let said = answers(&mut p, slot);
    assert!(
        matches!(&said[..], [Answer::Refusal(all)] if all.sequences == [0, 1, 2, 3]),
        "{said:?}"
    );
    assert!(p.fits(Amount {
        bytes: 1_000,
        records: 50
    }));
}

/// Story: acks none: success returns credit, refusals are still said, and
/// each batch is answered by exactly one of the two.
#[test]
fn silent_batches_are_answered_with_credit_or_a_refusal() {
    let (mut p, far) = (pending(), Instant::now());
    let slot = p.push(tp(0), [0, 1, 2].map(batch).into_iter(), true, far);
    p.decide(slot, 0, done(0, 0));
    p.decide(slot, 1, refused(ErrorCode::DiskFull));
    p.decide(slot, 2, done(10, 0));
    let said = answers(&mut p, slot);
    assert!(matches!(said[0], Answer::Refusal(_)));
    assert_eq!(
        said[1],
        Answer::Credit(Amount {
            bytes: 200,
            records: 20
        })
    );
    assert_eq!(said.len(), 2);
}

/// Story: a disk stalls past the delivery time-out; the client is told
/// "unknown", and what the log says later is not told twice.
#[test]
fn what_waits_too_long_is_refused_once() {
    let (mut p, start) = (pending(), Instant::now());
    let later = |ms| start + std::time::Duration::from_millis(ms);
    let slot = p.push(tp(0), [0].map(batch).into_iter(), false, later(10));
    assert_eq!(
        p.push(tp(0), [1].map(batch).into_iter(), false, later(20)),
        slot
    );
    assert_eq!(p.next_deadline(), Some(later(10)));
    let refusal = Refusal::new(ErrorCode::DeliveryTimeout, "late");
    assert!(p.expire(later(9), &refusal).is_empty());
    assert_eq!(p.expire(later(10), &refusal), [slot]);
    assert_eq!(answers(&mut p, slot).len(), 1);
    assert!(!p.decide(slot, 0, done(0, 1)));
    assert_eq!(p.next_deadline(), Some(later(20)));
    p.decide(slot, 1, done(1, 1));
    answers(&mut p, slot);
    assert_eq!(p.next_deadline(), None);
    assert_eq!(p.partition(slot), None);
    assert_ne!(
        p.push(tp(0), [2].map(batch).into_iter(), false, later(30)),
        slot,
        "numbers are not used again"
    );
}
