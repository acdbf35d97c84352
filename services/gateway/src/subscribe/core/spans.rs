//! Offsets that were sent to a member and that it has not passed yet.

use std::collections::VecDeque;

/// Spans kept apart; beyond that, the newest grow together, gaps and all.
const SPANS_MAX: usize = 1_024;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Span {
    /// Inclusive.
    from: i64,
    /// Exclusive.
    to: i64,
    /// Leader epoch of its batches.
    epoch: i32,
    sent_ms: u64,
}

/// In offset order.
#[derive(Clone, Debug, Default)]
pub struct Spans {
    spans: VecDeque<Span>,
    /// Epoch of the last span that was passed whole; -1 before one was.
    passed_epoch: i32,
}

impl Spans {
    /// Nothing was sent; `epoch` is that of the batch before.
    pub fn new(epoch: i32) -> Self {
        Self {
            spans: VecDeque::new(),
            passed_epoch: epoch,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// `from..to` was sent; above all that was sent before.
    pub fn push(&mut self, from: i64, to: i64, epoch: i32, sent_ms: u64) {
        let full = self.spans.len() >= SPANS_MAX;
        if let Some(last) = self.spans.back_mut()
            && full
        {
            last.to = to;
            last.epoch = epoch;
            last.sent_ms = sent_ms;
            return;
        }
        self.spans.push_back(Span {
            from,
            to,
            epoch,
            sent_ms,
        });
    }

    /// Everything below `next` is passed.
    pub fn pass(&mut self, next: i64) {
        while let Some(front) = self.spans.front_mut() {
            if front.to <= next {
                self.passed_epoch = front.epoch;
                self.spans.pop_front();
                continue;
            }
            front.from = front.from.max(next);
            return;
        }
    }

    /// What was sent from `to` on is as if it had not been.
    pub fn cut(&mut self, to: i64) {
        self.spans.retain_mut(|span| {
            span.to = span.to.min(to);
            span.from < span.to
        });
    }

    /// The first offset that was sent and not passed.
    pub fn first(&self) -> Option<i64> {
        self.spans.front().map(|span| span.from)
    }

    /// When the oldest of them was sent.
    pub fn oldest_ms(&self) -> Option<u64> {
        self.spans.front().map(|span| span.sent_ms)
    }

    /// The offset was sent and is not passed.
    pub fn contains(&self, offset: i64) -> bool {
        let mut spans = self.spans.iter();
        spans.any(|span| (span.from..span.to).contains(&offset))
    }

    /// Leader epoch of the batch before `next`; -1 if unknown.
    pub fn epoch_before(&self, next: i64) -> i32 {
        let below = self.spans.iter().rev().find(|span| span.from < next);
        below.map_or(self.passed_epoch, |span| span.epoch)
    }
}
