//! The view that is kept of the log: the newest record of each key, so that a load
//! replays only the rest. Behind the log, never ahead of what is committed; found
//! ahead, of another topic, of another history or too old, it is dropped.
//!
//! ```text
//! 00 shard(4)            version 02, topic id(16), applied(8), leader epoch(4), shard epoch(4), written at(8)
//! 01 shard(4) key        value
//! ```
//!
//! Numbers are big-endian. A shard's records and its first entry are written together.

use bytes::Bytes;
use std::{path::Path, sync::Arc};
use talweg_coordinator_runtime::{Encoded, LoadError, Loading};
use talweg_group::Group;
use talweg_log::kv::{IndexKv, KvError, KvOp, RocksKv};
use talweg_types::{LeaderEpoch, Offset, ShardEpoch, TimestampMs, TopicId};

const VERSION: u8 = 2;
/// Entries read at a time.
const PAGE: usize = 4_096;

/// What a shard's records are of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    pub topic_id: TopicId,
    /// All below this offset is in.
    pub applied: Offset,
    /// Of the batch below `applied`: tells whether the log still has it.
    pub leader_epoch: LeaderEpoch,
    pub epoch: ShardEpoch,
    pub written_at: TimestampMs,
}

/// The view of all shards that this process has held. Calls wait for a disk.
#[derive(Clone)]
pub struct KeptView {
    kv: Arc<dyn IndexKv>,
    rocks: Option<Arc<RocksKv>>,
}

/// A view could not be used.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    #[error(transparent)]
    Store(#[from] KvError),
    #[error(transparent)]
    Record(#[from] LoadError),
}

impl KeptView {
    /// Opens the folder, or makes it.
    pub fn open(folder: &Path) -> Result<Self, KvError> {
        std::fs::create_dir_all(folder)
            .map_err(|error| KvError(format!("making {}: {error}", folder.display())))?;
        let rocks = Arc::new(RocksKv::open(&folder.join("view"), Default::default())?);
        Ok(Self {
            kv: rocks.clone(),
            rocks: Some(rocks),
        })
    }

    #[cfg(test)]
    pub fn in_memory() -> Self {
        Self {
            kv: Arc::new(talweg_log::kv::MemKv::default()),
            rocks: None,
        }
    }

    /// Adds records that are committed, up to `mark.applied`; `whole`: they take the
    /// place of all that is there.
    pub fn write(
        &self,
        shard: u32,
        mark: Mark,
        records: Vec<Encoded>,
        whole: bool,
    ) -> Result<(), KvError> {
        let put = |record: Encoded| {
            let key = record_key(shard, &record.key);
            match record.value {
                Some(value) => KvOp::Put(key, value),
                None => KvOp::Delete(key),
            }
        };
        let (low, high) = range(shard);
        let mut ops = Vec::from_iter(whole.then_some(KvOp::DeleteRange(low, high)));
        ops.extend(records.into_iter().map(put));
        ops.push(KvOp::Put(mark_key(shard), encode(mark)));
        self.kv.write(ops)
    }

    /// Forgets a shard.
    pub fn drop_shard(&self, shard: u32) -> Result<(), KvError> {
        let (low, high) = range(shard);
        let records = KvOp::DeleteRange(low, high);
        self.kv.write(vec![records, KvOp::Delete(mark_key(shard))])
    }

    pub fn mark(&self, shard: u32) -> Result<Option<Mark>, KvError> {
        let found = self.kv.get(&mark_key(shard))?;
        Ok(found.and_then(|bytes| decode(&bytes)))
    }

    /// All records of a shard, up to its mark.
    pub fn load(&self, shard: u32) -> Result<Option<(Mark, Loading<Group>)>, KeptError> {
        let Some(mark) = self.mark(shard)? else {
            return Ok(None);
        };
        let mut loading = Loading::default();
        let (mut low, high) = range(shard);
        let prefix = low.len();
        loop {
            let page = self.kv.scan(&low, &high, PAGE)?;
            let more = page.len() == PAGE;
            for (key, value) in &page {
                loading.apply(mark.applied, key.get(prefix..), Some(&value[..]))?;
            }
            match page.last() {
                Some((last, _)) if more => low = [&last[..], &[0][..]].concat().into(),
                _ => break,
            }
        }
        loading.skip_to(mark.applied);
        Ok(Some((mark, loading)))
    }

    /// Before a clean stop. Nothing depends on it.
    pub fn flush(&self) -> Result<(), KvError> {
        self.rocks.as_ref().map_or(Ok(()), |rocks| rocks.flush())
    }

    pub fn memory_bytes(&self) -> u64 {
        self.rocks.as_ref().map_or(0, |rocks| rocks.memory_bytes())
    }
}

fn mark_key(shard: u32) -> Bytes {
    [&[0][..], &shard.to_be_bytes()].concat().into()
}

fn record_key(shard: u32, key: &[u8]) -> Bytes {
    [&[1][..], &shard.to_be_bytes(), key].concat().into()
}

/// From the first possible key to the one after the last.
fn range(shard: u32) -> (Bytes, Bytes) {
    let low = record_key(shard, &[]);
    let high = match shard.checked_add(1) {
        Some(next) => record_key(next, &[]),
        None => Bytes::from_static(&[2]),
    };
    (low, high)
}

fn encode(mark: Mark) -> Bytes {
    [
        &[VERSION][..],
        mark.topic_id.as_bytes(),
        &mark.applied.0.to_be_bytes(),
        &mark.leader_epoch.0.to_be_bytes(),
        &mark.epoch.0.to_be_bytes(),
        &mark.written_at.0.to_be_bytes(),
    ]
    .concat()
    .into()
}

/// None: of another version, or not a mark.
fn decode(bytes: &[u8]) -> Option<Mark> {
    let (version, rest) = bytes.split_first()?;
    let (topic_id, rest) = rest.split_first_chunk::<16>()?;
    let (applied, rest) = rest.split_first_chunk::<8>()?;
    let (leader_epoch, rest) = rest.split_first_chunk::<4>()?;
    let (epoch, rest) = rest.split_first_chunk::<4>()?;
    let (written_at, rest) = rest.split_first_chunk::<8>()?;
    (*version == VERSION && rest.is_empty()).then_some(Mark {
        topic_id: TopicId::from_slice(topic_id)?,
        applied: Offset(i64::from_be_bytes(*applied)),
        leader_epoch: LeaderEpoch(i32::from_be_bytes(*leader_epoch)),
        epoch: ShardEpoch(i32::from_be_bytes(*epoch)),
        written_at: TimestampMs(i64::from_be_bytes(*written_at)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use talweg_coordinator_runtime::groups::encode_record;
    use talweg_group::{GroupMeta, Key, Record, Value};

    fn record(group: &str, stays: bool) -> Encoded {
        let record = Record {
            key: Key::Group,
            value: stays.then(|| Value::Group(GroupMeta::default())),
        };
        encode_record(group, &record)
    }

    fn mark(applied: i64) -> Mark {
        Mark {
            topic_id: TopicId::from_slice(&[3; 16]).expect("16 bytes"),
            applied: Offset(applied),
            leader_epoch: LeaderEpoch(5),
            epoch: ShardEpoch(7),
            written_at: TimestampMs(11),
        }
    }

    fn exercise(view: &KeptView) {
        let many: Vec<_> = (0..10_000)
            .map(|n| record(&format!("g{n}"), true))
            .collect();
        view.write(4, mark(10_000), many, true).expect("written");
        view.write(5, mark(1), vec![record("other", true)], false)
            .expect("written");
        view.write(4, mark(10_001), vec![record("g0", false)], false)
            .expect("written");
        let (found, loading) = view.load(4).expect("read").expect("there");
        assert_eq!(found, mark(10_001));
        assert_eq!(loading.next(), Offset(10_001));
        let mut expected = Loading::<Group>::default();
        for n in 1..10_000 {
            let Encoded { key, value } = record(&format!("g{n}"), true);
            let applied = expected.apply(Offset(0), Some(&key), value.as_deref());
            applied.expect("a good record");
        }
        assert_eq!(loading.state_hash(), expected.state_hash());
        view.drop_shard(4).expect("dropped");
        assert!(view.load(4).expect("read").is_none());
        assert!(view.load(5).expect("read").is_some(), "another shard stays");
    }

    #[test]
    fn a_shard_comes_back_whole_and_alone() {
        exercise(&KeptView::in_memory());
        let folder = tempfile::tempdir().expect("a folder");
        exercise(&KeptView::open(folder.path()).expect("opened"));
    }

    /// Story: a store of a later version, or one that was damaged, is no view.
    #[test]
    fn a_mark_of_another_version_is_none() {
        let view = KeptView::in_memory();
        let mut bytes = encode(mark(5)).to_vec();
        assert_eq!(decode(&bytes), Some(mark(5)));
        bytes[0] = 3;
        view.kv
            .write(vec![KvOp::Put(mark_key(1), bytes.into())])
            .expect("written");
        assert_eq!(view.mark(1).expect("read"), None);
        assert_eq!(decode(b"\x02short"), None);
    }
}
