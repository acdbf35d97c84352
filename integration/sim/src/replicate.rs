//! Replicate streams, one a pair of nodes: mirrors `services/storage`'s
//! `replicate::puller` and `replicate::server`, whose tasks cannot be stepped.
//! Credits are left out: what is under way is bounded by what is produced.

use crate::{
    Checked, Happened,
    net::{Answer, Conn, Life, Message, Peer, Trouble},
    process::Process,
    world::{Event, World},
};
use bytes::Bytes;
use std::{collections::BTreeMap, sync::Arc};
use talweg_log::ReplicaBatch;
use talweg_replication::{
    Bounds, FetchOpened, Fetched, FetchedBody, MonotonicMs, Position, Report, SessionTag,
    check_position,
};
use talweg_storage::parts::{CreditBack, Letters, LogHistory, PartitionHandle, ReplicaFrame, Word};
use talweg_types::{Incarnation, LeaderEpoch, NodeId, Offset, TopicPartition};

const HEARTBEAT_MS: u64 = 1_000;
const SILENCE_MS: u64 = 3_000;
/// Old words that are kept to be said again.
const LATE_MAX: usize = 40;

/// The follower's end of the stream to one leader.
pub struct Puller {
    letters: Arc<Letters>,
    stream: Option<(Conn, bool)>,
    heard: MonotonicMs,
    beat: MonotonicMs,
    again: MonotonicMs,
    failures: u32,
    sessions: BTreeMap<TopicPartition, SessionTag>,
    later: BTreeMap<TopicPartition, Word>,
}

struct Cursor {
    session: SessionTag,
    epoch: LeaderEpoch,
    next: Offset,
    told: Option<Bounds>,
}

/// The leader's end of a stream.
pub struct Server {
    peer: NodeId,
    incarnation: Incarnation,
    heard: MonotonicMs,
    beat: MonotonicMs,
    cursors: BTreeMap<TopicPartition, Cursor>,
    /// Whole answers that wait to go out.
    waiting: Vec<Answer>,
}

/// A word that comes again, past every check but the core's.
#[derive(Debug)]
pub enum Late {
    Report {
        node: usize,
        life: Life,
        tp: TopicPartition,
        report: Report,
    },
    Answer {
        node: usize,
        life: Life,
        answer: Answer,
    },
}

impl World {
    /// What the loops have said since the last time.
    pub fn say_words(&mut self, node: usize) {
        let clock = self.nodes[node].clock(self.now);
        let Some(process) = self.process(node) else {
            return;
        };
        while let Ok((leader, letters)) = process.followed.try_recv() {
            process.letters.insert(leader, Arc::clone(&letters));
            let puller = Puller {
                letters,
                stream: None,
                heard: clock,
                beat: clock,
                again: MonotonicMs(0),
                failures: 0,
                sessions: BTreeMap::new(),
                later: BTreeMap::new(),
            };
            process.pullers.insert(leader, puller);
        }
        let leaders: Vec<_> = process
            .pullers
            .iter()
            .filter(|(_, puller)| !puller.letters.is_empty())
            .map(|(leader, _)| *leader)
            .collect();
        for leader in leaders {
            self.pull(node, leader);
        }
    }

    /// Dials, or says what waits.
    fn pull(&mut self, node: usize, leader: NodeId) {
        let clock = self.nodes[node].clock(self.now);
        let Some(process) = self.process(node) else {
            return;
        };
        let known = process.view.storage_node(leader.0).is_some();
        let Some(puller) = process.pullers.get_mut(&leader) else {
            return;
        };
        match puller.stream {
            Some((_, false)) => {}
            Some((conn, true)) => {
                let words = puller.due_words(clock);
                if !words.is_empty() {
                    self.send(conn, 0, Message::Ask(words));
                }
            }
            None if clock < puller.again => {}
            None if !known || process.incarnation.is_none() => {
                puller.letters.forget_stops();
                puller.fail(clock);
            }
            None => self.dial(node, leader),
        }
    }

    fn dial(&mut self, node: usize, leader: NodeId) {
        let clock = self.nodes[node].clock(self.now);
        let from = self.nodes[node].peer();
        let index = leader.0 as usize - 1;
        let to = Peer {
            end: index,
            life: self.nodes[index].life,
        };
        let conn = self.net.open(from, to);
        let Some(process) = self.process(node) else {
            return;
        };
        let (own, incarnation) = (process.node, process.incarnation.unwrap_or_default());
        if let Some(puller) = process.pullers.get_mut(&leader) {
            puller.stream = Some((conn, false));
            puller.heard = clock;
        }
        self.send(
            conn,
            0,
            Message::Open {
                node: own,
                incarnation,
            },
        );
    }

    /// Silence, signs of life, and what was put off.
    pub fn pullers_tick(&mut self, node: usize) {
        let clock = self.nodes[node].clock(self.now);
        let Some(process) = self.process(node) else {
            return;
        };
        let (mut silent, mut beats, mut due) = (Vec::new(), Vec::new(), Vec::new());
        for (leader, puller) in &mut process.pullers {
            match puller.stream {
                Some((conn, _)) if clock.since(puller.heard) > SILENCE_MS => {
                    silent.push((*leader, conn))
                }
                Some((conn, true)) if clock.since(puller.beat) >= HEARTBEAT_MS => {
                    puller.beat = clock;
                    beats.push((conn, 0));
                }
                _ => {}
            }
            if !puller.letters.is_empty() || puller.has_due(clock) {
                due.push(*leader);
            }
        }
        let mut gone = Vec::new();
        for (conn, server) in &mut process.servers {
            if clock.since(server.heard) > SILENCE_MS {
                gone.push(*conn);
            } else if clock.since(server.beat) >= HEARTBEAT_MS {
                server.beat = clock;
                beats.push((*conn, 1));
            }
        }
        gone.iter()
            .for_each(|conn| drop(process.servers.remove(conn)));
        for (leader, conn) in silent {
            self.end_pull(node, leader);
            self.send(conn, 0, Message::Closed);
        }
        gone.into_iter()
            .for_each(|conn| self.send(conn, 1, Message::Closed));
        beats
            .into_iter()
            .for_each(|(conn, side)| self.send(conn, side, Message::Beat));
        due.into_iter().for_each(|leader| self.pull(node, leader));
    }

    /// The stream is over: every core asks anew.
    fn end_pull(&mut self, node: usize, leader: NodeId) {
        let clock = self.nodes[node].clock(self.now);
        let Some(process) = self.process(node) else {
            return;
        };
        let Some(puller) = process.pullers.get_mut(&leader) else {
            return;
        };
        puller.fail(clock);
        for (tp, session) in std::mem::take(&mut puller.sessions) {
            if let Some(replica) = process.replicas.get_mut(&tp) {
                replica.on_fetch_broken(clock, session);
            }
        }
    }

    /// Ends all streams of the node, each end by itself.
    pub fn break_streams(&mut self, node: usize) -> Checked {
        let Some(process) = self.process(node) else {
            return Ok(());
        };
        let pulled: Vec<_> = process
            .pullers
            .iter()
            .filter_map(|(leader, puller)| Some((*leader, puller.stream?.0)))
            .collect();
        let served: Vec<_> = process.servers.keys().copied().collect();
        for (leader, conn) in pulled {
            self.end_pull(node, leader);
            self.send(conn, 0, Message::Closed);
        }
        for conn in served {
            if let Some(process) = self.process(node) {
                process.servers.remove(&conn);
            }
            self.send(conn, 1, Message::Closed);
        }
        let life = self.nodes[node].life;
        self.on_node(node, life, |_| Ok(()))
    }

    /// A message on a Replicate stream that this node serves or has opened.
    pub fn on_replicate(&mut self, node: usize, conn: Conn, message: Message) -> Checked {
        let clock = self.nodes[node].clock(self.now);
        if let Message::Open {
            node: peer,
            incarnation,
        } = message
        {
            return self.on_replicate_open(node, conn, peer, incarnation);
        }
        let Some(process) = self.process(node) else {
            return Ok(());
        };
        if let Some(server) = process.servers.get_mut(&conn) {
            server.heard = clock;
            if !server.cursors.is_empty() {
                process.contacts.write().node_heard(server.peer, clock);
            }
            match message {
                Message::Ask(words) => return self.on_words(node, conn, words),
                Message::Closed => drop(process.servers.remove(&conn)),
                _ => {}
            }
            return Ok(());
        }
        let leader = process
            .pullers
            .iter_mut()
            .find(|(_, puller)| puller.stream.is_some_and(|s| s.0 == conn));
        let Some((leader, puller)) = leader else {
            if !matches!(message, Message::Closed) {
                let side = usize::from(self.net.streams[&conn].peers[0].end != node);
                self.send(conn, side, Message::Closed);
            }
            return Ok(());
        };
        let leader = *leader;
        puller.heard = clock;
        match message {
            Message::Opened => {
                puller.stream = Some((conn, true));
                puller.failures = 0;
                self.pull(node, leader);
            }
            Message::Answers(answers) => {
                for answer in answers {
                    self.on_answer_word(node, leader, answer);
                }
            }
            Message::Closed => self.end_pull(node, leader),
            _ => {}
        }
        Ok(())
    }

    fn on_replicate_open(
        &mut self,
        node: usize,
        conn: Conn,
        peer: NodeId,
        incarnation: Incarnation,
    ) -> Checked {
        let clock = self.nodes[node].clock(self.now);
        if let Some(process) = self.process(node) {
            let server = Server {
                peer,
                incarnation,
                heard: clock,
                beat: clock,
                cursors: BTreeMap::new(),
                waiting: Vec::new(),
            };
            process.servers.insert(conn, server);
        }
        self.send(conn, 1, Message::Opened);
        Ok(())
    }

    fn on_words(&mut self, node: usize, conn: Conn, words: Vec<(TopicPartition, Word)>) -> Checked {
        let clock = self.nodes[node].clock(self.now);
        let life = self.nodes[node].life;
        let wild = self.plan.wild && !self.healing;
        let mut late = Vec::new();
        let Some(process) = self.process(node) else {
            return Ok(());
        };
        for (tp, word) in words {
            let Some(server) = process.servers.get_mut(&conn) else {
                return Ok(());
            };
            match word {
                Word::Stop => drop(server.cursors.remove(&tp)),
                Word::Fetch { fetch, .. } => {
                    server.cursors.remove(&tp);
                    process.seek(clock, conn, tp, fetch)?;
                }
                Word::Report(report) => {
                    let report = Report {
                        node: server.peer,
                        incarnation: server.incarnation,
                        ..report
                    };
                    late.push(Late::Report {
                        node,
                        life,
                        tp,
                        report,
                    });
                    let open = server
                        .cursors
                        .get(&tp)
                        .is_some_and(|cursor| cursor.session == report.session);
                    if let Some(replica) = process.replicas.get_mut(&tp).filter(|_| open) {
                        replica.on_report(clock, report, &mut process.out);
                    }
                }
            }
        }
        if wild {
            late.into_iter().for_each(|late| self.keep_late(late, 25));
        }
        Ok(())
    }

    fn keep_late(&mut self, late: Late, percent: u64) {
        if !self.rng.percent(percent) {
            return;
        }
        if self.nodes_late().len() >= LATE_MAX {
            let oldest = self.rng.below(LATE_MAX);
            self.nodes_late().swap_remove(oldest);
        }
        self.nodes_late().push(late);
    }

    fn nodes_late(&mut self) -> &mut Vec<Late> {
        &mut self.control.late
    }

    /// Some old words come again.
    pub fn on_late_words(&mut self) -> Checked {
        let wait = self.rng.between(100, 1_500);
        if self.healing {
            return Ok(());
        }
        self.after(wait, Event::LateWords);
        for _ in 0..self.rng.between(1, 4) {
            let count = self.nodes_late().len();
            if count == 0 {
                return Ok(());
            }
            let which = self.rng.below(count);
            let late = self.nodes_late().swap_remove(which);
            self.coverage.note(Happened::LateWord);
            match late {
                Late::Report {
                    node,
                    life,
                    tp,
                    report,
                } => self.on_node(node, life, |world| {
                    world.nodes[node].heard = world.now;
                    let clock = world.nodes[node].clock(world.now);
                    if let Some(process) = world.process(node)
                        && let Some(replica) = process.replicas.get_mut(&tp)
                    {
                        replica.on_report(clock, report, &mut process.out);
                    }
                    Ok(())
                })?,
                Late::Answer { node, life, answer } => self.on_node(node, life, |world| {
                    world.take_answer(node, answer);
                    Ok(())
                })?,
            }
        }
        Ok(())
    }

    fn on_answer_word(&mut self, node: usize, leader: NodeId, answer: Answer) {
        let clock = self.nodes[node].clock(self.now);
        let life = self.nodes[node].life;
        let wild = self.plan.wild && !self.healing;
        let Some(process) = self.process(node) else {
            return;
        };
        let tp = answer.tp;
        let open = process
            .pullers
            .get(&leader)
            .is_some_and(|puller| puller.sessions.get(&tp) == Some(&answer.session));
        if !open {
            return;
        }
        if matches!(answer.trouble, Some(Trouble::Refused)) {
            if let Some(puller) = process.pullers.get_mut(&leader) {
                puller.sessions.remove(&tp);
            }
            if let Some(replica) = process.replicas.get_mut(&tp) {
                replica.on_fetch_broken(clock, answer.session);
            }
            return;
        }
        if wild {
            self.keep_late(
                Late::Answer {
                    node,
                    life,
                    answer: answer.clone(),
                },
                15,
            );
        }
        self.take_answer(node, answer);
    }

    /// Hands an answer to the replica.
    fn take_answer(&mut self, node: usize, answer: Answer) {
        let clock = self.nodes[node].clock(self.now);
        let Some(process) = self.process(node) else {
            return;
        };
        let Some(replica) = process.replicas.get_mut(&answer.tp) else {
            return;
        };
        let body = match answer.trouble {
            Some(Trouble::Refused) => return,
            Some(Trouble::Diverged { epoch, end }) => FetchedBody::Diverged { epoch, end },
            Some(Trouble::BelowStart { sessions }) => {
                replica.take_sessions(sessions);
                FetchedBody::BelowStart
            }
            None if answer.batches.is_empty() => FetchedBody::Nothing,
            None => match batches(&answer) {
                Some(body) => body,
                None => return replica.on_fetch_broken(clock, answer.session),
            },
        };
        let fetched = Fetched {
            session: answer.session,
            epoch: answer.epoch,
            body,
            high_watermark: answer.bounds.high_watermark,
            log_start: answer.bounds.log_start,
        };
        replica.on_fetched(clock, fetched);
    }

    /// Sends every follower what it does not have yet.
    pub fn serve(&mut self, node: usize) -> Checked {
        let size = self.rng.between(200, 3_000) as usize;
        let Some(process) = self.process(node) else {
            return Ok(());
        };
        let mut out = Vec::new();
        let Process {
            servers, handles, ..
        } = process;
        for (conn, server) in servers {
            let mut answers = std::mem::take(&mut server.waiting);
            server.cursors.retain(|tp, cursor| match handles.get(tp) {
                Some(handle) => cursor.look(handle, size, &mut answers),
                None => false,
            });
            if !answers.is_empty() {
                out.push((*conn, answers));
            }
        }
        for (conn, answers) in out {
            self.send(conn, 1, Message::Answers(answers));
        }
        Ok(())
    }
}

fn batches(answer: &Answer) -> Option<FetchedBody<ReplicaFrame>> {
    let batches = ReplicaBatch::check_all(answer.batches.clone()).ok()?;
    let (first, last) = (batches.first()?, batches.last()?);
    Some(FetchedBody::Batches {
        from: first.base_offset(),
        end: last.next_offset(),
        first_epoch: first.epoch(),
        last_epoch: last.epoch(),
        frame: ReplicaFrame {
            append_times: answer.append_times.clone(),
            _credit: Arc::<CreditBack>::default().hold(0),
            batches,
        },
    })
}

impl Puller {
    fn fail(&mut self, now: MonotonicMs) {
        self.stream = None;
        self.failures = self.failures.saturating_add(1);
        self.again = now.plus((50 << self.failures.min(5)).min(1_000));
    }

    fn has_due(&self, now: MonotonicMs) -> bool {
        self.later.values().any(|word| !is_early(word, now))
    }

    fn due_words(&mut self, now: MonotonicMs) -> Vec<(TopicPartition, Word)> {
        let mut words = self.letters.take();
        self.later.retain(|tp, _| !words.contains_key(tp));
        words.retain(|tp, word| {
            let early = is_early(word, now);
            if early {
                self.later.insert(*tp, *word);
            }
            !early
        });
        let due: Vec<_> = self
            .later
            .iter()
            .filter(|(_, word)| !is_early(word, now))
            .map(|(tp, _)| *tp)
            .collect();
        words.extend(
            due.into_iter()
                .filter_map(|tp| Some((tp, self.later.remove(&tp)?))),
        );
        for (tp, word) in &words {
            match word {
                Word::Fetch { fetch, .. } => drop(self.sessions.insert(*tp, fetch.session)),
                Word::Stop => drop(self.sessions.remove(tp)),
                Word::Report(_) => {}
            }
        }
        words.into_iter().collect()
    }
}

fn is_early(word: &Word, now: MonotonicMs) -> bool {
    matches!(word, Word::Fetch { fetch, .. } if fetch.not_before > now)
}

impl Process {
    /// Begins to send from a position, or says why not.
    fn seek(
        &mut self,
        now: MonotonicMs,
        conn: Conn,
        tp: TopicPartition,
        fetch: talweg_replication::OpenFetch,
    ) -> Checked {
        let Some(server) = self.servers.get_mut(&conn) else {
            return Ok(());
        };
        let mut answer = Answer {
            tp,
            session: fetch.session,
            epoch: fetch.epoch,
            bounds: Bounds {
                high_watermark: None,
                log_start: Offset::ZERO,
            },
            trouble: Some(Trouble::Refused),
            batches: Bytes::new(),
            append_times: Vec::new(),
        };
        let handle = self
            .handles
            .get(&tp)
            .filter(|handle| handle.leads() == Some(fetch.epoch));
        let Some(handle) = handle else {
            server.waiting.push(answer);
            return Ok(());
        };
        let reader = &handle.reader;
        let (start, end) = (reader.first_offset(), reader.bounds().log_end);
        let position = check_position(
            &LogHistory(reader),
            start,
            end,
            fetch.last_epoch,
            fetch.next,
        );
        answer.trouble = match position {
            Position::Ok => None,
            Position::Diverged { epoch, end } => Some(Trouble::Diverged { epoch, end }),
            Position::BelowStart { .. } => {
                let (start, sessions) = reader
                    .copy_start()
                    .map_err(|error| format!("copy start: {error}"))?;
                answer.bounds.log_start = start;
                Some(Trouble::BelowStart { sessions })
            }
        };
        if answer.trouble.is_some() {
            server.waiting.push(answer);
            return Ok(());
        }
        let opened = FetchOpened {
            node: server.peer,
            epoch: fetch.epoch,
            incarnation: server.incarnation,
            session: fetch.session,
        };
        let cursor = Cursor {
            session: fetch.session,
            epoch: fetch.epoch,
            next: fetch.next,
            told: None,
        };
        server.cursors.insert(tp, cursor);
        if let Some(replica) = self.replicas.get_mut(&tp) {
            replica.on_opened(now, opened, &mut self.out);
        }
        Ok(())
    }
}

impl Cursor {
    /// The bounds alone.
    fn answer(&self, handle: &PartitionHandle, bounds: Bounds) -> Answer {
        Answer {
            tp: handle.tp,
            session: self.session,
            epoch: self.epoch,
            bounds,
            trouble: None,
            batches: Bytes::new(),
            append_times: Vec::new(),
        }
    }

    /// Adds what is to be said; false when it is over.
    fn look(&mut self, handle: &PartitionHandle, size: usize, answers: &mut Vec<Answer>) -> bool {
        let bounds = handle.reader.bounds();
        let told = Bounds {
            high_watermark: handle.knows_watermark().then_some(bounds.high_watermark),
            log_start: bounds.log_start,
        };
        if handle.failure().is_some() || handle.leads() != Some(self.epoch) {
            answers.push(Answer {
                trouble: Some(Trouble::Refused),
                ..self.answer(handle, told)
            });
            return false;
        }
        while bounds.log_end > self.next {
            match handle.reader.read_for_copy(self.next, size) {
                Ok(read) if read.batches.is_empty() => break,
                Ok(read) => {
                    let answer = self.answer(handle, told);
                    answers.push(Answer {
                        batches: read.batches,
                        append_times: read.append_times,
                        ..answer
                    });
                    self.next = read.next_offset;
                    self.told = Some(told);
                }
                Err(_) => {
                    answers.push(Answer {
                        trouble: Some(Trouble::Refused),
                        ..self.answer(handle, told)
                    });
                    return false;
                }
            }
        }
        if self.told != Some(told) {
            self.told = Some(told);
            answers.push(self.answer(handle, told));
        }
        true
    }
}
