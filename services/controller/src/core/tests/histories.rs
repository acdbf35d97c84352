//! Random histories: nodes start, stall, restart and leave; requests come;
//! writes end unclearly; controllers die. After every step the world's checks
//! hold (see [`super::World`]); at the end, when all is well again, everything
//! that was begun is finished.

use super::*;
use proptest::prelude::*;

const NODES: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    Write(Fate),
    Crash {
        write_done: bool,
    },
    /// The node's process starts anew, or registers again.
    Start(usize),
    Reconnect(usize),
    Heartbeat(usize),
    Leave(usize),
    Break(usize),
    Pass {
        eighths: u32,
    },
    Create {
        name: usize,
        partitions: i32,
    },
    Grow {
        name: usize,
        partitions: i32,
    },
    Delete {
        name: usize,
    },
    Confirm(usize),
    Allocate,
}

fn step() -> impl Strategy<Value = Step> {
    let fate = prop_oneof![
        8 => Just(Fate::Committed), 1 => Just(Fate::UnknownDone), 1 => Just(Fate::UnknownNotDone)
    ];
    prop_oneof![
        12 => fate.prop_map(Step::Write),
        1 => any::<bool>().prop_map(|write_done| Step::Crash { write_done }),
        2 => (0..NODES).prop_map(Step::Start),
        2 => (0..NODES).prop_map(Step::Reconnect),
        4 => (0..NODES).prop_map(Step::Heartbeat),
        1 => (0..NODES).prop_map(Step::Leave),
        1 => (0..NODES).prop_map(Step::Break),
        2 => (1u32..16).prop_map(|eighths| Step::Pass { eighths }),
        3 => (0usize..3, 1i32..90).prop_map(|(name, partitions)| Step::Create { name, partitions }),
        1 => (0usize..3, 1i32..90).prop_map(|(name, partitions)| Step::Grow { name, partitions }),
        1 => (0usize..3).prop_map(|name| Step::Delete { name }),
        1 => (0..NODES).prop_map(Step::Confirm),
        1 => Just(Step::Allocate),
    ]
}

struct Process {
    id: u128,
    stream: Option<StreamId>,
    /// As it was last told.
    known: Option<(NodeId, Incarnation)>,
}

struct History {
    world: World,
    processes: Vec<Process>,
    next_id: u128,
    calls: Vec<CallId>,
}

impl History {
    fn new() -> Self {
        let processes = (0..NODES)
            .map(|_| Process {
                id: 0,
                stream: None,
                known: None,
            })
            .collect();
        Self {
            world: World::new(),
            processes,
            next_id: 100,
            calls: Vec::new(),
        }
    }

    fn fresh(&mut self) -> u128 {
        self.next_id += 1;
        self.next_id
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Write(fate) => drop(self.world.finish_write(fate)),
            Step::Crash { write_done } => self.crash(write_done),
            Step::Start(i) => {
                self.processes[i] = Process {
                    id: self.fresh(),
                    stream: None,
                    known: None,
                };
                self.register(i);
            }
            Step::Reconnect(i) if self.processes[i].id != 0 => self.register(i),
            Step::Heartbeat(i) => self.with_stream(i, World::heartbeat),
            Step::Leave(i) => {
                self.with_stream(i, |world, stream| world.event(Event::Leaving { stream }));
                self.processes[i] = Process {
                    id: 0,
                    stream: None,
                    known: None,
                };
            }
            Step::Break(i) => {
                self.with_stream(i, |world, stream| {
                    world.event(Event::StreamBroken { stream })
                });
                self.processes[i].stream = None;
            }
            Step::Pass { eighths } => self.world.pass(TIMEOUT / 8 * eighths),
            Step::Create { name, partitions } => {
                let id = self.fresh();
                self.ask(create(&format!("t{name}"), Some(partitions), id));
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
            Step::Reconnect(_) => {}
        }
        self.learn();
    }

    fn with_stream(&mut self, i: usize, act: impl FnOnce(&mut World, StreamId)) {
        if let Some(stream) = self.processes[i].stream {
            act(&mut self.world, stream);
        }
    }

    fn register(&mut self, i: usize) {
        let Process { id, known, .. } = self.processes[i];
        let (node, _) = known.unwrap_or_default();
        let asking = registration(node.0, id, i as u128 + 1);
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
            });
        }
    }

    fn learn(&mut self) {
        for process in &mut self.processes {
            let told = process
                .stream
                .and_then(|stream| self.world.registered(stream));
            process.known = told.or(process.known);
        }
    }

    /// All nodes start anew and stay; every write succeeds.
    fn heal(&mut self) {
        for i in 0..NODES {
            self.run(Step::Start(i));
            self.world.settle();
            self.learn();
        }
        (0..NODES).for_each(|i| self.confirm(i));
        self.world.settle();
        self.learn();
    }

    fn check_healed(&self) {
        let world = &self.world;
        assert!(!world.core.is_writing());
        for (tp, stored) in &world.store.partitions {
            let p = &stored.value;
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_promises_hold_and_the_work_gets_done(
        steps in proptest::collection::vec(step(), 1..120),
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
