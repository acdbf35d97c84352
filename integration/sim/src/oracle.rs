//! What must be true after every step: the "always true" list of the design and
//! what acknowledgements promise.

use crate::{
    Checked, Happened,
    client::{OpId, Value},
    node::Node,
    truth::{Ack, Expected, Rec, Truth},
    world::World,
};
use bytes::Bytes;
use std::collections::{BTreeMap, HashSet};
use talweg_batch::{BatchHeader, decode_records, split_batches};
use talweg_controller::core::Partition;
use talweg_log::{Boot, LogReader};
use talweg_replication::Reached;
use talweg_types::{Acks, Durability, NodeId, Offset, TopicPartition};

pub struct Oracle {
    pub truths: BTreeMap<TopicPartition, Truth>,
    nodes: usize,
    stopped: Vec<bool>,
    wiped: Vec<bool>,
    /// Who has ever held and flushed a record, by bits.
    held: Vec<(u8, u8)>,
    /// Refused as not done, and never sent again.
    refused: HashSet<Value>,
    /// Found where nothing could be returned.
    pub broken: Option<String>,
}

/// Offsets and records of whole batches.
pub fn records(batches: &Bytes) -> Result<Vec<(i64, Rec)>, String> {
    let mut found = Vec::new();
    for batch in split_batches(batches.clone()) {
        let batch = batch.map_err(|error| format!("a batch: {error}"))?;
        let header = BatchHeader::parse(&batch).map_err(|error| format!("a header: {error}"))?;
        let unpacked =
            decode_records(&batch, 1 << 20).map_err(|error| format!("a record: {error}"))?;
        for record in unpacked {
            let value = record.value.as_deref().unwrap_or_default();
            let value = value
                .get(..4)
                .and_then(|bytes| bytes.try_into().ok())
                .map(u32::from_be_bytes);
            let value = value.ok_or("a record without its number")?;
            let offset = header.base_offset.0 + i64::from(record.offset_delta);
            found.push((
                offset,
                Rec {
                    epoch: header.leader_epoch.0,
                    value,
                },
            ));
        }
    }
    Ok(found)
}

/// All records from `from` on.
pub fn read_from(reader: &LogReader, from: i64) -> Result<Vec<(i64, Rec)>, String> {
    let mut found = Vec::new();
    let mut next = Offset(from);
    let end = reader.bounds().log_end;
    while next < end {
        let read = reader
            .read_for_copy(next, 64 << 10)
            .map_err(|error| format!("cannot be read at {next}: {error}"))?;
        let some = records(&read.batches)?;
        found.extend(some.into_iter().filter(|(offset, _)| *offset >= next.0));
        if read.next_offset <= next {
            return Err(format!("a read at {next} moves nowhere"));
        }
        next = read.next_offset;
    }
    Ok(found)
}

impl Oracle {
    pub fn new(nodes: usize) -> Self {
        Self {
            truths: BTreeMap::new(),
            nodes,
            stopped: vec![false; nodes],
            wiped: vec![true; nodes],
            held: Vec::new(),
            refused: HashSet::new(),
            broken: None,
        }
    }

    pub fn truth(&mut self, tp: TopicPartition) -> &mut Truth {
        let nodes = self.nodes;
        self.truths.entry(tp).or_insert_with(|| Truth::new(nodes))
    }

    pub fn on_down(&mut self, node: usize) {
        for truth in self.truths.values_mut() {
            truth.shadows[node].open = false;
            truth.shadows[node].leads = None;
        }
    }

    pub fn on_stop(&mut self, node: usize) {
        self.stopped[node] = true;
    }

    /// The folder of the process that ends has failed.
    pub fn on_failed(&mut self, node: usize) {
        for truth in self.truths.values_mut() {
            let expected = &mut truth.shadows[node].expected;
            *expected = Expected::Committed.min(*expected);
        }
    }

    pub fn on_wipe(&mut self, node: usize) {
        self.wiped[node] = true;
        for truth in self.truths.values_mut() {
            truth.shadows[node] = Default::default();
        }
    }

    pub fn on_start(&mut self, node: usize, boot: Boot) -> Checked {
        let expected = match boot {
            Boot::New => Expected::Nothing,
            Boot::SameBoot | Boot::Clean => Expected::All,
            Boot::Unclean if self.stopped[node] => Expected::Some,
            Boot::Unclean => Expected::Flushed,
        };
        let has_data = self
            .truths
            .values()
            .any(|truth| truth.shadows[node].flushed > 0);
        if boot == Boot::New && has_data && !self.wiped[node] {
            return Err(format!(
                "node {} takes a folder with data for a new one",
                node + 1
            ));
        }
        for truth in self.truths.values_mut() {
            let shadow = &mut truth.shadows[node];
            // One that was not opened since is not better by a start.
            shadow.expected = shadow.expected.min(expected);
        }
        self.stopped[node] = false;
        self.wiped[node] = false;
        Ok(())
    }

    /// A log was recovered: compares it with what it was.
    pub fn on_opened(&mut self, nodes: &[Node], node: usize, tp: TopicPartition) -> Checked {
        let Some(process) = nodes[node].process.as_ref() else {
            return Ok(());
        };
        let (Some(handle), Some(replica)) = (process.handles.get(&tp), process.replicas.get(&tp))
        else {
            return Ok(());
        };
        let reader = &handle.reader;
        let bounds = reader.bounds();
        let first = reader.first_offset().0;
        let found = read_from(reader, first)
            .map_err(|why| format!("node {} {tp} after a start: {why}", node + 1))?;
        let truth = self.truth(tp);
        let log_start = truth.log_start;
        let shadow = &mut truth.shadows[node];
        let (old_end, old_flushed) = (shadow.end(), shadow.flushed);
        let expected = std::mem::take(&mut shadow.expected);
        let least = match expected {
            Expected::All => old_end,
            Expected::Flushed => old_flushed,
            // All of it was deleted, and a failed disk ended the beginning anew.
            Expected::Committed if old_end <= log_start => 0,
            Expected::Committed => old_flushed.min(shadow.watermark),
            Expected::Some | Expected::Nothing => 0,
        };
        let end = bounds.log_end.0;
        let most = if expected == Expected::Some {
            i64::MAX
        } else {
            old_end.max(first)
        };
        if end < least || end > most {
            return Err(format!(
                "node {} {tp} comes back with an end of {end}; it had {old_end}, flushed {old_flushed} ({expected:?})",
                node + 1
            ));
        }
        // What lay below an older start may still be there; what the last step
        // wrote was not seen.
        let known = found
            .iter()
            .filter(|(offset, _)| *offset >= shadow.base && *offset < old_end);
        for (offset, record) in known {
            let before = shadow.get(*offset);
            if before != Some(*record) {
                return Err(format!(
                    "node {} {tp} comes back with {record:?} at {offset}, it was {before:?}",
                    node + 1
                ));
            }
        }
        shadow.base = first;
        shadow.records = found.into_iter().map(|(_, record)| record).collect();
        shadow.flushed = bounds.flushed_end.0;
        shadow.watermark = bounds.high_watermark.0;
        shadow.segments = replica.log.segment_count();
        shadow.leads = None;
        shadow.open = true;
        shadow.told = (reader.last_epoch().0, end);
        // Recovery flushes what it keeps.
        let kept: Vec<_> = shadow.records.iter().map(|record| record.value).collect();
        kept.into_iter()
            .for_each(|value| self.on_held(node, value, true));
        Ok(())
    }

    pub fn on_held(&mut self, node: usize, value: Value, flushed: bool) {
        let index = value as usize;
        if self.held.len() <= index {
            self.held.resize(index + 1, (0, 0));
        }
        let bit = 1 << node;
        self.held[index].0 |= bit;
        if flushed {
            self.held[index].1 |= bit;
        }
    }

    /// Nothing of it may ever be found in a log.
    pub fn on_refused(&mut self, values: std::ops::Range<Value>) {
        self.refused.extend(values);
    }

    pub fn may_exist(&self, value: Value) -> Checked {
        match self.refused.contains(&value) {
            true => Err(format!(
                "record {value} was refused as not done and is in a log"
            )),
            false => Ok(()),
        }
    }

    /// An acknowledgement says what is true.
    fn check_reached(&self, values: std::ops::Range<Value>, reached: Reached) -> Checked {
        for value in values {
            let (held, flushed) = self.held.get(value as usize).copied().unwrap_or_default();
            if reached.holding > held.count_ones() || reached.flushed > flushed.count_ones() {
                return Err(format!(
                    "record {value}: {reached:?} was said, {} have ever held it and {} flushed it",
                    held.count_ones(),
                    flushed.count_ones()
                ));
            }
        }
        Ok(())
    }
}

impl World {
    /// A batch was answered as done by `node`.
    pub fn on_done(
        &mut self,
        node: usize,
        op: OpId,
        base: Offset,
        duplicate: bool,
        reached: Reached,
    ) -> Checked {
        let asked = self.clients.op(op);
        let (tp, acks, values) = (asked.tp, asked.acks, asked.values());
        self.coverage.note(Happened::Acknowledged);
        if duplicate {
            self.coverage.note(Happened::Repeat);
        } else {
            self.oracle
                .check_reached(values.clone(), reached)
                .map_err(|why| format!("{tp}: {why}"))?;
        }
        if base.0 < 0 {
            return Ok(());
        }
        let truth = self.oracle.truth(tp);
        for (offset, value) in (base.0..).zip(values) {
            let held = match acks {
                Acks::All => truth.committed.get(offset as usize).copied(),
                Acks::One | Acks::Zero => truth.shadows[node].get(offset),
            };
            // Below the log start nothing is held any more.
            let gone = offset < truth.shadows[node].base;
            if held.map(|record| record.value) != Some(value) && !gone {
                return Err(format!(
                    "{tp}: record {value} was acknowledged (acks {acks:?}, repeat {duplicate}) at {offset}, there is {held:?}"
                ));
            }
            if acks == Acks::All {
                truth.acks.push(Ack { offset, value });
            }
        }
        Ok(())
    }

    /// The metastore holds another state of a partition.
    pub fn on_partition_changed(
        &mut self,
        tp: TopicPartition,
        before: Option<Partition>,
    ) -> Checked {
        let Some(after) = self.control.partition(&tp).cloned() else {
            return Ok(());
        };
        self.say(|| {
            format!(
                "{tp}: leader {} epoch {} in sync {:?} eligible {:?} last {:?} recovered {:?}",
                after.leader,
                after.leader_epoch,
                after.in_sync,
                after.eligible,
                after.last_in_sync,
                after.recovered.map(|r| r.epoch)
            )
        });
        let Some(before) = before else {
            return Ok(());
        };
        if after.leader_epoch < before.leader_epoch
            || after.partition_epoch <= before.partition_epoch
        {
            return Err(format!("{tp}: an epoch went back: {before:?} to {after:?}"));
        }
        let led =
            (before.leader, before.leader_incarnation) == (after.leader, after.leader_incarnation);
        if !led && after.leader_epoch == before.leader_epoch {
            return Err(format!(
                "{tp}: another process leads in epoch {}",
                after.leader_epoch
            ));
        }
        self.note_changes(&before, &after);
        if after.recovered != before.recovered {
            self.on_recovered(tp, &before, &after)?;
        }
        self.members_hold(tp)
    }

    fn note_changes(&mut self, before: &Partition, after: &Partition) {
        let happened = &mut self.coverage;
        if after.leader_epoch > before.leader_epoch && !after.leader.is_none() {
            happened.note(Happened::Election);
        } else if after.leader_epoch == before.leader_epoch {
            let new = after
                .in_sync
                .iter()
                .any(|node| !before.in_sync.contains(node));
            let gone = before
                .in_sync
                .iter()
                .any(|node| !after.in_sync.contains(node));
            if new {
                happened.note(Happened::Growth);
            }
            if gone {
                happened.note(Happened::Shrink);
            }
        }
        if after
            .eligible
            .iter()
            .any(|node| !before.eligible.contains(node))
        {
            happened.note(Happened::Eligible);
        }
    }

    /// A recorded loss: the one who leads had the most of those who were asked,
    /// and what may be missing begins where its log ends.
    fn on_recovered(
        &mut self,
        tp: TopicPartition,
        before: &Partition,
        after: &Partition,
    ) -> Checked {
        self.coverage.note(Happened::Recovered);
        let recorded = after.recovered.ok_or("a recorded loss is forgotten")?;
        let from = recorded.from.ok_or("a loss is recorded from nowhere on")?.0;
        let truth = self.oracle.truth(tp);
        truth.recovered = after.leader_epoch.0;
        // The operator may choose a log that parted from the others below its end.
        truth.recovered_from = if recorded.unclean { 0 } else { from };
        let end_of = |node: NodeId| truth.shadows[node.0 as usize - 1].told;
        let elected = end_of(after.leader);
        // An operator's election counts who does not answer as empty.
        if from > elected.1 || from < elected.1 && !recorded.unclean {
            return Err(format!(
                "{tp}: a loss from {from} on is recorded, {} leads with {elected:?}",
                after.leader
            ));
        }
        let greater = before
            .last_in_sync
            .iter()
            .find(|node| end_of(**node) > elected);
        match greater.filter(|_| !recorded.unclean) {
            Some(node) => Err(format!(
                "{tp}: {} was elected with {elected:?} after a loss, {node} has {:?}",
                after.leader,
                end_of(*node)
            )),
            None => Ok(()),
        }
    }

    /// Rule 4, for everybody who may be elected.
    pub fn members_hold(&mut self, tp: TopicPartition) -> Checked {
        let Some(state) = self
            .control
            .store
            .partitions
            .get(&tp)
            .map(|stored| &stored.value)
        else {
            return Ok(());
        };
        let is_synced = self.topic_of(&tp).durability == Durability::Synced;
        let Some(truth) = self.oracle.truths.get(&tp) else {
            return Ok(());
        };
        if truth.recovered > truth.reckoned {
            return Ok(());
        }
        for node in state.in_sync.iter().chain(&state.eligible) {
            let index = node.0 as usize - 1;
            let this = &self.nodes[index];
            // No controller has heard of that loss yet.
            if this.wiped || this.lost && !is_synced {
                continue;
            }
            truth
                .holds(index, is_synced)
                .map_err(|why| format!("{tp}: {why}; {state:?}"))?;
        }
        Ok(())
    }
}
