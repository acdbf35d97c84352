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
use talweg_proto::v1::PartitionLag;

const LABELS: &[&str] = &["group", "topic", "partition"];

/// One kind of series.
struct Kind {
    name: &'static str,
    help: &'static str,
    /// None: no series for this partition now.
    value: fn(&PartitionLag) -> Option<f64>,
}

const KINDS: [Kind; 9] = [
    Kind {
        name: "group_lag_records",
        help: "Records between the committed offset and the end of the partition.",
        value: |lag| Some(float(lag.lag_records)),
    },
    Kind {
        name: "group_lag_bytes",
        help: "Bytes of log between the committed offset and the end of the partition.",
        value: |lag| Some(float(lag.lag_bytes)),
    },
    Kind {
        name: "group_lag_seconds",
        help: "Age of the oldest record that the group has not committed past; 0 at the end.",
        value: |lag| Some(seconds(lag.lag_ms)),
    },
    Kind {
        name: "group_lag_approximate",
        help: "1 while group_lag_seconds rests on a rebuilt index, else 0.",
        value: |lag| Some(f64::from(u8::from(lag.approximate))),
    },
    Kind {
        name: "group_seconds_to_drain",
        help: "Until the group reaches the end at the present pace; 0 at the end; absent: never, or too early to say.",
        value: |lag| match lag.lag_records {
            0 => Some(0.0),
            _ => lag.drain_ms.map(seconds),
        },
    },
    Kind {
        name: "group_seconds_to_loss",
        help: "Until retention takes the next record of the group, at the present pace; absent: never.",
        value: |lag| lag.loss_ms.map(seconds),
    },
    Kind {
        name: "group_arrival_records_per_second",
        help: "Records that arrive in the partition, over the last minute; absent: too early to say.",
        value: |lag| lag.arrival_per_second,
    },
    Kind {
        name: "group_processing_records_per_second",
        help: "Records that the group commits past, over the last minute; absent: too early to say.",
        value: |lag| lag.processing_per_second,
    },
    Kind {
        name: "group_last_progress_timestamp_seconds",
        help: "When the committed offset last moved, seconds since 1970.",
        value: |lag| lag.last_progress_ms.map(seconds),
    },
];

struct Row {
    shard: Arc<ShardHandle>,
    group: Arc<str>,
    topic: String,
    partition: u32,
    values: [Option<f64>; KINDS.len()],
}

/// The series; clones share them.
#[derive(Clone)]
pub struct LagSeries {
    rows: Arc<Mutex<Arc<Vec<Row>>>>,
    /// For their descriptions.
    empty: Arc<[GaugeVec; KINDS.len()]>,
}

impl Default for LagSeries {
    fn default() -> Self {
        Self {
            rows: Arc::default(),
            empty: Arc::new(gauges()),
        }
    }
}

fn gauges() -> [GaugeVec; KINDS.len()] {
    KINDS.map(|kind| {
        GaugeVec::new(Opts::new(kind.name, kind.help), LABELS).expect("constant names are valid")
    })
}

impl Collector for LagSeries {
    fn desc(&self) -> Vec<&Desc> {
        self.empty.iter().flat_map(|gauge| gauge.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let rows = Arc::clone(&self.rows.lock());
        let all = gauges();
        for row in rows.iter().filter(|row| row.shard.is_serving()) {
            let partition = row.partition.to_string();
            let labels = [&*row.group, row.topic.as_str(), partition.as_str()];
            for (gauge, value) in all.iter().zip(row.values) {
                if let Some(value) = value {
                    gauge.with_label_values(&labels).set(value);
                }
            }
        }
        all.iter().flat_map(|gauge| gauge.collect()).collect()
    }
}

#[allow(clippy::cast_precision_loss)]
fn float(number: i64) -> f64 {
    number as f64
}

fn seconds(ms: i64) -> f64 {
    float(ms) / 1_000.0
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
            values: KINDS.map(|kind| (kind.value)(&lag)),
            partition: lag.partition,
            topic: lag.topic,
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
