//! What is always true of a leader.

use super::{Leader, LeaderCheck, Role};
use crate::{
    check::{Broken, Positions},
    fault::{Fault, planted},
};
use talweg_types::{LeaderEpoch, Offset};

impl<W> Leader<W> {
    /// The invariant, written once.
    pub fn check(&self) -> Result<(), LeaderCheck> {
        if self.role == Role::NotLeader {
            let idle = self.waiters.len() == 0;
            return if idle {
                Ok(())
            } else {
                Err(LeaderCheck::WaitersWithoutLeader)
            };
        }
        self.check_positions()?;
        self.check_holders()?;
        if self
            .waiters
            .overdue(self.counted(self.node), self.high_watermark)
        {
            return Err(LeaderCheck::WaiterOverdue);
        }
        Ok(())
    }

    fn check_positions(&self) -> Result<(), LeaderCheck> {
        for (node, replica) in &self.replicas {
            let ends = replica.ends();
            if ends.flushed_end > ends.log_end || replica.counted() > ends.log_end {
                return Err(LeaderCheck::EndsCrossed { node: *node });
            }
        }
        let (high_watermark, floor) = (self.high_watermark, self.given_watermark);
        if high_watermark < floor {
            return Err(LeaderCheck::Positions(Broken::WatermarkFell {
                high_watermark,
                floor,
            }));
        }
        let positions = Positions {
            log_start: Offset::ZERO,
            high_watermark,
            ends: self.own_ends(),
            epoch: self.epoch().unwrap_or(LeaderEpoch::NONE),
            last_epoch: LeaderEpoch::NONE,
        };
        Ok(positions.check()?)
    }

    /// Where this leader moved the watermark, it rests on every holder.
    fn check_holders(&self) -> Result<(), LeaderCheck> {
        // A planted mistake is for the cluster's oracles to find, not for this.
        if planted(Fault::WatermarkWithoutInSync) || self.high_watermark <= self.given_watermark {
            return Ok(());
        }
        for node in self.holders() {
            let counted = self.counted(node);
            // A proposal may name whoever reached the floor, not more.
            if counted < self.high_watermark && !planted(Fault::GrowthTooEarly) {
                return Err(LeaderCheck::WatermarkAboveCounted {
                    node,
                    high_watermark: self.high_watermark,
                    counted,
                });
            }
        }
        Ok(())
    }
}
