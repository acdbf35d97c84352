//! The thread that repairs damaged logs from replicas that other nodes hold: one
//! segment at a time on a node.
//!
//! A range that cannot be believed is met at a start or by a read. It is asked of the
//! partition's in-sync replicas, leader first, and only while this one itself leads or
//! follows closely: then all of them hold the same below the watermark. What fails is
//! tried again later; until then the range answers DATA_DAMAGED. Readers that meet it
//! before the first attempt are asked to wait a moment.

use crate::{
    node::Node,
    partition::{Command, PartitionHandle},
    rewrites::{self, Waiting},
    worker::{Stopping, Worker},
};
use bytes::Bytes;
use std::{collections::BTreeMap, io, sync::Arc, time::Duration};
use talweg_kit::{
    errors::{ErrorCode, Refusal},
    net::{ChannelOptions, channel},
};
use talweg_log::{RepairPart, RepairReport, RepairWish, RewriteError};
use talweg_proto::storage::v1::{
    ReadReplicaRequest, ReadReplicaResponse, replica_service_client::ReplicaServiceClient,
};
use talweg_types::{Offset, TopicPartition};
use tokio::{
    runtime::{Builder, Runtime},
    time::{sleep, timeout},
};
use tonic::{Request, transport::Channel};

/// Between two looks at the logs.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After a failure a log waits this long.
const AGAIN_MS: u64 = 15_000;
/// What is not yet flushed and committed soon is.
const SOON_MS: u64 = 1_000;
/// After so many readers are not asked to wait any more.
const READY_TRIES: u32 = 10;
/// For one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// For a reader that waits for a repair.
const WAIT_RETRY_MS: u32 = 200;
/// How soon a wait for an answer sees that the node stops.
const STOP_LOOK: Duration = Duration::from_millis(50);

/// Starts the thread.
pub fn spawn(node: Arc<Node>) -> io::Result<Worker> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    Worker::spawn("repair", |stopping| {
        let mut work = Work {
            node,
            runtime,
            stopping,
            waiting: Waiting::default(),
            asked: BTreeMap::new(),
        };
        work.run();
    })
}

/// What a reader is told that has met damage: if another replica can be expected to
/// give the records back in a moment, it is to try again.
pub fn soften(node: &Node, handle: &PartitionHandle, refusal: Refusal) -> Refusal {
    let is_damage = refusal.code == ErrorCode::DataDamaged && handle.reader.is_damaged();
    if !is_damage || handle.repair_failed() || Peers::of(node, handle.tp).left.is_empty() {
        return refusal;
    }
    let message = format!(
        "{}, and are being copied from another replica",
        refusal.message
    );
    Refusal::new(ErrorCode::OffsetNotAvailable, message).retry_after(WAIT_RETRY_MS)
}

struct Work {
    node: Arc<Node>,
    runtime: Runtime,
    stopping: Stopping,
    waiting: Waiting,
    /// How often in a row a log was asked for a repair and was not ready.
    asked: BTreeMap<TopicPartition, u32>,
}

impl Work {
    fn run(&mut self) {
        while !self.stopping.wait(LOOK_EVERY) {
            self.waiting.pass();
            let all = self.node.partitions.all();
            let is_damaged = |handle: &Arc<PartitionHandle>| {
                handle.reader.is_damaged() && handle.reader.settle_damage()
            };
            let damaged: Vec<_> = all.into_iter().filter(is_damaged).collect();
            self.asked
                .retain(|tp, _| damaged.iter().any(|handle| handle.tp == *tp));
            let count = i64::try_from(damaged.len()).unwrap_or(i64::MAX);
            self.node.metrics.damaged_replicas.set(count);
            for handle in damaged {
                while !self.stopping.is_set() && self.repair(&handle) {}
            }
        }
    }

    /// One segment; false if the next one must wait.
    fn repair(&mut self, handle: &PartitionHandle) -> bool {
        let tp = handle.tp;
        let takes_part = handle.leads().is_some() || handle.follows().is_some();
        if self.waiting.holds(&tp) || handle.failure().is_some() || !takes_part {
            return false;
        }
        let mut peers = Peers::of(&self.node, tp);
        if peers.left.is_empty() {
            // Nobody else has it, or nobody else is there.
            self.waiting.add(tp, AGAIN_MS);
            return false;
        }
        let Some(mut repair) =
            rewrites::ask(&self.node, handle, |give| Command::Repair { tp, give })
        else {
            self.waiting.add(tp, SOON_MS);
            let asked = self.asked.entry(tp).or_default();
            *asked += 1;
            if *asked >= READY_TRIES {
                // Something else must happen first.
                handle.set_repaired(false);
            }
            return false;
        };
        self.asked.remove(&tp);
        let (runtime, stopping) = (&self.runtime, &self.stopping);
        let result = repair.run(
            &mut |wish| runtime.block_on(peers.read(tp, wish, stopping)),
            &|| stopping.is_set(),
        );
        self.show(tp, &result);
        if result.is_err() {
            self.waiting.add(tp, AGAIN_MS);
        }
        if !matches!(result, Err(RewriteError::Cancelled)) {
            handle.set_repaired(result.is_ok());
        }
        rewrites::give_back(&self.node, handle, repair);
        result.is_ok()
    }

    fn show(&self, tp: TopicPartition, result: &Result<RepairReport, RewriteError>) {
        let metrics = &self.node.metrics;
        match result {
            Ok(report) => {
                metrics.repairs.inc();
                metrics.repaired_bytes.inc_by(report.restored_bytes);
                tracing::warn!(partition = %tp, ?report, "a damaged segment was repaired from another replica");
            }
            Err(RewriteError::Cancelled) => {
                tracing::debug!(partition = %tp, "repair cancelled");
            }
            Err(error) => {
                metrics.repair_failures.inc();
                tracing::warn!(partition = %tp, %error, "damage not repaired; tried again later");
            }
        }
    }
}

/// Whom to ask, in order; the first answers until it fails.
struct Peers {
    left: Vec<Peer>,
}

struct Peer {
    node_id: u32,
    address: String,
    client: Option<ReplicaServiceClient<Channel>>,
}

impl Peers {
    /// The other in-sync replicas that are alive, leader first.
    fn of(node: &Node, tp: TopicPartition) -> Self {
        let view = node.view.get();
        let Some((_, state)) = view.partition(&tp) else {
            return Self { left: Vec::new() };
        };
        let mut ids: Vec<u32> = state.in_sync.clone();
        ids.retain(|id| *id != node.id());
        ids.sort_unstable_by_key(|id| *id != state.leader);
        let peer = |node_id: u32| {
            let known = view.storage_node(node_id)?;
            let other = node.config.replicates_via(node_id);
            Some(Peer {
                node_id,
                address: other.unwrap_or(&known.grpc_address).to_owned(),
                client: None,
            })
        };
        Self {
            left: ids.into_iter().filter_map(peer).collect(),
        }
    }

    async fn read(
        &mut self,
        tp: TopicPartition,
        wish: RepairWish,
        stopping: &Stopping,
    ) -> Result<RepairPart, String> {
        let mut reasons = Vec::new();
        while let Some(peer) = self.left.first_mut() {
            match peer.read(tp, wish, stopping).await {
                Ok(part) if !part.batches.is_empty() => return Ok(part),
                Ok(_) => reasons.push(format!("node {} has nothing there", peer.node_id)),
                Err(reason) => reasons.push(format!("node {}: {reason}", peer.node_id)),
            }
            self.left.remove(0);
        }
        Err(reasons.join("; "))
    }
}

impl Peer {
    async fn read(
        &mut self,
        tp: TopicPartition,
        wish: RepairWish,
        stopping: &Stopping,
    ) -> Result<RepairPart, String> {
        let client = self.client()?;
        let request = ReadReplicaRequest {
            topic_id: Bytes::copy_from_slice(tp.topic_id.as_bytes()),
            partition: tp.partition.0,
            from_offset: wish.from.0,
            end_offset: wish.end.0,
            cleaned_end_offset: wish.cleaned_end.map(|end| end.0),
        };
        let mut request = Request::new(request);
        request.set_timeout(ANSWER_TIMEOUT);
        tokio::select! {
            answer = timeout(ANSWER_TIMEOUT, client.read_replica(request)) => match answer {
                Ok(Ok(response)) => Ok(part(response.into_inner())),
                Ok(Err(status)) => Err(status.message().to_owned()),
                Err(_) => Err("did not answer in time".into()),
            },
            () = until_stopped(stopping) => Err("this node is stopping".into()),
        }
    }

    fn client(&mut self) -> Result<&mut ReplicaServiceClient<Channel>, String> {
        match &mut self.client {
            Some(client) => Ok(client),
            none => {
                let options = ChannelOptions {
                    connect_timeout: CONNECT_TIMEOUT,
                    ..ChannelOptions::default()
                };
                let channel =
                    channel(&self.address, &options).map_err(|error| error.to_string())?;
                Ok(none.insert(ReplicaServiceClient::new(channel)))
            }
        }
    }
}

fn part(response: ReadReplicaResponse) -> RepairPart {
    RepairPart {
        batches: response.batches,
        cleaned_end: response.cleaned_end_offset.map(Offset),
        revision: response.revision,
    }
}

async fn until_stopped(stopping: &Stopping) {
    while !stopping.is_set() {
        sleep(STOP_LOOK).await;
    }
}
