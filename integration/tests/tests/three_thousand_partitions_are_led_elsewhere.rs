//! 300 topics of ten partitions, three replicas each, on three real storage
//! nodes: one is killed, and everything that it led is led elsewhere. Then ten
//! thousand readers lose their gateway at once and come to another, and a
//! producer at a fixed rate does not notice. Judged by time: `make soak`.

use futures::{StreamExt, stream};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use talweg_harness::{
    Process, Stack, eventually,
    raw::{RawProduce, connect, create_topic, from},
};
use talweg_proto::v1::{
    Acks, Credit, FetchOpen, FetchRequest, Form, GetMetadataRequest, Record,
    cluster_service_client::ClusterServiceClient, fetch_partition::Start, fetch_request,
    fetch_response::Frame, fetch_service_client::FetchServiceClient,
};
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

const TOPICS: usize = 300;
const PARTITIONS: i32 = 10;

/// Leaders of all partitions, as the gateway knows them.
async fn leaders(channel: &Channel) -> Vec<u32> {
    let mut cluster =
        ClusterServiceClient::new(channel.clone()).max_decoding_message_size(64 << 20);
    let metadata = cluster.get_metadata(GetMetadataRequest::default()).await;
    let metadata = metadata.expect("metadata").into_inner();
    let topics = metadata.metadata.unwrap_or_default().topics;
    topics
        .iter()
        .flat_map(|topic| topic.partitions.iter().map(|p| p.leader))
        .collect()
}

fn memory(processes: &[Process]) -> Vec<u64> {
    processes.iter().map(|p| p.private_bytes() >> 20).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "judged by time on a quiet machine; make soak"]
async fn all_that_a_dead_node_led_is_led_elsewhere() {
    let mut stack = Stack::builder().storages(3).start();
    let channel = connect(&stack.gateway(0)).await;
    let begun = Instant::now();
    stream::iter(0..TOPICS)
        .for_each_concurrent(8, |i| {
            let channel = channel.clone();
            async move { drop(create_topic(&channel, &format!("t{i}"), PARTITIONS, &[]).await) }
        })
        .await;
    let all = TOPICS * PARTITIONS as usize;
    eventually("all led", Duration::from_secs(120), || async {
        let leaders = leaders(&channel).await;
        let led = leaders.iter().filter(|leader| **leader > 0).count();
        if led == all {
            Ok(())
        } else {
            Err(format!("{led} of {all}"))
        }
    })
    .await;
    println!("{all} partitions created in {:?}", begun.elapsed());
    // One record in each topic, so that files are there and followers follow.
    let mut produce = RawProduce::open(&channel, Acks::All).await;
    for topic in 0..TOPICS {
        let record = Record {
            value: Some(b"v".to_vec().into()),
            ..Default::default()
        };
        produce
            .record(&format!("t{topic}"), record)
            .await
            .expect("acknowledged");
    }
    println!(
        "storage nodes hold {:?} MiB, the controller {} MiB, the gateway {:?} MiB",
        memory(&stack.storages),
        stack.controller.private_bytes() >> 20,
        memory(&stack.gateways)
    );
    let led = leaders(&channel)
        .await
        .iter()
        .filter(|leader| **leader == 1)
        .count();
    let begun = Instant::now();
    stack.storages[0].kill9();
    eventually("all led elsewhere", Duration::from_secs(60), || async {
        let leaders = leaders(&channel).await;
        let left = leaders.iter().filter(|leader| **leader <= 1).count();
        if left == 0 {
            Ok(())
        } else {
            Err(format!("{left} left"))
        }
    })
    .await;
    let decided = begun.elapsed();
    for topic in 0..TOPICS {
        let record = Record {
            value: Some(b"v".to_vec().into()),
            ..Default::default()
        };
        produce
            .record(&format!("t{topic}"), record)
            .await
            .expect("acknowledged");
    }
    println!(
        "{led} leaders replaced in {decided:?}; a record in each topic after {:?}",
        begun.elapsed()
    );
    assert!(decided < Duration::from_secs(5), "{decided:?}");
}

const READERS: usize = 10_000;
/// Below what a server allows on a connection.
const ON_A_CONNECTION: usize = 900;
/// Of a record that is due every ten milliseconds.
const DEADLINE: Duration = Duration::from_secs(1);

/// A reader that goes to the other gateway when its own is gone.
async fn reader(channels: [Channel; 2], opened: Arc<AtomicUsize>, stop: Arc<AtomicBool>) {
    for turn in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let (requests, rx) = mpsc::channel(2);
        let open = FetchOpen {
            partitions: vec![from("quiet", 0, Start::Latest(true))],
            credit: Some(Credit {
                bytes: 2 << 20,
                records: 1_000,
            }),
            form: Form::Records.into(),
            ..Default::default()
        };
        let frame = Some(fetch_request::Frame::Open(open));
        // The receiver is at hand.
        let _ = requests.send(FetchRequest { frame }).await;
        let mut client = FetchServiceClient::new(channels[turn % 2].clone());
        let Ok(answers) = client.fetch(ReceiverStream::new(rx)).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let mut answers = answers.into_inner();
        let mut counted = false;
        while let Ok(Some(answer)) = answers.message().await {
            if matches!(answer.frame, Some(Frame::Opened(_))) {
                counted = true;
                opened.fetch_add(1, Ordering::Relaxed);
            }
        }
        if counted {
            opened.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A record every ten milliseconds; the longest from due to acknowledged.
async fn producer(channel: Channel, stop: Arc<AtomicBool>) -> (u64, Duration) {
    let mut produce = RawProduce::open(&channel, Acks::All).await;
    let (mut sent, mut worst, mut due) = (0, Duration::ZERO, Instant::now());
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep_until(due).await;
        let record = Record {
            value: Some(b"v".to_vec().into()),
            ..Default::default()
        };
        produce.record("busy", record).await.expect("acknowledged");
        worst = worst.max(due.elapsed());
        due += Duration::from_millis(10);
        sent += 1;
    }
    (sent, worst)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "judged by time on a quiet machine; make soak"]
async fn ten_thousand_readers_that_reconnect_disturb_no_producer() {
    let mut stack = Stack::builder().gateways(2).start();
    let own = connect(&stack.gateway(1)).await;
    create_topic(&own, "quiet", 1, &[]).await;
    create_topic(&own, "busy", 1, &[]).await;
    let (opened, stop) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let lazy = |i| {
        Channel::from_shared(stack.gateway(i))
            .expect("url")
            .connect_lazy()
    };
    let channels: Vec<[Channel; 2]> = (0..READERS.div_ceil(ON_A_CONNECTION))
        .map(|_| [lazy(0), lazy(1)])
        .collect();
    for i in 0..READERS {
        let channels = channels[i / ON_A_CONNECTION].clone();
        tokio::spawn(reader(channels, Arc::clone(&opened), Arc::clone(&stop)));
    }
    let all_open = async || {
        eventually("all open", Duration::from_secs(120), || async {
            let open = opened.load(Ordering::Relaxed);
            if open == READERS {
                Ok(())
            } else {
                Err(format!("{open} of {READERS}"))
            }
        })
        .await;
    };
    let begun = Instant::now();
    all_open().await;
    println!(
        "{READERS} streams opened in {:?}; the gateway holds {} MiB, the storage node {} MiB",
        begun.elapsed(),
        stack.gateways[0].private_bytes() >> 20,
        stack.storages[0].private_bytes() >> 20
    );
    let writing = tokio::spawn(producer(own, Arc::clone(&stop)));
    tokio::time::sleep(Duration::from_secs(3)).await;
    let begun = Instant::now();
    stack.gateways[0].kill9();
    eventually("they are gone", Duration::from_secs(20), || async {
        let open = opened.load(Ordering::Relaxed);
        if open < READERS {
            Ok(())
        } else {
            Err(format!("{open}"))
        }
    })
    .await;
    all_open().await;
    println!("all open again after {:?}", begun.elapsed());
    tokio::time::sleep(Duration::from_secs(3)).await;
    stop.store(true, Ordering::Relaxed);
    let (sent, worst) = writing.await.expect("the producer ended well");
    println!("{sent} records at a fixed rate, the longest took {worst:?}");
    assert!(worst < DEADLINE, "{worst:?}");
}
