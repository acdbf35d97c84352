//! What time and answers of leaders do to a session.

use super::*;

impl Session {
    /// When [`Self::on_time`] has something to do.
    pub fn next_time(&self, now: Now) -> Option<u64> {
        let time = |pack: &Pack| {
            if pack.is_due(now.mono_ms) {
                pack.deadline_ms
            } else {
                pack.linger_ms
            }
        };
        self.packs.values().map(time).min()
    }

    /// Hands over what has waited long enough: what there is room for, and what
    /// is late, so that it ends.
    pub fn on_time(&mut self, view: &View, now: Now, lanes: &mut impl Lanes) {
        let goes = |(at, pack): (&TopicPartition, &Pack)| {
            let goes =
                pack.is_late(now.mono_ms) || (pack.is_due(now.mono_ms) && lanes.has_room(*at));
            goes.then_some(*at)
        };
        let due: Vec<TopicPartition> = self.packs.iter().filter_map(goes).collect();
        for partition in due {
            self.seal(
                partition,
                view.topic(partition.topic_id).map(|topic| &**topic),
                lanes,
            );
        }
    }

    /// Hands over everything: nothing more is to come.
    pub fn flush(&mut self, view: &View, lanes: &mut impl Lanes) {
        let all: Vec<TopicPartition> = self.packs.keys().copied().collect();
        for partition in all {
            self.seal(
                partition,
                view.topic(partition.topic_id).map(|topic| &**topic),
                lanes,
            );
        }
    }

    /// Answers what ended, and hands over what waited for it.
    pub fn on_settled(
        &mut self,
        settled: Vec<Settled>,
        view: &View,
        now: Now,
        lanes: &mut impl Lanes,
    ) {
        let mut touched: Vec<TopicPartition> = Vec::new();
        for it in settled {
            let Some(ticket) = self.tickets.remove(&it.ticket) else {
                continue;
            };
            if touched.last() != Some(&it.partition) {
                touched.push(it.partition);
            }
            self.credit.give_back(ticket.amount);
            let took = now.mono_ms.saturating_sub(ticket.since_ms);
            self.stats.delivered_ms.push(took);
            let partition = it.partition;
            match (it.outcome, ticket.what) {
                (Outcome::Done(_), _) if ticket.silent => self.answers.credit(ticket.amount),
                (Outcome::Done(done), Answered::Records(sequences)) => {
                    self.answers.records(partition, sequences, done);
                }
                (Outcome::Done(done), Answered::Batch(sequence)) => {
                    self.answers.batch(partition, sequence, done);
                }
                (Outcome::Refused(refusal), what) => {
                    let sequences = match what {
                        Answered::Records(sequences) => sequences,
                        Answered::Batch(sequence) => vec![sequence],
                    };
                    self.answers.refusal(
                        Some(id(partition)),
                        Some(partition.partition.0),
                        sequences,
                        &refusal,
                    );
                }
            }
        }
        for partition in touched {
            let waits = self.packs.get(&partition);
            let due =
                waits.is_some_and(|pack| pack.is_due(now.mono_ms) && lanes.has_room(partition));
            if due || (waits.is_some() && lanes.is_idle(partition)) {
                self.seal(
                    partition,
                    view.topic(partition.topic_id).map(|topic| &**topic),
                    lanes,
                );
            }
        }
    }

    /// Our numbers in this partition have a gap: a new epoch (or, after the
    /// last one, `fresh`), from 0.
    pub fn renumber(
        &mut self,
        partition: TopicPartition,
        fresh: Option<ProducerId>,
        lanes: &mut impl Lanes,
    ) {
        let Some(numbers) = self.numbers.get_mut(&partition) else {
            return lanes.renumber(partition, &mut |_| None);
        };
        match numbers.epoch.0.checked_add(1) {
            Some(epoch) => numbers.epoch = ProducerEpoch(epoch),
            None => match fresh {
                Some(id) => (numbers.id, numbers.epoch) = (id, ProducerEpoch(0)),
                None => return lanes.renumber(partition, &mut |_| None),
            },
        }
        numbers.next = Sequence(0);
        lanes.renumber(partition, &mut |batch| {
            let bytes = restamp(&batch.bytes, numbers.id, numbers.epoch, numbers.next)?;
            numbers.next = numbers
                .next
                .plus(i32::try_from(batch.records).unwrap_or(i32::MAX));
            Some(bytes)
        });
    }
}
