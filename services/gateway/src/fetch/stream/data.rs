//! Data on its way to the client: cut to its credit, unpacked where it asks
//! for records.

use super::*;

impl FetchStream {
    /// Sends what the client's credit allows.
    pub(super) async fn send_data(&mut self) -> Result<(), Ended> {
        while self.unpacking.is_none() && self.drain.is_none() && !self.updates.is_opening() {
            match self.outgoing.next(&self.credit) {
                Next::Wait => return Ok(()),
                Next::Frame(frame) => self.send_frame(frame).await?,
                Next::Unpack {
                    partition,
                    batch,
                    due,
                } => self.unpack(partition, batch, due),
                Next::Passed {
                    partition,
                    position,
                } => self.on_passed(partition, &position),
                Next::Stopped { partition, refusal } => self.stop(partition, &refusal).await?,
            }
        }
        Ok(())
    }

    pub(super) async fn send_frame(&mut self, frame: DataFrame) -> Result<(), Ended> {
        let Some(reader) = self.readers.get_mut(frame.partition) else {
            return Ok(());
        };
        let position = reader.position_of(&frame.position, frame.next_offset);
        reader.position = Some(position.clone());
        reader.last_epoch = frame.last_epoch;
        reader.changed = false;
        self.credit.spend(frame.payload_bytes, frame.records as u64);
        self.node
            .metrics
            .bytes_out
            .inc_by(frame.payload_bytes as u64);
        let (position, credit_left) = (Some(position), Some(self.credit.left()));
        let frame = match frame.payload {
            Payload::Batches {
                first_offset,
                bytes,
            } => Frame::Batches(v1::FetchedBatches {
                position,
                credit_left,
                first_offset,
                batches: outgoing::compact(bytes),
            }),
            Payload::Records(records) => Frame::Records(v1::FetchedRecords {
                position,
                credit_left,
                records,
            }),
        };
        self.send(frame).await
    }

    pub(super) fn on_passed(&mut self, partition: TopicPartition, leader: &v1::PartitionPosition) {
        let Some(reader) = self.readers.get_mut(partition) else {
            return;
        };
        reader.held = reader.held.saturating_sub(1);
        let position = reader.position_of(leader, leader.next_offset);
        if reader.position.as_ref().map(|it| it.next_offset) != Some(position.next_offset) {
            reader.position = Some(position);
            reader.changed = true;
            self.next_positions
                .get_or_insert_with(|| Instant::now() + POSITIONS_PAUSE);
        }
    }

    pub(super) fn unpack(&mut self, partition: TopicPartition, batch: Bytes, due: i64) {
        let max = self
            .readers
            .get(partition)
            .map_or(limits::UNPACKED_BATCH_BYTES_MAX as usize, |it| {
                it.max_unpacked
            });
        let compressed = BatchHeader::parse(&batch).is_ok_and(|header| header.attributes & 7 != 0);
        let slow =
            batch.len() > INLINE_BYTES || (compressed && batch.len() > INLINE_COMPRESSED_BYTES);
        if !slow {
            let records = thin::unpack(&batch, due, max);
            return self.on_unpacked((partition, due, records));
        }
        let work = Box::pin(async move {
            let work = tokio::task::spawn_blocking(move || thin::unpack(&batch, due, max)).await;
            // The worker panicked or the runtime stops: as good as damaged.
            work.unwrap_or(Err(BatchError::TooShort {
                needed: 1,
                actual: 0,
            }))
        });
        self.unpacking = Some(Unpacking {
            partition,
            due,
            work,
        });
    }

    pub(super) fn on_unpacked(
        &mut self,
        unpacked: (TopicPartition, i64, Result<Vec<FetchedRecord>, BatchError>),
    ) {
        self.unpacking = None;
        let (partition, due, result) = unpacked;
        match result {
            Ok(records) => drop(self.outgoing.on_unpacked(partition, due, records)),
            Err(error) => {
                let next_offset = due;
                let position = v1::PartitionPosition {
                    next_offset,
                    ..Default::default()
                };
                let refusal = outgoing::damaged(due, &position, &error.to_string());
                self.outgoing.forget(partition);
                self.outgoing.push_stop(partition, refusal);
            }
        }
    }
}
