//! What is stored: explicit commits in order, acknowledgements as they add up.

use super::{
    Answer, Asked, Core, Hold, Part, Request,
    client::not_owned,
    fault::{Fault, planted},
};
use crate::groups::id_bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    coordinator::v1::{CommitOffset, CommitResult},
    v1::{self, subscribe_response::Frame},
};
use talweg_types::{TopicPartition, limits};

/// After a failed try to store acknowledgements.
const RETRY_MS: u64 = 500;

/// An acknowledged offset on its way to be stored, and its generation.
pub(super) type Stored = (TopicPartition, i64, u64);

/// A commit of the client that is not answered yet.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub id: u64,
    pub items: Vec<Item>,
}

/// One offset of it.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub at: TopicPartition,
    pub offset: i64,
    pub metadata: String,
    /// Of the partition when the client asked: a seek after it is none of its.
    pub generation: u64,
}

/// Whether a commit may go now.
enum Fate {
    Ready,
    /// A copy of a failed record below is under way.
    Waits,
    Refused(Refusal),
}

/// Commits that go in one request.
struct Together<'a> {
    items: Vec<&'a Item>,
    at: BTreeMap<TopicPartition, usize>,
    places: Vec<Vec<usize>>,
}

impl<'a> Together<'a> {
    /// A commit as it was said.
    fn of(items: &'a [Item]) -> Self {
        let at = items
            .iter()
            .enumerate()
            .map(|(place, item)| (item.at, place));
        Self {
            at: at.collect(),
            items: items.iter().collect(),
            places: vec![(0..items.len()).collect()],
        }
    }

    /// The next one, if nothing of what is there lies behind it; false: it must wait.
    fn join(&mut self, waiting: &'a Waiting) -> bool {
        let mut named = BTreeSet::new();
        let fits = waiting.items.iter().all(|item| {
            let before = self.at.get(&item.at).map(|place| self.items[*place]);
            let goes_on = before.is_none_or(|before| {
                before.generation == item.generation && before.offset <= item.offset
            });
            named.insert(item.at) && goes_on
        });
        let fresh = named.iter().filter(|at| !self.at.contains_key(at)).count();
        if !fits || self.items.len() + fresh > limits::COMMIT_OFFSETS_MAX {
            return false;
        }
        let mut places = Vec::with_capacity(waiting.items.len());
        for item in &waiting.items {
            let place = *self.at.entry(item.at).or_insert(self.items.len());
            match self.items.get_mut(place) {
                Some(before) => *before = item,
                None => self.items.push(item),
            }
            places.push(place);
        }
        self.places.push(places);
        true
    }
}

impl Core {
    /// Partitions with something on its way to be stored.
    pub(super) fn storing(&self) -> BTreeSet<TopicPartition> {
        let items = self.commits.iter().flat_map(|waiting| &waiting.items);
        let mut storing: BTreeSet<_> = items.map(|item| item.at).collect();
        if let Some(Asked::Acks(acks)) = &self.asked {
            storing.extend(acks.iter().map(|(at, ..)| *at));
        }
        storing
    }

    /// The client's next commits, if nothing holds them back: all that say one after the
    /// other how far the member is go in one request, so that a member that commits often
    /// is not behind with it by an append each.
    pub(super) fn take_commits(&mut self) -> Option<(Request, Asked)> {
        loop {
            let front = self.commits.front()?;
            match self.fate(front) {
                Fate::Waits => return None,
                Fate::Ready => break,
                Fate::Refused(refusal) => {
                    let id = front.id;
                    self.commits.pop_front();
                    self.tell_committed(id, Vec::new(), Some(&refusal));
                }
            }
        }
        let part = |item: &Item| self.parts.get(&item.at);
        let first = &self.commits.front()?.items;
        let seek = first.iter().any(|item| {
            part(item).is_some_and(|part| part.sought && part.generation == item.generation)
        });
        let mut together = Together::of(first);
        for waiting in self.commits.iter().skip(1) {
            let sought = |item: &Item| part(item).is_some_and(|part| part.sought);
            let plain = !seek && !waiting.items.iter().any(sought);
            if !plain || !matches!(self.fate(waiting), Fate::Ready) || !together.join(waiting) {
                break;
            }
        }
        let offsets = together
            .items
            .iter()
            .map(|item| commit_offset(item.at, item.offset, part(item), item.metadata.clone()));
        let offsets = offsets.collect();
        let asked = Asked::Commits(together.places);
        Some((Request::Commit { seek, offsets }, asked))
    }

    fn fate(&self, waiting: &Waiting) -> Fate {
        for item in &waiting.items {
            // It may have gone, and come again, while an earlier commit waited.
            let part = self.parts.get(&item.at);
            let same = |part: &&Part| item.generation >= part.first_generation;
            let Some(part) = part.filter(same) else {
                return Fate::Refused(not_owned(item.at));
            };
            if let Some(refusal) = part.below_stored(item.at, item.offset, item.generation) {
                return Fate::Refused(refusal);
            }
            if item.generation < part.moved_generation && !part.sought {
                let why = format!(
                    "partition {} was moved after this commit, and where to is stored",
                    item.at.partition
                );
                return Fate::Refused(Refusal::new(ErrorCode::BelowCommitted, why));
            }
            if let Some(stuck) = part.stuck_below(item.offset) {
                let why = format!(
                    "record {stuck} of partition {} failed and could not be copied; seek to it, or past it",
                    item.at.partition
                );
                return Fate::Refused(Refusal::new(ErrorCode::PartitionPaused, why));
            }
            if part.storable(item.offset) < item.offset {
                return Fate::Waits;
            }
        }
        Fate::Ready
    }

    /// Everything acknowledged that is not stored.
    pub(super) fn take_acks(&mut self) -> Option<(Request, Vec<Stored>)> {
        if self.now < self.acks_after_ms {
            return None;
        }
        let (mut acks, mut offsets, mut seek) = (Vec::new(), Vec::new(), false);
        for (at, part) in &self.parts {
            let Some(want) = &part.want else { continue };
            if acks.len() == limits::COMMIT_OFFSETS_MAX {
                break;
            }
            let metadata = want.metadata.clone();
            offsets.push(commit_offset(*at, want.offset, Some(part), metadata));
            acks.push((*at, want.offset, part.generation));
            seek |= part.sought;
        }
        (!acks.is_empty()).then_some((Request::Commit { seek, offsets }, acks))
    }

    /// When acknowledgements are to be tried again.
    pub(super) fn acks_due(&self) -> Option<u64> {
        let wanted = self.asked.is_none() && self.parts.values().any(|part| part.want.is_some());
        (wanted && self.now < self.acks_after_ms).then_some(self.acks_after_ms)
    }

    pub(super) fn on_committed(&mut self, places: &[Vec<usize>], result: Result<Answer, Refusal>) {
        let asked = places.iter().flatten().max().map_or(0, |last| last + 1);
        let results = results(result, asked).map(Vec::from);
        for places in places {
            let Some(waiting) = self.commits.pop_front() else {
                return;
            };
            match &results {
                Ok(results) => self.on_stored(&waiting, places, results),
                Err(refusal) => self.tell_committed(waiting.id, Vec::new(), Some(refusal)),
            }
        }
    }

    /// One commit of the client, by the results at these places.
    fn on_stored(&mut self, waiting: &Waiting, places: &[usize], results: &[CommitResult]) {
        let (mut stored, mut refused) = (Vec::new(), None);
        for (item, place) in waiting.items.iter().zip(places) {
            if let Some(error) = results.get(*place).and_then(|it| it.error.clone()) {
                refused.get_or_insert_with(|| Refusal::from_detail(error));
                continue;
            }
            stored.push(v1::CommittedOffset {
                topic: self.name(item.at).to_string(),
                topic_id: id_bytes(item.at.topic_id),
                partition: item.at.partition.0,
                offset: item.offset,
                leader_epoch: -1,
                metadata: item.metadata.clone(),
            });
            if let Some(part) = self.parts.get_mut(&item.at) {
                part.on_stored(item.offset, item.generation);
            }
        }
        self.tell_committed(waiting.id, stored, refused.as_ref());
    }

    fn tell_committed(
        &mut self,
        commit_id: u64,
        offsets: Vec<v1::CommittedOffset>,
        refusal: Option<&Refusal>,
    ) {
        self.tell(Frame::Committed(v1::SubscribeCommitted {
            commit_id,
            offsets,
            error: refusal.map(Refusal::detail),
        }));
    }

    pub(super) fn on_acks_stored(&mut self, acks: &[Stored], result: Result<Answer, Refusal>) {
        let Ok(results) = results(result, acks.len()) else {
            self.acks_after_ms = self.now.saturating_add(RETRY_MS);
            return;
        };
        for ((at, offset, generation), result) in acks.iter().zip(results) {
            let Some(part) = self.parts.get_mut(at) else {
                continue;
            };
            let Some(error) = result.error else {
                part.on_stored(*offset, *generation);
                continue;
            };
            let refusal = Refusal::from_detail(error);
            if refusal.is_retriable() {
                self.acks_after_ms = self.now.saturating_add(RETRY_MS);
                continue;
            }
            part.want = None;
            if part.must_be_saved() {
                part.hold = Some(Hold::Sought);
            }
            self.tell_refused(*at, &refusal);
        }
    }

    /// The client's commits that may wait at a time.
    pub(super) fn queue_commit(&mut self, waiting: Waiting) {
        if self.commits.len() < limits::COMMITS_WAITING_MAX {
            return self.commits.push_back(waiting);
        }
        let max = limits::COMMITS_WAITING_MAX;
        let why = format!("{max} commits of this stream wait for their answers already");
        let refusal = Refusal::new(ErrorCode::Throttled, why)
            .with_limit("commits", max as u64, max as u64 + 1, "commits")
            .retry_after(100);
        self.tell_committed(waiting.id, Vec::new(), Some(&refusal));
    }

    /// Refuses a commit whole.
    pub(super) fn refuse_commit(&mut self, commit_id: u64, refusal: &Refusal) {
        self.tell_committed(commit_id, Vec::new(), Some(refusal));
    }
}

impl Part {
    /// BELOW_COMMITTED for an offset that would step back without a seek.
    pub(super) fn below_stored(
        &self,
        at: TopicPartition,
        offset: i64,
        generation: u64,
    ) -> Option<Refusal> {
        let sought = self.sought && generation == self.generation;
        let sought = sought || planted(Fault::StepsBack);
        let stored = self
            .committed
            .filter(|stored| !sought && *stored > offset)?;
        let why = format!(
            "offset {offset} of partition {} is below the stored {stored}; only a seek goes back",
            at.partition
        );
        Some(Refusal::new(ErrorCode::BelowCommitted, why))
    }

    fn on_stored(&mut self, offset: i64, generation: u64) {
        if generation < self.first_generation {
            return;
        }
        self.committed = Some(offset);
        // After a gap what was on its way may lie before it.
        self.unsaved &= self.done.is_some_and(|done| offset < done);
        self.end_chosen = self.end_chosen.filter(|chosen| offset < *chosen);
        self.sought &= generation != self.generation;
        let same = generation == self.generation;
        if self
            .want
            .as_ref()
            .is_some_and(|want| same && want.offset <= offset)
        {
            self.want = None;
        }
    }
}

fn commit_offset(
    at: TopicPartition,
    offset: i64,
    part: Option<&Part>,
    metadata: String,
) -> CommitOffset {
    CommitOffset {
        topic_id: id_bytes(at.topic_id),
        partition: at.partition.0,
        offset,
        leader_epoch: part.map_or(-1, |part| part.spans.epoch_at(offset)),
        metadata,
        // Where a seek may have gone beyond the log, the coordinator asks its leader.
        delivered: part.is_some_and(|part| !part.unproven || planted(Fault::SoughtIsDelivered)),
    }
}

/// One result an offset.
fn results(
    result: Result<Answer, Refusal>,
    count: usize,
) -> Result<VecDeque<CommitResult>, Refusal> {
    match result? {
        Answer::Committed(results) if results.len() == count => Ok(results.into()),
        Answer::Committed(_) | Answer::Done | Answer::View(_) => Err(Refusal::internal(
            "the coordinator's answer does not fit the commit",
        )),
    }
}
