//! What is true of one partition, told by somebody who sees every log: what was
//! committed, who led, what was acknowledged.

use crate::{Checked, client::Value};
use std::collections::{BTreeMap, HashMap};

/// A record as logs hold it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rec {
    pub epoch: i32,
    pub value: Value,
}

/// How much of its log a node may come back with, the least first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Expected {
    Nothing,
    /// A change was half done.
    Some,
    /// What was flushed below the watermark: a cut may have failed half done.
    Committed,
    /// What was flushed.
    Flushed,
    /// All of it: the page cache is whole.
    #[default]
    All,
}

/// What a node's log of one partition holds, as it was last seen.
#[derive(Clone, Default, Debug)]
pub struct Shadow {
    /// Offset of the first record.
    pub base: i64,
    pub records: Vec<Rec>,
    pub flushed: i64,
    pub watermark: i64,
    pub leads: Option<i32>,
    pub segments: usize,
    /// A process has it open.
    pub open: bool,
    pub expected: Expected,
    /// Epoch and end, as the node answers the controller.
    pub told: (i32, i64),
}

impl Shadow {
    pub fn end(&self) -> i64 {
        self.base + self.records.len() as i64
    }

    pub fn get(&self, offset: i64) -> Option<Rec> {
        let index = usize::try_from(offset - self.base).ok()?;
        self.records.get(index).copied()
    }

    pub fn last_epoch(&self) -> i32 {
        self.records.last().map_or(-1, |record| record.epoch)
    }

    /// Drops what is at or above `end`.
    pub fn cut(&mut self, end: i64) {
        let keep = usize::try_from(end - self.base).unwrap_or(0);
        self.records.truncate(keep);
        self.flushed = self.flushed.min(self.end());
    }

    /// Drops what is below `base`; an empty log begins there.
    pub fn begin(&mut self, base: i64) {
        if base >= self.end() {
            self.records.clear();
        } else {
            self.records
                .drain(..usize::try_from(base - self.base).unwrap_or(0));
        }
        self.base = base;
    }
}

/// An acknowledgement of acks=all.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    pub offset: i64,
    pub value: Value,
}

#[derive(Default)]
pub struct Truth {
    /// Below every watermark that was published, by offset.
    pub committed: Vec<Rec>,
    /// The highest watermark published in each epoch.
    published: BTreeMap<i32, i64>,
    leaders: BTreeMap<i32, (usize, u64)>,
    /// By epoch and offset: the record and the epoch of the one before it.
    lineage: HashMap<(i32, i64), (Value, Option<i32>)>,
    pub acks: Vec<Ack>,
    /// Epochs that began with less than was promised: the newest recorded one,
    /// and up to which that has been reckoned with.
    pub recovered: i32,
    pub reckoned: i32,
    /// Nothing below it is missing, the newest record promises.
    pub recovered_from: i64,
    pub lost: Vec<Ack>,
    /// The highest log start that a leader has shown.
    pub log_start: i64,
    pub shadows: Vec<Shadow>,
}

impl Truth {
    pub fn new(nodes: usize) -> Self {
        Self {
            shadows: vec![Shadow::default(); nodes],
            recovered: -1,
            reckoned: -1,
            ..Self::default()
        }
    }

    pub fn end(&self) -> i64 {
        self.committed.len() as i64
    }

    pub fn published_before(&self, epoch: i32) -> i64 {
        self.published
            .range(..epoch)
            .map(|(_, to)| *to)
            .max()
            .unwrap_or(0)
    }

    /// The node's log agrees with what was committed from `from` to `to`.
    pub fn agrees(&self, node: usize, from: i64, to: i64) -> Checked {
        let shadow = &self.shadows[node];
        for offset in from.max(shadow.base)..to {
            let promised = usize::try_from(offset)
                .ok()
                .and_then(|index| self.committed.get(index))
                .copied();
            let held = shadow.get(offset);
            if held.is_none() || held != promised {
                return Err(format!(
                    "node {} holds {held:?} at {offset}, committed was {promised:?}",
                    node + 1
                ));
            }
        }
        Ok(())
    }

    /// Rule 2, by induction: a record of an epoch at an offset is the same
    /// everywhere, and so is what lies before it.
    pub fn on_record(&mut self, node: usize, life: u64, offset: i64, record: Rec) -> Checked {
        let before = self.shadows[node]
            .get(offset - 1)
            .map(|record| record.epoch);
        if before.is_some_and(|before| before > record.epoch) {
            return Err(format!(
                "node {}: epochs fall to {} at {offset}",
                node + 1,
                record.epoch
            ));
        }
        let leader = self.leaders.get(&record.epoch).copied();
        let is_first = !self.lineage.contains_key(&(record.epoch, offset));
        // Rule 3: only its leader begins a record of an epoch.
        if is_first && leader != Some((node, life)) {
            return Err(format!(
                "node {} appends in epoch {}, led by {leader:?}",
                node + 1,
                record.epoch
            ));
        }
        let known = self
            .lineage
            .entry((record.epoch, offset))
            .or_insert_with(|| (record.value, before));
        if known.0 != record.value || known.1.is_some() && before.is_some() && known.1 != before {
            return Err(format!(
                "epoch {} offset {offset}: node {} has {} after {before:?}, another has {} after {:?}",
                record.epoch,
                node + 1,
                record.value,
                known.0,
                known.1
            ));
        }
        Ok(())
    }

    pub fn on_lead(&mut self, node: usize, life: u64, epoch: i32) -> Checked {
        let process = (node, life);
        if *self.leaders.entry(epoch).or_insert(process) != process {
            return Err(format!("two processes lead in epoch {epoch}"));
        }
        let later = self.leaders.range(epoch + 1..);
        if let Some((later, _)) = later.into_iter().find(|(_, other)| **other == process) {
            return Err(format!(
                "node {} leads in epoch {epoch} after {later}",
                node + 1
            ));
        }
        if self.recovered > self.reckoned && epoch >= self.recovered {
            self.reckon(node)?;
        }
        self.agrees(node, 0, self.published_before(epoch))
            .map_err(|why| format!("leads in epoch {epoch}: {why}"))
    }

    /// The first leader after a recorded loss says what is left: nothing is gone
    /// below what was recorded.
    fn reckon(&mut self, node: usize) -> Checked {
        let shadow = &self.shadows[node];
        let same = |offset: i64| shadow.get(offset) == Some(self.committed[offset as usize]);
        let end = (shadow.base.min(self.end())..self.end()).find(|offset| !same(*offset));
        let end = end.unwrap_or(self.end());
        if end < self.end() && end < self.recovered_from {
            return Err(format!(
                "the loss in epoch {} begins at {end} of {}, recorded is {}",
                self.recovered,
                self.end(),
                self.recovered_from
            ));
        }
        self.reckoned = self.recovered;
        self.committed.truncate(end as usize);
        self.published
            .values_mut()
            .for_each(|to| *to = end.min(*to));
        let (kept, lost) = self.acks.iter().partition(|ack| ack.offset < end);
        self.acks = kept;
        let lost: Vec<Ack> = lost;
        self.lost.extend(lost);
        Ok(())
    }

    /// The leader's watermark has moved.
    pub fn on_leader_watermark(&mut self, node: usize, epoch: i32, from: i64, to: i64) -> Checked {
        for offset in self.end()..to {
            let record = self.shadows[node].get(offset);
            let record = record
                .ok_or_else(|| format!("watermark {to} above the log end of node {}", node + 1))?;
            self.committed.push(record);
        }
        let highest = self.published.entry(epoch).or_insert(to);
        *highest = to.max(*highest);
        self.agrees(node, from, to)
            .map_err(|why| format!("watermark {to} in epoch {epoch}: {why}"))
    }

    /// A follower's watermark has moved.
    pub fn on_follower_watermark(&self, node: usize, from: i64, to: i64) -> Checked {
        if to > self.end() {
            return Err(format!(
                "node {} stores a watermark of its own: {to} of {}",
                node + 1,
                self.end()
            ));
        }
        self.agrees(node, from, to)
            .map_err(|why| format!("watermark {to}: {why}"))
    }

    /// Rule 5: what a leader shows is no step back.
    pub fn on_shown(&self, node: usize, epoch: i32, watermark: i64) -> Checked {
        let before = self.published_before(epoch);
        if watermark < before {
            return Err(format!(
                "node {} shows {watermark} in epoch {epoch}, {before} was published before",
                node + 1
            ));
        }
        Ok(())
    }

    /// Rule 4: who may be elected has counted all that was published.
    pub fn holds(&self, node: usize, is_synced: bool) -> Checked {
        let shadow = &self.shadows[node];
        let counted = if is_synced {
            shadow.flushed
        } else {
            shadow.end()
        };
        let end = self.end();
        if counted < end {
            return Err(format!(
                "node {} may lead with {counted} of {end}",
                node + 1
            ));
        }
        self.agrees(node, end - 3, end)
            .map_err(|why| format!("may lead: {why}"))
    }

    /// Each acknowledged batch is where its ack said.
    pub fn acks_are_kept(&self) -> Checked {
        for ack in &self.acks {
            let held = self
                .committed
                .get(ack.offset as usize)
                .map(|record| record.value);
            if held != Some(ack.value) {
                return Err(format!("{ack:?} was acknowledged, committed is {held:?}"));
            }
        }
        Ok(())
    }
}
