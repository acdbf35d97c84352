//! The leader of one partition: who is in sync, how far each replica has got,
//! how far the high watermark may go, and which produces may be answered.
//!
//! It keeps, while it leads:
//!
//! ```text
//! high watermark ≤ counted end of every in-sync replica ≤ its log end
//! high watermark never falls
//! ```
//!
//! | before | event | after |
//! | --- | --- | --- |
//! | any | `Lead` in a higher epoch | waiters of the old epoch fail; leads, alone in what it knows of ends |
//! | leads | `Resign` in its or a later epoch | waiters fail; leads no more |
//! | leads | `Appended` | log end moves; watermark and waiters follow on `replicated` |
//! | leads | `Flushed` | flushed end moves; watermark and waiters follow on `synced` |
//! | leads | `FetchOpened` of this epoch | older sessions' reports are dropped; the follower is owed the bounds |
//! | leads | `FetchEnded` of the newest session | the follower lags since it was last heard, wherever it stands; it may not return |
//! | leads | `Reported` of this epoch, of no older process or session | that follower's ends move; it may return |
//! | leads | `Reported` by a new process of a member | kept until the old one has left the set |
//! | leads, nothing asked | a member lags, or a follower may return | asks: the proposed hold the watermark as well |
//! | leads, asked | `InSyncChanged` of a higher partition epoch | that set alone holds; below the minimum acks=all fail |
//! | leads, asked | `ProposalRefused` of that attempt, at the known partition epoch | the confirmed set alone holds; asks again after a wait |
//! | leads, asked | `ProposalTimedOut` of that attempt, or refused at a higher epoch | the proposed hold until the next confirmation; asks again after a wait |
//! | no leader, or an older epoch | anything else | nothing |
//!
//! The inequality is not demanded of followers that have not spoken in this
//! epoch; they enter with a report.

use crate::{
    MonotonicMs,
    contact::Contacts,
    fault::{Fault, planted},
    replica::{Replica, ReplicaEnds},
    waiters::{Failure, Reached, Waiter, Waiters},
};
use std::collections::{BTreeMap, BTreeSet};
use talweg_types::{LeaderEpoch, NodeId, Offset, PartitionEpoch};

mod admission;
mod check;
mod followers;
mod in_sync;
#[cfg(test)]
mod tests;
mod told;
mod types;
mod watermark;

use in_sync::Proposals;
use told::Told;
pub use types::{
    Bounds, Effect, Event, FetchEnded, FetchOpened, InSync, Lead, LeaderCheck, LeaderSettings,
    Member, NotAdmitted, Proposal, ProposalId, Role, Timings,
};

/// The state of one partition's leader; `W` is what the driver answers with.
#[derive(Clone, Debug)]
pub struct Leader<W> {
    node: NodeId,
    role: Role,
    settings: LeaderSettings,
    timings: Timings,
    partition_epoch: PartitionEpoch,
    /// Confirmed by the controller.
    in_sync: BTreeSet<NodeId>,
    proposals: Proposals,
    assigned: BTreeSet<NodeId>,
    /// By node, this one included; those that have reported in this epoch.
    replicas: BTreeMap<NodeId, Replica>,
    /// Words of new processes of members whose old ones still hold the watermark.
    successors: BTreeMap<NodeId, crate::Report>,
    told: BTreeMap<NodeId, Told>,
    contacts: Contacts,
    led_since: MonotonicMs,
    /// Only forwards, across epochs too.
    high_watermark: Offset,
    /// The watermark when others last decided who holds it. Above it, it rests
    /// on every holder's counted end.
    given_watermark: Offset,
    /// Log end when the epoch began: below it the watermark may be behind what
    /// an earlier leader published.
    epoch_start: Offset,
    waiters: Waiters<W>,
}

impl<W> Leader<W> {
    /// A replica on `node` that does not lead.
    pub fn new(node: NodeId, settings: LeaderSettings) -> Self {
        Self {
            node,
            role: Role::NotLeader,
            settings,
            timings: Timings::default(),
            partition_epoch: PartitionEpoch(-1),
            in_sync: BTreeSet::new(),
            proposals: Proposals::default(),
            assigned: BTreeSet::new(),
            replicas: BTreeMap::new(),
            successors: BTreeMap::new(),
            told: BTreeMap::new(),
            contacts: Contacts::default(),
            led_since: MonotonicMs(0),
            high_watermark: Offset::ZERO,
            given_watermark: Offset::ZERO,
            epoch_start: Offset::ZERO,
            waiters: Waiters::new(),
        }
    }

    pub fn role(&self) -> Role {
        self.role
    }

    /// The epoch in which this replica leads.
    pub fn epoch(&self) -> Option<LeaderEpoch> {
        match self.role {
            Role::Leader { epoch, .. } => Some(epoch),
            Role::NotLeader => None,
        }
    }

    /// The in-sync set as last confirmed.
    pub fn in_sync(&self) -> &BTreeSet<NodeId> {
        &self.in_sync
    }

    pub fn partition_epoch(&self) -> PartitionEpoch {
        self.partition_epoch
    }

    /// What a replica has said in this epoch; this node's own ends for itself.
    pub fn ends_of(&self, node: NodeId) -> Option<ReplicaEnds> {
        self.replicas.get(&node).map(Replica::ends)
    }

    /// Exclusive.
    pub fn high_watermark(&self) -> Offset {
        self.high_watermark
    }

    /// False while an earlier leader may have published a higher watermark.
    pub fn watermark_is_known(&self) -> bool {
        self.epoch().is_some()
            && (self.high_watermark >= self.epoch_start || planted(Fault::WatermarkShownEarly))
    }

    /// Produces that wait for an answer.
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Takes in what happened at `now`; the effects are in the order in which
    /// the driver acts on them.
    pub fn step(&mut self, now: MonotonicMs, event: Event<W>) -> Vec<Effect<W>> {
        let mut effects = Vec::new();
        match event {
            Event::Lead(lead) => self.on_lead(now, lead, &mut effects),
            Event::Resign { epoch } => self.on_resign(epoch, &mut effects),
            Event::TimingsChanged(timings) => self.timings = timings,
            _ if self.role == Role::NotLeader => self.on_event_without_leader(event, &mut effects),
            Event::Appended { log_end, waiters } => {
                self.on_appended(now, log_end, waiters, &mut effects)
            }
            Event::Flushed { flushed_end } => self.on_flushed(flushed_end, &mut effects),
            Event::FetchOpened(opened) => self.on_fetch_opened(now, opened),
            Event::FetchEnded(ended) => self.on_fetch_ended(ended),
            Event::Reported(report) => self.on_reported(now, report, &mut effects),
            Event::InSyncChanged(in_sync) => self.on_in_sync(now, in_sync, &mut effects),
            Event::ProposalRefused {
                id,
                partition_epoch,
            } => self.on_refused(now, id, partition_epoch, &mut effects),
            Event::ProposalTimedOut { id } => self.on_timed_out(now, id),
            Event::ControllerHeard => self.contacts.controller_heard(now),
            Event::ReplicasChanged(replicas) => self.on_replicas(replicas),
            Event::SettingsChanged(settings) => {
                self.settings = settings;
                self.fail_below_minimum(&mut effects);
                self.settle(&mut effects);
            }
            Event::Tick => self.propose(now, &mut effects),
        }
        debug_assert_eq!(self.check(), Ok(()));
        effects
    }

    fn on_lead(&mut self, now: MonotonicMs, lead: Lead, effects: &mut Vec<Effect<W>>) {
        if self.epoch().is_some_and(|epoch| lead.epoch <= epoch) {
            return;
        }
        self.fail_waiters(effects);
        self.role = Role::Leader {
            epoch: lead.epoch,
            incarnation: lead.incarnation,
        };
        self.settings = lead.settings;
        self.partition_epoch = lead.partition_epoch;
        self.in_sync = lead.in_sync;
        self.in_sync.insert(self.node);
        self.assigned = lead.replicas;
        self.proposals.settled();
        self.epoch_start = lead.ends.log_end;
        // Only a `recovered` or unclean epoch begins below what was published.
        let stored = self.high_watermark.max(lead.high_watermark);
        self.high_watermark = stored.min(lead.ends.log_end);
        self.given_watermark = self.high_watermark;
        self.led_since = now;
        // Being told to lead is no word of now: the log may have been opened, or
        // the process paused, for longer than a session since.
        self.contacts.clear();
        // What followers said in an earlier epoch may have been cut since.
        self.forget_followers();
        self.replicas.insert(
            self.node,
            Replica::new(lead.incarnation, crate::SessionTag::default(), now),
        );
        self.advance(self.node, lead.ends);
        self.settle(effects);
    }

    fn on_resign(&mut self, epoch: LeaderEpoch, effects: &mut Vec<Effect<W>>) {
        if self.epoch().is_some_and(|own| epoch >= own) {
            self.role = Role::NotLeader;
            self.proposals.settled();
            self.forget_followers();
            self.fail_waiters(effects);
        }
    }

    /// A waiter that comes too late is answered like those that were there.
    fn on_event_without_leader(&mut self, event: Event<W>, effects: &mut Vec<Effect<W>>) {
        match event {
            Event::Appended { waiters, .. } => {
                let failed = |waiter: Waiter<W>| Effect::Failed {
                    token: waiter.token,
                    why: Failure::LeadershipLost,
                };
                effects.extend(waiters.into_iter().map(failed));
            }
            Event::SettingsChanged(settings) => self.settings = settings,
            _ => {}
        }
    }

    fn on_appended(
        &mut self,
        now: MonotonicMs,
        log_end: Offset,
        waiters: Vec<Waiter<W>>,
        effects: &mut Vec<Effect<W>>,
    ) {
        let before = self.own_ends();
        if log_end > before.log_end {
            let node = self.node;
            let others = self
                .replicas
                .iter_mut()
                .filter(|(other, _)| **other != node);
            others.for_each(|(_, replica)| replica.leader_moves(now, before.log_end, log_end));
        }
        self.advance(
            self.node,
            ReplicaEnds {
                log_end,
                flushed_end: before.flushed_end,
            },
        );
        for waiter in waiters {
            if let Some((end, token)) = self.waiters.push(waiter) {
                effects.push(Effect::Done {
                    token,
                    reached: self.reached(end),
                });
            }
        }
        self.settle(effects);
    }

    fn on_flushed(&mut self, flushed_end: Offset, effects: &mut Vec<Effect<W>>) {
        let log_end = self.own_ends().log_end;
        let ends = ReplicaEnds {
            log_end,
            flushed_end,
        };
        self.advance(self.node, ends);
        self.settle(effects);
    }

    fn fail_waiters(&mut self, effects: &mut Vec<Effect<W>>) {
        if planted(Fault::WaitersOutliveEpoch) {
            return;
        }
        let why = Failure::LeadershipLost;
        effects.extend(
            self.waiters
                .take()
                .map(|token| Effect::Failed { token, why }),
        );
    }

    fn forget_followers(&mut self) {
        self.replicas.clear();
        self.successors.clear();
        self.told.clear();
    }

    fn own_ends(&self) -> ReplicaEnds {
        self.ends_of(self.node).unwrap_or_default()
    }

    fn counted(&self, node: NodeId) -> Offset {
        self.replicas
            .get(&node)
            .map_or(Offset::ZERO, Replica::counted)
    }

    fn reached(&self, end: Offset) -> Reached {
        let count = |passed: fn(ReplicaEnds) -> Offset| {
            let passed = self
                .replicas
                .values()
                .filter(|replica| passed(replica.ends()) >= end)
                .count();
            u32::try_from(passed).unwrap_or(u32::MAX)
        };
        Reached {
            holding: count(|ends| ends.log_end),
            flushed: count(|ends| ends.flushed_end),
            epoch: self.epoch().unwrap_or(LeaderEpoch::NONE),
        }
    }
}
