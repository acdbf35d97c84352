//! `talweg dlq`: dead letters, found by what their topics say of themselves.
//!
//! A replay goes through partitions in order and keeps how far it has got as
//! committed offsets of a group of its own, which live as long as the topic. Each record carries an idempotency
//! key, so that one which was sent and not yet noted is not there twice.

use crate::{
    args::{DlqCommand, Globals, ReplayArgs},
    connect,
    failure::Failure,
    out,
    shapes::table,
    text,
};
use serde_json::json;
use std::{collections::BTreeMap, time::Duration};
use talweg_client::{
    Client, FetchStart, Fetcher, FetcherConfig, ProducerConfig, RecordProducer, StartAt,
    fetch::{Data, FetchEvent},
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1;
use talweg_types::{TopicId, replay_group};

const COLUMNS: &[&str] = &["topic", "source", "group", "partitions", "records"];
const SUFFIX: &str = ".dlq";
const HEADERS: &str = "talweg-dlq-";
const SOURCE_PARTITION: &str = "talweg-dlq-partition";
/// Dead letters sent and noted together.
const BATCH: usize = 500;
/// Without any event of the reader.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs a command about dead letters.
pub async fn run(globals: &Globals, command: DlqCommand) -> Result<(), Failure> {
    let client = connect::client(globals)?;
    match command {
        DlqCommand::List { group } => list(globals, &client, group).await,
        DlqCommand::Replay(args) => replay(globals, &client, args).await,
        DlqCommand::Purge { topic, execute } => purge(globals, &client, &topic, execute).await,
    }
}

fn is_dead_letters(topic: &v1::Topic) -> bool {
    !topic.derived_from_topic_id.is_empty() && topic.name.ends_with(SUFFIX)
}

/// All topics by id.
async fn topics(client: &Client) -> Result<Vec<v1::Topic>, Refusal> {
    let metadata = client.metadata(Vec::new()).await?;
    Ok(metadata
        .topics
        .into_iter()
        .filter_map(|topic| topic.topic)
        .collect())
}

/// The dead-letter topic of this name, and all topics.
async fn named(client: &Client, name: &str) -> Result<(v1::Topic, Vec<v1::Topic>), Refusal> {
    let all = topics(client).await?;
    let found = all.iter().find(|topic| topic.name == name).cloned();
    let missing = || {
        Refusal::new(
            ErrorCode::UnknownTopic,
            format!("no topic is named {name:?}"),
        )
    };
    let topic = found.ok_or_else(missing)?;
    match is_dead_letters(&topic) {
        true => Ok((topic, all)),
        false => Err(Refusal::invalid(
            "topic",
            format!("{name:?} is not a dead-letter topic; see: talweg dlq list"),
        )),
    }
}

/// Log start and high watermark by partition.
async fn bounds(client: &Client, topic: &v1::Topic) -> Result<Vec<(i64, i64)>, Refusal> {
    let query = |partition| v1::OffsetQuery {
        topic_id: topic.topic_id.clone(),
        partition,
        ..Default::default()
    };
    let answers = client
        .offsets()
        .list((0..topic.partitions).map(query).collect())
        .await?;
    answers
        .into_iter()
        .map(|answer| match answer.error {
            Some(error) => Err(Refusal::from_detail(error)),
            None => {
                let bounds = answer.bounds.unwrap_or_default();
                Ok((bounds.log_start_offset, bounds.high_watermark))
            }
        })
        .collect()
}

async fn list(globals: &Globals, client: &Client, group: Option<String>) -> Result<(), Failure> {
    let all = topics(client).await?;
    let mut rows = Vec::new();
    let wanted = |topic: &&v1::Topic| {
        is_dead_letters(topic)
            && group
                .as_ref()
                .is_none_or(|group| *group == topic.derived_for_group)
    };
    for topic in all.iter().filter(wanted) {
        let source = all
            .iter()
            .find(|other| other.topic_id == topic.derived_from_topic_id);
        let bounds = bounds(client, topic).await?;
        rows.push(json!({
            "topic": topic.name,
            "source": source.map(|source| source.name.clone()),
            "source_topic_id": text::id(&topic.derived_from_topic_id),
            "group": topic.derived_for_group,
            "partitions": topic.partitions,
            "records": bounds.iter().map(|(start, end)| end - start).sum::<i64>(),
        }));
    }
    out::print(globals.json, &json!({ "dead_letters": rows }), || {
        table(COLUMNS, &rows)
    })
}

async fn purge(
    globals: &Globals,
    client: &Client,
    name: &str,
    execute: bool,
) -> Result<(), Failure> {
    let (topic, _) = named(client, name).await?;
    let bounds = bounds(client, &topic).await?;
    let records: i64 = bounds.iter().map(|(start, end)| end - start).sum();
    if execute {
        let target = |(partition, (_, end)): (u32, &(i64, i64))| v1::DeleteRecordsTarget {
            topic_id: topic.topic_id.clone(),
            partition,
            before_offset: *end,
            ..Default::default()
        };
        let targets = (0..).zip(&bounds).map(target).collect();
        let answers = client.offsets().delete_records(targets).await?;
        if let Some(error) = answers.into_iter().find_map(|answer| answer.error) {
            return Err(Refusal::from_detail(error).into());
        }
    }
    let value = json!({"topic": name, "records": records, "executed": execute});
    out::print(globals.json, &value, || match execute {
        true => format!("deleted {records} dead letters of {name}\n"),
        false => format!("{name} has {records} dead letters; --execute deletes them\n"),
    })
}

async fn replay(globals: &Globals, client: &Client, args: ReplayArgs) -> Result<(), Failure> {
    let (topic, all) = named(client, &args.topic).await?;
    let source = all
        .iter()
        .find(|other| other.topic_id == topic.derived_from_topic_id);
    let gone = || Refusal::new(ErrorCode::UnknownTopic, "the source topic is deleted");
    let source = source.ok_or_else(gone)?.clone();
    let mut replay = Replay::begin(client, &topic, &source).await?;
    let mut left = args.max.unwrap_or(u64::MAX);
    let mut replayed = 0;
    for partition in 0..topic.partitions {
        let done = replay.partition(partition, left).await?;
        (left, replayed) = (left - done, replayed + done);
        if left == 0 {
            break;
        }
    }
    let value = json!({
        "topic": topic.name,
        "source": source.name,
        "replayed": replayed,
        "progress_group": replay.group,
    });
    out::print(globals.json, &value, || {
        format!("put {replayed} records back into {}\n", source.name)
    })
}

struct Replay<'a> {
    client: &'a Client,
    topic: &'a v1::Topic,
    source: &'a v1::Topic,
    group: String,
    producer: RecordProducer,
    /// Where each partition goes on, and its end.
    todo: BTreeMap<u32, (i64, i64)>,
}

impl<'a> Replay<'a> {
    async fn begin(
        client: &'a Client,
        topic: &'a v1::Topic,
        source: &'a v1::Topic,
    ) -> Result<Self, Refusal> {
        let id = TopicId::from_slice(&topic.topic_id);
        let group = replay_group(id.ok_or_else(|| Refusal::internal("a topic without an id"))?);
        let request = v1::FetchOffsetsRequest {
            group: group.clone(),
            topic: topic.name.clone(),
        };
        let stored = match client.groups().fetch_offsets(request).await {
            Ok(stored) => stored.offsets,
            Err(refusal) if refusal.code == ErrorCode::UnknownGroup => Vec::new(),
            Err(refusal) => return Err(refusal),
        };
        let bounds = bounds(client, topic).await?;
        let from = |partition, start: i64| {
            let known = stored.iter().find(|offset| offset.partition == partition);
            known.map_or(start, |offset| offset.offset.max(start))
        };
        let todo = (0..)
            .zip(bounds)
            .map(|(p, (start, end))| (p, (from(p, start), end)));
        Ok(Self {
            todo: todo.collect(),
            producer: RecordProducer::open(client, ProducerConfig::default()),
            client,
            topic,
            source,
            group,
        })
    }

    /// Puts back at most `max` records of one partition; how many.
    async fn partition(&mut self, partition: u32, max: u64) -> Result<u64, Failure> {
        let (mut next, end) = self.todo.get(&partition).copied().unwrap_or_default();
        if next >= end {
            return Ok(0);
        }
        let config = FetcherConfig {
            form: v1::Form::Records,
            ..FetcherConfig::default()
        };
        let start = FetchStart {
            topic: self.topic.name.clone(),
            partition,
            start: StartAt::Offset(next),
        };
        let mut fetcher = Fetcher::open(self.client, config, vec![start]).await?;
        let mut done = 0;
        while next < end && done < max {
            let late = |_| Refusal::unavailable(format!("partition {partition} sends nothing"));
            let event = tokio::time::timeout(PATIENCE, fetcher.next())
                .await
                .map_err(late)?;
            match event {
                FetchEvent::Data(data) => {
                    let Data::Records(records) = data.data else {
                        continue;
                    };
                    let room = usize::try_from(max - done).unwrap_or(usize::MAX);
                    let wanted: Vec<_> = records
                        .into_iter()
                        .filter(|record| record.offset < end)
                        .take(room)
                        .collect();
                    done += wanted.len() as u64;
                    for some in wanted.chunks(BATCH) {
                        next = self.put_back(partition, some).await?;
                    }
                }
                FetchEvent::Position(position) | FetchEvent::Started(position) => {
                    next = next.max(position.next_offset);
                }
                FetchEvent::Stopped { refusal, .. } => return Err(refusal.into()),
            }
        }
        Ok(done)
    }

    /// Sends these and notes it; the next offset.
    async fn put_back(&self, partition: u32, dead: &[v1::FetchedRecord]) -> Result<i64, Failure> {
        let records = dead
            .iter()
            .map(|record| self.alive(partition, record))
            .collect();
        let receipts = self.producer.send(&self.source.name, records).await?;
        for outcome in receipts.await {
            outcome.into_result()?;
        }
        let next = dead.last().map_or(0, |record| record.offset + 1);
        let offset = v1::CommittedOffset {
            topic: self.topic.name.clone(),
            topic_id: self.topic.topic_id.clone(),
            partition,
            offset: next,
            leader_epoch: -1,
            ..Default::default()
        };
        let request = v1::CommitOffsetsRequest {
            group: self.group.clone(),
            offsets: vec![offset],
            ..Default::default()
        };
        let answer = self.client.groups().commit_offsets(request).await?;
        let refused = answer.errors.into_iter().find(|error| error.code != 0);
        match refused {
            Some(error) => Err(Refusal::from_detail(error).into()),
            None => Ok(next),
        }
    }

    /// As it was before it died.
    fn alive(&self, partition: u32, dead: &v1::FetchedRecord) -> v1::Record {
        let header = dead
            .headers
            .iter()
            .find(|header| header.name == SOURCE_PARTITION);
        let number = header.and_then(|header| header.value.as_deref());
        let number = number.and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
        let own = |header: &&v1::Header| !header.name.starts_with(HEADERS);
        v1::Record {
            partition: number.filter(|number| *number < self.source.partitions),
            key: dead.key.clone(),
            value: dead.value.clone(),
            headers: dead.headers.iter().filter(own).cloned().collect(),
            idempotency_key: format!(
                "dlq-{}-{partition}-{}",
                text::id(&self.topic.topic_id),
                dead.offset
            ),
            ..Default::default()
        }
    }
}
