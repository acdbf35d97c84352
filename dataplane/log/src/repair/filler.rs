//! One segment as it is written anew: its own good batches, and what is missing between
//! them from another replica, which is believed only where it fits.

use super::{RepairPart, RepairReport, RepairSource, RepairWish, run::Stop};
use crate::{
    reader::LogReader,
    rewrite::{Rewrite, RewriteError, output::Output},
    segment::{SegmentView, Times},
    sidecar::seal::Cleaned,
};
use bytes::Bytes;
use talweg_batch::{BatchHeader, compact, verify_crc};
use talweg_types::{LeaderEpoch, Offset, TimestampMs};

/// What becomes of the segment's own good batches.
pub(super) enum Own<'a> {
    Kept,
    /// All comes from the other replica, as of one revision of it over all segments.
    Replaced(&'a mut Option<u64>),
}

/// The segment as it is written anew.
pub(super) struct Filler<'a> {
    pub(super) rewrite: &'a Rewrite,
    pub(super) view: &'a SegmentView,
    pub(super) source: RepairSource<'a>,
    pub(super) output: &'a mut Output,
    pub(super) times: Times,
    /// What comes next into the output.
    pub(super) next: Offset,
    pub(super) epoch: LeaderEpoch,
    pub(super) highest_epoch: LeaderEpoch,
    pub(super) log_start: Offset,
    /// How far this log may be compacted at most, and how far it is without a break.
    pub(super) cleaned_end: Option<Offset>,
    pub(super) own_cleaned: Option<Offset>,
    pub(super) own: Own<'a>,
    /// What the first part said of compaction.
    pub(super) part: Option<(Option<Offset>, u64)>,
    pub(super) learned: Vec<(LeaderEpoch, Offset)>,
    pub(super) report: RepairReport,
}

pub(super) type Going<'a> = &'a dyn Fn() -> Result<(), RewriteError>;

impl Filler<'_> {
    pub(super) fn keeps_own(&self) -> bool {
        matches!(self.own, Own::Kept)
    }

    /// A batch of the old file.
    pub(super) fn own(&mut self, header: &BatchHeader, batch: &Bytes) -> Result<(), Stop> {
        if header.leader_epoch < self.epoch {
            let reason = format!(
                "its epoch {} is above {} of what follows here",
                self.epoch, header.leader_epoch
            );
            return Err(self.refuse(reason).into());
        }
        Ok(self.put(header, batch)?)
    }

    /// Everything from `next` up to `end` from the other replica.
    pub(super) fn fill(&mut self, end: Offset, going: Going<'_>) -> Result<(), Stop> {
        if self.keeps_own() && self.next < end && end <= self.log_start {
            // Deleted for readers: only its place is kept.
            let known = self.rewrite.shared.epoch_at(self.next);
            let epoch = self.epoch.max(known.unwrap_or(LeaderEpoch(0)));
            self.place(end, epoch)?;
        }
        while self.next < end {
            going()?;
            let wish = RepairWish {
                from: self.next,
                end,
                cleaned_end: self.cleaned_end,
            };
            let part = (self.source)(wish).map_err(|reason| self.refuse(reason))?;
            self.check_cleaning(&part)?;
            let (mut rest, before) = (part.batches, self.next);
            while self.next < end && !rest.is_empty() {
                let header = BatchHeader::parse(&rest).map_err(|error| self.refuse(error))?;
                if header.total_bytes() > rest.len() {
                    return Err(self.refuse("a batch was cut short").into());
                }
                let batch = rest.split_to(header.total_bytes());
                self.take(&header, &batch, end)?;
            }
            if self.next == before {
                return Err(self.refuse("nothing came").into());
            }
        }
        Ok(())
    }

    /// All parts are of one revision; and where the other replica has compacted what
    /// this one has not, the whole head is.
    fn check_cleaning(&mut self, part: &RepairPart) -> Result<(), Stop> {
        let told = (part.cleaned_end, part.revision);
        let same = match &mut self.own {
            Own::Kept => *self.part.get_or_insert(told) == told,
            Own::Replaced(revision) => {
                *revision.get_or_insert(part.revision) == part.revision
                    && *self.part.get_or_insert(told) == told
            }
        };
        if !same {
            return Err(self.refuse("it was compacted meanwhile").into());
        }
        let further = part.cleaned_end > self.own_cleaned
            && part.cleaned_end.is_some_and(|end| self.next < end);
        match self.keeps_own() && further {
            true => Err(Stop::Head),
            false => Ok(()),
        }
    }

    /// A batch of the other replica, for offsets below `end`.
    fn take(
        &mut self,
        header: &BatchHeader,
        batch: &Bytes,
        end: Offset,
    ) -> Result<(), RewriteError> {
        verify_crc(batch).map_err(|error| self.refuse(error))?;
        let first = header.base_offset;
        self.check_epoch(header)?;
        if self.next < first && first <= self.log_start.min(end) {
            // Deleted for readers here, and no longer there.
            let epoch = self.epoch.max(LeaderEpoch(0)).min(header.leader_epoch);
            self.place(first, epoch)?;
        }
        if self.next == end {
            return Ok(());
        }
        if header.is_placeholder() && first <= self.next && header.next_offset() > self.next {
            // Compaction may have joined several, beyond what is missing here.
            self.learn(header.leader_epoch);
            return self.place(end.min(header.next_offset()), header.leader_epoch);
        }
        if first != self.next || header.next_offset() > end {
            let reason = format!(
                "a batch of offsets {first}..{} where {}..{end} is missing",
                header.next_offset(),
                self.next
            );
            return Err(self.refuse(reason));
        }
        self.learn(header.leader_epoch);
        let offsets = header.next_offset().0 - first.0;
        self.report.restored_offsets += u64::try_from(offsets).unwrap_or(0);
        self.report.restored_bytes += batch.len() as u64;
        self.put(header, batch)
    }

    /// Epochs do not fall along a log, and none that this one has not seen is in it: a
    /// replica that was elected beyond it has another history.
    fn check_epoch(&self, header: &BatchHeader) -> Result<(), RewriteError> {
        let (epoch, first) = (header.leader_epoch, header.base_offset);
        let fits = self
            .rewrite
            .shared
            .epochs
            .read()
            .fits(epoch, first.max(self.next));
        if fits
            && epoch >= self.epoch
            && epoch <= self.highest_epoch
            && header.next_offset() > first
        {
            return Ok(());
        }
        let reason = format!("a batch of epoch {epoch} at {first} after {}", self.epoch);
        Err(self.refuse(reason))
    }

    fn learn(&mut self, epoch: LeaderEpoch) {
        if epoch != self.epoch {
            self.learned.push((epoch, self.next));
        }
    }

    /// Offsets up to `end` that hold no record.
    fn place(&mut self, end: Offset, epoch: LeaderEpoch) -> Result<(), RewriteError> {
        let place = compact::placeholder(self.next, end, epoch);
        let place = place.map_err(|error| self.refuse(error))?;
        let header = BatchHeader::parse(&place).map_err(|error| self.refuse(error))?;
        self.put(&header, &place)
    }

    fn put(&mut self, header: &BatchHeader, batch: &Bytes) -> Result<(), RewriteError> {
        self.output
            .batch(batch, self.times)
            .map_err(|error| self.rewrite.io("repairing", self.view, error))?;
        self.next = header.next_offset();
        self.epoch = header.leader_epoch;
        Ok(())
    }

    /// What compaction has made of what was written.
    pub(super) fn cleaned(&self, shared: &LogReader, now: TimestampMs) -> Cleaned {
        let revision = shared.revision_of(self.view).saturating_add(1);
        let before = self.view.cleaned(&*shared.folder.fs);
        match (&self.own, self.part, before) {
            // As far as the other replica; which tombstones may go a round finds out.
            (Own::Replaced(_), Some((Some(end), _)), _) => Cleaned {
                revision,
                end: end.min(self.view.end()).max(self.view.base),
                next_horizon: now,
            },
            (Own::Kept, _, Some(before)) => Cleaned { revision, ..before },
            _ => Cleaned {
                revision,
                end: self.view.base,
                next_horizon: Cleaned::NO_TOMBSTONE,
            },
        }
    }

    fn refuse(&self, reason: impl ToString) -> RewriteError {
        RewriteError::Source {
            offset: self.next,
            reason: reason.to_string(),
        }
    }
}
