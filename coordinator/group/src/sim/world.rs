//! Members, a network that delays, repeats and reorders, and a coordinator that
//! fails.

use super::{
    REBALANCE_MS, SESSION_MS,
    client::{Client, Life, commit},
    oracle::Oracle,
    rng::Rng,
    runtime::{Decided, Runtime},
};
use crate::{
    Answer, CommitKind, Committer, DeadLetterPolicy, Effect, Event, Join, MemberEpoch, MemberKind,
    MemberMeta, Now, Refusal, Settings, Subscription, Timeouts, Topic, Topics,
};
use std::collections::{BTreeSet, VecDeque};
use talweg_types::{MemberId, PartitionIndex, TopicId, TopicPartition};

/// Living clients at a time.
const CLIENTS: usize = 6;
/// Messages kept to be repeated.
const REPEATS: usize = 60;

pub(super) struct World {
    pub rng: Rng,
    pub now: Now,
    pub runtime: Runtime,
    pub oracle: Oracle,
    pub clients: Vec<Client>,
    pub topics: Vec<(TopicId, usize)>,
    /// On their way to the coordinator, in no order.
    pub inbox: Vec<Event>,
    sent: VecDeque<Event>,
    ids: u64,
    pub failures: usize,
}

type Checked = Result<(), String>;

impl World {
    pub fn new(seed: u64) -> Self {
        let settings = Settings {
            assignment_interval_ms: 50,
            // A stream that is not heard of in time is gone with its session.
            reattach_grace_ms: SESSION_MS,
            ..Settings::default()
        };
        let mut world = Self {
            rng: Rng::new(seed),
            now: Now::default(),
            runtime: Runtime::new(settings),
            oracle: Oracle::default(),
            clients: Vec::new(),
            topics: Vec::new(),
            inbox: Vec::new(),
            sent: VecDeque::new(),
            ids: 0,
            failures: 0,
        };
        for partitions in [5, 2] {
            let id = TopicId::from_slice(world.fresh().as_bytes()).unwrap();
            world.topics.push((id, partitions));
        }
        world
    }

    pub fn step(&mut self) -> Checked {
        match self.rng.below(100) {
            0..40 => self.deliver()?,
            40..50 => self.pass()?,
            50..55 => self.coordinator_trouble()?,
            55..57 => self.change_topics()?,
            57..62 => self.spawn(),
            62..63 => self.operate()?,
            63..64 => self.break_link()?,
            _ => self.act(),
        }
        if self.rng.percent(80) {
            self.commit()?;
        }
        Ok(())
    }

    pub fn topics(&self) -> Topics {
        Topics::new(self.topics.iter().enumerate().map(|(n, (id, partitions))| {
            let topic = Topic {
                id: *id,
                racks: vec![vec![]; *partitions],
                derived: false,
            };
            (format!("t{n}"), topic)
        }))
    }

    fn fresh(&mut self) -> MemberId {
        self.ids += 1;
        let mut bytes = [0; 16];
        bytes[8..].copy_from_slice(&self.ids.to_be_bytes());
        MemberId::from_slice(&bytes).unwrap()
    }

    fn meta(&self, instance: Option<String>) -> MemberMeta {
        MemberMeta {
            instance_id: instance,
            client_id: "sim".into(),
            rack: String::new(),
            kind: MemberKind::Streaming,
            subscription: Subscription {
                names: BTreeSet::new(),
                pattern: Some("t.*".into()),
            },
            assignor: None,
            timeouts: Timeouts {
                session_ms: u32::try_from(SESSION_MS).unwrap(),
                rebalance_ms: u32::try_from(REBALANCE_MS).unwrap(),
                ..Timeouts::default()
            },
            policy: DeadLetterPolicy::default(),
            reads_committed: false,
        }
    }

    pub fn send(&mut self, event: Event) {
        self.sent.push_back(event.clone());
        if self.sent.len() > REPEATS {
            self.sent.pop_front();
        }
        self.inbox.push(event);
    }

    pub fn decide(&mut self, event: Event) -> Checked {
        let topics = self.topics();
        self.runtime.decide(self.now, &topics, event)
    }

    fn deliver(&mut self) -> Checked {
        if self.rng.percent(10) && !self.sent.is_empty() {
            let repeat = self.rng.below(self.sent.len());
            return self.decide(self.sent[repeat].clone());
        }
        if !self.inbox.is_empty() {
            let next = self.rng.below(self.inbox.len());
            let event = self.inbox.swap_remove(next);
            if !self.rng.percent(5) {
                self.decide(event)?;
            }
        }
        Ok(())
    }

    /// A link to a gateway breaks: any of the members are no longer known to live.
    fn break_link(&mut self) -> Checked {
        let members = self.runtime.group.state().members().keys().copied();
        let members: Vec<_> = members.collect();
        let some = members.into_iter().filter(|_| self.rng.percent(50));
        let some = some.collect();
        self.decide(Event::LinkBroken(some))
    }

    fn pass(&mut self) -> Checked {
        let ms = self.rng.below(150);
        self.now.monotonic = self.now.monotonic.plus(ms as u64);
        self.now.wall.0 += i64::try_from(ms).unwrap();
        self.decide(Event::Tick)
    }

    fn coordinator_trouble(&mut self) -> Checked {
        if self.rng.percent(60) {
            self.failures += 1;
            return self.runtime.fail(self.now);
        }
        if self.rng.percent(30) {
            self.failures += 1;
            let compacted = self.rng.percent(50);
            self.runtime.fail_over(self.now, compacted)?;
            return self.decide(Event::TopicsChanged);
        }
        Ok(())
    }

    fn change_topics(&mut self) -> Checked {
        let topic = self.rng.below(self.topics.len());
        if self.rng.percent(30) {
            let old = self.topics[topic].0;
            let new = TopicId::from_slice(self.fresh().as_bytes()).unwrap();
            self.topics[topic].0 = new;
            // Deleted and made again: the word comes with the new view.
            self.decide(Event::TopicsDeleted(BTreeSet::from([old])))?;
        } else if self.topics[topic].1 < 9 {
            self.topics[topic].1 += 1;
        }
        self.decide(Event::TopicsChanged)
    }

    fn operate(&mut self) -> Checked {
        let at = self.any_partition();
        let offset = i64::try_from(self.rng.below(300)).unwrap();
        if self.rng.percent(90) {
            let event = commit(Committer::Standalone, at, CommitKind::Commit, offset);
            self.decide(event)
        } else {
            self.decide(Event::DeleteGroup)
        }
    }

    fn any_partition(&mut self) -> TopicPartition {
        let (topic_id, partitions) = self.topics[self.rng.below(self.topics.len())];
        let partition = PartitionIndex(u32::try_from(self.rng.below(partitions)).unwrap());
        TopicPartition {
            topic_id,
            partition,
        }
    }

    fn spawn(&mut self) {
        let living = self
            .clients
            .iter()
            .filter(|client| client.life != Life::Dead);
        if living.count() < CLIENTS {
            let names = ["a", "b", "c"];
            let instance = self
                .rng
                .percent(50)
                .then(|| names[self.rng.below(3)].to_owned());
            self.join(instance);
        }
        self.clients.retain(|client| client.life != Life::Dead);
    }

    pub fn join(&mut self, instance: Option<String>) {
        let id = self.fresh();
        self.clients.push(Client {
            id,
            instance: instance.clone(),
            life: Life::Joining,
            epoch: MemberEpoch::default(),
            view: None,
            views: VecDeque::new(),
        });
        let meta = self.meta(instance);
        let join = Join {
            new_id: id,
            claim: None,
            meta,
        };
        self.send(Event::Join(join));
    }

    pub fn claim(&mut self, client: usize) {
        let (id, instance) = (
            self.clients[client].id,
            self.clients[client].instance.clone(),
        );
        let meta = self.meta(instance);
        let new_id = self.fresh();
        self.send(Event::Join(Join {
            new_id,
            claim: Some(id),
            meta,
        }));
    }

    /// Some client does something.
    fn act(&mut self) {
        if self.clients.is_empty() {
            return;
        }
        let n = self.rng.below(self.clients.len());
        if self.rng.percent(60) {
            self.clients[n].read();
        }
        match self.clients[n].life {
            Life::Joining if self.rng.percent(20) => {
                // Its join, or the answer, was lost.
                let (new_id, instance) = (self.clients[n].id, self.clients[n].instance.clone());
                let meta = self.meta(instance);
                self.send(Event::Join(Join {
                    new_id,
                    claim: None,
                    meta,
                }));
            }
            Life::In => self.act_in(n),
            Life::Broken if self.rng.percent(30) => self.claim(n),
            Life::Out if self.rng.percent(30) => {
                let instance = self.clients[n].instance.clone();
                self.clients[n].life = Life::Dead;
                self.join(instance);
            }
            Life::Joining | Life::Broken | Life::Out | Life::Dead => {}
        }
    }

    fn act_in(&mut self, n: usize) {
        let caller = self.clients[n].caller();
        let held = self.clients[n].held();
        match self.rng.below(100) {
            0..35 => self.send(Event::Heartbeat(caller)),
            35..55 => {
                if let Some(event) = self.clients[n].confirmation() {
                    self.send(event);
                }
            }
            55..88 => {
                let seek = self.rng.percent(8);
                let kind = if seek {
                    CommitKind::Seek
                } else {
                    CommitKind::Commit
                };
                let offset = i64::try_from(self.rng.below(300)).unwrap();
                if let Some(at) = self.rng.pick(&held).copied() {
                    let event = self.clients[n].commit(at, kind, offset);
                    self.send(event);
                }
            }
            88..93 => {
                let in_flight = self.rng.percent(60).then(|| held.into_iter().collect());
                self.clients[n].life = if self.rng.percent(50) {
                    Life::Broken
                } else {
                    Life::Dead
                };
                self.send(Event::StreamBroken { caller, in_flight });
            }
            93..95 => {
                self.clients[n].life = Life::Dead;
                self.send(Event::Leave(caller));
            }
            95..97 => {
                let partitions = held.into_iter().take(1).collect();
                self.send(Event::Overran { caller, partitions });
            }
            97..98 => self.clients[n].life = Life::Dead,
            _ => {}
        }
    }

    pub fn commit(&mut self) -> Checked {
        for decided in self.runtime.commit()? {
            let clients = &self.clients;
            let is_open = |id| {
                clients
                    .iter()
                    .any(|client| client.id == id && client.life == Life::In)
            };
            self.oracle.released(&decided, is_open)?;
            self.told(decided);
        }
        Ok(())
    }

    /// Answers and effects reach the clients' queues.
    fn told(&mut self, decided: Decided) {
        for effect in decided.step.effects {
            match effect {
                Effect::Tell(view) => self.queue(view, false),
                Effect::Removed { member, .. } => self.put_out(member),
            }
        }
        match (decided.event, decided.step.answer) {
            (Event::Join(_), Ok(Answer::View(view))) => self.queue(view, true),
            (Event::Join(join), Err(Refusal::UnknownMember(_) | Refusal::InstanceInUse { .. })) => {
                self.put_out(join.claim.unwrap_or(join.new_id));
            }
            (_, Ok(Answer::View(view))) => self.queue(view, false),
            (_, _) => {}
        }
    }

    fn queue(&mut self, view: crate::View, opens: bool) {
        let to = self
            .clients
            .iter_mut()
            .find(|client| client.id == view.member);
        if let Some(client) = to.filter(|client| client.life != Life::Dead) {
            if opens {
                client.life = Life::In;
                client.views.clear();
            }
            client.views.push_back(view);
        }
    }

    fn put_out(&mut self, member: MemberId) {
        let to = self.clients.iter_mut().find(|client| client.id == member);
        if let Some(client) = to.filter(|client| client.life != Life::Dead) {
            client.life = Life::Out;
        }
    }
}
