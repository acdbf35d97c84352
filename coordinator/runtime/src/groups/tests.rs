//! Round trips, keys that never change, and records of other versions.

use super::*;
use crate::{Encoded, Limits, LoadError, Loading};
use proptest::{collection, option, prelude::*};
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet};
use talweg_batch::BatchBuilder;
use talweg_group::{
    Assignor, Committed, Current, DeadLetterPolicy, FailureKind, Failures, GroupMeta, Key,
    MemberEpoch, MemberKind, MemberMeta, Owned, Subscription, Timeouts, Value,
};
use talweg_proto::records::v1 as stored;
use talweg_types::{
    Compression, LeaderEpoch, MemberId, Offset, PartitionIndex, TimestampMs, TopicId,
    TopicPartition,
};

fn member() -> impl Strategy<Value = MemberId> {
    any::<[u8; 16]>().prop_map(|id| MemberId::from_slice(&id).expect("16 bytes"))
}

fn partition() -> impl Strategy<Value = TopicPartition> {
    (any::<[u8; 16]>(), any::<u32>()).prop_map(|(id, partition)| TopicPartition {
        topic_id: TopicId::from_slice(&id).expect("16 bytes"),
        partition: PartitionIndex(partition),
    })
}

fn epoch() -> impl Strategy<Value = MemberEpoch> {
    any::<i32>().prop_map(MemberEpoch)
}

fn group_value() -> impl Strategy<Value = Value> {
    (epoch(), epoch(), any::<u64>(), option::of(any::<i64>())).prop_map(
        |(group, target, hash, empty)| {
            Value::Group(GroupMeta {
                group_epoch: group,
                target_epoch: target,
                topics_hash: hash,
                empty_since: empty.map(TimestampMs),
            })
        },
    )
}

fn member_value() -> impl Strategy<Value = Value> {
    let names = collection::btree_set("[a-z]{1,8}", 0..4);
    let texts = (
        option::of(".{0,9}"),
        ".{0,9}",
        ".{0,9}",
        option::of(".{0,9}"),
    );
    let kinds = prop_oneof![
        Just(MemberKind::Streaming),
        Just(MemberKind::Http),
        Just(MemberKind::HttpShared)
    ];
    let assignor = prop_oneof![
        Just(Assignor::Sticky),
        Just(Assignor::Range),
        Just(Assignor::RoundRobin)
    ];
    let numbers = any::<[u32; 4]>();
    (
        names,
        texts,
        kinds,
        option::of(assignor),
        numbers,
        any::<[bool; 2]>(),
    )
        .prop_map(
            |(
                names,
                (instance_id, client_id, rack, pattern),
                kind,
                assignor,
                numbers,
                [dead_letters, reads_committed],
            )| {
                Value::Member(Box::new(MemberMeta {
                    instance_id,
                    client_id,
                    rack,
                    kind,
                    subscription: Subscription { names, pattern },
                    assignor,
                    timeouts: Timeouts {
                        session_ms: numbers[0],
                        rebalance_ms: numbers[1],
                        processing_ms: numbers[2],
                    },
                    policy: DeadLetterPolicy {
                        attempts: numbers[3],
                        dead_letters,
                    },
                    reads_committed,
                }))
            },
        )
}

fn current_value() -> impl Strategy<Value = Value> {
    let owned = (epoch(), any::<bool>()).prop_map(|(given_epoch, revoking)| Owned {
        given_epoch,
        revoking,
    });
    let owned = collection::btree_map(partition(), owned, 0..5);
    (epoch(), epoch(), owned).prop_map(|(member_epoch, attach_epoch, owned)| {
        Value::Current(Current {
            member_epoch,
            attach_epoch,
            owned,
        })
    })
}

fn offset_value() -> impl Strategy<Value = Value> {
    let times = (any::<i64>(), option::of(any::<i64>()));
    (any::<i64>(), any::<i32>(), ".{0,40}", times).prop_map(
        |(offset, epoch, metadata, (at, moved))| {
            Value::Offset(Committed {
                offset: Offset(offset),
                leader_epoch: LeaderEpoch(epoch),
                metadata,
                committed_at: TimestampMs(at),
                moved_at: TimestampMs(moved.unwrap_or(at)),
            })
        },
    )
}

fn failures_value() -> impl Strategy<Value = Value> {
    let last = prop_oneof![Just(FailureKind::Crashed), Just(FailureKind::TimedOut)];
    (option::of(any::<i64>()), any::<u32>(), any::<u32>(), last).prop_map(
        |(next, deaths, overruns, last)| {
            Value::Failures(Failures {
                next: next.map(Offset),
                deaths,
                overruns,
                last,
            })
        },
    )
}

fn record() -> impl Strategy<Value = Record> {
    let target = collection::btree_set(partition(), 0..5).prop_map(Value::Target);
    let pair = prop_oneof![
        group_value().prop_map(|value| (Key::Group, value)),
        (member(), member_value()).prop_map(|(id, value)| (Key::Member(id), value)),
        (member(), target).prop_map(|(id, value)| (Key::Target(id), value)),
        (member(), current_value()).prop_map(|(id, value)| (Key::Current(id), value)),
        (partition(), offset_value()).prop_map(|(at, value)| (Key::Offset(at), value)),
        (partition(), failures_value()).prop_map(|(at, value)| (Key::Failures(at), value)),
    ];
    (pair, any::<bool>()).prop_map(|((key, value), stays)| Record {
        key,
        value: stays.then_some(value),
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(name in "[a-z.]{1,20}", record in record()) {
        let Encoded { key, value } = encode_record(&name, &record);
        let read = decode_record(&key, value.as_deref());
        prop_assert_eq!(read, Ok((name, record)));
    }

    /// Whatever lies in the log, reading it ends in a record or a reason.
    #[test]
    fn no_bytes_panic(key in collection::vec(any::<u8>(), 0..60), value in option::of(collection::vec(any::<u8>(), 0..60))) {
        let _ = decode_record(&key, value.as_deref());
    }

    /// Damage to a good record is noticed or makes another good record; never a panic.
    #[test]
    fn no_flipped_bit_panics(record in record(), at in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let Encoded { key, value } = encode_record("g", &record);
        let mut bytes = value.unwrap_or_default().to_vec();
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        let _ = decode_record(&key, Some(&bytes));
    }
}

fn at(partition: u32) -> TopicPartition {
    TopicPartition {
        topic_id: TopicId::from_slice(&[7; 16]).expect("16 bytes"),
        partition: PartitionIndex(partition),
    }
}

/// Compaction compares keys byte by byte: these never change.
#[test]
fn keys_have_the_bytes_that_the_page_shows() {
    let id = MemberId::from_slice(&[1; 16]).expect("16 bytes");
    let hex = |key| {
        let record = Record { key, value: None };
        let encoded = encode_record("g", &record);
        let bytes = encoded.key.iter().map(|byte| format!("{byte:02x}"));
        bytes.collect::<String>()
    };
    let (ones, sevens) = ("01".repeat(16), "07".repeat(16));
    assert_eq!(hex(Key::Group), "0a01671200");
    assert_eq!(hex(Key::Member(id)), format!("0a01671a10{ones}"));
    assert_eq!(hex(Key::Target(id)), format!("0a01672210{ones}"));
    assert_eq!(hex(Key::Current(id)), format!("0a01672a10{ones}"));
    assert_eq!(hex(Key::Offset(at(0))), format!("0a016732120a10{sevens}"));
    assert_eq!(
        hex(Key::Failures(at(3))),
        format!("0a01673a140a10{sevens}1003")
    );
}

/// Story: an offset that an earlier version stored. It moved when it was committed; and
/// one that did is stored now as it was then.
#[test]
fn an_offset_without_a_time_of_its_last_move_moved_when_it_was_committed() {
    let earlier = stored::CommittedRecord {
        offset: 5,
        leader_epoch: -1,
        metadata: String::new(),
        committed_ms: 77,
        moved_ms: None,
    };
    let key = Record {
        key: Key::Offset(at(1)),
        value: None,
    };
    let key = encode_record("g", &key).key;
    let bytes = earlier.encode_to_vec();
    let (_, record) = decode_record(&key, Some(&bytes)).expect("reads");
    let Some(Value::Offset(committed)) = &record.value else {
        panic!("{record:?}");
    };
    assert_eq!(committed.moved_at, TimestampMs(77));
    let again = encode_record("g", &record).value;
    assert_eq!(again.as_deref(), Some(&bytes[..]));
}

type KeyAndValue<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

fn batch(records: &[KeyAndValue<'_>]) -> bytes::Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    for (key, value) in records {
        let nothing = std::iter::empty::<(&[u8], Option<&[u8]>)>();
        builder
            .push(TimestampMs(1), *key, *value, nothing)
            .expect("a record");
    }
    builder.build().expect("a batch")
}

/// Story: a later version wrote a field or a kind that this one does not know. The
/// shard is not served without it, and the error says where it is.
#[test]
fn a_record_of_a_later_version_stops_the_load_by_name() {
    let good = Record {
        key: Key::Offset(at(1)),
        value: Some(Value::Failures(Failures {
            next: None,
            deaths: 0,
            overruns: 0,
            last: FailureKind::Crashed,
        })),
    };
    let Encoded { key, value } = encode_record(
        "g",
        &Record {
            key: Key::Failures(at(1)),
            ..good
        },
    );
    let (key, value) = (key.to_vec(), value.expect("a value").to_vec());
    let with = |mut bytes: Vec<u8>, more: &[u8]| {
        bytes.extend_from_slice(more);
        bytes
    };
    // Field 15, varint 1.
    let newer_key = with(key.clone(), &[0x78, 1]);
    let newer_value = with(value.clone(), &[0x78, 1]);
    let mut other_kind = value.clone();
    *other_kind.last_mut().expect("not empty") = 9;
    for (key, value, expected) in [
        (Some(&newer_key), &value, "the key has fields"),
        (Some(&key), &newer_value, "the value has fields"),
        (Some(&key), &other_kind, "last is 9"),
        (None, &value, "no key"),
        (Some(&b"\x0a".to_vec()), &value, "not the encoding"),
        (Some(&b"\x0a\x01g".to_vec()), &value, "about is missing"),
        (
            Some(&b"\x0a\x01g\x1a\x01x".to_vec()),
            &value,
            "16 are needed",
        ),
    ] {
        let bytes = batch(&[
            (Some(&b"\x0a\x01g\x12\x00"[..]), None),
            (key.map(|key| &key[..]), Some(&value[..])),
        ]);
        let mut loading = Loading::<Group>::default();
        let error = loading.apply_batch(&bytes).expect_err(expected);
        assert!(
            matches!(&error, LoadError::Record { at: Offset(1), .. }),
            "{error}"
        );
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// Records that only contradict each other together are found at the end.
#[test]
fn a_group_that_contradicts_itself_is_not_loaded() {
    let id = MemberId::from_slice(&[1; 16]).expect("16 bytes");
    let target = BTreeSet::from([at(0)]);
    let meta = Record {
        key: Key::Group,
        value: Some(Value::Group(GroupMeta::default())),
    };
    let orphan = Record {
        key: Key::Current(id),
        value: Some(Value::Current(Current {
            member_epoch: MemberEpoch(5),
            attach_epoch: MemberEpoch(9),
            owned: BTreeMap::new(),
        })),
    };
    let target = Record {
        key: Key::Target(id),
        value: Some(Value::Target(target)),
    };
    let mut loading = Loading::<Group>::default();
    for record in [meta, orphan, target] {
        let Encoded { key, value } = encode_record("g", &record);
        let applied = loading.apply(Offset(0), Some(&key), value.as_deref());
        applied.expect("each alone is good");
    }
    let settings = Settings::default();
    let limits = Limits::for_batches_of(1 << 20);
    let error = loading.finish(settings, limits, Now::default()).err();
    assert!(matches!(error, Some(LoadError::Broken { name, .. }) if name == "g"));
}
