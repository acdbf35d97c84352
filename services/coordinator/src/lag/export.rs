//! Lag as metrics: of groups whose shards are served here, as they were measured
//! last. A series is there as long as its shard is.

use super::measure::{Position, partition_lag, positions};
use crate::{ask::topic_name, leaders, node::Node, shard::ShardHandle};
use parking_lot::Mutex;
use prometheus::GaugeVec;
use std::{sync::Arc, time::Duration};
use talweg_kit::{
    clock::wall_now,
    metrics::{Collector, Desc, MetricFamily, Opts},
};

const LABELS: &[&str] = &["group", "topic", "partition"];

struct Row {
    shard: Arc<ShardHandle>,
    group: Arc<str>,
    topic: String,
    partition: u32,
    records: i64,
    bytes: i64,
    ms: i64,
    loss_ms: Option<i64>,
}

/// The series; clones share them.
#[derive(Clone)]
pub struct LagSeries {
    rows: Arc<Mutex<Arc<Vec<Row>>>>,
    /// For their descriptions.
    empty: Arc<[GaugeVec; 4]>,
}

impl Default for LagSeries {
    fn default() -> Self {
        Self {
            rows: Arc::default(),
            empty: Arc::new(gauges()),
        }
    }
}

fn gauges() -> [GaugeVec; 4] {
    let gauge = |name, help| {
        GaugeVec::new(Opts::new(name, help), LABELS).expect("constant names are valid")
    };
    [
        gauge(
            "group_lag_records",
            "Records between the committed offset and the end of the partition.",
        ),
        gauge(
            "group_lag_bytes",
            "Bytes of log between the committed offset and the end of the partition.",
        ),
        gauge(
            "group_lag_seconds",
            "Age of the oldest record that the group has not committed past; 0 at the end.",
        ),
        gauge(
            "group_seconds_to_loss",
            "Until retention takes the next record of the group, at the present pace; absent: never.",
        ),
    ]
}

impl Collector for LagSeries {
    fn desc(&self) -> Vec<&Desc> {
        self.empty.iter().flat_map(|gauge| gauge.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let rows = Arc::clone(&self.rows.lock());
        let all = gauges();
        let [records, bytes, seconds, loss] = &all;
        for row in rows.iter().filter(|row| row.shard.is_serving()) {
            let partition = row.partition.to_string();
            let labels = [&*row.group, row.topic.as_str(), partition.as_str()];
            records.with_label_values(&labels).set(float(row.records));
            bytes.with_label_values(&labels).set(float(row.bytes));
            seconds
                .with_label_values(&labels)
                .set(float(row.ms) / 1_000.0);
            if let Some(ms) = row.loss_ms {
                loss.with_label_values(&labels).set(float(ms) / 1_000.0);
            }
        }
        all.iter().flat_map(|gauge| gauge.collect()).collect()
    }
}

#[allow(clippy::cast_precision_loss)]
fn float(number: i64) -> f64 {
    number as f64
}

/// Measures again and again; never ends.
pub async fn keep_exporting(node: Arc<Node>, series: LagSeries) {
    let every = node.config.lag_interval_ms;
    if every == 0 {
        return;
    }
    let mut interval = tokio::time::interval(Duration::from_millis(every));
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let rows = measure(&node).await;
        *series.rows.lock() = Arc::new(rows);
    }
}

type Standing = (Arc<ShardHandle>, Arc<str>, Position);

async fn measure(node: &Arc<Node>) -> Vec<Row> {
    let (standing, left_out) = standing(node).await;
    let questions = standing.iter().map(|(_, _, position)| position.question());
    let backlogs = leaders::backlogs(node, questions).await;
    let topics = Arc::clone(&node.topics.borrow());
    let now = wall_now();
    let mut unknown = 0;
    let mut rows = Vec::with_capacity(standing.len());
    for (shard, group, position) in standing {
        let topic = topic_name(&topics, position.at.topic_id);
        let backlog = backlogs.get(&position.question()).cloned();
        let lag = partition_lag(&position, topic, backlog, now);
        if lag.error.is_some() {
            unknown += 1;
            continue;
        }
        rows.push(Row {
            shard,
            group,
            topic: lag.topic,
            partition: lag.partition,
            records: lag.lag_records,
            bytes: lag.lag_bytes,
            ms: lag.lag_ms,
            loss_ms: lag.loss_ms,
        });
    }
    node.metrics.lag_left_out.set(left_out);
    node.metrics.lag_unknown.set(unknown);
    rows
}

/// Where all groups stand, up to the most that is shown; how many are left out.
async fn standing(node: &Node) -> (Vec<Standing>, i64) {
    let most = node.config.lag_series_max;
    let mut all: Vec<Standing> = Vec::new();
    let mut left_out = 0;
    for shard in node.shards.all() {
        let room = most.saturating_sub(all.len());
        let read = shard.read(move |seen| {
            let (mut found, mut more) = (Vec::new(), 0);
            for (name, group) in seen.shard.machines() {
                if found.len() >= room {
                    more += group.state().offsets().len();
                    continue;
                }
                let stand = positions(name, group, seen, false);
                found.extend(
                    stand
                        .into_iter()
                        .map(|position| (Arc::clone(name), position)),
                );
            }
            more += found.len().saturating_sub(room);
            found.truncate(room);
            (found, more)
        });
        // Not served now: no series.
        if let Ok((found, more)) = read.await {
            left_out += i64::try_from(more).unwrap_or(i64::MAX);
            let with_shard = found.into_iter();
            all.extend(with_shard.map(|(group, position)| (Arc::clone(&shard), group, position)));
        }
    }
    (all, left_out)
}
