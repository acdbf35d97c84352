//! How a member comes, comes back, or follows another under one instance id.
//!
//! | request | and | then |
//! | --- | --- | --- |
//! | a claim (token or member id) | the member exists | the same member, same partitions, a new epoch; the old life is fenced |
//! | a claim | it does not | UNKNOWN_MEMBER: join anew |
//! | a repeat of a join | the member exists | as a claim |
//! | an instance id | nobody holds it | a new member |
//! | an instance id | the holder's stream lives, or may within the grace after a load | INSTANCE_IN_USE |
//! | an instance id | the holder's stream has broken | a new member with the holder's partitions; the holder is out |
//!
//! The member id changes with the holder, so that a token of the replaced process
//! cannot take the name back.

use crate::{
    Answer, Current, Join, Key, MemberEpoch, MemberKind, MemberMeta, Owned, Refusal, Removal,
    Subscription, Value,
    live::{Session, Stream},
    mistake::{Mistake, planted},
    turn::Turn,
};
use std::collections::{BTreeMap, BTreeSet};
use talweg_types::{MemberId, TopicPartition, limits};

/// Of one partition in a target's record and in its owner's.
const ASSIGNED_BYTES: usize = 64;

impl Turn<'_> {
    pub fn on_join(&mut self, join: Join) -> Result<Answer, Refusal> {
        check_meta(&join.meta)?;
        self.check_fits(&join.meta.subscription)?;
        if self.meta().group_epoch >= MemberEpoch::LAST {
            return Err(Refusal::EpochsExhausted);
        }
        if let Some(id) = join.claim {
            return self.come_back(id, join.meta);
        }
        if self.state.members.contains_key(&join.new_id) {
            return self.come_back(join.new_id, join.meta);
        }
        let instance = join.meta.instance_id.as_ref();
        match instance.and_then(|id| self.state.instances.get(id)) {
            Some(holder) => self.take_over(*holder, join.new_id, join.meta),
            None => self.admit(join.new_id, join.meta),
        }
    }

    /// Targets and what is owned are written together: what a subscription finds must
    /// fit one decision, or the group would never have an assignment.
    fn check_fits(&mut self, subscription: &Subscription) -> Result<(), Refusal> {
        let ids = self.live.patterns.resolve(subscription, self.topics);
        let topics = ids.iter().filter_map(|id| self.topics.by_id(*id));
        let partitions = topics.map(|topic| topic.racks.len()).sum();
        let most = self.settings.decision_bytes / ASSIGNED_BYTES;
        Refusal::limit("subscribed partitions", partitions, most)
    }

    fn admit(&mut self, id: MemberId, meta: MemberMeta) -> Result<Answer, Refusal> {
        let members = self.state.members.len() + 1;
        Refusal::limit("members", members, limits::GROUP_MEMBERS_MAX)?;
        let epoch = self.raise_epoch(false);
        let mut group = self.meta();
        group.empty_since = None;
        self.put(Key::Group, Value::Group(group));
        self.insert(id, meta, BTreeSet::new(), epoch, BTreeMap::new());
        self.assign_if_due();
        self.answer_view(id)
    }

    fn come_back(&mut self, id: MemberId, meta: MemberMeta) -> Result<Answer, Refusal> {
        let Some(known) = self.state.members.get(&id) else {
            return Err(Refusal::UnknownMember(id));
        };
        if known.instance_id != meta.instance_id {
            return Err(Refusal::invalid("instance_id", "the member has another"));
        }
        if known.kind != meta.kind {
            return Err(Refusal::invalid(
                "member",
                "it is of the other kind, streaming or HTTP",
            ));
        }
        if meta.kind == MemberKind::HttpShared {
            return self.join_shared(id, meta);
        }
        let Some(current) = self.state.currents.get(&id) else {
            return Err(Refusal::UnknownMember(id));
        };
        let (owned, known_from) = (current.owned.clone(), current.attach_epoch);
        let unchanged = asks_the_same(known, &meta);
        let epoch = self.raise_epoch(unchanged);
        let attach_epoch = match meta.kind {
            // One answer carries the new epoch, and it may be lost: who asks again
            // with the old one is still the same.
            MemberKind::Http => known_from,
            MemberKind::Streaming | MemberKind::HttpShared => epoch,
        };
        self.attach(id, epoch, attach_epoch, owned);
        let opened = Session::opened(self.now.monotonic, &meta);
        if let Some(session) = self.live.sessions.get_mut(&id) {
            // What it was asked back keeps its deadlines.
            let revoking = std::mem::take(&mut session.revoking);
            *session = Session { revoking, ..opened };
        }
        self.put(Key::Member(id), Value::Member(Box::new(meta)));
        self.assign_if_due();
        self.answer_view(id)
    }

    fn take_over(
        &mut self,
        holder: MemberId,
        id: MemberId,
        meta: MemberMeta,
    ) -> Result<Answer, Refusal> {
        let instance = meta.instance_id.clone().unwrap_or_default();
        if let Some(retry_after_ms) = self.holds_on(holder) {
            if planted(Mistake::AdmitsTwins) {
                return self.admit(id, meta);
            }
            return Err(Refusal::InstanceInUse {
                instance,
                retry_after_ms,
            });
        }
        // A new process instead of the old one: that one is dead.
        self.count_death(holder);
        let state = &self.state;
        let (Some(known), Some(current)) =
            (state.members.get(&holder), state.currents.get(&holder))
        else {
            return Err(Refusal::UnknownMember(holder));
        };
        let unchanged = asks_the_same(known, &meta);
        let (released, kept): (BTreeMap<_, _>, BTreeMap<_, _>) =
            (current.owned.clone().into_iter()).partition(|(_, owned)| owned.revoking);
        let target = state.targets.get(&holder).cloned().unwrap_or_default();
        self.drop_member(holder, Removal::Replaced { by: id });
        let epoch = self.raise_epoch(unchanged);
        self.insert(id, meta, target, epoch, kept);
        // What the old process was asked back is free: it is gone.
        let released: Vec<_> = released.into_keys().collect();
        self.give_freed(&released);
        self.assign_if_due();
        self.answer_view(id)
    }

    /// Milliseconds until the holder may be replaced, 0 for "not while its stream
    /// lives"; none if it may be now.
    fn holds_on(&self, holder: MemberId) -> Option<u64> {
        let now = self.now.monotonic;
        let session = self.live.sessions.get(&holder)?;
        match session.stream {
            Stream::Open => Some(0),
            Stream::Unknown { until } => Some(until.since(now)).filter(|wait| *wait > 0),
            // An HTTP member has no stream to break; its session stands for it.
            Stream::Never => Some(session.expires.since(now)).filter(|wait| *wait > 0),
            Stream::Broken(_) => None,
        }
    }

    fn insert(
        &mut self,
        id: MemberId,
        meta: MemberMeta,
        target: BTreeSet<TopicPartition>,
        epoch: MemberEpoch,
        owned: BTreeMap<TopicPartition, Owned>,
    ) {
        let session = Session::opened(self.now.monotonic, &meta);
        self.live.sessions.insert(id, session);
        self.put(Key::Member(id), Value::Member(Box::new(meta)));
        self.put(Key::Target(id), Value::Target(target));
        self.attach(id, epoch, epoch, owned);
    }

    /// A new life of a member: everything it holds is given anew. Who names an epoch
    /// below `attach_epoch` is fenced.
    fn attach(
        &mut self,
        id: MemberId,
        epoch: MemberEpoch,
        attach_epoch: MemberEpoch,
        mut owned: BTreeMap<TopicPartition, Owned>,
    ) {
        for partition in owned.values_mut() {
            partition.given_epoch = epoch;
        }
        let current = Current {
            member_epoch: epoch,
            attach_epoch,
            owned,
        };
        self.put(Key::Current(id), Value::Current(current));
    }

    /// Callers without a member id share one: its topics are all they asked for.
    fn join_shared(&mut self, id: MemberId, meta: MemberMeta) -> Result<Answer, Refusal> {
        self.renew(id);
        let Some(known) = self.state.members.get(&id) else {
            return Err(Refusal::UnknownMember(id));
        };
        let mut merged = known.clone();
        merged.subscription.names.extend(meta.subscription.names);
        if merged != *known {
            check_meta(&merged)?;
            self.put(Key::Member(id), Value::Member(Box::new(merged)));
            self.raise_epoch(false);
            self.assign_if_due();
        }
        self.answer_view(id)
    }
}

/// Nothing that targets rest on differs.
fn asks_the_same(known: &MemberMeta, meta: &MemberMeta) -> bool {
    known.subscription == meta.subscription
        && known.rack == meta.rack
        && known.assignor == meta.assignor
}

fn check_meta(meta: &MemberMeta) -> Result<(), Refusal> {
    let text = limits::MEMBER_TEXT_BYTES_MAX;
    let instance = meta.instance_id.as_deref();
    if instance.is_some_and(str::is_empty) {
        return Err(Refusal::invalid(
            "instance_id",
            "empty; leave it out instead",
        ));
    }
    Refusal::limit("instance_id", instance.unwrap_or_default().len(), text)?;
    Refusal::limit("client_id", meta.client_id.len(), text)?;
    Refusal::limit("rack", meta.rack.len(), text)?;
    let times = meta.timeouts;
    in_range(
        "session_timeout_ms",
        times.session_ms,
        limits::MEMBER_SESSION_MS_RANGE,
    )?;
    in_range(
        "rebalance_timeout_ms",
        times.rebalance_ms,
        limits::REBALANCE_MS_RANGE,
    )?;
    in_range(
        "processing_timeout_ms",
        times.processing_ms,
        limits::PROCESSING_MS_RANGE,
    )?;
    in_range("max_attempts", meta.policy.attempts, limits::ATTEMPTS_RANGE)?;
    meta.subscription.check()
}

fn in_range(field: &'static str, value: u32, (low, high): (u32, u32)) -> Result<(), Refusal> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    let reason = format!("{value} is not between {low} and {high}");
    Err(Refusal::invalid(field, &reason))
}
