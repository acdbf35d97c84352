//! Everything together: what a driver does with effects and messages.

use super::{
    Checked,
    controller::{Controller, State},
    log::Record,
    node::{Node, Subscription, Token},
    oracle::Oracle,
    rng::Rng,
};
use crate::{
    Effect, Event, FetchOpened, Fetched, FetchedBody, Follow, FollowerEffect, FollowerEvent,
    InSync, Lead, LeaderSettings, MonotonicMs, OpenFetch, Position, Proposal, ProposalId, Report,
    SessionTag, check_position,
};
use talweg_types::{Durability, Incarnation, LeaderEpoch, NodeId, Offset, PartitionEpoch};

pub(super) type Frame = Vec<Record>;

#[derive(Clone, Debug)]
pub(super) enum Message {
    Assign(NodeId, State),
    /// From, and what; the leader's node is in it.
    Open(NodeId, OpenFetch),
    /// To the process of that incarnation: streams end with processes.
    Answer(NodeId, u64, Fetched<Frame>),
    /// The session was refused, to the process of that incarnation.
    Broken(NodeId, u64, SessionTag),
    Report(NodeId, Report),
    Propose((NodeId, u64), Proposal),
    Refused(NodeId, u64, ProposalId, PartitionEpoch),
}

pub(super) struct World {
    pub rng: Rng,
    pub now: MonotonicMs,
    pub nodes: Vec<Node>,
    pub controller: Controller,
    pub bag: Vec<Message>,
    /// Repeats that come much later.
    pub late: Vec<Message>,
    pub oracle: Oracle,
    pub settings: LeaderSettings,
    pub next_value: u32,
    /// Times that a log was cut, and dropped.
    pub cuts: usize,
    pub restarts: usize,
}

pub(super) fn at(node: NodeId) -> usize {
    usize::try_from(node.0 - 1).unwrap()
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let durability = if seed.is_multiple_of(2) {
            Durability::Replicated
        } else {
            Durability::Synced
        };
        let settings = LeaderSettings {
            durability,
            replication_factor: 3,
            min_insync_replicas: if seed % 8 == 7 { 1 } else { 2 },
        };
        let mut world = Self {
            rng: Rng::new(seed),
            now: MonotonicMs(1_000),
            nodes: (1..=3).map(|id| Node::new(NodeId(id), settings)).collect(),
            controller: Controller::new(settings.min_insync_replicas as usize),
            bag: Vec::new(),
            late: Vec::new(),
            oracle: Oracle::default(),
            settings,
            next_value: 0,
            cuts: 0,
            restarts: 0,
        };
        (0..3).for_each(|node| world.start(node));
        world.controller.begin();
        world.announce();
        world
    }

    pub(super) fn start(&mut self, node: usize) {
        let id = self.nodes[node].id;
        let incarnation = self.controller.register(id, self.nodes[node].lost);
        self.nodes[node].start(incarnation, self.settings);
        self.announce();
    }

    /// Everyone is told how the partition is; the telling may get lost.
    pub(super) fn announce(&mut self) {
        for id in 1..=3 {
            let word = Message::Assign(NodeId(id), self.controller.state.clone());
            self.bag.push(word);
        }
    }

    pub(super) fn deliver(&mut self, message: Message) -> Checked {
        match message {
            Message::Assign(to, state) if self.nodes[at(to)].alive => self.on_assign(at(to), state),
            Message::Open(from, open) if self.nodes[at(open.leader)].alive => {
                self.on_open(from, open)
            }
            Message::Answer(to, process, fetched) if self.is_process(to, process) => {
                self.follow(at(to), FollowerEvent::Fetched(fetched))
            }
            Message::Broken(to, process, session) if self.is_process(to, process) => {
                self.follow(at(to), FollowerEvent::Broken { session })
            }
            Message::Report(to, report) if self.nodes[at(to)].alive => {
                self.lead(at(to), Event::Reported(report))
            }
            Message::Propose(from, proposal) => {
                if self.controller.propose(from, &proposal) {
                    self.announce();
                } else {
                    let refused = {
                        let at = PartitionEpoch(self.controller.state.partition_epoch);
                        Message::Refused(from.0, from.1, proposal.id, at)
                    };
                    self.bag.push(refused);
                }
                Ok(())
            }
            Message::Refused(to, process, id, partition_epoch) if self.is_process(to, process) => {
                let refused = Event::ProposalRefused {
                    id,
                    partition_epoch,
                };
                self.lead(at(to), refused)
            }
            _ => Ok(()),
        }
    }

    fn is_process(&self, node: NodeId, incarnation: u64) -> bool {
        let node = &self.nodes[at(node)];
        node.alive && node.incarnation == incarnation
    }

    fn on_assign(&mut self, node: usize, state: State) -> Checked {
        let this = &mut self.nodes[node];
        if state.partition_epoch <= this.seen {
            return Ok(());
        }
        this.seen = state.partition_epoch;
        let epoch = LeaderEpoch(state.epoch);
        match state.leader {
            Some((leader, process)) if leader == this.id && process == this.incarnation => {
                self.on_leadership(node, state)
            }
            Some((leader, _)) if leader != this.id => {
                let follow = Follow {
                    leader,
                    epoch,
                    incarnation: Incarnation(this.incarnation),
                    recovered: LeaderEpoch::NONE,
                    log_start: Offset(this.log.start),
                    high_watermark: Offset(this.log.high_watermark),
                    ends: this.log.ends(),
                };
                self.lead(node, Event::Resign { epoch })?;
                self.follow(node, FollowerEvent::Follow(follow))
            }
            _ => {
                self.finish_writes(node)?;
                self.lead(node, Event::Resign { epoch })?;
                self.follow(node, FollowerEvent::Unfollow { epoch })
            }
        }
    }

    fn on_leadership(&mut self, node: usize, state: State) -> Checked {
        let epoch = LeaderEpoch(state.epoch);
        let partition_epoch = PartitionEpoch(state.partition_epoch);
        if self.nodes[node].leader.epoch() == Some(epoch) {
            let members = state.in_sync;
            let changed = InSync {
                epoch,
                partition_epoch,
                members,
            };
            return self.lead(node, Event::InSyncChanged(changed));
        }
        self.finish_writes(node)?;
        self.follow(node, FollowerEvent::Unfollow { epoch })?;
        let this = &mut self.nodes[node];
        this.subscriptions.clear();
        self.oracle.on_lead(this, state.epoch)?;
        let lead = Lead {
            epoch,
            incarnation: Incarnation(this.incarnation),
            partition_epoch,
            ends: this.log.ends(),
            high_watermark: Offset(this.log.high_watermark),
            in_sync: state.in_sync,
            replicas: (1..=3).map(NodeId).collect(),
            settings: self.settings,
        };
        self.lead(node, Event::Lead(lead))
    }

    fn on_open(&mut self, from: NodeId, open: OpenFetch) -> Checked {
        let node = at(open.leader);
        let this = &mut self.nodes[node];
        if this.leader.epoch() != Some(open.epoch) {
            let refused = Message::Broken(from, open.incarnation.0, open.session);
            self.bag.push(refused);
            return Ok(());
        }
        let (start, end) = (Offset(this.log.start), Offset(this.log.end()));
        let body = match check_position(&this.log, start, end, open.last_epoch, open.next) {
            Position::Ok => FetchedBody::Nothing,
            Position::Diverged { epoch, end } => FetchedBody::Diverged { epoch, end },
            Position::BelowStart { .. } => FetchedBody::BelowStart,
        };
        let opened = Subscription {
            epoch: open.epoch.0,
            incarnation: open.incarnation.0,
            session: open.session,
            next: open.next.0,
        };
        let known = this.subscriptions.get(&from);
        let newer = known.is_none_or(|known| {
            (known.incarnation, known.session) < (opened.incarnation, opened.session)
        });
        if body == FetchedBody::Nothing && newer {
            this.subscriptions.insert(from, opened);
            let opened = FetchOpened {
                node: from,
                epoch: open.epoch,
                incarnation: open.incarnation,
                session: open.session,
            };
            self.lead(node, Event::FetchOpened(opened))?;
        }
        self.answer(node, from, opened, body);
        Ok(())
    }

    /// Sends a frame with the bounds of now.
    pub(super) fn answer(
        &mut self,
        node: usize,
        to: NodeId,
        session: Subscription,
        body: FetchedBody<Frame>,
    ) {
        let this = &mut self.nodes[node];
        let bounds = this.leader.bounds(Offset(this.log.start));
        this.leader.set_told(to, session.session, bounds);
        let fetched = Fetched {
            session: session.session,
            epoch: LeaderEpoch(session.epoch),
            body,
            high_watermark: bounds.high_watermark,
            log_start: bounds.log_start,
        };
        self.bag
            .push(Message::Answer(to, session.incarnation, fetched));
    }

    /// Steps the leader's core and does what it says.
    pub(super) fn lead(&mut self, node: usize, event: Event<Token>) -> Checked {
        let effects = self.nodes[node].leader.step(self.now, event);
        for effect in effects {
            match effect {
                Effect::HighWatermark(to) => {
                    let this = &mut self.nodes[node];
                    this.log.high_watermark = to.0;
                    let epoch = this.leader.epoch().map_or(-1, |epoch| epoch.0);
                    self.oracle.on_watermark(&self.nodes[node], epoch, to.0)?;
                }
                Effect::Done { token, .. } => self.oracle.on_done(token.0, token.1)?,
                Effect::Failed { .. } => {}
                Effect::ProposeInSync(proposal) => {
                    let from = (self.nodes[node].id, self.nodes[node].incarnation);
                    self.bag.push(Message::Propose(from, proposal));
                }
            }
        }
        Ok(())
    }

    /// Steps the follower's core and does what it says.
    pub(super) fn follow(&mut self, node: usize, event: FollowerEvent<Frame>) -> Checked {
        let this = &mut self.nodes[node];
        let effects = this.follower.step(self.now, event, &this.log);
        for effect in effects {
            self.on_follower_effect(node, effect)?;
        }
        Ok(())
    }

    fn on_follower_effect(&mut self, node: usize, effect: FollowerEffect<Frame>) -> Checked {
        let this = &mut self.nodes[node];
        match effect {
            FollowerEffect::OpenFetch(open) => self.bag.push(Message::Open(this.id, open)),
            FollowerEffect::Append { frame } => this.writing.push_back(frame),
            FollowerEffect::Truncate { to, .. } => {
                if !this.writing.is_empty() {
                    return Err("cut while writes are under way".into());
                }
                this.log.truncate(to.0);
                self.cuts += 1;
                let ends = this.log.ends();
                self.follow(node, FollowerEvent::Truncated { ends })?;
            }
            FollowerEffect::DropAndRestart { at, .. } => {
                this.log.restart_at(at.0);
                self.restarts += 1;
                self.follow(node, FollowerEvent::Restarted { at })?;
            }
            FollowerEffect::SetHighWatermark(to) => this.log.high_watermark = to.0,
            FollowerEffect::SetLogStart(to) => this.log.trim(to.0),
            FollowerEffect::Report(report) => {
                let leader = this.follower.following().map(|(leader, _)| leader);
                let to = leader.ok_or("a report to nobody")?;
                self.bag.push(Message::Report(to, report));
            }
            FollowerEffect::Failed(why) => return Err(format!("node {}: {why}", this.id.0)),
        }
        Ok(())
    }

    /// The oldest write returns.
    pub(super) fn write(&mut self, node: usize) -> Checked {
        let this = &mut self.nodes[node];
        let Some(frame) = this.writing.pop_front() else {
            return Ok(());
        };
        this.log.append(&frame);
        let log_end = Offset(this.log.end());
        self.follow(node, FollowerEvent::Written { log_end })
    }

    pub(super) fn finish_writes(&mut self, node: usize) -> Checked {
        while !self.nodes[node].writing.is_empty() {
            self.write(node)?;
        }
        Ok(())
    }
}
