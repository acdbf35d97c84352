//! `talweg consume`: records out, one a line.
//!
//! One thin Fetch stream over all partitions. What is on its way is bounded by
//! credit, which is granted again as records are printed: a slow reader of our
//! output slows the stream and nothing else.

mod format;
mod group;
mod holding;
mod progress;

use crate::{
    args::{ConsumeArgs, Globals},
    connect,
    failure::{Failure, error_line},
    out,
};
use format::RecordFormat;
use progress::Progress;
use std::{collections::BTreeSet, time::Duration};
use talweg_client::{
    Client, FetchStart, Fetcher, FetcherConfig, StartAt,
    fetch::{Data, FetchData, FetchEvent},
};
use talweg_kit::{
    errors::{ErrorCode, Refusal},
    shutdown,
};
use talweg_proto::v1;
use talweg_types::{PartitionIndex, TopicId, TopicPartition};

/// How often a topic that is read whole is asked for new partitions.
const GROWTH_POLL: Duration = Duration::from_secs(5);

/// Runs the command.
pub async fn run(globals: &Globals, args: ConsumeArgs) -> Result<(), Failure> {
    if let Some(group) = args.group.clone() {
        return group::run(globals, args, group).await;
    }
    let client = connect::client(globals)?;
    let mut consumer = Consumer::open(globals, &client, args).await?;
    let stop = shutdown::on_signals().map_err(|error| Failure::local("signals", &error))?;
    let mut growth = tokio::time::interval(GROWTH_POLL);
    growth.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !consumer.progress.is_over() {
        let event = tokio::select! {
            biased;
            // The user has had enough, which is a good end.
            () = stop.cancelled() => break,
            event = consumer.fetcher.next() => event,
            _ = growth.tick(), if consumer.follows_growth() => {
                consumer.add_new_partitions(&client).await?;
                continue;
            }
        };
        consumer.on_event(event)?;
    }
    if consumer.failed {
        Err(Failure::Reported)
    } else {
        Ok(())
    }
}

struct Consumer {
    args: ConsumeArgs,
    json: bool,
    topic_id: TopicId,
    fetcher: Fetcher,
    progress: Progress,
    format: RecordFormat,
    line: Vec<u8>,
    /// A partition stopped with an error, which was told.
    failed: bool,
}

impl Consumer {
    async fn open(globals: &Globals, client: &Client, args: ConsumeArgs) -> Result<Self, Failure> {
        let described = client.topics().describe(&args.topic).await?;
        let topic = described.topic.unwrap_or_default();
        let topic_id = TopicId::from_slice(&topic.topic_id)
            .ok_or_else(|| Refusal::internal("the server's answer has no topic id"))?;
        let partitions = choose(&args, topic.partitions)?;
        let config = FetcherConfig {
            form: v1::Form::Records,
            rack: args.rack.clone(),
            ..FetcherConfig::default()
        };
        let starts = starts(&args.topic, &partitions, args.from.into());
        Ok(Self {
            json: globals.json,
            topic_id,
            fetcher: Fetcher::open(client, config, starts).await?,
            progress: Progress::new(partitions, args.until_end, args.max),
            format: RecordFormat::new(&args),
            line: Vec::new(),
            failed: false,
            args,
        })
    }

    /// Everything of the topic is asked for, for as long as it goes on.
    fn follows_growth(&self) -> bool {
        self.args.partition.is_empty() && !self.args.until_end
    }

    async fn add_new_partitions(&mut self, client: &Client) -> Result<(), Failure> {
        let metadata = match client.metadata(vec![self.args.topic.clone()]).await {
            Ok(metadata) => metadata,
            // The partitions at hand go on or say themselves what is wrong.
            Err(refusal) if refusal.is_retriable() => return Ok(()),
            Err(refusal) => return Err(refusal.into()),
        };
        let same = |topic: &v1::Topic| topic.topic_id == self.topic_id.as_bytes()[..];
        let count = metadata
            .topics
            .iter()
            .filter_map(|t| t.topic.as_ref())
            .find(|t| same(t))
            .map_or(0, |t| t.partitions);
        let new: BTreeSet<u32> = (0..count)
            .filter(|partition| !self.progress.knows(*partition))
            .collect();
        // From their first record: all of it came after we had begun.
        self.fetcher
            .add(starts(&self.args.topic, &new, StartAt::Earliest))
            .await?;
        new.into_iter()
            .for_each(|partition| self.progress.add(partition));
        Ok(())
    }

    fn on_event(&mut self, event: FetchEvent) -> Result<(), Failure> {
        match event {
            FetchEvent::Started(position) | FetchEvent::Position(position) => {
                self.on_position(&position)
            }
            FetchEvent::Data(data) => self.on_data(&data)?,
            FetchEvent::Stopped { partition, refusal } => {
                self.on_stopped(partition.partition.0, refusal)
            }
        }
        Ok(())
    }

    fn on_position(&mut self, position: &v1::PartitionPosition) {
        let partition = position.partition;
        if self
            .progress
            .on_position(partition, position.next_offset, position.high_watermark)
        {
            let partition = TopicPartition {
                topic_id: self.topic_id,
                partition: PartitionIndex(partition),
            };
            self.fetcher.remove(partition);
        }
    }

    fn on_data(&mut self, data: &FetchData) -> Result<(), Failure> {
        let Data::Records(records) = &data.data else {
            return Err(
                Refusal::internal("the server sent batches where records were asked for").into(),
            );
        };
        let partition = data.partition.partition.0;
        self.line.clear();
        for record in records {
            if self.progress.on_record(partition, record.offset) {
                self.format.write(partition, record, &mut self.line);
            }
        }
        out::write(&self.line)?;
        self.on_position(&data.position);
        Ok(())
    }

    /// The others go on.
    fn on_stopped(&mut self, partition: u32, mut refusal: Refusal) {
        self.failed = true;
        self.progress.on_stopped(partition);
        refusal.message = format!("partition {partition}: {}", refusal.message);
        eprintln!("{}", error_line(&refusal, self.json));
    }
}

fn choose(args: &ConsumeArgs, count: u32) -> Result<BTreeSet<u32>, Refusal> {
    if args.partition.is_empty() {
        return Ok((0..count).collect());
    }
    match args.partition.iter().find(|partition| **partition >= count) {
        Some(missing) => {
            let message = format!(
                "topic {:?} has {count} partitions; there is no partition {missing}",
                args.topic
            );
            Err(Refusal::new(ErrorCode::UnknownPartition, message))
        }
        None => Ok(args.partition.iter().copied().collect()),
    }
}

fn starts(topic: &str, partitions: &BTreeSet<u32>, start: StartAt) -> Vec<FetchStart> {
    let from = |partition: &u32| FetchStart {
        topic: topic.into(),
        partition: *partition,
        start,
    };
    partitions.iter().map(from).collect()
}
