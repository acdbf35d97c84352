//! The checker: what was acknowledged against what can be read.
//!
//! Each written value is unique and names its writer and number, so that a
//! record can be recognised wherever it turns up.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

/// A write whose acknowledgement arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acked {
    pub partition: u32,
    pub offset: i64,
    /// Order is promised among the records of one writer in one partition.
    pub writer: u32,
    pub value: Vec<u8>,
}

/// A record that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    pub partition: u32,
    pub offset: i64,
    pub value: Vec<u8>,
}

/// What is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// Acknowledged, and nowhere to be read.
    Lost(Acked),
    /// One value at two places.
    Doubled {
        value: Vec<u8>,
        first: i64,
        second: i64,
    },
    /// Acknowledged at one offset, read at another.
    Moved { acked: Acked, read_at: i64 },
    /// Two different values were acknowledged or read at one offset.
    OffsetReused { partition: u32, offset: i64 },
    /// A writer's records are not in the order of their acknowledgement.
    Reordered {
        writer: u32,
        partition: u32,
        offset: i64,
    },
    /// Offsets read do not ascend, or leave out some.
    Gap {
        partition: u32,
        after: i64,
        next: i64,
    },
    /// Read, and never sent by anybody.
    Invented(Seen),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Compares; an empty answer is a clean history. `acked` is in the order in
/// which each writer sent; `seen` in the order of reading, from the log start
/// to the end; `sent` are all values that anybody ever tried to write.
pub fn check(acked: &[Acked], seen: &[Seen], sent: &BTreeSet<Vec<u8>>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut at: HashMap<&[u8], &Seen> = HashMap::new();
    let mut last: BTreeMap<u32, i64> = BTreeMap::new();
    let mut values: HashMap<(u32, i64), &[u8]> = HashMap::new();
    for read in seen {
        if let Some(first) = at.insert(&read.value, read) {
            let value = read.value.clone();
            findings.push(Finding::Doubled {
                value,
                first: first.offset,
                second: read.offset,
            });
        }
        if values
            .insert((read.partition, read.offset), &read.value)
            .is_some_and(|v| v != read.value)
        {
            findings.push(Finding::OffsetReused {
                partition: read.partition,
                offset: read.offset,
            });
        }
        if let Some(after) = last.insert(read.partition, read.offset)
            && read.offset != after + 1
        {
            findings.push(Finding::Gap {
                partition: read.partition,
                after,
                next: read.offset,
            });
        }
        if !sent.contains(&read.value) {
            findings.push(Finding::Invented(read.clone()));
        }
    }
    let mut acked_at: HashMap<(u32, i64), &[u8]> = HashMap::new();
    let mut order: BTreeMap<(u32, u32), i64> = BTreeMap::new();
    for ack in acked {
        if acked_at
            .insert((ack.partition, ack.offset), &ack.value)
            .is_some_and(|v| v != ack.value)
        {
            findings.push(Finding::OffsetReused {
                partition: ack.partition,
                offset: ack.offset,
            });
        }
        match at.get(ack.value.as_slice()) {
            None => findings.push(Finding::Lost(ack.clone())),
            Some(read) if (read.partition, read.offset) != (ack.partition, ack.offset) => {
                findings.push(Finding::Moved {
                    acked: ack.clone(),
                    read_at: read.offset,
                });
            }
            Some(_) => {}
        }
        if let Some(before) = order.insert((ack.writer, ack.partition), ack.offset)
            && before >= ack.offset
        {
            let (writer, partition, offset) = (ack.writer, ack.partition, ack.offset);
            findings.push(Finding::Reordered {
                writer,
                partition,
                offset,
            });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history() -> (Vec<Acked>, Vec<Seen>, BTreeSet<Vec<u8>>) {
        let value = |p: u32, o: i64| format!("w0-{p}-{o}").into_bytes();
        let places = || (0..2).flat_map(|p| (0..5).map(move |o| (p, o)));
        let acked = places()
            .map(|(partition, offset)| Acked {
                partition,
                offset,
                writer: 0,
                value: value(partition, offset),
            })
            .collect();
        let seen: Vec<_> = places()
            .map(|(partition, offset)| Seen {
                partition,
                offset,
                value: value(partition, offset),
            })
            .collect();
        let sent = seen.iter().map(|s| s.value.clone()).collect();
        (acked, seen, sent)
    }

    #[test]
    fn a_clean_history_has_no_findings() {
        let (acked, seen, sent) = history();
        assert_eq!(check(&acked, &seen, &sent), []);
    }

    /// Each way to spoil a history is found by its name.
    #[test]
    fn doctored_histories_are_rejected() {
        type Spoil = fn(&mut Vec<Acked>, &mut Vec<Seen>);
        let cases: [(&str, Spoil); 7] = [
            ("Lost", |_, seen| drop(seen.remove(4))),
            ("Gap", |_, seen| drop(seen.remove(2))),
            ("Doubled", |_, seen| {
                let mut again = seen[4].clone();
                again.offset = 5;
                seen.insert(5, again);
            }),
            ("Moved", |_, seen| {
                let first = seen[1].value.clone();
                seen[1].value = std::mem::replace(&mut seen[2].value, first);
            }),
            ("OffsetReused", |_, seen| {
                let mut other = seen[3].clone();
                other.value = seen[9].value.clone();
                seen.push(other);
            }),
            ("Reordered", |acked, _| acked.swap(1, 2)),
            ("Invented", |_, seen| {
                seen[0].value = b"from nowhere".to_vec()
            }),
        ];
        for (name, spoil) in cases {
            let (mut acked, mut seen, sent) = history();
            spoil(&mut acked, &mut seen);
            let findings = check(&acked, &seen, &sent);
            let named = findings.iter().any(|f| format!("{f:?}").starts_with(name));
            assert!(named, "{name} not among {findings:?}");
        }
    }
}
