//! Committed offsets: the next to read, fenced, never lowered by accident.

use crate::{
    Answer, Bounds, Caller, Commit, CommitItem, CommitKind, Committed, Committer, Key, MemberKind,
    Refusal, Value,
    mistake::{Mistake, planted},
    turn::Turn,
};
use talweg_types::{MemberId, Offset, TimestampMs, TopicPartition, limits};

impl Turn<'_> {
    pub fn on_commit(&mut self, commit: Commit) -> Result<Answer, Refusal> {
        Refusal::limit("offsets", commit.items.len(), limits::COMMIT_OFFSETS_MAX)?;
        match commit.by {
            Committer::Member(caller) => {
                if !planted(Mistake::CommitsUnfenced) {
                    self.check_caller(caller)?;
                }
                self.renew(caller.member);
            }
            Committer::Standalone => {
                let mut members = self.state.members.values();
                if members.any(|meta| meta.kind == MemberKind::Streaming)
                    && !planted(Mistake::StandaloneBesideStreams)
                {
                    return Err(Refusal::StreamingMembers);
                }
            }
        }
        let (by, kind) = (commit.by, commit.kind);
        let items = commit.items.into_iter();
        let answers = items.map(|item| self.commit_one(by, kind, item));
        Ok(Answer::Committed(answers.collect()))
    }

    fn commit_one(
        &mut self,
        by: Committer,
        kind: CommitKind,
        item: CommitItem,
    ) -> Result<Committed, Refusal> {
        self.check_exists(item.at)?;
        let metadata = item.metadata.len();
        Refusal::limit("metadata", metadata, limits::COMMIT_METADATA_BYTES_MAX)?;
        check_bounds(by, &item)?;
        if let Committer::Member(caller) = by {
            self.check_owner(caller, item.at)?;
        }
        let stored = self.state.offsets.get(&item.at);
        if let Some(stored) = stored.filter(|stored| stored.offset > item.offset)
            && kind == CommitKind::Commit
            && !planted(Mistake::CommitsStepBack)
        {
            return Err(Refusal::BelowCommitted {
                at: item.at,
                offset: item.offset,
                stored: stored.offset,
            });
        }
        let new = Committed {
            offset: item.offset,
            leader_epoch: item.leader_epoch,
            metadata: item.metadata,
            committed_at: self.now.wall,
            moved_at: self.moved_at(item.at, item.offset),
        };
        // A member's repeat changes nothing; anyone else's is the sign of life
        // from which expiry counts.
        let repeats = stored.is_some_and(|stored| says_the_same(stored, &new));
        if !repeats || by == Committer::Standalone {
            self.store(item.at, new.clone());
        }
        if kind == CommitKind::Seek {
            self.sought(item.at, item.offset);
        }
        Ok(new)
    }

    /// When an offset that is stored now was last moved.
    pub fn moved_at(&self, at: TopicPartition, offset: Offset) -> TimestampMs {
        let stored = self.state.offsets.get(&at);
        let stays = stored.filter(|stored| stored.offset == offset);
        stays.map_or(self.now.wall, |stored| stored.moved_at)
    }

    /// Stores, ends the count of failures of the record that was next, and makes
    /// the group if this is its first sign of life.
    pub fn store(&mut self, at: TopicPartition, new: Committed) {
        if self.state.meta.is_none() {
            let mut meta = self.meta();
            meta.empty_since = Some(self.now.wall);
            self.put(Key::Group, Value::Group(meta));
        }
        let counted = self.state.failures.get(&at);
        let passed = counted.is_some_and(|counted| counted.next != Some(new.offset));
        if planted(Mistake::WritesAside) {
            let (key, value) = (Key::Offset(at), Some(Value::Offset(new)));
            self.state.apply(crate::Record { key, value });
            return;
        }
        self.put(Key::Offset(at), Value::Offset(new));
        if passed && !planted(Mistake::KeepsFailures) {
            self.forgive(at);
        }
    }

    /// Ends a count of failures; the owner's delivery changes with it.
    fn forgive(&mut self, at: TopicPartition) {
        if self.state.failures.contains_key(&at) {
            self.remove(Key::Failures(at));
            self.touched.extend(self.state.owners.get(&at));
        }
    }

    /// A seek, to the same offset too, says "try again from here".
    fn sought(&mut self, at: TopicPartition, offset: Offset) {
        self.forgive(at);
        let owner = self.state.owners.get(&at);
        let session = owner.and_then(|owner| self.live.sessions.get_mut(owner));
        if let Some(position) = session.and_then(|session| session.positions.get_mut(&at)) {
            *position = offset;
        }
    }

    pub fn check_exists(&self, at: TopicPartition) -> Result<(), Refusal> {
        let topic = self.topics.by_id(at.topic_id);
        let topic = topic.ok_or(Refusal::UnknownTopic(at))?;
        let count = u32::try_from(topic.racks.len()).unwrap_or(u32::MAX);
        if at.partition.0 < count {
            Ok(())
        } else {
            Err(Refusal::UnknownPartition(at))
        }
    }

    /// Revoking partitions count: their owner finishes what it has.
    fn check_owner(&self, caller: Caller, at: TopicPartition) -> Result<(), Refusal> {
        let unfenced = planted(Mistake::CommitsUnfenced);
        if unfenced || self.owns(caller.member, caller, at) {
            return Ok(());
        }
        Err(Refusal::NotOwner {
            member: caller.member,
            at,
            sent: caller.epoch,
        })
    }

    fn owns(&self, id: MemberId, caller: Caller, at: TopicPartition) -> bool {
        let current = self.state.currents.get(&id);
        let owned = current.and_then(|current| current.owned.get(&at));
        owned.is_some_and(|owned| owned.given_epoch <= caller.epoch)
    }
}

fn says_the_same(stored: &Committed, new: &Committed) -> bool {
    stored.offset == new.offset
        && stored.leader_epoch == new.leader_epoch
        && stored.metadata == new.metadata
}

fn check_bounds(by: Committer, item: &CommitItem) -> Result<(), Refusal> {
    if item.offset < Offset::ZERO {
        return Err(Refusal::invalid("offset", "negative"));
    }
    match (item.bounds, by) {
        (Bounds::Delivered, Committer::Member(_)) => Ok(()),
        (Bounds::Delivered, Committer::Standalone) => Err(Refusal::invalid(
            "bounds",
            "nothing was delivered to this client",
        )),
        (
            Bounds::Log {
                log_start,
                high_watermark,
            },
            _,
        ) => {
            if (log_start..=high_watermark).contains(&item.offset) {
                return Ok(());
            }
            Err(Refusal::OutOfRange {
                at: item.at,
                offset: item.offset,
                log_start,
                high_watermark,
            })
        }
    }
}
