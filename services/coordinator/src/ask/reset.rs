//! Moving the offsets of a group that nobody uses: worked out at the leaders,
//! shown, and made if asked for.

use super::{Asked, offsets::committed};
use crate::leaders;
use std::collections::BTreeMap;
use talweg_group::{Committed, Event, ResetChange, ResetTo, ResolvedTime, Topics, resolve_reset};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1::{
    CommittedOffset, OffsetAnswer, ResetOffsetsRequest, ResetOffsetsResponse, offset_query::At,
    reset_offsets_request::To,
};
use talweg_types::{LeaderEpoch, Offset, TimestampMs, TopicId, TopicPartition};

impl Asked {
    /// GROUP_NOT_EMPTY, UNKNOWN_TOPIC, UNAVAILABLE if a leader does not answer:
    /// nothing is moved then.
    pub async fn reset(&self, of: ResetOffsetsRequest) -> Result<ResetOffsetsResponse, Refusal> {
        let to = of.to.ok_or_else(|| Refusal::invalid("to", "none is set"))?;
        check(&to)?;
        let topic = self.topic(&of.topic)?;
        let topics = self.topics();
        let partitions = topics
            .by_id(topic)
            .into_iter()
            .flat_map(|it| it.partitions());
        let partitions: Vec<TopicPartition> = partitions.collect();
        let stored = self.stored_of(topic).await?;
        let how = match to {
            To::TimestampMs(ms) => Some(At::TimestampMs(ms)),
            _ => None,
        };
        let answers = leaders::offsets(&self.node, partitions, how).await;
        let mut changes = Vec::with_capacity(answers.len());
        for (at, answer) in answers {
            let before = stored.get(&at).map(|stored| stored.offset);
            changes.push(change(at, &to, before, &answer?)?);
        }
        let event = Event::Reset {
            changes: changes.clone(),
            execute: of.execute,
        };
        self.shard.decide(&self.group, event).await?;
        Ok(response(&changes, &stored, &topics))
    }

    async fn stored_of(
        &self,
        topic: TopicId,
    ) -> Result<BTreeMap<TopicPartition, Committed>, Refusal> {
        let stored = self.read(move |_, group| {
            let all = group.state().offsets().iter();
            let of = all.filter(|(at, _)| at.topic_id == topic);
            of.map(|(at, stored)| (*at, stored.clone())).collect()
        });
        match stored.await {
            // A first reset makes the group.
            Err(refusal) if refusal.code == ErrorCode::UnknownGroup => Ok(BTreeMap::new()),
            other => other,
        }
    }
}

fn check(to: &To) -> Result<(), Refusal> {
    match to {
        To::Offset(offset) if *offset < 0 => Err(Refusal::invalid("to.offset", "negative")),
        To::TimestampMs(ms) if *ms < 0 => Err(Refusal::invalid("to.timestamp_ms", "negative")),
        To::Earliest(false) => Err(Refusal::invalid("to.earliest", "is false")),
        To::Latest(false) => Err(Refusal::invalid("to.latest", "is false")),
        _ => Ok(()),
    }
}

fn change(
    at: TopicPartition,
    to: &To,
    before: Option<Offset>,
    answer: &OffsetAnswer,
) -> Result<ResetChange, Refusal> {
    let bounds = answer.bounds.as_ref();
    let bounds = bounds.ok_or_else(|| Refusal::internal("the leader answered without bounds"))?;
    let to = match to {
        To::Earliest(_) => ResetTo::Earliest,
        To::Latest(_) => ResetTo::Latest,
        To::Offset(offset) => ResetTo::Offset(Offset(*offset)),
        To::Shift(by) => ResetTo::Shift(*by),
        To::TimestampMs(_) => ResetTo::Time(match answer.offset {
            Some(offset) => ResolvedTime::At(Offset(offset)),
            None => ResolvedTime::AfterTheLast,
        }),
    };
    let (log_start, high_watermark) = (bounds.log_start_offset, bounds.high_watermark);
    Ok(ResetChange {
        at,
        before,
        after: resolve_reset(to, before, Offset(log_start), Offset(high_watermark)),
        leader_epoch: LeaderEpoch::NONE,
    })
}

fn response(
    changes: &[ResetChange],
    stored: &BTreeMap<TopicPartition, Committed>,
    topics: &Topics,
) -> ResetOffsetsResponse {
    let nothing = Committed {
        offset: Offset(-1),
        leader_epoch: LeaderEpoch::NONE,
        metadata: String::new(),
        committed_at: TimestampMs::NONE,
        moved_at: TimestampMs::NONE,
    };
    let before = changes.iter().map(|change| {
        let stored = stored.get(&change.at).unwrap_or(&nothing);
        committed(change.at, stored, topics)
    });
    let after = changes.iter().map(|change| CommittedOffset {
        offset: change.after.0,
        ..committed(change.at, &nothing, topics)
    });
    ResetOffsetsResponse {
        before: before.collect(),
        after: after.collect(),
    }
}
