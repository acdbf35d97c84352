//! The failover story: what acks=all and acks=1 promise when a replica lags,
//! another one is slow, and the leader dies.
//!
//! ```text
//!                        n1            n2            n3
//! 3 records, acks=all    0 1 2         0 1 2         0 1 2      watermark 3
//! n3 is cut off          leader        in sync       -
//! 1 record, acks=all     0 1 2 3       0 1 2 3       0 1 2      watermark 4
//! n2 is held, 2 acks=1   0 1 2 3 4 5   0 1 2 3       0 1 2      watermark 4
//! n1 is killed           -             leader        0 1 2      acks=all refused
//! n1 returns             0 1 2 3       0 1 2 3       0 1 2      watermark 4
//! ```

use super::{Look, Want, planes::Planes, told::Told};
use crate::{connect, failure::Failure};
use serde_json::json;
use std::{
    path::Path,
    time::{Duration, Instant},
};
use talweg_client::{
    Client, FetchStart, Fetcher, FetcherConfig, Outcome, ProducerConfig, RecordProducer, StartAt,
    fetch::{Data, FetchEvent},
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    storage::v1::{DescribeReplicasRequest, replica_service_client::ReplicaServiceClient},
    v1::{self, Plane},
};
use talweg_types::Acks;
use tokio::time::{sleep, timeout};

const TOPIC: &str = "story";
/// For what has no promised time: starting, settling.
const PATIENCE: Duration = Duration::from_secs(30);
/// From the cut to an in-sync set without the node that was cut off.
const SHRINK: Duration = Duration::from_secs(15);
/// `replica.lag.time.max.ms`: a fetch held for less leaves the in-sync set alone.
const LAG: Duration = Duration::from_secs(10);
/// How long a consumer is watched for records that it must not see.
const WATCHED: Duration = Duration::from_millis(500);
/// After this acks=all that cannot be had is refused.
const DELIVERY: Duration = Duration::from_secs(2);

/// Plays it in `dir`.
pub async fn play(told: &mut Told, dir: &Path) -> Result<(), Failure> {
    let mut story = Story::start(told, dir).await?;
    story.three_records().await?;
    story.n3_is_cut_off().await?;
    story.one_record().await?;
    let held = story.two_records_on_the_leader_only().await?;
    story.the_leader_is_killed(held).await?;
    story.the_old_leader_returns().await
}

struct Story<'a> {
    told: &'a mut Told,
    planes: Planes,
    client: Client,
    topic_id: bytes::Bytes,
}

impl<'a> Story<'a> {
    async fn start(told: &'a mut Told, dir: &Path) -> Result<Self, Failure> {
        told.doing("start a controller, storage nodes n1 n2 n3 and a gateway; create a topic: 1 partition, 3 replicas, min.insync.replicas 2")?;
        let planes = Planes::start(dir).await?;
        let client = connect::to(&[planes.gateway.url()])?;
        let request = v1::CreateTopicRequest {
            name: TOPIC.into(),
            partitions: Some(1),
            replication_factor: Some(3),
            config: [("min.insync.replicas".to_owned(), "2".to_owned())].into(),
            ..Default::default()
        };
        let created = client.topics().create(request).await?;
        let mut story = Self {
            told,
            planes,
            client,
            topic_id: created.topic.unwrap_or_default().topic_id,
        };
        let want = Want {
            leader: Some(1),
            in_sync: Some(&[1, 2, 3]),
            ..Want::default()
        };
        let (look, _) = story.until(PATIENCE, &want).await?;
        story.tell(&look, "", json!({}))?;
        Ok(story)
    }

    async fn three_records(&mut self) -> Result<(), Failure> {
        self.told.doing("write 3 records with acks=all")?;
        self.written(3, Acks::All, 0).await?;
        let want = Want {
            leader: Some(1),
            in_sync: Some(&[1, 2, 3]),
            high_watermark: Some(3),
            log_ends: Some(&[(1, 3), (2, 3), (3, 3)]),
        };
        let (look, _) = self.until(PATIENCE, &want).await?;
        self.tell(&look, "accepted at offsets 0 1 2; ", json!({}))
    }

    async fn n3_is_cut_off(&mut self) -> Result<(), Failure> {
        self.told
            .doing("cut n3's fetching until the end; its session with the controller lives")?;
        self.planes.third.iter().for_each(super::Gate::hold);
        let want = Want {
            leader: Some(1),
            in_sync: Some(&[1, 2]),
            high_watermark: Some(3),
            log_ends: Some(&[(1, 3), (2, 3), (3, 3)]),
        };
        let (look, took) = self.until(SHRINK, &want).await?;
        self.n3_lives().await?;
        let words = format!(
            "n3 left the in-sync set after {:.1} s and is alive; ",
            took.as_secs_f64()
        );
        self.tell(
            &look,
            &words,
            json!({ "took_ms": millis(took), "n3_alive": true }),
        )
    }

    async fn one_record(&mut self) -> Result<(), Failure> {
        self.told.doing("write 1 record with acks=all")?;
        let holding = self.written(1, Acks::All, 3).await?;
        if holding != 2 {
            return Err(self.off(format!(
                "2 replicas were to hold the record, the answer says {holding}"
            )));
        }
        let want = Want {
            leader: Some(1),
            in_sync: Some(&[1, 2]),
            high_watermark: Some(4),
            log_ends: Some(&[(1, 4), (2, 4), (3, 3)]),
        };
        let (look, _) = self.until(PATIENCE, &want).await?;
        self.tell(
            &look,
            "accepted, held by 2 replicas; ",
            json!({ "replicas_holding": holding }),
        )
    }

    /// Since when n2 has been held.
    async fn two_records_on_the_leader_only(&mut self) -> Result<Instant, Failure> {
        self.told.doing(
            "hold n2's fetch, for less than replica.lag.time.max.ms; write 2 records with acks=1",
        )?;
        let held = Instant::now();
        self.planes.second.hold();
        self.written(2, Acks::One, 4).await?;
        let want = Want {
            leader: Some(1),
            in_sync: Some(&[1, 2]),
            high_watermark: Some(4),
            log_ends: Some(&[(1, 6), (2, 4), (3, 3)]),
        };
        let (look, _) = self.until(LAG / 2, &want).await?;
        let consumed = self.consumed().await?;
        self.tell(
            &look,
            &format!("accepted by the leader; a consumer sees {consumed} records; "),
            json!({ "consumer_sees": consumed }),
        )?;
        Ok(held)
    }

    async fn the_leader_is_killed(&mut self, held: Instant) -> Result<(), Failure> {
        self.told.doing("kill -9 n1, then write with acks=all")?;
        self.planes.nodes[0].kill().await?;
        let held = held.elapsed();
        if held >= LAG {
            return Err(self.off(format!(
                "n2 was held for {held:?}: this machine is too slow for the story"
            )));
        }
        // What n1 still had on the way to n2 is lost with it.
        self.planes.second.cut();
        let want = Want {
            leader: Some(2),
            in_sync: Some(&[2]),
            log_ends: Some(&[(2, 4), (3, 3)]),
            ..Want::default()
        };
        let (look, took) = self.until(PATIENCE, &want).await?;
        let refusal = match self.write(1, Acks::All).await?.pop() {
            Some(Outcome::Refused(refusal)) if refusal.code == ErrorCode::NotEnoughReplicas => {
                refusal
            }
            other => {
                return Err(self.off(format!("NOT_ENOUGH_REPLICAS was promised, not {other:?}")));
            }
        };
        let words = format!(
            "n2 leads after {:.1} s; refused: {}; ",
            took.as_secs_f64(),
            refusal.name()
        );
        let value =
            json!({ "took_ms": millis(took), "held_ms": millis(held), "refused": refusal.name() });
        self.tell(&look, &words, value)
    }

    async fn the_old_leader_returns(&mut self) -> Result<(), Failure> {
        self.told.doing("start n1 again")?;
        let n1 = &mut self.planes.nodes[0];
        n1.again().await?;
        // It may lead again later: the preferred leader returns by itself.
        self.planes.second.lead_to(n1.grpc());
        let want = Want {
            in_sync: Some(&[1, 2]),
            high_watermark: Some(4),
            log_ends: Some(&[(1, 4), (2, 4), (3, 3)]),
            ..Want::default()
        };
        let (look, took) = self.until(PATIENCE, &want).await?;
        let cut = self.cut_by(1).await?;
        let (from, to) = (cut.from_offset, cut.to_offset);
        if (from, to) != (6, 4) {
            return Err(self.off(format!(
                "n1 cut its log from {from} to {to}, not from 6 to 4"
            )));
        }
        self.n3_lives().await?;
        let consumed = self.consumed().await?;
        let words = format!(
            "n1 says that it cut 2 records (log end {from} to {to}); a consumer sees the same {consumed} records; "
        );
        let value = json!({ "took_ms": millis(took), "truncated": { "node": 1, "from": from, "to": to, "records": from - to, "below_watermark": cut.below_watermark }, "consumer_sees": consumed, "n3_alive": true });
        self.tell(&look, &words, value)
    }

    /// Writes records that must be taken at `first` and after; how many
    /// replicas held the last one when it was answered.
    async fn written(&mut self, records: usize, acks: Acks, first: i64) -> Result<u32, Failure> {
        let mut holding = 0;
        for (outcome, due) in self.write(records, acks).await?.into_iter().zip(first..) {
            let delivered = outcome.into_result()?;
            let offset = delivered.offset.map(|offset| offset.0);
            if offset != Some(due) {
                return Err(self.off(format!("offset {due} was promised, not {offset:?}")));
            }
            holding = delivered.durability.replicas_holding;
        }
        Ok(holding)
    }

    async fn write(&self, records: usize, acks: Acks) -> Result<Vec<Outcome>, Failure> {
        let config = ProducerConfig {
            acks: Some(acks),
            delivery_timeout: DELIVERY,
            ..ProducerConfig::default()
        };
        let producer = RecordProducer::open(&self.client, config);
        let record = |number| v1::Record {
            value: Some(format!("record {number} of step {}", self.told.step()).into()),
            ..Default::default()
        };
        let records = (1..=records).map(record).collect();
        Ok(producer.send(TOPIC, records).await?.await)
    }

    /// The records that a consumer sees from the start; more must not come.
    async fn consumed(&self) -> Result<usize, Failure> {
        let config = FetcherConfig {
            form: v1::Form::Records,
            ..FetcherConfig::default()
        };
        let start = FetchStart {
            topic: TOPIC.into(),
            partition: 0,
            start: StartAt::Earliest,
        };
        let mut fetcher = Fetcher::open(&self.client, config, vec![start]).await?;
        let mut seen = 0;
        let mut end = Instant::now() + PATIENCE;
        while let Ok(event) = timeout(
            end.saturating_duration_since(Instant::now()),
            fetcher.next(),
        )
        .await
        {
            let position = match event {
                FetchEvent::Data(data) => {
                    if let Data::Records(records) = data.data {
                        seen += records.len();
                    }
                    data.position
                }
                FetchEvent::Started(position) | FetchEvent::Position(position) => position,
                FetchEvent::Stopped { refusal, .. } => return Err(refusal.into()),
            };
            if position.high_watermark == 4 && position.next_offset >= 4 {
                end = end.min(Instant::now() + WATCHED);
            }
        }
        match seen {
            4 => Ok(seen),
            other => Err(self.off(format!("a consumer was to see 4 records, not {other}"))),
        }
    }

    async fn n3_lives(&self) -> Result<(), Failure> {
        let described = self.client.cluster().await?;
        let n3 = described.nodes.iter().find(|node| {
            let known = node.node.as_ref();
            known.is_some_and(|known| known.node_id == 3 && known.plane == Plane::Storage as i32)
        });
        match n3.is_some_and(|node| node.alive) {
            true => Ok(()),
            false => Err(self.off("n3's session was to live".into())),
        }
    }

    /// Looks until it is as wanted; how long that took.
    async fn until(&self, limit: Duration, want: &Want) -> Result<(Look, Duration), Failure> {
        let begun = Instant::now();
        loop {
            let differs = match self.look().await {
                Ok(look) => match want.differs(&look) {
                    None => return Ok((look, begun.elapsed())),
                    Some(differs) => differs,
                },
                // The gateway may not have heard of a change yet.
                Err(refusal) => refusal.to_string(),
            };
            if begun.elapsed() >= limit {
                return Err(self.off(format!("within {} s: {differs}", limit.as_secs())));
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn look(&self) -> Result<Look, Refusal> {
        let described = self.client.topics().describe(TOPIC).await?;
        let partition = described.partitions.into_iter().next().unwrap_or_default();
        let mut look = Look {
            leader: partition.leader,
            leader_epoch: partition.leader_epoch,
            in_sync: partition.in_sync.into_iter().collect(),
            high_watermark: partition.bounds.map(|bounds| bounds.high_watermark),
            ..Look::default()
        };
        for (id, node) in (1..).zip(&self.planes.nodes) {
            if let Some(end) = self.log_end(&node.url()).await {
                look.log_ends.insert(id, end);
            }
        }
        Ok(look)
    }

    /// The newest cut of a node's log since it was started, as the topic's
    /// description tells it; there is one.
    async fn cut_by(&self, node: u32) -> Result<v1::Truncation, Failure> {
        let described = self.client.topics().describe(TOPIC).await?;
        let partition = described.partitions.into_iter().next().unwrap_or_default();
        let mut replicas = partition.replicas_detail.into_iter();
        let detail = replicas.find(|detail| detail.node_id == node);
        let cuts = detail.and_then(|detail| detail.truncations);
        let newest = cuts.filter(|cuts| cuts.count > 0).and_then(|c| c.newest);
        newest.ok_or_else(|| self.off(format!("n{node} does not say that it cut its log")))
    }

    /// None: the node does not answer.
    async fn log_end(&self, url: &str) -> Option<i64> {
        let mut replicas = ReplicaServiceClient::connect(url.to_owned()).await.ok()?;
        let request = DescribeReplicasRequest {
            topic_ids: vec![self.topic_id.clone()],
        };
        let described = replicas.describe_replicas(request).await.ok()?.into_inner();
        Some(described.replicas.first()?.bounds.as_ref()?.log_end_offset)
    }

    fn tell(
        &mut self,
        look: &Look,
        words: &str,
        mut value: serde_json::Value,
    ) -> Result<(), Failure> {
        value["partition"] = json!(look);
        self.told.seen(&format!("{words}{look}"), &value)
    }

    fn off(&self, what: String) -> Failure {
        Refusal::internal(format!("step {}: {what}", self.told.step())).into()
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
