//! What followers say, and whose word counts.

use super::{Effect, FetchEnded, FetchOpened, Leader};
use crate::{
    MonotonicMs, SessionTag,
    fault::{Fault, planted},
    replica::{Replica, Report},
};
use std::collections::BTreeSet;
use talweg_types::{Incarnation, LeaderEpoch, NodeId};

impl<W> Leader<W> {
    fn speaks(&self, node: NodeId, epoch: LeaderEpoch) -> bool {
        let current = self.epoch() == Some(epoch) || planted(Fault::ReportEpochIgnored);
        // A member that is about to be reassigned still holds the watermark.
        let counts = self.assigned.contains(&node) || self.in_sync.contains(&node);
        current && counts && node != self.node
    }

    pub(super) fn on_fetch_opened(&mut self, now: MonotonicMs, opened: FetchOpened) {
        if !self.speaks(opened.node, opened.epoch) {
            return;
        }
        self.contacts.node_heard(opened.node, now);
        if let Some(replica) = self.replicas.get_mut(&opened.node)
            && replica.incarnation() == opened.incarnation
        {
            replica.set_session(opened.session);
        }
        self.told_opened(opened);
    }

    /// One that stands at the end of an idle partition would stay in sync for
    /// ever, and hold up the next record for a whole lag time.
    pub(super) fn on_fetch_ended(&mut self, ended: FetchEnded) {
        let end = self.own_ends().log_end;
        if let Some(replica) = self.replicas.get_mut(&ended.node)
            && (replica.incarnation(), replica.session()) == (ended.incarnation, ended.session)
        {
            replica.gone(ended.heard, end);
        }
    }

    pub(super) fn on_reported(
        &mut self,
        now: MonotonicMs,
        report: Report,
        effects: &mut Vec<Effect<W>>,
    ) {
        if !self.speaks(report.node, report.epoch) {
            return;
        }
        self.contacts.node_heard(report.node, now);
        if self.is_old(&report) {
            return;
        }
        let known = self.known(report.node).map(|(incarnation, _)| incarnation);
        if known.is_none_or(|known| known < report.incarnation) {
            // A new process: its log may be shorter than what the old one said.
            // In the in-sync set the old positions hold until the set changes.
            let at_once = planted(Fault::SuccessorHeardAtOnce);
            if known.is_some() && self.holds_watermark(report.node) && !at_once {
                self.keep_successor(report);
                return;
            }
            let replica = Replica::new(report.incarnation, report.session, now);
            self.replicas.insert(report.node, replica);
        }
        self.advance(report.node, report.ends);
        let leader_end = self.own_ends().log_end;
        if let Some(replica) = self.replicas.get_mut(&report.node) {
            replica.set_session(report.session);
            replica.observe(now, leader_end);
        }
        self.settle(effects);
        self.propose(now, effects);
    }

    fn known(&self, node: NodeId) -> Option<(Incarnation, SessionTag)> {
        let replica = self.replicas.get(&node)?;
        Some((replica.incarnation(), replica.session()))
    }

    /// The word of a process or a session that has been followed by another.
    fn is_old(&self, report: &Report) -> bool {
        let said = (report.incarnation, report.session);
        self.known(report.node).is_some_and(|known| said < known)
            && !planted(Fault::OldIncarnationAccepted)
    }

    fn keep_successor(&mut self, report: Report) {
        let kept = self.successors.entry(report.node).or_insert(report);
        if (kept.incarnation, kept.session) <= (report.incarnation, report.session) {
            *kept = report;
        }
    }

    /// The set has changed: new processes of those that left are heard now.
    pub(super) fn hear_successors(&mut self, now: MonotonicMs, effects: &mut Vec<Effect<W>>) {
        let kept = std::mem::take(&mut self.successors);
        kept.into_values()
            .for_each(|report| self.on_reported(now, report, effects));
    }

    pub(super) fn on_replicas(&mut self, replicas: BTreeSet<NodeId>) {
        self.assigned = replicas;
        let keep = |node: &NodeId| self.assigned.contains(node);
        self.successors.retain(|node, _| keep(node));
        self.told.retain(|node, _| keep(node));
        // A member counts until the controller has taken it out of the set.
        let holders: BTreeSet<_> = self.holders().chain([self.node]).collect();
        let keep = |node: &NodeId| self.assigned.contains(node) || holders.contains(node);
        self.replicas.retain(|node, _| keep(node));
    }
}
