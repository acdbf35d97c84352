//! When targets are computed, and from what.

use crate::{
    Answer, Assignor, Candidate, Key, MemberMeta, Problem, Refusal, Subscription, Value, assign,
    hash::stable_hash, turn::Turn,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use talweg_types::{MonotonicMs, TopicId, TopicPartition};

impl Turn<'_> {
    pub fn on_topics_changed(&mut self) -> Result<Answer, Refusal> {
        let meta = self.meta();
        let fresh = meta.target_epoch == meta.group_epoch;
        if !self.state.members.is_empty() && fresh && self.topics_hash() != meta.topics_hash {
            self.raise_epoch(false);
        }
        self.assign_if_due();
        Ok(Answer::Done)
    }

    /// Computes targets if they are behind and the interval is over.
    pub fn assign_if_due(&mut self) {
        let meta = self.meta();
        if meta.target_epoch == meta.group_epoch || self.state.members.is_empty() {
            return;
        }
        let interval = self.settings.assignment_interval_ms;
        let now = self.now.monotonic;
        let is_early = |at: MonotonicMs| now < at.plus(interval);
        if self.live.assigned_at.is_some_and(is_early) {
            return;
        }
        self.live.assigned_at = Some(now);
        self.assign_now();
    }

    fn assign_now(&mut self) {
        let subscribed = self.subscribed();
        let assignment = assign(
            chosen(self.state.members.values()),
            &self.problem(&subscribed),
        );
        let mut meta = self.meta();
        meta.target_epoch = meta.group_epoch;
        meta.topics_hash = self.hash_of(&subscribed);
        self.put(Key::Group, Value::Group(meta));
        for (id, target) in assignment {
            if self.state.targets.get(&id) != Some(&target) {
                self.put(Key::Target(id), Value::Target(target));
            }
        }
        self.reconcile();
    }

    fn problem<'a>(
        &'a self,
        subscribed: &BTreeMap<Subscription, Arc<BTreeSet<TopicId>>>,
    ) -> Problem<'a> {
        let members = self.state.members.iter().map(|(id, meta)| {
            let topics = subscribed.get(&meta.subscription).cloned();
            let candidate = Candidate {
                instance: meta.instance_id.as_deref(),
                rack: &meta.rack,
                topics: topics.unwrap_or_default(),
                before: self
                    .state
                    .targets
                    .get(id)
                    .into_iter()
                    .flatten()
                    .copied()
                    .collect(),
            };
            (*id, candidate)
        });
        let ids: BTreeSet<_> = subscribed
            .values()
            .flat_map(|ids| ids.iter().copied())
            .collect();
        let topics = ids.into_iter().filter_map(|id| self.topics.by_id(id));
        Problem {
            members: members.collect(),
            topics: topics
                .map(|topic| (topic.id, topic.racks.as_slice()))
                .collect(),
        }
    }

    /// Each different subscription of the group, resolved.
    fn subscribed(&mut self) -> BTreeMap<Subscription, Arc<BTreeSet<TopicId>>> {
        let members = self.state.members.values();
        let patterns = members
            .clone()
            .filter_map(|meta| meta.subscription.pattern.as_ref());
        self.live.patterns.retain(patterns);
        let mut resolved = BTreeMap::new();
        for meta in members {
            if !resolved.contains_key(&meta.subscription) {
                let ids = self.live.patterns.resolve(&meta.subscription, self.topics);
                resolved.insert(meta.subscription.clone(), Arc::new(ids));
            }
        }
        resolved
    }

    fn topics_hash(&mut self) -> u64 {
        let subscribed = self.subscribed();
        self.hash_of(&subscribed)
    }

    fn hash_of(&self, subscribed: &BTreeMap<Subscription, Arc<BTreeSet<TopicId>>>) -> u64 {
        let ids: BTreeSet<_> = subscribed
            .values()
            .flat_map(|ids| ids.iter().copied())
            .collect();
        let topics = ids.into_iter().map(|id| self.topics.by_id(id));
        stable_hash(&topics.collect::<Vec<_>>())
    }

    /// Offsets, failures and assignments of these ids go at once.
    pub fn on_topics_deleted(&mut self, ids: &BTreeSet<TopicId>) -> Result<Answer, Refusal> {
        let is_gone = |at: &&TopicPartition| ids.contains(&at.topic_id);
        if !self.forget_topics(ids) {
            self.live.forgetting.topics.extend(ids);
        }
        // Targets first: nobody is an heir of what is gone.
        let members: Vec<_> = self.state.members.keys().copied().collect();
        let mut held = false;
        for id in &members {
            let target = self.state.targets.get(id).cloned().unwrap_or_default();
            let (gone, kept): (BTreeSet<_>, BTreeSet<_>) =
                target.into_iter().partition(|at| is_gone(&at));
            if !gone.is_empty() {
                held = true;
                self.put(Key::Target(*id), Value::Target(kept));
            }
        }
        for id in members {
            let current = self.state.currents.get(&id);
            let owned = current.into_iter().flat_map(|current| current.owned.keys());
            let gone: Vec<_> = owned.filter(is_gone).copied().collect();
            if !gone.is_empty() {
                held = true;
                self.touched.insert(id);
                self.release(id, &gone);
            }
        }
        if held {
            self.raise_epoch(false);
            self.assign_if_due();
        }
        Ok(Answer::Done)
    }
}

/// What most members ask for; on a tie, and where nobody asks, the first of
/// sticky, range, round-robin.
pub(crate) fn chosen<'a>(members: impl Iterator<Item = &'a MemberMeta>) -> Assignor {
    let mut votes: BTreeMap<Assignor, usize> = BTreeMap::new();
    for assignor in members.filter_map(|meta| meta.assignor) {
        *votes.entry(assignor).or_default() += 1;
    }
    // The last of equals is the greatest: reversed, the first assignor.
    let most = votes.into_iter().rev().max_by_key(|(_, count)| *count);
    most.map_or(Assignor::Sticky, |(assignor, _)| assignor)
}
