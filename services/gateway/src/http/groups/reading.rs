//! What a poll reads: where each partition begins, records while they fit, and what
//! there is to say of partitions that give none.

use super::query::PollQuery;
use crate::{
    groups::partition_at,
    http::{HttpState, record::shown, reply::Failure},
    subscribe::RECORDS_GONE,
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};
use talweg_client::{
    FetchStart, Fetcher, FetcherConfig, Refusal, StartAt,
    fetch::{Data, FetchEvent},
    payload::fetched_record_bytes,
};
use talweg_kit::errors::ErrorCode;
use talweg_proto::{
    coordinator::v1::{AssignedPartition, DeliveryMode, MemberView},
    v1::{self, error_detail::Details},
};
use talweg_types::{TopicPartition, limits};
use tokio::time::{Instant, timeout_at};

/// Leaders have this long to say where a partition stands.
const PATIENCE: Duration = Duration::from_secs(10);

/// One partition of a poll.
pub struct Part {
    pub topic: String,
    pub partition: u32,
    start: StartAt,
    pub next: Option<i64>,
    end: Option<i64>,
    /// One record and no more.
    one: bool,
    stopped: bool,
}

/// Where to read, and why nothing is read of the others.
pub fn starts(
    state: &HttpState,
    view: &MemberView,
    query: &PollQuery,
) -> (BTreeMap<TopicPartition, Part>, Vec<Value>) {
    let topics = state.view.get();
    let returned: BTreeMap<TopicPartition, i64> = view
        .positions
        .iter()
        .filter_map(|it| Some((partition_at(&it.topic_id, it.partition)?, it.offset)))
        .collect();
    let (mut parts, mut held_back) = (BTreeMap::new(), Vec::new());
    for given in &view.assigned {
        let Some(at) = partition_at(&given.topic_id, given.partition) else {
            continue;
        };
        let topic = topics.topic(at.topic_id).map(|it| it.topic.name.clone());
        let Some(topic) = topic.filter(|it| query.topics.contains(it)) else {
            continue;
        };
        let mode = DeliveryMode::try_from(given.delivery).unwrap_or(DeliveryMode::Unspecified);
        if matches!(mode, DeliveryMode::DeadLetter | DeliveryMode::Paused) {
            held_back.push(error_of(&topic, given.partition, &paused(given)));
            continue;
        }
        let said = query.positions.get(&(topic.clone(), given.partition));
        let next = said
            .or_else(|| returned.get(&at))
            .copied()
            .or(given.next_offset);
        let part = Part {
            topic,
            partition: given.partition,
            start: next.map_or(StartAt::Earliest, StartAt::Offset),
            next,
            end: None,
            one: mode == DeliveryMode::OneByOne,
            stopped: false,
        };
        parts.insert(at, part);
    }
    (parts, held_back)
}

fn paused(given: &AssignedPartition) -> Refusal {
    let why = format!(
        "members were lost {} times at the next record ({}); nothing is sent until a seek or a reset",
        given.attempts, given.reason
    );
    Refusal::new(ErrorCode::PartitionPaused, why)
}

/// An element of `errors`.
fn error_of(topic: &str, partition: u32, refusal: &Refusal) -> Value {
    let mut error = refusal.json();
    error["topic"] = topic.into();
    error["partition"] = partition.into();
    error
}

/// Records that were gone before they were read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gap {
    topic: String,
    partition: u32,
    from: i64,
    to: i64,
}

impl Gap {
    pub fn records_lost(&self) -> i64 {
        self.to.saturating_sub(self.from)
    }

    /// An element of `gaps`.
    pub fn shown(&self) -> Value {
        json!({
            "topic": self.topic, "partition": self.partition,
            "from_offset": self.from, "to_offset": self.to,
            "records_lost": self.records_lost(), "reason": RECORDS_GONE,
        })
    }
}

/// What a poll found.
pub struct Found {
    pub parts: BTreeMap<TopicPartition, Part>,
    pub records: Vec<Value>,
    pub gaps: Vec<Gap>,
    /// Partitions of which nothing more comes.
    pub errors: Vec<Value>,
    bytes: usize,
    full: bool,
}

impl Found {
    pub fn new(parts: BTreeMap<TopicPartition, Part>, errors: Vec<Value>) -> Self {
        Self {
            parts,
            records: Vec::new(),
            gaps: Vec::new(),
            errors,
            bytes: 0,
            full: false,
        }
    }

    /// Reads until there is something and no more at hand, or the wait is over.
    pub async fn read(
        &mut self,
        state: &HttpState,
        query: &PollQuery,
        asked: Instant,
    ) -> Result<(), Failure> {
        if self.parts.is_empty() {
            return Ok(());
        }
        let credit = query
            .max_bytes
            .max(limits::MAX_MESSAGE_BYTES_RANGE.1 as usize);
        let config = FetcherConfig {
            form: v1::Form::Records,
            credit_bytes: i64::try_from(credit).unwrap_or(i64::MAX),
            patience: PATIENCE,
            ..Default::default()
        };
        let starts = self.parts.values().map(|part| FetchStart {
            topic: part.topic.clone(),
            partition: part.partition,
            start: part.start,
        });
        let mut fetcher = Fetcher::open(&state.client, config, starts.collect()).await?;
        loop {
            let known = self.parts.values().all(|it| it.stopped || it.end.is_some());
            if self.full || (known && self.is_at_end() && !self.records.is_empty()) {
                return Ok(());
            }
            let until = if known && self.is_at_end() {
                asked + query.wait
            } else {
                asked + query.wait + PATIENCE
            };
            let Ok(event) = timeout_at(until, fetcher.next()).await else {
                return Ok(());
            };
            self.on_event(event, query, &mut fetcher).await?;
        }
    }

    fn is_at_end(&self) -> bool {
        self.parts.values().all(|part| {
            let at_end = matches!((part.next, part.end), (Some(next), Some(end)) if next >= end);
            part.stopped || at_end
        })
    }

    async fn on_event(
        &mut self,
        event: FetchEvent,
        query: &PollQuery,
        fetcher: &mut Fetcher,
    ) -> Result<(), Failure> {
        match event {
            FetchEvent::Started(position) | FetchEvent::Position(position) => {
                self.at(&position);
                Ok(())
            }
            FetchEvent::Data(data) => {
                if let Data::Records(records) = data.data {
                    let all = self.take(data.partition, records, query);
                    if all {
                        self.at(&data.position);
                    }
                }
                Ok(())
            }
            FetchEvent::Stopped { partition, refusal } => {
                self.on_stopped(partition, refusal, fetcher).await
            }
        }
    }

    fn at(&mut self, position: &v1::PartitionPosition) {
        let at = partition_at(&position.topic_id, position.partition);
        if let Some(part) = at.and_then(|at| self.parts.get_mut(&at))
            && !part.stopped
        {
            part.next = Some(position.next_offset);
            part.end = Some(position.high_watermark);
        }
    }

    /// Takes records while they fit; the first of all always does. False: not all.
    fn take(
        &mut self,
        at: TopicPartition,
        records: Vec<v1::FetchedRecord>,
        query: &PollQuery,
    ) -> bool {
        let Some(part) = self.parts.get_mut(&at).filter(|part| !part.stopped) else {
            return false;
        };
        for record in records {
            let bytes = fetched_record_bytes(&record);
            let over =
                self.bytes + bytes > query.max_bytes || self.records.len() >= query.max_records;
            if over && !self.records.is_empty() {
                self.full = true;
                return false;
            }
            self.bytes += bytes;
            part.next = Some(record.offset + 1);
            let mut value = shown(&record);
            value["topic"] = part.topic.clone().into();
            value["partition"] = part.partition.into();
            self.records.push(value);
            if part.one {
                part.stopped = true;
                return false;
            }
        }
        true
    }

    /// Where to go on if the position lies below what is left.
    fn pass_gap(&mut self, at: TopicPartition, log_start: i64) -> Option<FetchStart> {
        let part = self.parts.get_mut(&at)?;
        let from = part.next.filter(|next| *next < log_start)?;
        self.gaps.push(Gap {
            topic: part.topic.clone(),
            partition: part.partition,
            from,
            to: log_start,
        });
        part.next = Some(log_start);
        Some(FetchStart {
            topic: part.topic.clone(),
            partition: part.partition,
            start: StartAt::Offset(log_start),
        })
    }

    /// What retention took is said and passed over; other failures stand beside the
    /// records of other partitions, and are the answer where there is nothing else.
    async fn on_stopped(
        &mut self,
        at: TopicPartition,
        refusal: Refusal,
        fetcher: &mut Fetcher,
    ) -> Result<(), Failure> {
        if let Some(Details::Bounds(bounds)) = &refusal.details
            && let Some(start) = self.pass_gap(at, bounds.log_start_offset)
        {
            return Ok(fetcher.add(vec![start]).await?);
        }
        let Some(part) = self.parts.get_mut(&at) else {
            return Ok(());
        };
        part.stopped = true;
        let error = error_of(&part.topic, part.partition, &refusal);
        self.errors.push(error);
        let others = self.parts.values().any(|part| !part.stopped);
        if self.records.is_empty() && !others {
            return Err(refusal.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use talweg_types::{PartitionIndex, TopicId};

    fn at(partition: u32) -> TopicPartition {
        TopicPartition {
            topic_id: TopicId::NIL,
            partition: PartitionIndex(partition),
        }
    }

    fn part(partition: u32) -> Part {
        Part {
            topic: "t".into(),
            partition,
            start: StartAt::Offset(5),
            next: Some(5),
            end: None,
            one: false,
            stopped: false,
        }
    }

    /// Story: retention has taken ten records before they were read.
    #[test]
    fn a_gap_says_what_is_gone_and_why() {
        let mut found = Found::new([(at(0), part(0))].into(), Vec::new());
        assert!(found.pass_gap(at(0), 5).is_none(), "nothing is gone");
        let start = found.pass_gap(at(0), 15).expect("goes on");
        assert_eq!(start.start, StartAt::Offset(15));
        let expected = json!({
            "topic": "t", "partition": 0, "from_offset": 5, "to_offset": 15,
            "records_lost": 10, "reason": RECORDS_GONE,
        });
        assert_eq!(found.gaps[0].shown(), expected);
        assert_eq!(found.parts[&at(0)].next, Some(15));
    }

    /// Story: of two partitions one cannot be read. The records of the other one do
    /// not hide that; alone, it is the answer.
    #[tokio::test]
    async fn a_stopped_partition_is_said_beside_records() {
        let parts = [(at(0), part(0)), (at(1), part(1))];
        let mut found = Found::new(parts.into(), Vec::new());
        let damaged = || Refusal::new(ErrorCode::DataDamaged, "cannot be read");
        let client = talweg_client::Client::connect(["http://127.0.0.1:1"], Default::default());
        let client = client.expect("an address");
        let config = FetcherConfig::default();
        let mut fetcher = Fetcher::open(&client, config, Vec::new())
            .await
            .expect("opens");
        let stopped = found.on_stopped(at(1), damaged(), &mut fetcher).await;
        assert!(stopped.is_ok(), "the other one goes on");
        let error = &found.errors[0];
        assert_eq!(
            (&error["topic"], &error["partition"], &error["code"]),
            (&json!("t"), &json!(1), &json!("DATA_DAMAGED"))
        );
        let stopped = found.on_stopped(at(0), damaged(), &mut fetcher).await;
        assert!(stopped.is_err(), "nothing is left to answer");
    }
}
