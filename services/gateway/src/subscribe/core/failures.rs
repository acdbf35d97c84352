//! Records that failed, and partitions that leaders serve no more.

use super::{
    Core, Effect, Hold,
    client::not_owned,
    fault::{Fault, planted},
    part::{Failed, Want},
};
use crate::groups::{id_bytes, partition_at};
use talweg_client::fetch::StartAt;
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    coordinator::v1::DeliveryMode,
    v1::{self, error_detail::Details, subscribe_response::Frame},
};
use talweg_types::{TopicPartition, limits};

/// Why there is a gap.
pub const RECORDS_GONE: &str = "retention or a deletion of records passed the position";
/// A partition whose leader is out of reach for longer than patience lasts.
const LEADERLESS_MS: u64 = 1_000;
/// A dead letter that could not be copied.
const BURY_AGAIN_MS: u64 = 5_000;

/// Where a failed record goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// The retry topic that its attempts so far say, or the dead-letter topic
    /// after the last.
    Retry,
    /// With this many attempts.
    DeadLetters(u32),
}

/// A failed record, to be copied.
#[derive(Clone, PartialEq, Debug)]
pub struct Copy {
    pub at: TopicPartition,
    pub generation: u64,
    /// The record; or the first one from here on.
    pub start: StartAt,
    /// The record at `start` and no other: the member had it and says that it failed.
    pub exact: bool,
    pub to: Destination,
    pub reason: String,
}

impl Core {
    pub(super) fn on_nack(&mut self, nack: v1::SubscribeNack) {
        self.passes = true;
        let record = nack.record.clone().unwrap_or_default();
        let Some(at) = partition_at(&record.topic_id, record.partition) else {
            let refusal = Refusal::invalid("nack.record.topic_id", "16 bytes are needed");
            return self.tell_refused_frame(&refusal);
        };
        if let Err(refusal) = self.fail(at, record.offset, nack) {
            self.tell_refused(at, &refusal);
        }
    }

    fn fail(
        &mut self,
        at: TopicPartition,
        offset: i64,
        nack: v1::SubscribeNack,
    ) -> Result<(), Refusal> {
        let max = limits::FAILURE_REASON_BYTES_MAX;
        if nack.reason.len() > max {
            let why = format!("has {} bytes, at most {max} are kept", nack.reason.len());
            return Err(Refusal::invalid("nack.reason", why));
        }
        let copying: usize = self.parts.values().map(|part| part.failed.len()).sum();
        if copying >= limits::FAILED_RECORDS_MAX {
            let max = limits::FAILED_RECORDS_MAX;
            let why = format!("{max} failed records of this stream are not passed yet");
            return Err(Refusal::new(ErrorCode::Throttled, why).retry_after(100));
        }
        let (now, config) = (self.now, &self.config);
        let part = self.parts.get_mut(&at).ok_or_else(|| not_owned(at))?;
        if part.failed.contains_key(&offset) {
            return Ok(());
        }
        if !part.spans.contains(offset) {
            let why = format!("record {offset} was not sent, or is passed already");
            return Err(Refusal::invalid("nack.record.offset", why));
        }
        part.active_ms = now;
        let mut to = Destination::Retry;
        if config.block {
            let tried = part.attempts.entry(offset).or_insert(0);
            *tried += 1;
            let tried = *tried;
            if !nack.poison && tried < config.max_attempts {
                let step = usize::try_from(tried - 1).unwrap_or(usize::MAX);
                let wait = config.backoff_ms.get(step).or(config.backoff_ms.last());
                if part.reading {
                    self.effects.push(Effect::Stop(at));
                }
                part.rewind(offset);
                let wait = u64::from(wait.copied().unwrap_or(0));
                part.hold = Some(Hold::Until(now.saturating_add(wait)));
                return Ok(());
            }
            if config.no_dead_letters {
                part.failed.insert(offset, Failed::Stuck);
                part.hold = Some(Hold::Sought);
                let why = format!("record {offset} failed {tried} times; seek to it, or past it");
                return Err(Refusal::new(ErrorCode::PartitionPaused, why));
            }
            to = Destination::DeadLetters(tried);
        } else if nack.poison && !config.no_dead_letters {
            // The copier adds what the record's headers say.
            to = Destination::DeadLetters(0);
        }
        let begins = if planted(Fault::PassedBeforeCopied) {
            Failed::Copied
        } else {
            Failed::Copying
        };
        part.failed.insert(offset, begins);
        let generation = part.generation;
        self.effects.push(Effect::Copy(Copy {
            at,
            generation,
            start: StartAt::Offset(offset),
            exact: true,
            to,
            reason: nack.reason,
        }));
        Ok(())
    }

    pub(super) fn on_copied(&mut self, copy: &Copy, result: Result<i64, Refusal>) {
        let now = self.now;
        let commit = self.config.commit_on_ack;
        let part = self.parts.get_mut(&copy.at);
        // A copy of a record below a place that was gone back to is still wanted.
        let wanted = |part: &&mut super::Part| {
            let offset = match copy.start {
                StartAt::Offset(offset) => part.failed.get(&offset),
                _ => None,
            };
            let waits = offset == Some(&Failed::Copying);
            part.generation == copy.generation
                || (waits && copy.generation >= part.first_generation)
        };
        let Some(part) = part.filter(wanted) else {
            return;
        };
        if part.hold == Some(Hold::Copying) {
            return self.on_buried(copy.at, result);
        }
        let StartAt::Offset(offset) = copy.start else {
            return;
        };
        match result {
            Ok(_) => {
                part.failed.insert(offset, Failed::Copied);
                if part.done.is_some_and(|done| offset < done) {
                    part.failed.remove(&offset);
                }
                part.pass_copied(now);
                if commit {
                    part.want_done(String::new());
                }
            }
            Err(refusal) => {
                part.failed.insert(offset, Failed::Stuck);
                part.hold = Some(Hold::Sought);
                self.tell_refused(copy.at, &refusal);
            }
        }
    }

    /// The record that kills its readers is a dead letter now, or not.
    fn on_buried(&mut self, at: TopicPartition, result: Result<i64, Refusal>) {
        let now = self.now;
        let Some(part) = self.parts.get_mut(&at) else {
            return;
        };
        match result {
            Ok(next) => {
                part.hold = None;
                part.buried = true;
                part.advance_to(next);
                part.pass(next, now);
                part.want = Some(Want {
                    offset: next,
                    metadata: String::new(),
                });
            }
            Err(refusal) => {
                if let Some(bounds) = out_of_range(&refusal) {
                    // Nothing of it is left to bury; what lies behind it is not deadly.
                    part.hold = None;
                    part.buried = part.next.is_none_or(|it| it <= bounds.high_watermark);
                    return self.on_out_of_range(at, &bounds, refusal);
                }
                part.hold = Some(Hold::Until(now.saturating_add(BURY_AGAIN_MS)));
                self.tell_refused(at, &refusal);
            }
        }
    }

    /// Records that killed too many members go to the dead-letter topic unread.
    pub(super) fn start_dead_letters(&mut self) {
        for (at, part) in &mut self.parts {
            let due = part.mode == DeliveryMode::DeadLetter
                && part.hold.is_none()
                && !part.buried
                && !part.revoking;
            if !due {
                continue;
            }
            part.hold = Some(Hold::Copying);
            self.effects.push(Effect::Copy(Copy {
                at: *at,
                generation: part.generation,
                start: part.start,
                exact: false,
                to: Destination::DeadLetters(part.lost),
                reason: part.reason.clone(),
            }));
        }
    }

    /// Leaders serve the partition no more from where it stands.
    pub(super) fn on_stopped(&mut self, at: TopicPartition, refusal: Refusal) {
        let now = self.now;
        let Some(part) = self.parts.get_mut(&at).filter(|part| part.reading) else {
            return;
        };
        part.reading = false;
        let fresh_seek = part.sought && part.spans.is_empty() && part.next == part.done;
        if let Some(bounds) = out_of_range(&refusal).filter(|_| !fresh_seek) {
            return self.on_out_of_range(at, &bounds, refusal);
        }
        if let Some(Details::Truncation(end)) = &refusal.details {
            let end = end.end_offset;
            let why = "the log was cut back by an unclean election";
            return self.go_back(at, end, why);
        }
        let passing = refusal.is_retriable();
        part.hold = Some(if passing {
            Hold::Until(now.saturating_add(LEADERLESS_MS))
        } else {
            Hold::Sought
        });
        self.tell_refused(at, &refusal);
    }

    fn on_out_of_range(&mut self, at: TopicPartition, bounds: &v1::OffsetBounds, refusal: Refusal) {
        let policy = self.config.policy;
        let Some(part) = self.parts.get_mut(&at) else {
            return;
        };
        let from = part.next.unwrap_or(0);
        if policy == v1::ResetPolicy::None {
            part.hold = Some(Hold::Sought);
            return self.tell_refused(at, &refusal);
        }
        if from > bounds.high_watermark {
            let why = "the log ends below the stored offset";
            return self.go_back(at, bounds.high_watermark, why);
        }
        let to = match policy {
            v1::ResetPolicy::Latest => bounds.high_watermark,
            _ => bounds.log_start_offset,
        };
        part.advance_to(to);
        part.unsaved = true;
        let unstored = planted(Fault::BeginsUnstored);
        part.end_chosen = Some(to).filter(|_| policy == v1::ResetPolicy::Latest && !unstored);
        if planted(Fault::GapUntold) {
            return;
        }
        self.tell(Frame::Gap(v1::SubscribeGap {
            topic_id: id_bytes(at.topic_id),
            partition: at.partition.0,
            from_offset: from,
            to_offset: to,
            records_lost: to.saturating_sub(from),
            reason: RECORDS_GONE.into(),
        }));
    }

    /// The log is shorter than what was read of it.
    fn go_back(&mut self, at: TopicPartition, to: i64, why: &str) {
        let Some(part) = self.parts.get_mut(&at) else {
            return;
        };
        part.rewind(to);
        part.spans.forget_epochs();
        part.sought = true;
        self.tell(Frame::Gap(v1::SubscribeGap {
            topic_id: id_bytes(at.topic_id),
            partition: at.partition.0,
            from_offset: to,
            to_offset: to,
            records_lost: 0,
            reason: why.into(),
        }));
    }
}

/// The bounds of a log that does not have the offset.
fn out_of_range(refusal: &Refusal) -> Option<v1::OffsetBounds> {
    match &refusal.details {
        Some(Details::Bounds(bounds)) if refusal.code == ErrorCode::OffsetOutOfRange => {
            Some(*bounds)
        }
        _ => None,
    }
}
