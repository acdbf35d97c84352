//! What has come from leaders and waits to go to the client: cut into frames
//! that fit the client's credit. Pure, but for unpacking, which it asks for.

use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use talweg_batch::{BatchHeader, SplitBatches, split_batches};
use talweg_client::{
    fetch::{Data, FetchData},
    payload,
};
use talweg_kit::errors::Refusal;
use talweg_kit::fetch_credit::FetchCredit;
use talweg_proto::v1::{FetchedRecord, PartitionPosition};
use talweg_types::TopicPartition;

/// In the order of arrival.
pub enum Held {
    Data(HeldData),
    /// The partition stops here.
    Stopped {
        partition: TopicPartition,
        refusal: Refusal,
    },
}

/// A leader's frame, as far as it has not gone.
pub struct HeldData {
    pub partition: TopicPartition,
    /// Where the reader stands after all of it.
    pub position: PartitionPosition,
    /// The offset due at the front of what is left.
    pub due: i64,
    last_epoch: i32,
    bytes: i64,
    rest: Rest,
}

enum Rest {
    /// Batch form: the bytes that are left.
    Batches(Bytes),
    /// Thin form: batches to unpack, and records of the one unpacked last.
    Thin {
        batches: SplitBatches,
        records: VecDeque<FetchedRecord>,
    },
}

/// A frame's worth.
#[derive(Debug, PartialEq)]
pub enum Payload {
    Batches { first_offset: i64, bytes: Bytes },
    Records(Vec<FetchedRecord>),
}

/// What [`Outgoing::next`] found.
#[derive(Debug, PartialEq)]
pub enum Next {
    /// Nothing is held, or it must wait for credit.
    Wait,
    Frame(Frame),
    /// Unpack this batch (with [`super::thin::unpack`] from `due` on), then
    /// call [`Outgoing::on_unpacked`].
    Unpack {
        partition: TopicPartition,
        batch: Bytes,
        due: i64,
    },
    /// All of a frame was sent or skipped; the reader stands here.
    Passed {
        partition: TopicPartition,
        position: PartitionPosition,
    },
    Stopped {
        partition: TopicPartition,
        refusal: Refusal,
    },
}

/// A data frame for the client, but for the terms of its position.
#[derive(Debug, PartialEq)]
pub struct Frame {
    pub partition: TopicPartition,
    /// The leader's position; `next_offset` is where the client stands after this.
    pub position: PartitionPosition,
    pub next_offset: i64,
    pub payload: Payload,
    pub payload_bytes: usize,
    pub records: usize,
    /// Leader epoch of the last batch in it.
    pub last_epoch: i32,
}

/// The queue.
#[derive(Default)]
pub struct Outgoing {
    held: VecDeque<Held>,
    bytes: i64,
}

impl Outgoing {
    /// Bytes held, as the leaders sent them.
    pub fn bytes(&self) -> i64 {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub fn push(&mut self, data: FetchData, thin: bool) {
        // Leaders serve the batch form.
        let Data::Batches {
            first_offset,
            bytes,
        } = data.data
        else {
            return;
        };
        self.bytes += data.payload_bytes;
        let rest = match thin {
            true => Rest::Thin {
                batches: split_batches(bytes),
                records: VecDeque::new(),
            },
            false => Rest::Batches(bytes),
        };
        self.held.push_back(Held::Data(HeldData {
            partition: data.partition,
            position: data.position,
            due: first_offset,
            last_epoch: data.last_epoch.unwrap_or(-1),
            bytes: data.payload_bytes,
            rest,
        }));
    }

    pub fn push_stop(&mut self, partition: TopicPartition, refusal: Refusal) {
        self.held.push_back(Held::Stopped { partition, refusal });
    }

    /// Drops what is held of a partition.
    pub fn forget(&mut self, partition: TopicPartition) {
        let bytes = &mut self.bytes;
        self.held.retain(|held| match held {
            Held::Data(data) if data.partition == partition => {
                *bytes -= data.bytes;
                false
            }
            Held::Stopped {
                partition: stopped, ..
            } => *stopped != partition,
            Held::Data(_) => true,
        });
    }

    /// The next thing to do.
    pub fn next(&mut self, credit: &FetchCredit) -> Next {
        let Some(Held::Data(front)) = self.held.front_mut() else {
            return match self.held.pop_front() {
                Some(Held::Stopped { partition, refusal }) => Next::Stopped { partition, refusal },
                Some(Held::Data(_)) | None => Next::Wait,
            };
        };
        match front.take(credit) {
            Taken::Frame(frame) => Next::Frame(frame),
            Taken::Unpack(batch) => Next::Unpack {
                partition: front.partition,
                batch,
                due: front.due,
            },
            Taken::Wait => Next::Wait,
            Taken::Empty => {
                let (partition, position) = (front.partition, front.position.clone());
                self.bytes -= front.bytes;
                self.held.pop_front();
                Next::Passed {
                    partition,
                    position,
                }
            }
            Taken::Damaged(refusal) => {
                let partition = front.partition;
                self.forget(partition);
                Next::Stopped { partition, refusal }
            }
        }
    }

    /// The records of the batch that was to be unpacked; dropped if its
    /// partition has been moved or removed meanwhile (`false`).
    pub fn on_unpacked(
        &mut self,
        partition: TopicPartition,
        due: i64,
        unpacked: Vec<FetchedRecord>,
    ) -> bool {
        match self.held.front_mut() {
            Some(Held::Data(front)) if front.partition == partition && front.due == due => {
                if let Rest::Thin { records, .. } = &mut front.rest {
                    records.extend(unpacked);
                }
                true
            }
            _ => false,
        }
    }
}

enum Taken {
    Frame(Frame),
    Unpack(Bytes),
    Wait,
    Empty,
    Damaged(Refusal),
}

impl HeldData {
    fn take(&mut self, credit: &FetchCredit) -> Taken {
        match &mut self.rest {
            Rest::Batches(bytes) if bytes.is_empty() => Taken::Empty,
            Rest::Batches(_) => self.take_batches(credit),
            Rest::Thin { batches, records } if records.is_empty() => match batches.next() {
                None => Taken::Empty,
                Some(Ok(batch)) => Taken::Unpack(batch),
                Some(Err(error)) => {
                    Taken::Damaged(damaged(self.due, &self.position, &error.to_string()))
                }
            },
            Rest::Thin { .. } => self.take_records(credit),
        }
    }

    fn take_batches(&mut self, credit: &FetchCredit) -> Taken {
        let Rest::Batches(rest) = &mut self.rest else {
            return Taken::Empty;
        };
        let (room, any) = (credit.room(), credit.allows_any());
        let (mut length, mut records, mut next, mut epoch) =
            (0_usize, 0_usize, self.due, self.last_epoch);
        while length < rest.len() {
            let header = match BatchHeader::parse(&rest[length..]) {
                Ok(header) if header.total_bytes() <= rest.len() - length => header,
                Ok(_) => {
                    return Taken::Damaged(damaged(
                        self.due,
                        &self.position,
                        "a batch is cut short",
                    ));
                }
                Err(error) => {
                    return Taken::Damaged(damaged(self.due, &self.position, &error.to_string()));
                }
            };
            let more = (
                header.total_bytes(),
                usize::try_from(header.record_count).unwrap_or(0),
            );
            let fits =
                room.is_some_and(|room| length + more.0 <= room.0 && records + more.1 <= room.1);
            if !(fits || (length == 0 && any)) {
                break;
            }
            (length, records) = (length + more.0, records + more.1);
            (next, epoch) = (header.next_offset().0, header.leader_epoch.0);
        }
        if length == 0 {
            return Taken::Wait;
        }
        let first_offset = self.due;
        let bytes = rest.split_to(length);
        // What follows the last batch without a record belongs to this frame.
        self.due = if rest.is_empty() {
            self.position.next_offset
        } else {
            next
        };
        Taken::Frame(Frame {
            partition: self.partition,
            position: self.position.clone(),
            next_offset: self.due,
            payload: Payload::Batches {
                first_offset,
                bytes,
            },
            payload_bytes: length,
            records,
            last_epoch: epoch,
        })
    }

    fn take_records(&mut self, credit: &FetchCredit) -> Taken {
        let Rest::Thin { records, .. } = &mut self.rest else {
            return Taken::Empty;
        };
        let (room, any) = (credit.room(), credit.allows_any());
        let (mut taken, mut bytes) = (0, 0);
        while let Some(record) = records.get(taken) {
            let more = payload::fetched_record_bytes(record);
            let fits = room.is_some_and(|room| bytes + more <= room.0 && taken < room.1);
            if !(fits || (taken == 0 && any)) {
                break;
            }
            (taken, bytes) = (taken + 1, bytes + more);
        }
        if taken == 0 {
            return Taken::Wait;
        }
        let payload: Vec<FetchedRecord> = records.drain(..taken).collect();
        let last = payload.last().map_or((self.due, self.last_epoch), |it| {
            (it.offset + 1, it.leader_epoch)
        });
        self.due = last.0;
        Taken::Frame(Frame {
            partition: self.partition,
            position: self.position.clone(),
            next_offset: self.due,
            payload: Payload::Records(payload),
            payload_bytes: bytes,
            records: taken,
            last_epoch: last.1,
        })
    }
}

/// The leader's bytes cannot be read.
pub fn damaged(due: i64, position: &PartitionPosition, why: &str) -> Refusal {
    use talweg_kit::errors::ErrorCode;
    let message = format!("offsets from {due} on cannot be unpacked: {why}");
    Refusal::new(ErrorCode::DataDamaged, message).with_damage(due, position.next_offset)
}

/// Small frames of other allocations are copied, so that they do not keep a
/// whole received buffer alive while they wait for a slow reader.
pub fn compact(bytes: Bytes) -> Bytes {
    const SMALL: usize = 4 * 1024;
    if bytes.len() > SMALL {
        return bytes;
    }
    BytesMut::from(&bytes[..]).freeze()
}

#[cfg(test)]
mod tests;
