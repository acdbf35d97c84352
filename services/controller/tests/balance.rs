//! Callers that follow a balancing: each hears how it ended.

mod common;

use common::{Controller, Session, within};
use std::sync::Arc;
use talweg_metastore_mem::MemMetastore;
use talweg_proto::v1::{self, cluster_service_client::ClusterServiceClient};
use tonic::{Streaming, transport::Channel};

const PARTITIONS: i32 = 20;

fn execute() -> v1::BalanceClusterRequest {
    v1::BalanceClusterRequest {
        execute: true,
        ..Default::default()
    }
}

async fn ask(
    cluster: &mut ClusterServiceClient<Channel>,
    request: v1::BalanceClusterRequest,
) -> Streaming<v1::BalanceClusterResponse> {
    let told = cluster.balance_cluster(request).await;
    told.expect("taken").into_inner()
}

async fn next(told: &mut Streaming<v1::BalanceClusterResponse>) -> v1::BalanceClusterResponse {
    let next = within("progress", told.message()).await;
    next.expect("the stream lives").expect("it goes on")
}

/// Story: an operator balances; another one stops it. The first is not left
/// waiting for moves that nobody begins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_follows_a_balancing_that_is_stopped_hears_so() {
    let controller = Controller::start(Arc::new(MemMetastore::default())).await;
    let _first = Session::fresh(&controller).await;
    controller.topic("t", PARTITIONS).await;
    let _second = Session::fresh(&controller).await;
    let mut cluster = ClusterServiceClient::new(controller.channel.clone());

    let mut follows = ask(&mut cluster, execute()).await;
    let begun = next(&mut follows).await;
    assert!(!begun.done && !begun.stopped, "{begun:?}");
    let stop = v1::BalanceClusterRequest {
        stop: true,
        ..Default::default()
    };
    let planned = next(&mut ask(&mut cluster, stop).await).await;
    assert!(
        !planned.stopped,
        "a plan is nobody's execution: {planned:?}"
    );

    let last = loop {
        let told = next(&mut follows).await;
        if told.done || told.stopped {
            break told;
        }
    };
    assert!(last.stopped && !last.done, "{last:?}");
    assert!(!last.moves.is_empty(), "what is left is told: {last:?}");
    assert_eq!(last.moves_total, begun.moves_total);
    let end = within("the end", follows.message()).await;
    assert_eq!(end.expect("a good end"), None);
    controller.stop().await;
}
