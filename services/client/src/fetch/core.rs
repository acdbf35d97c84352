//! A reader's partitions and streams: pure, no IO, no clock.
//!
//! Always true:
//! - each partition is on at most one stream; frames of another, or of before
//!   a seek, carry another token and are dropped;
//! - data comes in order and without gap: a partition that changes streams is
//!   asked for from the offset that is due;
//! - what is granted and not received is at most the target, or one largest
//!   batch per stream, whichever is more.
//!
//! A reader with a rack is moved from the leader, which says where it begins, to
//! an in-sync follower in its rack, and back when that one fails or leaves.
//!
//! A stream that drains keeps serving until its successor is open
//! (make-before-break) or until it ends.

mod near;
mod placing;

use super::event::{Data, FetchData, FetchEvent, Interest, StartAt};
use super::part::{Part, Place};
use super::source::Source;
use crate::delivery::{LinkId, Route, Routes, Target};
use std::collections::{BTreeMap, BTreeSet};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1::{self, fetch_request, fetch_response::Frame};
use talweg_types::{PartitionIndex, TopicId, TopicPartition, limits};

/// What the driver has to do, in this order.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Open a stream; its first frame follows as a `Send`.
    Open(LinkId, Target),
    Send(LinkId, fetch_request::Frame),
    /// Forget the stream.
    Close(LinkId),
}

/// What a reader wants on all its streams.
#[derive(Clone, Debug)]
pub struct FetchCoreConfig {
    pub client_id: String,
    pub form: v1::Form,
    pub isolation: v1::Isolation,
    pub rack: String,
    /// How long a partition may be without a leader before its reader is told.
    pub patience_ms: u64,
    /// UNKNOWN_TOPIC by a leader means that it has not heard of the topic yet.
    pub leaders_may_lag: bool,
}

/// A stream that says nothing for this long is given up.
const SILENCE_MS: u64 = 3 * limits::HEARTBEAT_MS_RANGE.1;

/// All partitions and streams of one reader.
pub struct FetchCore {
    config: FetchCoreConfig,
    parts: BTreeMap<TopicPartition, Part>,
    sources: BTreeMap<LinkId, Source>,
    current: BTreeMap<Target, LinkId>,
    /// When a target may be dialled again, and how often it failed.
    dials: BTreeMap<Target, (u64, u32)>,
    /// Partitions without a place.
    unplaced: BTreeSet<TopicPartition>,
    /// Partitions whose server may be nearer or farther than it could be.
    near_due: BTreeSet<TopicPartition>,
    /// Leaders may have changed since partitions were placed.
    leaders_due: bool,
    next_token: u64,
    next_link: u64,
    next_update: u64,
    target_bytes: i64,
    drained: Vec<Target>,
    effects: Vec<Effect>,
    events: Vec<FetchEvent>,
}

impl FetchCore {
    /// Without partitions.
    pub fn new(config: FetchCoreConfig) -> Self {
        Self {
            config,
            parts: BTreeMap::new(),
            sources: BTreeMap::new(),
            current: BTreeMap::new(),
            dials: BTreeMap::new(),
            unplaced: BTreeSet::new(),
            near_due: BTreeSet::new(),
            leaders_due: false,
            next_token: 1,
            next_link: 1,
            next_update: 1,
            target_bytes: 0,
            drained: Vec::new(),
            effects: Vec::new(),
            events: Vec::new(),
        }
    }

    fn token(&mut self) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        token
    }

    /// Begins to read a partition; one that is read already begins anew.
    pub fn add(&mut self, interest: Interest) {
        let partition = interest.partition;
        self.remove(partition);
        let token = self.token();
        self.parts.insert(partition, Part::new(interest, token));
        self.unplaced.insert(partition);
    }

    /// Moves a partition; unknown ones are ignored.
    pub fn seek(&mut self, partition: TopicPartition, start: StartAt, last_epoch: Option<i32>) {
        let token = self.token();
        let Some(part) = self.parts.get_mut(&partition) else {
            return;
        };
        part.seek(start, last_epoch, token);
        let place = part.place.clone();
        let request = part.request();
        match place {
            Place::On(link, _) => {
                let update = v1::FetchUpdate {
                    seek: vec![request],
                    ..Default::default()
                };
                self.update(link, update);
            }
            Place::Waiting => {
                self.unplaced.insert(partition);
            }
        }
    }

    /// Stops reading a partition; unknown ones are ignored.
    pub fn remove(&mut self, partition: TopicPartition) {
        self.unplaced.remove(&partition);
        let Some(part) = self.parts.remove(&partition) else {
            return;
        };
        if let Place::On(link, _) = part.place {
            let update = v1::FetchUpdate {
                remove: vec![part.request()],
                ..Default::default()
            };
            self.update(link, update);
        }
    }

    /// True if the partition is being read.
    pub fn contains(&self, partition: TopicPartition) -> bool {
        self.parts.contains_key(&partition)
    }

    /// Partitions being read, in order.
    pub fn partitions(&self) -> impl Iterator<Item = TopicPartition> + '_ {
        self.parts.keys().copied()
    }

    /// How many bytes may be on their way here; at zero or below nothing is granted.
    pub fn set_target(&mut self, bytes: i64) {
        self.target_bytes = bytes;
    }

    /// The largest batch that may come.
    pub fn largest_batch(&self) -> i64 {
        let largest = self
            .parts
            .values()
            .map(|part| part.interest.largest_batch)
            .max();
        i64::from(largest.unwrap_or(limits::MAX_MESSAGE_BYTES_DEFAULT))
    }

    fn update(&mut self, link: LinkId, mut update: v1::FetchUpdate) {
        update.update_id = self.next_update;
        self.next_update += 1;
        self.effects
            .push(Effect::Send(link, fetch_request::Frame::Update(update)));
    }

    /// Leaders may have changed.
    pub fn on_routes_changed(&mut self) {
        self.leaders_due = true;
        for (partition, part) in &mut self.parts {
            part.retry_at = 0;
            if part.place == Place::Waiting {
                self.unplaced.insert(*partition);
            } else if !self.config.rack.is_empty() {
                self.near_due.insert(*partition);
            }
        }
    }

    /// A frame came.
    pub fn on_frame(&mut self, link: LinkId, frame: Frame, now: u64) {
        let Some(source) = self.sources.get_mut(&link) else {
            return;
        };
        source.heard_ms = now;
        match frame {
            Frame::Opened(_) => {
                source.opened = true;
                let target = source.target.clone();
                self.dials.remove(&target);
            }
            Frame::Batches(it) => {
                let data = Data::Batches {
                    first_offset: it.first_offset,
                    bytes: it.batches,
                };
                self.on_data(link, it.position.unwrap_or_default(), data);
            }
            Frame::Records(it) => {
                self.on_data(
                    link,
                    it.position.unwrap_or_default(),
                    Data::Records(it.records),
                );
            }
            Frame::Positions(it) => it.positions.into_iter().for_each(|at| self.on_position(at)),
            Frame::Updated(it) => it.positions.into_iter().for_each(|at| self.on_position(at)),
            Frame::PartitionError(it) => self.on_partition_error(it, now),
            Frame::Drain(_) => self.on_drain(link),
            Frame::Throttle(_) | Frame::Closing(_) => {}
        }
    }

    fn part_of(&mut self, position: &v1::PartitionPosition) -> Option<&mut Part> {
        let key = key_of(&position.topic_id, position.partition)?;
        self.parts
            .get_mut(&key)
            .filter(|part| part.token == position.generation)
    }

    fn on_data(&mut self, link: LinkId, position: v1::PartitionPosition, data: Data) {
        let Some(key) = key_of(&position.topic_id, position.partition) else {
            return;
        };
        let mut data = FetchData::new(key, position, data);
        if let Some(source) = self.sources.get_mut(&link) {
            source.on_payload(data.payload_bytes, data.records);
        }
        let Some(part) = self.part_of(&data.position) else {
            return;
        };
        part.raise(&mut data.position);
        part.on_progress(&data.position);
        if let Some(epoch) = data.last_epoch {
            part.interest.last_epoch = Some(epoch);
        }
        if !std::mem::replace(&mut part.started, true) {
            let next_offset = data.first_offset().unwrap_or(data.position.next_offset);
            let begin = v1::PartitionPosition {
                next_offset,
                ..data.position.clone()
            };
            self.events.push(FetchEvent::Started(begin));
            self.look_near(key);
        }
        self.events.push(FetchEvent::Data(data));
    }

    /// As if a frame of this payload had come.
    #[cfg(test)]
    pub(super) fn on_payload_for_test(&mut self, link: LinkId, bytes: i64) {
        if let Some(source) = self.sources.get_mut(&link) {
            source.on_payload(bytes, 1);
        }
    }

    fn on_position(&mut self, mut position: v1::PartitionPosition) {
        let Some(part) = self.part_of(&position) else {
            return;
        };
        part.raise(&mut position);
        part.on_progress(&position);
        let first = !std::mem::replace(&mut part.started, true);
        let partition = part.interest.partition;
        if first {
            self.look_near(partition);
        }
        self.events.push(match first {
            true => FetchEvent::Started(position),
            false => FetchEvent::Position(position),
        });
    }

    fn on_partition_error(&mut self, error: v1::FetchPartitionError, now: u64) {
        let refusal = Refusal::from_detail(error.error.unwrap_or_default());
        let key = key_of(&error.topic_id, error.partition);
        let is_it = |part: &&Part| part.token == error.generation;
        // A leader that does not know the topic may not be able to name its id.
        let found = match key {
            Some(key) => self.parts.get(&key).filter(is_it),
            None => self.parts.values().find(is_it),
        };
        let Some(partition) = found.map(|part| part.interest.partition) else {
            return;
        };
        if self.leave_near(partition, now) {
            return;
        }
        let lagging = self.config.leaders_may_lag
            && matches!(
                refusal.code,
                ErrorCode::UnknownTopic | ErrorCode::UnknownPartition
            );
        if refusal.is_retriable() || lagging {
            self.fail(partition, refusal, now);
        } else {
            self.stop(partition, refusal);
        }
    }

    /// For now nobody serves it.
    fn fail(&mut self, partition: TopicPartition, refusal: Refusal, now: u64) {
        let patience = self.config.patience_ms;
        let Some(part) = self.parts.get_mut(&partition) else {
            return;
        };
        match part.on_failure(refusal, now, patience) {
            Some(refusal) => self.stop(partition, refusal),
            None => drop(self.unplaced.insert(partition)),
        }
    }

    fn stop(&mut self, partition: TopicPartition, refusal: Refusal) {
        self.parts.remove(&partition);
        self.unplaced.remove(&partition);
        self.events.push(FetchEvent::Stopped { partition, refusal });
    }

    /// The stream goes on until a successor is open.
    fn on_drain(&mut self, link: LinkId) {
        if let Some(source) = self.sources.get_mut(&link) {
            source.draining = true;
            let target = source.target.clone();
            self.current.remove(&target);
            self.drained.push(target);
            for (partition, part) in &self.parts {
                if matches!(&part.place, Place::On(on, _) if *on == link) {
                    self.unplaced.insert(*partition);
                }
            }
        }
    }

    /// Draining streams that no partition is on any more are closed.
    fn leave_drained(&mut self) {
        let used: BTreeSet<LinkId> = self
            .parts
            .values()
            .filter_map(|part| match part.place {
                Place::On(link, _) => Some(link),
                Place::Waiting => None,
            })
            .collect();
        let left: Vec<LinkId> = self
            .sources
            .values()
            .filter(|source| source.draining && !used.contains(&source.id))
            .map(|source| source.id)
            .collect();
        for link in left {
            self.sources.remove(&link);
            self.effects.push(Effect::Close(link));
        }
    }

    /// A stream ended: `None` is OK.
    pub fn on_ended(&mut self, link: LinkId, refusal: Option<Refusal>, now: u64) {
        let Some(source) = self.sources.remove(&link) else {
            return;
        };
        if self.current.get(&source.target) == Some(&link) {
            self.current.remove(&source.target);
        }
        let (_, failures) = self.dials.get(&source.target).copied().unwrap_or_default();
        let advice = refusal
            .as_ref()
            .map_or(0, |it| u64::from(it.retry_after_ms));
        let pause = (20_u64 << failures.min(6)).min(1_000).max(advice);
        self.dials.insert(
            source.target.clone(),
            (now + pause, failures.saturating_add(1)),
        );
        let refusal =
            refusal.unwrap_or_else(|| Refusal::unavailable("the server closed the stream"));
        let here: Vec<TopicPartition> = self
            .parts
            .values()
            .filter(|part| matches!(&part.place, Place::On(on, _) if *on == link))
            .map(|part| part.interest.partition)
            .collect();
        for partition in here {
            if !self.leave_near(partition, now) {
                self.fail(partition, refusal.clone(), now);
            }
        }
    }

    /// Ends what is silent or failed for too long; says that we live.
    pub fn tick(&mut self, now: u64) {
        let patience = self.config.patience_ms;
        let over: Vec<(TopicPartition, Refusal)> = self
            .parts
            .iter()
            .filter_map(|(key, part)| Some((*key, part.out_of_patience(now, patience)?)))
            .collect();
        for (partition, refusal) in over {
            self.stop(partition, refusal);
        }
        let silent = |it: &&Source| now.saturating_sub(it.heard_ms) > SILENCE_MS;
        let silent: Vec<LinkId> = self
            .sources
            .values()
            .filter(silent)
            .map(|it| it.id)
            .collect();
        for link in silent {
            self.effects.push(Effect::Close(link));
            self.on_ended(
                link,
                Some(Refusal::unavailable("the stream is silent")),
                now,
            );
        }
        self.look_near_again(now);
        for source in self.sources.values_mut() {
            if source.opened && now.saturating_sub(source.said_ms) > limits::HEARTBEAT_MS_RANGE.0 {
                source.said_ms = now;
                let beat = fetch_request::Frame::Heartbeat(v1::Heartbeat::default());
                self.effects.push(Effect::Send(source.id, beat));
            }
        }
        self.leave_drained();
    }

    /// Targets that asked us to leave since the last call.
    pub fn take_drained(&mut self) -> Vec<Target> {
        std::mem::take(&mut self.drained)
    }

    /// True if anything waits for time to pass.
    pub fn is_restless(&self) -> bool {
        !self.unplaced.is_empty()
    }

    /// True without any stream.
    pub fn has_no_streams(&self) -> bool {
        self.sources.is_empty()
    }

    /// What the driver has to do.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// What the caller has to know.
    pub fn take_events(&mut self) -> Vec<FetchEvent> {
        std::mem::take(&mut self.events)
    }
}

fn key_of(topic_id: &[u8], partition: u32) -> Option<TopicPartition> {
    let topic_id = TopicId::from_slice(topic_id)?;
    Some(TopicPartition {
        topic_id,
        partition: PartitionIndex(partition),
    })
}
