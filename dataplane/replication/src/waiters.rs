//! Produces that wait for their answer, in the order of their appends.
//!
//! A waiter is released when the bound that it waits for has passed the end of
//! its batch in the epoch of its append, or failed when that epoch ends. It is
//! never released before one that came earlier, so that "all up to here" holds.

use std::collections::VecDeque;
use talweg_types::{Acks, LeaderEpoch, Offset};

/// A batch whose producer waits. `token` is the driver's; it comes back once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiter<W> {
    pub acks: Acks,
    /// One past the batch's last offset.
    pub end: Offset,
    pub token: W,
}

/// How far a batch had got when it was released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reached {
    /// Replicas whose log holds the batch, the leader included.
    pub holding: u32,
    /// Replicas that have it on stable storage.
    pub flushed: u32,
    /// The leader epoch of its append.
    pub epoch: LeaderEpoch,
}

/// Why a waiter was not released. In both cases the batch is in the leader's
/// log and its outcome is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The epoch of its append ended.
    LeadershipLost,
    /// The in-sync set fell below its minimum.
    NotEnoughReplicasAfterAppend,
}

/// Queues for each kind of wait, oldest first.
#[derive(Clone, Debug)]
pub(crate) struct Waiters<W> {
    one: VecDeque<(Offset, W)>,
    all: VecDeque<(Offset, W)>,
}

impl<W> Waiters<W> {
    pub(crate) fn new() -> Self {
        Self {
            one: VecDeque::new(),
            all: VecDeque::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.one.len() + self.all.len()
    }

    /// Acks 0 waits for the append alone, which has happened: it is given back.
    pub(crate) fn push(&mut self, waiter: Waiter<W>) -> Option<(Offset, W)> {
        match waiter.acks {
            Acks::Zero => return Some((waiter.end, waiter.token)),
            Acks::One => self.one.push_back((waiter.end, waiter.token)),
            Acks::All => self.all.push_back((waiter.end, waiter.token)),
        }
        None
    }

    /// The next one that `counted` (acks 1) or `watermark` (acks all) has passed.
    pub(crate) fn pop(&mut self, counted: Offset, watermark: Offset) -> Option<(Offset, W)> {
        pop_passed(&mut self.one, counted).or_else(|| pop_passed(&mut self.all, watermark))
    }

    /// All that wait for the in-sync set.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = W> {
        std::mem::take(&mut self.all)
            .into_iter()
            .map(|(_, token)| token)
    }

    /// Everything.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = W> {
        let one = std::mem::take(&mut self.one);
        one.into_iter()
            .chain(std::mem::take(&mut self.all))
            .map(|(_, token)| token)
    }

    /// Whether one was forgotten that should have been released.
    pub(crate) fn overdue(&self, counted: Offset, watermark: Offset) -> bool {
        self.one.front().is_some_and(|(end, _)| *end <= counted)
            || self.all.front().is_some_and(|(end, _)| *end <= watermark)
    }
}

fn pop_passed<W>(queue: &mut VecDeque<(Offset, W)>, bound: Offset) -> Option<(Offset, W)> {
    let passed = queue.front().is_some_and(|(end, _)| *end <= bound);
    if passed { queue.pop_front() } else { None }
}
