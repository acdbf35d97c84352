//! One batch-form Produce stream to a leader (or a gateway), with its credit.

use super::batch::{Batch, Freed, LinkId};
use super::routes::Target;
use crate::pool::Lease;
use futures::stream::AbortHandle;
use talweg_kit::data_stream::FrameSender;
use talweg_proto::v1::{self, produce_request::Frame};
use talweg_types::{Acks, TopicPartition};

/// What a link is opened for: the acks are those of the stream.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct LinkKey {
    pub target: Target,
    pub acks: Acks,
}

pub(super) struct Link {
    pub id: LinkId,
    pub key: LinkKey,
    /// `None` once nothing will follow.
    sender: Option<FrameSender<v1::ProduceRequest>>,
    /// Ends the reading of this link's frames.
    reader: AbortHandle,
    next_sequence: u64,
    /// Granted and not used.
    credit: Freed,
    /// Sent and not answered.
    outstanding: Freed,
    opened: bool,
    /// The server asked us to leave; only answers are still to come.
    pub draining: bool,
    /// When it opened or a frame last came, monotonic milliseconds.
    pub heard_ms: u64,
    pub said_ms: u64,
    _lease: Lease,
}

impl Link {
    pub fn new(
        id: LinkId,
        key: LinkKey,
        sender: FrameSender<v1::ProduceRequest>,
        reader: AbortHandle,
        lease: Lease,
        now: u64,
    ) -> Self {
        Self {
            id,
            key,
            sender: Some(sender),
            reader,
            next_sequence: 0,
            credit: Freed::default(),
            outstanding: Freed::default(),
            opened: false,
            draining: false,
            heard_ms: now,
            said_ms: now,
            _lease: lease,
        }
    }

    pub fn on_opened(&mut self, opened: &v1::ProduceOpened) {
        self.opened = true;
        self.give(credit_of(opened.credit));
    }

    /// The server has opened the stream.
    pub fn is_open(&self) -> bool {
        self.opened
    }

    /// Nothing sent is unanswered.
    pub fn is_quiet(&self) -> bool {
        self.outstanding == Freed::default()
    }

    /// Answered: the credit comes back.
    pub fn on_answer(&mut self, freed: Freed) {
        self.outstanding.bytes -= freed.bytes;
        self.outstanding.records -= freed.records;
        self.give(freed);
    }

    fn give(&mut self, credit: Freed) {
        self.credit.bytes = self.credit.bytes.saturating_add(credit.bytes);
        self.credit.records = self.credit.records.saturating_add(credit.records);
    }

    /// A batch larger than all credit goes when nothing is outstanding.
    fn may_send(&self, cost: Freed) -> bool {
        let fits = cost.bytes <= self.credit.bytes && cost.records <= self.credit.records;
        self.opened && !self.draining && (fits || self.is_quiet())
    }

    /// Sends a batch and returns its sequence; `None`: not now, the link is
    /// full or closed. What closed it is seen by whoever reads it.
    pub fn send(&mut self, partition: TopicPartition, batch: &Batch, now: u64) -> Option<u64> {
        let mut cost = Freed::default();
        cost.add(batch);
        if !self.may_send(cost) {
            return None;
        }
        let frame = v1::BatchFrame {
            topic: String::new(),
            topic_id: bytes::Bytes::copy_from_slice(partition.topic_id.as_bytes()),
            partition: partition.partition.0,
            first_sequence: self.next_sequence,
            leader_epoch: None,
            batches: batch.bytes.clone(),
        };
        if !self.put(Frame::Batch(frame), now) {
            return None;
        }
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.outstanding.bytes += cost.bytes;
        self.outstanding.records += cost.records;
        self.give(Freed {
            bytes: -cost.bytes,
            records: -cost.records,
        });
        Some(sequence)
    }

    /// Sends a sign of life.
    pub fn heartbeat(&mut self, wall_ms: i64, now: u64) {
        self.put(Frame::Heartbeat(v1::Heartbeat { time_ms: wall_ms }), now);
    }

    /// False: not now.
    pub fn put(&mut self, frame: Frame, now: u64) -> bool {
        let request = v1::ProduceRequest { frame: Some(frame) };
        let sent = self
            .sender
            .as_ref()
            .is_some_and(|s| s.try_send(request).is_ok());
        if sent {
            self.said_ms = now;
        }
        sent
    }

    /// The server asked us to leave: half-close, so that it answers what it has
    /// and ends.
    pub fn drain(&mut self) {
        self.draining = true;
        self.sender = None;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Negative grants count as nothing.
fn credit_of(credit: Option<v1::Credit>) -> Freed {
    let credit = credit.unwrap_or_default();
    Freed {
        bytes: credit.bytes.max(0),
        records: credit.records.max(0),
    }
}
