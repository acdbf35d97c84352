//! The proof that what was read is what was sent: every row once, in the order
//! of its key, in one partition a key, with no byte changed.
//!
//! One [`Ledger`] is filled from the source, never from what the sender
//! believes it sent; another from what the reader got. [`prove`] compares them
//! and names what is wrong. Rows are compared by SHA-256 over key, value and
//! timestamp, each with its length, null apart from empty.
//!
//! Rows without a key have no order; they count as a set in which each may
//! occur several times.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// SHA-256 of a row.
type Digest = [u8; 32];

/// Findings that are kept; more are only counted.
const FINDINGS_MAX: usize = 20;

/// A record as it was sent or read.
#[derive(Clone, Copy, Debug)]
pub struct RecordRef<'a> {
    /// `None` is null.
    pub key: Option<&'a [u8]>,
    /// `None` is null.
    pub value: Option<&'a [u8]>,
    /// Milliseconds since 1970.
    pub timestamp_ms: i64,
}

/// What one side knows about all rows.
#[derive(Default, Debug, Clone)]
pub struct Ledger {
    keys: BTreeMap<Option<Bytes>, KeyRows>,
    partitions: BTreeMap<u32, PartitionRows>,
    rows: u64,
    bytes: u64,
    not_ascending: Vec<(u32, i64)>,
}

#[derive(Default, Debug, Clone)]
struct KeyRows {
    /// In the order of sending or reading.
    digests: Vec<Digest>,
    partitions: BTreeSet<u32>,
}

/// What was read from one partition.
#[derive(Default, Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionRows {
    /// Records.
    pub rows: u64,
    last_offset: Option<i64>,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Rows that were sent and not read.
    Dropped { key: String, rows: u64 },
    /// Rows that were read more often than sent.
    Doubled { key: String, rows: u64 },
    /// Rows that were read in the place of rows that were sent.
    Altered { key: String, rows: u64 },
    /// Rows that were read and never sent.
    Foreign { key: String, rows: u64 },
    /// A key's rows are all there, in another order; `at` counts from 0.
    Reordered { key: String, at: u64 },
    /// A key's rows lie in several partitions.
    Scattered { key: String, partitions: Vec<u32> },
    /// An offset that is not above the one read before it.
    NotAscending { partition: u32, offset: i64 },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dropped { key, rows } => {
                write!(f, "dropped: {rows} row(s) of {key} were sent and not read")
            }
            Self::Doubled { key, rows } => write!(
                f,
                "doubled: {rows} row(s) of {key} were read more often than sent"
            ),
            Self::Altered { key, rows } => write!(
                f,
                "altered: {rows} row(s) of {key} differ from what was sent"
            ),
            Self::Foreign { key, rows } => write!(
                f,
                "foreign: {rows} row(s) of {key} were read and never sent"
            ),
            Self::Reordered { key, at } => write!(
                f,
                "reordered: row {at} of {key} is not the one that was sent there"
            ),
            Self::Scattered { key, partitions } => {
                write!(f, "scattered: {key} lies in partitions {partitions:?}")
            }
            Self::NotAscending { partition, offset } => {
                write!(
                    f,
                    "not ascending: partition {partition} gave offset {offset} after one not below it"
                )
            }
        }
    }
}

/// Every row once, in order, unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proven {
    /// Rows on both sides.
    pub rows: u64,
    /// Different keys, null not counted.
    pub keys: u64,
    /// SHA-256 over all keys and their rows in order, in lower-case hex; equal on both sides.
    pub digest: String,
}

/// What does not hold; `findings` has the first few, `total` all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refuted {
    /// The first [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// How many there were.
    pub total: usize,
    /// Digest of what was sent.
    pub sent_digest: String,
    /// Digest of what was read.
    pub read_digest: String,
}

impl Ledger {
    /// Notes a row that is to be sent.
    pub fn sent(&mut self, record: RecordRef<'_>) {
        self.note(record);
    }

    /// Notes a record that was read; records of one partition come in offset order.
    pub fn read(&mut self, partition: u32, offset: i64, record: RecordRef<'_>) {
        self.note(record).partitions.insert(partition);
        let rows = self.partitions.entry(partition).or_default();
        if rows.last_offset.is_some_and(|last| offset <= last) {
            self.not_ascending.push((partition, offset));
        }
        rows.last_offset = Some(offset);
        rows.rows += 1;
    }

    fn note(&mut self, record: RecordRef<'_>) -> &mut KeyRows {
        self.rows += 1;
        self.bytes +=
            (record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len)) as u64;
        let key = record.key.map(Bytes::copy_from_slice);
        let rows = self.keys.entry(key).or_default();
        rows.digests.push(digest(record));
        rows
    }

    /// Rows noted.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes of their keys and values.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Rows read from each partition.
    pub fn partitions(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.partitions
            .iter()
            .map(|(partition, rows)| (*partition, rows.rows))
    }

    /// Over all keys and their rows in order.
    fn digest(&self) -> String {
        let mut all = Sha256::new();
        for (key, rows) in &self.keys {
            update_field(&mut all, key.as_deref());
            all.update((rows.digests.len() as u64).to_be_bytes());
            for digest in in_order(key.as_ref(), rows) {
                all.update(digest);
            }
        }
        all.finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

/// A key's rows as they are compared: without a key, order says nothing.
fn in_order(key: Option<&Bytes>, rows: &KeyRows) -> Vec<Digest> {
    let mut digests = rows.digests.clone();
    if key.is_none() {
        digests.sort_unstable();
    }
    digests
}

fn digest(record: RecordRef<'_>) -> Digest {
    let mut row = Sha256::new();
    update_field(&mut row, record.key);
    update_field(&mut row, record.value);
    row.update(record.timestamp_ms.to_be_bytes());
    row.finalize().into()
}

/// Null and empty differ, and no two fields run into each other.
fn update_field(hash: &mut Sha256, field: Option<&[u8]>) {
    let length = field.map_or(-1, |bytes| bytes.len() as i64);
    hash.update(length.to_be_bytes());
    hash.update(field.unwrap_or_default());
}

/// Compares what was read with what was sent.
pub fn prove(sent: &Ledger, read: &Ledger) -> Result<Proven, Box<Refuted>> {
    let mut findings: Vec<Finding> = read
        .not_ascending
        .iter()
        .map(|&(partition, offset)| Finding::NotAscending { partition, offset })
        .collect();
    let nothing = KeyRows::default();
    let keys: BTreeSet<&Option<Bytes>> = sent.keys.keys().chain(read.keys.keys()).collect();
    for key in keys {
        let (sent, read) = (
            sent.keys.get(key).unwrap_or(&nothing),
            read.keys.get(key).unwrap_or(&nothing),
        );
        compare_key(key.as_ref(), sent, read, &mut findings);
    }
    let (sent_digest, read_digest) = (sent.digest(), read.digest());
    if findings.is_empty() && sent_digest == read_digest {
        let keys = sent.keys.keys().filter(|key| key.is_some()).count() as u64;
        return Ok(Proven {
            rows: sent.rows,
            keys,
            digest: sent_digest,
        });
    }
    let total = findings.len();
    findings.truncate(FINDINGS_MAX);
    Err(Box::new(Refuted {
        findings,
        total,
        sent_digest,
        read_digest,
    }))
}

fn compare_key(key: Option<&Bytes>, sent: &KeyRows, read: &KeyRows, findings: &mut Vec<Finding>) {
    let name = || {
        key.map_or("rows without a key".to_owned(), |key| {
            format!("key {}", key.escape_ascii())
        })
    };
    if key.is_some() && read.partitions.len() > 1 {
        findings.push(Finding::Scattered {
            key: name(),
            partitions: read.partitions.iter().copied().collect(),
        });
    }
    let (sent_rows, read_rows) = (in_order(key, sent), in_order(key, read));
    if sent_rows == read_rows {
        return;
    }
    let counts = Counts::of(&sent_rows, &read_rows);
    let altered = counts.missing.min(counts.foreign);
    let before = findings.len();
    for (rows, finding) in [
        (
            altered,
            Finding::Altered {
                key: name(),
                rows: altered,
            },
        ),
        (
            counts.missing - altered,
            Finding::Dropped {
                key: name(),
                rows: counts.missing - altered,
            },
        ),
        (
            counts.foreign - altered,
            Finding::Foreign {
                key: name(),
                rows: counts.foreign - altered,
            },
        ),
        (
            counts.surplus,
            Finding::Doubled {
                key: name(),
                rows: counts.surplus,
            },
        ),
    ] {
        if rows > 0 {
            findings.push(finding);
        }
    }
    if findings.len() == before {
        let at = sent_rows
            .iter()
            .zip(&read_rows)
            .take_while(|(a, b)| a == b)
            .count() as u64;
        findings.push(Finding::Reordered { key: name(), at });
    }
}

/// How two sets of rows differ, where a row may occur several times.
struct Counts {
    /// Sent more often than read.
    missing: u64,
    /// Read and never sent.
    foreign: u64,
    /// Sent, and read more often than that.
    surplus: u64,
}

impl Counts {
    fn of(sent: &[Digest], read: &[Digest]) -> Self {
        let mut tally: BTreeMap<&Digest, (u64, u64)> = BTreeMap::new();
        for row in sent {
            tally.entry(row).or_default().0 += 1;
        }
        for row in read {
            tally.entry(row).or_default().1 += 1;
        }
        let mut counts = Self {
            missing: 0,
            foreign: 0,
            surplus: 0,
        };
        for (sent, read) in tally.into_values() {
            counts.missing += sent.saturating_sub(read);
            match sent {
                0 => counts.foreign += read,
                _ => counts.surplus += read.saturating_sub(sent),
            }
        }
        counts
    }
}

#[cfg(test)]
#[path = "proof_tests.rs"]
mod tests;
