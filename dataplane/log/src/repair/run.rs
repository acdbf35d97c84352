//! The work of a repair, on a thread that may wait for the disk and for another node.

use super::{
    Repair, RepairReport, RepairSource,
    filler::{Filler, Own},
};
use crate::{
    rewrite::{RewriteError, index_interval, output::Output},
    segment::{SegmentView, Times},
};
use bytes::Bytes;
use std::{io, sync::Arc};
use talweg_batch::BatchHeader;
use talweg_types::{LeaderEpoch, TimestampMs};

/// Why a segment was not written.
pub(super) enum Stop {
    /// The other replica is compacted further: all before it is to be taken too.
    Head,
    Error(RewriteError),
}

impl From<RewriteError> for Stop {
    fn from(error: RewriteError) -> Self {
        Self::Error(error)
    }
}

impl Repair {
    /// Does the work; waits for the disk and for `source`. Once. Ends early when
    /// `stop` says so.
    pub fn run(
        &mut self,
        source: RepairSource<'_>,
        stop: &dyn Fn() -> bool,
    ) -> Result<RepairReport, RewriteError> {
        let Some(damaged) = self.head.last().cloned() else {
            return Err(RewriteError::Cancelled);
        };
        let mut report = RepairReport {
            segment: damaged.base,
            ..RepairReport::default()
        };
        let only = self.replace(&damaged, Own::Kept, source, stop, &mut report);
        let result = match only {
            Ok(()) => Ok(report),
            Err(Stop::Error(error)) => Err(error),
            Err(Stop::Head) => self
                .replace_head(source, stop, &mut report)
                .map(|()| report),
        };
        if let Err(error) = &result {
            for view in &self.head {
                self.rewrite.clean_up(view.base, error);
            }
        }
        result
    }

    /// From the head on, so that what a record superseded is gone before the record is.
    fn replace_head(
        &mut self,
        source: RepairSource<'_>,
        stop: &dyn Fn() -> bool,
        report: &mut RepairReport,
    ) -> Result<(), RewriteError> {
        let mut revision = None;
        for view in self.head.clone() {
            let own = Own::Replaced(&mut revision);
            match self.replace(&view, own, source, stop, report) {
                Ok(()) => {}
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Head) => return Err(RewriteError::Cancelled),
            }
        }
        Ok(())
    }

    fn replace(
        &mut self,
        view: &Arc<SegmentView>,
        own: Own<'_>,
        source: RepairSource<'_>,
        stop: &dyn Fn() -> bool,
        report: &mut RepairReport,
    ) -> Result<(), Stop> {
        let shared = Arc::clone(&self.rewrite.shared);
        let (fs, dir) = (&*shared.folder.fs, &shared.dir);
        let io = |error| self.rewrite.io("repairing", view, error);
        let there = self.assess(view)?;
        let times = self.times(view);
        // Nothing says how large a file was that is not there.
        let size = view.size().max(u64::from(self.segment_bytes));
        self.rewrite.check_room(size)?;
        let interval = index_interval(self.index_interval_bytes, size);
        let mut output = Output::create(fs, dir, view.base, interval).map_err(io)?;
        output.covers(times);
        let mut filler = Filler {
            rewrite: &self.rewrite,
            view,
            source,
            output: &mut output,
            times,
            next: view.base,
            epoch: LeaderEpoch::NONE,
            highest_epoch: self.highest_epoch,
            log_start: shared.bounds().log_start,
            cleaned_end: shared.cleaned_anywhere(),
            own_cleaned: shared.cleaning().0,
            own,
            part: None,
            learned: Vec::new(),
            report: *report,
        };
        if there && filler.keeps_own() {
            let known = view.damage.read().ranges.clone();
            let mut ended = None;
            let visit = &mut |header: BatchHeader, batch: Bytes| {
                let going = || self.rewrite.check_going(stop);
                let done = filler
                    .fill(header.base_offset, &going)
                    .and_then(|()| filler.own(&header, &batch));
                Ok(done.err().map(|stop| ended = Some(stop)))
            };
            self.rewrite.batches(view, known, stop, visit)?;
            if let Some(stop) = ended {
                return Err(stop);
            }
        }
        filler.fill(view.end(), &|| self.rewrite.check_going(stop))?;
        let cleaned = filler.cleaned(&shared, self.now);
        let (done, learned) = (filler.report, filler.learned);
        let written = output.finish(fs, dir, view.end(), cleaned).map_err(io)?;
        self.rewrite.check_going(stop)?;
        let new = self
            .rewrite
            .put_in_place(std::slice::from_ref(view), &written)?;
        self.rewrite.learned(learned);
        self.rewrite.replaced(vec![Arc::clone(view)], new);
        *report = RepairReport {
            segments: done.segments + 1,
            ..done
        };
        Ok(())
    }

    /// Finds all that is damaged. False: the file is not there.
    fn assess(&self, view: &SegmentView) -> Result<bool, RewriteError> {
        let shared = &self.rewrite.shared;
        let io = |error| self.rewrite.io("reading", view, error);
        match view.open(&shared.folder) {
            Ok(open) => {
                shared.assess(view, &open).map_err(io)?;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(io(error)),
        }
    }

    /// As the seal has them; young where nothing says so, for nothing is deleted early.
    fn times(&self, view: &SegmentView) -> Times {
        let young = Times {
            first_append: self.now,
            last_append: self.now,
            max_timestamp: TimestampMs::NONE,
        };
        let fs = &*self.rewrite.shared.folder.fs;
        view.times(fs).unwrap_or(young)
    }
}
