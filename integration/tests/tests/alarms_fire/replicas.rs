//! Nodes, controllers and cables that go, one after the other; a machine that
//! loses power; a disk that is put back from an old copy.

use super::{FIRES, WELL, link::Link, rule_files, stays_silent};
use std::{path::Path, process::Command, time::Duration};
use talweg_harness::{
    Process, Stack, free_port,
    prometheus::Prometheus,
    raw::{RawProduce, batch, connect, create_topic, in_sync},
};
use talweg_proto::v1::Acks;
use tonic::transport::Channel;

/// What this file brings about.
pub const FIRED: &[&str] = &[
    "TalwegProcessDown",
    "TalwegReplicasOffline",
    "TalwegPartitionsUnderReplicated",
    "TalwegPartitionsBelowMinInSync",
    "TalwegPartitionsWithoutLeader",
    "TalwegUncleanBoot",
    "TalwegRecoveredElection",
    "TalwegNodeWithoutController",
    "TalwegGatewayMetadataOld",
    "TalwegControllerAbsent",
    "TalwegRefusedTruncation",
];

/// Shown for an hour after it happened.
const LASTING: &[&str] = &["TalwegUncleanBoot", "TalwegRecoveredElection"];
const START: Duration = Duration::from_secs(30);
const STOP: Duration = Duration::from_secs(15);

async fn produce(c: &Channel, count: usize) {
    let mut stream = RawProduce::open(c, Acks::All).await;
    for _ in 0..count {
        stream.batch("t", 0, batch(&[b"x"])).await.expect("produce");
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.expect("cp").success());
}

/// Another gateway, which reaches the controller over `link` only.
fn far_gateway(stack: &Stack, link: &Link) -> (Process, u16) {
    let (grpc, http) = (free_port(), free_port());
    let settings = [
        format!("grpc=127.0.0.1:{grpc}"),
        format!("http=127.0.0.1:{http}"),
        format!("controllers={}", link.url()),
    ];
    let args = settings.into_iter().flat_map(|s| ["--set".into(), s]);
    let mut far = Process::new(
        "gateway-far",
        "talweg-gateway",
        args.collect(),
        stack.folder(),
    );
    far.start(START);
    (far, http)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alarms_of_replicas_and_controllers_fire() {
    let mut stack = Stack::builder().storages(3).start();
    let port = stack
        .controller()
        .rsplit(':')
        .next()
        .and_then(|port| port.parse().ok());
    let mut link = Link::to(port.expect("a port")).await;
    let (_far, far_http) = far_gateway(&stack, &link);
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "t", 4, &[]).await;
    in_sync(&c, "t", 3).await;
    produce(&c, 3).await;
    let mut targets = stack.scraped().to_vec();
    targets.push(("gateway", far_http));
    let prometheus = Prometheus::start(stack.folder(), &rule_files(), &targets);
    prometheus.looked(WELL).await;
    stays_silent(&prometheus).await;

    link.cut().await;
    prometheus
        .fires(&["TalwegNodeWithoutController"], FIRES)
        .await;

    stack.storages[2].kill9();
    let one_gone = [
        "TalwegProcessDown",
        "TalwegReplicasOffline",
        "TalwegPartitionsUnderReplicated",
    ];
    prometheus.fires(&one_gone, FIRES).await;
    stack.storages[1].kill9();
    prometheus
        .fires(&["TalwegPartitionsBelowMinInSync"], FIRES)
        .await;
    stack.storages[0].kill9();
    prometheus
        .fires(&["TalwegPartitionsWithoutLeader"], FIRES)
        .await;

    // As after a loss of power: the marker is not of this boot.
    for node in 0..3 {
        std::fs::write(stack.storage_data(node).join("running"), "of another boot")
            .expect("marker");
        tokio::task::block_in_place(|| stack.storages[node].start(START));
    }
    prometheus.fires(LASTING, FIRES).await;
    in_sync(&c, "t", 3).await;
    prometheus.fires(&["TalwegGatewayMetadataOld"], FIRES).await;
    link.mend().await;
    prometheus.quiet(LASTING, WELL).await;

    stack.controller.pause();
    prometheus.fires(&["TalwegControllerAbsent"], FIRES).await;
    stack.controller.resume();
    prometheus.quiet(LASTING, WELL).await;

    // The first node's disk is put back from a copy that lacks committed
    // records, and the others are started after it.
    let (data, old) = (stack.storage_data(0), stack.folder().join("old"));
    tokio::task::block_in_place(|| {
        stack.storages[0].stop(STOP);
        copy(&data, &old);
        stack.storages[0].start(START);
    });
    in_sync(&c, "t", 3).await;
    produce(&c, 3).await;
    tokio::task::block_in_place(|| {
        for node in [2, 1, 0] {
            stack.storages[node].stop(STOP);
        }
        std::fs::remove_dir_all(&data).expect("removed");
        copy(&old, &data);
        stack.storages[0].start(START);
    });
    in_sync(&c, "t", 1).await;
    tokio::task::block_in_place(|| {
        stack.storages[1].start(START);
        stack.storages[2].start(START);
    });
    prometheus.fires(&["TalwegRefusedTruncation"], FIRES).await;
}
