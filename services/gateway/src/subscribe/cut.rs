//! What of a frame may go: all of it, but for records that go one by one and
//! for records of retry topics that are not due yet. Pure.

use super::{
    core::Run,
    derived::{due_ms, due_of},
};
use crate::fetch::outgoing::{Frame, Payload};
use bytes::Bytes;
use talweg_batch::{BatchHeader, decode_records, split_batches};
use talweg_client::payload::fetched_record_bytes;

/// How a partition's records go out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    /// One record, or one batch in batch form.
    pub one_by_one: bool,
    /// Milliseconds since 1970, for a retry topic: later records wait.
    pub due_by: Option<i64>,
    /// Bytes that a batch may unpack to.
    pub max_unpacked: usize,
}

/// The next record is not due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotDue {
    pub next: i64,
    pub wait_ms: u64,
}

/// The front of the frame that may go, and why the rest may not. What is left
/// out is read again.
pub fn cut(frame: Frame, rules: Rules) -> (Option<Frame>, Option<NotDue>) {
    if !rules.one_by_one && rules.due_by.is_none() {
        return (Some(frame), None);
    }
    match frame.payload {
        Payload::Records(_) => cut_records(frame, rules),
        Payload::Batches { .. } => cut_batches(frame, rules),
    }
}

fn wait(due: i64, rules: Rules) -> Option<u64> {
    let now = rules.due_by?;
    (due > now).then(|| due.abs_diff(now))
}

fn cut_records(mut frame: Frame, rules: Rules) -> (Option<Frame>, Option<NotDue>) {
    let Payload::Records(records) = &mut frame.payload else {
        return (Some(frame), None);
    };
    let late = records
        .iter()
        .enumerate()
        .find_map(|(at, record)| Some((at, record.offset, wait(due_of(record), rules)?)));
    let mut keep = late.map_or(records.len(), |(at, _, _)| at);
    let mut not_due = late.map(|(_, next, wait_ms)| NotDue { next, wait_ms });
    if rules.one_by_one && keep > 1 {
        (keep, not_due) = (1, None);
    }
    if keep < records.len() {
        records.truncate(keep);
        frame.payload_bytes = records.iter().map(fetched_record_bytes).sum();
        frame.records = keep;
        if let Some(last) = records.last() {
            (frame.next_offset, frame.last_epoch) = (last.offset + 1, last.leader_epoch);
        }
    }
    ((keep > 0).then_some(frame), not_due)
}

fn cut_batches(mut frame: Frame, rules: Rules) -> (Option<Frame>, Option<NotDue>) {
    let Payload::Batches {
        bytes,
        first_offset,
    } = &mut frame.payload
    else {
        return (Some(frame), None);
    };
    let (mut length, mut records, mut next, mut not_due) = (0, 0, *first_offset, None);
    for batch in split_batches(bytes.clone()) {
        // What cannot be read goes to the client as it is.
        let Ok(batch) = batch else {
            return (Some(frame), None);
        };
        let Ok(header) = BatchHeader::parse(&batch) else {
            return (Some(frame), None);
        };
        if let Some(wait_ms) = wait(latest_due(&batch, rules), rules) {
            not_due = Some(NotDue { next, wait_ms });
            break;
        }
        length += batch.len();
        records += usize::try_from(header.record_count).unwrap_or(0);
        next = header.next_offset().0;
        frame.last_epoch = header.leader_epoch.0;
        if rules.one_by_one {
            break;
        }
    }
    if length < bytes.len() {
        bytes.truncate(length);
        (frame.payload_bytes, frame.records, frame.next_offset) = (length, records, next);
    }
    ((length > 0).then_some(frame), not_due)
}

/// The offsets of a frame's records, run by run: compaction and control batches leave
/// holes, and what is in a hole cannot be passed by anyone.
pub fn runs(frame: &Frame, max_unpacked: usize) -> Vec<Run> {
    let mut runs = Vec::new();
    match &frame.payload {
        Payload::Records(records) => {
            for record in records {
                add(&mut runs, record.offset..record.offset.saturating_add(1));
            }
        }
        Payload::Batches {
            bytes,
            first_offset,
        } => {
            let whole = *first_offset..frame.next_offset.max(*first_offset);
            for batch in split_batches(bytes.clone()) {
                let Some(found) = batch.ok().and_then(|it| batch_runs(&it, max_unpacked)) else {
                    // The client gets what cannot be read as it is: all or nothing.
                    return vec![whole];
                };
                for run in found {
                    let run = run.start.max(whole.start)..run.end.min(whole.end);
                    add(&mut runs, run);
                }
            }
        }
    }
    runs
}

/// One run where each offset has a record; else its records are looked at. A batch of
/// control records is none.
fn batch_runs(batch: &Bytes, max_unpacked: usize) -> Option<Vec<Run>> {
    let header = BatchHeader::parse(batch).ok()?;
    let (base, next) = (header.base_offset.0, header.next_offset().0);
    if header.is_control() || header.is_placeholder() {
        return Some(Vec::new());
    }
    if i64::from(header.record_count) == next - base {
        return Some(std::iter::once(base..next).collect());
    }
    let records = decode_records(batch, max_unpacked).ok()?;
    let offsets = records.iter().map(|it| base + i64::from(it.offset_delta));
    Some(offsets.map(|it| it..it.saturating_add(1)).collect())
}

fn add(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        _ if run.is_empty() => {}
        Some(last) if last.end == run.start => last.end = run.end,
        Some(_) | None => runs.push(run),
    }
}

/// A batch is due with the last of its records.
fn latest_due(batch: &Bytes, rules: Rules) -> i64 {
    if rules.due_by.is_none() {
        return 0;
    }
    let records = decode_records(batch, rules.max_unpacked).unwrap_or_default();
    let dues = records.iter().map(|record| {
        let headers = record.headers.iter();
        due_ms(headers.map(|(name, value)| (&name[..], value.as_deref())))
    });
    dues.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use talweg_batch::{BatchBuilder, Encoders, compact, stamp_prefix};
    use talweg_proto::v1::{FetchedRecord, Header, PartitionPosition};
    use talweg_types::{
        Compression, LeaderEpoch, Offset, PartitionIndex, TimestampMs, TopicId, TopicPartition,
    };

    fn frame(dues: &[i64]) -> Frame {
        let records: Vec<FetchedRecord> = dues
            .iter()
            .enumerate()
            .map(|(at, due)| FetchedRecord {
                offset: 10 + 2 * at as i64,
                headers: vec![Header {
                    name: super::super::derived::DUE_HEADER.into(),
                    value: Some(due.to_string().into()),
                }],
                leader_epoch: 3,
                ..Default::default()
            })
            .collect();
        Frame {
            partition: TopicPartition {
                topic_id: TopicId::NIL,
                partition: PartitionIndex(0),
            },
            position: PartitionPosition::default(),
            next_offset: 10 + 2 * dues.len() as i64,
            payload_bytes: records.iter().map(fetched_record_bytes).sum(),
            records: records.len(),
            last_epoch: 3,
            payload: Payload::Records(records),
        }
    }

    #[test]
    fn what_is_not_due_waits_and_what_is_goes() {
        let rules = Rules {
            due_by: Some(100),
            ..Default::default()
        };
        let (sent, waits) = cut(frame(&[50, 100, 130, 60]), rules);
        let sent = sent.expect("two are due");
        assert_eq!((sent.records, sent.next_offset), (2, 13));
        let expected = NotDue {
            next: 14,
            wait_ms: 30,
        };
        assert_eq!(waits, Some(expected));
        let (sent, waits) = cut(frame(&[101]), rules);
        assert_eq!((sent, waits.map(|it| it.next)), (None, Some(10)));
        let whole = frame(&[1, 2]);
        let expected = (whole.records, whole.next_offset, whole.payload_bytes);
        let (sent, waits) = cut(whole, rules);
        let sent = sent.expect("all");
        assert_eq!(
            (sent.records, sent.next_offset, sent.payload_bytes),
            expected
        );
        assert_eq!(waits, None);
    }

    /// Offsets 40, 41 and 43: what compaction leaves of four records.
    fn compacted() -> Bytes {
        let mut builder = BatchBuilder::new(Compression::None);
        for _ in 0..4 {
            let pushed = builder.push(TimestampMs(1), None, Some(b"v"), []);
            pushed.expect("a record");
        }
        let batch = builder.build().expect("a batch");
        let header = BatchHeader::parse(&batch).expect("a header");
        let prefix = stamp_prefix(&header, Offset(40), LeaderEpoch(3));
        let batch = Bytes::from([&prefix[..], &batch[prefix.len()..]].concat());
        let header = BatchHeader::parse(&batch).expect("a header");
        let mut kept = decode_records(&batch, 1 << 20).expect("records");
        kept.remove(2);
        compact::with_records(&header, &kept, None, &mut Encoders::default()).expect("a batch")
    }

    #[test]
    fn holes_part_what_was_sent() {
        // 10, 12, 14.
        assert_eq!(runs(&frame(&[0, 0, 0]), 0), [10..11, 12..13, 14..15]);
        let mut batches = frame(&[]);
        batches.next_offset = 50;
        batches.payload = Payload::Batches {
            bytes: compacted(),
            first_offset: 41,
        };
        assert_eq!(runs(&batches, 1 << 20), [41..42, 43..44]);
        batches.payload = Payload::Batches {
            bytes: Bytes::from_static(b"what is this"),
            first_offset: 41,
        };
        let whole = std::slice::from_ref(&(41..50));
        assert_eq!(runs(&batches, 1 << 20), whole, "as a whole");
    }

    #[test]
    fn one_by_one_is_one() {
        let rules = Rules {
            one_by_one: true,
            ..Default::default()
        };
        let (sent, waits) = cut(frame(&[0, 0, 0]), rules);
        let sent = sent.expect("one");
        assert_eq!((sent.records, sent.next_offset, waits), (1, 11, None));
    }
}
