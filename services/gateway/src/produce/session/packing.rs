//! From checked records to numbered batches on their way.

use super::*;

impl Session {
    /// Puts a checked record into its partition's pack; says which.
    pub(super) fn pack(
        &mut self,
        rules: &Rules<'_>,
        record: &v1::Record,
        (sequence, amount): (u64, Amount),
        acks: Acks,
        now: Now,
        lanes: &mut impl Lanes,
    ) -> TopicPartition {
        let topic = rules.topic;
        let partition = TopicPartition {
            topic_id: topic.id,
            partition: self.partitioner.partition(topic, record, now.wall_ms),
        };
        let keyed = !record.idempotency_key.is_empty();
        let size = record_bytes(
            record.key.as_deref(),
            record.value.as_deref(),
            check::headers(record),
        ) + 20 * record.headers.len();
        if self
            .packs
            .get(&partition)
            .is_some_and(|pack| keyed || !pack.fits(size, fill_limit(topic)))
        {
            self.seal(partition, Some(topic), lanes);
        }
        let codec = self.opening.compression.unwrap_or(topic.config.compression);
        let (linger, timeout) = (self.opening.linger_ms, self.opening.delivery_timeout_ms);
        let builders = &mut self.builders;
        let pack = self.packs.entry(partition).or_insert_with(|| Pack {
            codec,
            builder: builders.take(codec),
            sequences: Vec::new(),
            amount: Amount::default(),
            acks,
            linger_ms: now.mono_ms.saturating_add(linger),
            deadline_ms: now.mono_ms.saturating_add(timeout),
        });
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        match pack
            .builder
            .push(rules.timestamp(record), key, value, check::headers(record))
        {
            Ok(()) => {
                pack.sequences.push(sequence);
                pack.amount.add(amount);
                if keyed {
                    self.seal_as(partition, Some(topic), Numbering::Keyed, lanes);
                }
            }
            Err(error) => {
                self.credit.give_back(amount);
                let refusal = error.into();
                self.answers.refusal(
                    Some(id(partition)),
                    Some(partition.partition.0),
                    [sequence],
                    &refusal,
                );
            }
        }
        partition
    }

    pub(super) fn seal(
        &mut self,
        partition: TopicPartition,
        topic: Option<&TopicView>,
        lanes: &mut impl Lanes,
    ) {
        self.seal_as(partition, topic, Numbering::Ours, lanes);
    }

    /// Hands a pack over. A record that repeats are recognised of by its key is
    /// not numbered: a leader that knows the key would leave the number unused.
    pub(super) fn seal_as(
        &mut self,
        partition: TopicPartition,
        topic: Option<&TopicView>,
        numbering: Numbering,
        lanes: &mut impl Lanes,
    ) {
        let Some(mut pack) = self.packs.remove(&partition) else {
            return;
        };
        if let Some(topic) = topic {
            self.partitioner.on_sealed(topic, partition.partition);
        }
        if pack.sequences.is_empty() {
            return self.builders.give_back(pack.codec, pack.builder);
        }
        let count = i32::try_from(pack.sequences.len()).unwrap_or(i32::MAX);
        let numbers = match numbering {
            Numbering::Ours => self.number(partition),
            _ => None,
        };
        match numbers {
            Some(numbers) => pack
                .builder
                .set_producer(numbers.id, numbers.epoch, numbers.next),
            None => {
                pack.builder
                    .set_producer(ProducerId::NONE, ProducerEpoch::NONE, Sequence::NONE)
            }
        }
        let built = pack.builder.build_with(&mut self.encoders);
        self.builders.give_back(pack.codec, pack.builder);
        let limit = topic.map_or(limits::MAX_MESSAGE_BYTES_RANGE.1, |topic| {
            topic.config.max_message_bytes
        });
        let bytes = match built {
            Ok(bytes) if bytes.len() <= limit as usize => bytes,
            Ok(bytes) => {
                return self.refuse_pack(
                    partition,
                    &pack.sequences,
                    pack.amount,
                    batch_too_large(limit, bytes.len()),
                );
            }
            Err(error) => {
                return self.refuse_pack(partition, &pack.sequences, pack.amount, error.into());
            }
        };
        if let Some(numbers) = self
            .numbers
            .get_mut(&partition)
            .filter(|_| numbers.is_some())
        {
            numbers.next = numbers.next.plus(count);
        }
        let batch = Batch {
            ticket: self.next_ticket,
            bytes,
            records: count.unsigned_abs(),
            numbering,
            deadline_ms: pack.deadline_ms,
        };
        self.hand_over(
            partition,
            pack.acks,
            batch,
            Answered::Records(pack.sequences),
            pack.amount,
            lanes,
        );
    }

    pub(super) fn refuse_pack(
        &mut self,
        partition: TopicPartition,
        sequences: &[u64],
        amount: Amount,
        refusal: Refusal,
    ) {
        self.credit.give_back(amount);
        let sequences = sequences.iter().copied();
        self.answers.refusal(
            Some(id(partition)),
            Some(partition.partition.0),
            sequences,
            &refusal,
        );
    }

    pub(super) fn number(&mut self, partition: TopicPartition) -> Option<Numbers> {
        let id = self.producer?;
        let first = Numbers {
            id,
            epoch: ProducerEpoch(0),
            next: Sequence(0),
        };
        Some(*self.numbers.entry(partition).or_insert(first))
    }

    pub(super) fn hand_over(
        &mut self,
        partition: TopicPartition,
        acks: Acks,
        batch: Batch,
        what: Answered,
        amount: Amount,
        lanes: &mut impl Lanes,
    ) {
        self.tickets.insert(
            self.next_ticket,
            Ticket {
                what,
                amount,
                silent: acks == Acks::Zero,
                since_ms: batch
                    .deadline_ms
                    .saturating_sub(self.opening.delivery_timeout_ms),
            },
        );
        self.next_ticket += 1;
        self.stats.batches += 1;
        self.stats.bytes += batch.bytes.len() as u64;
        lanes.offer(partition, acks, batch);
    }
}
