//! The client's frames.

use super::{
    Ask, Core, Effect, Hold, Part, Request,
    commits::{Item, Waiting},
    fault::{Fault, planted},
    part::Want,
};
use crate::groups::partition_at;
use talweg_client::fetch::StartAt;
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    coordinator::v1::DeliveryMode,
    v1::{self, SubscribePosition, subscribe_response::Frame},
};
use talweg_types::{TopicPartition, limits};

/// A leave waits this long for copies of failed records.
const LEAVE_MS: u64 = 30_000;

impl Core {
    pub(super) fn on_client(&mut self, frame: Ask) {
        self.heard_ms = self.now;
        match frame {
            Ask::Ack(ack) => self.on_ack(ack.next),
            Ask::Commit(commit) => self.on_commit(commit),
            Ask::Nack(nack) => self.on_nack(nack),
            Ask::Pause(pause) => self.pause(&pause.partitions, true),
            Ask::Resume(resume) => self.pause(&resume.partitions, false),
            Ask::Seek(seek) => self.on_seek(&seek.next),
            Ask::Revoked(revoked) => self.on_revoked(&revoked.partitions),
            Ask::Leave(_) => self.on_leave(),
            Ask::Credentials(_) => {
                let refusal =
                    Refusal::not_built("Refreshed credentials are not built in this version.");
                self.tell_refused_frame(&refusal);
            }
            // The stream's, or a sign of life and no more.
            Ask::Heartbeat(_) | Ask::Credit(_) | Ask::Open(_) => {}
        }
    }

    fn on_ack(&mut self, positions: Vec<SubscribePosition>) {
        self.passes = true;
        if let Err(refusal) = check_count("ack.next", positions.len()) {
            return self.tell_refused_frame(&refusal);
        }
        let now = self.now;
        let commit = self.config.commit_on_ack;
        for position in positions {
            let Some(at) = self.located(&position) else {
                continue;
            };
            let checked = self.passable(at, &position);
            let part = self.parts.get_mut(&at);
            match (checked, part) {
                (Ok(()), Some(part)) => {
                    part.pass(position.offset, now);
                    if commit {
                        part.want_done(position.metadata);
                    }
                }
                (Err(refusal), _) => self.tell_refused(at, &refusal),
                (Ok(()), None) => {}
            }
        }
    }

    fn on_commit(&mut self, commit: v1::SubscribeCommit) {
        self.passes = true;
        let items = match self.checked(commit.next) {
            Ok(items) => items,
            Err(refusal) => return self.refuse_commit(commit.commit_id, &refusal),
        };
        let now = self.now;
        for item in &items {
            if let Some(part) = self.parts.get_mut(&item.at) {
                part.pass(item.offset, now);
            }
        }
        self.queue_commit(Waiting {
            id: commit.commit_id,
            items,
        });
    }

    /// All of a commit, or why nothing of it is stored.
    fn checked(&self, positions: Vec<SubscribePosition>) -> Result<Vec<Item>, Refusal> {
        check_count("commit.next", positions.len())?;
        let mut items = Vec::with_capacity(positions.len());
        for position in positions {
            let at = locate(&position)?;
            self.passable(at, &position)?;
            let part = self.parts.get(&at);
            let generation = part.map_or(0, |part| part.generation);
            let below = part.and_then(|it| it.below_stored(at, position.offset, generation));
            if let Some(refusal) = below {
                return Err(refusal);
            }
            items.push(Item {
                at,
                offset: position.offset,
                metadata: position.metadata,
                generation,
            });
        }
        Ok(items)
    }

    /// It is ours, and everything below was sent.
    fn passable(&self, at: TopicPartition, position: &SubscribePosition) -> Result<(), Refusal> {
        let bytes = position.metadata.len();
        if bytes > limits::COMMIT_METADATA_BYTES_MAX {
            let max = limits::COMMIT_METADATA_BYTES_MAX;
            let why = format!("metadata has {bytes} bytes, at most {max} are stored");
            return Err(Refusal::new(ErrorCode::LimitExceeded, why).with_limit(
                "metadata",
                max as u64,
                bytes as u64,
                "bytes",
            ));
        }
        let part = self.parts.get(&at).ok_or_else(|| not_owned(at))?;
        let low = part.committed.unwrap_or(0);
        let Some(sent) = part.next else {
            let why = format!("nothing of partition {} is sent yet", at.partition);
            return Err(Refusal::new(ErrorCode::OffsetOutOfRange, why).with_bounds(low, low));
        };
        let unchecked = planted(Fault::UnsentStored);
        if unchecked || (0..=sent).contains(&position.offset) {
            return Ok(());
        }
        let why = format!(
            "offset {} of partition {} is beyond {sent}, the next that is sent",
            position.offset, at.partition
        );
        Err(Refusal::new(ErrorCode::OffsetOutOfRange, why).with_bounds(low, sent))
    }

    fn pause(&mut self, partitions: &[SubscribePosition], paused: bool) {
        for position in partitions {
            let Some(at) = self.located(position) else {
                continue;
            };
            match self.parts.get_mut(&at) {
                Some(part) => part.paused = paused,
                None => self.tell_refused(at, &not_owned(at)),
            }
        }
    }

    fn on_seek(&mut self, positions: &[SubscribePosition]) {
        for position in positions {
            let Some(at) = self.located(position) else {
                continue;
            };
            let part = self.parts.get_mut(&at).filter(|part| !part.revoking);
            let Some(part) = part else {
                self.tell_refused(at, &not_owned(at));
                continue;
            };
            if position.offset < 0 {
                let refusal = Refusal::invalid("seek.next.offset", "is negative");
                self.tell_refused(at, &refusal);
                continue;
            }
            if part.reading {
                self.effects.push(Effect::Stop(at));
            }
            part.seek(position.offset);
        }
    }

    fn on_revoked(&mut self, partitions: &[SubscribePosition]) {
        for position in partitions {
            let Some(at) = self.located(position) else {
                continue;
            };
            // One that is gone was taken while this was on its way.
            let Some(part) = self.parts.get_mut(&at) else {
                continue;
            };
            if part.revoking {
                part.given_up = true;
            } else {
                let refusal = Refusal::invalid("revoked.partitions", "it was not asked back");
                self.tell_refused(at, &refusal);
            }
        }
    }

    fn on_leave(&mut self) {
        if self.leaving {
            return;
        }
        self.leaving = true;
        self.leave_by_ms = self.now.saturating_add(LEAVE_MS);
        for part in self.parts.values_mut() {
            part.hold = Some(Hold::Sought);
        }
        self.queue.push_back(Request::Leave);
    }

    /// The partition, or a refusal to the client.
    fn located(&mut self, position: &SubscribePosition) -> Option<TopicPartition> {
        let located = locate(position);
        if let Err(refusal) = &located {
            self.tell_refused_frame(refusal);
        }
        located.ok()
    }

    /// A frame that names no partition of ours was refused.
    pub(super) fn tell_refused_frame(&mut self, refusal: &Refusal) {
        self.tell(Frame::PartitionError(v1::FetchPartitionError {
            error: Some(refusal.detail()),
            ..Default::default()
        }));
    }
}

impl Part {
    fn seek(&mut self, offset: i64) {
        // A seek says "try again": what stopped the partition is over, and the
        // coordinator, which counts lost members, must hear of it.
        let told = matches!(self.mode, DeliveryMode::Paused | DeliveryMode::DeadLetter);
        self.move_to(StartAt::Offset(offset));
        self.attempts.clear();
        self.sought = true;
        self.unproven = true;
        self.buried = false;
        if told {
            self.want = Some(Want {
                offset,
                metadata: String::new(),
            });
        }
    }
}

pub(super) fn not_owned(at: TopicPartition) -> Refusal {
    let why = format!("partition {} is not in this member's hands", at.partition);
    Refusal::new(ErrorCode::Fenced, why)
}

fn locate(position: &SubscribePosition) -> Result<TopicPartition, Refusal> {
    partition_at(&position.topic_id, position.partition).ok_or_else(|| {
        let bytes = position.topic_id.len();
        Refusal::invalid("topic_id", format!("has {bytes} bytes, 16 are needed"))
    })
}

fn check_count(field: &str, count: usize) -> Result<(), Refusal> {
    let max = limits::COMMIT_OFFSETS_MAX;
    if count <= max {
        return Ok(());
    }
    let why = format!("{field} has {count} offsets, at most {max} are allowed");
    Err(Refusal::new(ErrorCode::LimitExceeded, why).with_limit(
        field,
        max as u64,
        count as u64,
        "offsets",
    ))
}
