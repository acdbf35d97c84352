//! Flush rounds of one loop in one log folder.
//!
//! Partitions whose producers wait for the flush go at once: a round takes all
//! that wait, and the next begins when it has ended (group commit). The others
//! go in the background, a second after the last such round or when enough
//! bytes are dirty. The two kinds run beside each other, on different threads.

use crate::flusher::{FlushBack, Flushers};
use std::{collections::BTreeSet, io, sync::Arc};
use talweg_log::{FlushTicket, LogFolder};
use talweg_replication::MonotonicMs;
use talweg_types::TopicPartition;

/// A background round begins at least this long after the last one ended.
pub const BACKGROUND_MS: u64 = 1_000;

/// Whether somebody waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushKind {
    Urgent,
    Background,
}

/// A ticket that comes back.
pub struct Flushed {
    pub tp: TopicPartition,
    pub ticket: FlushTicket,
    pub result: io::Result<()>,
}

/// What waits for a flush in one folder.
pub(super) struct FolderRounds {
    pub folder: Arc<LogFolder>,
    back: [FlushBack; 2],
    /// Background rounds begin early at this many dirty bytes.
    background_bytes: u64,
    urgent: BTreeSet<TopicPartition>,
    background: BTreeSet<TopicPartition>,
    dirty_bytes: u64,
    /// Tickets of the round that is out.
    urgent_out: usize,
    background_out: usize,
    background_due: MonotonicMs,
    /// The failure of the folder was told to its partitions.
    pub failure_seen: bool,
}

impl FolderRounds {
    pub fn new(back: FlushBack, background_bytes: u64) -> Self {
        Self {
            folder: Arc::clone(&back.folder),
            back: [
                FlushBack {
                    kind: FlushKind::Urgent,
                    ..back.clone()
                },
                FlushBack {
                    kind: FlushKind::Background,
                    ..back
                },
            ],
            background_bytes,
            urgent: BTreeSet::new(),
            background: BTreeSet::new(),
            dirty_bytes: 0,
            urgent_out: 0,
            background_out: 0,
            background_due: MonotonicMs(0),
            failure_seen: false,
        }
    }

    /// Somebody waits for the flush of this partition.
    pub fn want_urgent(&mut self, tp: TopicPartition) {
        self.urgent.insert(tp);
    }

    /// This partition has something to flush; `bytes` of it are new.
    pub fn want_background(&mut self, tp: TopicPartition, bytes: u64) {
        self.background.insert(tp);
        self.dirty_bytes += bytes;
    }

    pub fn forget(&mut self, tp: &TopicPartition) {
        self.urgent.remove(tp);
        self.background.remove(tp);
    }

    /// Begins the rounds that are due.
    pub fn start(
        &mut self,
        now: MonotonicMs,
        flushers: &Flushers,
        mut ticket: impl FnMut(&TopicPartition) -> Taken,
    ) {
        if self.urgent_out == 0 && !self.urgent.is_empty() {
            let tickets = collect(&mut self.urgent, &mut ticket);
            self.urgent_out = tickets.len();
            flushers.flush(&self.back[0], tickets);
        }
        if self.background_out == 0 && !self.background.is_empty() && self.background_is_due(now) {
            let tickets = collect(&mut self.background, &mut ticket);
            self.background_out = tickets.len();
            self.dirty_bytes = 0;
            self.background_due = MonotonicMs(now.0 + BACKGROUND_MS);
            flushers.flush(&self.back[1], tickets);
        }
    }

    fn background_is_due(&self, now: MonotonicMs) -> bool {
        now >= self.background_due || self.dirty_bytes >= self.background_bytes
    }

    /// When [`Self::start`] has something to do although nothing happens.
    pub fn next(&self) -> Option<MonotonicMs> {
        (self.background_out == 0 && !self.background.is_empty()).then_some(self.background_due)
    }

    /// Tickets came back.
    pub fn returned(&mut self, now: MonotonicMs, kind: FlushKind, tickets: usize) {
        match kind {
            FlushKind::Urgent => self.urgent_out = self.urgent_out.saturating_sub(tickets),
            FlushKind::Background => {
                self.background_out = self.background_out.saturating_sub(tickets);
                if self.background_out == 0 {
                    self.background_due = MonotonicMs(now.0 + BACKGROUND_MS);
                }
            }
        }
    }

    /// Tickets of any kind that are not back.
    pub fn out(&self) -> usize {
        self.urgent_out + self.background_out
    }

    /// One round for a clean stop, beside nothing else.
    pub fn start_closing(
        &mut self,
        flushers: &Flushers,
        tickets: Vec<(TopicPartition, FlushTicket)>,
    ) {
        self.urgent_out += tickets.len();
        flushers.flush(&self.back[0], tickets);
    }
}

/// A partition's ticket.
pub enum Taken {
    Ticket(Box<FlushTicket>),
    /// One is out already: ask again when it is back.
    Out,
    Nothing,
}

/// Takes the tickets of all that wait; whose ticket is out waits on.
fn collect(
    waiting: &mut BTreeSet<TopicPartition>,
    ticket: &mut impl FnMut(&TopicPartition) -> Taken,
) -> Vec<(TopicPartition, FlushTicket)> {
    let mut tickets = Vec::with_capacity(waiting.len());
    waiting.retain(|tp| match ticket(tp) {
        Taken::Ticket(taken) => {
            tickets.push((*tp, *taken));
            false
        }
        Taken::Out => true,
        Taken::Nothing => false,
    });
    tickets
}
