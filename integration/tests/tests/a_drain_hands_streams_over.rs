//! SIGTERM with 200 live streams over 3 connections: every stream gets a drain
//! frame, the process is gone within 5 s whatever clients do, and clients that
//! follow the drain see no error, no loss and no duplicate.

use bytes::Bytes;
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use talweg_harness::{
    Load, Stack, eventually,
    raw::{self, RawFetch, RawProduce, connect, create_topic, from},
};
use talweg_proto::v1::{
    Acks, FetchOpen, Form, Record, fetch_partition::Start, fetch_request, fetch_response,
    produce_response,
};
use tokio::task::JoinSet;
use tonic::transport::Channel;

/// The promise, and what a loaded two-core machine may add to it.
const EXIT: Duration = Duration::from_secs(5);
const SLACK: Duration = Duration::from_millis(500);
const STREAMS: usize = 200;

async fn three(url: &str) -> Vec<Channel> {
    vec![connect(url).await, connect(url).await, connect(url).await]
}

/// Streams that take the drain frame and then do nothing about it.
async fn deaf_streams(channels: &[Channel], form: Form) -> JoinSet<bool> {
    let mut set = JoinSet::new();
    let open = FetchOpen {
        partitions: vec![from("t", 0, Start::Latest(true))],
        credit: Some(raw::PLENTY),
        form: form.into(),
        ..Default::default()
    };
    for i in 0..STREAMS / 2 {
        let channel = &channels[i % channels.len()];
        let mut produce = RawProduce::open(channel, Acks::All).await;
        set.spawn(async move {
            let mut drained = false;
            while let Ok(Some(frame)) = produce.next().await {
                drained |= matches!(frame, produce_response::Frame::Drain(_));
            }
            drained
        });
        let (mut fetch, _) = RawFetch::open_with(channel, open.clone()).await;
        set.spawn(async move {
            let mut drained = false;
            while let Ok(Some(frame)) = fetch.next().await {
                drained |= matches!(frame, fetch_response::Frame::Drain(_));
            }
            drained
        });
    }
    set
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_leaves_in_time_although_clients_do_not_react() {
    let mut stack = Stack::builder().start();
    let channels = three(&stack.gateway(0)).await;
    create_topic(&channels[0], "t", 1, &[]).await;
    let streams = deaf_streams(&channels, Form::Records).await;
    let took = stack.gateways[0].stop(EXIT + SLACK);
    let drained = streams.join_all().await;
    assert_eq!(
        drained.iter().filter(|d| **d).count(),
        STREAMS,
        "drain frames; exit took {took:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storage_node_leaves_in_time_although_clients_do_not_react() {
    let mut stack = Stack::builder().start();
    create_topic(&connect(&stack.gateway(0)).await, "t", 1, &[]).await;
    let direct = three(&stack.storage(0)).await;
    let streams = deaf_streams(&direct, Form::Batches).await;
    let took = stack.storages[0].stop(EXIT + SLACK);
    let drained = streams.join_all().await;
    assert_eq!(
        drained.iter().filter(|d| **d).count(),
        STREAMS,
        "drain frames; exit took {took:?}"
    );
}

/// A thin producer that follows drains to the next URL. No error is allowed.
async fn following_producer(
    urls: Vec<String>,
    number: usize,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
) -> Vec<(Vec<u8>, i64)> {
    let (mut acked, mut at) = (Vec::new(), 0);
    'streams: loop {
        let channel = connect(&urls[at % urls.len()]).await;
        let mut stream = RawProduce::open(&channel, Acks::All).await;
        loop {
            if stop.load(Ordering::Relaxed) {
                return acked;
            }
            let value = format!("p{number}-{}", acked.len()).into_bytes();
            let record = Record {
                value: Some(Bytes::from(value.clone())),
                partition: Some(0),
                ..Default::default()
            };
            stream.send_records("t", vec![record]).await;
            let mut draining = false;
            loop {
                match stream
                    .next()
                    .await
                    .expect("no error on a stream that follows the drain")
                {
                    Some(produce_response::Frame::RecordsAck(ack)) => {
                        acked.push((value, ack.base_offset));
                        done.fetch_add(1, Ordering::Relaxed);
                        break;
                    }
                    Some(produce_response::Frame::Drain(_)) => draining = true,
                    other => panic!("producer {number}: {other:?}"),
                }
            }
            if draining {
                stream.finish();
                at += 1;
                continue 'streams;
            }
        }
    }
}

/// A thin consumer that follows drains with its own position.
async fn following_consumer(urls: Vec<String>, until: Arc<AtomicU64>) -> Vec<(Vec<u8>, i64)> {
    let (mut seen, mut next, mut at) = (Vec::new(), 0_i64, 0);
    'streams: loop {
        let channel = connect(&urls[at % urls.len()]).await;
        let mut stream = RawFetch::records(&channel, vec![from("t", 0, Start::Offset(next))]).await;
        loop {
            if next as u64 >= until.load(Ordering::Relaxed) {
                return seen;
            }
            match stream
                .next()
                .await
                .expect("no error on a stream that follows the drain")
            {
                Some(fetch_response::Frame::Records(frame)) => {
                    next = frame.position.expect("position").next_offset;
                    let count = frame.records.len() as i64;
                    seen.extend(
                        frame
                            .records
                            .into_iter()
                            .map(|r| (r.value.unwrap_or_default().to_vec(), r.offset)),
                    );
                    let credit = talweg_proto::v1::Credit {
                        bytes: 64 * count,
                        records: count,
                    };
                    stream.send(fetch_request::Frame::Credit(credit)).await;
                }
                Some(fetch_response::Frame::Positions(_)) => {}
                Some(fetch_response::Frame::Drain(_)) => {
                    at += 1;
                    continue 'streams;
                }
                other => panic!("consumer: {other:?}"),
            }
        }
    }
}

async fn advance(done: &AtomicU64, by: u64) {
    let since = done.load(Ordering::Relaxed);
    eventually("records go on", Duration::from_secs(15), || async {
        let now = done.load(Ordering::Relaxed);
        if now >= since + by {
            Ok(())
        } else {
            Err(format!("{now}, {by} more than {since} expected"))
        }
    })
    .await;
}

/// Runs producers and consumers while `act` does something to the stack.
async fn followed<F>(stack: &mut Stack, urls: Vec<String>, act: F)
where
    F: AsyncFnOnce(&mut Stack, &AtomicU64),
{
    create_topic(&connect(&urls[0]).await, "t", 1, &[]).await;
    let (stop, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let until = Arc::new(AtomicU64::new(u64::MAX));
    let producers: Vec<_> = (0..20)
        .map(|n| {
            tokio::spawn(following_producer(
                urls.clone(),
                n,
                Arc::clone(&stop),
                Arc::clone(&done),
            ))
        })
        .collect();
    let consumers: Vec<_> = (0..5)
        .map(|_| tokio::spawn(following_consumer(urls.clone(), Arc::clone(&until))))
        .collect();
    advance(&done, 100).await;
    act(stack, &done).await;
    advance(&done, 100).await;
    stop.store(true, Ordering::Relaxed);
    let mut acked = Vec::new();
    for producer in producers {
        acked.extend(producer.await.expect("producer"));
    }
    let values: BTreeSet<_> = acked.iter().cloned().collect();
    until.store(acked.len() as u64, Ordering::Relaxed);
    // Consumers notice the end at their next frame: one more record makes one.
    let last = connect(urls.last().expect("url")).await;
    let mut stream = RawProduce::open(&last, Acks::All).await;
    let record = Record {
        value: Some(Bytes::from_static(b"end")),
        partition: Some(0),
        ..Default::default()
    };
    let (_, end) = stream.record("t", record).await.expect("the last record");
    assert_eq!(
        end as usize,
        acked.len(),
        "no loss and no duplicate among the producers' records"
    );
    for consumer in consumers {
        let mut seen = consumer.await.expect("consumer");
        seen.retain(|(_, offset)| *offset < end);
        assert!(
            seen.windows(2).all(|w| w[0].1 + 1 == w[1].1),
            "in order, without gap or duplicate"
        );
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), values);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_follow_a_gateways_drain_to_another_gateway() {
    let mut stack = Stack::builder().gateways(2).start();
    let urls = vec![stack.gateway(0), stack.gateway(1)];
    followed(&mut stack, urls, async |stack, _| {
        let gateway = &mut stack.gateways[0];
        gateway.terminate();
        let took = tokio::task::block_in_place(|| gateway.wait_exit(EXIT + SLACK));
        assert!(took.1.success(), "{took:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_streams_wait_while_storage_restarts() {
    let mut stack = Stack::builder().start();
    let urls = vec![stack.gateway(0)];
    followed(&mut stack, urls, async |stack, _| {
        let storage = &mut stack.storages[0];
        tokio::task::block_in_place(|| {
            storage.stop(EXIT + SLACK);
            storage.start(Duration::from_secs(10));
        });
    })
    .await;
}

/// Clients that bypass the gateway have one leader: they dial its address again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn direct_clients_dial_the_same_address_again() {
    let mut stack = Stack::builder().start();
    create_topic(&connect(&stack.gateway(0)).await, "t", 3, &[]).await;
    let direct = vec![stack.storage(0)];
    let load = Load::start_direct(&stack.gateway(0), direct, "t", 3, Acks::All).await;
    for _ in 0..3 {
        load.advance(load.acknowledged(), 100, Duration::from_secs(15))
            .await;
        tokio::task::block_in_place(|| {
            stack.storages[0].stop(EXIT + SLACK);
            stack.storages[0].start(Duration::from_secs(10));
        });
    }
    load.advance(load.acknowledged(), 100, Duration::from_secs(15))
        .await;
    load.finish(&stack.gateway(0)).await;
}
