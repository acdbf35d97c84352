//! What operators do with a group that nobody uses, and what time does to it.

use crate::{Answer, Committed, Key, Refusal, ResetChange, turn::Turn};
use std::collections::BTreeSet;
use talweg_types::{Offset, TopicPartition, limits};

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
        self.forget_all();
        Ok(Answer::Done)
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
            self.forget_all();
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

    fn forget_all(&mut self) {
        let offsets = self.state.offsets.keys().chain(self.state.failures.keys());
        for at in offsets.copied().collect::<BTreeSet<_>>() {
            self.forget(at);
        }
        self.remove(Key::Group);
    }
}
