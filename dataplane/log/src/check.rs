//! The invariants of a partition's log, written once: for debug builds,
//! properties and the simulator.

use crate::partition::PartitionLog;

impl PartitionLog {
    /// Names the first invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        let bounds = self.bounds();
        bounds
            .check()
            .map_err(|error| format!("{error}: {bounds:?}"))?;
        self.check_segments()?;
        self.check_written()?;
        let epochs = self.shared.epochs.read();
        let rising = |pair: &[crate::sidecar::partition::EpochStart]| {
            pair[0].epoch < pair[1].epoch && pair[0].start < pair[1].start
        };
        if !epochs.entries().windows(2).all(rising) {
            return Err(format!("epochs do not rise: {:?}", epochs.entries()));
        }
        if let Some(record) = &*self.disk.recorded.lock()
            && record.flushed_end > bounds.flushed_end
        {
            return Err(format!(
                "recorded flushed end {} is above {}",
                record.flushed_end, bounds.flushed_end
            ));
        }
        if self.shared.index_valid_to() > bounds.log_end {
            return Err("the index is ahead of the log".into());
        }
        self.check_fence()?;
        self.sessions.check_below(bounds.log_end)
    }

    /// Segments follow one another, and only the last ones are unsealed.
    fn check_segments(&self) -> Result<(), String> {
        let segments = self.shared.segments();
        for pair in segments.windows(2) {
            if pair[0].base >= pair[1].base || pair[0].end() > pair[1].base {
                return Err(format!(
                    "segment {} reaches over {}",
                    pair[0].base, pair[1].base
                ));
            }
            if pair[1].is_sealed() && !pair[0].is_sealed() {
                return Err(format!(
                    "segment {} is sealed before {}",
                    pair[1].base, pair[0].base
                ));
            }
        }
        let unsealed: Vec<_> = segments
            .iter()
            .filter(|view| !view.is_sealed())
            .map(|view| view.base)
            .collect();
        let closing = self.closing.iter().map(|closing| closing.view.base);
        let expected: Vec<_> = closing
            .chain(self.active.as_ref().map(|active| active.view.base))
            .collect();
        if unsealed != expected {
            return Err(format!(
                "unsealed segments {unsealed:?} are not the owner's {expected:?}"
            ));
        }
        Ok(())
    }

    /// What the owner knows of the active segment is what readers see.
    fn check_written(&self) -> Result<(), String> {
        let bounds = self.bounds();
        let Some(active) = &self.active else {
            return Ok(());
        };
        if active.end != bounds.log_end
            || active.view.end() != active.end
            || active.view.size() != active.size
        {
            return Err(format!(
                "active segment ends at {}, the log at {}",
                active.end, bounds.log_end
            ));
        }
        if active.sums.position() != active.size {
            return Err(format!(
                "block sums cover {} of {} bytes",
                active.sums.position(),
                active.size
            ));
        }
        Ok(())
    }
}
