//! A storage node's process: its replicas and what its loops, flushers and
//! assigner do with them. Mirrors `services/storage`'s `partition::event_loop`,
//! `partition::rounds` and `control::assigner`; what they decide with is the
//! production code.

use crate::{
    Checked, Happened,
    client::OpId,
    net::{Conn, Message},
    replicate::{Puller, Server},
    session::Session,
    world::{Event, World, wall_clock},
};
use parking_lot::RwLock;
use std::{collections::BTreeMap, sync::Arc};
use talweg_log::{Boot, FlushTicket, LogFolder, PartitionLog};
use talweg_replication::{Contacts, MonotonicMs, Proposal};
use talweg_storage::parts::{
    Action, AppendRequest, ClusterView, Completions, Deliveries, Following, Known, Leadership,
    Letters, Me, NewNodes, Opened, Outbox, PartitionHandle, Phase, Replica, Reservation, Role,
    Taken, TopicView, ViewUpdate, decide, leader_settings, log_config,
};
use talweg_types::{Acks, Incarnation, LeaderEpoch, NodeId, TopicPartition};

/// What failed is looked at again after this, as in production.
const RETRY_MS: u64 = 10_000;
/// A background flush begins so long after the last one.
const BACKGROUND_MS: u64 = 1_000;
pub const TICK_MS: u64 = 100;
/// As in production.
const MARK_AGAIN_MS: u64 = 1_000;

/// Questions to the controller that wait for their answer.
pub struct Asked {
    pub call: Conn,
    pub until: MonotonicMs,
    pub proposals: Vec<(TopicPartition, Proposal)>,
}

pub struct Process {
    pub id: uuid::Uuid,
    pub folder: Arc<LogFolder>,
    pub boot: Boot,
    pub node: NodeId,
    pub incarnation: Option<Incarnation>,
    pub replicas: BTreeMap<TopicPartition, Replica>,
    pub handles: BTreeMap<TopicPartition, Arc<PartitionHandle>>,
    on_disk: Vec<TopicPartition>,
    known: BTreeMap<TopicPartition, Known>,
    pub view: Arc<ClusterView>,
    pub update: ViewUpdate,
    pub contacts: Arc<RwLock<Contacts>>,
    pub outbox: Arc<Outbox>,
    pub followed: NewNodes,
    pub letters: BTreeMap<NodeId, Arc<Letters>>,
    pub pullers: BTreeMap<NodeId, Puller>,
    pub servers: BTreeMap<Conn, Server>,
    pub session: Session,
    pub watch: Option<Conn>,
    pub watch_again: u64,
    pub asked: Option<Asked>,
    pub ask_again: u64,
    pub tickets: BTreeMap<TopicPartition, FlushTicket>,
    next_background: u64,
    next_log_tick: u64,
    next_retry: u64,
    pub answers: Arc<Completions>,
    pub out: Deliveries,
    failure_seen: bool,
}

impl World {
    pub fn start_process(&mut self, node: usize) -> Checked {
        self.nodes[node].off = false;
        let life = self.nodes[node].life;
        let opened = self.nodes[node].disk.open();
        let (folder, report) = match opened {
            Ok(opened) => opened,
            // A disk that is full for a moment.
            Err(error) => {
                self.say(|| format!("node {} cannot open its folder: {error}", node + 1));
                self.after(500, Event::Starts { node, life });
                return Ok(());
            }
        };
        let on_disk = folder
            .partitions()
            .map_err(|error| format!("node {}: {error}", node + 1))?;
        self.oracle.on_start(node, report.boot)?;
        if report.boot == Boot::Unclean {
            self.coverage.note(Happened::UncleanBoot);
        }
        let (outbox, followed) = Outbox::new();
        let view = Arc::new(ClusterView::empty());
        let id = uuid::Uuid::from_u64_pair(node as u64 + 1, life);
        self.say(|| format!("node {} starts: {:?}", node + 1, report.boot));
        let process = Process {
            id,
            folder,
            boot: report.boot,
            node: NodeId(node as u32 + 1),
            incarnation: None,
            replicas: BTreeMap::new(),
            handles: BTreeMap::new(),
            on_disk,
            known: BTreeMap::new(),
            update: ViewUpdate::new(Arc::clone(&view)),
            view,
            contacts: Arc::default(),
            outbox,
            followed,
            letters: BTreeMap::new(),
            pullers: BTreeMap::new(),
            servers: BTreeMap::new(),
            session: Session::default(),
            watch: None,
            watch_again: 0,
            asked: None,
            ask_again: 0,
            tickets: BTreeMap::new(),
            next_background: 0,
            next_log_tick: 0,
            next_retry: self.now + RETRY_MS,
            answers: Arc::default(),
            out: Deliveries::default(),
            failure_seen: false,
        };
        self.nodes[node].process = Some(Box::new(process));
        self.after(0, Event::NodeTick { node, life });
        Ok(())
    }

    /// The folders are marked as running.
    pub fn on_marked(&mut self, node: usize, incarnation: u64) -> Checked {
        let name = node + 1;
        let Some(process) = self.process(node) else {
            return Ok(());
        };
        let marked = process.folder.mark_running(Incarnation(incarnation));
        match marked {
            Ok(()) => process.incarnation = Some(Incarnation(incarnation)),
            Err(error) => {
                self.say(|| format!("node {name} cannot mark its folder: {error}"));
                let life = self.nodes[node].life;
                let event = Event::Marked {
                    node,
                    life,
                    incarnation,
                };
                self.after(MARK_AGAIN_MS, event);
            }
        }
        self.look_at_all(node);
        Ok(())
    }

    /// What the view asks of the node; see `control::assigner`.
    pub fn look_at_all(&mut self, node: usize) {
        let Some(process) = self.process(node) else {
            return;
        };
        let view = Arc::clone(&process.view);
        if process.incarnation.is_none() || view.revision < 0 {
            return;
        }
        let in_view = view.topics.values().flat_map(|topic| {
            topic.partitions.keys().map(|partition| TopicPartition {
                topic_id: topic.id,
                partition: talweg_types::PartitionIndex(*partition),
            })
        });
        let mut all: Vec<_> = in_view.chain(process.known.keys().copied()).collect();
        all.sort();
        all.dedup();
        for tp in all {
            self.look_at(node, tp);
        }
    }

    fn look_at(&mut self, node: usize, tp: TopicPartition) {
        let now = self.nodes[node].clock(self.now);
        for _ in 0..3 {
            let Some(process) = self.process(node) else {
                return;
            };
            let Some(incarnation) = process.incarnation else {
                return;
            };
            let me = Me {
                node_id: process.node.0,
                incarnation,
            };
            let on_disk = process.on_disk.contains(&tp);
            let view = Arc::clone(&process.view);
            match decide(&view, me, &tp, process.known.get(&tp), on_disk) {
                None => return,
                Some(Action::Open) => {
                    let Some(topic) = view.topics.get(&tp.topic_id) else {
                        return;
                    };
                    process.begin_to_open(tp, Arc::clone(topic));
                    let wait = self.rng.between(0, 30);
                    let life = self.nodes[node].life;
                    return self.after(wait, Event::Opens { node, life, tp });
                }
                Some(Action::Take(role)) => process.take_role(now, tp, role),
                Some(Action::Configure) => process.configure(now, tp, &view),
                // Topics are not deleted here.
                Some(Action::Delete) => return,
            }
        }
    }

    pub fn on_opens(&mut self, node: usize, tp: TopicPartition) -> Checked {
        let name = node + 1;
        let Some(process) = self.process(node) else {
            return Ok(());
        };
        let Some(known) = process.known.get(&tp) else {
            return Ok(());
        };
        let config = log_config(&known.topic);
        let settings = leader_settings(&known.topic);
        let is_new = !process.on_disk.contains(&tp);
        let mut found = None;
        let log = match is_new {
            true => Ok((PartitionLog::create(&process.folder, tp, config), None)),
            false => PartitionLog::recover(&process.folder, tp, config, wall_clock())
                .map(|(log, report)| (log, Some(report))),
        };
        let log = match log.map(|(log, report)| {
            found = report;
            log
        }) {
            Ok(log) => log,
            Err(error) => {
                if let Some(known) = process.known.get_mut(&tp) {
                    known.phase = Phase::Failed;
                }
                self.say(|| format!("node {name} cannot open {tp}: {error}"));
                return Ok(());
            }
        };
        process.opened(tp, log, settings);
        self.say(|| format!("node {name} opens {tp}: {found:?}"));
        self.oracle.on_opened(&self.nodes, node, tp)?;
        self.look_at(node, tp);
        Ok(())
    }

    pub fn on_node_tick(&mut self, node: usize) -> Checked {
        let (now, clock) = (self.now, self.nodes[node].clock(self.now));
        let life = self.nodes[node].life;
        let jitter = self.rng.between(0, 20);
        self.after(TICK_MS + jitter, Event::NodeTick { node, life });
        self.session_tick(node)?;
        self.pullers_tick(node);
        let Some(process) = self.process(node) else {
            return Ok(());
        };
        if now >= process.next_log_tick {
            process.next_log_tick = now + 1_000;
            process.folder.refresh_space();
            process.tick_logs();
        }
        for replica in process.replicas.values_mut() {
            replica.leader_tick(clock, &mut process.out);
        }
        process.see_failure(clock);
        if now >= process.next_retry {
            process.next_retry = now + RETRY_MS;
            if process.folder.failed().is_none() {
                process
                    .known
                    .retain(|_, known| known.phase != Phase::Failed);
            }
            self.look_at_all(node);
        }
        if self.rng.percent(1) {
            self.nodes[node].disk.remember_index();
        }
        Ok(())
    }

    /// After every step of a process: what it has to say is said, what is due
    /// begins, and the oracle looks.
    pub fn settle_node(&mut self, node: usize) -> Checked {
        if self.nodes[node].process.is_none() {
            return Ok(());
        }
        // The disk stopped within this step: nothing of it gets out, and what
        // there is of it is seen when the log is open again.
        if self.nodes[node].disk.has_stopped() {
            return self.stop_if_disk_has(node);
        }
        self.observe(node)?;
        self.answer_clients(node)?;
        self.say_words(node);
        self.serve(node)?;
        self.ask_controller(node);
        self.start_flushes(node);
        Ok(())
    }

    fn start_flushes(&mut self, node: usize) {
        let (now, clock, life) = (
            self.now,
            self.nodes[node].clock(self.now),
            self.nodes[node].life,
        );
        let flush = self.nodes[node].disk.flush_ms;
        let flush = flush + self.rng.between(0, flush);
        let Some(process) = self.process(node) else {
            return;
        };
        let background = now >= process.next_background;
        let mut begun = Vec::new();
        for (tp, replica) in &mut process.replicas {
            let dirty = replica.log.unflushed_bytes() > 0;
            let due = replica.is_synced() && dirty || background;
            if !due || process.tickets.contains_key(tp) {
                continue;
            }
            if let Taken::Ticket(ticket) = replica.take_ticket(clock) {
                process.tickets.insert(*tp, *ticket);
                begun.push(*tp);
            }
        }
        if background {
            process.next_background = now + BACKGROUND_MS;
        }
        for tp in begun {
            self.after(flush, Event::FlushEnds { node, life, tp });
        }
    }

    pub fn on_flush_ends(&mut self, node: usize, tp: TopicPartition) -> Checked {
        let clock = self.nodes[node].clock(self.now);
        let Some(process) = self.process(node) else {
            return Ok(());
        };
        let (Some(ticket), Some(replica)) =
            (process.tickets.remove(&tp), process.replicas.get_mut(&tp))
        else {
            return Ok(());
        };
        let result = ticket.run();
        if let Err(error) = replica.flushed(clock, ticket, result, &mut process.out) {
            replica.fail(clock, &error.to_string(), &mut process.out);
        }
        process.see_failure(clock);
        Ok(())
    }

    pub fn on_produce(&mut self, node: usize, op: OpId, attempt: u32) -> Checked {
        let clock = self.nodes[node].clock(self.now);
        let asked = self.clients.request(op);
        let minimum = self.topic_of(&asked.tp).min_insync as usize;
        let Some(process) = self.process(node) else {
            return Ok(());
        };
        let request = AppendRequest {
            tp: asked.tp,
            expected_epoch: None,
            acks: asked.acks,
            batches: vec![(op, asked.batch)],
            stream: Arc::clone(&process.answers),
            slot: attempt,
            reservation: Reservation::none(),
        };
        match process.replicas.get_mut(&asked.tp) {
            Some(replica) => {
                let (confirmed, end) = (replica.confirmed(), replica.log.bounds().log_end);
                replica.append(clock, vec![request], &mut process.out);
                let appended = replica.log.bounds().log_end > end;
                if appended && asked.acks == Acks::All && confirmed < minimum {
                    return Err(format!(
                        "{}: node {} appends at acks=all with {confirmed} of {minimum} in sync",
                        asked.tp,
                        node + 1
                    ));
                }
            }
            None => {
                let outcome = talweg_storage::parts::Outcome::Refused(
                    talweg_storage::parts::AppendRefusal::NotLeader,
                );
                let message = Message::Produced {
                    op,
                    attempt,
                    outcome,
                };
                self.answer_client(node, message);
            }
        }
        Ok(())
    }
}

impl Process {
    fn begin_to_open(&mut self, tp: TopicPartition, topic: Arc<TopicView>) {
        let known = Known {
            phase: Phase::Opening,
            told: None,
            topic,
        };
        self.known.insert(tp, known);
    }

    fn opened(
        &mut self,
        tp: TopicPartition,
        log: PartitionLog,
        settings: talweg_replication::LeaderSettings,
    ) {
        let handle = Arc::new(PartitionHandle::new(tp, log.reader(), 0));
        if let Some(known) = self.known.get_mut(&tp) {
            known.phase = Phase::Open;
        }
        let opened = Opened {
            log,
            handle: Arc::clone(&handle),
            node: self.node,
            folder: 0,
            settings,
            outbox: Arc::clone(&self.outbox),
            contacts: Arc::clone(&self.contacts),
            wall_clock,
        };
        self.replicas.insert(tp, Replica::new(opened));
        self.handles.insert(tp, handle);
        self.on_disk.push(tp);
    }

    fn take_role(&mut self, now: MonotonicMs, tp: TopicPartition, role: Role) {
        if let Some(known) = self.known.get_mut(&tp) {
            known.told = Some(role.clone());
        }
        match role {
            Role::Leads(leadership) => self.lead(now, tp, leadership),
            Role::Follows(following) => self.follow(now, tp, following),
            Role::Rests(epoch) => self.rest(now, tp, epoch),
        }
    }

    fn lead(&mut self, now: MonotonicMs, tp: TopicPartition, leadership: Leadership) {
        if let Some(replica) = self.replicas.get_mut(&tp) {
            replica.lead(now, leadership, &mut self.out);
        }
    }

    fn follow(&mut self, now: MonotonicMs, tp: TopicPartition, following: Following) {
        if let Some(replica) = self.replicas.get_mut(&tp) {
            replica.follow(now, following, &mut self.out);
        }
    }

    fn rest(&mut self, now: MonotonicMs, tp: TopicPartition, epoch: LeaderEpoch) {
        if let Some(replica) = self.replicas.get_mut(&tp) {
            replica.resign(now, epoch, &mut self.out);
        }
    }

    fn configure(&mut self, now: MonotonicMs, tp: TopicPartition, view: &ClusterView) {
        let (Some(known), Some(topic)) = (self.known.get_mut(&tp), view.topics.get(&tp.topic_id))
        else {
            return;
        };
        known.topic = Arc::clone(topic);
        if let Some(replica) = self.replicas.get_mut(&tp) {
            replica.configure(
                now,
                log_config(topic),
                leader_settings(topic),
                &mut self.out,
            );
        }
    }

    fn tick_logs(&mut self) {
        for replica in self.replicas.values_mut() {
            let report = replica.tick(wall_clock(), true);
            if report.wants_index_rebuild {
                let interval = replica.log.config().index_interval_bytes;
                // Tried again at the next tick.
                let _ = replica.log.reader().rebuild_index(interval, 4 << 10);
            }
        }
    }

    /// The failure of the folder is one of all its replicas.
    fn see_failure(&mut self, now: MonotonicMs) {
        let Some(why) = self.folder.failed().filter(|_| !self.failure_seen) else {
            return;
        };
        self.failure_seen = true;
        for replica in self.replicas.values_mut() {
            replica.fail(now, &why, &mut self.out);
        }
    }
}
