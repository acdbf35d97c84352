//! From keys to the newest offset of each, in bounded memory.
//!
//! A key is known by half of its SHA-256: keys are the clients', so that two of
//! them must not be made to look alike. An open table: a slot is 24 bytes, at
//! most seven of eight are used.

use sha2::{Digest as _, Sha256};
use talweg_types::Offset;

type Hash = [u64; 2];

#[derive(Clone, Copy)]
struct Slot {
    hash: Hash,
    /// -1: free.
    offset: i64,
}

const FREE: Slot = Slot {
    hash: [0; 2],
    offset: -1,
};

pub(super) struct KeyMap {
    slots: Vec<Slot>,
    used: usize,
    room: usize,
}

/// There is no room for one more key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Full;

impl KeyMap {
    /// For up to `keys` keys, or as many as fit into `bytes`, at least one.
    pub(super) fn new(bytes: usize, keys: u64) -> Self {
        let most = ((bytes / size_of::<Slot>()).saturating_sub(8) / 8 * 7).max(1);
        let room = usize::try_from(keys).unwrap_or(most).clamp(1, most);
        Self {
            slots: vec![FREE; room / 7 * 8 + 8],
            used: 0,
            room,
        }
    }

    /// `offset` is the newest so far.
    pub(super) fn insert(&mut self, key: &[u8], offset: Offset) -> Result<(), Full> {
        let hash = hash(key);
        let at = self.slot(hash);
        let Some(slot) = self.slots.get_mut(at) else {
            return Err(Full);
        };
        if slot.offset < 0 {
            if self.used == self.room {
                return Err(Full);
            }
            self.used += 1;
            slot.hash = hash;
        }
        slot.offset = offset.0;
        Ok(())
    }

    /// The newest offset of the key, if it was inserted.
    pub(super) fn newest(&self, key: &[u8]) -> Option<Offset> {
        let slot = self.slots.get(self.slot(hash(key)))?;
        (slot.offset >= 0).then_some(Offset(slot.offset))
    }

    /// Where the hash is, or would be: there is always a free slot.
    fn slot(&self, hash: Hash) -> usize {
        let count = self.slots.len();
        let mut at = usize::try_from(hash[0] % count as u64).unwrap_or(0);
        while let Some(slot) = self.slots.get(at) {
            if slot.offset < 0 || slot.hash == hash {
                break;
            }
            at = (at + 1) % count;
        }
        at
    }
}

fn hash(key: &[u8]) -> Hash {
    let digest = Sha256::digest(key);
    let word = |at: usize| {
        let bytes = digest.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u64::from_be_bytes(*bytes))
    };
    [word(0), word(8)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_newest_offset_of_each_key_is_known_until_the_room_is_used() {
        for bytes in [0, 100, 10_000, 1 << 20] {
            let mut map = KeyMap::new(bytes, 5000);
            let mut model = BTreeMap::new();
            let mut offset = 0;
            let full = loop {
                let key = format!("key {}", offset * 7919 % 3001);
                match map.insert(key.as_bytes(), Offset(offset)) {
                    Ok(()) => drop(model.insert(key, Offset(offset))),
                    Err(Full) => break true,
                }
                offset += 1;
                if offset == 10_000 {
                    break false;
                }
            };
            assert_eq!(full, bytes < 1 << 20, "{bytes} bytes");
            assert!(!model.is_empty());
            assert!(map.slots.len() * size_of::<Slot>() <= bytes.max(400));
            for (key, newest) in &model {
                assert_eq!(map.newest(key.as_bytes()), Some(*newest));
            }
            assert_eq!(map.newest(b"another"), None);
        }
    }
}
