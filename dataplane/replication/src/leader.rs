//! The leader of one partition: who is in sync, how far each replica has got,
//! how far the high watermark may go, and which produces may be answered.
//!
//! It keeps, while it leads:
//!
//! ```text
//! high watermark ≤ counted end of every in-sync replica ≤ its log end ≤ leader's log end
//! high watermark never falls
//! ```
//!
//! | before | event | after |
//! | --- | --- | --- |
//! | any | `Lead` in a higher epoch | waiters of the old epoch fail; leads, alone in what it knows of ends |
//! | leads | `Resign` in its or a later epoch | waiters fail; leads no more |
//! | leads | `Appended` | log end moves; watermark and waiters follow on `replicated` |
//! | leads | `Flushed` | flushed end moves; watermark and waiters follow on `synced` |
//! | leads | `Reported` of this epoch and a known incarnation | that follower's ends move |
//! | leads | `InSyncChanged` | the watermark is held by old ∪ proposed; below the minimum acks=all fail |
//! | no leader, or an older epoch | anything else | nothing |
//!
//! The inequality between the in-sync and the leader's end is not demanded of
//! followers that a later leader has still to cut; they enter with a report.

use crate::{
    MonotonicMs,
    replica::{Replica, ReplicaEnds, Report},
    waiters::{Failure, Reached, Waiter, Waiters},
};
use std::collections::{BTreeMap, BTreeSet};
use talweg_types::{Acks, Durability, Incarnation, LeaderEpoch, NodeId, Offset};
use thiserror::Error;

#[cfg(test)]
mod tests;

/// Whether this replica leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Another node does, or nobody.
    NotLeader,
    Leader {
        epoch: LeaderEpoch,
        incarnation: Incarnation,
    },
}

/// The replicas that hold the watermark.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InSync {
    /// As the controller confirmed it.
    pub confirmed: BTreeSet<NodeId>,
    /// Asked for and not answered: counts as well.
    pub proposed: BTreeSet<NodeId>,
}

/// What the topic asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaderSettings {
    pub durability: Durability,
    pub replication_factor: u32,
    pub min_insync_replicas: u32,
}

/// A leadership as the controller decided it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lead {
    pub epoch: LeaderEpoch,
    pub incarnation: Incarnation,
    /// The leader's own ends, after recovery.
    pub ends: ReplicaEnds,
    /// The watermark stored with the log.
    pub high_watermark: Offset,
    pub in_sync: BTreeSet<NodeId>,
    pub settings: LeaderSettings,
}

/// What happens to a leader.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event<W> {
    Lead(Lead),
    /// Leadership ended; `epoch` is the one that the controller is at.
    Resign {
        epoch: LeaderEpoch,
    },
    /// A write of the leader has returned.
    Appended {
        log_end: Offset,
        waiters: Vec<Waiter<W>>,
    },
    /// A flush of the leader has returned.
    Flushed {
        flushed_end: Offset,
    },
    /// A follower has written or flushed.
    Reported(Report),
    InSyncChanged(InSync),
    SettingsChanged(LeaderSettings),
}

/// What the driver does about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect<W> {
    /// Tell the log, then the readers. Comes before the answers that rest on it.
    HighWatermark(Offset),
    /// Answer: done.
    Done { token: W, reached: Reached },
    /// Answer: outcome unknown.
    Failed { token: W, why: Failure },
}

/// Why a batch may not be appended. Nothing happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NotAdmitted {
    #[error("this node does not lead the partition")]
    NotLeader,
    #[error("{in_sync} replicas are in sync, {needed} are needed")]
    NotEnoughReplicas { in_sync: u32, needed: u32 },
}

/// The broken part of the invariant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum LeaderCheck {
    #[error("high watermark {high_watermark} is above the counted end {counted} of node {}", node.0)]
    WatermarkAboveCounted {
        node: NodeId,
        high_watermark: Offset,
        counted: Offset,
    },
    #[error("flushed or counted end of node {} is above its log end", node.0)]
    EndsCrossed { node: NodeId },
    #[error("a waiter was not released although its bound has passed")]
    WaiterOverdue,
    #[error("produces wait although nobody leads")]
    WaitersWithoutLeader,
}

/// The state of one partition's leader; `W` is what the driver answers with.
#[derive(Clone, Debug)]
pub struct Leader<W> {
    node: NodeId,
    role: Role,
    settings: LeaderSettings,
    in_sync: InSync,
    /// By node, this one included; those that have reported in this epoch.
    replicas: BTreeMap<NodeId, Replica>,
    /// Only forwards, across epochs too.
    high_watermark: Offset,
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
            in_sync: InSync::default(),
            replicas: BTreeMap::new(),
            high_watermark: Offset::ZERO,
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

    pub fn high_watermark(&self) -> Offset {
        self.high_watermark
    }

    /// False while an earlier leader may have published a higher watermark.
    pub fn watermark_is_known(&self) -> bool {
        self.epoch().is_some() && self.high_watermark >= self.epoch_start
    }

    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Whether a batch with these acks may be appended now.
    pub fn admit(&self, acks: Acks) -> Result<(), NotAdmitted> {
        if self.role == Role::NotLeader {
            return Err(NotAdmitted::NotLeader);
        }
        let (in_sync, needed) = (self.confirmed(), self.needed());
        if acks == Acks::All && in_sync < needed {
            return Err(NotAdmitted::NotEnoughReplicas { in_sync, needed });
        }
        Ok(())
    }

    /// In-sync followers that have not stood at the log end since `lag_ms` ago.
    pub fn lagging(&self, now: MonotonicMs, lag_ms: u64) -> Vec<NodeId> {
        let behind = |node: &&NodeId| {
            let caught_up = self
                .replicas
                .get(node)
                .map_or(MonotonicMs(0), Replica::caught_up);
            **node != self.node && now.0.saturating_sub(caught_up.0) > lag_ms
        };
        self.in_sync
            .confirmed
            .iter()
            .filter(behind)
            .copied()
            .collect()
    }

    /// Takes in what happened at `now`; the effects are in the order in which
    /// the driver acts on them.
    pub fn step(&mut self, now: MonotonicMs, event: Event<W>) -> Vec<Effect<W>> {
        let mut effects = Vec::new();
        match event {
            Event::Lead(lead) => self.on_lead(now, lead, &mut effects),
            Event::Resign { epoch } => self.on_resign(epoch, &mut effects),
            _ if self.role == Role::NotLeader => self.on_event_without_leader(event, &mut effects),
            Event::Appended { log_end, waiters } => {
                self.on_appended(now, log_end, waiters, &mut effects)
            }
            Event::Flushed { flushed_end } => {
                let log_end = self.own_ends().log_end;
                self.advance(
                    self.node,
                    ReplicaEnds {
                        log_end,
                        flushed_end,
                    },
                );
                self.settle(&mut effects);
            }
            Event::Reported(report) => self.on_reported(now, report, &mut effects),
            Event::InSyncChanged(in_sync) => self.on_in_sync(in_sync, &mut effects),
            Event::SettingsChanged(settings) => {
                self.settings = settings;
                self.settle(&mut effects);
            }
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
        self.in_sync = InSync {
            confirmed: lead.in_sync,
            proposed: BTreeSet::new(),
        };
        self.epoch_start = lead.ends.log_end;
        self.high_watermark = self.high_watermark.max(lead.high_watermark);
        // What followers said in an earlier epoch may have been cut since.
        self.replicas.clear();
        self.replicas
            .insert(self.node, Replica::new(lead.incarnation, now));
        self.advance(self.node, lead.ends);
        self.settle(effects);
    }

    fn on_resign(&mut self, epoch: LeaderEpoch, effects: &mut Vec<Effect<W>>) {
        if self.epoch().is_some_and(|own| epoch >= own) {
            self.role = Role::NotLeader;
            self.replicas.clear();
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
        let flushed_end = self.own_ends().flushed_end;
        self.advance(
            self.node,
            ReplicaEnds {
                log_end,
                flushed_end,
            },
        );
        if let Some(own) = self.replicas.get_mut(&self.node) {
            own.set_caught_up(now);
        }
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

    fn on_reported(&mut self, now: MonotonicMs, report: Report, effects: &mut Vec<Effect<W>>) {
        if self.epoch() != Some(report.epoch) || report.node == self.node {
            return;
        }
        let known = self.replicas.get(&report.node).map(Replica::incarnation);
        if known.is_some_and(|known| report.incarnation < known) {
            return;
        }
        if known != Some(report.incarnation) {
            // A new process: its log may be shorter than what the old one said.
            // In the in-sync set the old positions hold until the set changes.
            if known.is_some() && self.holds_watermark(report.node) {
                return;
            }
            self.replicas
                .insert(report.node, Replica::new(report.incarnation, now));
        }
        self.advance(report.node, report.ends);
        let leader_end = self.own_ends().log_end;
        if report.ends.log_end >= leader_end
            && let Some(replica) = self.replicas.get_mut(&report.node)
        {
            replica.set_caught_up(now);
        }
        self.settle(effects);
    }

    fn on_in_sync(&mut self, in_sync: InSync, effects: &mut Vec<Effect<W>>) {
        self.in_sync = in_sync;
        self.in_sync.confirmed.insert(self.node);
        if self.confirmed() < self.needed() {
            let why = Failure::NotEnoughReplicasAfterAppend;
            effects.extend(
                self.waiters
                    .take_all()
                    .map(|token| Effect::Failed { token, why }),
            );
        }
        self.settle(effects);
    }

    fn fail_waiters(&mut self, effects: &mut Vec<Effect<W>>) {
        let why = Failure::LeadershipLost;
        effects.extend(
            self.waiters
                .take()
                .map(|token| Effect::Failed { token, why }),
        );
    }

    fn advance(&mut self, node: NodeId, ends: ReplicaEnds) {
        if let Some(replica) = self.replicas.get_mut(&node) {
            replica.advance(ends, self.settings.durability);
        }
    }

    /// Moves the watermark as far as it may go and releases who waited for it.
    fn settle(&mut self, effects: &mut Vec<Effect<W>>) {
        let ends = self.own_ends();
        self.advance(self.node, ends);
        if self.confirmed() >= self.needed() {
            let holders = self.in_sync.confirmed.iter().chain(&self.in_sync.proposed);
            let counted = holders
                .map(|node| {
                    self.replicas
                        .get(node)
                        .map_or(Offset::ZERO, Replica::counted)
                })
                .min();
            if let Some(lowest) = counted.filter(|lowest| *lowest > self.high_watermark) {
                self.high_watermark = lowest;
                effects.push(Effect::HighWatermark(lowest));
            }
        }
        let counted = self
            .replicas
            .get(&self.node)
            .map_or(Offset::ZERO, Replica::counted);
        while let Some((end, token)) = self.waiters.pop(counted, self.high_watermark) {
            effects.push(Effect::Done {
                token,
                reached: self.reached(end),
            });
        }
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

    fn own_ends(&self) -> ReplicaEnds {
        self.replicas
            .get(&self.node)
            .map(Replica::ends)
            .unwrap_or_default()
    }

    fn holds_watermark(&self, node: NodeId) -> bool {
        self.in_sync.confirmed.contains(&node) || self.in_sync.proposed.contains(&node)
    }

    fn confirmed(&self) -> u32 {
        u32::try_from(self.in_sync.confirmed.len()).unwrap_or(u32::MAX)
    }

    fn needed(&self) -> u32 {
        self.settings
            .min_insync_replicas
            .min(self.settings.replication_factor)
    }

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
        for (node, replica) in &self.replicas {
            let ends = replica.ends();
            if ends.flushed_end > ends.log_end || replica.counted() > ends.log_end {
                return Err(LeaderCheck::EndsCrossed { node: *node });
            }
        }
        let counted = self
            .replicas
            .get(&self.node)
            .map_or(Offset::ZERO, Replica::counted);
        if self.high_watermark > counted.max(self.epoch_start) {
            let (node, high_watermark) = (self.node, self.high_watermark);
            return Err(LeaderCheck::WatermarkAboveCounted {
                node,
                high_watermark,
                counted,
            });
        }
        if self.waiters.overdue(counted, self.high_watermark) {
            return Err(LeaderCheck::WaiterOverdue);
        }
        Ok(())
    }
}
