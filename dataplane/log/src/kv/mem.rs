//! [`IndexKv`] in memory, for tests and the simulator. Because the index may at
//! any time be lost, older or newer than the log, a test can clear it or put
//! back any state it once had.

use std::{collections::BTreeMap, ops::Bound};

use bytes::Bytes;
use parking_lot::RwLock;

use super::{IndexKv, KvError, KvOp};

type Map = BTreeMap<Bytes, Bytes>;

/// An index store that lives as long as the value does.
#[derive(Default, Debug)]
pub struct MemKv {
    map: RwLock<Map>,
}

/// Everything a [`MemKv`] held at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemKvSnapshot(Map);

impl MemKv {
    pub fn new() -> Self {
        Self::default()
    }

    /// The whole state as it is now.
    pub fn snapshot(&self) -> MemKvSnapshot {
        MemKvSnapshot(self.map.read().clone())
    }

    /// Puts back an earlier (or another store's) state.
    pub fn restore(&self, snapshot: &MemKvSnapshot) {
        *self.map.write() = snapshot.0.clone();
    }

    /// Forgets everything, as when the folder was deleted.
    pub fn clear(&self) {
        self.map.write().clear();
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.map.read().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl IndexKv for MemKv {
    fn write(&self, ops: Vec<KvOp>) -> Result<(), KvError> {
        let mut map = self.map.write();
        for op in ops {
            match op {
                KvOp::Put(key, value) => {
                    map.insert(key, value);
                }
                KvOp::Delete(key) => {
                    map.remove(&key);
                }
                KvOp::DeleteRange(low, high) => delete_range(&mut map, &low, &high),
            }
        }
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        Ok(self.map.read().get(key).cloned())
    }

    fn last_in(&self, low: &[u8], high: &[u8]) -> Result<Option<(Bytes, Bytes)>, KvError> {
        if low > high {
            return Ok(None);
        }
        let range = (Bound::Included(low), Bound::Included(high));
        let map = self.map.read();
        Ok(map.range::<[u8], _>(range).next_back().map(owned))
    }

    fn scan(&self, low: &[u8], high: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, KvError> {
        if low >= high {
            return Ok(Vec::new());
        }
        let range = (Bound::Included(low), Bound::Excluded(high));
        let map = self.map.read();
        Ok(map.range::<[u8], _>(range).take(limit).map(owned).collect())
    }
}

fn owned((key, value): (&Bytes, &Bytes)) -> (Bytes, Bytes) {
    (key.clone(), value.clone())
}

fn delete_range(map: &mut Map, low: &Bytes, high: &Bytes) {
    if low >= high {
        return;
    }
    let mut from_low = map.split_off(low);
    let mut from_high = from_low.split_off(high);
    map.append(&mut from_high);
}
