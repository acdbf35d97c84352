//! How far the watermark may go: the one commit rule.

use super::{Effect, Leader};
use crate::{
    fault::{Fault, planted},
    replica::ReplicaEnds,
    waiters::Failure,
};
use talweg_types::{NodeId, Offset};

impl<W> Leader<W> {
    pub(super) fn advance(&mut self, node: NodeId, ends: ReplicaEnds) {
        if let Some(replica) = self.replicas.get_mut(&node) {
            replica.advance(ends, self.settings.durability);
        }
    }

    /// Moves the watermark as far as it may go and releases who waited for it.
    pub(super) fn settle(&mut self, effects: &mut Vec<Effect<W>>) {
        let ends = self.own_ends();
        self.advance(self.node, ends);
        let lowest = self.lowest_counted();
        if self.watermark_may_move() && lowest > self.high_watermark {
            self.high_watermark = lowest;
            effects.push(Effect::HighWatermark(lowest));
        }
        let counted = self.counted(self.node);
        while let Some((end, token)) = self.waiters.pop(counted, self.high_watermark) {
            effects.push(Effect::Done {
                token,
                reached: self.reached(end),
            });
        }
    }

    /// What was asked for and not confirmed does not count towards the minimum.
    fn watermark_may_move(&self) -> bool {
        self.confirmed() >= self.needed() || planted(Fault::WatermarkBelowMinimum)
    }

    fn lowest_counted(&self) -> Offset {
        if planted(Fault::WatermarkWithoutInSync) {
            return self.counted(self.node);
        }
        let counted = self.holders().map(|node| self.counted(node));
        counted.min().unwrap_or(Offset::ZERO)
    }

    /// Whoever holds the watermark; some twice.
    pub(super) fn holders(&self) -> impl Iterator<Item = NodeId> {
        let proposed = self.proposals.holders();
        let counts = !planted(Fault::ProposalDoesNotHold);
        self.in_sync
            .iter()
            .copied()
            .chain(proposed.filter(move |_| counts))
    }

    pub(super) fn holds_watermark(&self, node: NodeId) -> bool {
        self.holders().any(|holder| holder == node)
    }

    /// Members of the confirmed set.
    pub(super) fn confirmed(&self) -> u32 {
        u32::try_from(self.in_sync.len()).unwrap_or(u32::MAX)
    }

    /// How many the confirmed set needs for the watermark to move.
    pub(super) fn needed(&self) -> u32 {
        self.settings
            .min_insync_replicas
            .min(self.settings.replication_factor)
    }

    pub(super) fn fail_below_minimum(&mut self, effects: &mut Vec<Effect<W>>) {
        if self.confirmed() < self.needed() {
            let why = Failure::NotEnoughReplicasAfterAppend;
            let failed = |token| Effect::Failed { token, why };
            effects.extend(self.waiters.take_all().map(failed));
        }
    }
}
