//! What operators do with a group that nobody uses, and what time does to it.

use crate::{Answer, Committed, GroupState, Key, Refusal, ResetChange, turn::Turn};
use std::collections::BTreeSet;
use talweg_types::{Offset, PartitionIndex, TopicId, TopicPartition, limits};

/// Partitions that one decision forgets; each has two keys.
const FORGOTTEN_MAX: usize = limits::FORGOTTEN_AT_ONCE_MAX / 2;

/// The partitions that a topic may have.
fn all_of(topic_id: TopicId) -> std::ops::RangeInclusive<TopicPartition> {
    let at = |index| TopicPartition {
        topic_id,
        partition: PartitionIndex(index),
    };
    at(0)..=at(u32::MAX)
}

fn stored_for<'a>(
    state: &'a GroupState,
    ids: &'a BTreeSet<TopicId>,
) -> impl Iterator<Item = &'a TopicPartition> {
    let offsets = ids.iter().flat_map(|id| state.offsets.range(all_of(*id)));
    let failures = ids.iter().flat_map(|id| state.failures.range(all_of(*id)));
    let offsets = offsets.map(|(at, _)| at);
    offsets.chain(failures.map(|(at, _)| at))
}

fn some_of<'a>(stored: impl Iterator<Item = &'a TopicPartition>) -> BTreeSet<TopicPartition> {
    stored.take(FORGOTTEN_MAX).copied().collect()
}

impl Turn<'_> {
    pub fn on_reset(
        &mut self,
        changes: Vec<ResetChange>,
        execute: bool,
    ) -> Result<Answer, Refusal> {
        self.check_unused()?;
        Refusal::limit("offsets", changes.len(), limits::COMMIT_OFFSETS_MAX)?;
        for change in &changes {
            self.check_exists(change.at)?;
            if change.after < Offset::ZERO {
                return Err(Refusal::invalid("offset", "negative"));
            }
            let stored = self.state.offsets.get(&change.at);
            if stored.map(|stored| stored.offset) != change.before {
                return Err(Refusal::invalid(
                    "before",
                    "the offset has moved; look again",
                ));
            }
        }
        if execute {
            for change in changes {
                let new = Committed {
                    offset: change.after,
                    leader_epoch: change.leader_epoch,
                    metadata: String::new(),
                    committed_at: self.now.wall,
                    moved_at: self.moved_at(change.at, change.after),
                };
                self.store(change.at, new);
                // As a seek, to the same offset too.
                if self.state.failures.contains_key(&change.at) {
                    self.remove(Key::Failures(change.at));
                }
            }
        }
        Ok(Answer::Done)
    }

    pub fn on_delete_offsets(
        &mut self,
        partitions: &BTreeSet<TopicPartition>,
    ) -> Result<Answer, Refusal> {
        self.check_unused()?;
        Refusal::limit("partitions", partitions.len(), FORGOTTEN_MAX)?;
        for at in partitions {
            self.forget(*at);
        }
        Ok(Answer::Done)
    }

    pub fn on_delete_group(&mut self) -> Result<Answer, Refusal> {
        if self.state.is_gone() {
            return Err(Refusal::UnknownGroup);
        }
        self.check_unused()?;
        Ok(match self.forget_all() {
            true => Answer::Done,
            false => Answer::More,
        })
    }

    /// A group has a sign of life while it has members, when the last one goes,
    /// and with each commit. All its offsets live as long.
    pub fn on_expire(&mut self, retention_ms: i64) -> Result<Answer, Refusal> {
        let Some(empty_since) = self.meta().empty_since else {
            return Ok(Answer::Done);
        };
        let commits = self
            .state
            .offsets
            .values()
            .map(|stored| stored.committed_at);
        let last = commits
            .max()
            .map_or(empty_since, |newest| newest.max(empty_since));
        if self.now.wall.0.saturating_sub(last.0) >= retention_ms {
            let whole = self.forget_all();
            self.live.forgetting.unused_ms = (!whole).then_some(retention_ms);
        }
        Ok(Answer::Done)
    }

    fn check_unused(&self) -> Result<(), Refusal> {
        match self.state.members.len() {
            0 => Ok(()),
            members => Err(Refusal::NotEmpty(members)),
        }
    }

    fn forget(&mut self, at: TopicPartition) {
        for key in [Key::Offset(at), Key::Failures(at)] {
            self.remove(key);
        }
    }

    /// Everything, as far as it fits one decision; the group itself goes last. False:
    /// there is more.
    fn forget_all(&mut self) -> bool {
        let stored = self.state.offsets.keys().chain(self.state.failures.keys());
        for at in some_of(stored) {
            self.forget(at);
        }
        let whole = self.state.offsets.is_empty() && self.state.failures.is_empty();
        if whole {
            self.remove(Key::Group);
        }
        whole
    }

    /// What is stored for these topics, as far as it fits one decision. False: there
    /// is more.
    pub fn forget_topics(&mut self, ids: &BTreeSet<TopicId>) -> bool {
        for at in some_of(stored_for(self.state, ids)) {
            self.forget(at);
        }
        stored_for(self.state, ids).next().is_none()
    }

    /// What did not fit the decision that began it, if the reason still holds.
    pub fn forget_on(&mut self) {
        let begun = std::mem::take(&mut self.live.forgetting);
        if !begun.topics.is_empty() && !self.forget_topics(&begun.topics) {
            self.live.forgetting.topics = begun.topics;
            self.live.forgetting.unused_ms = begun.unused_ms;
        } else if let Some(retention_ms) = begun.unused_ms {
            // It is refused by nobody.
            let _ = self.on_expire(retention_ms);
        }
    }
}
