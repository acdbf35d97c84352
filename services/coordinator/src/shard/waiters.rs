//! Who waits for what was decided.

use super::{Checked, Release, converse::Voice};
use crate::{
    convert,
    link::Link,
    refusals::{self, refusal},
};
use std::{collections::BTreeMap, sync::Arc};
use talweg_coordinator_runtime::Outcome;
use talweg_group::{Answer, Committed, Refusal as GroupRefusal};
use talweg_kit::errors::Refusal;
use talweg_proto::coordinator::v1::{self as wire, converse_response::What};
use talweg_types::{Offset, TopicPartition};
use tokio::sync::oneshot;

pub type GroupAnswer = Result<Answer, GroupRefusal>;

pub enum Waiter {
    Link {
        link: Arc<Link>,
        request_id: u64,
        group: Arc<str>,
        /// Of a commit: items that were refused before it was decided.
        refused: BTreeMap<usize, Refusal>,
        /// Of a commit: its partitions, in its order.
        at: Vec<TopicPartition>,
        member: Voice,
    },
    Do {
        reply: oneshot::Sender<Result<Answer, Refusal>>,
        group: Arc<str>,
        at: Vec<TopicPartition>,
    },
    Read(Release),
    Check {
        hash: u64,
        groups: u64,
        reply: oneshot::Sender<Result<Checked, Refusal>>,
    },
}

/// The refusal that an end short of a decision means.
pub fn short_of(outcome: &Outcome<GroupAnswer>, shard: u32) -> Option<Refusal> {
    match outcome {
        Outcome::Decided(Ok(_)) | Outcome::Passed(_) => None,
        Outcome::Decided(Err(of)) => Some(refusal(of)),
        Outcome::NotDone => Some(refusals::not_done()),
        Outcome::TooLarge { bytes, limit } => Some(refusals::too_large(*bytes, *limit)),
        Outcome::Throttled { limit } => Some(refusals::throttled(*limit)),
        Outcome::Lost => Some(refusals::not_coordinator(shard)),
    }
}

/// For metrics.
pub fn end_name(outcome: &Outcome<GroupAnswer>) -> &'static str {
    match outcome {
        Outcome::Decided(Ok(_)) | Outcome::Passed(_) => "done",
        Outcome::Decided(Err(_)) | Outcome::TooLarge { .. } => "refused",
        Outcome::NotDone => "not_done",
        Outcome::Throttled { .. } => "throttled",
        Outcome::Lost => "lost",
    }
}

/// The committed offset up to which a barrier passed.
pub fn passed(outcome: &Outcome<GroupAnswer>, shard: u32) -> Result<Offset, Refusal> {
    match (outcome, short_of(outcome, shard)) {
        (Outcome::Passed(offset), _) => Ok(*offset),
        (_, Some(refusal)) => Err(refusal),
        (_, None) => Err(Refusal::internal("a barrier came to a decision")),
    }
}

/// The answer as it travels.
pub fn what(
    outcome: Outcome<GroupAnswer>,
    refused: BTreeMap<usize, Refusal>,
    epoch: i32,
    number: u64,
    shard: u32,
) -> What {
    if let Some(refusal) = short_of(&outcome, shard) {
        return What::Error(refusal.detail());
    }
    match outcome {
        Outcome::Decided(Ok(Answer::View(view))) => What::View(convert::view(&view, epoch, number)),
        Outcome::Decided(Ok(Answer::Committed(results))) => {
            What::Committed(committed(results, refused))
        }
        _ => What::Done(wire::Done {}),
    }
}

/// In the order of the request: decided ones, and between them those refused before.
pub fn merge(
    results: Vec<Result<Committed, GroupRefusal>>,
    mut refused: BTreeMap<usize, Refusal>,
) -> Vec<Result<Committed, Refusal>> {
    let mut merged = Vec::with_capacity(results.len() + refused.len());
    let mut results = results.into_iter();
    loop {
        if let Some(refusal) = refused.remove(&merged.len()) {
            merged.push(Err(refusal));
        } else if let Some(result) = results.next() {
            merged.push(result.map_err(|of| refusal(&of)));
        } else {
            return merged;
        }
    }
}

fn committed(
    results: Vec<Result<Committed, GroupRefusal>>,
    refused: BTreeMap<usize, Refusal>,
) -> wire::CommitResults {
    let merged = merge(results, refused);
    wire::CommitResults {
        results: merged.iter().map(convert::commit_result).collect(),
    }
}
