//! How far positions are behind, in bytes and time, and how soon retention reaches
//! them. Measured on workers; a partition that is slow or fails has its own refusal.

use crate::{arrivals::Pace, clock, fetch::on_reader, node::Node, resolve, view::TopicView};
use bytes::Bytes;
use futures::{StreamExt, stream};
use std::{sync::Arc, time::Duration};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_log::Backlog as Measured;
use talweg_proto::storage::v1::{Backlog, BacklogQuery};
use talweg_types::{LogBounds, Offset, limits};
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
    let to_log_end = measured.bytes.saturating_add(above.bytes);
    Ok(Backlog {
        topic_id: Bytes::copy_from_slice(topic.id.as_bytes()),
        partition: query.partition,
        log_start_offset: bounds.log_start.0,
        end_offset: end.0,
        bytes: i64::try_from(measured.bytes).unwrap_or(i64::MAX),
        oldest_append_ms: measured.oldest_append.map(|time| time.0),
        approximate: measured.approximate,
        loss_ms: loss_ms(&topic, bounds, from, &measured, to_log_end, pace),
        arrival_per_second: pace.records_per_second,
        error: None,
    })
}

/// Until retention may take the record at the position: not later than it does, since
/// whole segments go and the record's may be younger than it. Never where nothing is
/// deleted but what a newer record replaces.
fn loss_ms(
    topic: &TopicView,
    bounds: LogBounds,
    from: Offset,
    measured: &Measured,
    to_log_end: u64,
    pace: Pace,
) -> Option<i64> {
    // Nothing is there to lose.
    if from >= bounds.log_end || !topic.config.cleanup.deletes() {
        return None;
    }
    let age_limit = (topic.config.retention_ms >= 0).then_some(topic.config.retention_ms);
    let by_time = age_limit.zip(measured.oldest_append).map(|(limit, time)| {
        let left = time.0.saturating_add(limit);
        left.saturating_sub(clock::wall_now().0).max(0)
    });
    let by_size = u64::try_from(topic.config.retention_bytes)
        .ok()
        .and_then(|limit| {
            let room = limit.saturating_sub(to_log_end);
            time_to_fill(room, pace.bytes_per_second)
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
}
