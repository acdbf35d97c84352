//! The partitions that a measurement uses.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use talweg_client::{Client, FetchStart, StartAt};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1;
use talweg_types::TimestampMs;

/// How often the flushed ends are asked for, and for how long.
const FLUSH_POLL: Duration = Duration::from_millis(20);
const FLUSH_PATIENCE: Duration = Duration::from_secs(120);

/// Partitions of one topic.
pub struct Partitions {
    topic: String,
    chosen: Vec<u32>,
}

impl Partitions {
    /// The chosen partitions of the topic; all of them if none is named.
    pub async fn find(client: &Client, topic: &str, chosen: &[u32]) -> Result<Self, Refusal> {
        let described = client.topics().describe(topic).await?;
        let all: Vec<u32> = described.partitions.iter().map(|p| p.partition).collect();
        if let Some(missing) = chosen.iter().find(|partition| !all.contains(partition)) {
            let message = format!(
                "topic {topic:?} has {} partitions; there is no partition {missing}",
                all.len()
            );
            return Err(Refusal::new(ErrorCode::UnknownPartition, message));
        }
        let chosen = if chosen.is_empty() {
            all
        } else {
            chosen.to_vec()
        };
        if chosen.is_empty() {
            return Err(Refusal::internal("the server's answer names no partition"));
        }
        Ok(Self {
            topic: topic.into(),
            chosen,
        })
    }

    /// Their numbers; at least one.
    pub fn indexes(&self) -> Vec<u32> {
        self.chosen.clone()
    }

    /// All of them, from `start` on.
    pub fn starts(&self, start: StartAt) -> Vec<FetchStart> {
        let from = |partition: &u32| FetchStart {
            topic: self.topic.clone(),
            partition: *partition,
            start,
        };
        self.chosen.iter().map(from).collect()
    }

    /// Waits until all that was appended is on stable storage.
    pub async fn until_flushed(&self, client: &Client) -> Result<(), Refusal> {
        let deadline = Instant::now() + FLUSH_PATIENCE;
        loop {
            let described = client.topics().describe(&self.topic).await?;
            if described
                .partitions
                .iter()
                .filter(|p| self.chosen.contains(&p.partition))
                .all(flushed)
            {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Refusal::new(
                    ErrorCode::TimedOut,
                    "the flushed end did not reach the log end",
                ));
            }
            tokio::time::sleep(FLUSH_POLL).await;
        }
    }
}

fn flushed(partition: &v1::PartitionDescription) -> bool {
    partition
        .bounds
        .as_ref()
        .is_some_and(|bounds| bounds.flushed_end_offset >= bounds.log_end_offset)
}

/// The wall clock, for record timestamps.
pub fn now() -> TimestampMs {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    TimestampMs(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
