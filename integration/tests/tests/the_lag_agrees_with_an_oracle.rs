//! What the lag says, against an oracle that wrote every record itself: under produce,
//! retention, compaction, topics made anew, and moves of leaders and coordinators.
//! Within one record and one second.

mod operator;

use operator::PATIENCE;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use talweg_client::ErrorCode;
use talweg_harness::{
    Stack, eventually,
    raw::{self, RawFetch, RawProduce, bounds, connect, create_replicated, describe, now_ms},
    seed,
};
use talweg_proto::v1::{
    self, Acks, cluster_service_client::ClusterServiceClient, fetch_partition::Start,
    offset_service_client::OffsetServiceClient, topic_service_client::TopicServiceClient,
};
use tokio::{sync::watch, task::JoinHandle, time::MissedTickBehavior};
use tonic::transport::Channel;

const GROUP: &str = "g";
const COMPACTED: &str = "compacted";
const START: Duration = Duration::from_secs(30);
/// Between two records of a topic.
const PACE: Duration = Duration::from_millis(10);
const KEYS: u64 = 12;
const ROUNDS: usize = 16;
const SLACK_RECORDS: i64 = 1;
const SLACK_MS: i64 = 1_000;
/// Bytes are counted from an entry of the index: one interval and one batch.
const SLACK_BYTES: i64 = 4_096 + 1_024;
/// Of a topic that says nothing about it.
const RETENTION_MS: i64 = 7 * 24 * 3_600_000;
const KEPT: &str = "kept";

/// By offset: when it was sent and when it was acknowledged, milliseconds since 1970.
type History = BTreeMap<i64, (i64, i64)>;

/// Writes at a fixed pace, and goes on after every broken stream.
struct Writer {
    history: watch::Receiver<History>,
    stop: Arc<watch::Sender<bool>>,
    task: JoinHandle<()>,
}

impl Writer {
    fn start(channel: Channel, topic: &'static str) -> Self {
        let (tell, history) = watch::channel(History::new());
        let stop = Arc::new(watch::Sender::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut pace = tokio::time::interval(PACE);
            pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut stream = RawProduce::open(&channel, Acks::All).await;
            for n in 0_u64.. {
                pace.tick().await;
                if *stopped.borrow() {
                    return;
                }
                // What a client says of the time counts within one entry of the index
                // only; of a compacted topic one entry may stand for a long time.
                let lie = if topic == COMPACTED { 0 } else { 3_600_000 };
                let record = v1::Record {
                    partition: Some(0),
                    key: Some(format!("key-{}", n % KEYS).into_bytes().into()),
                    value: Some(noise(n).into()),
                    timestamp_ms: Some(now_ms() - lie),
                    ..Default::default()
                };
                let sent = now_ms();
                match stream.record(topic, record).await {
                    Ok((_, offset)) => {
                        tell.send_modify(|all| {
                            all.insert(offset, (sent, now_ms()));
                        });
                    }
                    Err(_) => stream = RawProduce::open(&channel, Acks::All).await,
                }
            }
        });
        Self {
            history,
            stop,
            task,
        }
    }

    async fn advance(&self, by: usize) {
        let target = self.history.borrow().len() + by;
        let mut history = self.history.clone();
        let reached = history.wait_for(|all| all.len() >= target);
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        drop(reached.expect("in time").expect("the writer lives"));
    }

    async fn finish(&mut self) {
        self.stop.send_replace(true);
        let task = std::mem::replace(&mut self.task, tokio::spawn(async {}));
        task.await.expect("the writer ends well");
    }

    /// Between which times the record at `offset` was appended. One whose
    /// acknowledgement was lost lies between its neighbours.
    fn appended(&self, offset: i64) -> (i64, i64) {
        let history = self.history.borrow();
        let before = history.range(..=offset).next_back();
        let after = history.range(offset..).next();
        (
            before.map_or(0, |(_, (sent, _))| *sent),
            after.map_or_else(now_ms, |(_, (_, acked))| *acked),
        )
    }
}

/// Bytes that do not compress: one interval of the index, within which an age may be off,
/// is then a few records and not seconds of them, also where the machine is slow.
fn noise(n: u64) -> Vec<u8> {
    let mut random = SmallRng::seed_from_u64(n);
    (0..400).map(|_| random.random()).collect()
}

/// What a reader finds.
#[derive(Debug)]
struct Sight {
    start: i64,
    end: i64,
    /// The first record at or above the committed offset.
    unread: Option<i64>,
    /// Of the batches from there to the end.
    bytes: i64,
}

/// One topic of one partition, its writer, and what the group committed in it.
struct Topic {
    channel: Channel,
    name: &'static str,
    id: bytes::Bytes,
    writer: Writer,
    committed: Option<i64>,
    /// Between which times that was stored.
    progress: (i64, i64),
}

impl Topic {
    async fn create(channel: &Channel, name: &'static str, config: &[(&str, &str)]) -> Self {
        Self {
            channel: channel.clone(),
            name,
            id: create_replicated(channel, name, 1, 1, config).await,
            writer: Writer::start(channel.clone(), name),
            committed: None,
            progress: (0, 0),
        }
    }

    async fn sight(&self) -> Result<Sight, String> {
        let at = bounds(&self.channel, self.name, 0).await?;
        let from = self.committed.unwrap_or(0).max(at.log_start_offset);
        let unread = match from < at.high_watermark {
            true => Some(self.first_from(from).await?),
            false => None,
        };
        Ok(Sight {
            start: at.log_start_offset,
            end: at.high_watermark,
            unread,
            bytes: self.bytes(from, at.high_watermark).await?,
        })
    }

    /// Bytes of the batches that hold records of this range.
    async fn bytes(&self, from: i64, end: i64) -> Result<i64, String> {
        let open = v1::FetchOpen {
            partitions: vec![raw::from(self.name, 0, Start::Offset(from))],
            credit: Some(raw::PLENTY),
            form: v1::Form::Batches.into(),
            ..Default::default()
        };
        let (mut stream, _) = RawFetch::open_with(&self.channel, open).await;
        let (mut next, mut bytes) = (from, 0);
        while next < end {
            let frame = stream.next().await.map_err(|status| status.to_string())?;
            match frame.ok_or("the stream ended")? {
                v1::fetch_response::Frame::Batches(frame) => {
                    next = frame.position.ok_or("no position")?.next_offset;
                    bytes += i64::try_from(frame.batches.len()).expect("small");
                }
                v1::fetch_response::Frame::Positions(frame) => {
                    let stands = frame.positions.iter().map(|it| it.next_offset);
                    next = stands.max().unwrap_or(next).max(next);
                }
                v1::fetch_response::Frame::PartitionError(error) => {
                    return Err(format!("{error:?}"));
                }
                _ => {}
            }
        }
        Ok(bytes)
    }

    async fn first_from(&self, offset: i64) -> Result<i64, String> {
        let from = raw::from(self.name, 0, Start::Offset(offset));
        let mut stream = RawFetch::records(&self.channel, vec![from]).await;
        loop {
            let frame = stream.next().await.map_err(|status| status.to_string())?;
            match frame.ok_or("the stream ended")? {
                v1::fetch_response::Frame::Records(records) => {
                    let first = records.records.first().map(|record| record.offset);
                    return first.ok_or_else(|| "no record".into());
                }
                v1::fetch_response::Frame::PartitionError(error) => {
                    return Err(format!("{error:?}"));
                }
                _ => {}
            }
        }
    }

    /// The group's lag, if the coordinator and the leader could say.
    async fn lag(&self) -> Result<Option<v1::PartitionLag>, String> {
        let request = v1::GetLagRequest {
            group: GROUP.into(),
            topic: String::new(),
        };
        let asked = OffsetServiceClient::new(self.channel.clone())
            .get_lag(request)
            .await;
        let lags = match asked {
            Ok(answer) => answer.into_inner().lags,
            // Nothing was committed yet in any topic.
            Err(status) if status.code() == tonic::Code::NotFound => Vec::new(),
            Err(status) => return Err(status.to_string()),
        };
        let mine: Vec<_> = lags
            .into_iter()
            .filter(|lag| lag.topic == self.name)
            .collect();
        assert!(mine.len() <= 1, "{mine:?}");
        let Some(lag) = mine.into_iter().next() else {
            return Ok(None);
        };
        match lag.error {
            Some(error) => Err(error.message),
            None => Ok(Some(lag)),
        }
    }

    /// Asks until somebody answers; what is answered must be right.
    async fn agrees(&self) -> Option<v1::PartitionLag> {
        let what = format!("the lag of {}", self.name);
        eventually(&what, PATIENCE, || async {
            let before = self.sight().await?;
            let (from, lag, until) = (now_ms(), self.lag().await?, now_ms());
            let after = self.sight().await?;
            if let Some(lag) = &lag {
                self.compare(lag, &before, &after, (from, until));
            } else {
                assert_eq!(self.committed, None, "{} has a lag", self.name);
            }
            Ok(lag)
        })
        .await
    }

    fn compare(&self, lag: &v1::PartitionLag, before: &Sight, after: &Sight, asked: (i64, i64)) {
        let context = format!(
            "{}: {lag:?}\ncommitted {:?}, seen {before:?}, then {after:?}",
            self.name, self.committed
        );
        assert_eq!(lag.topic_id, self.id, "{context}");
        assert_eq!(
            lag.committed_offset,
            self.committed.unwrap_or(-1),
            "{context}"
        );
        let committed = self.committed.unwrap_or(0);
        let least = (before.end - committed.max(after.start)).max(0) - SLACK_RECORDS;
        let most = (after.end - committed.max(before.start)).max(0) + SLACK_RECORDS;
        assert!(
            (least..=most).contains(&lag.lag_records),
            "records: {context}"
        );
        if self.committed.is_some() {
            let stored = self.progress.0 - SLACK_MS..=self.progress.1 + SLACK_MS;
            let told = lag.last_progress_ms.expect("a commit");
            assert!(stored.contains(&told), "not in {stored:?}: {context}");
        } else {
            assert_eq!(lag.last_progress_ms, None, "{context}");
        }
        if lag.lag_records == 0 {
            assert_eq!((lag.lag_ms, lag.lag_bytes), (0, 0), "{context}");
            assert_eq!(lag.loss_ms, None, "{context}");
            return;
        }
        self.compare_loss(lag, &context);
        // Where retention went on meanwhile neither sight says what it was then.
        if before.start == after.start {
            let bytes = before.bytes.min(after.bytes) - SLACK_BYTES
                ..=before.bytes.max(after.bytes) + SLACK_BYTES;
            assert!(
                bytes.contains(&lag.lag_bytes),
                "not in {bytes:?}: {context}"
            );
        }
        let youngest = after
            .unread
            .map_or(0, |offset| asked.0 - self.writer.appended(offset).1);
        let oldest = before
            .unread
            .or(after.unread)
            .map_or(0, |offset| asked.1 - self.writer.appended(offset).0);
        let age = youngest - SLACK_MS..=oldest + SLACK_MS;
        assert!(age.contains(&lag.lag_ms), "age not in {age:?}: {context}");
    }

    /// By time it follows from the age; by size it is sooner; a topic that is only compacted
    /// loses nothing.
    fn compare_loss(&self, lag: &v1::PartitionLag, context: &str) {
        let by_time = RETENTION_MS - lag.lag_ms;
        let by_time = by_time - SLACK_MS..=by_time + SLACK_MS;
        match self.name {
            COMPACTED => assert_eq!(lag.loss_ms, None, "{context}"),
            KEPT => {
                let loss = lag.loss_ms.expect("by time");
                assert!(by_time.contains(&loss), "not in {by_time:?}: {context}");
            }
            _ => {
                let loss = lag.loss_ms.expect("by time or size");
                assert!((0..=*by_time.end()).contains(&loss), "{context}");
            }
        }
    }

    /// Commits at some place between the last one and the end.
    async fn commit(&mut self, random: &mut SmallRng) {
        let at = eventually("bounds", PATIENCE, || bounds(&self.channel, self.name, 0)).await;
        let from = self.committed.unwrap_or(0).max(at.log_start_offset);
        let to = random.random_range(from..=at.high_watermark);
        // The same offset again is no progress.
        if self.committed == Some(to) {
            return;
        }
        let begun = now_ms();
        let committed = eventually("a commit", PATIENCE, || async {
            match raw::commit(&self.channel, GROUP, (self.name, 0), to).await {
                Ok(()) => Ok(true),
                // Retention went past it meanwhile.
                Err(ErrorCode::OffsetOutOfRange) => Ok(false),
                Err(code) => Err(format!("{code:?}")),
            }
        })
        .await;
        if committed {
            self.committed = Some(to);
            self.progress = (begun, now_ms());
        }
    }

    async fn made_anew(&mut self) {
        self.writer.finish().await;
        let mut topics = TopicServiceClient::new(self.channel.clone());
        let request = v1::DeleteTopicRequest {
            name: self.name.into(),
            ..Default::default()
        };
        topics.delete_topic(request).await.expect("deleted");
        *self = Self::create(&self.channel, self.name, &[]).await;
    }

    /// Moves the only replica to the other node; the lag is right all the while.
    async fn moves(&self) {
        let leader = eventually("a leader", PATIENCE, || self.leader()).await;
        let to = 3 - leader;
        let request = v1::ReassignPartitionRequest {
            topic: self.name.into(),
            partition: 0,
            to: vec![to],
            throttle_bytes_per_second: 0,
        };
        let begun = ClusterServiceClient::new(self.channel.clone())
            .reassign_partition(request)
            .await;
        begun.expect("begun");
        eventually("the other one leads", PATIENCE, || async {
            self.agrees().await;
            match self.leader().await? {
                leader if leader == to => Ok(()),
                leader => Err(format!("{leader} leads")),
            }
        })
        .await;
    }

    async fn leader(&self) -> Result<u32, String> {
        let partitions = describe(&self.channel, self.name).await?;
        match partitions.first().map(|partition| partition.leader) {
            Some(leader) if leader > 0 => Ok(leader),
            other => Err(format!("led by {other:?}")),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lag_agrees_with_an_oracle() {
    let mut random = SmallRng::seed_from_u64(seed());
    let mut stack = Stack::builder().storages(2).coordinators(2).start();
    let channel = connect(&stack.gateway(0)).await;
    let small = ("segment.bytes", "16384");
    let compacted = [
        small,
        ("cleanup.policy", "compact"),
        ("max.message.bytes", "8192"),
    ];
    let mut topics = [
        Topic::create(&channel, KEPT, &[]).await,
        Topic::create(&channel, "short", &[small, ("retention.bytes", "65536")]).await,
        Topic::create(&channel, COMPACTED, &compacted).await,
    ];
    for round in 0..ROUNDS {
        let index = round % topics.len();
        match round % 8 {
            3 => topics[index].moves().await,
            5 => {
                let coordinator = &mut stack.coordinators[round / 8 % 2];
                coordinator.kill9();
                topics[index].agrees().await;
                tokio::task::block_in_place(|| coordinator.start(START));
            }
            7 => topics[0].made_anew().await,
            _ => {}
        }
        for topic in &mut topics {
            topic.writer.advance(random.random_range(1..60)).await;
            if random.random_bool(0.4) {
                topic.commit(&mut random).await;
            }
            topic.agrees().await;
        }
    }
    for topic in &mut topics {
        topic.writer.finish().await;
        topic.commit(&mut random).await;
    }
    // Nothing comes any more: what is unread grows older.
    let first = topics[1].agrees().await.expect("a lag").lag_ms;
    eventually("it ages", PATIENCE, || async {
        match topics[1].agrees().await {
            Some(lag) if lag.lag_records == 0 || lag.lag_ms > first + 2 * SLACK_MS => Ok(()),
            lag => Err(format!("{lag:?}")),
        }
    })
    .await;
    let [_, short, compacted] = &topics;
    let start = short.sight().await.expect("a sight").start;
    assert!(start > 0, "retention went past nothing");
    let left = raw::read_all(&channel, compacted.name, 0).await.len();
    let written = compacted.writer.history.borrow().len();
    assert!(left < written, "nothing was compacted: {left} of {written}");
    stack.shards_agree().await;
}
