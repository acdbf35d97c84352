//! `partition`: the numbers of a partition that its segments do not hold.
//!
//! The flushed end is a lower bound: everything below it was on stable storage
//! before the file was written, and recovery reads data only from there.

use super::{
    Sidecar, SidecarError,
    wire::{Input, Output},
};
use talweg_types::{LeaderEpoch, Offset, PartitionIndex, TimestampMs, TopicId, TopicPartition};

/// Start of a leader epoch: the offset of its first batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpochStart {
    pub epoch: LeaderEpoch,
    pub start: Offset,
}

/// The body of `partition`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionFile {
    pub tp: TopicPartition,
    /// First readable offset; never goes back.
    pub log_start: Offset,
    /// First offset not known to be flushed.
    pub flushed_end: Offset,
    /// The segment in which the flushed end lies, and the byte position there.
    pub flushed_segment: Offset,
    pub flushed_position: u64,
    /// As the caller last set it; may be above the flushed end.
    pub high_watermark: Offset,
    /// Highest leader epoch that this replica has taken part in.
    pub highest_epoch: LeaderEpoch,
    /// Counts truncations: an index written before one is not believed after it.
    pub generation: u64,
    /// Of the segment of the flushed end, up to there: append times of its
    /// first and last batch and its largest record timestamp; -1 when empty.
    pub first_append: TimestampMs,
    pub last_append: TimestampMs,
    pub max_timestamp: TimestampMs,
    /// Epochs below the flushed end, in order.
    pub epochs: Vec<EpochStart>,
}

impl PartitionFile {
    /// Of a log without a record.
    pub fn new(tp: TopicPartition) -> Self {
        Self {
            tp,
            log_start: Offset::ZERO,
            flushed_end: Offset::ZERO,
            flushed_segment: Offset::ZERO,
            flushed_position: 0,
            high_watermark: Offset::ZERO,
            highest_epoch: LeaderEpoch::NONE,
            generation: 0,
            first_append: TimestampMs::NONE,
            last_append: TimestampMs::NONE,
            max_timestamp: TimestampMs::NONE,
            epochs: Vec::new(),
        }
    }

    fn check(&self) -> Result<(), SidecarError> {
        let offsets = [
            self.log_start,
            self.flushed_end,
            self.flushed_segment,
            self.high_watermark,
        ];
        if offsets.iter().any(|offset| offset.0 < 0) {
            return Err(SidecarError::Malformed("negative offset"));
        }
        if self.flushed_segment > self.flushed_end {
            return Err(SidecarError::Malformed(
                "flushed segment is above the flushed end",
            ));
        }
        let rising =
            |pair: &[EpochStart]| pair[0].epoch < pair[1].epoch && pair[0].start <= pair[1].start;
        if !self.epochs.windows(2).all(rising) {
            return Err(SidecarError::Malformed("epochs do not rise"));
        }
        Ok(())
    }
}

impl Sidecar for PartitionFile {
    const KIND: u8 = 3;
    const VERSION: u8 = 1;

    fn encode_body(&self, out: &mut Vec<u8>) {
        out.put(self.tp.topic_id.as_bytes());
        out.put_u32(self.tp.partition.0);
        out.put_i64(self.log_start.0);
        out.put_i64(self.flushed_end.0);
        out.put_i64(self.flushed_segment.0);
        out.put_u64(self.flushed_position);
        out.put_i64(self.high_watermark.0);
        out.put_i32(self.highest_epoch.0);
        out.put_u64(self.generation);
        out.put_i64(self.first_append.0);
        out.put_i64(self.last_append.0);
        out.put_i64(self.max_timestamp.0);
        out.put_count(self.epochs.len());
        for entry in &self.epochs {
            out.put_i32(entry.epoch.0);
            out.put_i64(entry.start.0);
        }
    }

    fn decode_body(_version: u8, body: &[u8]) -> Result<Self, SidecarError> {
        let mut input = Input(body);
        let topic_id =
            TopicId::from_slice(input.bytes(16)?).ok_or(SidecarError::Malformed("id"))?;
        let mut file = Self::new(TopicPartition {
            topic_id,
            partition: PartitionIndex(input.u32()?),
        });
        file.log_start = Offset(input.i64()?);
        file.flushed_end = Offset(input.i64()?);
        file.flushed_segment = Offset(input.i64()?);
        file.flushed_position = input.u64()?;
        file.high_watermark = Offset(input.i64()?);
        file.highest_epoch = LeaderEpoch(input.i32()?);
        file.generation = input.u64()?;
        file.first_append = TimestampMs(input.i64()?);
        file.last_append = TimestampMs(input.i64()?);
        file.max_timestamp = TimestampMs(input.i64()?);
        for _ in 0..input.count(12)? {
            file.epochs.push(EpochStart {
                epoch: LeaderEpoch(input.i32()?),
                start: Offset(input.i64()?),
            });
        }
        input.end()?;
        file.check()?;
        Ok(file)
    }
}
