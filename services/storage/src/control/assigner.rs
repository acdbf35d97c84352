//! Does what [`super::assign`] decides: recovers logs on workers, tells loops,
//! confirms deletions to the controller.
//!
//! One task owns what is known of each replica. Its work comes back as messages,
//! so that nothing here waits for a disk. A partition that fails is tried again
//! a while later and holds up no other.

use super::{
    assign::{Action, Known, Me, Phase, Role, decide, is_removed},
    controllers::Controllers,
};
use crate::{
    clock,
    folders::Folders,
    node::Node,
    partition::{Command, Opened, PartitionHandle},
    view::{ClusterView, TopicView},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use talweg_kit::net::ChannelOptions;
use talweg_log::{LogConfig, LogError, PartitionLog, RecoveryReport};
use talweg_proto::controller::v1::{
    ConfirmReplicasDeletedRequest, RemovedReplica,
    controller_service_client::ControllerServiceClient,
};
use talweg_replication::LeaderSettings;
use talweg_types::{NodeId, TopicConfig, TopicId, TopicPartition};
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    task::spawn_blocking,
    time::{Instant, timeout},
};

/// What failed is looked at again after this.
const RETRY: Duration = Duration::from_secs(10);
/// For the controller's answer to a confirmation.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);

/// What comes back.
enum Event {
    Opened(
        TopicPartition,
        Box<Result<(PartitionLog, RecoveryReport), LogError>>,
    ),
    Deleted(TopicPartition, Result<(), LogError>),
    Confirmed(Gone, bool),
}

/// What the controller is told that nothing is left of here.
#[derive(Clone, Default)]
struct Gone {
    topics: Vec<TopicId>,
    /// Moved elsewhere by a reassignment.
    partitions: Vec<TopicPartition>,
}

/// Brings the node's replicas to where the view wants them.
pub struct Assigner {
    node: Arc<Node>,
    folders: Arc<Folders>,
    controllers: Arc<Controllers>,
    known: BTreeMap<TopicPartition, Known>,
    /// Told to the controller, or being told.
    confirmed: BTreeSet<TopicId>,
    confirmed_moves: BTreeSet<TopicPartition>,
    /// Logs recovered at a time.
    recoveries: Arc<Semaphore>,
    events: mpsc::UnboundedSender<Event>,
    incoming: mpsc::UnboundedReceiver<Event>,
}

impl Assigner {
    pub fn new(node: Arc<Node>, folders: Arc<Folders>, controllers: Arc<Controllers>) -> Self {
        // Bounded by the replicas of the node: one message each.
        let (events, incoming) = mpsc::unbounded_channel();
        Self {
            recoveries: Arc::new(Semaphore::new(node.config.recovery_count())),
            node,
            folders,
            controllers,
            known: BTreeMap::new(),
            confirmed: BTreeSet::new(),
            confirmed_moves: BTreeSet::new(),
            events,
            incoming,
        }
    }

    /// Runs for as long as the process does.
    pub async fn run(mut self) {
        let mut changed = self.node.view.subscribe();
        let mut retry = Instant::now() + RETRY;
        loop {
            tokio::select! {
                biased;
                Some(event) = self.incoming.recv() => self.on_event(event),
                more = changed.changed() => {
                    if more.is_err() {
                        return;
                    }
                    self.look_at_all();
                }
                () = tokio::time::sleep_until(retry) => {
                    retry = Instant::now() + RETRY;
                    let folders = Arc::clone(&self.folders);
                    let may_heal = |tp: &TopicPartition| folders.list[folders.place(*tp)].failed().is_none();
                    self.known.retain(|tp, known| known.phase != Phase::Failed || !may_heal(tp));
                    self.look_at_all();
                }
            }
        }
    }

    fn me(&self) -> Option<Me> {
        let incarnation = self.node.incarnation()?;
        (self.node.draining().is_none() && self.node.view.get().revision >= 0).then_some(Me {
            node_id: self.node.id(),
            incarnation,
        })
    }

    fn look_at_all(&mut self) {
        let Some(me) = self.me() else { return };
        let view = self.node.view.get();
        let in_view = view.topics.values().flat_map(|topic| {
            let tp = |partition: &u32| partition_of(topic.id, *partition);
            topic.partitions.keys().map(tp)
        });
        let doomed = view
            .tombstones
            .keys()
            .flat_map(|id| self.folders.of_topic(*id));
        let all: BTreeSet<TopicPartition> = in_view
            .chain(doomed)
            .chain(self.known.keys().copied())
            .collect();
        for tp in all {
            self.look_at(&view, me, tp);
        }
        self.confirm(&view, me);
    }

    /// Does all that is to be done about a replica now.
    fn look_at(&mut self, view: &ClusterView, me: Me, tp: TopicPartition) {
        // Leading and settings may both be due; never more.
        for _ in 0..3 {
            let on_disk = self.folders.holder(&tp).is_some();
            let Some(action) = decide(view, me, &tp, self.known.get(&tp), on_disk) else {
                return;
            };
            if !self.act(view, tp, action) {
                return;
            }
        }
    }

    /// False: wait for what comes back.
    fn act(&mut self, view: &ClusterView, tp: TopicPartition, action: Action) -> bool {
        let owner = &self.node.loops[self.node.owner_of(&tp)];
        let command = match action {
            Action::Open => {
                self.open(view, tp);
                return false;
            }
            Action::Delete => {
                self.delete(tp);
                return false;
            }
            Action::Take(role) => {
                if let Some(known) = self.known.get_mut(&tp) {
                    known.told = Some(role.clone());
                }
                match role {
                    Role::Leads(leadership) => Command::Lead { tp, leadership },
                    Role::Follows(following) => Command::Follow { tp, following },
                    Role::Rests(epoch) => Command::Resign { tp, epoch },
                }
            }
            Action::Configure => {
                let Some((known, topic)) =
                    self.known.get_mut(&tp).zip(view.topics.get(&tp.topic_id))
                else {
                    return false;
                };
                known.topic = Arc::clone(topic);
                Command::Configure {
                    tp,
                    log: log_config(topic),
                    settings: leader_settings(topic),
                }
            }
        };
        owner.send(command).is_ok()
    }

    fn open(&mut self, view: &ClusterView, tp: TopicPartition) {
        let topic = view
            .topics
            .get(&tp.topic_id)
            .cloned()
            .unwrap_or_else(|| unknown_topic(tp.topic_id));
        let is_new = self.folders.holder(&tp).is_none();
        let folder = Arc::clone(&self.folders.list[self.folders.place(tp)]);
        let config = log_config(&topic);
        self.known.insert(
            tp,
            Known {
                phase: Phase::Opening,
                told: None,
                topic,
            },
        );
        if is_new {
            self.opened(tp, PartitionLog::create(&folder, tp, config));
            return;
        }
        let (events, recoveries) = (self.events.clone(), Arc::clone(&self.recoveries));
        tokio::spawn(async move {
            let _permit = recoveries.acquire_owned().await;
            let recover = move || PartitionLog::recover(&folder, tp, config, clock::wall_now());
            if let Ok(result) = spawn_blocking(recover).await {
                // The receiver lives as long as the process.
                let _ = events.send(Event::Opened(tp, Box::new(result)));
            }
        });
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Opened(tp, result) => match *result {
                Ok((log, report)) => {
                    show(tp, &report);
                    self.opened(tp, log);
                }
                Err(error) => self.failed(tp, &error),
            },
            Event::Deleted(tp, Ok(())) => {
                tracing::info!(partition = %tp, "deleted");
                self.known.remove(&tp);
                self.node.partitions.remove(&tp);
                self.folders.forget(&tp);
                if let Some(me) = self.me() {
                    self.confirm(&self.node.view.get(), me);
                }
            }
            Event::Deleted(tp, Err(error)) => {
                tracing::error!(partition = %tp, %error, "could not be deleted; tried again later");
                if let Some(known) = self.known.get_mut(&tp) {
                    known.phase = Phase::Failed;
                }
            }
            Event::Confirmed(gone, false) => {
                self.confirmed.retain(|id| !gone.topics.contains(id));
                self.confirmed_moves
                    .retain(|tp| !gone.partitions.contains(tp));
            }
            Event::Confirmed(_, true) => {}
        }
    }

    /// Gives the log to its loop, then looks what it should do.
    fn opened(&mut self, tp: TopicPartition, log: PartitionLog) {
        let owner = self.node.owner_of(&tp);
        let handle = Arc::new(PartitionHandle::new(tp, log.reader(), owner));
        let Some(known) = self.known.get_mut(&tp) else {
            return;
        };
        known.phase = Phase::Open;
        let opened = Opened {
            log,
            handle: Arc::clone(&handle),
            node: NodeId(self.node.id()),
            folder: self.folders.place(tp),
            settings: leader_settings(&known.topic),
            outbox: Arc::clone(&self.node.outbox),
            contacts: Arc::clone(&self.node.contacts),
            wall_clock: clock::wall_now,
        };
        if self.node.loops[owner]
            .send(Command::Open(Box::new(opened)))
            .is_err()
        {
            return;
        }
        self.node.partitions.insert(handle);
        if let Some(me) = self.me() {
            self.look_at(&self.node.view.get(), me, tp);
        }
    }

    fn failed(&mut self, tp: TopicPartition, error: &LogError) {
        tracing::error!(partition = %tp, %error, "cannot be opened; tried again later");
        let Some(known) = self.known.get_mut(&tp) else {
            return;
        };
        known.phase = Phase::Failed;
        let folder = &self.folders.list[self.folders.place(tp)];
        let reader = PartitionLog::create(folder, tp, log_config(&known.topic)).reader();
        self.node
            .partitions
            .insert(Arc::new(PartitionHandle::failed(
                tp,
                reader,
                &error.to_string(),
            )));
        self.node.outbox.say_failed();
    }

    fn delete(&mut self, tp: TopicPartition) {
        if let Some(known) = self.known.get_mut(&tp) {
            known.phase = Phase::Deleting;
        }
        let (done, answer) = oneshot::channel();
        let events = self.events.clone();
        if self.node.loops[self.node.owner_of(&tp)]
            .send(Command::Delete { tp, done })
            .is_err()
        {
            return;
        }
        tokio::spawn(async move {
            if let Ok(result) = answer.await {
                let _ = events.send(Event::Deleted(tp, result));
            }
        });
    }

    /// Tells the controller of deleted topics of which nothing is left here.
    fn confirm(&mut self, view: &ClusterView, me: Me) {
        self.confirmed.retain(|id| view.tombstones.contains_key(id));
        let held = |id: &TopicId| {
            !self.folders.of_topic(*id).is_empty() || self.known.keys().any(|tp| tp.topic_id == *id)
        };
        let pending = view
            .tombstones
            .iter()
            .filter(|(_, nodes)| nodes.contains(&me.node_id))
            .map(|(id, _)| *id);
        let topics: Vec<TopicId> = pending
            .filter(|id| !self.confirmed.contains(id) && !held(id))
            .collect();
        let partitions = self.moved_away(view, me);
        if topics.is_empty() && partitions.is_empty() {
            return;
        }
        self.confirmed.extend(topics.iter().copied());
        self.confirmed_moves.extend(partitions.iter().copied());
        let gone = Gone { topics, partitions };
        let (events, controllers) = (self.events.clone(), Arc::clone(&self.controllers));
        tokio::spawn(async move {
            let told = tell(&controllers, me, &gone).await;
            let _ = events.send(Event::Confirmed(gone, told));
        });
    }

    /// Replicas that are to be removed here, of which nothing is left, and of
    /// which the controller was not told yet.
    fn moved_away(&mut self, view: &ClusterView, me: Me) -> Vec<TopicPartition> {
        self.confirmed_moves.retain(|tp| is_removed(view, me, tp));
        let all = view.topics.values().flat_map(|topic| {
            let tp = |partition: &u32| partition_of(topic.id, *partition);
            topic.partitions.keys().map(tp)
        });
        all.filter(|tp| is_removed(view, me, tp))
            .filter(|tp| !self.known.contains_key(tp) && self.folders.holder(tp).is_none())
            .filter(|tp| !self.confirmed_moves.contains(tp))
            .collect()
    }
}

async fn tell(controllers: &Controllers, me: Me, gone: &Gone) -> bool {
    let Ok(channel) = controllers.channel(&ChannelOptions::default()) else {
        return false;
    };
    let request = ConfirmReplicasDeletedRequest {
        node_id: me.node_id,
        incarnation: me.incarnation.0,
        topic_ids: gone
            .topics
            .iter()
            .map(|id| id.as_bytes().to_vec().into())
            .collect(),
        partitions: gone
            .partitions
            .iter()
            .map(|tp| RemovedReplica {
                topic_id: tp.topic_id.as_bytes().to_vec().into(),
                partition: tp.partition.0,
            })
            .collect(),
    };
    let mut client = ControllerServiceClient::new(channel);
    match timeout(CONFIRM_TIMEOUT, client.confirm_replicas_deleted(request)).await {
        Ok(Ok(_)) => true,
        Ok(Err(status)) => {
            tracing::warn!(%status, "deletions could not be confirmed; tried again later");
            false
        }
        Err(_) => false,
    }
}

fn partition_of(topic_id: TopicId, partition: u32) -> TopicPartition {
    TopicPartition {
        topic_id,
        partition: talweg_types::PartitionIndex(partition),
    }
}

pub fn log_config(topic: &TopicView) -> LogConfig {
    LogConfig::for_topic(
        &topic.config,
        topic.config.durability_at(topic.topic.replication_factor),
    )
}

pub fn leader_settings(topic: &TopicView) -> LeaderSettings {
    LeaderSettings {
        durability: topic.config.durability_at(topic.topic.replication_factor),
        replication_factor: topic.topic.replication_factor,
        min_insync_replicas: topic.config.min_insync_at(topic.topic.replication_factor),
    }
}

/// For a replica that is opened only to be deleted.
fn unknown_topic(id: TopicId) -> Arc<TopicView> {
    Arc::new(TopicView {
        id,
        topic: talweg_proto::v1::Topic {
            replication_factor: 1,
            ..Default::default()
        },
        config: TopicConfig::default(),
        partitions: BTreeMap::new(),
        earlier_counts: Vec::new(),
    })
}

fn show(tp: TopicPartition, report: &RecoveryReport) {
    if report.cut_bytes > 0 || report.watermark_lost.is_some() || report.record_lost {
        tracing::warn!(partition = %tp, ?report, "recovered, and something was cut or lost");
    } else if !report.damaged.is_empty() {
        tracing::error!(partition = %tp, damaged = ?report.damaged, "damaged; the damaged range is not served");
    } else {
        tracing::debug!(partition = %tp, ?report, "recovered");
    }
}
