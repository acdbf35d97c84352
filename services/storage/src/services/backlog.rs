//! How far positions are behind, in bytes and time, and how soon retention reaches
//! them. Measured on workers; a partition that is slow or fails has its own refusal.

use crate::{arrivals::Pace, clock, fetch::on_reader, node::Node, resolve};
use bytes::Bytes;
use futures::{StreamExt, stream};
use std::{sync::Arc, time::Duration};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_log::LogConfig;
use talweg_proto::storage::v1::{Backlog, BacklogQuery};
use talweg_types::{Offset, TimestampMs, TopicConfig, limits};
use tokio::time::timeout;

/// Partitions that are measured at a time for one call.
const AT_A_TIME: usize = 16;
/// One partition's worker may wait this long for its disk.
const PATIENCE: Duration = Duration::from_secs(2);

/// One answer a query, in order.
pub async fn measure(
    node: &Arc<Node>,
    queries: Vec<BacklogQuery>,
) -> Result<Vec<Backlog>, Refusal> {
    let (count, max) = (queries.len(), limits::FETCH_PARTITIONS_MAX);
    if count > max {
        let message = format!("{count} queries in one call, at most {max} are allowed");
        return Err(Refusal::new(ErrorCode::LimitExceeded, message).with_limit(
            "queries",
            max as u64,
            count as u64,
            "queries",
        ));
    }
    let each = queries.into_iter().map(|query| {
        let node = Arc::clone(node);
        async move {
            match timeout(PATIENCE, answer(&node, &query)).await {
                Ok(Ok(backlog)) => backlog,
                Ok(Err(refusal)) => refused(&query, &refusal),
                Err(_) => {
                    let why = "the disk did not answer in time";
                    refused(&query, &Refusal::new(ErrorCode::TimedOut, why))
                }
            }
        }
    });
    // Collected first: the stream then borrows nothing of the caller's.
    let each: Vec<_> = each.collect();
    Ok(stream::iter(each).buffered(AT_A_TIME).collect().await)
}

fn refused(query: &BacklogQuery, refusal: &Refusal) -> Backlog {
    Backlog {
        topic_id: query.topic_id.clone(),
        partition: query.partition,
        error: Some(refusal.detail()),
        ..Backlog::default()
    }
}

async fn answer(node: &Arc<Node>, query: &BacklogQuery) -> Result<Backlog, Refusal> {
    let topic = resolve::topic(node, "", &query.topic_id)?;
    let (handle, _) = resolve::readable_partition(node, &topic, query.partition)?;
    if query.offset < 0 {
        let reason = format!("is the next offset to read, not {}", query.offset);
        return Err(Refusal::invalid("offset", reason));
    }
    let bounds = handle.reader.bounds();
    let end = match query.committed {
        true => bounds.last_stable,
        false => bounds.high_watermark,
    };
    let from = Offset(query.offset).max(bounds.log_start);
    let reader = Arc::clone(&handle.reader);
    let (log_end, tp) = (bounds.log_end, handle.tp);
    let (measured, above) = on_reader(node, move || {
        Ok((
            reader.backlog(from, end)?,
            reader.backlog(end.max(from), log_end)?,
        ))
    })
    .await?;
    let pace = node.arrivals.pace(&tp);
    let behind = Behind {
        is_at_end: from >= bounds.log_end,
        oldest: measured.oldest_append,
        bytes_to_log_end: measured.bytes.saturating_add(above.bytes),
    };
    Ok(Backlog {
        topic_id: Bytes::copy_from_slice(topic.id.as_bytes()),
        partition: query.partition,
        log_start_offset: bounds.log_start.0,
        end_offset: end.0,
        bytes: i64::try_from(measured.bytes).unwrap_or(i64::MAX),
        oldest_append_ms: measured.oldest_append.map(|time| time.0),
        approximate: measured.approximate,
        loss_ms: loss_ms(
            Retention::of(&topic.config),
            clock::wall_now(),
            &behind,
            pace,
        ),
        arrival_per_second: pace.map(|pace| pace.records_per_second),
        error: None,
    })
}

/// What retention takes away; none: not by that.
#[derive(Clone, Copy)]
struct Retention {
    age_ms: Option<i64>,
    bytes: Option<u64>,
}

impl Retention {
    /// As the log has it, where a topic that is only compacted loses nothing.
    fn of(topic: &TopicConfig) -> Self {
        let LogConfig {
            retention_ms,
            retention_bytes,
            ..
        } = LogConfig::from(topic);
        Self {
            age_ms: (retention_ms >= 0).then_some(retention_ms),
            bytes: u64::try_from(retention_bytes).ok(),
        }
    }
}

/// A position as retention sees it.
struct Behind {
    /// Nothing is there to lose.
    is_at_end: bool,
    /// When the next record was appended.
    oldest: Option<TimestampMs>,
    bytes_to_log_end: u64,
}

/// Until retention may take the record at the position: not later than it does, since
/// whole segments go and the record's may be younger than it.
fn loss_ms(
    retention: Retention,
    now: TimestampMs,
    behind: &Behind,
    pace: Option<Pace>,
) -> Option<i64> {
    if behind.is_at_end {
        return None;
    }
    let by_time = retention.age_ms.zip(behind.oldest).map(|(limit, time)| {
        let left = time.0.saturating_add(limit);
        left.saturating_sub(now.0).max(0)
    });
    let by_size = retention.bytes.and_then(|limit| {
        let room = limit.saturating_sub(behind.bytes_to_log_end);
        time_to_fill(room, pace.map_or(0.0, |pace| pace.bytes_per_second))
    });
    match (by_time, by_size) {
        (Some(time), Some(size)) => Some(time.min(size)),
        (one, other) => one.or(other),
    }
}

/// `None`: never at this pace.
fn time_to_fill(room_bytes: u64, bytes_per_second: f64) -> Option<i64> {
    if room_bytes == 0 {
        return Some(0);
    }
    let ms = room_bytes as f64 * 1_000.0 / bytes_per_second;
    // Beyond a century it is no forecast.
    (ms.is_finite() && ms < 3.2e12).then_some(ms as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_fills_at_the_pace_or_never() {
        assert_eq!(time_to_fill(0, 0.0), Some(0));
        assert_eq!(time_to_fill(1_000, 100.0), Some(10_000));
        assert_eq!(time_to_fill(1_000, 0.0), None);
        assert_eq!(time_to_fill(u64::MAX, 1.0), None);
    }

    /// Story: a topic that is only compacted has the default retention of a week in its
    /// configuration, which takes nothing from it.
    #[test]
    fn only_what_deletes_is_a_loss() {
        let loss = |cleanup: &str| {
            let stored = [
                ("cleanup.policy", cleanup),
                ("retention.ms", "60000"),
                ("retention.bytes", "1000"),
            ];
            let stored = stored.map(|(key, value)| (key.to_owned(), value.to_owned()));
            let config = TopicConfig::resolve_stored(&stored.into());
            let behind = Behind {
                is_at_end: false,
                oldest: Some(TimestampMs(1_000)),
                bytes_to_log_end: 500,
            };
            let pace = Pace {
                records_per_second: 1.0,
                bytes_per_second: 50.0,
            };
            let now = TimestampMs(11_000);
            loss_ms(Retention::of(&config), now, &behind, Some(pace))
        };
        assert_eq!(loss("delete"), Some(10_000));
        assert_eq!(loss("compact,delete"), Some(10_000));
        assert_eq!(loss("compact"), None);
    }
}
