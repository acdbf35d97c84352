//! One step: what all handlers share.

use crate::{
    Answer, Caller, Current, Effect, Event, Given, GroupMeta, GroupState, Key, MemberEpoch,
    MemberMeta, Now, Record, Refusal, Settings, Step, Topics, Undo, Value, View,
    delivery::delivery,
    live::{Live, Session, Stream},
};
use std::collections::{BTreeMap, BTreeSet};
use talweg_types::{LeaderEpoch, MemberId};

pub(crate) struct Turn<'a> {
    pub state: &'a mut GroupState,
    pub live: &'a mut Live,
    pub settings: &'a Settings,
    pub topics: &'a Topics,
    pub now: Now,
    /// By key: the value before this step.
    before: BTreeMap<Key, Option<Value>>,
    pub effects: Vec<Effect>,
    /// Members whose view may have changed.
    pub touched: BTreeSet<MemberId>,
}

impl<'a> Turn<'a> {
    pub fn new(
        state: &'a mut GroupState,
        live: &'a mut Live,
        settings: &'a Settings,
        topics: &'a Topics,
        now: Now,
    ) -> Self {
        Self {
            state,
            live,
            settings,
            topics,
            now,
            before: BTreeMap::new(),
            effects: Vec::new(),
            touched: BTreeSet::new(),
        }
    }

    pub fn run(mut self, event: Event) -> Step {
        let answer = self.dispatch(event);
        self.finish(answer)
    }

    fn dispatch(&mut self, event: Event) -> Result<Answer, Refusal> {
        match event {
            Event::Join(join) => self.on_join(join),
            Event::Heartbeat(caller) => self.on_heartbeat(caller),
            Event::StreamBroken { caller, in_flight } => self.on_stream_broken(caller, in_flight),
            Event::LinkBroken(members) => self.on_link_broken(&members),
            Event::Leave(caller) => self.on_leave(caller),
            Event::Revoked { caller, partitions } => self.on_revoked(caller, &partitions),
            Event::Overran { caller, partitions } => self.on_overran(caller, &partitions),
            Event::Poll { member, epoch } => self.on_poll(member, epoch),
            Event::Returned {
                member,
                epoch,
                next,
            } => self.on_returned(member, epoch, next),
            Event::Commit(commit) => self.on_commit(commit),
            Event::Tick => self.on_tick(),
            Event::TopicsChanged => self.on_topics_changed(),
            Event::TopicsDeleted(ids) => self.on_topics_deleted(&ids),
            Event::Reset { changes, execute } => self.on_reset(changes, execute),
            Event::DeleteOffsets(partitions) => self.on_delete_offsets(&partitions),
            Event::DeleteGroup => self.on_delete_group(),
            Event::Expire { retention_ms } => self.on_expire(retention_ms),
        }
    }

    /// One record a key, none for what is as before, and the views.
    fn finish(mut self, answer: Result<Answer, Refusal>) -> Step {
        let mut records = Vec::new();
        let mut undo = Undo::default();
        for (key, before) in std::mem::take(&mut self.before) {
            let value = self.value(key);
            if value != before {
                records.push(Record { key, value });
                undo.0.push((key, before));
            }
        }
        if let Ok(Answer::View(view)) = &answer {
            self.touched.remove(&view.member);
        }
        let mut effects = std::mem::take(&mut self.effects);
        let views = self.touched.iter().filter_map(|id| self.view(*id));
        effects.extend(views.map(Effect::Tell));
        Step {
            records,
            answer,
            effects,
            undo,
        }
    }

    pub fn put(&mut self, key: Key, value: Value) {
        self.write(key, Some(value));
    }

    pub fn remove(&mut self, key: Key) {
        self.write(key, None);
    }

    fn write(&mut self, key: Key, value: Option<Value>) {
        let before = self.state.apply(Record { key, value });
        self.before.entry(key).or_insert(before);
    }

    fn value(&self, key: Key) -> Option<Value> {
        let state = &self.state;
        match key {
            Key::Group => state.meta.map(Value::Group),
            Key::Member(id) => {
                let meta = state.members.get(&id).cloned();
                meta.map(|meta| Value::Member(Box::new(meta)))
            }
            Key::Target(id) => state.targets.get(&id).cloned().map(Value::Target),
            Key::Current(id) => state.currents.get(&id).cloned().map(Value::Current),
            Key::Offset(at) => state.offsets.get(&at).cloned().map(Value::Offset),
            Key::Failures(at) => state.failures.get(&at).copied().map(Value::Failures),
        }
    }

    pub fn meta(&self) -> GroupMeta {
        self.state.meta.unwrap_or_default()
    }

    /// The next group epoch. `targets_hold`: nothing that targets rest on changed.
    pub fn raise_epoch(&mut self, targets_hold: bool) -> MemberEpoch {
        let mut meta = self.meta();
        let fresh = meta.target_epoch == meta.group_epoch;
        meta.group_epoch = meta.group_epoch.next();
        if targets_hold && fresh {
            meta.target_epoch = meta.group_epoch;
        }
        self.put(Key::Group, Value::Group(meta));
        meta.group_epoch
    }

    /// The caller's present life; others are fenced.
    pub fn check_caller(&self, caller: Caller) -> Result<&Current, Refusal> {
        let Some(current) = self.state.currents.get(&caller.member) else {
            return Err(Refusal::UnknownMember(caller.member));
        };
        let known = current.attach_epoch..=current.member_epoch;
        if known.contains(&caller.epoch) {
            return Ok(current);
        }
        Err(Refusal::Fenced {
            member: caller.member,
            sent: caller.epoch,
            current: current.member_epoch,
        })
    }

    /// The two go together; none for a member that is gone.
    pub fn session(&mut self, id: MemberId) -> Option<(&mut Session, &MemberMeta)> {
        let session = self.live.sessions.get_mut(&id)?;
        Some((session, self.state.members.get(&id)?))
    }

    /// A sign of life. After a load it also says that the stream will be known
    /// again; it stays unknown until a heartbeat is answered with the view.
    pub fn renew(&mut self, id: MemberId) {
        let now = self.now.monotonic;
        let grace = now.plus(self.settings.reattach_grace_ms);
        if let Some((session, meta)) = self.session(id) {
            session.renew(now, meta);
            if let Stream::Unknown { until } = &mut session.stream {
                *until = grace.max(*until);
            }
        }
    }

    pub fn view(&self, id: MemberId) -> Option<View> {
        let current = self.state.currents.get(&id)?;
        let session = self.live.sessions.get(&id)?;
        let policy = self.state.members.get(&id)?.policy;
        let assigned = current.owned.iter().filter(|(_, owned)| !owned.revoking);
        let assigned = assigned.map(|(at, owned)| {
            let stored = self.state.offsets.get(at);
            let position = session.positions.get(at).copied();
            let given = Given {
                given_epoch: owned.given_epoch,
                next: position.or_else(|| stored.map(|stored| stored.offset)),
                leader_epoch: stored.map_or(LeaderEpoch::NONE, |stored| stored.leader_epoch),
                delivery: delivery(self.state.failures.get(at), policy),
            };
            (*at, given)
        });
        let first = session.revoking.values().min();
        Some(View {
            member: id,
            epoch: current.member_epoch,
            assigned: assigned.collect(),
            revoking: session.revoking.keys().copied().collect(),
            revoke_within_ms: first.map_or(0, |at| at.since(self.now.monotonic)),
        })
    }

    pub fn answer_view(&self, id: MemberId) -> Result<Answer, Refusal> {
        self.view(id)
            .map(Answer::View)
            .ok_or(Refusal::UnknownMember(id))
    }
}
