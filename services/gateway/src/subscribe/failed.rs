//! Copies of failed records: to a retry topic with a due time, or to the
//! dead-letter topic. A copy carries an idempotency key made of the record's
//! first place and its attempts, so that one made twice is stored once. A record
//! that compaction or retention took meanwhile cannot be copied and counts as passed.

use super::{
    core::{Copy, Destination},
    derived::{self, Origin},
    open::MemberOptions,
};
use crate::{groups::id_bytes, node::Node};
use rand::Rng;
use std::{sync::Arc, time::Duration};
use talweg_client::{
    Again, FetchStart, Fetcher, FetcherConfig,
    backoff::Backoff,
    clock::Clock,
    fetch::{Data, FetchEvent, StartAt},
    view::TopicView,
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    controller::v1::{
        EnsureDerivedTopicRequest, controller_service_client::ControllerServiceClient,
    },
    v1::{self, FetchedRecord, Header, error_detail::Details},
};
use talweg_types::{TopicId, limits};
use tokio::time::timeout;

/// Pauses between tries; a copy is tried until it is made or refused for good.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// For the record to be read again.
const READING: Duration = Duration::from_secs(15);
/// For this gateway to hear of a topic that the controller made.
const HEARING: Duration = Duration::from_secs(5);
/// A due time differs from its back-off by up to this part of it.
const JITTER: f64 = 0.2;

/// Makes a copy; the offset after the record that was copied.
///
/// # Errors
/// What stands in the way for good: NAME_CONFLICT, RECORD_TOO_LARGE,
/// OFFSET_OUT_OF_RANGE where any record from a place on would do, PARTITION_PAUSED where
/// attempts are used up and there are no dead letters, or where the topic is derived itself.
pub async fn copy(
    node: Arc<Node>,
    options: Arc<MemberOptions>,
    copy: Copy,
) -> (Copy, Result<i64, Refusal>) {
    let mut backoff = Backoff::new(RETRY.0, RETRY.1);
    loop {
        let refusal = match copy_once(&node, &options, &copy).await {
            Ok(next) => return (copy, Ok(next)),
            Err(refusal) => refusal,
        };
        if !refusal.is_retriable() && refusal.code != ErrorCode::OutcomeUnknown {
            return (copy, Err(refusal));
        }
        tracing::debug!(%refusal, at = ?copy.at, "a failed record is not copied yet");
        tokio::time::sleep(backoff.pause(refusal.retry_after_ms)).await;
    }
}

async fn copy_once(node: &Node, options: &MemberOptions, copy: &Copy) -> Result<i64, Refusal> {
    let topic = node.view.get();
    let topic = topic
        .topic(copy.at.topic_id)
        .cloned()
        .ok_or_else(|| talweg_client::view::unknown(&copy.at.topic_id))?;
    let record = match read(node, options, &topic, copy).await? {
        Read::Record(record) => record,
        Read::Gone(offset) => {
            node.metrics.failed_records_gone.inc();
            let name = &topic.topic.name;
            tracing::warn!(topic = %name, partition = copy.at.partition.0, offset,
                "a failed record is gone and counts as passed");
            return Ok(offset.saturating_add(1));
        }
    };
    let retry = derived::is_retry_of(&topic, &options.group);
    let name = &topic.topic.name;
    let mut origin = Origin::of(name, copy.at.partition.0, retry, &record);
    let source = match retry {
        true => TopicId::from_slice(&topic.topic.derived_from_topic_id).unwrap_or(topic.id),
        false => topic.id,
    };
    let (target, added) = decide(options, copy, &mut origin)?;
    let target = ensure(node, options, source, target).await?;
    let key = format!(
        "{source}/{}/{}/{}",
        origin.partition, origin.offset, origin.attempts
    );
    let next = record.offset + 1;
    let partitions = target.topic.partitions.max(1);
    let headers = [derived::own_headers(&record.headers), added].concat();
    let copied = v1::Record {
        key: record.key,
        value: record.value,
        headers,
        timestamp_ms: (record.timestamp_ms >= 0).then_some(record.timestamp_ms),
        // Where the source's is, so that a repeat meets its first try.
        partition: Some(origin.partition % partitions),
        idempotency_key: key,
        due_time_ms: None,
    };
    let own = node.own()?;
    let receipts = own.copies.send(&target.topic.name, vec![copied]).await?;
    let outcome = receipts.await.into_iter().next();
    let outcome = outcome.ok_or_else(|| Refusal::internal("a copy without an answer"))?;
    outcome.into_result()?;
    node.metrics.failed_records.inc();
    Ok(next)
}

/// What there is to copy.
#[derive(Clone, PartialEq, Debug)]
enum Read {
    Record(FetchedRecord),
    /// The record of this offset is not in the log any more.
    Gone(i64),
}

/// What a reader heard, if that says it: pure.
fn heard(copy: &Copy, event: FetchEvent) -> Option<Result<Read, Refusal>> {
    let exact = match copy.start {
        StartAt::Offset(offset) if copy.exact => Some(offset),
        _ => None,
    };
    match event {
        FetchEvent::Data(data) => {
            let Data::Records(records) = data.data else {
                return None;
            };
            match (records.into_iter().next(), exact) {
                (Some(record), Some(offset)) if record.offset > offset => {
                    Some(Ok(Read::Gone(offset)))
                }
                (Some(record), _) => Some(Ok(Read::Record(record))),
                (None, _) => gone_below(exact, data.position.next_offset),
            }
        }
        FetchEvent::Started(position) | FetchEvent::Position(position) => {
            gone_below(exact, position.next_offset)
        }
        FetchEvent::Stopped { refusal, .. } => {
            let start = match &refusal.details {
                Some(Details::Bounds(bounds)) if refusal.code == ErrorCode::OffsetOutOfRange => {
                    bounds.log_start_offset
                }
                _ => return Some(Err(refusal)),
            };
            gone_below(exact, start).or(Some(Err(refusal)))
        }
    }
}

/// Nothing below `next` is left.
fn gone_below(exact: Option<i64>, next: i64) -> Option<Result<Read, Refusal>> {
    exact.filter(|it| *it < next).map(|it| Ok(Read::Gone(it)))
}

/// The record itself, as a thin client sees it.
async fn read(
    node: &Node,
    options: &MemberOptions,
    topic: &TopicView,
    copy: &Copy,
) -> Result<Read, Refusal> {
    let config = FetcherConfig {
        form: v1::Form::Records,
        isolation: options.reading.isolation,
        credit_bytes: i64::from(limits::MAX_MESSAGE_BYTES_RANGE.1),
        patience: READING,
        ..Default::default()
    };
    let start = FetchStart {
        topic: topic.topic.name.clone(),
        partition: copy.at.partition.0,
        start: copy.start,
    };
    let own = node.own()?;
    let mut fetcher = Fetcher::open(&own.client, config, vec![start]).await?;
    let first = async {
        loop {
            if let Some(read) = heard(copy, fetcher.next().await) {
                return read;
            }
        }
    };
    timeout(READING, first)
        .await
        .map_err(|_| Refusal::unavailable("a failed record could not be read again in time"))?
}

/// Where the copy goes, and what it says there. Counts the attempt.
fn decide(
    options: &MemberOptions,
    copy: &Copy,
    origin: &mut Origin,
) -> Result<(Target, Vec<Header>), Refusal> {
    let (group, reason) = (&options.group, &copy.reason);
    match copy.to {
        Destination::DeadLetters(lost) => {
            origin.attempts = origin.attempts.saturating_add(lost.max(1));
        }
        Destination::Retry => {
            origin.attempts = origin.attempts.saturating_add(1);
            if origin.attempts < options.core.max_attempts {
                let backoffs = &options.core.backoff_ms;
                let n = (origin.attempts as usize).clamp(1, backoffs.len().max(1));
                let backoff = backoffs.get(n - 1).copied().unwrap_or(0);
                let due = Clock::wall_ms().saturating_add(jittered(backoff));
                let headers = origin.retry_headers(group, reason, due);
                return Ok((Target::Retry(n), headers));
            }
        }
    }
    if options.core.no_dead_letters {
        let why = format!(
            "record {} failed {} times and there are no dead letters; seek to it, or past it",
            origin.offset, origin.attempts
        );
        return Err(Refusal::new(ErrorCode::PartitionPaused, why));
    }
    Ok((
        Target::DeadLetters,
        origin.dead_letter_headers(group, reason),
    ))
}

fn jittered(backoff_ms: u32) -> i64 {
    let factor = rand::rng().random_range(1.0 - JITTER..=1.0 + JITTER);
    (f64::from(backoff_ms) * factor) as i64
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    Retry(usize),
    DeadLetters,
}

/// The topic of the copies; the controller makes it at its first use.
async fn ensure(
    node: &Node,
    options: &MemberOptions,
    source: TopicId,
    target: Target,
) -> Result<Arc<TopicView>, Refusal> {
    let view = node.view.get();
    let source_view = view
        .topic(source)
        .ok_or_else(|| talweg_client::view::unknown(&source))?;
    let source_name = &source_view.topic.name;
    if derived::is_derived(source_view) {
        let why = format!(
            "a record of {source_name:?} failed, and what fails of a retry or dead-letter topic \
             has no topic to go to; seek to it, or past it"
        );
        return Err(Refusal::new(ErrorCode::PartitionPaused, why));
    }
    let name = match target {
        Target::Retry(n) => derived::retry_topic(source_name, &options.group, n),
        Target::DeadLetters => derived::dead_letter_topic(source_name, &options.group),
    };
    let ours = |topic: &Arc<TopicView>| {
        topic.topic.derived_from_topic_id[..] == source.as_bytes()[..]
            && topic.topic.derived_for_group == options.group
    };
    if let Some(topic) = view.by_name(&name).filter(|topic| ours(topic)) {
        return Ok(Arc::clone(topic));
    }
    let request = EnsureDerivedTopicRequest {
        name: name.clone(),
        source_topic_id: id_bytes(source),
        group: options.group.clone(),
    };
    node.controller
        .call(Again::Safe, request, |channel, request| async move {
            ControllerServiceClient::new(channel)
                .ensure_derived_topic(request)
                .await
        })
        .await?;
    let known = |view: &talweg_client::view::View| view.by_name(&name).is_some_and(ours);
    node.view.wait(HEARING, known).await;
    let view = node.view.get();
    let topic = view.by_name(&name).cloned();
    topic.ok_or_else(|| Refusal::unavailable("the new topic is not known here yet"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use talweg_client::fetch::FetchData;
    use talweg_types::{PartitionIndex, TopicPartition};

    fn copy_of(exact: bool) -> Copy {
        Copy {
            at: TopicPartition {
                topic_id: TopicId::NIL,
                partition: PartitionIndex(0),
            },
            generation: 1,
            start: StartAt::Offset(5),
            exact,
            to: Destination::Retry,
            reason: String::new(),
        }
    }

    fn data(offset: i64) -> FetchEvent {
        FetchEvent::Data(FetchData {
            partition: copy_of(true).at,
            position: v1::PartitionPosition {
                next_offset: offset + 1,
                ..Default::default()
            },
            data: Data::Records(vec![FetchedRecord {
                offset,
                ..Default::default()
            }]),
            payload_bytes: 1,
            records: 1,
            last_epoch: Some(1),
        })
    }

    /// Story: compaction or retention takes a record while it is being tried. The
    /// one behind it is not copied in its place.
    #[test]
    fn only_the_record_that_failed_is_copied() {
        let gone = Some(Ok(Read::Gone(5)));
        let (one, any) = (copy_of(true), copy_of(false));
        assert!(matches!(heard(&one, data(5)), Some(Ok(Read::Record(it))) if it.offset == 5));
        assert_eq!(heard(&one, data(7)), gone);
        assert!(matches!(heard(&any, data(7)), Some(Ok(Read::Record(it))) if it.offset == 7));
        let position = |next_offset| {
            FetchEvent::Position(v1::PartitionPosition {
                next_offset,
                ..Default::default()
            })
        };
        assert_eq!(heard(&one, position(5)), None);
        assert_eq!(
            heard(&one, position(6)),
            gone,
            "no record follows it either"
        );
        assert_eq!(heard(&any, position(6)), None);
        let stopped = || FetchEvent::Stopped {
            partition: one.at,
            refusal: Refusal::new(ErrorCode::OffsetOutOfRange, "gone").with_bounds(20, 90),
        };
        assert_eq!(heard(&one, stopped()), gone);
        assert!(matches!(heard(&any, stopped()), Some(Err(_))));
    }

    #[test]
    fn due_times_are_jittered_by_a_fifth() {
        for _ in 0..1_000 {
            assert!((800..=1_200).contains(&jittered(1_000)));
        }
        assert_eq!(jittered(0), 0);
    }
}
