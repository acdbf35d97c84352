//! The controller's decisions, without IO, clock or await.
//!
//! [`Core::step`] takes an event and the time and returns effects. The
//! [`View`] moves by committed writes only. At most one write is under way. A
//! larger change is a [`Job`]: asked again after every commit, it looks at the
//! view and names the next transaction, until nothing is left to do. So a job
//! goes on after an unclear write, and another controller goes on with a job
//! that its predecessor left.
//!
//! Always true ([`Core::check`]): what [`View::check`] says; leader epochs,
//! partition epochs and the published revision never go back; in one leader
//! epoch one incarnation leads, and only one.

mod balance;
mod census;
mod changed;
mod events;
#[doc(hidden)]
pub mod fault;
mod health;
mod in_sync;
mod jobs;
mod nodes;
mod placement;
mod reassign;
mod rebalance;
mod reconcile;
mod recovery;
mod refusal;
mod replicas;
mod requests;
mod sessions;
mod shards;
mod state;
mod topics;
mod view;

#[cfg(test)]
mod tests;

pub use census::Census;
pub use changed::Changed;
pub use health::Health;
pub use in_sync::{AlterInSync, InSyncProposal, InSyncResult};
pub use jobs::Job;
pub use placement::Limits;
pub use rebalance::PlannedMove;
pub use recovery::LogEnd;
pub use refusal::Refusal;
pub use replicas::Loss;
pub use requests::{
    AlterTopic, BalanceCluster, CallId, CreateTopic, DeleteTopic, DeriveTopic, ElectLeader,
    Reassign, Reply, Request, TopicAnswer,
};
pub use sessions::{FolderStatus, Plane, Registration, Session, SessionState, StreamId};
pub use state::{
    Balance, CHANGES_PER_WRITE, Change, Cluster, Derived, EARLIER_PROCESSES, Life, Move, Node,
    Partition, Recovered, Shard, Stored, Tombstone, Topic, Value,
};
pub use view::View;

use balance::Due;
use in_sync::InSyncCalls;
use jobs::Jobs;
use recovery::Ends;
use sessions::Sessions;
use std::{collections::VecDeque, time::Duration};
use talweg_metastore::Revision;
use talweg_types::{Incarnation, NodeId, TimestampMs, TopicId, TopicPartition};
use uuid::Uuid;

/// The time of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// Since some fixed moment; never steps back.
    pub monotonic: Duration,
    /// For records that people read; decides nothing.
    pub wall: TimestampMs,
}

/// What never changes while a core lives.
#[derive(Clone, Debug)]
pub struct Settings {
    pub session_timeout: Duration,
    pub default_partitions: u32,
    pub limits: Limits,
    /// How long a preferred replica is in sync before it leads again; `None`:
    /// it does not by itself.
    pub preferred_after: Option<Duration>,
    /// The id of the cluster if the store is empty.
    pub new_cluster_id: Uuid,
    /// Partitions of `__consumer_offsets` when it is created; fixed from then on.
    pub coordinator_shards: u32,
    /// Its replication factor; `None`: 3, or the number of storage nodes if fewer.
    pub coordinator_replication_factor: Option<u32>,
    /// The id of `__consumer_offsets` if it does not exist yet.
    pub new_offsets_topic: TopicId,
}

#[derive(Clone, Debug)]
pub enum Event {
    /// Time has passed; comes at least every quarter of the session time-out.
    Tick,
    /// A node's first frame.
    Register {
        stream: StreamId,
        registration: Registration,
    },
    Heartbeat {
        stream: StreamId,
        folders: Vec<FolderStatus>,
    },
    /// Which of the node's replicas fail or have no room.
    Health {
        stream: StreamId,
        health: Health,
    },
    /// The node stops on purpose.
    Leaving {
        stream: StreamId,
    },
    /// The stream is gone, for whatever reason.
    StreamBroken {
        stream: StreamId,
    },
    /// Nobody listens at the address of a node whose stream is gone.
    ProbeRefused {
        node: NodeId,
        incarnation: Incarnation,
    },
    /// Where logs end that the node was asked for.
    ReplicaEnds {
        stream: StreamId,
        ends: Vec<(TopicPartition, LogEnd)>,
    },
    Request {
        call: CallId,
        request: Request,
    },
    /// The write under way was committed.
    Written {
        revision: Revision,
    },
    /// The write under way was refused or its outcome is unclear: this is what
    /// the store holds now.
    Reloaded {
        view: Box<View>,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Commit these changes if each key is as the view has it.
    Write {
        changes: Vec<Change>,
    },
    Reply {
        call: CallId,
        outcome: Result<Reply, Refusal>,
    },
    /// The node is in. Follows the raising of its epochs.
    Registered {
        stream: StreamId,
        node: NodeId,
        cluster: Uuid,
        incarnation: Incarnation,
    },
    HeartbeatAck {
        stream: StreamId,
    },
    /// A newer incarnation exists: tell the node to stop, then end the stream.
    Fence {
        stream: StreamId,
        node: NodeId,
    },
    /// End the stream with this refusal.
    Refuse {
        stream: StreamId,
        refusal: Refusal,
    },
    /// End the stream: the process has another one.
    Close {
        stream: StreamId,
    },
    /// Look whether anybody listens there; [`Event::ProbeRefused`] if not.
    Probe {
        node: NodeId,
        incarnation: Incarnation,
        address: String,
    },
    /// Ask the node where these logs end.
    AskEnds {
        stream: StreamId,
        partitions: Vec<TopicPartition>,
    },
    /// A leader was elected although acknowledged records may be missing.
    Recovered {
        partition: TopicPartition,
        leader: NodeId,
        recovered: Recovered,
    },
    /// Give the election back: most sessions went silent at once, so it is this
    /// controller that hears nobody.
    Resign,
}

/// Debug builds check themselves up to this size.
const CHECKED_PARTITIONS: usize = 200;

pub struct Core {
    settings: Settings,
    view: View,
    sessions: Sessions,
    jobs: Jobs,
    changed: Changed,
    in_sync: InSyncCalls,
    ends: Ends,
    due: Due,
    /// When live sessions ended by silence, oldest first.
    silenced: VecDeque<Duration>,
    resigned: bool,
    /// Effects of the beginning.
    first: Vec<Effect>,
}

impl Core {
    /// A controller that was just elected. Registered nodes have one session
    /// time-out from `now` to be heard.
    pub fn new(settings: Settings, view: View, now: Now) -> Self {
        let mut core = Self {
            sessions: Sessions::new(settings.session_timeout, now.monotonic),
            changed: Changed::new(view.revision),
            jobs: Jobs::new(),
            settings,
            view,
            in_sync: InSyncCalls::default(),
            ends: Ends::default(),
            due: Due::new(),
            silenced: VecDeque::new(),
            resigned: false,
            first: Vec::new(),
        };
        let registered = core.view.nodes.iter().filter(|(_, n)| !n.value.removed);
        for (id, node) in registered {
            core.sessions.await_node(*id, &node.value, now.monotonic);
            core.first.push(Effect::Probe {
                node: *id,
                incarnation: node.value.incarnation,
                address: node.value.grpc_address.clone(),
            });
        }
        core.await_coordinators(now);
        core.note_all_due(now.monotonic);
        core.jobs.urgent(Job::FoundCluster);
        core.jobs.urgent(Job::Tidy);
        core
    }

    pub fn view(&self) -> &View {
        &self.view
    }

    pub fn sessions(&self) -> impl Iterator<Item = (NodeId, &Session)> {
        self.sessions.iter()
    }

    pub fn session(&self, node: NodeId) -> Option<&Session> {
        self.sessions.get(node)
    }

    /// The node whose session this stream holds.
    pub fn node_of(&self, stream: StreamId) -> Option<NodeId> {
        self.sessions.node_of(stream)
    }

    /// A write is under way.
    pub fn is_writing(&self) -> bool {
        self.jobs.writing.is_some()
    }

    pub fn changed(&self) -> &Changed {
        &self.changed
    }

    /// What is visible and changed since the last call, and the revision that
    /// it now is; `None` if nothing.
    pub fn take_changed(&mut self) -> Option<Changed> {
        self.changed.take(&self.view)
    }

    pub fn step(&mut self, now: Now, event: Event) -> Vec<Effect> {
        let mut effects = std::mem::take(&mut self.first);
        self.sessions.on_time(now.monotonic);
        match event {
            Event::Tick => {
                // Only here: whoever drives the core delivers what was said before.
                self.end_silent_sessions(now, &mut effects);
                self.on_tick(now, &mut effects);
            }
            Event::Register {
                stream,
                registration,
            } => {
                self.sessions.on_register(stream);
                self.jobs.urgent(Job::Register {
                    stream,
                    registration,
                    node: None,
                });
            }
            Event::Heartbeat { stream, folders } => {
                if self.sessions.on_heartbeat(now.monotonic, stream, folders) {
                    effects.push(Effect::HeartbeatAck { stream });
                }
            }
            Event::Health { stream, health } => self.on_health(now, stream, health),
            Event::Leaving { stream } => {
                let left = self.sessions.on_leaving(stream);
                left.into_iter().for_each(|node| self.on_dead(node));
            }
            Event::StreamBroken { stream } => effects.extend(self.on_broken(stream)),
            Event::ProbeRefused { node, incarnation } => {
                if self.sessions.on_refused(node, incarnation) {
                    self.on_dead(node);
                }
            }
            Event::ReplicaEnds { stream, ends } => {
                self.on_ends(stream, ends);
                self.jobs.urgent(Job::Recover);
                self.jobs.unpark();
            }
            Event::Request { call, request } => self.on_request(call, request, &mut effects),
            Event::Written { revision } => self.on_written(now, revision, &mut effects),
            Event::Reloaded { view } => self.on_reloaded(now, *view),
        }
        self.pump(now, &mut effects);
        // The check looks at everything; large clusters are left to the tests.
        debug_assert!(self.view.partitions.len() > CHECKED_PARTITIONS || self.check() == Ok(()));
        effects
    }

    /// Plans until a write is under way or nothing is left to do.
    fn pump(&mut self, now: Now, effects: &mut Vec<Effect>) {
        while let Some(mut job) = self.jobs.next() {
            if let Some(changes) = self.plan(now, &mut job, effects) {
                debug_assert!(!changes.is_empty() && changes.len() <= CHANGES_PER_WRITE);
                effects.push(Effect::Write {
                    changes: changes.clone(),
                });
                self.jobs.write(changes, job);
            }
        }
    }

    /// Names the first broken invariant.
    pub fn check(&self) -> Result<(), String> {
        self.view.check()?;
        self.sessions.check()
    }
}
