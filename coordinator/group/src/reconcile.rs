//! From targets to ownership. A partition goes
//!
//! ```text
//! owner's ── asked back (revoking) ── confirmed, or its time over ── the heir's
//! ```
//!
//! so that it is in one member's hands at every moment. One that was asked back
//! is given up even if the target has returned to its owner meanwhile: what the
//! owner has been told cannot be untold; it is then given anew.

use crate::{
    Answer, Caller, Key, Owned, Refusal, Value,
    mistake::{Mistake, planted},
    turn::Turn,
};
use std::collections::BTreeSet;
use talweg_types::{MemberId, TopicPartition};

impl Turn<'_> {
    /// After new targets.
    pub fn reconcile(&mut self) {
        let members: Vec<_> = self.state.members.keys().copied().collect();
        for id in &members {
            self.ask_back(*id);
        }
        for id in members {
            self.give(id);
        }
    }

    /// Asks for what is meant for others.
    fn ask_back(&mut self, id: MemberId) {
        let heirs = &self.state.heirs;
        let Some(current) = self.state.currents.get(&id) else {
            return;
        };
        let moved = current.owned.iter();
        let moved = moved.filter(|(at, owned)| !owned.revoking && heirs.get(at) != Some(&id));
        let moved: Vec<_> = moved.map(|(at, _)| *at).collect();
        if moved.is_empty() {
            return;
        }
        let mut current = current.clone();
        let now = self.now.monotonic;
        for at in &moved {
            if let Some(owned) = current.owned.get_mut(at) {
                owned.revoking = true;
            }
            if let Some((session, meta)) = self.session(id) {
                let until = now.plus(u64::from(meta.timeouts.rebalance_ms));
                session.revoking.insert(*at, until);
            }
        }
        self.put(Key::Current(id), Value::Current(current));
        self.touched.insert(id);
    }

    /// Gives a member what is meant for it and in nobody's hands.
    fn give(&mut self, id: MemberId) {
        let owners = &self.state.owners;
        let (Some(target), Some(current)) =
            (self.state.targets.get(&id), self.state.currents.get(&id))
        else {
            return;
        };
        let early = planted(Mistake::GivesBeforeConfirmed);
        let is_free = |at: &TopicPartition| {
            !current.owned.contains_key(at) && (early || !owners.contains_key(at))
        };
        let free: Vec<_> = target.iter().filter(|at| is_free(at)).copied().collect();
        if free.is_empty() {
            return;
        }
        let mut current = current.clone();
        current.member_epoch = current.member_epoch.max(self.meta().target_epoch);
        let owned = Owned {
            given_epoch: current.member_epoch,
            revoking: false,
        };
        current.owned.extend(free.into_iter().map(|at| (at, owned)));
        self.put(Key::Current(id), Value::Current(current));
        self.touched.insert(id);
    }

    /// After these have left someone's hands.
    pub fn give_freed(&mut self, freed: &[TopicPartition]) {
        let heirs = freed.iter().filter_map(|at| self.state.heirs.get(at));
        for id in heirs.copied().collect::<BTreeSet<_>>() {
            self.give(id);
        }
    }

    pub fn on_revoked(
        &mut self,
        caller: Caller,
        partitions: &BTreeSet<TopicPartition>,
    ) -> Result<Answer, Refusal> {
        let current = self.check_caller(caller)?;
        let trusting = planted(Mistake::TrustsOldConfirmations);
        let given_up = partitions.iter().filter(|at| {
            // A late confirmation of an earlier revocation has a lower epoch.
            current.owned.get(at).is_some_and(|owned| {
                owned.revoking && (trusting || owned.given_epoch <= caller.epoch)
            })
        });
        let given_up: Vec<_> = given_up.copied().collect();
        self.renew(caller.member);
        self.release(caller.member, &given_up);
        self.answer_view(caller.member)
    }

    /// Takes partitions out of a member's hands and gives them on.
    pub fn release(&mut self, id: MemberId, partitions: &[TopicPartition]) {
        self.take(id, partitions);
        self.give_freed(partitions);
    }

    fn take(&mut self, id: MemberId, partitions: &[TopicPartition]) {
        let Some(mut current) = self.state.currents.get(&id).cloned() else {
            return;
        };
        if partitions.is_empty() {
            return;
        }
        for at in partitions {
            current.owned.remove(at);
            if let Some(session) = self.live.sessions.get_mut(&id) {
                session.revoking.remove(at);
                session.positions.remove(at);
            }
        }
        self.put(Key::Current(id), Value::Current(current));
    }

    /// Partitions whose owners did not give them up in time.
    pub fn release_overdue(&mut self) {
        let now = self.now.monotonic;
        let overdue = self.live.sessions.iter().map(|(id, session)| {
            let late = session.revoking.iter().filter(|(_, until)| **until <= now);
            (*id, late.map(|(at, _)| *at).collect::<Vec<_>>())
        });
        let overdue: Vec<_> = overdue.filter(|(_, late)| !late.is_empty()).collect();
        for (id, late) in overdue {
            self.take(id, &late);
            self.touched.insert(id);
            self.give_freed(&late);
        }
    }
}
