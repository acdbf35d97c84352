//! Copies of failed records: to a retry topic with a due time, or to the
//! dead-letter topic. A copy carries an idempotency key made of the record's
//! first place and its attempts, so that one made twice is stored once.

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
    fetch::{Data, FetchEvent},
    view::TopicView,
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    controller::v1::{
        EnsureDerivedTopicRequest, controller_service_client::ControllerServiceClient,
    },
    v1::{self, FetchedRecord, Header},
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
/// What stands in the way for good: NAME_CONFLICT, RECORD_TOO_LARGE, a record that
/// is gone, PARTITION_PAUSED where attempts are used up and there are no dead letters.
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
    let record = read(node, options, &topic, copy).await?;
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

/// The record itself, as a thin client sees it.
async fn read(
    node: &Node,
    options: &MemberOptions,
    topic: &TopicView,
    copy: &Copy,
) -> Result<FetchedRecord, Refusal> {
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
            match fetcher.next().await {
                FetchEvent::Data(data) => {
                    if let Data::Records(records) = data.data
                        && let Some(record) = records.into_iter().next()
                    {
                        return Ok(record);
                    }
                }
                FetchEvent::Stopped { refusal, .. } => return Err(refusal),
                FetchEvent::Started(_) | FetchEvent::Position(_) => {}
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

    #[test]
    fn due_times_are_jittered_by_a_fifth() {
        for _ in 0..1_000 {
            assert!((800..=1_200).contains(&jittered(1_000)));
        }
        assert_eq!(jittered(0), 0);
    }
}
