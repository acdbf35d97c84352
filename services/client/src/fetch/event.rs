//! What is asked for and what comes.

use bytes::Bytes;
use std::sync::Arc;
use talweg_kit::errors::Refusal;
use talweg_proto::v1::{self, fetch_partition::Start};
use talweg_types::TopicPartition;

/// Where to begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartAt {
    /// Inclusive; must lie in [log start, high watermark].
    Offset(i64),
    /// The first record at or after this, milliseconds since 1970.
    TimestampMs(i64),
    /// The log start.
    Earliest,
    /// The high watermark.
    Latest,
}

impl StartAt {
    /// As it travels.
    pub fn to_proto(self) -> Start {
        match self {
            Self::Offset(offset) => Start::Offset(offset),
            Self::TimestampMs(ms) => Start::TimestampMs(ms),
            Self::Earliest => Start::Earliest(true),
            Self::Latest => Start::Latest(true),
        }
    }
}

/// A partition to read.
#[derive(Clone, Debug)]
pub struct Interest {
    pub partition: TopicPartition,
    /// For error messages and frames.
    pub topic: Arc<str>,
    pub start: StartAt,
    /// The leader epoch that the reader believes in; checked at the first leader only.
    pub leader_epoch: Option<i32>,
    /// Epoch of the last batch that the reader holds.
    pub last_epoch: Option<i32>,
    /// The topic's `max.message.bytes`.
    pub largest_batch: u32,
}

/// Something about one partition.
#[derive(Clone, Debug)]
pub enum FetchEvent {
    /// Reading begins (again, after a seek) here.
    Started(v1::PartitionPosition),
    /// Position or bounds moved without data.
    Position(v1::PartitionPosition),
    Data(FetchData),
    /// The partition stopped; it is forgotten here.
    Stopped {
        partition: TopicPartition,
        refusal: Refusal,
    },
}

/// Payload of one frame.
#[derive(Clone, Debug)]
pub struct FetchData {
    pub partition: TopicPartition,
    /// Where the reader stands after it.
    pub position: v1::PartitionPosition,
    pub data: Data,
    /// As counted against credit.
    pub payload_bytes: i64,
    /// As counted against credit: for batches, what their headers state.
    pub records: i64,
    /// Leader epoch of the last batch; `None` without any.
    pub last_epoch: Option<i32>,
}

impl FetchData {
    pub(super) fn new(
        partition: TopicPartition,
        position: v1::PartitionPosition,
        data: Data,
    ) -> Self {
        let (mut records, mut last_epoch) = (0, None);
        let payload = match &data {
            Data::Batches { bytes, .. } => {
                for header in batch_headers(bytes) {
                    records += i64::from(header.records);
                    last_epoch = Some(header.epoch);
                }
                bytes.len()
            }
            Data::Records(thin) => {
                records = thin.len() as i64;
                last_epoch = thin.last().map(|it| it.leader_epoch);
                thin.iter().map(crate::payload::fetched_record_bytes).sum()
            }
        };
        let payload_bytes = i64::try_from(payload).unwrap_or(i64::MAX);
        Self {
            partition,
            position,
            data,
            payload_bytes,
            records,
            last_epoch,
        }
    }

    /// The offset that was due.
    pub(super) fn first_offset(&self) -> Option<i64> {
        match &self.data {
            Data::Batches { first_offset, .. } => Some(*first_offset),
            Data::Records(records) => records.first().map(|it| it.offset),
        }
    }
}

/// In the form that was asked for.
#[derive(Clone, Debug)]
pub enum Data {
    /// Whole batches back to back. The first may begin before `first_offset`,
    /// which was due.
    Batches {
        first_offset: i64,
        bytes: Bytes,
    },
    Records(Vec<v1::FetchedRecord>),
}

struct BriefHeader {
    epoch: i32,
    records: i32,
}

/// Hops over whole batches, reading two fields of each; ends at anything odd.
fn batch_headers(bytes: &[u8]) -> impl Iterator<Item = BriefHeader> + '_ {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let int = |at: usize| {
            let field = rest.get(at..at + 4)?;
            Some(i32::from_be_bytes(field.try_into().ok()?))
        };
        let length = usize::try_from(int(8)?).ok()?.checked_add(12)?;
        let header = BriefHeader {
            epoch: int(12)?,
            records: int(57)?,
        };
        rest = rest.get(length..)?;
        Some(header)
    })
}
