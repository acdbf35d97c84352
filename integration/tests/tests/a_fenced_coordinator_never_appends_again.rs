//! A coordinator registers and its topic appears; it takes a shard by a fence and
//! writes. Storage is killed and comes back; a second coordinator comes and takes half
//! of the shards. What the first one still sends to those is refused, for good.

use bytes::Bytes;
use std::{collections::BTreeMap, time::Duration};
use talweg_batch::BatchBuilder;
use talweg_harness::{Stack, eventually, raw};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    controller::v1::{
        NodeHeartbeat, NodeRegistered, NodeSessionRequest, RegisterNode, ShardState,
        WatchClusterRequest, controller_service_client::ControllerServiceClient,
        node_session_request::Frame as Ask, node_session_response::Frame as Answer,
        watch_cluster_response::Update,
    },
    storage::v1::{
        AppendInternalRequest, AppendInternalResponse, append_internal_request::What,
        internal_log_service_client::InternalLogServiceClient,
    },
    v1::Plane,
};
use talweg_types::{Compression, ProducerEpoch, ProducerId, Sequence, TimestampMs};
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::ReceiverStream;

const PATIENCE: Duration = Duration::from_secs(30);

/// A coordinator that is nothing but its session.
struct Stub {
    registered: NodeRegistered,
    beating: JoinHandle<()>,
    /// Its address is not refused while it lives.
    _listener: TcpListener,
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.beating.abort();
    }
}

impl Stub {
    async fn register(controller: &str, process: u8) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let (frames, queue) = mpsc::channel(4);
        let send = |frame| NodeSessionRequest { frame: Some(frame) };
        let asking = RegisterNode {
            plane: Plane::Coordinator.into(),
            grpc_address: format!("http://{}", listener.local_addr().expect("bound")),
            process_id: Bytes::from(vec![process; 16]),
            ..RegisterNode::default()
        };
        frames
            .send(send(Ask::Register(asking)))
            .await
            .expect("sent");
        let mut answers = ControllerServiceClient::new(raw::connect(controller).await)
            .node_session(ReceiverStream::new(queue))
            .await
            .expect("a session")
            .into_inner();
        let first = answers.message().await.expect("an answer").expect("open");
        let Some(Answer::Registered(registered)) = first.frame else {
            panic!("{first:?}");
        };
        let pause = Duration::from_millis(u64::from(registered.session_timeout_ms) / 4);
        let beating = tokio::spawn(async move {
            loop {
                tokio::time::sleep(pause).await;
                let beat = send(Ask::Heartbeat(NodeHeartbeat::default()));
                if frames.send(beat).await.is_err() || answers.message().await.is_err() {
                    return;
                }
            }
        });
        Self {
            registered,
            beating,
            _listener: listener,
        }
    }
}

/// The shards as a controller tells them now.
async fn shards(controller: &str) -> Result<BTreeMap<u32, ShardState>, String> {
    let mut client = ControllerServiceClient::new(raw::connect(controller).await);
    let watch = client
        .watch_cluster(WatchClusterRequest { node_id: 0 })
        .await;
    let mut updates = watch.map_err(|status| status.to_string())?.into_inner();
    let mut shards = BTreeMap::new();
    loop {
        let update = updates
            .message()
            .await
            .map_err(|status| status.to_string())?;
        let Some(Update::Snapshot(part)) = update.and_then(|it| it.update) else {
            return Err("no snapshot".into());
        };
        let view = part.view.unwrap_or_default();
        shards.extend(view.shards.into_iter().map(|shard| (shard.shard, shard)));
        if part.last {
            return Ok(shards);
        }
    }
}

/// Waits until each of `coordinators` holds as many.
async fn spread(
    controller: &str,
    coordinators: &[&Stub],
    each: usize,
) -> BTreeMap<u32, ShardState> {
    eventually("the shards are spread", PATIENCE, || async {
        let shards = shards(controller).await?;
        let held = |stub: &Stub| {
            let id = stub.registered.node_id;
            shards
                .values()
                .filter(|shard| shard.coordinator == id)
                .count()
        };
        match coordinators.iter().all(|stub| held(stub) == each) {
            true => Ok(shards),
            false => Err(format!("{shards:?}")),
        }
    })
    .await
}

async fn append(
    storage: &str,
    shard: &ShardState,
    what: What,
) -> Result<AppendInternalResponse, Refusal> {
    let request = AppendInternalRequest {
        topic_id: shard.topic_id.clone(),
        partition: shard.shard,
        shard_epoch: shard.shard_epoch,
        what: Some(what),
    };
    let mut client = InternalLogServiceClient::new(raw::connect(storage).await);
    let answer = client.append_internal(request).await;
    answer
        .map(tonic::Response::into_inner)
        .map_err(|status| Refusal::from_status(&status))
}

/// Sends the same until it is done, as a coordinator does.
async fn appended(storage: &str, shard: &ShardState, what: What) -> AppendInternalResponse {
    eventually("the append is done", PATIENCE, || async {
        let done = append(storage, shard, what.clone()).await;
        done.map_err(|refusal| {
            assert!(refusal.is_retriable(), "{refusal}");
            refusal.to_string()
        })
    })
    .await
}

fn batch(producer: i64, sequence: i32) -> What {
    let mut builder = BatchBuilder::new(Compression::None).with_producer(
        ProducerId(producer),
        ProducerEpoch(0),
        Sequence(sequence),
    );
    builder
        .push(TimestampMs(1_000), Some(b"group"), Some(b"state"), [])
        .expect("pushed");
    What::Batch(builder.build().expect("built"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_coordinator_never_appends_again() {
    let mut stack = Stack::builder().start();
    let (controller, storage) = (stack.controller(), stack.storage(0));
    let one = Stub::register(&controller, 1).await;
    let before = spread(&controller, &[&one], 48).await;
    for shard in before.values() {
        let fenced = appended(&storage, shard, What::Fence(true)).await;
        let first = appended(&storage, shard, batch(7, 0)).await;
        assert!(first.base_offset > fenced.base_offset);
    }
    stack.storages[0].kill9();
    stack.storages[0].start(PATIENCE);
    let storage = stack.storage(0);
    let shard = &before[&0];
    let again = appended(&storage, shard, batch(7, 0)).await;
    assert!(again.duplicate, "known after the kill");
    let older = ShardState {
        shard_epoch: shard.shard_epoch - 1,
        ..shard.clone()
    };
    let refused = append(&storage, &older, batch(7, 1)).await;
    assert!(refused.is_err(), "epoch 0 was never given out");

    let two = Stub::register(&controller, 2).await;
    let after = spread(&controller, &[&one, &two], 24).await;
    let taken = after
        .values()
        .filter(|s| s.coordinator == two.registered.node_id);
    for shard in taken {
        let old = &before[&shard.shard];
        assert!(shard.shard_epoch > old.shard_epoch);
        appended(&storage, shard, What::Fence(true)).await;
        for late in [batch(7, 0), batch(7, 1), What::Fence(true)] {
            let refused = append(&storage, old, late).await;
            assert_eq!(refused.expect_err("fenced").code, ErrorCode::ShardFenced);
        }
        appended(&storage, shard, batch(8, 0)).await;
    }
    stack.storages[0].kill9();
    stack.storages[0].start(PATIENCE);
    let storage = stack.storage(0);
    let mut checked = 0;
    for shard in after
        .values()
        .filter(|s| s.coordinator == two.registered.node_id)
    {
        assert!(appended(&storage, shard, batch(8, 0)).await.duplicate);
        let late = append(&storage, &before[&shard.shard], batch(7, 1)).await;
        assert_eq!(late.expect_err("fenced").code, ErrorCode::ShardFenced);
        checked += 1;
    }
    assert_eq!(checked, 24);
}
