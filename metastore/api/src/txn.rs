//! Compare-and-set transactions and their limits.

use crate::{KeyValue, LeaseId, MetastoreError, Revision};
use bytes::Bytes;
use std::collections::BTreeSet;

/// Compares and operations of one transaction together; etcd's default bound.
pub const MAX_TXN_OPERATIONS: usize = 128;
/// Keys and values of one transaction together; below etcd's 1.5 MiB request.
pub const MAX_TXN_BYTES: usize = 1 << 20;
pub const MAX_KEY_BYTES: usize = 1024;

/// A condition on one key's current entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Compare {
    /// Last put by exactly this revision.
    ModRevision {
        key: Bytes,
        revision: Revision,
    },
    Absent {
        key: Bytes,
    },
    Value {
        key: Bytes,
        value: Bytes,
    },
}

impl Compare {
    pub fn mod_revision(key: impl Into<Bytes>, revision: Revision) -> Self {
        Self::ModRevision {
            key: key.into(),
            revision,
        }
    }

    pub fn absent(key: impl Into<Bytes>) -> Self {
        Self::Absent { key: key.into() }
    }

    pub fn value(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self::Value {
            key: key.into(),
            value: value.into(),
        }
    }

    pub fn key(&self) -> &Bytes {
        match self {
            Self::ModRevision { key, .. } | Self::Absent { key } | Self::Value { key, .. } => key,
        }
    }

    /// Whether it holds for what is stored under its key.
    pub fn holds(&self, current: Option<&KeyValue>) -> bool {
        match self {
            Self::ModRevision { revision, .. } => {
                current.is_some_and(|entry| entry.mod_revision == *revision)
            }
            Self::Absent { .. } => current.is_none(),
            Self::Value { value, .. } => current.is_some_and(|entry| entry.value == *value),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::ModRevision { key, .. } | Self::Absent { key } => key.len(),
            Self::Value { key, value } => key.len() + value.len(),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// With [`LeaseId::NONE`] it stays until it is deleted; a put without a
    /// lease over one with a lease detaches it.
    Put {
        key: Bytes,
        value: Bytes,
        lease: LeaseId,
    },
    /// Of an absent key: nothing, and no revision.
    Delete { key: Bytes },
}

impl Op {
    pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self::Put {
            key: key.into(),
            value: value.into(),
            lease: LeaseId::NONE,
        }
    }

    pub fn put_with_lease(key: impl Into<Bytes>, value: impl Into<Bytes>, lease: LeaseId) -> Self {
        Self::Put {
            key: key.into(),
            value: value.into(),
            lease,
        }
    }

    pub fn delete(key: impl Into<Bytes>) -> Self {
        Self::Delete { key: key.into() }
    }

    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Put { key, value, .. } => key.len() + value.len(),
            Self::Delete { key } => key.len(),
        }
    }
}

/// If every compare holds, then do every operation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Txn {
    pub compares: Vec<Compare>,
    pub then: Vec<Op>,
}

impl Txn {
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn when(mut self, compare: Compare) -> Self {
        self.compares.push(compare);
        self
    }

    #[must_use]
    pub fn then(mut self, op: Op) -> Self {
        self.then.push(op);
        self
    }

    /// Compares and operations together.
    pub fn operations(&self) -> usize {
        self.compares.len() + self.then.len()
    }

    /// The rules that need no store: counts, sizes, no empty key, no key
    /// changed twice. Every backend calls this first.
    pub fn check(&self) -> Result<(), MetastoreError> {
        if self.operations() > MAX_TXN_OPERATIONS {
            let given = self.operations();
            return Err(MetastoreError::TooManyOperations {
                given,
                limit: MAX_TXN_OPERATIONS,
            });
        }
        let mut keys = self
            .compares
            .iter()
            .map(Compare::key)
            .chain(self.then.iter().map(Op::key));
        keys.try_for_each(|key| check_key(key))?;
        let given = self.compares.iter().map(Compare::bytes).sum::<usize>()
            + self.then.iter().map(Op::bytes).sum::<usize>();
        if given > MAX_TXN_BYTES {
            let what = "a transaction";
            return Err(MetastoreError::TooLarge {
                what,
                given,
                limit: MAX_TXN_BYTES,
            });
        }
        let mut changed = BTreeSet::new();
        match self.then.iter().find(|op| !changed.insert(op.key())) {
            Some(op) => Err(MetastoreError::DuplicateKey {
                key: op.key().clone(),
            }),
            None => Ok(()),
        }
    }
}

fn check_key(key: &[u8]) -> Result<(), MetastoreError> {
    match key.len() {
        0 => Err(MetastoreError::EmptyKey),
        given if given > MAX_KEY_BYTES => Err(MetastoreError::TooLarge {
            what: "a key",
            given,
            limit: MAX_KEY_BYTES,
        }),
        _ => Ok(()),
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TxnOutcome {
    /// Done, as this revision; the store's newest if nothing was to change.
    Committed { revision: Revision },
    /// Nothing was done. The current entries of the compared keys, in the order
    /// of the compares.
    Refused {
        revision: Revision,
        current: Vec<Option<KeyValue>>,
    },
}

impl TxnOutcome {
    /// The revision if it was committed.
    pub fn committed(&self) -> Option<Revision> {
        match self {
            Self::Committed { revision } => Some(*revision),
            Self::Refused { .. } => None,
        }
    }
}
