//! Ten thousand partitions, real controllers on a real etcd, storage nodes that
//! are nothing but their sessions: how soon a death is written, and how soon the
//! next controller decides. Run by `make soak`.

use std::{
    collections::BTreeMap,
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};
use talweg_harness::{Process, Stack, eventually};
use talweg_proto::{
    controller::v1::{
        FolderBoot, NodeHeartbeat, NodeSessionRequest, PartitionState, RegisterNode,
        RegisteredFolder, WatchClusterRequest, controller_service_client::ControllerServiceClient,
        node_session_request::Frame as Ask, node_session_response::Frame as Answer,
        watch_cluster_response::Update,
    },
    v1::{CreateTopicRequest, Plane, topic_service_client::TopicServiceClient},
};
use tokio::{sync::mpsc, task::JoinHandle, time::Instant};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use uuid::Uuid;

const TOPICS: u32 = 10;
const PARTITIONS: i32 = 1_000;
const NODES: usize = 7;
const BEAT: Duration = Duration::from_millis(500);

fn lazy(url: &str) -> Channel {
    Channel::from_shared(url.to_owned())
        .expect("url")
        .connect_lazy()
}

/// A storage node that registers, beats, and holds nothing.
struct Stub {
    id: Arc<AtomicU32>,
    silent: Arc<AtomicBool>,
    listener: Option<TcpListener>,
    running: JoinHandle<()>,
}

impl Stub {
    fn start(controllers: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = format!("http://{}", listener.local_addr().expect("address"));
        let (id, silent) = (
            Arc::new(AtomicU32::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let asking = RegisterNode {
            plane: Plane::Storage.into(),
            grpc_address: address,
            folders: vec![RegisteredFolder {
                folder_id: Uuid::new_v4().as_bytes().to_vec().into(),
                boot: FolderBoot::New.into(),
            }],
            process_id: Uuid::new_v4().as_bytes().to_vec().into(),
            version: "stub".into(),
            ..Default::default()
        };
        let (own, quiet) = (Arc::clone(&id), Arc::clone(&silent));
        let running = tokio::spawn(async move {
            for turn in 0.. {
                if quiet.load(Ordering::Relaxed) {
                    return;
                }
                let url: &String = &controllers[turn % controllers.len()];
                session(url, asking.clone(), &own, &quiet).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        Self {
            id,
            silent,
            listener: Some(listener),
            running,
        }
    }

    fn id(&self) -> u32 {
        self.id.load(Ordering::Relaxed)
    }

    /// As a process that dies: its stream breaks and nobody listens.
    fn die(&mut self) {
        self.listener = None;
        self.running.abort();
    }
}

/// One session, until it ends.
async fn session(url: &str, mut asking: RegisterNode, id: &AtomicU32, silent: &AtomicBool) {
    asking.node_id = id.load(Ordering::Relaxed);
    let (frames, queue) = mpsc::channel(8);
    let send = async |frame| {
        let request = NodeSessionRequest { frame: Some(frame) };
        frames.send(request).await.is_ok()
    };
    if !send(Ask::Register(asking)).await {
        return;
    }
    let mut client = ControllerServiceClient::new(lazy(url));
    let Ok(answers) = client.node_session(ReceiverStream::new(queue)).await else {
        return;
    };
    let mut answers = answers.into_inner();
    let mut beat = tokio::time::interval(BEAT);
    loop {
        tokio::select! {
            answer = answers.message() => match answer {
                Ok(Some(answer)) => if let Some(Answer::Registered(it)) = answer.frame {
                    id.store(it.node_id, Ordering::Relaxed);
                },
                _ => return,
            },
            _ = beat.tick() => {
                if !silent.load(Ordering::Relaxed) && !send(Ask::Heartbeat(NodeHeartbeat::default())).await {
                    return;
                }
            }
        }
    }
}

/// Leaders as the controller that is active tells them.
type Leaders = BTreeMap<(Vec<u8>, u32), u32>;

/// Follows whoever is active until `hope`; the leaders then.
async fn watch_until(controllers: &[String], hope: impl Fn(&Leaders) -> bool) -> Leaders {
    let follow = async {
        for turn in 0.. {
            let url = &controllers[turn % controllers.len()];
            if let Some(leaders) = follow(url, &hope).await {
                return leaders;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        unreachable!("it tries for ever")
    };
    tokio::time::timeout(Duration::from_secs(60), follow)
        .await
        .expect("the controllers decide")
}

/// `None`: this one is not active, or went.
async fn follow(url: &str, hope: &impl Fn(&Leaders) -> bool) -> Option<Leaders> {
    let mut client = ControllerServiceClient::new(lazy(url));
    let request = WatchClusterRequest::default();
    let mut updates = client.watch_cluster(request).await.ok()?.into_inner();
    let (mut leaders, mut whole) = (Leaders::new(), false);
    loop {
        let mut take = |partitions: Vec<PartitionState>| {
            let keyed = |p: PartitionState| ((p.topic_id.to_vec(), p.partition), p.leader);
            leaders.extend(partitions.into_iter().map(keyed));
        };
        match updates.message().await.ok()??.update? {
            Update::Snapshot(part) => {
                take(part.view.unwrap_or_default().partitions);
                whole |= part.last;
            }
            Update::Delta(delta) => take(delta.view.unwrap_or_default().partitions),
            Update::Progress(_) => {}
        }
        if whole && hope(&leaders) {
            return Some(leaders);
        }
    }
}

fn led_by(leaders: &Leaders, node: u32) -> usize {
    leaders.values().filter(|leader| **leader == node).count()
}

fn memory(process: &Process) -> u64 {
    process.private_bytes() >> 20
}

async fn create_topics(controller: &str) {
    let mut topics = TopicServiceClient::new(lazy(controller));
    for topic in 0..TOPICS {
        let request = CreateTopicRequest {
            name: format!("t{topic}"),
            partitions: Some(PARTITIONS),
            ..Default::default()
        };
        topics.create_topic(request).await.expect("created");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "judged by time on a quiet machine; make soak"]
async fn a_death_is_written_and_the_next_controller_decides_in_time() {
    let mut stack = Stack::builder()
        .storages(0)
        .gateways(0)
        .controllers_on_etcd(2)
        .start();
    let controllers = stack.controllers();
    let mut stubs: Vec<Stub> = (0..NODES)
        .map(|_| Stub::start(controllers.clone()))
        .collect();
    eventually("all registered", Duration::from_secs(20), || async {
        let ids: Vec<u32> = stubs.iter().map(Stub::id).collect();
        if ids.iter().all(|id| *id > 0) {
            Ok(())
        } else {
            Err(format!("{ids:?}"))
        }
    })
    .await;
    let begun = Instant::now();
    create_topics(&controllers[0]).await;
    let all = (TOPICS * PARTITIONS as u32) as usize;
    let led = |leaders: &Leaders| leaders.len() == all && led_by(leaders, 0) == 0;
    watch_until(&controllers, led).await;
    println!("{all} partitions created in {:?}", begun.elapsed());

    let id = stubs[0].id();
    let begun = Instant::now();
    stubs[0].die();
    watch_until(&controllers, |leaders| {
        led(leaders) && led_by(leaders, id) == 0
    })
    .await;
    let took = begun.elapsed();
    println!(
        "a death written in {took:?}; the controller holds {} MiB",
        memory(&stack.controller)
    );
    assert!(took < Duration::from_secs(2), "{took:?}");

    let id = stubs[1].id();
    let begun = Instant::now();
    stack.controller.kill9();
    stubs[1].die();
    watch_until(&controllers, |leaders| {
        leaders.len() == all && led_by(leaders, id) == 0
    })
    .await;
    let took = begun.elapsed();
    println!(
        "a refused connection: the next controller decided in {took:?}; it holds {} MiB",
        memory(&stack.standbys[0])
    );
    assert!(took < Duration::from_secs(2), "{took:?}");

    tokio::task::block_in_place(|| stack.controller.start(Duration::from_secs(20)));
    eventually(
        "it hears the active one",
        Duration::from_secs(20),
        || async {
            let log = stack.controller.log();
            let last = log.rsplit("standing by").next().unwrap_or_default();
            if last.contains("hears the active controller") {
                Ok(())
            } else {
                Err(log)
            }
        },
    )
    .await;
    let id = stubs[2].id();
    let begun = Instant::now();
    stubs[2].silent.store(true, Ordering::Relaxed);
    stack.standbys[0].kill9();
    watch_until(&controllers, |leaders| {
        leaders.len() == all && led_by(leaders, id) == 0
    })
    .await;
    let took = begun.elapsed();
    println!("silence: the next controller decided in {took:?}");
    assert!(took < Duration::from_secs(4), "{took:?}");
}
