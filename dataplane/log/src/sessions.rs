//! Producer sessions: recognising repeats, gaps and fenced writers at append.
//!
//! A session is a producer id, its epoch and its last five batches with their
//! offsets. It lives by its own expiry, counted from the append time of its
//! last batch, not by retention of records: it is saved in `sessions` files and
//! what came since is replayed from the log. The state after a batch depends on
//! the state before it and the batch alone, so that serving, following and
//! restarting agree; what has expired is dropped on look-up and now and then.

use crate::{
    config::PRODUCER_SESSIONS_MAX,
    error::AppendError,
    sidecar::sessions::{RememberedBatch, SessionEntry},
};
use std::collections::BTreeMap;
use talweg_batch::BatchHeader;
use talweg_types::{
    Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs, limits::REMEMBERED_BATCHES,
};

/// Sequences this far behind the expected one are repeats, further are gaps:
/// half of the number circle.
const BEHIND: i32 = 1 << 30;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Session {
    epoch: ProducerEpoch,
    /// Oldest first; never empty.
    batches: Vec<RememberedBatch>,
}

/// What the session says of a batch that wants in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Accept,
    /// The same batch is in the log.
    Repeat(RememberedBatch),
    /// It was in the log, at offsets below this; which is no longer remembered.
    OldRepeat {
        below: Offset,
    },
}

#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Sessions {
    by_producer: BTreeMap<i64, Session>,
}

impl Session {
    fn last(&self) -> Option<&RememberedBatch> {
        self.batches.last()
    }

    fn expired(&self, now: TimestampMs, expiration_ms: u64) -> bool {
        self.last()
            .is_none_or(|last| is_older(last.append_time, now, expiration_ms))
    }
}

/// Whether `then` is more than `age_ms` before `now`.
pub(crate) fn is_older(then: TimestampMs, now: TimestampMs, age_ms: u64) -> bool {
    i128::from(now.0) - i128::from(then.0) > i128::from(age_ms)
}

impl Sessions {
    pub(crate) fn len(&self) -> usize {
        self.by_producer.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_producer.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.by_producer.clear();
    }

    /// Judges a batch; changes nothing.
    pub(crate) fn check(
        &self,
        header: &BatchHeader,
        now: TimestampMs,
        expiration_ms: u64,
    ) -> Result<Verdict, AppendError> {
        if !header.has_producer() {
            return Ok(Verdict::Accept);
        }
        let known = self
            .by_producer
            .get(&header.producer_id.0)
            .filter(|session| !session.expired(now, expiration_ms));
        let starts = header.base_sequence == Sequence(0);
        let Some(session) = known else {
            return if starts {
                Ok(Verdict::Accept)
            } else {
                Err(AppendError::UnknownProducer)
            };
        };
        if header.producer_epoch < session.epoch {
            return Err(AppendError::Fenced {
                current: session.epoch,
            });
        }
        if header.producer_epoch > session.epoch {
            let expected = Sequence(0);
            return if starts {
                Ok(Verdict::Accept)
            } else {
                Err(AppendError::OutOfOrderSequence { expected })
            };
        }
        session.check_sequence(header)
    }

    /// A batch of a producer is in the log at `header.base_offset`.
    pub(crate) fn apply(&mut self, header: &BatchHeader, append_time: TimestampMs) {
        if !header.has_producer() {
            return;
        }
        let batch = RememberedBatch {
            first_sequence: header.base_sequence,
            last_sequence: last_sequence(header),
            base_offset: header.base_offset,
            last_offset: header.last_offset(),
            append_time,
        };
        let session = self
            .by_producer
            .entry(header.producer_id.0)
            .or_insert_with(|| Session {
                epoch: header.producer_epoch,
                batches: Vec::with_capacity(1),
            });
        let follows = session
            .last()
            .is_none_or(|last| last.last_sequence.plus(1) == batch.first_sequence);
        if session.epoch != header.producer_epoch || !follows {
            session.epoch = header.producer_epoch;
            session.batches.clear();
        }
        if session.batches.len() == REMEMBERED_BATCHES {
            session.batches.remove(0);
        }
        session.batches.push(batch);
        if self.by_producer.len() > PRODUCER_SESSIONS_MAX {
            self.forget_idlest();
        }
    }

    /// The producer's session as it is, for taking back an append that failed.
    pub(crate) fn get(&self, producer: ProducerId) -> Option<Session> {
        self.by_producer.get(&producer.0).cloned()
    }

    pub(crate) fn restore(&mut self, producer: ProducerId, session: Option<Session>) {
        match session {
            Some(session) => self.by_producer.insert(producer.0, session),
            None => self.by_producer.remove(&producer.0),
        };
    }

    pub(crate) fn expire(&mut self, now: TimestampMs, expiration_ms: u64) {
        self.by_producer
            .retain(|_, session| !session.expired(now, expiration_ms));
    }

    /// Forgets every hundredth part, the longest idle; such a producer is
    /// told that it is unknown, never that a repeat is new.
    fn forget_idlest(&mut self) {
        let mut times: Vec<i64> = self
            .by_producer
            .values()
            .filter_map(|session| session.last().map(|last| last.append_time.0))
            .collect();
        let index = times.len() / 100;
        let (_, bound, _) = times.select_nth_unstable(index);
        let bound = *bound;
        let mut left = index + 1;
        self.by_producer.retain(|_, session| {
            let idle = left > 0
                && session
                    .last()
                    .is_none_or(|last| last.append_time.0 <= bound);
            left -= usize::from(idle);
            !idle
        });
    }

    pub(crate) fn entries(&self, now: TimestampMs, expiration_ms: u64) -> Vec<SessionEntry> {
        let live = self
            .by_producer
            .iter()
            .filter(|(_, session)| !session.expired(now, expiration_ms));
        live.map(|(id, session)| SessionEntry {
            producer: ProducerId(*id),
            epoch: session.epoch,
            batches: session.batches.clone(),
        })
        .collect()
    }

    pub(crate) fn load(entries: &[SessionEntry]) -> Self {
        let session = |entry: &SessionEntry| Session {
            epoch: entry.epoch,
            batches: entry.batches.clone(),
        };
        Self {
            by_producer: entries
                .iter()
                .map(|entry| (entry.producer.0, session(entry)))
                .collect(),
        }
    }

    /// Every remembered batch ends below the log end; names one that does not.
    pub(crate) fn check_below(&self, log_end: Offset) -> Result<(), String> {
        for (id, session) in &self.by_producer {
            if session.batches.is_empty() || session.batches.len() > REMEMBERED_BATCHES {
                return Err(format!(
                    "producer {id} remembers {} batches",
                    session.batches.len()
                ));
            }
            if session
                .last()
                .is_some_and(|last| last.last_offset >= log_end)
            {
                return Err(format!(
                    "producer {id} remembers a batch at or above the log end {log_end}"
                ));
            }
        }
        Ok(())
    }
}

impl Session {
    fn check_sequence(&self, header: &BatchHeader) -> Result<Verdict, AppendError> {
        let last_of_batch = last_sequence(header);
        let same = |known: &&RememberedBatch| {
            known.first_sequence == header.base_sequence && known.last_sequence == last_of_batch
        };
        if let Some(known) = self.batches.iter().find(same) {
            return Ok(Verdict::Repeat(*known));
        }
        let Some((first, last)) = self.batches.first().zip(self.last()) else {
            return Err(AppendError::UnknownProducer);
        };
        let expected = last.last_sequence.plus(1);
        if header.base_sequence == expected {
            return Ok(Verdict::Accept);
        }
        // Ends before the oldest that is remembered, within half the circle.
        let behind = distance(last_of_batch, first.first_sequence);
        if behind > 0 && behind < BEHIND && distance(header.base_sequence, last_of_batch) < BEHIND {
            return Ok(Verdict::OldRepeat {
                below: first.base_offset,
            });
        }
        Err(AppendError::OutOfOrderSequence { expected })
    }
}

/// Steps from `from` forward to `to` on the circle of 2^31 numbers.
fn distance(from: Sequence, to: Sequence) -> i32 {
    let steps = (i64::from(to.0) - i64::from(from.0)).rem_euclid(1 << 31);
    i32::try_from(steps).unwrap_or(i32::MAX)
}

/// The sequence of a batch's last record.
fn last_sequence(header: &BatchHeader) -> Sequence {
    header.base_sequence.plus(header.last_offset_delta)
}

#[cfg(test)]
mod tests {
    use super::*;
    use talweg_types::LeaderEpoch;

    const HOUR: u64 = 3_600_000;

    fn header(epoch: i16, sequence: i32, records: i32, base: i64) -> BatchHeader {
        BatchHeader {
            base_offset: Offset(base),
            batch_length: 100,
            leader_epoch: LeaderEpoch(1),
            crc: 0,
            attributes: 0,
            last_offset_delta: records - 1,
            first_timestamp: TimestampMs(0),
            max_timestamp: TimestampMs(0),
            producer_id: ProducerId(7),
            producer_epoch: ProducerEpoch(epoch),
            base_sequence: Sequence(sequence),
            record_count: records,
        }
    }

    fn check(sessions: &Sessions, header: &BatchHeader) -> Result<Verdict, AppendError> {
        sessions.check(header, TimestampMs(0), HOUR)
    }

    #[test]
    fn sequences_go_around_the_circle_and_repeats_are_told_from_gaps_on_both_sides() {
        let mut sessions = Sessions::default();
        // The first batch reaches the end of the circle, as after 2^31 records.
        let edge = header(0, i32::MAX - 1, 2, 0);
        sessions.apply(&edge, TimestampMs(0));
        assert!(matches!(check(&sessions, &edge), Ok(Verdict::Repeat(_))));
        let over = header(0, 0, 3, 2);
        assert_eq!(check(&sessions, &over), Ok(Verdict::Accept));
        sessions.apply(&over, TimestampMs(0));
        assert!(matches!(check(&sessions, &edge), Ok(Verdict::Repeat(_))));
        let older = header(0, i32::MAX - 9, 4, 0);
        assert_eq!(
            check(&sessions, &older),
            Ok(Verdict::OldRepeat { below: Offset(0) })
        );
        let gap = check(&sessions, &header(0, 9, 1, 0));
        assert_eq!(
            gap,
            Err(AppendError::OutOfOrderSequence {
                expected: Sequence(3)
            })
        );
        // Reaches from before the remembered into them: another batch.
        let overlap = check(&sessions, &header(0, i32::MAX - 3, 4, 0));
        assert_eq!(
            overlap,
            Err(AppendError::OutOfOrderSequence {
                expected: Sequence(3)
            })
        );
        // A batch that itself crosses the edge.
        let mut sessions = Sessions::default();
        sessions.apply(&header(0, i32::MAX, 1, 0), TimestampMs(0));
        let crossing = header(0, 0, 1, 1);
        assert_eq!(check(&sessions, &crossing), Ok(Verdict::Accept));
        let mut sessions = Sessions::default();
        sessions.apply(&header(0, i32::MAX - 2, 5, 0), TimestampMs(0));
        assert_eq!(check(&sessions, &header(0, 2, 1, 0)), Ok(Verdict::Accept));
    }

    #[test]
    fn a_state_saved_and_loaded_judges_alike() {
        let mut sessions = Sessions::default();
        for n in 0..9 {
            sessions.apply(&header(2, n, 1, i64::from(n)), TimestampMs(i64::from(n)));
        }
        let loaded = Sessions::load(&sessions.entries(TimestampMs(9), HOUR));
        assert_eq!(loaded, sessions);
        assert_eq!(
            sessions.entries(TimestampMs(9 + HOUR as i64), HOUR),
            [],
            "expired ones are not saved"
        );
    }

    #[test]
    fn the_number_of_producers_is_bounded_and_the_longest_idle_go() {
        let mut sessions = Sessions::default();
        for n in 0..=PRODUCER_SESSIONS_MAX as i64 {
            let producer = BatchHeader {
                producer_id: ProducerId(n),
                ..header(0, 0, 1, n)
            };
            sessions.apply(&producer, TimestampMs(n));
        }
        assert!(sessions.len() <= PRODUCER_SESSIONS_MAX);
        assert_eq!(sessions.get(ProducerId(0)), None);
        assert!(
            sessions
                .get(ProducerId(PRODUCER_SESSIONS_MAX as i64))
                .is_some()
        );
    }
}
