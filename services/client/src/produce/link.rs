//! One thin-form Produce stream to a gateway: its credit, its sequences, and
//! which job each unanswered record belongs to.

use crate::pool::Lease;
use futures::stream::AbortHandle;
use std::{collections::VecDeque, sync::Arc};
use talweg_kit::data_stream::FrameSender;
use talweg_proto::v1::{self, produce_request::Frame};

/// A record of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub job: u64,
    pub index: usize,
    pub bytes: i64,
}

/// Unanswered records by stream sequence.
#[derive(Default)]
pub(super) struct Unanswered {
    /// Sequence of the front.
    first: u64,
    places: VecDeque<Option<Place>>,
    left: usize,
}

impl Unanswered {
    pub fn next_sequence(&self) -> u64 {
        self.first + self.places.len() as u64
    }

    pub fn push(&mut self, place: Place) {
        self.places.push_back(Some(place));
        self.left += 1;
    }

    /// Takes one; `None` if it is answered or was never sent.
    pub fn take(&mut self, sequence: u64) -> Option<Place> {
        let at = usize::try_from(sequence.checked_sub(self.first)?).ok()?;
        let place = self.places.get_mut(at)?.take()?;
        self.left -= 1;
        while matches!(self.places.front(), Some(None)) {
            self.places.pop_front();
            self.first += 1;
        }
        Some(place)
    }

    /// Takes all that is left, in order.
    pub fn take_all(&mut self) -> Vec<Place> {
        self.first = self.next_sequence();
        self.left = 0;
        self.places.drain(..).flatten().collect()
    }

    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Sequence of the oldest one.
    pub fn oldest(&self) -> u64 {
        self.first
    }
}

pub(super) struct RecordLink {
    pub id: u64,
    pub server: Arc<str>,
    sender: Option<FrameSender<v1::ProduceRequest>>,
    reader: AbortHandle,
    pub opened: bool,
    credit: (i64, i64),
    pub unanswered: Unanswered,
    _lease: Lease,
}

impl RecordLink {
    pub fn new(
        id: u64,
        server: Arc<str>,
        sender: FrameSender<v1::ProduceRequest>,
        reader: AbortHandle,
        lease: Lease,
    ) -> Self {
        Self {
            id,
            server,
            sender: Some(sender),
            reader,
            opened: false,
            credit: (0, 0),
            unanswered: Unanswered::default(),
            _lease: lease,
        }
    }

    pub fn give(&mut self, bytes: i64, records: i64) {
        self.credit.0 = self.credit.0.saturating_add(bytes);
        self.credit.1 = self.credit.1.saturating_add(records);
    }

    /// There is room for these; what is larger than all credit goes alone.
    pub fn may_send(&self, bytes: i64, records: i64) -> bool {
        let fits = bytes <= self.credit.0 && records <= self.credit.1;
        self.opened && (fits || self.unanswered.is_empty())
    }

    /// False: not now.
    pub fn put(&self, frame: Frame) -> bool {
        let request = v1::ProduceRequest { frame: Some(frame) };
        self.sender
            .as_ref()
            .is_some_and(|sender| sender.try_send(request).is_ok())
    }

    /// Half-close: nothing will follow.
    pub fn drain(&mut self) {
        self.sender = None;
    }
}

impl Drop for RecordLink {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_in_any_order_and_once() {
        let mut unanswered = Unanswered::default();
        let place = |index| Place {
            job: 1,
            index,
            bytes: 1,
        };
        for index in 0..4 {
            assert_eq!(unanswered.next_sequence(), index as u64);
            unanswered.push(place(index));
        }
        assert_eq!(unanswered.take(2), Some(place(2)));
        assert_eq!(unanswered.take(2), None, "answered twice");
        assert_eq!(unanswered.take(0), Some(place(0)));
        assert_eq!(unanswered.take(0), None, "already gone from the window");
        assert_eq!(unanswered.take(9), None, "never sent");
        assert_eq!(unanswered.take_all(), vec![place(1), place(3)]);
        assert!(unanswered.is_empty());
        assert_eq!(unanswered.next_sequence(), 4, "sequences go on");
    }
}
