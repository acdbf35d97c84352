//! A member that grants 8 MiB and ends up with two hundred partitions is sent no more
//! than that and one largest batch; fifty members that stop reading do not slow a reader
//! at a fixed rate, and the gateway holds little for them.

mod operator;

use operator::PATIENCE;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use talweg_client::{SubscribeEvent, Subscriber, payload::fetched_record_bytes};
use talweg_harness::{
    Member, Stack,
    member::{Commits, client, subscription},
    raw::{RawProduce, batch, connect, create_topic},
};
use talweg_proto::v1::{self, Acks, produce_response, subscribe_response::Frame};
use tonic::transport::Channel;

const PARTITIONS: u32 = 200;
const BUDGET: usize = 8 << 20;
const LARGEST: usize = 1 << 20;
const STALLED: usize = 50;
const LAG: Duration = Duration::from_secs(1);

/// Half a MiB in each partition.
async fn fill(channel: &Channel) {
    let mut produce = RawProduce::open(channel, Acks::All).await;
    let value: Vec<u8> = (0..500_000_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    for partition in 0..PARTITIONS {
        produce.send_batch("t", partition, batch(&[&value])).await;
        match produce.next().await {
            Ok(Some(produce_response::Frame::BatchAck(_))) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn open(group: &str, budget: usize) -> v1::SubscribeOpen {
    v1::SubscribeOpen {
        credit: Some(v1::Credit {
            bytes: budget as i64,
            records: 100_000,
        }),
        ..subscription(group, "t")
    }
}

/// Payload until nothing has come for a while, granting nothing.
async fn payload(subscriber: &mut Subscriber) -> (usize, usize) {
    let (mut bytes, mut partitions) = (0, std::collections::BTreeSet::new());
    while let Ok(event) = tokio::time::timeout(Duration::from_secs(2), subscriber.next()).await {
        if let SubscribeEvent::Frame(Frame::Records(frame)) = event.expect("the stream lives") {
            bytes += frame
                .records
                .iter()
                .map(fetched_record_bytes)
                .sum::<usize>();
            partitions.insert(frame.position.expect("a position").partition);
        }
    }
    (bytes, partitions.len())
}

fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    since.as_millis() as i64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_mib_over_two_hundred_partitions() {
    let stack = Stack::builder().coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", PARTITIONS as i32, &[]).await;
    fill(&channel).await;
    let gateways = [stack.gateway(0)];
    let mut member = Subscriber::open(&client(&gateways), open("g", BUDGET))
        .await
        .expect("joins");
    let (bytes, partitions) = payload(&mut member).await;
    println!("{bytes} bytes of {partitions} partitions");
    assert!(bytes <= BUDGET + BUDGET / 10 + LARGEST, "{bytes}");
    assert!(bytes >= BUDGET / 2, "{bytes}: the budget is used");
    assert!(partitions >= 8, "{partitions}: it is shared");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_stop_reading_slow_nobody() {
    let stack = Stack::builder().coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", PARTITIONS as i32, &[]).await;
    create_topic(&channel, "tail", 1, &[]).await;
    fill(&channel).await;
    let gateways = [stack.gateway(0)];
    let before = stack.gateways[0].private_bytes();
    let mut stalled = Vec::new();
    for n in 0..STALLED {
        let open = open(&format!("stalled-{n}"), 2 << 20);
        stalled.push(
            Subscriber::open(&client(&gateways), open)
                .await
                .expect("joins"),
        );
    }
    let reader = Member::join(&gateways, subscription("tail", "tail"), Commits::Frames).await;
    reader
        .until("its partition", PATIENCE, |heard| heard.owned.len() == 1)
        .await;
    let mut produce = RawProduce::open(&channel, Acks::All).await;
    let end = Instant::now() + Duration::from_secs(5);
    let mut sent = 0;
    while Instant::now() < end {
        let record = v1::Record {
            value: Some(now_ms().to_string().into()),
            ..Default::default()
        };
        produce.record("tail", record).await.expect("appended");
        sent += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    reader
        .until("all", LAG * 2, |heard| heard.records.len() == sent)
        .await;
    let mut worst = 0;
    reader.look(|heard| {
        for pair in heard.records.windows(2) {
            worst = worst.max((pair[1].at - pair[0].at).as_millis());
        }
    });
    let held = stack.gateways[0].private_bytes().saturating_sub(before) >> 20;
    println!(
        "longest pause of the reader {worst} ms; the gateway holds {held} MiB more for {STALLED} members"
    );
    assert!(worst <= LAG.as_millis(), "{worst} ms");
    // What they have granted, one largest batch each, and the promise of the gateway.
    assert!(held <= (STALLED * (2 + 1) + 64) as u64, "{held} MiB");
}
