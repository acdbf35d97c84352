//! A leader is told to stop while its followers lag: it waits for them, and what
//! it acknowledged at acks=1 is at the next leader.

use std::time::Duration;
use talweg::tour::Gate;
use talweg_harness::{
    Process, Stack, eventually, free_port, http,
    raw::{self, RawProduce, connect, create_topic},
};
use talweg_proto::v1::{
    Acks, DescribeTopicRequest, PartitionDescription, topic_service_client::TopicServiceClient,
};
use tonic::transport::Channel;

const START: Duration = Duration::from_secs(30);
const BACK: Duration = Duration::from_secs(40);
const RECORDS: i64 = 5;

struct Node {
    process: Process,
    grpc: u16,
    http: u16,
}

/// A storage node; `via` is where it fetches from node 1.
fn node(stack: &Stack, id: u32, via: &str) -> Node {
    let (grpc, http) = (free_port(), free_port());
    let settings = [
        format!("grpc=127.0.0.1:{grpc}"),
        format!("http=127.0.0.1:{http}"),
        format!(
            "data_dirs={}",
            stack.folder().join(format!("n{id}")).display()
        ),
        format!("controllers={}", stack.controller()),
        format!("replicate_via={via}"),
    ];
    let args = settings
        .into_iter()
        .flat_map(|s| ["--set".to_owned(), s])
        .collect();
    let mut process = Process::new(&format!("n{id}"), "talweg-storage", args, stack.folder());
    process.start(START);
    Node {
        process,
        grpc,
        http,
    }
}

async fn partition(
    channel: &Channel,
    hope: impl Fn(&PartitionDescription) -> bool,
) -> PartitionDescription {
    eventually("the partition is as hoped", BACK, || async {
        let request = DescribeTopicRequest {
            name: "t".into(),
            ..Default::default()
        };
        let mut topics = TopicServiceClient::new(channel.clone());
        let described = topics.describe_topic(request).await;
        let described = described.map_err(|e| e.to_string())?.into_inner();
        let partition = described.partitions.into_iter().next().ok_or("none")?;
        match hope(&partition) {
            true => Ok(partition),
            false => Err(format!("{partition:?}")),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followers_get_what_a_leader_has_before_it_goes() {
    let stack = Stack::builder().storages(0).start();
    let gates = [
        Gate::new().await.expect("a port"),
        Gate::new().await.expect("a port"),
    ];
    // Node ids are given out in this order.
    let mut n1 = node(&stack, 1, "");
    for gate in &gates {
        gate.lead_to(([127, 0, 0, 1], n1.grpc).into());
    }
    let via = |gate: &Gate| format!("1={}", gate.url());
    let _others = [
        node(&stack, 2, &via(&gates[0])),
        node(&stack, 3, &via(&gates[1])),
    ];
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", 1, &[]).await;
    partition(&channel, |p| p.leader == 1 && p.in_sync.len() == 3).await;

    gates.iter().for_each(Gate::hold);
    let mut stream = RawProduce::open(&channel, Acks::Leader).await;
    for offset in 0..RECORDS {
        let batch = raw::batch(&[format!("record {offset}").as_bytes()]);
        assert_eq!(stream.batch("t", 0, batch).await, Ok(offset));
    }
    let held = partition(&channel, |p| {
        p.bounds
            .as_ref()
            .is_some_and(|b| b.log_end_offset == RECORDS)
    })
    .await;
    let watermark = held.bounds.map(|bounds| bounds.high_watermark);
    assert_eq!(watermark, Some(0), "only the leader has them");

    n1.process.terminate();
    eventually("n1 stops", BACK, || async {
        let url = format!("http://127.0.0.1:{}/readyz", n1.http);
        match http::call("GET", &url, &[], "").await.status {
            503 => Ok(()),
            other => Err(format!("{other}")),
        }
    })
    .await;
    gates.iter().for_each(Gate::release);
    tokio::task::block_in_place(|| {
        let (_, status) = n1.process.wait_exit(Duration::from_secs(10));
        assert!(status.success(), "{status}");
    });
    partition(&channel, |p| p.leader > 1 && p.in_sync.len() == 2).await;
    let found = raw::read_all(&channel, "t", 0).await;
    let values: Vec<_> = found
        .iter()
        .map(|r| r.value.clone().unwrap_or_default())
        .collect();
    let sent: Vec<_> = (0..RECORDS)
        .map(|offset| format!("record {offset}"))
        .collect();
    assert_eq!(values, sent);
}
