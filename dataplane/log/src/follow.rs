//! A replica that follows: batches go in as the leader's log has them, with
//! their offsets and epochs; the log start is the leader's; nothing is stamped,
//! judged or retained here. State that follows from the log (sessions, keys,
//! epochs) changes as it does at the leader.

use crate::{
    append::{Group, Staged},
    error::{AppendError, LogError},
    fault::{Fault, planted},
    flush::write_record,
    idempotency::keys_of,
    names,
    partition::PartitionLog,
    sidecar::{
        self, Sidecar,
        partition::PartitionFile,
        sessions::{SegmentState, SessionsFile},
    },
};
use bytes::Bytes;
use std::sync::atomic::Ordering;
use talweg_batch::{
    BatchError, BatchHeader, HEADER_BYTES, STAMP_BYTES, decode_records, split_batches, verify_crc,
};
use talweg_types::{
    Compression, LeaderEpoch, Offset, TimestampMs,
    limits::{IDEMPOTENCY_HEADER, UNPACKED_BATCH_BYTES_MAX},
};
use thiserror::Error;

/// A batch from a leader's log whose header and checksum fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaBatch {
    header: BatchHeader,
    bytes: Bytes,
    /// Offset delta and key of records with an idempotency key.
    keys: Vec<(i32, Bytes)>,
}

impl ReplicaBatch {
    /// Takes whole batches apart and checks each header and checksum. The
    /// content was checked by the leader when it came from a client.
    ///
    /// # Errors
    /// The first batch that does not fit.
    pub fn check_all(batches: Bytes) -> Result<Vec<Self>, BatchError> {
        split_batches(batches)
            .map(|batch| Self::check(batch?))
            .collect()
    }

    fn check(bytes: Bytes) -> Result<Self, BatchError> {
        let header = BatchHeader::parse(&bytes)?;
        verify_crc(&bytes)?;
        let keys = keys(&header, &bytes);
        Ok(Self {
            header,
            bytes,
            keys,
        })
    }

    /// Offset of the first record.
    pub fn base_offset(&self) -> Offset {
        self.header.base_offset
    }

    /// One past the last offset.
    pub fn next_offset(&self) -> Offset {
        self.header.next_offset()
    }

    /// The leader epoch that it was appended in.
    pub fn epoch(&self) -> LeaderEpoch {
        self.header.leader_epoch
    }

    /// Encoded bytes.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }
}

/// Unpacks only what may have a key: most batches have none.
fn keys(header: &BatchHeader, bytes: &Bytes) -> Vec<(i32, Bytes)> {
    let plain = header.compression() == Ok(Compression::None);
    let named = || memchr::memmem::find(&bytes[HEADER_BYTES..], IDEMPOTENCY_HEADER.as_bytes());
    if header.is_control() || (plain && named().is_none()) {
        return Vec::new();
    }
    match decode_records(bytes, UNPACKED_BATCH_BYTES_MAX as usize) {
        Ok(records) => keys_of(&records)
            .map(|(delta, key)| (delta, Bytes::copy_from_slice(key)))
            .collect(),
        // The leader has unpacked it once; keys of it are not recognised here.
        Err(error) => {
            tracing::warn!(offset = %header.base_offset, %error, "replicated batch not decoded");
            Vec::new()
        }
    }
}

impl ReplicaBatch {
    /// Batches that were appended together, in order, and when: for
    /// [`PartitionLog::append_replica`]. `append_times` as a read for a copy names them,
    /// in offset order; None: not known.
    pub fn runs<'a>(
        batches: &'a [Self],
        append_times: &'a [(Offset, TimestampMs)],
    ) -> impl Iterator<Item = (Option<TimestampMs>, &'a [Self])> {
        let time_of = |batch: &Self| {
            let after = append_times.partition_point(|mark| mark.0 <= batch.base_offset());
            let mark = append_times.get(after.saturating_sub(1))?;
            Some(mark.1)
        };
        batches
            .chunk_by(move |one, next| time_of(one) == time_of(next))
            .map(move |run| (run.first().and_then(time_of), run))
    }
}

/// Why replicated batches were not appended. Nothing of the write is in the log.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ReplicaError {
    #[error("a batch at offset {found} came where {expected} was expected")]
    NotNext { expected: Offset, found: Offset },
    #[error("a batch of epoch {found} came after one of {last}")]
    EpochFalls {
        last: LeaderEpoch,
        found: LeaderEpoch,
    },
    #[error("a batch of epoch {found} came from the leader of {following}")]
    EpochAhead {
        following: LeaderEpoch,
        found: LeaderEpoch,
    },
    #[error(transparent)]
    Append(#[from] AppendError),
}

impl PartitionLog {
    /// From now on this replica follows the leader of `epoch`: nothing is stamped
    /// or retained here. An epoch below one that was led or followed is refused.
    pub fn follow(&mut self, epoch: LeaderEpoch) -> Result<(), LogError> {
        self.check_alive()?;
        if epoch < self.highest_epoch && !planted(Fault::EpochNotChecked) {
            return Err(LogError::StaleEpoch {
                asked: epoch,
                current: self.highest_epoch,
            });
        }
        self.epoch = LeaderEpoch::NONE;
        self.highest_epoch = epoch;
        self.follows = true;
        Ok(())
    }

    /// Appends what follows the log end, with the offsets and epochs that it has.
    /// `append_time` is the leader's. On success all of it is written; returns
    /// the log end.
    pub fn append_replica(
        &mut self,
        batches: &[ReplicaBatch],
        append_time: TimestampMs,
    ) -> Result<Offset, ReplicaError> {
        if let Some(error) = self.cannot_write() {
            return Err(error.into());
        }
        self.check_continuity(batches)?;
        let mut group = Group::at(self.bounds().log_end);
        for batch in batches {
            if self.must_roll(group.bytes, batch.bytes.len() as u64, append_time) {
                self.write(&mut group, append_time)?;
                self.roll(append_time);
            }
            self.stage_replica(batch, append_time, &mut group);
        }
        self.write(&mut group, append_time)?;
        Ok(self.bounds().log_end)
    }

    fn check_continuity(&self, batches: &[ReplicaBatch]) -> Result<(), ReplicaError> {
        let mut expected = self.bounds().log_end;
        let mut last = self.shared.last_epoch();
        for ReplicaBatch { header, .. } in batches {
            let (found, epoch) = (header.base_offset, header.leader_epoch);
            if found != expected || header.next_offset() <= found {
                return Err(ReplicaError::NotNext { expected, found });
            }
            if epoch < last && !planted(Fault::EpochNotChecked) {
                return Err(ReplicaError::EpochFalls { last, found: epoch });
            }
            if epoch > self.highest_epoch && !planted(Fault::EpochNotChecked) {
                let following = self.highest_epoch;
                return Err(ReplicaError::EpochAhead {
                    following,
                    found: epoch,
                });
            }
            (expected, last) = (header.next_offset(), epoch);
        }
        Ok(())
    }

    fn stage_replica(&mut self, batch: &ReplicaBatch, append_time: TimestampMs, group: &mut Group) {
        let header = batch.header;
        if header.has_producer() && !header.is_control() {
            group
                .undo
                .push((header.producer_id, self.sessions.get(header.producer_id)));
            self.sessions.apply(&header, append_time);
        }
        self.stage_fence(&header, &batch.bytes, group);
        let keys = batch.keys.iter().map(|(delta, key)| (*delta, &key[..]));
        self.keys.apply(&header, keys, append_time);
        let mut prefix = [0; STAMP_BYTES];
        prefix.copy_from_slice(&batch.bytes[..STAMP_BYTES]);
        group.staged.push(Staged {
            prefix,
            bytes: batch.bytes.clone(),
            header,
        });
        group.next = header.next_offset();
        group.bytes += batch.bytes.len() as u64;
    }

    /// Gives up a watermark that this log does not reach any more, in an epoch
    /// that began with less than was promised.
    pub fn lower_high_watermark(&mut self, to: Offset) {
        self.shared.lower_high_watermark(to);
    }

    /// The leader's log start, as far as this replica knows it committed. Durable,
    /// and seen by readers, after the next flush.
    pub fn follow_log_start(&mut self, offset: Offset) {
        let bounds = self.bounds();
        let offset = offset.min(bounds.high_watermark);
        if offset > bounds.log_start && offset > self.disk.wanted_start {
            self.disk.wanted_start = offset;
            self.disk.record_due = true;
        }
    }

    /// Drops the whole log and begins anew at `start`, which lies at or above the
    /// high watermark unless `below_watermark` is allowed, with the producer state that a leader had there (a `sessions`
    /// file). Crash-safe: until the new `partition` file is durable, a restart
    /// finds an empty log or the old one.
    pub fn restart_at(
        &mut self,
        start: Offset,
        sessions: &[u8],
        below_watermark: bool,
    ) -> Result<(), LogError> {
        self.check_alive()?;
        let bounds = self.bounds();
        if start < bounds.high_watermark && !below_watermark {
            return Err(LogError::OutOfRange {
                offset: start,
                bounds,
            });
        }
        if self.flush_in_flight {
            return Err(LogError::FlushInFlight);
        }
        if self.rewrite.is_some() {
            return Err(LogError::RewriteInFlight);
        }
        let sessions = self.sessions_from(start, sessions);
        self.forget_files();
        self.replace_folder(start, sessions).inspect_err(|error| {
            self.folder
                .fail(&format!("beginning {} anew: {error}", self.tp));
        })?;
        self.shared.lower_bounds(start);
        self.reopen(0).map(drop)
    }

    /// What a leader sent, at that offset; empty if it had none or it is unreadable.
    fn sessions_from(&self, start: Offset, bytes: &[u8]) -> SessionsFile {
        let sent = match bytes.is_empty() {
            true => None,
            false => SessionsFile::decode(bytes)
                .inspect_err(|error| {
                    tracing::warn!(partition = %self.tp, %error, "the leader's sessions are not readable; repeats of older batches are not recognised");
                })
                .ok(),
        };
        let (sessions, keys, fence) = sent.map_or_else(Default::default, |file| {
            (file.sessions, file.keys, file.fence)
        });
        SessionsFile {
            offset: start,
            segment: SegmentState::empty(start),
            sessions,
            keys,
            fence,
        }
    }

    /// Readers keep what they have open; nobody finds it any more.
    pub(crate) fn forget_files(&mut self) {
        self.shared.tail.clear(&self.folder);
        let views = self.shared.segments();
        views.iter().for_each(|view| view.release(&self.folder));
        self.condemned
            .drain(..)
            .for_each(|condemned| condemned.view.release(&self.folder));
        self.active = None;
        self.closing.clear();
        self.disk.removals.clear();
        self.shared.set_segments(Vec::new());
    }

    fn replace_folder(&mut self, start: Offset, sessions: SessionsFile) -> Result<(), LogError> {
        let fs = &*self.folder.fs;
        let io = |error| LogError::io(format!("beginning {} anew", self.tp), error);
        if let Err(error) = self.folder.index.write(vec![self.shared.index.drop_op()]) {
            // Of a generation that is over: not believed after this.
            tracing::warn!(partition = %self.tp, %error, "index entries of a dropped log stay");
        }
        if self.disk.folder_exists {
            let gone = self
                .folder
                .root
                .join(format!("{}{}", self.tp, names::DELETED));
            fs.remove_dir_all(&gone).map_err(io)?;
            fs.rename(&self.shared.dir, &gone).map_err(io)?;
            fs.flush_dir(&self.folder.root).map_err(io)?;
            fs.remove_dir_all(&gone).map_err(io)?;
        }
        fs.create_dir_all(&self.shared.dir).map_err(io)?;
        fs.flush_dir(&self.folder.root).map_err(io)?;
        self.disk.folder_exists = true;
        sidecar::replace(fs, &self.snapshot_path(start), &sessions).map_err(io)?;
        let generation = self.shared.generation.load(Ordering::Acquire) + 1;
        let record = PartitionFile {
            log_start: start,
            flushed_end: start,
            flushed_segment: start,
            high_watermark: start,
            highest_epoch: self.highest_epoch,
            generation,
            ..PartitionFile::new(self.tp)
        };
        *self.disk.recorded.lock() = None;
        self.disk.wanted_start = start;
        write_record(&self.shared, &self.disk.recorded, &record).map_err(io)?;
        self.shared.generation.store(generation, Ordering::Release);
        Ok(())
    }
}
