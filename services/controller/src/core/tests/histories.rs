//! Random histories: nodes start, stall, restart and leave; requests come;
//! writes end unclearly; controllers die. After every step the world's checks
//! hold (see [`super::World`]); at the end, when all is well again, everything
//! that was begun is finished.

use super::{
    acked::Acked,
    replicas::Boot,
    steps::{NODES, Step, Truth, step},
    *,
};
use proptest::prelude::*;

struct Process {
    id: u128,
    stream: Option<StreamId>,
    /// As it was last told.
    known: Option<(NodeId, Incarnation)>,
    /// What its folder says until it has been told that it is in.
    boot: Boot,
    /// It runs now.
    runs: bool,
    failed: BTreeSet<TopicPartition>,
    full: bool,
    /// The stream over which it has said so.
    said: Option<StreamId>,
}

impl Process {
    fn new(id: u128, boot: Boot, runs: bool) -> Self {
        Self {
            id,
            stream: None,
            known: None,
            boot,
            runs,
            failed: BTreeSet::new(),
            full: false,
            said: None,
        }
    }

    /// It runs and its disk does.
    fn works(&self) -> bool {
        self.runs && self.failed.is_empty()
    }
}

struct History {
    world: World,
    processes: Vec<Process>,
    next_id: u128,
    calls: Vec<CallId>,
    acked: Acked,
}

impl History {
    fn new() -> Self {
        let processes = (0..NODES)
            .map(|_| Process::new(0, Boot::Whole, false))
            .collect();
        let mut history = Self {
            world: World::new(),
            processes,
            next_id: 100,
            calls: Vec::new(),
            acked: Acked::default(),
        };
        // A cluster that stands; what happens to it comes next.
        for i in 0..NODES {
            history.start(i, Boot::Whole);
            history.settle();
        }
        history
    }

    fn fresh(&mut self) -> u128 {
        self.next_id += 1;
        self.next_id
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Write(fate) => drop(self.world.finish_write(fate)),
            Step::Crash { write_done } => self.crash(write_done),
            Step::Start(i, boot) => self.start(i, boot),
            Step::Produce(pick) => self.produce(pick),
            Step::Propose {
                pick,
                members,
                truth,
            } => self.propose(pick, members, truth),
            Step::Answer(i) => self.answer(i),
            Step::Elect { pick, unclean } => {
                if let Some((name, partition)) = self.pick(pick) {
                    self.ask(Request::Elect(ElectLeader {
                        topic: name,
                        partition,
                        unclean,
                    }));
                }
            }
            Step::Drain(i, draining) => self.ask(Request::Drain {
                node: node(i),
                draining,
            }),
            Step::Move { pick, to } => {
                if let Some((topic, partition)) = self.pick(pick) {
                    let id = Uuid::from_u128(self.fresh());
                    let (_, found) = self.world.store.topic_by_name(&topic).expect("there");
                    let factor = found.replication_factor as usize;
                    self.ask(Request::Reassign(Reassign {
                        topic,
                        partition,
                        to: to[..factor.min(3)].iter().map(|i| node(*i)).collect(),
                        throttle: 0,
                        id,
                    }));
                }
            }
            Step::CancelMove(pick) => {
                let moves: Vec<_> = self.world.store.moving().collect();
                if !moves.is_empty() {
                    let tp = moves[pick % moves.len()];
                    let moving = self.world.store.partitions[&tp].value.moving.clone();
                    let id = moving.expect("moving").id;
                    self.ask(Request::CancelMove { id });
                }
            }
            Step::Refused(i) => {
                // Only the truth is told: nobody listens any more.
                if !self.processes[i].runs
                    && let Some(stored) = self.world.store.nodes.get(&node(i))
                {
                    let incarnation = stored.value.incarnation;
                    self.world.event(Event::ProbeRefused {
                        node: node(i),
                        incarnation,
                    });
                }
            }
            Step::Fail(i) if self.processes[i].runs => {
                let hosted: BTreeSet<_> = self.world.store.hosted_by(node(i)).collect();
                for tp in &hosted {
                    if self.world.store.topics.contains_key(&tp.topic_id) {
                        self.acked.on_fail(&self.world.store, *tp, node(i));
                    }
                }
                self.processes[i].failed.extend(hosted);
                self.processes[i].said = None;
            }
            Step::Full(i, full) => {
                self.processes[i].full = full;
                self.processes[i].said = None;
            }
            Step::Balance { stop } => {
                let id = Uuid::from_u128(self.fresh());
                let throttle = (!stop).then_some(0);
                self.ask(Request::Balance(BalanceCluster { throttle, id }));
            }
            Step::Minimum { name, value } => self.ask(Request::Alter(AlterTopic {
                name: format!("t{name}"),
                partitions: None,
                set: BTreeMap::from([("min.insync.replicas".into(), value.to_string())]),
                reset: BTreeSet::new(),
            })),
            Step::Reconnect(i) if self.processes[i].runs => self.register(i),
            Step::Heartbeat(i) => self.with_stream(i, World::heartbeat),
            Step::Leave(i) => {
                self.with_stream(i, |world, stream| world.event(Event::Leaving { stream }));
                self.processes[i].stream = None;
                self.processes[i].runs = false;
            }
            Step::Break(i) => {
                self.with_stream(i, |world, stream| {
                    world.event(Event::StreamBroken { stream })
                });
                self.processes[i].stream = None;
            }
            Step::Pass { eighths } => self.world.pass(TIMEOUT / 8 * eighths),
            Step::Create {
                name,
                partitions,
                factor,
                synced,
            } => {
                let id = self.fresh();
                let name = format!("t{name}");
                let Request::Create(mut request) = create(&name, Some(partitions), id) else {
                    unreachable!()
                };
                request.replication_factor = Some(factor);
                if synced {
                    let key = "durability".to_owned();
                    request.config.insert(key, "synced".into());
                }
                self.ask(Request::Create(request));
            }
            Step::Grow { name, partitions } => self.ask(Request::Alter(AlterTopic {
                name: format!("t{name}"),
                partitions: Some(partitions),
                set: BTreeMap::new(),
                reset: BTreeSet::new(),
            })),
            Step::Delete { name } => self.ask(Request::Delete(DeleteTopic {
                name: Some(format!("t{name}")),
                id: None,
            })),
            Step::Confirm(i) => self.confirm(i),
            Step::Allocate => self.ask(Request::Allocate { count: 1_000 }),
            Step::Reconnect(_) | Step::Fail(_) => {}
        }
        if self.world.take_resigned() {
            self.calls.clear();
        }
        self.learn();
        self.look();
    }

    /// The model follows what is stored, and checks it.
    fn look(&mut self) {
        let runs = self.processes.iter().filter(|process| process.works());
        let running: BTreeMap<_, _> = runs.filter_map(|process| process.known).collect();
        self.acked.look(&self.world.store, &running);
    }

    /// The old process is gone; the disk is what `boot` says, or worse if
    /// nobody was told of the start before.
    fn start(&mut self, i: usize, boot: Boot) {
        // A folder that failed is found unclean.
        let boot = match (self.processes[i].failed.is_empty(), boot) {
            (false, Boot::Whole) => Boot::Unclean,
            _ => boot,
        };
        let boot = match (self.processes[i].boot, boot) {
            (Boot::New, _) | (_, Boot::New) => Boot::New,
            (Boot::Unclean, _) | (_, Boot::Unclean) => Boot::Unclean,
            _ => Boot::Whole,
        };
        self.acked.on_start(&self.world.store, node(i), boot);
        self.processes[i] = Process::new(self.fresh(), boot, true);
        self.register(i);
    }

    /// A partition in force.
    fn pick(&self, pick: usize) -> Option<(String, PartitionIndex)> {
        let store = &self.world.store;
        let all = store.partitions.keys();
        let seen: Vec<_> = all
            .filter(|tp| store.visible_partition(**tp).is_some())
            .collect();
        let tp = seen.get(pick.checked_rem(seen.len())?)?;
        let name = store.topics[&tp.topic_id].value.name.clone();
        Some((name, tp.partition))
    }

    fn picked(&self, pick: usize) -> Option<TopicPartition> {
        let (name, partition) = self.pick(pick)?;
        let (topic_id, _) = self.world.store.topic_by_name(&name)?;
        Some(TopicPartition {
            topic_id,
            partition,
        })
    }

    fn produce(&mut self, pick: usize) {
        if let Some(tp) = self.picked(pick) {
            let store = &self.world.store;
            let minimum = acked_minimum(store, tp);
            self.acked.produce(store, tp, minimum);
        }
    }

    fn propose(&mut self, pick: usize, members: u8, truth: Truth) {
        let Some(tp) = self.picked(pick) else {
            return;
        };
        let p = self.world.store.partitions[&tp].value.clone();
        let known = |id: &NodeId| {
            let process = &self.processes[id.0 as usize - 1];
            process.known.filter(|_| process.works())
        };
        if p.leader.is_none() || known(&p.leader).is_none_or(|k| k.1 != p.leader_incarnation) {
            return;
        }
        let bit = |id: &&NodeId| **id == p.leader || members & (1 << id.0) != 0;
        let chosen = p.replicas.iter().filter(bit);
        let mut members: Vec<_> = chosen.filter_map(known).collect();
        let mut epoch = p.partition_epoch;
        match truth {
            Truth::Right => self.acked.propose(tp, &members),
            Truth::StaleEpoch => epoch.0 -= 1,
            Truth::WrongIncarnation => members.iter_mut().for_each(|m| m.1.0 += 1),
        }
        self.ask(Request::AlterInSync(AlterInSync {
            node: p.leader,
            incarnation: p.leader_incarnation,
            proposals: vec![InSyncProposal {
                partition: tp,
                leader_epoch: p.leader_epoch,
                partition_epoch: epoch,
                members,
                attempt: 0,
            }],
        }));
    }

    /// Every log has something, so that an answer is always believed.
    fn answer(&mut self, i: usize) {
        let Some(stream) = self.processes[i].stream else {
            return;
        };
        let all = self.world.store.leaderless().map(|(tp, p)| {
            let whole = self.acked.holds(tp, node(i));
            let end = LogEnd {
                epoch: p.leader_epoch,
                offset: talweg_types::Offset(if whole { 100 } else { i as i64 }),
            };
            (tp, end)
        });
        let ends = all.collect();
        self.world.event(Event::ReplicaEnds { stream, ends });
    }

    fn with_stream(&mut self, i: usize, act: impl FnOnce(&mut World, StreamId)) {
        if let Some(stream) = self.processes[i].stream {
            act(&mut self.world, stream);
        }
    }

    fn register(&mut self, i: usize) {
        let Process { id, boot, .. } = self.processes[i];
        let mut asking = registration(node(i).0, id, i as u128 + 1);
        asking.clean = boot != Boot::Unclean;
        if boot == Boot::New {
            asking.fresh = asking.folders.clone();
        }
        self.processes[i].stream = Some(self.world.register(asking));
    }

    /// Streams end with their controller, and nobody is answered.
    fn crash(&mut self, write_done: bool) {
        self.processes
            .iter_mut()
            .for_each(|process| process.stream = None);
        self.calls.clear();
        self.world.crash(write_done);
    }

    fn ask(&mut self, request: Request) {
        let call = self.world.request(request);
        self.calls.push(call);
    }

    fn confirm(&mut self, i: usize) {
        if let Some((node, incarnation)) = self.processes[i].known {
            let topics = self.world.store.tombstones.keys().copied().collect();
            self.ask(Request::ConfirmDeleted {
                node,
                incarnation,
                topics,
                partitions: BTreeSet::new(),
            });
        }
    }

    fn learn(&mut self) {
        for process in &mut self.processes {
            let told = process
                .stream
                .and_then(|stream| self.world.registered(stream));
            process.known = told.or(process.known);
            if told.is_some() {
                process.boot = Boot::Whole;
            }
        }
        (0..NODES).for_each(|i| self.say_health(i));
    }

    /// Once over each stream, and when it has changed.
    fn say_health(&mut self, i: usize) {
        let process = &mut self.processes[i];
        let stream = process
            .stream
            .filter(|stream| self.world.registered(*stream).is_some());
        if stream.is_none() || process.said == stream {
            return;
        }
        process.said = stream;
        let hosted = self.world.store.hosted_by(node(i)).filter(|_| process.full);
        let health = Health {
            failed: process.failed.clone(),
            full: hosted.collect(),
        };
        if let Some(stream) = stream {
            self.world.event(Event::Health { stream, health });
        }
    }

    /// Writes end well, one by one.
    fn settle(&mut self) {
        loop {
            while self.world.finish_write(Fate::Committed) {
                self.learn();
                self.look();
            }
            self.learn();
            self.look();
            if !self.world.core.is_writing() {
                return;
            }
        }
    }

    /// All nodes start anew and stay; every write succeeds; all logs are there.
    fn heal(&mut self) {
        // Decided one way or the other, however long it takes.
        for round in 0..12 {
            for i in 0..NODES {
                match round {
                    0 => self.run(Step::Start(i, Boot::Whole)),
                    _ => self.run(Step::Heartbeat(i)),
                }
                self.settle();
            }
            (0..NODES).for_each(|i| self.answer(i));
            (0..NODES).for_each(|i| self.run(Step::Drain(i, false)));
            self.settle();
            self.run(Step::Pass { eighths: 6 });
            self.settle();
        }
        for i in 0..NODES {
            self.run(Step::Heartbeat(i));
            self.confirm(i);
        }
        self.settle();
        self.settle_calls();
    }

    /// Those that wait for ends give up in the end.
    fn settle_calls(&mut self) {
        for _ in 0..12 {
            for i in 0..NODES {
                self.run(Step::Heartbeat(i));
            }
            self.run(Step::Pass { eighths: 4 });
            self.settle();
        }
    }

    fn check_healed(&self) {
        let world = &self.world;
        assert!(!world.core.is_writing());
        for (tp, stored) in &world.store.partitions {
            let p = &stored.value;
            assert!(!p.leader.is_none(), "{tp} has a leader: {p:?}");
            let incarnation = world.store.nodes[&p.leader].value.incarnation;
            assert_eq!(
                p.leader_incarnation, incarnation,
                "{tp} is led by a live process"
            );
        }
        assert!(
            world
                .store
                .topics
                .values()
                .all(|t| t.value.life == Life::Ready)
        );
        assert!(world.store.tombstones.is_empty(), "all were confirmed");
        for call in &self.calls {
            let replies = world.seen.iter().filter(
                |effect| matches!(effect, Effect::Reply { call: answered, .. } if answered == call),
            );
            assert_eq!(replies.count(), 1, "each caller is answered once");
        }
        let blocks: Vec<_> = world
            .seen
            .iter()
            .filter_map(|effect| match effect {
                Effect::Reply {
                    outcome: Ok(Reply::Allocated { first }),
                    ..
                } => Some(*first),
                _ => None,
            })
            .collect();
        let distinct: BTreeSet<_> = blocks.iter().map(|first| first / 1_000).collect();
        assert_eq!(distinct.len(), blocks.len(), "{blocks:?}");
    }
}

fn node(i: usize) -> NodeId {
    NodeId(i as u32 + 1)
}

fn acked_minimum(store: &View, tp: TopicPartition) -> usize {
    let topic = &store.topics[&tp.topic_id].value;
    let config = talweg_types::TopicConfig::resolve(&topic.config).expect("checked");
    config.min_insync_at(topic.replication_factor) as usize
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_promises_hold_and_the_work_gets_done(
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        let mut history = History::new();
        for step in steps {
            history.run(step);
        }
        history.heal();
        history.check_healed();
    }

    #[test]
    fn the_same_history_gives_the_same_effects(
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let run = || {
            let mut history = History::new();
            steps.iter().for_each(|step| history.run(*step));
            (history.world.seen, history.world.store)
        };
        prop_assert_eq!(run(), run());
    }
}
