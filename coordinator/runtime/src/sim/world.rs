//! What happens, in what order, and what must hold.

use super::{
    Done,
    coordinator::{Holder, small},
    log::{Log, Refused, Sent},
};
use crate::{Input, Now, Outcome, Output, Shard};
use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use talweg_group::{
    Answer, Bounds, Commit, CommitItem, CommitKind, Committer, Event, Group, Join, MemberKind,
    MemberMeta, Settings, Subscription, Topic, Topics,
};
use talweg_types::{
    LeaderEpoch, MemberId, Offset, PartitionIndex, TimestampMs, TopicId, TopicPartition,
};

const GROUPS: u64 = 4;
const PARTITIONS: u64 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mistake {
    AnswersBeforeTheAck,
    TakesUnknownForFailed,
    ServesWithoutReplay,
    LogWithoutFence,
    ForgetsToUndo,
}

thread_local! {
    pub(super) static MISTAKE: Cell<Option<Mistake>> = const { Cell::new(None) };
}

fn planted(mistake: Mistake) -> bool {
    MISTAKE.get() == Some(mistake)
}

/// A commit that somebody waits for.
#[derive(Clone)]
struct Asked {
    group: Arc<str>,
    partition: u32,
    offset: i64,
}

pub(super) struct World {
    random: u64,
    now: Now,
    topics: Topics,
    log: Log,
    /// At most one holds the shard in the controller's mind: the newest. Earlier
    /// ones do not know yet.
    holders: Vec<Holder>,
    next_epoch: i32,
    next_producer: u64,
    next_token: u64,
    next_offset: i64,
    asked: BTreeMap<u64, Asked>,
    /// By group and partition: the highest acknowledged offset.
    acknowledged: BTreeMap<(Arc<str>, u32), i64>,
    /// Offsets that were refused as certainly not done.
    refused: BTreeSet<(Arc<str>, u32, i64)>,
    /// Sends of holders that are gone, still on their way.
    ghosts: Vec<Sent>,
    pub done: Done,
}

fn topic_id() -> TopicId {
    TopicId::from_slice(&[9; 16]).expect("16 bytes")
}

impl World {
    pub fn new(seed: u64) -> Self {
        let racks = vec![vec![]; usize::try_from(PARTITIONS).expect("few")];
        let topic = Topic {
            id: topic_id(),
            racks,
            derived: false,
        };
        let mut world = Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            now: Now::default(),
            topics: Topics::new([("t".to_owned(), topic)]),
            log: Log::default(),
            holders: Vec::new(),
            next_epoch: 1,
            next_producer: 1,
            next_token: 1,
            next_offset: 1,
            asked: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            refused: BTreeSet::new(),
            ghosts: Vec::new(),
            done: Done::default(),
        };
        world.take().expect("the first load");
        world
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % n
    }

    fn any_holder(&mut self) -> usize {
        let count = u64::try_from(self.holders.len()).expect("few");
        usize::try_from(self.below(count)).expect("few")
    }

    pub fn step(&mut self) -> Result<(), String> {
        let ms = self.below(30);
        self.now.monotonic = self.now.monotonic.plus(ms);
        self.now.wall = TimestampMs(1_000 + i64::try_from(self.now.monotonic.0).expect("small"));
        let which = self.any_holder();
        match self.below(100) {
            0..=44 => self.commit(which),
            45..=52 => self.member(which),
            53..=58 => self.feed(which, Input::Tick),
            59..=78 => self.arrives(which),
            79..=84 => self.lost_on_the_way(which),
            85..=88 => self.certainly_fails(which),
            89..=94 => self.ghost(),
            95..=96 => self.take(),
            97 => self.learns(which),
            _ => self.feed(which, Input::All(Event::TopicsChanged)),
        }?;
        for holder in &self.holders {
            holder.shard.check().map_err(str::to_owned)?;
        }
        Ok(())
    }

    fn group(&mut self) -> Arc<str> {
        let n = self.below(GROUPS);
        format!("g{n}").into()
    }

    fn commit(&mut self, which: usize) -> Result<(), String> {
        let (group, partition) = (self.group(), self.below(PARTITIONS));
        let partition = u32::try_from(partition).expect("few");
        let offset = self.next_offset;
        self.next_offset += 1;
        let item = CommitItem {
            at: TopicPartition {
                topic_id: topic_id(),
                partition: PartitionIndex(partition),
            },
            offset: Offset(offset),
            leader_epoch: LeaderEpoch(0),
            metadata: String::new(),
            bounds: Bounds::Log {
                log_start: Offset(0),
                high_watermark: Offset::MAX,
            },
        };
        let event = Event::Commit(Commit {
            by: Committer::Standalone,
            kind: CommitKind::Commit,
            items: vec![item],
        });
        let token = self.next_token;
        self.next_token += 1;
        let asked = Asked {
            group: Arc::clone(&group),
            partition,
            offset,
        };
        self.asked.insert(token, asked.clone());
        let input = Input::Request {
            token,
            name: group,
            event,
        };
        self.feed(which, input)?;
        if planted(Mistake::AnswersBeforeTheAck) && self.asked.contains_key(&token) {
            self.acknowledge(&asked);
        }
        Ok(())
    }

    /// HTTP members come and go by their short sessions; they forbid no commit.
    fn member(&mut self, which: usize) -> Result<(), String> {
        let n = u8::try_from(self.below(5)).expect("few") + 1;
        let join = Join {
            new_id: MemberId::from_slice(&[n; 16]).expect("16 bytes"),
            claim: None,
            meta: MemberMeta {
                instance_id: None,
                client_id: String::new(),
                rack: String::new(),
                kind: MemberKind::Http,
                subscription: Subscription::names(["t"]),
                assignor: None,
                timeouts: talweg_group::Timeouts {
                    session_ms: 200,
                    rebalance_ms: 150,
                    processing_ms: 1_000,
                },
                policy: talweg_group::DeadLetterPolicy::default(),
                reads_committed: false,
            },
        };
        let name = self.group();
        let event = Event::Join(join);
        self.feed(which, Input::Event { name, event })
    }

    fn feed(&mut self, which: usize, input: Input<Group>) -> Result<(), String> {
        let before = self.holders[which].flight.is_some();
        let outputs = self.holders[which].step(self.now, &self.topics, input);
        if let Some((_, sent)) = &self.holders[which].flight
            && !before
        {
            self.done.shared += usize::from(sent.records.len() > 4);
        }
        outputs
            .into_iter()
            .try_for_each(|output| self.output(output))
    }

    fn output(&mut self, output: Output<Group>) -> Result<(), String> {
        let Output::Answer { token, outcome, .. } = output else {
            return Ok(());
        };
        let asked = self.asked.remove(&token);
        let asked = asked.ok_or_else(|| format!("token {token} is answered twice"))?;
        match outcome {
            Outcome::Decided(Ok(Answer::Committed(results))) => match &results[..] {
                [Ok(stored)] if stored.offset.0 == asked.offset => self.acknowledge(&asked),
                // A commit of a later offset was decided first, at another holder.
                [Err(talweg_group::Refusal::BelowCommitted { .. })] => {}
                other => return Err(format!("a commit came to {other:?}")),
            },
            Outcome::NotDone => {
                self.done.not_done += 1;
                self.refused
                    .insert((asked.group, asked.partition, asked.offset));
            }
            Outcome::Throttled { .. } | Outcome::TooLarge { .. } => {
                self.done.throttled += 1;
                self.refused
                    .insert((asked.group, asked.partition, asked.offset));
            }
            Outcome::Lost => {}
            other => return Err(format!("a commit came to {other:?}")),
        }
        Ok(())
    }

    fn acknowledge(&mut self, asked: &Asked) {
        self.done.acknowledged += 1;
        let key = (Arc::clone(&asked.group), asked.partition);
        let highest = self.acknowledged.entry(key).or_default();
        *highest = (*highest).max(asked.offset);
    }

    /// A send reaches the leader; its answer may be lost or late.
    fn arrives(&mut self, which: usize) -> Result<(), String> {
        let Some((id, sent)) = self.holders[which].flight.clone() else {
            return Ok(());
        };
        if self.holders[which].on_the_way == 0 {
            // The shell sends the same bytes again.
            self.holders[which].on_the_way = 1;
            return Ok(());
        }
        self.holders[which].on_the_way -= 1;
        let outcome = self.log.append(&sent);
        match outcome {
            Ok((last_offset, repeat)) => {
                self.done.repeats += usize::from(repeat);
                if self.below(4) == 0 {
                    return self.now_unknown(which, id);
                }
                self.feed(which, Input::Appended { id, last_offset })
            }
            Err(Refused::Fenced) => self.learns(which),
            Err(Refused::OutOfOrder) => Err("an append out of order".into()),
        }
    }

    fn now_unknown(&mut self, which: usize, id: u64) -> Result<(), String> {
        self.done.unknown += 1;
        self.holders[which].unknown = true;
        if planted(Mistake::TakesUnknownForFailed) {
            return self.feed(which, Input::NotAppended { id });
        }
        Ok(())
    }

    /// The connection breaks: nobody knows whether the send will arrive.
    fn lost_on_the_way(&mut self, which: usize) -> Result<(), String> {
        let holder = &mut self.holders[which];
        if holder.on_the_way == 0 {
            return Ok(());
        }
        let Some((id, sent)) = holder.flight.clone() else {
            return Ok(());
        };
        holder.on_the_way -= 1;
        self.ghosts.push(sent);
        self.now_unknown(which, id)
    }

    /// The leader refuses it for good; only if no send can have arrived.
    fn certainly_fails(&mut self, which: usize) -> Result<(), String> {
        let holder = &mut self.holders[which];
        let Some((id, _)) = holder.flight else {
            return Ok(());
        };
        if holder.unknown {
            return Ok(());
        }
        if planted(Mistake::ForgetsToUndo) {
            // The shard believes that it is in the log.
            let last_offset = holder.shard.applied();
            return self.feed(which, Input::Appended { id, last_offset });
        }
        self.feed(which, Input::NotAppended { id })
    }

    /// A send that was given up arrives after all.
    fn ghost(&mut self) -> Result<(), String> {
        if self.ghosts.is_empty() {
            return Ok(());
        }
        let count = u64::try_from(self.ghosts.len()).expect("few");
        let which = usize::try_from(self.below(count)).expect("few");
        let sent = self.ghosts.swap_remove(which);
        if self.log.append(&sent) == Err(Refused::Fenced) {
            self.done.fenced += 1;
        }
        Ok(())
    }

    /// The controller gives the shard to another coordinator, which takes it. The
    /// earlier holder goes on until it learns of it.
    fn take(&mut self) -> Result<(), String> {
        if self.holders.len() >= 3 {
            return Ok(());
        }
        self.done.moves += 1;
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        let fence = self.log.fence(epoch).ok_or("a newer fence")?;
        let compacted = self.below(2) == 0;
        let until = match planted(Mistake::ServesWithoutReplay) {
            true => Offset(fence.0 / 2),
            false => fence.plus(1),
        };
        let shard = self.load(until, compacted)?;
        let shadow = self.log.replay(self.log.end(), false)?;
        if shard.state_hash() != shadow.state_hash() {
            return Err("what was loaded is not what is in the log".into());
        }
        let producer = self.next_producer;
        self.next_producer += 1;
        self.holders.push(Holder::new(shard, epoch, producer));
        let newest = self.holders.len() - 1;
        self.feed(newest, Input::All(Event::TopicsChanged))
    }

    fn load(&self, until: Offset, compacted: bool) -> Result<Shard<Group>, String> {
        let loading = self.log.replay(until, compacted)?;
        let loaded = loading.finish(Settings::default(), small(), self.now);
        loaded.map_err(|error| error.to_string())
    }

    /// A holder hears that the shard is another's, unless it is the newest.
    fn learns(&mut self, which: usize) -> Result<(), String> {
        if which + 1 == self.holders.len() {
            return Ok(());
        }
        let holder = self.holders.remove(which);
        self.done.fenced += 1;
        if let Some((_, sent)) = holder.flight {
            self.ghosts.extend(vec![sent; holder.on_the_way]);
        }
        let outputs = holder.shard.lose();
        outputs
            .into_iter()
            .try_for_each(|output| self.output(output))
    }

    /// All words arrive, the newest holder settles, and the books are compared.
    pub fn heal(&mut self) -> Result<(), String> {
        while !self.ghosts.is_empty() {
            self.ghost()?;
        }
        while self.holders.len() > 1 {
            self.learns(0)?;
        }
        for _ in 0..100_000 {
            if self.holders[0].flight.is_none() {
                break;
            }
            self.arrives(0)?;
        }
        let live = &self.holders[0].shard;
        if live.waiting() != 0 || !self.asked.is_empty() {
            return Err(format!("{} requests were never answered", self.asked.len()));
        }
        let end = self.log.end();
        if live.applied() > end {
            return Err("the live state is ahead of the log".into());
        }
        let shadow = self.log.replay(end, false)?;
        if live.state_hash() != shadow.state_hash() {
            return Err("the live state is not the replayed one".into());
        }
        self.books(&self.load(end, true)?)
    }

    fn books(&self, replayed: &Shard<Group>) -> Result<(), String> {
        for ((group, partition), highest) in &self.acknowledged {
            let stored = stored(replayed, group, *partition);
            if stored < Some(*highest) {
                return Err(format!(
                    "{highest} of {group}-{partition} was acknowledged, {stored:?} is stored"
                ));
            }
        }
        for (group, partition, offset) in &self.refused {
            if stored(replayed, group, *partition) == Some(*offset) {
                return Err(format!(
                    "{offset} of {group}-{partition} was not done, and is there"
                ));
            }
        }
        Ok(())
    }
}

fn stored(shard: &Shard<Group>, group: &str, partition: u32) -> Option<i64> {
    let at = TopicPartition {
        topic_id: topic_id(),
        partition: PartitionIndex(partition),
    };
    let group = shard.machine(group)?;
    group.state().offsets().get(&at).map(|it| it.offset.0)
}
