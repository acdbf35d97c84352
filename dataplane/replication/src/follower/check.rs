//! What is always true of a follower.

use super::{Follower, FollowerCheck, Phase};
use crate::{check::Positions, divergence::History};
use talweg_types::Offset;

impl Follower {
    /// The invariant, written once. Only while it follows: an idle one knows
    /// nothing of the log.
    pub fn check(&self, history: &impl History) -> Result<(), FollowerCheck> {
        if self.source.is_none() {
            return if self.phase == Phase::Idle {
                Ok(())
            } else {
                Err(FollowerCheck::SessionWithoutLeader)
            };
        }
        // Handed frames are in the history before their write has returned.
        let settled = self.session().is_some() && self.in_flight() == 0;
        let positions = Positions {
            log_start: self.log_start,
            high_watermark: self.high_watermark,
            ends: self.ends,
            epoch: self.fence,
            last_epoch: if settled {
                history.last_epoch()
            } else {
                talweg_types::LeaderEpoch::NONE
            },
        };
        positions.check()?;
        let (handed, log_end) = (self.handed, self.ends.log_end);
        if handed < log_end {
            return Err(FollowerCheck::HandedBelowEnd { handed, log_end });
        }
        let reported = self.reported.unwrap_or_default();
        let above = |said: Offset, held: Offset| said > held;
        if above(reported.log_end, log_end) || above(reported.flushed_end, self.ends.flushed_end) {
            return Err(FollowerCheck::ReportedAboveEnds);
        }
        Ok(())
    }
}
