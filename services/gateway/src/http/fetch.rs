//! Reading one partition over HTTP, with a long poll.

use super::{HttpState, body::Params, record::shown, reply::Failure};
use axum::extract::{Path, State};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use talweg_client::{
    FetchStart, Fetcher, FetcherConfig, Refusal, StartAt,
    fetch::{Data, FetchEvent},
    payload::fetched_record_bytes,
};
use talweg_proto::v1;
use talweg_types::limits;
use tokio::time::{Instant, timeout_at};

/// Where to begin and how much to wait for.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct FetchQuery {
    offset: Option<i64>,
    timestamp: Option<i64>,
    max_bytes: Option<u32>,
    wait_ms: Option<u64>,
}

/// The most that one answer may ask for.
const MAX_BYTES: u32 = 16 * 1024 * 1024;
/// A leader has this long to answer at all.
const PATIENCE: Duration = Duration::from_secs(10);

impl FetchQuery {
    fn start(&self) -> Result<StartAt, Failure> {
        match (self.offset, self.timestamp) {
            (Some(offset), None) => Ok(StartAt::Offset(offset)),
            (None, Some(timestamp)) => Ok(StartAt::TimestampMs(timestamp)),
            (None, None) => Ok(StartAt::Earliest),
            (Some(_), Some(_)) => Err(Failure::invalid(
                "timestamp",
                "give offset or timestamp, not both",
            )),
        }
    }

    fn max_bytes(&self) -> Result<usize, Failure> {
        match self.max_bytes.unwrap_or(limits::HTTP_BYTES_DEFAULT) {
            bytes @ 1..=MAX_BYTES => Ok(bytes as usize),
            _ => Err(Failure::invalid(
                "max_bytes",
                format!("is from 1 to {MAX_BYTES}"),
            )),
        }
    }

    fn wait(&self) -> Result<Duration, Failure> {
        let ms = self.wait_ms.unwrap_or(0);
        if ms > limits::HTTP_WAIT_MS_MAX {
            return Err(Failure::invalid(
                "wait_ms",
                format!("is from 0 to {}", limits::HTTP_WAIT_MS_MAX),
            ));
        }
        Ok(Duration::from_millis(ms))
    }
}

/// What was found so far.
#[derive(Default)]
struct Found {
    records: Vec<v1::FetchedRecord>,
    bytes: usize,
    next_offset: i64,
    high_watermark: i64,
    full: bool,
}

impl Found {
    /// Takes records while they fit; the first one always fits. What is left
    /// out is next.
    fn take(
        &mut self,
        records: Vec<v1::FetchedRecord>,
        position: &v1::PartitionPosition,
        max_bytes: usize,
    ) {
        for record in records {
            let bytes = fetched_record_bytes(&record);
            let over = self.bytes + bytes > max_bytes
                || self.records.len() >= limits::HTTP_RECORDS_MAX as usize;
            if over && !self.records.is_empty() {
                self.full = true;
                return self.high_watermark = position.high_watermark;
            }
            self.bytes += bytes;
            self.next_offset = record.offset + 1;
            self.records.push(record);
        }
        self.at(position);
    }

    fn at(&mut self, position: &v1::PartitionPosition) {
        self.next_offset = position.next_offset;
        self.high_watermark = position.high_watermark;
    }

    /// Nothing more will come without waiting.
    fn is_at_end(&self) -> bool {
        self.full || self.next_offset >= self.high_watermark
    }
}

/// `GET /v1/topics/{topic}/partitions/{partition}/records`
pub async fn records(
    State(state): State<HttpState>,
    Path((topic, partition)): Path<(String, u32)>,
    Params(query): Params<FetchQuery>,
) -> Result<axum::Json<Value>, Failure> {
    let (start, max_bytes, wait) = (query.start()?, query.max_bytes()?, query.wait()?);
    let found = read(
        &state,
        FetchStart {
            topic,
            partition,
            start,
        },
        max_bytes,
        wait,
    )
    .await?;
    let records: Vec<Value> = found.records.iter().map(shown).collect();
    Ok(axum::Json(json!({
        "records": records, "next_offset": found.next_offset, "high_watermark": found.high_watermark,
    })))
}

async fn read(
    state: &HttpState,
    start: FetchStart,
    max_bytes: usize,
    wait: Duration,
) -> Result<Found, Failure> {
    // At least the largest batch, or the stream could not open.
    let credit = max_bytes.max(limits::MAX_MESSAGE_BYTES_RANGE.1 as usize);
    let config = FetcherConfig {
        form: v1::Form::Records,
        credit_bytes: i64::try_from(credit).unwrap_or(i64::MAX),
        patience: PATIENCE,
        ..Default::default()
    };
    let mut fetcher = Fetcher::open(&state.client, config, vec![start]).await?;
    let asked = Instant::now();
    let mut found = Found::default();
    let mut started = false;
    loop {
        // Until the start is known there is nothing to answer with.
        let until = if started {
            asked + wait
        } else {
            asked + wait.max(PATIENCE)
        };
        let waits = started && found.is_at_end();
        let event = match timeout_at(
            if waits {
                until
            } else {
                asked + wait + PATIENCE
            },
            fetcher.next(),
        )
        .await
        {
            Ok(event) => event,
            Err(_) if started => return Ok(found),
            Err(_) => {
                return Err(
                    Refusal::unavailable("the partition's leader did not answer in time").into(),
                );
            }
        };
        match event {
            FetchEvent::Started(position) | FetchEvent::Position(position) => {
                started = true;
                found.at(&position);
            }
            FetchEvent::Data(data) => {
                started = true;
                if let Data::Records(records) = data.data {
                    found.take(records, &data.position, max_bytes);
                }
            }
            FetchEvent::Stopped { refusal, .. } => {
                // What was read before the failure is an answer; the next call meets the failure.
                return if found.records.is_empty() {
                    Err(refusal.into())
                } else {
                    Ok(found)
                };
            }
        }
        if found.full || (!found.records.is_empty() && found.is_at_end()) {
            return Ok(found);
        }
        if started && found.is_at_end() && Instant::now() >= until {
            return Ok(found);
        }
    }
}
