//! The coordinator's word about what the member holds.

use super::{
    Core, Part, Request,
    fault::{Fault, planted},
};
use crate::groups::{id_bytes, partition_at};
use std::collections::BTreeMap;
use talweg_client::fetch::StartAt;
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    coordinator::v1::{AssignedPartition, DeliveryMode, MemberRemoved, MemberView, RemovalReason},
    v1::{self, subscribe_response::Frame},
};
use talweg_types::TopicPartition;

impl Core {
    pub(super) fn on_view(&mut self, view: &MemberView) {
        let order = (view.shard_epoch, view.sequence);
        if order < self.seen && !planted(Fault::OldViewTaken) {
            return;
        }
        self.seen = order;
        self.epoch = self.epoch.max(view.member_epoch);
        let given: BTreeMap<TopicPartition, &AssignedPartition> = view
            .assigned
            .iter()
            .filter_map(|it| Some((partition_at(&it.topic_id, it.partition)?, it)))
            .collect();
        let revoking: Vec<TopicPartition> = view
            .revoking
            .iter()
            .filter_map(|it| partition_at(&it.topic_id, it.partition))
            .collect();
        self.take_gone(|at| given.contains_key(&at) || revoking.contains(&at));
        self.ask_back(&revoking, view.revoke_within_ms);
        let rejoined = std::mem::take(&mut self.rejoining) && self.was_rejoined(view);
        self.give(&given, rejoined);
    }

    /// A view of before our join does not answer it.
    fn was_rejoined(&mut self, view: &MemberView) -> bool {
        let attached = view
            .assigned
            .iter()
            .all(|it| it.given_epoch == view.member_epoch);
        // Not the answer yet: go on waiting for it.
        self.rejoining = !attached && self.asked.is_some();
        attached
    }

    /// Partitions that the view does not know any more.
    fn take_gone(&mut self, known: impl Fn(TopicPartition) -> bool) {
        let gone: Vec<TopicPartition> = self
            .parts
            .keys()
            .copied()
            .filter(|at| !known(*at))
            .collect();
        let mut untold = Vec::new();
        for at in gone {
            let Some(part) = self.parts.remove(&at) else {
                continue;
            };
            self.generations.insert(at, part.generation);
            if part.reading {
                self.effects.push(super::Effect::Stop(at));
            }
            if !part.revoking {
                untold.push(position(at));
            }
        }
        // Taken without being asked back: its topic is gone, or its time was over.
        if !untold.is_empty() {
            self.tell(Frame::Revoking(v1::SubscribeRevoking {
                partitions: untold,
                deadline_ms: 0,
            }));
        }
    }

    fn ask_back(&mut self, revoking: &[TopicPartition], within_ms: u64) {
        let mut fresh = Vec::new();
        for at in revoking {
            let Some(part) = self.parts.get_mut(at) else {
                // Of an earlier life, and nothing of it is in this client's hands.
                let mut gone = Part::given(
                    (self.names)(*at),
                    &AssignedPartition::default(),
                    StartAt::Latest,
                    self.now,
                );
                (gone.revoking, gone.given_up) = (true, true);
                self.parts.insert(*at, gone);
                continue;
            };
            if !part.revoking {
                part.revoking = true;
                fresh.push(position(*at));
            }
        }
        if !fresh.is_empty() {
            self.tell(Frame::Revoking(v1::SubscribeRevoking {
                partitions: fresh,
                deadline_ms: u32::try_from(within_ms).unwrap_or(u32::MAX),
            }));
        }
    }

    fn give(&mut self, given: &BTreeMap<TopicPartition, &AssignedPartition>, rejoined: bool) {
        let mut fresh = Vec::new();
        for (at, given) in given {
            match self.parts.get_mut(at) {
                Some(part) if !part.revoking && part.continues(given, rejoined) => {
                    part.given_epoch = given.given_epoch;
                }
                Some(_) | None => fresh.push(self.give_one(*at, given)),
            }
            self.set_mode(*at, given);
        }
        if !fresh.is_empty() {
            let member_epoch = self.epoch;
            self.tell(Frame::Assigned(v1::SubscribeAssigned {
                member_epoch,
                partitions: fresh,
            }));
        }
        self.refuse_unplaced(given);
    }

    fn give_one(&mut self, at: TopicPartition, given: &AssignedPartition) -> v1::PartitionPosition {
        let policy = match self.config.policy {
            v1::ResetPolicy::Latest => StartAt::Latest,
            _ => StartAt::Earliest,
        };
        let before = self.parts.remove(&at);
        if before.as_ref().is_some_and(|part| part.reading) {
            self.effects.push(super::Effect::Stop(at));
        }
        let before = before.map_or(0, |part| part.generation);
        let before = before.max(self.generations.remove(&at).unwrap_or(0));
        let mut part = Part::given((self.names)(at), given, policy, self.now);
        part.generation = before + 1;
        part.first_generation = part.generation;
        part.moved_generation = part.generation;
        let position = v1::PartitionPosition {
            topic_id: id_bytes(at.topic_id),
            topic: part.topic.to_string(),
            partition: at.partition.0,
            // By the reset policy; a `positions` frame says where that is.
            next_offset: given.next_offset.unwrap_or(-1),
            generation: part.generation,
            leader_epoch: -1,
            ..Default::default()
        };
        self.parts.insert(at, part);
        position
    }

    /// Nothing is stored, and the policy is to refuse then.
    fn refuse_unplaced(&mut self, given: &BTreeMap<TopicPartition, &AssignedPartition>) {
        if self.config.policy != v1::ResetPolicy::None {
            return;
        }
        for at in given.keys() {
            let unplaced = |part: &&mut Part| part.next.is_none() && part.hold.is_none();
            let Some(part) = self.parts.get_mut(at).filter(unplaced) else {
                continue;
            };
            part.hold = Some(super::Hold::Sought);
            let refusal = Refusal::new(
                ErrorCode::OffsetOutOfRange,
                "no offset is stored for this partition and the reset policy is none; seek to begin",
            );
            self.tell_refused(*at, &refusal);
        }
    }

    fn set_mode(&mut self, at: TopicPartition, given: &AssignedPartition) {
        let Some(part) = self.parts.get_mut(&at) else {
            return;
        };
        let mode = DeliveryMode::try_from(given.delivery).unwrap_or(DeliveryMode::Unspecified);
        let paused = mode == DeliveryMode::Paused && part.mode != mode;
        if mode != DeliveryMode::DeadLetter || given.next_offset == part.next {
            part.buried = false;
        }
        part.mode = mode;
        part.lost = given.attempts;
        part.reason.clone_from(&given.reason);
        if mode != DeliveryMode::OneByOne && part.hold == Some(super::Hold::Passed) {
            part.hold = None;
        }
        if paused {
            let why = format!(
                "members were lost {} times at the next record ({}); nothing is sent until a seek or a reset",
                given.attempts, given.reason
            );
            self.tell_refused(at, &Refusal::new(ErrorCode::PartitionPaused, why));
        }
    }

    pub(super) fn on_removed(&mut self, removed: &MemberRemoved) {
        let why = match RemovalReason::try_from(removed.reason) {
            Ok(RemovalReason::Left) => return self.end(None, "the member left"),
            Ok(RemovalReason::SessionExpired) => "the member was silent for its session time-out",
            Ok(RemovalReason::Overran) => "the member's processing time was over; join again",
            Ok(RemovalReason::Replaced) => "another stream has taken this member's place",
            Ok(RemovalReason::Unspecified) | Err(_) => "the member is out of the group",
        };
        self.end(Some(Refusal::new(ErrorCode::Fenced, why)), why);
    }

    /// Tells the coordinator what was given up, once nothing of it is left to store.
    pub(super) fn confirm_revoked(&mut self) {
        let storing = self.storing();
        let ready = self.parts.iter_mut().filter(|(at, part)| {
            let idle = part.given_up || part.spans.is_empty();
            let stored = part.want.is_none() && !storing.contains(at);
            let stored = stored || planted(Fault::GivenUpUnstored);
            part.revoking && !part.confirmed && idle && stored && !part.is_copying()
        });
        let mut done = Vec::new();
        for (at, part) in ready {
            part.confirmed = true;
            done.push(*at);
        }
        if !done.is_empty() {
            self.queue.push_back(Request::Revoked(done));
        }
    }
}

impl Part {
    /// The same ownership as before: reading goes on.
    fn continues(&self, given: &AssignedPartition, rejoined: bool) -> bool {
        if given.given_epoch <= self.given_epoch {
            return true;
        }
        // Our own join gives everything anew; where someone else has stored an
        // offset meanwhile, it was in other hands.
        rejoined && given.next_offset == self.committed
    }
}

fn position(at: TopicPartition) -> v1::SubscribePosition {
    v1::SubscribePosition {
        topic_id: id_bytes(at.topic_id),
        partition: at.partition.0,
        ..Default::default()
    }
}
