//! Appending: judge each batch, give it offsets, stamp it, write all that was
//! accepted with one vectored write per segment, and only then show it.
//!
//! Sessions and keys are changed as batches are accepted, so that later batches
//! of the same call are judged against earlier ones; when the write fails they
//! are taken back and every batch of that write is refused: nothing happened.

use crate::{
    active::{ActiveSegment, Written},
    error::{AppendError, is_full},
    fault::{Fault, planted},
    fence::{Claim, Unfence},
    idempotency::{KeyVerdict, Remembered},
    names,
    partition::PartitionLog,
    segment::{SegmentView, Times},
    sessions::{Session, Verdict},
    tail::Piece,
};
use bytes::{Bytes, BytesMut};
use std::{
    io::{self, IoSlice},
    sync::Arc,
};
use talweg_batch::{BatchHeader, CheckedBatch, STAMP_BYTES, stamp_prefix};
use talweg_types::{LeaderEpoch, Offset, ProducerId, TimestampMs};

/// Where a batch is in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Appended {
    /// -1 when a repeat's offset is no longer remembered.
    pub base_offset: Offset,
    /// Inclusive. For a repeat without known offset: one below the oldest
    /// batch that is remembered, so that waiting for it waits long enough.
    pub last_offset: Offset,
    pub append_time: TimestampMs,
    /// Nothing was appended: the batch, or all its keyed records, had been before.
    pub duplicate: bool,
    pub offset_known: bool,
    /// For a repeat recognised by idempotency keys: the offset of each keyed
    /// record, in the batch's order.
    pub key_offsets: Vec<Offset>,
}

/// Batches accepted and not yet written, all for the active segment.
pub(crate) struct Group {
    pub staged: Vec<Staged>,
    pub undo: Vec<(ProducerId, Option<Session>)>,
    pub unfence: Option<Unfence>,
    start: Offset,
    pub next: Offset,
    pub bytes: u64,
}

pub(crate) struct Staged {
    pub prefix: [u8; STAMP_BYTES],
    pub bytes: Bytes,
    pub header: BatchHeader,
}

impl Group {
    pub(crate) fn at(start: Offset) -> Self {
        Self {
            staged: Vec::new(),
            undo: Vec::new(),
            unfence: None,
            start,
            next: start,
            bytes: 0,
        }
    }
}

impl Group {
    /// The stamped batches in one piece, for tailing readers.
    fn piece(&self, active: &ActiveSegment) -> Piece {
        let size = self.staged.iter().map(|staged| staged.bytes.len()).sum();
        let mut batches = BytesMut::with_capacity(size);
        for staged in &self.staged {
            batches.extend_from_slice(&staged.prefix);
            batches.extend_from_slice(&staged.bytes[STAMP_BYTES..]);
        }
        Piece {
            view: Arc::clone(&active.view),
            position: active.size,
            base: self.start,
            end: self.next,
            batches: batches.freeze(),
        }
    }
}

impl PartitionLog {
    /// Appends what is new; one result per batch, in order. After the first
    /// batch that could not be written for want of space or health, the rest is
    /// refused with the same error.
    pub fn append(
        &mut self,
        batches: &[CheckedBatch],
        now: TimestampMs,
    ) -> Vec<Result<Appended, AppendError>> {
        self.append_as(batches, Claim::Nobody, now)
    }

    pub(crate) fn append_as(
        &mut self,
        batches: &[CheckedBatch],
        claim: Claim,
        now: TimestampMs,
    ) -> Vec<Result<Appended, AppendError>> {
        if let Some(error) = self.refusal() {
            return batches.iter().map(|_| Err(error.clone())).collect();
        }
        let mut results: Vec<Result<Appended, AppendError>> = Vec::with_capacity(batches.len());
        let mut group = Group::at(self.bounds().log_end);
        // Results from here on depend on the group's write.
        let mut group_from = 0;
        for batch in batches {
            match self.judge(batch, claim, now) {
                Ok(Some(repeat)) => results.push(Ok(repeat)),
                Err(error) => results.push(Err(error)),
                Ok(None) => {
                    if self.must_roll(group.bytes, batch.bytes.len() as u64, now) {
                        if let Err(error) = self.write(&mut group, now) {
                            return refuse_from(results, group_from, batches.len(), &error);
                        }
                        group_from = results.len();
                        self.roll(now);
                    }
                    results.push(Ok(self.stage(batch, now, &mut group)));
                }
            }
        }
        if let Err(error) = self.write(&mut group, now) {
            return refuse_from(results, group_from, batches.len(), &error);
        }
        results
    }

    /// Why nothing can be appended now, whatever it is.
    fn refusal(&self) -> Option<AppendError> {
        let no_epoch = self.epoch == LeaderEpoch::NONE;
        self.cannot_write()
            .or_else(|| no_epoch.then_some(AppendError::Invalid("no leader epoch was begun")))
    }

    /// Why nothing can be written now, by a leader or a follower.
    pub(crate) fn cannot_write(&self) -> Option<AppendError> {
        if self.deleted {
            return Some(AppendError::Deleted);
        }
        if let Some(why) = self.folder.failed() {
            return Some(AppendError::FolderFailed(why));
        }
        self.folder.is_full().then_some(AppendError::DiskFull)
    }

    /// `None`: append it. `Some`: it is a repeat.
    fn judge(
        &self,
        batch: &CheckedBatch,
        claim: Claim,
        now: TimestampMs,
    ) -> Result<Option<Appended>, AppendError> {
        self.check_claim(claim)?;
        let total = batch.bytes.len();
        if total != batch.header.total_bytes() || batch.header.last_offset_delta < 0 {
            return Err(AppendError::Invalid("header does not fit the batch"));
        }
        if total > self.config.segment_bytes as usize {
            return Err(AppendError::LargerThanSegment {
                bytes: total,
                segment_bytes: self.config.segment_bytes,
            });
        }
        match self
            .sessions
            .check(&batch.header, now, self.config.producer_id_expiration_ms)?
        {
            Verdict::Accept => {}
            Verdict::Repeat(known) => {
                return Ok(Some(repeat(
                    known.base_offset,
                    known.last_offset,
                    known.append_time,
                )));
            }
            Verdict::OldRepeat { below } => {
                let last = Offset(below.0 - 1);
                return Ok(Some(Appended {
                    offset_known: false,
                    ..repeat(Offset(-1), last, now)
                }));
            }
        }
        match self
            .keys
            .check(batch, now, self.config.idempotency_window_ms)?
        {
            KeyVerdict::Accept => Ok(None),
            KeyVerdict::Repeat(known) => Ok(Some(repeat_of_keys(&known, now))),
        }
    }

    pub(crate) fn must_roll(&self, staged_bytes: u64, batch_bytes: u64, now: TimestampMs) -> bool {
        let size = self.active.as_ref().map_or(0, |active| active.size) + staged_bytes;
        let full = size > 0 && size + batch_bytes > u64::from(self.config.segment_bytes);
        full || (staged_bytes == 0 && self.is_old(now))
    }

    /// Gives the batch its offsets and lets sessions and keys know it.
    fn stage(&mut self, batch: &CheckedBatch, now: TimestampMs, group: &mut Group) -> Appended {
        let mut header = batch.header;
        header.base_offset = group.next;
        header.leader_epoch = self.epoch;
        if header.has_producer() {
            group
                .undo
                .push((header.producer_id, self.sessions.get(header.producer_id)));
            self.sessions.apply(&header, now);
        }
        self.stage_fence(&header, &batch.bytes, group);
        let keys = batch
            .idempotency_keys
            .iter()
            .map(|(delta, key)| (*delta, &key[..]));
        self.keys.apply(&header, keys, now);
        group.staged.push(Staged {
            prefix: stamp_prefix(&header, header.base_offset, self.epoch),
            bytes: batch.bytes.clone(),
            header,
        });
        group.next = header.next_offset();
        group.bytes += batch.bytes.len() as u64;
        Appended {
            base_offset: header.base_offset,
            last_offset: header.last_offset(),
            append_time: now,
            duplicate: false,
            offset_known: true,
            key_offsets: Vec::new(),
        }
    }

    /// Writes the group and begins the next one, or takes everything back.
    pub(crate) fn write(&mut self, group: &mut Group, now: TimestampMs) -> Result<(), AppendError> {
        if group.staged.is_empty() {
            return Ok(());
        }
        let done = std::mem::replace(group, Group::at(group.next));
        match self.write_bytes(&done) {
            Ok(()) => {
                self.publish(&done, now);
                Ok(())
            }
            Err(error) => {
                self.keys.take_back(done.start);
                self.take_back(done);
                Err(self.write_failed(&error))
            }
        }
    }

    fn write_bytes(&mut self, group: &Group) -> io::Result<()> {
        if self.active.is_none() {
            self.active = Some(self.create_segment(group.start)?);
        }
        let mut slices = Vec::with_capacity(group.staged.len() * 2);
        for staged in &group.staged {
            slices.push(IoSlice::new(&staged.prefix));
            slices.push(IoSlice::new(&staged.bytes[STAMP_BYTES..]));
        }
        match &mut self.active {
            Some(active) => active.write(&self.folder, &slices),
            None => Ok(()),
        }
    }

    /// A new, empty segment; makes the partition's folder when it is the first.
    fn create_segment(&mut self, base: Offset) -> io::Result<ActiveSegment> {
        if !self.disk.folder_exists {
            self.folder.fs.create_dir_all(&self.shared.dir)?;
            // Of a log that the machine has lost.
            match self
                .folder
                .fs
                .remove_file(&self.shared.dir.join(names::SUSPECT))
            {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => self.disk.folder_exists = true,
            }
        }
        let view = Arc::new(SegmentView::open_ended(
            &self.shared.dir,
            base,
            base,
            0,
            Times::NONE,
        ));
        let active = ActiveSegment::create(&self.folder, Arc::clone(&view))?;
        self.disk.entries_dirty = true;
        self.shared.push_segment(view);
        Ok(active)
    }

    /// The write has returned: index, epochs, and last the bounds.
    fn publish(&mut self, group: &Group, now: TimestampMs) {
        let Some(active) = &mut self.active else {
            return;
        };
        let mut position = active.size;
        let mut max_timestamp = TimestampMs(i64::MIN);
        let interval = u64::from(self.config.index_interval_bytes);
        if self.shared.tail.is_wanted() {
            self.shared.tail.push(&self.folder, group.piece(active));
        }
        for staged in &group.staged {
            if let Some(entry) = active
                .index
                .observe(&staged.header, position, now, interval)
            {
                self.shared.index.push(entry);
            }
            position += staged.bytes.len() as u64;
            max_timestamp = max_timestamp.max(staged.header.max_timestamp);
        }
        for Staged { header, .. } in &group.staged {
            if header.leader_epoch > self.shared.last_epoch() {
                let mut epochs = self.shared.epochs.write();
                epochs.observe(header.leader_epoch, header.base_offset);
            }
        }
        active.publish(&Written {
            bytes: group.bytes,
            end: group.next,
            append_time: now,
            max_timestamp,
        });
        self.shared.recent.note(group.start, now);
        self.disk.appended_bytes += group.bytes;
        self.shared.set_log_end(group.next);
        if planted(Fault::FlushAcknowledgedEarly) {
            self.shared.set_flushed_end(group.next);
        }
    }

    /// No room is cut back and passes; anything else fails the folder. What could not
    /// be cut back is not "not done".
    fn write_failed(&mut self, error: &io::Error) -> AppendError {
        let cut = match &mut self.active {
            Some(active) => active.cut_back(&self.folder),
            None => Ok(()),
        };
        match cut {
            Ok(()) if is_full(error) => {
                self.folder.set_full();
                self.drop_empty_segment();
                return AppendError::DiskFull;
            }
            Ok(()) => self.folder.fail(&format!("write to {}: {error}", self.tp)),
            Err(cut) => {
                let why = format!("write to {}: {error}; cutting it back: {cut}", self.tp);
                self.folder.fail(&why);
                // Recovery keeps whole batches, whoever was told what about them.
                return AppendError::WriteUnknown(why);
            }
        }
        AppendError::FolderFailed(self.folder.failed().unwrap_or_default())
    }

    /// A segment whose first write failed is not part of the log.
    fn drop_empty_segment(&mut self) {
        if self.active.as_ref().is_some_and(|active| active.size == 0)
            && let Some(active) = self.active.take()
        {
            active.view.release(&self.folder);
            self.shared.pop_segment(active.view.base);
            // Left-over bytes would be cut by the next creation anyway.
            let _ = self.folder.fs.remove_file(&active.view.path);
        }
    }
}

fn repeat(base_offset: Offset, last_offset: Offset, append_time: TimestampMs) -> Appended {
    Appended {
        base_offset,
        last_offset,
        append_time,
        duplicate: true,
        offset_known: true,
        key_offsets: Vec::new(),
    }
}

fn repeat_of_keys(known: &[Remembered], now: TimestampMs) -> Appended {
    let offsets: Vec<Offset> = known.iter().map(|remembered| remembered.offset).collect();
    let base = offsets.iter().min().copied().unwrap_or_default();
    let last = offsets.iter().max().copied().unwrap_or_default();
    let time = known
        .first()
        .map_or(now, |remembered| remembered.append_time);
    Appended {
        key_offsets: offsets,
        ..repeat(base, last, time)
    }
}

/// Results from `from` on, and those not yet given, become the error; refusals
/// that stand by themselves stay.
fn refuse_from(
    mut results: Vec<Result<Appended, AppendError>>,
    from: usize,
    count: usize,
    error: &AppendError,
) -> Vec<Result<Appended, AppendError>> {
    for result in results
        .iter_mut()
        .skip(from)
        .filter(|result| result.is_ok())
    {
        *result = Err(error.clone());
    }
    results.resize(count, Err(error.clone()));
    results
}
