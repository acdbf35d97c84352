//! `bench latency`: from sending to the acknowledgement and to the reader.
//!
//! Each value begins with the time at which its record was due, so that the
//! reader, in the same process, knows how old it is. At a rate, records that
//! are late because of a stall count from when they were due.

use super::{
    cpu::CpuMeter,
    fetch::fetcher_config,
    pace::Pace,
    payload::Payloads,
    report::{Latencies, Report},
    sender::Sender,
    topic::Partitions,
};
use crate::{
    args::{Globals, LatencyBench, Load},
    connect,
    failure::Failure,
};
use bytes::{BufMut, Bytes, BytesMut};
use futures::{StreamExt, stream::FuturesUnordered};
use serde_json::json;
use std::time::{Duration, Instant};
use talweg_client::{
    Fetcher, StartAt,
    fetch::{FetchEvent, decode_frame},
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_types::limits;
use tokio::{
    sync::mpsc,
    time::{sleep_until, timeout},
};

/// How long the reader may take for what was acknowledged.
const READ_PATIENCE: Duration = Duration::from_secs(10);
/// Records that leave together at most.
const GROUP_MAX: u64 = 1_000;
/// One record at a time: a pause between them, so that nothing of the one before is still under way.
const LONE_PAUSE: Duration = Duration::from_millis(5);
/// One record at a time: how many without `--records` or `--duration`.
const LONE_RECORDS: u64 = 1_000;

/// Runs the measurement.
pub async fn run(globals: &Globals, args: &LatencyBench) -> Result<Report, Failure> {
    let load = &args.load;
    load.check().map_err(Failure::Usage)?;
    if load.streams != 1 {
        return Err(Failure::Usage(
            "latency is measured on one stream: --streams 1".into(),
        ));
    }
    let client = connect::client(globals)?;
    let partitions = Partitions::find(&client, &load.topic, &load.partition).await?;
    let starts = partitions.starts(StartAt::Latest);
    let fetcher = Fetcher::open(&connect::client(globals)?, fetcher_config(load), starts).await?;
    let base = Instant::now();
    let mut reader = start_reader(fetcher, partitions.indexes().len(), base).await?;
    let mut run = Run {
        sender: Sender::open(&client, load).await?,
        payloads: Payloads::new(load.seed, load.record_size as usize),
        partitions: partitions.indexes(),
        next_partition: 0,
        topic: load.topic.clone(),
        base,
        sent: 0,
        produced: Latencies::default(),
    };
    let meter = CpuMeter::start(&load.server_pid);
    let begun = Instant::now();
    let consumed = match load.rate {
        Some(rate) => run.at_rate(load, rate, &mut reader).await?,
        None => run.one_at_a_time(load, &mut reader).await?,
    };
    Ok(Report {
        name: "latency",
        records: Some(run.sent),
        bytes: run.sent * u64::from(load.record_size),
        elapsed: begun.elapsed(),
        latencies: vec![
            ("produce_ms", run.produced),
            ("produce_to_consume_ms", consumed),
        ],
        cpu: Some(meter.stop()),
        more: vec![
            ("rate", json!(load.rate)),
            ("acks", json!(load.acks.as_str())),
            ("direct", json!(load.direct)),
        ],
    })
}

/// Ages of records as they were read, a frame at a time.
type Read = mpsc::UnboundedReceiver<Result<Vec<Duration>, Refusal>>;

/// Reads on a task of its own; returns when every partition has begun, so that nothing is missed.
async fn start_reader(
    mut fetcher: Fetcher,
    partitions: usize,
    base: Instant,
) -> Result<Read, Refusal> {
    for _ in 0..partitions {
        match timeout(READ_PATIENCE, fetcher.next()).await {
            Ok(FetchEvent::Stopped { refusal, .. }) => return Err(refusal),
            Ok(_) => {}
            Err(_) => {
                return Err(Refusal::new(
                    ErrorCode::TimedOut,
                    "the reader could not begin",
                ));
            }
        }
    }
    // Unbounded, but of at most what was sent and not yet counted: the sender is paced or waits.
    let (ages, read) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let frame = match fetcher.next().await {
                FetchEvent::Data(data) => ages_in(&data, base),
                FetchEvent::Stopped { refusal, .. } => Err(refusal),
                FetchEvent::Started(_) | FetchEvent::Position(_) => continue,
            };
            let last = frame.is_err();
            if ages.send(frame).is_err() || last {
                return;
            }
        }
    });
    Ok(read)
}

fn ages_in(
    data: &talweg_client::fetch::FetchData,
    base: Instant,
) -> Result<Vec<Duration>, Refusal> {
    let now = base.elapsed();
    let records = decode_frame(data, limits::UNPACKED_BATCH_BYTES_MAX as usize)?;
    let due = records
        .iter()
        .filter_map(|record| due_in(record.value.as_ref()?));
    Ok(due.map(|due| now.saturating_sub(due)).collect())
}

/// The time in front of a value, as nanoseconds since the base.
fn due_in(value: &[u8]) -> Option<Duration> {
    Some(Duration::from_nanos(u64::from_be_bytes(
        value.get(..8)?.try_into().ok()?,
    )))
}

fn stamped(due: Duration, value: &Bytes) -> Bytes {
    let mut stamped = BytesMut::with_capacity(value.len());
    stamped.put_u64(u64::try_from(due.as_nanos()).unwrap_or(u64::MAX));
    stamped.extend_from_slice(value.get(8..).unwrap_or_default());
    stamped.freeze()
}

struct Run {
    sender: Sender,
    payloads: Payloads,
    partitions: Vec<u32>,
    next_partition: usize,
    topic: String,
    base: Instant,
    sent: u64,
    produced: Latencies,
}

impl Run {
    async fn send(&mut self, due: Instant, records: u64) -> Result<super::sender::Answer, Refusal> {
        let partition = self.partitions[self.next_partition % self.partitions.len()];
        self.next_partition += 1;
        self.sent += records;
        let due = due.saturating_duration_since(self.base);
        let values = (0..records).map(|_| stamped(due, &self.payloads.next_value()));
        self.sender.send(&self.topic, partition, values).await
    }

    /// On a schedule; answers and reads are counted as they come.
    async fn at_rate(
        &mut self,
        load: &Load,
        rate: u64,
        reader: &mut Read,
    ) -> Result<Latencies, Failure> {
        let begun = Instant::now();
        let mut pace = Pace::new(
            begun,
            Some(rate as f64),
            load.record_limit(),
            GROUP_MAX,
            load.duration,
        );
        let mut next = pace.next_group(begun);
        let mut answers = FuturesUnordered::new();
        let mut consumed = Latencies::default();
        while next.is_some() || !answers.is_empty() || consumed.count() < self.sent {
            let due = next.map_or_else(|| Instant::now() + READ_PATIENCE, |due| due.at);
            tokio::select! {
                biased;
                () = sleep_until(due.into()) => {
                    let Some(group) = next else {
                        return Err(not_read(self.sent, consumed.count()).into());
                    };
                    let answer = self.send(group.at, group.records).await?;
                    answers.push(async move { (group, answer.await) });
                    next = pace.next_group(Instant::now());
                }
                Some((group, refusal)) = answers.next() => match refusal {
                    None => (0..group.records).for_each(|_| self.produced.record(group.at.elapsed())),
                    Some(refusal) => return Err(refusal.into()),
                },
                ages = reader.recv() => count(ages, &mut consumed)?,
            }
        }
        Ok(consumed)
    }

    /// The next one leaves when the one before has been acknowledged and read.
    async fn one_at_a_time(
        &mut self,
        load: &Load,
        reader: &mut Read,
    ) -> Result<Latencies, Failure> {
        let begun = Instant::now();
        let limit = load.records.unwrap_or(if load.duration.is_some() {
            u64::MAX
        } else {
            LONE_RECORDS
        });
        let mut consumed = Latencies::default();
        while self.sent < limit
            && load
                .duration
                .is_none_or(|duration| begun.elapsed() < duration)
        {
            let due = Instant::now();
            let answer = self.send(due, 1).await?;
            if let Some(refusal) = answer.await {
                return Err(refusal.into());
            }
            self.produced.record(due.elapsed());
            while consumed.count() < self.sent {
                match timeout(READ_PATIENCE, reader.recv()).await {
                    Ok(ages) => count(ages, &mut consumed)?,
                    Err(_) => return Err(not_read(self.sent, consumed.count()).into()),
                }
            }
            tokio::time::sleep(LONE_PAUSE).await;
        }
        Ok(consumed)
    }
}

fn count(
    ages: Option<Result<Vec<Duration>, Refusal>>,
    consumed: &mut Latencies,
) -> Result<(), Refusal> {
    let ages = ages.unwrap_or_else(|| Err(Refusal::internal("the reader has ended")))?;
    ages.into_iter().for_each(|age| consumed.record(age));
    Ok(())
}

fn not_read(sent: u64, read: u64) -> Refusal {
    let message = format!(
        "{sent} records were sent and {read} read; the rest did not come within {READ_PATIENCE:?}"
    );
    Refusal::new(ErrorCode::TimedOut, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_carries_the_time_at_which_it_was_due() {
        let value = Bytes::from(vec![9; 40]);
        let due = Duration::from_nanos(123_456_789);
        let stamped = stamped(due, &value);
        assert_eq!(stamped.len(), 40);
        assert_eq!(due_in(&stamped), Some(due));
        assert_eq!(due_in(b"short"), None);
    }
}
