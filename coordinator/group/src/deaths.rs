//! Members that are lost, and the records that may have lost them.
//!
//! A death counts at the partitions that had records in flight. Where nobody can
//! say, at all the member's partitions: from the second time on records come one
//! by one, and a commit past the record ends the count, so that innocents leave it.
//! The member that all HTTP callers without an id share is never counted.

use crate::{
    Answer, Caller, Effect, FailureKind, Failures, Key, MemberKind, Refusal, Removal, Value,
    live::{Session, Stream},
    mistake::{Mistake, planted},
    turn::Turn,
};
use std::collections::BTreeSet;
use talweg_types::{MemberId, TopicPartition};

impl Turn<'_> {
    pub fn on_leave(&mut self, caller: Caller) -> Result<Answer, Refusal> {
        self.check_caller(caller)?;
        self.remove_member(caller.member, Removal::Left);
        Ok(Answer::Done)
    }

    /// The member's processing time is over: it is out, so that its partitions
    /// move once; others keep theirs. It may join again.
    pub fn on_overran(
        &mut self,
        caller: Caller,
        partitions: &BTreeSet<TopicPartition>,
    ) -> Result<Answer, Refusal> {
        let current = self.check_caller(caller)?;
        let held = current
            .owned
            .iter()
            .filter(|(at, owned)| partitions.contains(at) && owned.given_epoch <= caller.epoch);
        let held: Vec<_> = held.map(|(at, _)| *at).collect();
        // All of them were given on before the word came.
        if held.is_empty() {
            return Ok(Answer::Done);
        }
        for at in held {
            self.count_failure(at, FailureKind::TimedOut);
        }
        self.remove_member(caller.member, Removal::Overran);
        Ok(Answer::Done)
    }

    /// Counts a crash of the member at what it had in flight.
    pub fn count_death(&mut self, id: MemberId) {
        let Some(session) = self.live.sessions.get(&id) else {
            return;
        };
        // Callers that come and go, and none of them need ever commit: that one did not
        // come back says nothing about the record.
        let meta = self.state.members.get(&id);
        if meta.is_some_and(|meta| meta.kind == MemberKind::HttpShared) {
            return;
        }
        let in_flight: Option<BTreeSet<_>> = match &session.stream {
            Stream::Broken(in_flight) => in_flight.clone(),
            Stream::Never => Some(self.returned(session).collect()),
            Stream::Open | Stream::Unknown { .. } => None,
        };
        let Some(current) = self.state.currents.get(&id) else {
            return;
        };
        let suspects = current.owned.keys().copied();
        let suspects = suspects.filter(|at| in_flight.as_ref().is_none_or(|set| set.contains(at)));
        for at in suspects.collect::<Vec<_>>() {
            self.count_failure(at, FailureKind::Crashed);
        }
    }

    /// HTTP: sent and not committed.
    fn returned<'s>(&'s self, session: &'s Session) -> impl Iterator<Item = TopicPartition> + 's {
        let sent = session.positions.iter().filter(|(at, next)| {
            let stored = self.state.offsets.get(at);
            stored.is_none_or(|stored| stored.offset < **next)
        });
        sent.map(|(at, _)| *at)
    }

    fn count_failure(&mut self, at: TopicPartition, last: FailureKind) {
        let next = self.state.offsets.get(&at).map(|stored| stored.offset);
        let known = self.state.failures.get(&at).copied();
        let mut failures = known
            .filter(|known| known.next == next)
            .unwrap_or(Failures {
                next,
                deaths: 0,
                overruns: 0,
                last,
            });
        let count = match last {
            FailureKind::Crashed => &mut failures.deaths,
            FailureKind::TimedOut => &mut failures.overruns,
        };
        *count = count.saturating_add(1);
        failures.last = last;
        self.put(Key::Failures(at), Value::Failures(failures));
    }

    /// Takes the member out and gives on what it held.
    pub fn remove_member(&mut self, id: MemberId, why: Removal) {
        let current = self.state.currents.get(&id);
        let freed = current.into_iter().flat_map(|current| current.owned.keys());
        let freed: Vec<_> = freed.copied().collect();
        self.drop_member(id, why);
        self.raise_epoch(false);
        if self.state.members.is_empty() {
            let mut meta = self.meta();
            meta.empty_since = Some(self.now.wall);
            meta.target_epoch = meta.group_epoch;
            self.put(Key::Group, Value::Group(meta));
            return;
        }
        if !planted(Mistake::ForgetsFreed) {
            self.give_freed(&freed);
        }
        self.assign_if_due();
    }

    pub fn drop_member(&mut self, id: MemberId, why: Removal) {
        self.remove(Key::Member(id));
        self.remove(Key::Target(id));
        self.remove(Key::Current(id));
        self.live.sessions.remove(&id);
        self.effects.push(Effect::Removed { member: id, why });
    }
}
