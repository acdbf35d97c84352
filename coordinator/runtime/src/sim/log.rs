//! A partition of the internal topic as its leader keeps it: fences and
//! idempotent producers.

use super::world::{MISTAKE, Mistake};
use crate::{Encoded, Loading};
use std::collections::BTreeMap;
use talweg_group::Group;
use talweg_types::Offset;

/// As it travels: the same for every send of one append.
#[derive(Clone)]
pub(super) struct Sent {
    pub shard_epoch: i32,
    pub producer: u64,
    pub sequence: u64,
    pub records: Vec<Encoded>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    Fenced,
    OutOfOrder,
}

#[derive(Default)]
pub(super) struct Log {
    /// None is a fence.
    pub entries: Vec<Option<Encoded>>,
    fence: i32,
    /// By producer: the next sequence, and the last append with its last offset.
    producers: BTreeMap<u64, (u64, Offset)>,
}

impl Log {
    pub fn fence(&mut self, shard_epoch: i32) -> Option<Offset> {
        if shard_epoch < self.fence {
            return None;
        }
        self.fence = shard_epoch;
        self.entries.push(None);
        Some(self.end().plus(-1))
    }

    pub fn end(&self) -> Offset {
        Offset(i64::try_from(self.entries.len()).expect("short"))
    }

    /// The last offset, and whether it was there before.
    pub fn append(&mut self, sent: &Sent) -> Result<(Offset, bool), Refused> {
        let fenced = sent.shard_epoch != self.fence;
        if fenced && MISTAKE.get() != Some(Mistake::LogWithoutFence) {
            return Err(Refused::Fenced);
        }
        let (next, last) = self
            .producers
            .get(&sent.producer)
            .copied()
            .unwrap_or_default();
        if sent.sequence + 1 == next {
            return Ok((last, true));
        }
        if sent.sequence != next {
            return Err(Refused::OutOfOrder);
        }
        self.entries.extend(sent.records.iter().cloned().map(Some));
        let last = self.end().plus(-1);
        self.producers.insert(sent.producer, (next + 1, last));
        Ok((last, false))
    }

    /// All below `until`; `compacted`: only the newest of each key.
    pub fn replay(&self, until: Offset, compacted: bool) -> Result<Loading<Group>, String> {
        let end = usize::try_from(until.0).expect("not negative");
        let entries = self.entries.iter().take(end).enumerate();
        let entries: Vec<_> = entries
            .filter_map(|(at, it)| Some((at, it.as_ref()?)))
            .collect();
        let newest: BTreeMap<_, _> = entries.iter().map(|(at, it)| (&it.key, *at)).collect();
        let mut loading = Loading::default();
        for (at, record) in &entries {
            if compacted && newest.get(&record.key) != Some(at) {
                continue;
            }
            let offset = Offset(i64::try_from(*at).expect("short"));
            let value = record.value.as_deref();
            let applied = loading.apply(offset, Some(&record.key), value);
            applied.map_err(|error| error.to_string())?;
        }
        loading.skip_to(until);
        Ok(loading)
    }
}
