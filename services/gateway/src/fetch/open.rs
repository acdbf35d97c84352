//! The open frame of a Fetch stream, and partitions as clients name them.

use super::readers::Reader;
use crate::produce::{check_client_id, check_epoch};
use std::sync::Arc;
use talweg_client::{
    fetch::{Interest, StartAt},
    view::{TopicView, View, no_partition},
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1::{self, FetchOpen, FetchPartition, Form, Isolation, fetch_partition::Start};
use talweg_types::{PartitionIndex, TopicPartition, limits};

/// What a stream was opened with, partitions apart.
#[derive(Clone, Debug)]
pub struct Opening {
    pub client_id: String,
    pub thin: bool,
    pub isolation: Isolation,
    pub rack: String,
}

impl Opening {
    /// INVALID_ARGUMENT with the field, LIMIT_EXCEEDED.
    pub fn check(open: &FetchOpen) -> Result<Self, Refusal> {
        check_client_id(&open.client_id)?;
        let thin = match Form::try_from(open.form) {
            Ok(Form::Unspecified | Form::Records) => true,
            Ok(Form::Batches) => false,
            Err(_) => {
                return Err(Refusal::invalid(
                    "open.form",
                    format!("{} is unknown", open.form),
                ));
            }
        };
        let isolation = Isolation::try_from(open.isolation).map_err(|_| {
            Refusal::invalid("open.isolation", format!("{} is unknown", open.isolation))
        })?;
        check_count(open.partitions.len())?;
        Ok(Self {
            client_id: open.client_id.clone(),
            thin,
            isolation,
            rack: open.rack.clone(),
        })
    }
}

/// LIMIT_EXCEEDED for more partitions than a stream may have.
pub fn check_count(partitions: usize) -> Result<(), Refusal> {
    let max = limits::FETCH_PARTITIONS_MAX;
    if partitions <= max {
        return Ok(());
    }
    let message = format!("{partitions} partitions on one stream, at most {max} are allowed");
    Err(Refusal::new(ErrorCode::LimitExceeded, message).with_limit(
        "partitions",
        max as u64,
        partitions as u64,
        "partitions",
    ))
}

/// Finds a partition as a client names it: INVALID_ARGUMENT, UNKNOWN_TOPIC,
/// TOPIC_ID_CHANGED, UNKNOWN_PARTITION.
pub fn locate(
    view: &View,
    request: &FetchPartition,
) -> Result<(Arc<TopicView>, TopicPartition), Refusal> {
    let topic = Arc::clone(view.resolve(&request.topic, &request.topic_id)?);
    if request.partition as usize >= topic.partitions.len() {
        return Err(no_partition(&topic, request.partition));
    }
    let partition = TopicPartition {
        topic_id: topic.id,
        partition: PartitionIndex(request.partition),
    };
    Ok((topic, partition))
}

/// What to read for a client's request: as [`locate`], and FENCED_LEADER_EPOCH,
/// UNKNOWN_LEADER_EPOCH.
pub fn interest(view: &View, request: &FetchPartition) -> Result<(Reader, Interest), Refusal> {
    let (topic, partition) = locate(view, request)?;
    let start = start_at(request)?;
    let state = &topic.partitions[request.partition as usize];
    check_epoch(request.leader_epoch, state.leader_epoch)?;
    let name: Arc<str> = topic.topic.name.as_str().into();
    let reader = Reader::new(
        request.topic.clone(),
        Arc::clone(&name),
        request.generation,
        &topic.config,
    );
    let interest = Interest {
        partition,
        topic: name,
        start,
        leader_epoch: request.leader_epoch,
        last_epoch: request.last_epoch,
        largest_batch: topic.config.max_message_bytes,
    };
    Ok((reader, interest))
}

fn start_at(request: &FetchPartition) -> Result<StartAt, Refusal> {
    match request.start {
        Some(Start::Offset(offset)) => Ok(StartAt::Offset(offset)),
        Some(Start::TimestampMs(ms)) => Ok(StartAt::TimestampMs(ms)),
        Some(Start::Earliest(true)) => Ok(StartAt::Earliest),
        Some(Start::Latest(true)) => Ok(StartAt::Latest),
        Some(Start::Earliest(false) | Start::Latest(false)) => Err(Refusal::invalid(
            "partition.start",
            "must be true where it is given",
        )),
        None => Err(Refusal::invalid(
            "partition.start",
            "one of its fields must be set",
        )),
    }
}

/// A partition that was refused, in the client's own words.
pub fn refused(request: &FetchPartition, refusal: &Refusal) -> v1::FetchPartitionError {
    v1::FetchPartitionError {
        topic: request.topic.clone(),
        topic_id: request.topic_id.clone(),
        partition: request.partition,
        generation: request.generation,
        error: Some(refusal.detail()),
    }
}
