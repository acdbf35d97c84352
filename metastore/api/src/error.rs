//! What can go wrong, whether to try again, and whether it may have happened.

use crate::{LeaseId, Revision};
use bytes::Bytes;
use thiserror::Error;

/// Whether a failed transaction may have taken effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Happened {
    /// Certainly not.
    No,
    /// It may have. Read before deciding.
    Unknown,
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum MetastoreError {
    #[error(
        "a transaction has at most {limit} compares and operations together, this one has {given}"
    )]
    TooManyOperations { given: usize, limit: usize },
    #[error("{what} has at most {limit} bytes, this one has {given}")]
    TooLarge {
        what: &'static str,
        given: usize,
        limit: usize,
    },
    #[error("a key must not be empty")]
    EmptyKey,
    #[error("a transaction changes each key at most once, {key:?} twice")]
    DuplicateKey { key: Bytes },
    #[error("history before revision {oldest} is compacted; read again and watch on from there")]
    Compacted { oldest: Revision },
    #[error("revision {asked} is not there yet, the newest is {newest}")]
    FutureRevision { asked: Revision, newest: Revision },
    #[error("lease {lease} does not exist or has expired")]
    LeaseNotFound { lease: LeaseId },
    /// The store cannot be reached or is shutting down; nothing was done.
    #[error("the metastore is unavailable: {reason}")]
    Unavailable { reason: String },
    /// The call broke off after it was sent.
    #[error("the metastore did not answer, the change may have been made: {reason}")]
    Unknown { reason: String },
    /// The store's own medium failed. It does nothing more until reopened.
    #[error("the metastore has failed and must be reopened: {reason}")]
    Failed { reason: String },
}

impl MetastoreError {
    /// Whether the transaction that got this error may have taken effect.
    pub fn happened(&self) -> Happened {
        match self {
            Self::Unknown { .. } | Self::Failed { .. } => Happened::Unknown,
            Self::TooManyOperations { .. }
            | Self::TooLarge { .. }
            | Self::EmptyKey
            | Self::DuplicateKey { .. }
            | Self::Compacted { .. }
            | Self::FutureRevision { .. }
            | Self::LeaseNotFound { .. }
            | Self::Unavailable { .. } => Happened::No,
        }
    }

    /// Whether the same call may succeed later.
    pub fn is_retriable(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Unknown { .. })
    }
}
