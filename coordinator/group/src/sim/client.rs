//! A member's client with its gateway.

use crate::{Bounds, Caller, Commit, CommitItem, CommitKind, Committer, Event, MemberEpoch, View};
use std::collections::{BTreeSet, VecDeque};
use talweg_types::{LeaderEpoch, MemberId, Offset, TopicPartition};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    /// A join is under way.
    Joining,
    In,
    /// Its stream broke; it holds its token.
    Broken,
    /// Told that it is out, or refused.
    Out,
    /// Its process is gone; old messages may still arrive.
    Dead,
}

pub(super) struct Client {
    pub id: MemberId,
    pub instance: Option<String>,
    pub life: Life,
    pub epoch: MemberEpoch,
    pub view: Option<View>,
    /// On their way to it, in order.
    pub views: VecDeque<View>,
}

impl Client {
    pub fn caller(&self) -> Caller {
        Caller {
            member: self.id,
            epoch: self.epoch,
        }
    }

    pub fn read(&mut self) {
        if let Some(view) = self.views.pop_front() {
            self.epoch = view.epoch;
            self.view = Some(view);
        }
    }

    pub fn held(&self) -> Vec<TopicPartition> {
        let view = self.view.as_ref();
        let assigned = view.into_iter().flat_map(|view| view.assigned.keys());
        let revoking = view.into_iter().flat_map(|view| view.revoking.iter());
        assigned.chain(revoking).copied().collect()
    }

    pub fn confirmation(&self) -> Option<Event> {
        let partitions: BTreeSet<_> = self.view.as_ref()?.revoking.clone();
        (!partitions.is_empty()).then(|| Event::Revoked {
            caller: self.caller(),
            partitions,
        })
    }

    pub fn commit(&self, at: TopicPartition, kind: CommitKind, offset: i64) -> Event {
        commit(Committer::Member(self.caller()), at, kind, offset)
    }
}

pub(super) fn commit(by: Committer, at: TopicPartition, kind: CommitKind, offset: i64) -> Event {
    let item = CommitItem {
        at,
        offset: Offset(offset),
        leader_epoch: LeaderEpoch(0),
        metadata: String::new(),
        bounds: Bounds::Log {
            log_start: Offset(0),
            high_watermark: Offset(1_000_000),
        },
    };
    Event::Commit(Commit {
        by,
        kind,
        items: vec![item],
    })
}
