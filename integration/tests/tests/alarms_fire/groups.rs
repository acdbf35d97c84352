//! A group that retention catches up with, and shards that no coordinator serves.

use super::{FIRES, WELL, book, rule_files, stays_silent};
use std::time::{Duration, Instant};
use talweg_harness::{
    Stack, eventually,
    http::call,
    prometheus::Prometheus,
    raw::{self, RawProduce, batch, connect, create_topic},
};
use talweg_proto::v1::{self, Acks, topic_service_client::TopicServiceClient};
use tonic::transport::Channel;

/// What this file brings about.
pub const FIRED: &[&str] = &["TalwegGroupNearsLoss", "TalwegGroupShardsNotServed"];

const START: Duration = Duration::from_secs(30);
const RECORDS: i64 = 3;
/// What the unread records then have left; the alarm is due when they have waited longer.
const LEFT: Duration = Duration::from_secs(40);

async fn commit(c: &Channel, offset: i64) {
    eventually("a commit", WELL, || async {
        let done = raw::commit(c, "g", ("t", 0), offset).await;
        done.map_err(|code| format!("{code:?}"))
    })
    .await;
}

async fn keep_only(c: &Channel, retention: Duration) {
    let ms = retention.as_millis().to_string();
    let request = v1::AlterTopicRequest {
        name: "t".into(),
        config: [("retention.ms".to_owned(), ms)].into(),
        ..Default::default()
    };
    let altered = TopicServiceClient::new(c.clone())
        .alter_topic(request)
        .await;
    altered.expect("altered");
}

async fn scraped(stack: &Stack) -> String {
    let mut text = String::new();
    for (_, port) in stack.scraped() {
        let answer = call("GET", &format!("http://127.0.0.1:{port}/metrics"), &[], "").await;
        text += &String::from_utf8_lossy(&answer.body);
    }
    text
}

/// Every metric that any rule names is in a scrape: each plane is here, and a group
/// with something to read.
async fn metrics_exist(stack: &Stack) {
    eventually("every metric is shown", WELL, || async {
        let text = scraped(stack).await;
        let shown = |name: &String| {
            text.lines()
                .any(|line| line.starts_with(&format!("{name}{{")))
        };
        match book::metrics_named().into_iter().find(|name| !shown(name)) {
            None => Ok(()),
            Some(name) => Err(format!("no process shows {name}")),
        }
    })
    .await;
}

/// Waits until an alert fires for a process of this job.
async fn fires_for(prometheus: &Prometheus, alert: &str, job: &str) {
    eventually(&format!("{alert} of {job}"), FIRES, || async {
        let alerts = prometheus.alerts().await;
        let found = alerts.iter().any(|one| {
            let labels = &one["labels"];
            one["state"] == "firing" && labels["alertname"] == alert && labels["job"] == job
        });
        match found {
            true => Ok(()),
            false => Err(format!("{alerts:?}")),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alarms_of_groups_fire() {
    let mut stack = Stack::builder()
        .coordinators(1)
        .set("coordinator", "lag_interval_ms=500")
        .start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "t", 1, &[]).await;
    let mut stream = RawProduce::open(&c, Acks::All).await;
    let produced = Instant::now();
    for _ in 0..RECORDS {
        stream.batch("t", 0, batch(&[b"x"])).await.expect("produce");
    }
    commit(&c, 1).await;
    let prometheus = Prometheus::start(stack.folder(), &rule_files(), stack.scraped());
    prometheus.looked(WELL).await;
    metrics_exist(&stack).await;
    prometheus.quiet(&[], WELL).await;
    // Behind, with a week to go.
    stays_silent(&prometheus).await;

    // Before anything is lost.
    keep_only(&c, produced.elapsed() + LEFT).await;
    prometheus.fires(&["TalwegGroupNearsLoss"], FIRES).await;
    commit(&c, RECORDS).await;
    prometheus.quiet(&[], WELL).await;

    stack.coordinators[0].kill9();
    prometheus
        .fires(&["TalwegGroupShardsNotServed"], FIRES)
        .await;
    fires_for(&prometheus, "TalwegProcessDown", "talweg-coordinator").await;
    tokio::task::block_in_place(|| stack.coordinators[0].start(START));
    prometheus.quiet(&[], WELL).await;

    // A coordinator that lives and cannot read their logs.
    stack.coordinators[0].kill9();
    stack.storages[0].pause();
    tokio::task::block_in_place(|| stack.coordinators[0].start(START));
    prometheus
        .fires(&["TalwegGroupShardsNotServed"], FIRES)
        .await;
    stack.storages[0].resume();
    prometheus.quiet(&[], WELL).await;
}
