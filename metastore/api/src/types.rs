//! Revisions, entries, events and leases.

use crate::MetastoreError;
use bytes::Bytes;
use futures::stream::BoxStream;
use std::{fmt, time::Duration};

/// Counts committed transactions that changed something. An empty store is at
/// revision 1; 0 is "none".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Revision(pub u64);

impl Revision {
    pub const NONE: Self = Self(0);
    pub const FIRST: Self = Self(1);

    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// 0 is "no lease".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LeaseId(pub i64);

impl LeaseId {
    pub const NONE: Self = Self(0);

    pub fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    pub id: LeaseId,
    /// What was granted; at least what was asked for.
    pub ttl: Duration,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyValue {
    pub key: Bytes,
    pub value: Bytes,
    /// The revision that put the key when it was absent.
    pub create_revision: Revision,
    /// The revision that last put it.
    pub mod_revision: Revision,
    /// Puts since it was created, from 1.
    pub version: u64,
    pub lease: LeaseId,
}

/// The answer of a range read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ranged {
    /// The store's newest revision when it was read (not the one asked for).
    pub revision: Revision,
    pub entries: Vec<KeyValue>,
    /// The limit cut it short.
    pub more: bool,
}

/// One change of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    Put(KeyValue),
    Delete { key: Bytes, revision: Revision },
}

impl Event {
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put(entry) => &entry.key,
            Self::Delete { key, .. } => key,
        }
    }

    pub fn revision(&self) -> Revision {
        match self {
            Self::Put(entry) => entry.mod_revision,
            Self::Delete { revision, .. } => *revision,
        }
    }
}

/// A watch says something at least this often, also when nothing changes, so
/// that a silent one can be told from a broken one.
pub const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WatchItem {
    /// All changes of one revision within the watched range, never split.
    Events {
        revision: Revision,
        events: Vec<Event>,
    },
    /// Everything up to and including `revision` has been delivered.
    Progress { revision: Revision },
}

impl WatchItem {
    pub fn revision(&self) -> Revision {
        match self {
            Self::Events { revision, .. } | Self::Progress { revision } => *revision,
        }
    }
}

/// Ends after its first error.
pub type WatchStream = BoxStream<'static, Result<WatchItem, MetastoreError>>;
