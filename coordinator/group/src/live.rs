//! What is not stored: sessions.

use crate::{GroupState, MemberMeta, Settings, subscription::Patterns};
use std::collections::{BTreeMap, BTreeSet};
use talweg_types::{MemberId, MonotonicMs, Offset, TopicId, TopicPartition};

/// What is known of a member's stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stream {
    Open,
    /// See `Event::StreamBroken`.
    Broken(Option<BTreeSet<TopicPartition>>),
    /// Since a load: it may come back until then.
    Unknown {
        until: MonotonicMs,
    },
    /// HTTP.
    Never,
}

#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub expires: MonotonicMs,
    pub stream: Stream,
    /// When each revoking partition is taken.
    pub revoking: BTreeMap<TopicPartition, MonotonicMs>,
    /// HTTP: what the next poll begins with.
    pub positions: BTreeMap<TopicPartition, Offset>,
}

impl Session {
    pub fn opened(now: MonotonicMs, meta: &MemberMeta) -> Self {
        let stream = match meta.kind {
            crate::MemberKind::Streaming => Stream::Open,
            crate::MemberKind::Http | crate::MemberKind::HttpShared => Stream::Never,
        };
        Self {
            expires: now.plus(u64::from(meta.timeouts.session_ms)),
            stream,
            revoking: BTreeMap::new(),
            positions: BTreeMap::new(),
        }
    }

    pub fn renew(&mut self, now: MonotonicMs, meta: &MemberMeta) {
        let until = now.plus(u64::from(meta.timeouts.session_ms));
        self.expires = self.expires.max(until);
    }
}

/// What is forgotten in more than one decision, because its tombstones do not fit one
/// batch. After a load whoever asked for it asks again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forgetting {
    /// All, if the group has been unused for so long.
    pub unused_ms: Option<i64>,
    /// All of these topics.
    pub topics: BTreeSet<TopicId>,
}

impl Forgetting {
    pub fn goes_on(&self) -> bool {
        self.unused_ms.is_some() || !self.topics.is_empty()
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Live {
    pub sessions: BTreeMap<MemberId, Session>,
    pub patterns: Patterns,
    /// When targets were last computed.
    pub assigned_at: Option<MonotonicMs>,
    pub forgetting: Forgetting,
}

impl Live {
    /// After a load or an undo: members without a session get a whole one, in
    /// which their streams may come back; sessions without a member go.
    pub fn resync(&mut self, now: MonotonicMs, state: &GroupState, settings: &Settings) {
        self.sessions.retain(|id, _| state.members.contains_key(id));
        for (id, meta) in &state.members {
            let session = self.sessions.entry(*id).or_insert_with(|| {
                let mut session = Session::opened(now, meta);
                if session.stream == Stream::Open {
                    let until = now.plus(settings.reattach_grace_ms);
                    session.stream = Stream::Unknown { until };
                }
                session
            });
            let Some(current) = state.currents.get(id) else {
                continue;
            };
            let is_revoking =
                |at: &TopicPartition| current.owned.get(at).is_some_and(|o| o.revoking);
            session.revoking.retain(|at, _| is_revoking(at));
            let until = now.plus(u64::from(meta.timeouts.rebalance_ms));
            for at in current.owned.keys().filter(|at| is_revoking(at)) {
                session.revoking.entry(*at).or_insert(until);
            }
            session
                .positions
                .retain(|at, _| current.owned.contains_key(at));
        }
        self.patterns.retain(
            state
                .members
                .values()
                .filter_map(|meta| meta.subscription.pattern.as_ref()),
        );
    }
}
