//! The checks. Each is a pass of its own over the history; an empty answer is a
//! clean one.

use super::{Bounds, Finding, History, Outcome, Poll, Send, StepBack};
use std::collections::{BTreeMap, HashMap, HashSet};

type Place = (u32, i64);

/// Compares everything with everything.
pub fn check(history: &History) -> Vec<Finding> {
    let facts = Facts::gather(history);
    let mut findings = Vec::new();
    offsets_are_consistent(history, &facts, &mut findings);
    values_are_single(&facts, &mut findings);
    writes_last(history, &facts, &mut findings);
    reads_last(&facts, &mut findings);
    reads_were_written(&facts, &mut findings);
    ends_have_no_gap(history, &mut findings);
    readers_move_on(history, &facts, &mut findings);
    everything_is_seen(history, &mut findings);
    sends_are_in_order(history, &mut findings);
    keys_are_in_order(history, &facts, &mut findings);
    bounds_never_step_back(history, &mut findings);
    findings
}

/// What nobody's end changes: bounds as they were told.
pub fn check_bounds(history: &History) -> Vec<Finding> {
    let mut findings = Vec::new();
    bounds_never_step_back(history, &mut findings);
    findings
}

/// Look-ups that several checks need.
struct Facts<'h> {
    /// Value → where it is at the end (the last place, if it is there twice).
    at: HashMap<&'h [u8], Place>,
    /// What was read, by polls and at the end: (reader, place, value); the end has no reader.
    read: Vec<(Option<u32>, Place, &'h [u8])>,
    /// Value → what became of its call.
    sent: HashMap<&'h [u8], Outcome>,
    /// Offsets at which something is known to be.
    known: HashSet<Place>,
}

impl<'h> Facts<'h> {
    fn gather(history: &'h History) -> Self {
        let mut read = Vec::new();
        for poll in &history.polls {
            let records = poll.records.iter();
            read.extend(records.map(|(offset, value)| {
                (
                    Some(poll.client),
                    (poll.partition, *offset),
                    value.as_slice(),
                )
            }));
        }
        let mut at = HashMap::new();
        for (partition, records) in &history.end {
            for (offset, value) in records {
                at.insert(value.as_slice(), (*partition, *offset));
                read.push((None, (*partition, *offset), value.as_slice()));
            }
        }
        let sent = history
            .sends
            .iter()
            .flat_map(|send| send.values.iter().map(|v| (v.as_slice(), send.outcome)))
            .collect();
        let known = read.iter().map(|(_, place, _)| *place).collect();
        Self {
            at,
            read,
            sent,
            known,
        }
    }
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

/// Offsets and values of an acknowledged call.
fn places(send: &Send) -> impl Iterator<Item = (i64, &[u8])> {
    let base = match send.outcome {
        Outcome::Ok { base } => Some(base),
        Outcome::Failed | Outcome::Unknown => None,
    };
    base.into_iter()
        .flat_map(|base| (base..).zip(send.values.iter().map(Vec::as_slice)))
}

fn offsets_are_consistent(history: &History, facts: &Facts<'_>, findings: &mut Vec<Finding>) {
    let mut values: HashMap<Place, &[u8]> = HashMap::new();
    let acked = history
        .sends
        .iter()
        .filter(|send| send.lasting)
        .flat_map(|send| places(send).map(|(offset, value)| ((send.partition, offset), value)));
    let read = facts.read.iter().map(|(_, place, value)| (*place, *value));
    for (place, value) in acked.chain(read) {
        let first = *values.entry(place).or_insert(value);
        if first != value {
            findings.push(Finding::InconsistentOffset {
                partition: place.0,
                offset: place.1,
                values: [text(first), text(value)],
            });
        }
    }
}

fn values_are_single(facts: &Facts<'_>, findings: &mut Vec<Finding>) {
    let mut first: HashMap<&[u8], Place> = HashMap::new();
    for (_, place, value) in &facts.read {
        let before = *first.entry(value).or_insert(*place);
        if before != *place {
            findings.push(Finding::Duplicate {
                value: text(value),
                first: before,
                second: *place,
            });
        }
    }
}

fn writes_last(history: &History, facts: &Facts<'_>, findings: &mut Vec<Finding>) {
    for send in history.sends.iter().filter(|send| send.lasting) {
        for (offset, value) in places(send) {
            match facts.at.get(value) {
                None => findings.push(Finding::LostWrite {
                    client: send.client,
                    partition: send.partition,
                    offset,
                    value: text(value),
                }),
                Some(place) if *place != (send.partition, offset) => {
                    findings.push(Finding::Duplicate {
                        value: text(value),
                        first: (send.partition, offset),
                        second: *place,
                    });
                }
                Some(_) => {}
            }
        }
    }
}

fn reads_last(facts: &Facts<'_>, findings: &mut Vec<Finding>) {
    for (reader, place, value) in &facts.read {
        if let Some(client) = reader
            && !facts.at.contains_key(value)
        {
            findings.push(Finding::Vanished {
                client: *client,
                partition: place.0,
                offset: place.1,
                value: text(value),
            });
        }
    }
}

fn reads_were_written(facts: &Facts<'_>, findings: &mut Vec<Finding>) {
    for (_, (partition, offset), value) in &facts.read {
        let (partition, offset, value_text) = (*partition, *offset, text(value));
        match facts.sent.get(value) {
            None => findings.push(Finding::Invented {
                partition,
                offset,
                value: value_text,
            }),
            Some(Outcome::Failed) => findings.push(Finding::AbortedRead {
                partition,
                offset,
                value: value_text,
            }),
            Some(Outcome::Ok { .. } | Outcome::Unknown) => {}
        }
    }
}

fn ends_have_no_gap(history: &History, findings: &mut Vec<Finding>) {
    for (partition, records) in &history.end {
        for pair in records.windows(2) {
            let (after, next) = (pair[0].0, pair[1].0);
            if next != after + 1 {
                findings.push(Finding::Gap {
                    partition: *partition,
                    after,
                    next,
                });
            }
        }
    }
}

/// Polls of one reader of one partition, in order.
fn by_reader(history: &History) -> BTreeMap<(u32, u32), Vec<&Poll>> {
    let mut readers: BTreeMap<_, Vec<&Poll>> = BTreeMap::new();
    for poll in &history.polls {
        let key = (poll.client, poll.partition);
        readers.entry(key).or_default().push(poll);
    }
    readers
}

fn readers_move_on(history: &History, facts: &Facts<'_>, findings: &mut Vec<Finding>) {
    for ((client, partition), polls) in by_reader(history) {
        let mut position: Option<i64> = None;
        for poll in polls {
            position = poll.seek.or(position);
            let offsets = poll.records.iter().map(|(offset, _)| (*offset, offset + 1));
            // The end of a frame counts like a record of no length.
            for (offset, next) in offsets.chain([(poll.next, poll.next)]) {
                let expected = position.unwrap_or(offset);
                if offset < expected {
                    findings.push(Finding::NonMonotonicPoll {
                        client,
                        partition,
                        position: expected,
                        offset,
                    });
                }
                let passed =
                    (expected..offset).filter(|passed| facts.known.contains(&(partition, *passed)));
                findings.extend(passed.map(|offset| Finding::SkippedPoll {
                    client,
                    partition,
                    offset,
                }));
                position = Some(next);
            }
        }
    }
}

fn everything_is_seen(history: &History, findings: &mut Vec<Finding>) {
    let mut readers = by_reader(history);
    // Who was to read a partition and was given nothing of it has no poll.
    for client in &history.readers {
        for partition in history.end.keys() {
            readers.entry((*client, *partition)).or_default();
        }
    }
    for ((client, partition), polls) in readers {
        let seen: HashSet<i64> = polls
            .iter()
            .flat_map(|poll| poll.records.iter().map(|(offset, _)| *offset))
            .collect();
        let begin = polls.first().and_then(|poll| poll.seek).unwrap_or(0);
        let there = history.end.get(&partition).into_iter().flatten();
        findings.extend(
            there
                .map(|(offset, _)| *offset)
                .filter(|offset| *offset >= begin && !seen.contains(offset))
                .map(|offset| Finding::Unseen {
                    client,
                    partition,
                    offset,
                }),
        );
    }
}

fn sends_are_in_order(history: &History, findings: &mut Vec<Finding>) {
    let mut clients: BTreeMap<(u32, u32), Vec<&Send>> = BTreeMap::new();
    for send in history.sends.iter().filter(|send| send.lasting) {
        let key = (send.client, send.partition);
        clients.entry(key).or_default().push(send);
    }
    for ((client, partition), mut sends) in clients {
        sends.sort_by_key(|send| send.number);
        let mut after = -1;
        for (base, last) in sends.iter().filter_map(|send| ends_of(send)) {
            if base <= after {
                findings.push(Finding::NonMonotonicSend {
                    client,
                    partition,
                    after,
                    offset: base,
                });
            }
            after = last;
        }
    }
}

fn ends_of(send: &Send) -> Option<(i64, i64)> {
    let mut offsets = places(send).map(|(offset, _)| offset);
    let first = offsets.next()?;
    Some((first, offsets.last().unwrap_or(first)))
}

/// In the log as it is at the end: the records of one call beside each other,
/// those of one key as they were sent. Only calls with an answer are bound to an
/// order; one without may have been carried out at any later time.
fn keys_are_in_order(history: &History, facts: &Facts<'_>, findings: &mut Vec<Finding>) {
    let mut keys: BTreeMap<(u32, u32, &[u8]), Vec<&Send>> = BTreeMap::new();
    for send in &history.sends {
        let key = (send.client, send.partition, send.key.as_slice());
        keys.entry(key).or_default().push(send);
    }
    for ((client, partition, key), mut sends) in keys {
        sends.sort_by_key(|send| send.number);
        let mut latest = -1;
        for send in sends {
            let found = send.values.iter().map(|v| facts.at.get(v.as_slice()));
            let offsets: Vec<i64> = found.flatten().map(|place| place.1).collect();
            for pair in offsets.windows(2).filter(|pair| pair[1] != pair[0] + 1) {
                findings.push(Finding::SkippedSend {
                    client,
                    partition,
                    after: pair[0],
                    next: pair[1],
                });
            }
            let (Some(first), Outcome::Ok { .. }) = (offsets.first(), send.outcome) else {
                continue;
            };
            if *first <= latest {
                findings.push(Finding::KeyOrder {
                    client,
                    partition,
                    key: text(key),
                    offset: *first,
                });
            }
            latest = offsets.last().copied().unwrap_or(latest);
        }
    }
}

fn bounds_never_step_back(history: &History, findings: &mut Vec<Finding>) {
    let mut last: BTreeMap<(&str, u32), &Bounds> = BTreeMap::new();
    for now in &history.bounds {
        let bounds = [now.log_start, now.last_stable, now.high_watermark];
        if !bounds.is_sorted() {
            findings.push(Finding::Bounds {
                observer: now.observer.clone(),
                partition: now.partition,
                bounds,
            });
        }
        let Some(before) = last.insert((&now.observer, now.partition), now) else {
            continue;
        };
        let pairs = [
            (StepBack::LogStart, before.log_start, now.log_start),
            (StepBack::LastStable, before.last_stable, now.last_stable),
            (
                StepBack::HighWatermark,
                before.high_watermark,
                now.high_watermark,
            ),
        ];
        for (what, from, to) in pairs.into_iter().filter(|(_, from, to)| to < from) {
            findings.push(Finding::SteppedBack {
                observer: now.observer.clone(),
                partition: now.partition,
                what,
                from,
                to,
            });
        }
    }
}
