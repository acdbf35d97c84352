//! A world in one thread for the core: a store that is a [`View`], writes that
//! succeed, fail unclearly or crash the controller, and nodes that come and go.

mod acked;
mod census;
mod growth;
mod health;
mod histories;
mod in_sync;
mod moves;
mod nodes;
mod placement;
mod rebalance;
mod recovery;
mod replicas;
mod shards;
mod steps;
mod topics;

use super::*;
use std::collections::{BTreeMap, BTreeSet};
use talweg_types::{FolderId, LeaderEpoch, PartitionIndex, TopicId, TopicPartition};

pub(super) const TIMEOUT: Duration = Duration::from_secs(3);
pub(super) const PREFERRED_AFTER: Duration = Duration::from_secs(30);

pub(super) fn settings() -> Settings {
    Settings {
        session_timeout: TIMEOUT,
        default_partitions: 12,
        limits: Limits {
            partitions_per_node: 200,
            partitions_per_topic: 150,
        },
        preferred_after: Some(PREFERRED_AFTER),
        new_cluster_id: Uuid::from_u128(0xc1),
        coordinator_shards: 8,
        coordinator_replication_factor: None,
        new_offsets_topic: TopicId(Uuid::from_u128(0x0ff5e7)),
    }
}

/// What becomes of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Committed,
    /// Committed, but the answer is lost.
    UnknownDone,
    UnknownNotDone,
}

pub(super) struct World {
    pub(super) core: Core,
    pub(super) store: View,
    pub(super) clock: Duration,
    pending: Option<Vec<Change>>,
    /// The controller has resigned; its successor is there already.
    pub(super) resigned: bool,
    /// Everything but writes, in order.
    pub(super) seen: Vec<Effect>,
    next_stream: u64,
    next_call: u64,
    /// Who led in each epoch, to see that there is one.
    led: BTreeMap<(TopicPartition, LeaderEpoch), Incarnation>,
    epochs: BTreeMap<TopicPartition, LeaderEpoch>,
    published: u64,
}

pub(super) fn registration(node: u32, process: u128, folder: u128) -> Registration {
    Registration {
        plane: Plane::Storage,
        node: NodeId(node),
        cluster: None,
        process: Uuid::from_u128(process),
        grpc_address: format!("http://node-{folder}:7072"),
        http_address: String::new(),
        rack: String::new(),
        folders: BTreeSet::from([FolderId(Uuid::from_u128(folder))]),
        fresh: BTreeSet::new(),
        clean: true,
        version: "test".into(),
    }
}

pub(super) fn topic_id(id: u128) -> TopicId {
    TopicId(Uuid::from_u128(id))
}

pub(super) fn create(name: &str, partitions: Option<i32>, id: u128) -> Request {
    Request::Create(CreateTopic {
        name: name.into(),
        partitions,
        replication_factor: Some(1),
        config: BTreeMap::new(),
        idempotency_key: String::new(),
        id: topic_id(id),
    })
}

impl World {
    pub(super) fn new() -> Self {
        let mut store = View::default();
        store.revision = Revision(2);
        let clock = Duration::from_secs(1);
        let now = Now {
            monotonic: clock,
            wall: TimestampMs(1_000),
        };
        let mut world = Self {
            core: Core::new(settings(), store.clone(), now),
            store,
            clock,
            pending: None,
            resigned: false,
            seen: Vec::new(),
            next_stream: 0,
            next_call: 0,
            led: BTreeMap::new(),
            epochs: BTreeMap::new(),
            published: 0,
        };
        world.event(Event::Tick);
        world
    }

    pub(super) fn now(&self) -> Now {
        let wall = i64::try_from(self.clock.as_millis()).expect("small");
        Now {
            monotonic: self.clock,
            wall: TimestampMs(wall),
        }
    }

    pub(super) fn event(&mut self, event: Event) {
        for effect in self.core.step(self.now(), event) {
            match effect {
                Effect::Write { changes } => {
                    assert!(self.pending.is_none(), "one write at a time");
                    self.pending = Some(changes);
                }
                Effect::Resign => self.resigned = true,
                other => self.seen.push(other),
            }
        }
        assert_eq!(self.core.check(), Ok(()));
        self.publish();
        if self.resigned {
            self.crash(false);
            self.resigned = true;
        }
    }

    /// Whether the controller has resigned since the last call.
    pub(super) fn take_resigned(&mut self) -> bool {
        std::mem::take(&mut self.resigned)
    }

    fn publish(&mut self) {
        if let Some(changed) = self.core.take_changed() {
            assert!(changed.previous >= self.published && changed.revision > changed.previous);
            self.published = changed.revision;
        }
    }

    /// Lets the write under way end; false if there is none.
    pub(super) fn finish_write(&mut self, fate: Fate) -> bool {
        let Some(changes) = self.pending.take() else {
            return false;
        };
        if fate != Fate::UnknownNotDone {
            self.commit(changes);
        }
        match fate {
            Fate::Committed => self.event(Event::Written {
                revision: self.store.revision,
            }),
            Fate::UnknownDone | Fate::UnknownNotDone => {
                self.event(Event::Reloaded {
                    view: Box::new(self.store.clone()),
                });
            }
        }
        assert_eq!(self.core.view(), &self.store, "the view is what is stored");
        true
    }

    /// As the metastore would: one revision, and the promises kept across all.
    fn commit(&mut self, changes: Vec<Change>) {
        assert!(changes.len() <= CHANGES_PER_WRITE);
        self.store.apply(self.store.revision.next(), changes);
        for (tp, stored) in &self.store.partitions {
            let p = &stored.value;
            let before = self.epochs.insert(*tp, p.leader_epoch);
            assert!(
                before.is_none_or(|before| before <= p.leader_epoch),
                "{tp} went back"
            );
            let leads = *self
                .led
                .entry((*tp, p.leader_epoch))
                .or_insert(p.leader_incarnation);
            assert_eq!(
                leads, p.leader_incarnation,
                "{tp}: two leaders in one epoch"
            );
        }
    }

    /// Commits until the core is idle.
    pub(super) fn settle(&mut self) {
        while self.finish_write(Fate::Committed) {}
    }

    /// The controller dies, with or without its write, and another takes over.
    pub(super) fn crash(&mut self, write_done: bool) {
        if let Some(changes) = self.pending.take().filter(|_| write_done) {
            self.commit(changes);
        }
        // The election of the next one is a revision.
        self.store.revision = self.store.revision.next();
        self.core = Core::new(settings(), self.store.clone(), self.now());
        self.resigned = false;
        self.event(Event::Tick);
    }

    /// Time passes, with ticks.
    pub(super) fn pass(&mut self, time: Duration) {
        let until = self.clock + time;
        while self.clock < until {
            self.clock = until.min(self.clock + TIMEOUT / 4);
            self.event(Event::Tick);
        }
    }

    pub(super) fn register(&mut self, registration: Registration) -> StreamId {
        self.next_stream += 1;
        let stream = StreamId(self.next_stream);
        self.event(Event::Register {
            stream,
            registration,
        });
        stream
    }

    pub(super) fn heartbeat(&mut self, stream: StreamId) {
        self.event(Event::Heartbeat {
            stream,
            folders: Vec::new(),
        });
    }

    /// A storage node that is in, with its stream.
    pub(super) fn node(&mut self, process: u128, folder: u128) -> (NodeId, StreamId, Incarnation) {
        let stream = self.register(registration(0, process, folder));
        self.settle();
        let (node, incarnation) = self.registered(stream).expect("registered");
        (node, stream, incarnation)
    }

    pub(super) fn registered(&self, asked: StreamId) -> Option<(NodeId, Incarnation)> {
        self.seen.iter().find_map(|effect| match effect {
            Effect::Registered {
                stream,
                node,
                incarnation,
                ..
            } if *stream == asked => Some((*node, *incarnation)),
            _ => None,
        })
    }

    pub(super) fn request(&mut self, request: Request) -> CallId {
        self.next_call += 1;
        let call = CallId(self.next_call);
        self.event(Event::Request { call, request });
        call
    }

    pub(super) fn reply(&self, asked: CallId) -> Option<Result<Reply, Refusal>> {
        self.seen.iter().find_map(|effect| match effect {
            Effect::Reply { call, outcome } if *call == asked => Some(outcome.clone()),
            _ => None,
        })
    }

    /// Asks and lets everything be written.
    pub(super) fn ask(&mut self, request: Request) -> Result<Reply, Refusal> {
        let call = self.request(request);
        self.settle();
        self.reply(call).expect("answered")
    }

    pub(super) fn partition(&self, topic: u128, partition: u32) -> &Partition {
        let tp = TopicPartition {
            topic_id: topic_id(topic),
            partition: PartitionIndex(partition),
        };
        &self.store.partitions[&tp].value
    }
}
