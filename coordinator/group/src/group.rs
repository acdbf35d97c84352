//! The group: durable state and sessions behind one `step`.

use crate::{
    Answer, Assignor, Broken, Effect, Event, GroupState, Key, LoadError, MemberKind, Now, Record,
    Refusal, Topics, Value, check::check_state, live::Live, live::Stream, targets::chosen,
    turn::Turn,
};
use talweg_types::{MemberId, MonotonicMs, limits};

/// What a coordinator decides for all its groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Targets are computed at most this often, so that members who join together
    /// cost one rebalance. The first is computed at once.
    pub assignment_interval_ms: u64,
    /// After a load, how long a stream may take to be known again before a
    /// claimant of its instance id is let in.
    pub reattach_grace_ms: u64,
    /// What the records of one decision may take together.
    pub decision_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            assignment_interval_ms: 100,
            reattach_grace_ms: 5_000,
            decision_bytes: limits::MAX_MESSAGE_BYTES_DEFAULT as usize,
        }
    }
}

/// What one step came to.
#[derive(Clone, Debug)]
pub struct Step {
    /// To be appended as one batch; at most one a key, in force already.
    pub records: Vec<Record>,
    /// Held back until the records are committed.
    pub answer: Result<Answer, Refusal>,
    /// In any order; held back as well.
    pub effects: Vec<Effect>,
    /// For [`Group::undo`] if the append fails.
    pub undo: Undo,
}

/// The values that a step replaced.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Undo(pub(crate) Vec<(Key, Option<Value>)>);

/// As `talweg group list` shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupStatus {
    Empty,
    /// Targets are about to be computed.
    Assigning,
    /// Partitions are on their way.
    Reconciling,
    Stable,
}

/// One consumer group.
#[derive(Clone, Debug)]
pub struct Group {
    state: GroupState,
    live: Live,
    settings: Settings,
}

impl Group {
    pub fn new(settings: Settings) -> Self {
        Self {
            state: GroupState::default(),
            live: Live::default(),
            settings,
        }
    }

    /// From all the group's records in log order. All or nothing. A
    /// [`Event::TopicsChanged`] belongs behind it.
    pub fn load(
        settings: Settings,
        now: Now,
        records: impl IntoIterator<Item = Record>,
    ) -> Result<Self, LoadError> {
        let state = GroupState::load(records)?;
        let mut live = Live::default();
        live.resync(now.monotonic, &state, &settings);
        Ok(Self {
            state,
            live,
            settings,
        })
    }

    /// Decides on an event and puts the records in force.
    pub fn step(&mut self, now: Now, topics: &Topics, event: Event) -> Step {
        Turn::new(&mut self.state, &mut self.live, &self.settings, topics, now).run(event)
    }

    /// Takes back a step whose append failed; newest first.
    pub fn undo(&mut self, now: Now, undo: Undo) {
        for (key, value) in undo.0 {
            self.state.apply(Record { key, value });
        }
        self.live.resync(now.monotonic, &self.state, &self.settings);
    }

    pub fn state(&self) -> &GroupState {
        &self.state
    }

    /// When the next [`Event::Tick`] is due; none while nothing waits.
    pub fn next_deadline(&self) -> Option<MonotonicMs> {
        let sessions = self.live.sessions.values();
        let sessions = sessions.flat_map(|session| {
            std::iter::once(session.expires).chain(session.revoking.values().copied())
        });
        let stale = self.is_stale();
        let due = self.live.assigned_at.unwrap_or_default();
        let due = due.plus(self.settings.assignment_interval_ms);
        let forgetting = self.live.forgetting.goes_on();
        let at_once = forgetting.then_some(MonotonicMs(0));
        sessions.chain(stale.then_some(due)).chain(at_once).min()
    }

    fn is_stale(&self) -> bool {
        let meta = self.state.meta.unwrap_or_default();
        !self.state.members.is_empty() && meta.target_epoch < meta.group_epoch
    }

    pub fn status(&self) -> GroupStatus {
        let waits = |(id, target): (&MemberId, &std::collections::BTreeSet<_>)| {
            let current = self.state.currents.get(id);
            current.is_none_or(|current| !current.owned.keys().eq(target.iter()))
        };
        if self.state.members.is_empty() {
            GroupStatus::Empty
        } else if self.is_stale() {
            GroupStatus::Assigning
        } else if self.state.targets.iter().any(waits) {
            GroupStatus::Reconciling
        } else {
            GroupStatus::Stable
        }
    }

    /// What most members wish for.
    pub fn assignor(&self) -> Assignor {
        chosen(self.state.members.values())
    }

    /// The member's session is not over and, for a streaming one, its stream is open.
    pub fn is_live(&self, member: MemberId, now: Now) -> bool {
        let session = self.live.sessions.get(&member);
        session.is_some_and(|session| {
            session.expires > now.monotonic
                && matches!(session.stream, Stream::Open | Stream::Never)
        })
    }

    /// A commit without a member would be refused.
    pub fn has_streaming_members(&self) -> bool {
        let mut members = self.state.members.values();
        members.any(|meta| meta.kind == MemberKind::Streaming)
    }

    /// The invariants, stored and volatile.
    pub fn check(&self) -> Result<(), Broken> {
        check_state(&self.state)?;
        if self.live.sessions.keys().ne(self.state.members.keys()) {
            return Err(Broken::Sessions);
        }
        for (id, session) in &self.live.sessions {
            let owned = self.state.currents.get(id).map(|current| &current.owned);
            let revoking = owned.into_iter().flatten().filter(|(_, o)| o.revoking);
            if session.revoking.keys().ne(revoking.map(|(at, _)| at)) {
                return Err(Broken::Sessions);
            }
        }
        Ok(())
    }
}
