//! Controllers and their metastore: terms of the production core, of which one
//! is elected; a deposed one goes on until a write is refused. Mirrors
//! `services/controller`'s `term` and `store`.

use crate::{
    Checked, Happened,
    net::{Conn, Life, Message, Peer},
    plan::TopicPlan,
    replicate::Late,
    rng::Rng,
    world::{Event, World, wall_clock},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use talweg_controller::{
    convert,
    core::{
        self, CallId, Change, Core, CreateTopic, Effect, ElectLeader, FolderStatus, Limits, Now,
        Partition, Reply, Request, Settings, StreamId, View,
    },
};
use talweg_metastore::Revision;
use talweg_types::{Durability, FolderId, NodeId, PartitionIndex, TopicId, TopicPartition};
use uuid::Uuid;

use crate::session::SESSION_MS;

/// Machines that controllers run on.
const MACHINES: usize = 2;

pub struct Term {
    pub life: Life,
    pub machine: usize,
    core: Core,
    began: u64,
    /// Its writes are taken.
    pub elected: bool,
    writing: Option<Vec<Change>>,
    streams: BTreeSet<Conn>,
    watchers: BTreeSet<Conn>,
    calls: BTreeMap<CallId, Caller>,
    next_call: u64,
}

enum Caller {
    /// With the members of each proposal.
    Node {
        peer: Peer,
        call: Conn,
        members: Vec<Vec<NodeId>>,
    },
    Create,
    Operator,
}

pub struct Control {
    rng: Rng,
    pub store: View,
    pub terms: Vec<Term>,
    next_life: Life,
    nodes: usize,
    pub unclear_until: u64,
    pub late: Vec<Late>,
}

pub fn topic_id(number: usize) -> TopicId {
    TopicId(Uuid::from_u128(number as u128 + 1))
}

pub fn topic_name(number: usize) -> String {
    format!("topic-{number}")
}

impl Control {
    pub fn new(rng: Rng, nodes: usize) -> Self {
        let mut store = View::default();
        store.revision = Revision(1);
        Self {
            rng,
            store,
            terms: Vec::new(),
            next_life: 1,
            nodes,
            unclear_until: 0,
            late: Vec::new(),
        }
    }

    /// Who answers on a machine; 0: nobody.
    pub fn life_on(&self, machine: usize) -> Life {
        let here = self.terms.iter().find(|term| term.machine == machine);
        here.map_or(0, |term| term.life)
    }

    pub fn elected(&self) -> Option<&Term> {
        self.terms.iter().find(|term| term.elected)
    }

    fn term(&mut self, life: Life) -> Option<&mut Term> {
        self.terms.iter_mut().find(|term| term.life == life)
    }

    pub fn partition(&self, tp: &TopicPartition) -> Option<&Partition> {
        self.store.partitions.get(tp).map(|stored| &stored.value)
    }
}

fn settings() -> Settings {
    Settings {
        session_timeout: Duration::from_millis(SESSION_MS),
        default_partitions: 1,
        limits: Limits {
            partitions_per_node: 100,
            partitions_per_topic: 100,
        },
        preferred_after: Some(Duration::from_secs(8)),
        new_cluster_id: Uuid::from_u128(0xc1),
        coordinator_shards: 8,
        coordinator_replication_factor: None,
        new_offsets_topic: TopicId(Uuid::from_u128(0x0ff5e7)),
    }
}

impl World {
    fn core_now(&self, began: u64) -> Now {
        Now {
            monotonic: Duration::from_millis(self.now - began),
            wall: wall_clock(),
        }
    }

    /// Another controller is elected, on a machine where none runs.
    pub fn begin_term(&mut self) -> Checked {
        if self.control.elected().is_some() {
            return Ok(());
        }
        let used: Vec<_> = self.control.terms.iter().map(|term| term.machine).collect();
        let offset = self.control.rng.below(MACHINES);
        let free = (0..MACHINES)
            .map(|i| (i + offset) % MACHINES)
            .find(|machine| !used.contains(machine));
        let Some(machine) = free else {
            self.after(100, Event::TermBegins);
            return Ok(());
        };
        let control = &mut self.control;
        control.store.revision = control.store.revision.next();
        let life = control.next_life;
        control.next_life += 1;
        if life > 1 {
            self.coverage.note(Happened::Failover);
        }
        let now = self.core_now(self.now);
        self.say(|| format!("controller {life} is elected on machine {machine}"));
        self.control.terms.push(Term {
            life,
            machine,
            core: Core::new(settings(), self.control.store.clone(), now),
            began: self.now,
            elected: true,
            writing: None,
            streams: BTreeSet::new(),
            watchers: BTreeSet::new(),
            calls: BTreeMap::new(),
            next_call: 0,
        });
        self.on_term_tick(life)
    }

    /// The term is over; its streams end.
    pub fn end_term(&mut self, life: Life) {
        let Some(at) = self.control.terms.iter().position(|term| term.life == life) else {
            return;
        };
        let term = self.control.terms.remove(at);
        self.say(|| format!("controller {life} ends"));
        // Its last write may have been taken.
        if let Some(changes) = term.writing.filter(|_| term.elected)
            && self.control.rng.percent(50)
        {
            // The next controller reads it.
            if let Err(error) = self.commit(changes) {
                self.oracle.broken.get_or_insert(error);
            }
        }
        for conn in term.streams.into_iter().chain(term.watchers) {
            self.send(conn, 1, Message::Closed);
        }
        if term.elected {
            let gap = self.control.rng.between(20, 1_000);
            self.after(gap, Event::TermBegins);
        }
    }

    /// The elected one is elected no more; it may go on for a while.
    pub fn depose(&mut self, gap: u64, zombie: u64) {
        let Some(term) = self.control.terms.iter_mut().find(|term| term.elected) else {
            return;
        };
        let life = term.life;
        if zombie == 0 {
            self.end_term(life);
            return;
        }
        term.elected = false;
        self.after(gap, Event::TermBegins);
        self.after(zombie, Event::TermEnds { term: life });
    }

    pub fn on_term_tick(&mut self, life: Life) -> Checked {
        if self.control.term(life).is_none() {
            return Ok(());
        }
        self.after(SESSION_MS / 4, Event::TermTick { term: life });
        self.on_core(life, core::Event::Tick)
    }

    fn on_core(&mut self, life: Life, event: core::Event) -> Checked {
        let Some(began) = self.control.term(life).map(|term| term.began) else {
            return Ok(());
        };
        let now = self.core_now(began);
        let Some(term) = self.control.term(life) else {
            return Ok(());
        };
        let effects = term.core.step(now, event);
        let answers = effects
            .iter()
            .any(|effect| matches!(effect, Effect::Reply { .. } | Effect::Registered { .. }));
        if answers || !term.core.is_writing() {
            self.tell_watchers(life);
        }
        effects
            .into_iter()
            .try_for_each(|effect| self.act(life, effect))
    }

    fn tell_watchers(&mut self, life: Life) {
        let Some(term) = self.control.term(life) else {
            return;
        };
        let Some(changed) = term.core.take_changed() else {
            return;
        };
        let Some(delta) = convert::delta(&term.core, &changed) else {
            return;
        };
        let delta = Arc::new(delta);
        let watchers: Vec<_> = term.watchers.iter().copied().collect();
        watchers
            .into_iter()
            .for_each(|conn| self.send(conn, 1, Message::View(Arc::clone(&delta))));
    }

    fn act(&mut self, life: Life, effect: Effect) -> Checked {
        match effect {
            Effect::Write { changes } => {
                let unclear = self.now < self.control.unclear_until;
                let wait = if unclear {
                    self.control.rng.between(5, 800)
                } else {
                    self.control.rng.between(1, 12)
                };
                if let Some(term) = self.control.term(life) {
                    term.writing = Some(changes);
                }
                self.after(wait, Event::WriteEnds { term: life });
            }
            Effect::Reply { call, outcome } => self.on_reply(life, call, outcome),
            Effect::Registered {
                stream,
                node,
                cluster,
                incarnation,
            } => {
                self.say(|| format!("node {node} is in with incarnation {}", incarnation.0));
                self.send(
                    stream.0,
                    1,
                    Message::Registered {
                        incarnation,
                        cluster,
                    },
                );
            }
            Effect::HeartbeatAck { stream } => self.send(stream.0, 1, Message::Ack),
            Effect::Fence { stream, .. } => self.end_stream(life, stream, Message::Fenced),
            Effect::Refuse { stream, refusal } => {
                self.say(|| format!("refused: {refusal}"));
                let stale = matches!(refusal, core::Refusal::StaleIncarnation { .. });
                self.end_stream(
                    life,
                    stream,
                    if stale {
                        Message::Fenced
                    } else {
                        Message::Closed
                    },
                );
            }
            Effect::Close { stream } => self.end_stream(life, stream, Message::Closed),
            Effect::Probe {
                node, incarnation, ..
            } => {
                let wait = self.control.rng.between(1, 60);
                self.after(
                    wait,
                    Event::Probed {
                        term: life,
                        node: node.0,
                        incarnation: incarnation.0,
                    },
                );
            }
            Effect::AskEnds { stream, partitions } => {
                self.send(stream.0, 1, Message::AskEnds(partitions))
            }
            Effect::Recovered { .. } => {}
            Effect::Resign => self.end_term(life),
        }
        Ok(())
    }

    fn end_stream(&mut self, life: Life, stream: StreamId, last: Message) {
        self.send(stream.0, 1, last);
        if let Some(term) = self.control.term(life) {
            term.streams.remove(&stream.0);
        }
    }

    pub fn on_write_ends(&mut self, life: Life) -> Checked {
        let now = self.now;
        let unclear = now < self.control.unclear_until;
        let fate = self.control.rng.below(100);
        let Some(term) = self.control.term(life) else {
            return Ok(());
        };
        let Some(changes) = term.writing.take() else {
            return Ok(());
        };
        if !term.elected {
            self.coverage.note(Happened::Zombie);
            self.end_term(life);
            return Ok(());
        }
        let event = if unclear && fate < 50 {
            self.coverage.note(Happened::UnclearWrite);
            if fate < 25 {
                self.commit(changes)?;
            }
            core::Event::Reloaded {
                view: Box::new(self.control.store.clone()),
            }
        } else {
            self.commit(changes)?;
            core::Event::Written {
                revision: self.control.store.revision,
            }
        };
        self.on_core(life, event)
    }

    fn commit(&mut self, changes: Vec<Change>) -> Checked {
        let before: Vec<_> = changes
            .iter()
            .filter_map(Change::partition)
            .map(|tp| (tp, self.control.partition(&tp).cloned()))
            .collect();
        let revision = self.control.store.revision.next();
        self.control.store.apply(revision, changes);
        self.mix(revision.0);
        for (tp, before) in before {
            self.on_partition_changed(tp, before)?;
        }
        Ok(())
    }

    pub fn on_probed(&mut self, life: Life, node: u32, incarnation: u64) -> Checked {
        let Some(machine) = self.control.term(life).map(|term| term.machine) else {
            return Ok(());
        };
        let index = node as usize - 1;
        let end = self.control.nodes + machine;
        let cut = self.net.is_cut(end, index, self.now) || self.net.is_cut(index, end, self.now);
        let this = &self.nodes[index];
        if cut || this.off || this.process.is_some() {
            return Ok(());
        }
        let event = core::Event::ProbeRefused {
            node: talweg_types::NodeId(node),
            incarnation: talweg_types::Incarnation(incarnation),
        };
        self.on_core(life, event)
    }

    /// What comes over a stream to a controller.
    pub fn on_control_stream(&mut self, life: Life, conn: Conn, message: Message) -> Checked {
        let stream = StreamId(conn);
        let Some(term) = self.control.term(life) else {
            if !matches!(message, Message::Closed) {
                self.send(conn, 1, Message::Closed);
            }
            return Ok(());
        };
        let event = match message {
            Message::Register(registration) => {
                term.streams.insert(conn);
                core::Event::Register {
                    stream,
                    registration: *registration,
                }
            }
            Message::Watch => return self.begin_watch(life, conn),
            Message::Closed if term.watchers.remove(&conn) => return Ok(()),
            Message::Closed if term.streams.remove(&conn) => core::Event::StreamBroken { stream },
            _ if !term.streams.contains(&conn) => return Ok(()),
            Message::Heartbeat { failed } => {
                let status = FolderStatus {
                    id: FolderId(Uuid::nil()),
                    free_bytes: 1 << 40,
                    total_bytes: 1 << 40,
                    full: false,
                    failure: if failed {
                        "failed".into()
                    } else {
                        String::new()
                    },
                };
                core::Event::Heartbeat {
                    stream,
                    folders: vec![status],
                }
            }
            Message::Ends(ends) => core::Event::ReplicaEnds { stream, ends },
            _ => return Ok(()),
        };
        if matches!(event, core::Event::Register { .. }) {
            self.note_restart(life, &event);
        }
        self.on_core(life, event)
    }

    /// The process before this one still has its session.
    fn note_restart(&mut self, life: Life, event: &core::Event) {
        let core::Event::Register { registration, .. } = event else {
            return;
        };
        let session = self
            .control
            .term(life)
            .and_then(|term| term.core.session(registration.node));
        if session.is_some_and(|session| session.process != registration.process) {
            self.coverage.note(Happened::RestartInSession);
        }
    }

    fn begin_watch(&mut self, life: Life, conn: Conn) -> Checked {
        self.tell_watchers(life);
        let Some(term) = self.control.term(life) else {
            return Ok(());
        };
        term.watchers.insert(conn);
        let parts = convert::snapshot(&term.core);
        parts
            .into_iter()
            .for_each(|part| self.send(conn, 1, Message::View(Arc::new(part))));
        Ok(())
    }

    /// A call to a controller.
    pub fn on_call(&mut self, from: Peer, to: Peer, call: Conn, message: Message) -> Checked {
        let Message::Alter(asked) = message else {
            return Ok(());
        };
        let Some(term) = self.control.term(to.life) else {
            self.send_single(to, from, call, &Message::Altered(None));
            return Ok(());
        };
        let members = asked.proposals.iter();
        let members = members
            .map(|one| one.members.iter().map(|(node, _)| *node).collect())
            .collect();
        let id = term.name(Caller::Node {
            peer: from,
            call,
            members,
        });
        self.on_core(
            to.life,
            core::Event::Request {
                call: id,
                request: Request::AlterInSync(asked),
            },
        )
    }

    fn on_reply(&mut self, life: Life, call: CallId, outcome: Result<Reply, core::Refusal>) {
        let nodes = self.control.nodes;
        let Some(term) = self.control.term(life) else {
            return;
        };
        let from = Peer {
            end: nodes + term.machine,
            life,
        };
        match (term.calls.remove(&call), outcome) {
            (
                Some(Caller::Node {
                    peer,
                    call,
                    members,
                }),
                Ok(Reply::InSync(results)),
            ) => {
                self.note_refusals(&members, &results);
                self.send_single(from, peer, call, &Message::Altered(Some(results)));
            }
            (Some(Caller::Node { peer, call, .. }), _) => {
                self.send_single(from, peer, call, &Message::Altered(None));
            }
            _ => {}
        }
    }

    fn note_refusals(&mut self, members: &[Vec<NodeId>], results: &[core::InSyncResult]) {
        for (members, result) in members.iter().zip(results) {
            let Some(why) = &result.refused else { continue };
            self.say(|| format!("in-sync set {members:?} refused: {why}"));
            let known = result.state.as_ref().map(|state| &state.in_sync);
            if known.is_some_and(|known| members.iter().any(|node| !known.contains(node))) {
                self.coverage.note(Happened::GrowthRefused);
            }
        }
    }

    /// Asks the elected controller, as an operator would.
    pub fn ask(&mut self, request: Request) -> Checked {
        let caller = match &request {
            Request::Create(_) => Caller::Create,
            _ => Caller::Operator,
        };
        let Some(term) = self.control.terms.iter_mut().find(|term| term.elected) else {
            return Ok(());
        };
        let (life, call) = (term.life, term.name(caller));
        self.on_core(life, core::Event::Request { call, request })
    }

    pub fn create_topic(&mut self, number: usize, topic: &TopicPlan) -> Checked {
        let durability = match topic.durability {
            Durability::Synced => "synced",
            Durability::Replicated => "replicated",
        };
        let config = [
            ("durability", durability.to_owned()),
            ("min.insync.replicas", topic.min_insync.to_string()),
            ("segment.bytes", "4096".to_owned()),
            ("index.interval.bytes", "512".to_owned()),
        ];
        let config = config
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect();
        self.ask(Request::Create(CreateTopic {
            name: topic_name(number),
            partitions: Some(topic.partitions as i32),
            replication_factor: Some(3),
            config,
            idempotency_key: String::new(),
            id: topic_id(number),
        }))
    }

    pub fn elect_unclean(&mut self, tp: TopicPartition) -> Checked {
        let number = tp.topic_id.0.as_u128() as usize - 1;
        self.ask(Request::Elect(ElectLeader {
            topic: topic_name(number),
            partition: tp.partition,
            unclean: true,
        }))
    }

    pub fn partitions(&self) -> Vec<TopicPartition> {
        let topics = self.plan.topics.iter().enumerate();
        let each = topics.flat_map(|(number, topic)| {
            (0..topic.partitions).map(move |partition| TopicPartition {
                topic_id: topic_id(number),
                partition: PartitionIndex(partition),
            })
        });
        each.collect()
    }

    pub fn topic_of(&self, tp: &TopicPartition) -> &TopicPlan {
        &self.plan.topics[tp.topic_id.0.as_u128() as usize - 1]
    }
}

impl Term {
    fn name(&mut self, caller: Caller) -> CallId {
        self.next_call += 1;
        let call = CallId(self.next_call);
        self.calls.insert(call, caller);
        call
    }
}
