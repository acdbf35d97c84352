//! What must be true of what was released, judged without the group's state.

use super::{REBALANCE_MS, runtime::Decided};
use crate::{
    Answer, Caller, Commit, CommitKind, Committer, Effect, Event, MemberEpoch, Removal, View,
};
use std::collections::{BTreeMap, BTreeSet};
use talweg_types::{MemberId, MonotonicMs, Offset, TopicPartition};

#[derive(Clone, Copy, Debug)]
struct Holder {
    member: MemberId,
    given: MemberEpoch,
    asked_back: Option<MonotonicMs>,
}

#[derive(Default)]
pub(super) struct Oracle {
    /// By partition: who was told last that it has it, and has not lost it since.
    holders: BTreeMap<TopicPartition, Holder>,
    committed: BTreeMap<TopicPartition, Offset>,
    /// Members with a stream, by what was released.
    members: BTreeSet<MemberId>,
    pub moves: usize,
    pub commits: usize,
    pub refused: usize,
    pub removed: usize,
}

type Checked = Result<(), String>;

impl Oracle {
    /// `is_open`: the member's client lives and holds its stream.
    pub fn released(&mut self, decided: &Decided, is_open: impl Fn(MemberId) -> bool) -> Checked {
        let Decided { at, event, step } = decided;
        if step.answer.is_ok() {
            self.confirmed(event);
        }
        if let Event::Commit(commit) = event {
            match &step.answer {
                Ok(Answer::Committed(answers)) => self.committed(commit, answers)?,
                Ok(_) => return Err("a commit has its own answer".into()),
                Err(_) => self.refused += 1,
            }
        }
        for effect in &step.effects {
            if let Effect::Removed { member, why } = effect {
                if matches!(why, Removal::Replaced { .. }) && is_open(*member) {
                    return Err(format!("{member} was replaced while its stream lives"));
                }
                self.members.remove(member);
                self.holders.retain(|_, holder| holder.member != *member);
                self.removed += 1;
            }
        }
        let told = step.effects.iter().filter_map(|effect| match effect {
            Effect::Tell(view) => Some(view),
            Effect::Removed { .. } => None,
        });
        let answered = match &step.answer {
            Ok(Answer::View(view)) => Some(view),
            Ok(Answer::Done | Answer::More | Answer::Committed(_)) | Err(_) => None,
        };
        let views: Vec<&View> = told.chain(answered).collect();
        views
            .iter()
            .try_for_each(|view| self.losses(at.monotonic, view))?;
        views
            .iter()
            .try_for_each(|view| self.gains(at.monotonic, view))?;
        Ok(())
    }

    fn confirmed(&mut self, event: &Event) {
        match event {
            Event::Revoked { caller, partitions } => {
                self.holders.retain(|at, holder| {
                    let confirms = holder.member == caller.member
                        && holder.asked_back.is_some()
                        && holder.given <= caller.epoch;
                    !(confirms && partitions.contains(at))
                });
            }
            Event::TopicsDeleted(ids) => {
                self.holders.retain(|at, _| !ids.contains(&at.topic_id));
                self.committed.retain(|at, _| !ids.contains(&at.topic_id));
            }
            Event::DeleteGroup => self.committed.clear(),
            Event::Join(_)
            | Event::Heartbeat(_)
            | Event::LinkBroken(_)
            | Event::StreamBroken { .. }
            | Event::Leave(_)
            | Event::Overran { .. }
            | Event::Poll { .. }
            | Event::Returned { .. }
            | Event::Commit(_)
            | Event::Tick
            | Event::TopicsChanged
            | Event::Reset { .. }
            | Event::DeleteOffsets(_)
            | Event::Expire { .. } => {}
        }
    }

    fn losses(&mut self, at: MonotonicMs, view: &View) -> Checked {
        let mut taken = Vec::new();
        for (p, holder) in &self.holders {
            let has = view.assigned.contains_key(p) || view.revoking.contains(p);
            if holder.member != view.member || has {
                continue;
            }
            let due = holder.asked_back.map(|asked| asked.plus(REBALANCE_MS));
            if due.is_none_or(|due| at < due) {
                return Err(format!(
                    "{p} was taken from {} before its time",
                    view.member
                ));
            }
            taken.push(*p);
        }
        self.holders.retain(|p, _| !taken.contains(p));
        Ok(())
    }

    fn gains(&mut self, at: MonotonicMs, view: &View) -> Checked {
        self.members.insert(view.member);
        for (p, given) in &view.assigned {
            let holder = Holder {
                member: view.member,
                given: given.given_epoch,
                asked_back: None,
            };
            if given.given_epoch > view.epoch {
                return Err(format!("{p} is given above the member's epoch"));
            }
            if given.next != self.committed.get(p).copied() {
                return Err(format!(
                    "{p} begins at {:?}, committed is {:?}",
                    given.next,
                    self.committed.get(p)
                ));
            }
            match self.holders.insert(*p, holder) {
                Some(old) if old.member != view.member => {
                    return Err(format!(
                        "{p} is {}'s and was given to {}",
                        old.member, view.member
                    ));
                }
                Some(old) if old.given > given.given_epoch => {
                    return Err(format!("the epoch of {p} fell"));
                }
                // Told to give it up, it must; it may only be given anew.
                Some(old) if old.asked_back.is_some() && old.given == given.given_epoch => {
                    return Err(format!("{p} was asked back and is assigned again"));
                }
                Some(_) => {}
                None => self.moves += 1,
            }
        }
        for p in &view.revoking {
            let given = self
                .holders
                .get(p)
                .map_or(view.epoch, |holder| holder.given);
            let asked = self
                .holders
                .get(p)
                .and_then(|holder| holder.asked_back)
                .unwrap_or(at);
            let holder = Holder {
                member: view.member,
                given,
                asked_back: Some(asked),
            };
            if let Some(old) = self.holders.insert(*p, holder)
                && old.member != view.member
            {
                return Err(format!("{p} is asked back from one who has it not"));
            }
        }
        Ok(())
    }

    fn committed(
        &mut self,
        commit: &Commit,
        answers: &[Result<crate::Committed, crate::Refusal>],
    ) -> Checked {
        if commit.by == Committer::Standalone && !self.members.is_empty() {
            return Err("a self-assigned commit was taken beside members".into());
        }
        for (item, answer) in commit.items.iter().zip(answers) {
            let Ok(stored) = answer else {
                self.refused += 1;
                continue;
            };
            self.commits += 1;
            if let Committer::Member(Caller { member, epoch }) = commit.by {
                let holder = self.holders.get(&item.at);
                let may = holder.is_some_and(|h| h.member == member && h.given <= epoch);
                if !may {
                    return Err(format!(
                        "{member} at {epoch} committed {}, which is {holder:?}'s",
                        item.at
                    ));
                }
            }
            let before = self.committed.insert(item.at, stored.offset);
            if commit.kind == CommitKind::Commit && before > Some(stored.offset) {
                return Err(format!("{} stepped back from {before:?}", item.at));
            }
            if stored.offset != item.offset {
                return Err("something else was stored".into());
            }
        }
        Ok(())
    }
}
