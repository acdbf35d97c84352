//! Offsets that were sent to a member and that it has not passed yet.

use super::fault::{Fault, planted};
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
    /// Up to where spans were passed, and the epoch of the batch just below.
    passed: Option<(i64, i32)>,
}

impl Spans {
    /// Nothing was sent; `next` follows a batch of this epoch, if that is known.
    pub fn new(next: Option<i64>, epoch: i32) -> Self {
        Self {
            spans: VecDeque::new(),
            passed: next.map(|next| (next, epoch)),
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
                self.passed = Some((front.to, front.epoch));
                self.spans.pop_front();
                continue;
            }
            if front.from < next {
                self.passed = Some((next, front.epoch));
                front.from = next;
            }
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

    /// Leader epoch of the batch that ends at `next` or goes on over it; -1 if unknown.
    /// Where `next` lies behind the end of the last batch, there is a newer epoch's
    /// business in between (a placeholder, a control batch), and nobody can tell.
    pub fn epoch_at(&self, next: i64) -> i32 {
        if let Some(span) = self.spans.iter().rev().find(|span| span.from < next) {
            let known = next <= span.to || planted(Fault::EpochAlwaysClaimed);
            return if known { span.epoch } else { -1 };
        }
        let at_end = self.passed.filter(|(end, _)| *end == next);
        at_end.map_or(-1, |(_, epoch)| epoch)
    }

    /// The log was cut back: the epochs of what is left are not certain.
    pub fn forget_epochs(&mut self) {
        self.spans.iter_mut().for_each(|span| span.epoch = -1);
        self.passed = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Story: a batch of epoch 3, then a placeholder of epoch 4 moves the position;
    /// no batch of epoch 3 lies just below it.
    #[test]
    fn an_epoch_is_said_only_at_the_end_of_a_batch() {
        let mut spans = Spans::new(Some(5), 2);
        assert_eq!((spans.epoch_at(5), spans.epoch_at(6)), (2, -1));
        spans.push(5, 8, 3, 0);
        assert_eq!([5, 6, 8, 9].map(|at| spans.epoch_at(at)), [2, 3, 3, -1]);
        spans.pass(6);
        assert_eq!((spans.epoch_at(6), spans.epoch_at(8)), (3, 3));
        spans.pass(9);
        assert_eq!((spans.epoch_at(8), spans.epoch_at(9)), (3, -1));
        spans.push(9, 10, 4, 0);
        spans.forget_epochs();
        assert_eq!((spans.epoch_at(10), spans.epoch_at(8)), (-1, -1));
    }
}
