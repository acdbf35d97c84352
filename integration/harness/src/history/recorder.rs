//! Where clients write down what they do, from any task.

use super::{Bounds, Finding, History, Poll, Send, check, check_bounds};
use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A shared history; clones write to the same one.
#[derive(Clone, Debug)]
pub struct Recorder {
    began: Instant,
    history: Arc<Mutex<History>>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            history: Arc::default(),
        }
    }
}

impl Recorder {
    /// Time since the beginning.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        // A client that panicked while it wrote down a call has failed the test already.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn send(&self, send: Send) {
        self.lock().sends.push(send);
    }

    pub fn poll(&self, poll: Poll) {
        self.lock().polls.push(poll);
    }

    /// `client` follows every partition from its beginning to its end.
    pub fn reader(&self, client: u32) {
        self.lock().readers.insert(client);
    }

    pub fn bounds(&self, bounds: Bounds) {
        self.lock().bounds.push(bounds);
    }

    /// What is there at the end of `partition`.
    pub fn end(&self, partition: u32, records: Vec<(i64, Vec<u8>)>) {
        self.lock().end.insert(partition, records);
    }

    /// When the first call that was sent after `since` was acknowledged in
    /// `partition` for good (acks=all), if one was.
    pub fn acknowledged_after(&self, partition: u32, since: Duration) -> Option<Duration> {
        let history = self.lock();
        let recent = history.sends.iter().rev();
        recent
            .take_while(|send| send.completed >= since)
            .filter(|send| send.partition == partition && send.invoked >= since && send.lasting)
            .filter(|send| matches!(send.outcome, super::Outcome::Ok { .. }))
            .map(|send| send.completed)
            .min()
    }

    /// When a reader was first given a record of `partition` that was sent after `since`, if it was.
    pub fn read_after(&self, partition: u32, since: Duration) -> Option<Duration> {
        let history = self.lock();
        let sent = history
            .sends
            .iter()
            .filter(|send| send.partition == partition && send.invoked >= since && send.lasting);
        let values: HashSet<&[u8]> = sent
            .flat_map(|s| s.values.iter().map(Vec::as_slice))
            .collect();
        let recent = history
            .polls
            .iter()
            .rev()
            .take_while(|poll| poll.at >= since);
        recent
            .filter(|poll| {
                poll.records
                    .iter()
                    .any(|(_, v)| values.contains(v.as_slice()))
            })
            .map(|poll| poll.at)
            .min()
    }

    /// The longest time between two acknowledgements in `partition` within a span.
    pub fn longest_gap(&self, partition: u32, from: Duration, to: Duration) -> Duration {
        let history = self.lock();
        let acknowledged = history.sends.iter().filter(|send| {
            send.partition == partition && matches!(send.outcome, super::Outcome::Ok { .. })
        });
        let mut times: Vec<_> = acknowledged
            .map(|send| send.completed)
            .filter(|at| (from..=to).contains(at))
            .collect();
        times.extend([from, to]);
        times.sort_unstable();
        let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
        gaps.max().unwrap_or_default()
    }

    /// A copy of what was written down so far.
    pub fn history(&self) -> History {
        self.lock().clone()
    }

    /// The checker's word.
    pub fn findings(&self) -> Vec<Finding> {
        check(&self.lock())
    }

    /// Its word on bounds alone, while clients are still at work.
    pub fn bound_findings(&self) -> Vec<Finding> {
        check_bounds(&self.lock())
    }
}
