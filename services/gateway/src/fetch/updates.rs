//! Answers to `open` and `update` that wait for leaders. Pure.

use std::collections::{BTreeSet, VecDeque};
use talweg_proto::v1::{FetchPartitionError, PartitionPosition};
use talweg_types::TopicPartition;

/// Which frame the answer is to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    Open,
    Update(u64),
}

/// An answer in the making.
#[derive(Debug)]
pub struct Pending {
    pub asked: Asked,
    pub positions: Vec<PartitionPosition>,
    pub errors: Vec<FetchPartitionError>,
    /// Partitions whose leaders have not said where they begin.
    waits_for: BTreeSet<TopicPartition>,
    /// When it is given without them; they follow as positions or errors.
    deadline_ms: u64,
}

impl Pending {
    pub fn new(asked: Asked, deadline_ms: u64) -> Self {
        Self {
            asked,
            positions: Vec::new(),
            errors: Vec::new(),
            waits_for: BTreeSet::new(),
            deadline_ms,
        }
    }

    pub fn wait_for(&mut self, partition: TopicPartition) {
        self.waits_for.insert(partition);
    }
}

/// Answers in the order of their questions.
#[derive(Default)]
pub struct Updates {
    pending: VecDeque<Pending>,
}

impl Updates {
    pub fn push(&mut self, pending: Pending) {
        self.pending.push_back(pending);
    }

    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// The answer to `open` is still to come.
    pub fn is_opening(&self) -> bool {
        self.pending
            .front()
            .is_some_and(|it| it.asked == Asked::Open)
    }

    fn waiting(&mut self, partition: TopicPartition) -> Option<&mut Pending> {
        // A later question about the same partition has replaced the earlier one.
        self.pending
            .iter_mut()
            .rev()
            .find(|it| it.waits_for.contains(&partition))
    }

    /// Where a partition begins; `false` if no answer waits for it.
    pub fn on_started(&mut self, partition: TopicPartition, position: &PartitionPosition) -> bool {
        let Some(pending) = self.waiting(partition) else {
            return false;
        };
        pending.waits_for.remove(&partition);
        pending.positions.push(position.clone());
        true
    }

    /// The partition did not start; `false` if no answer waits for it.
    pub fn on_stopped(&mut self, partition: TopicPartition, error: &FetchPartitionError) -> bool {
        let Some(pending) = self.waiting(partition) else {
            return false;
        };
        pending.waits_for.remove(&partition);
        pending.errors.push(error.clone());
        true
    }

    /// Nobody waits for the partition any more.
    pub fn forget(&mut self, partition: TopicPartition) {
        for pending in &mut self.pending {
            pending.waits_for.remove(&partition);
        }
    }

    /// The next answer that is complete or over its time.
    pub fn pop(&mut self, now_ms: u64) -> Option<Pending> {
        let ready = |it: &Pending| it.waits_for.is_empty() || it.deadline_ms <= now_ms;
        if self.pending.front().is_some_and(ready) {
            self.pending.pop_front()
        } else {
            None
        }
    }

    /// When [`Self::pop`] gives something at the latest.
    pub fn next_time(&self) -> Option<u64> {
        self.pending.front().map(|it| it.deadline_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use talweg_types::{PartitionIndex, TopicId};

    #[test]
    fn answers_come_in_order_and_do_not_wait_for_ever() {
        let at = |n| TopicPartition {
            topic_id: TopicId::NIL,
            partition: PartitionIndex(n),
        };
        let mut updates = Updates::default();
        let mut open = Pending::new(Asked::Open, 100);
        open.wait_for(at(0));
        open.wait_for(at(1));
        updates.push(open);
        updates.push(Pending::new(Asked::Update(7), 200));
        assert!(updates.is_opening());
        assert!(
            updates.pop(0).is_none(),
            "the update does not overtake the open"
        );
        assert!(updates.on_started(at(0), &PartitionPosition::default()));
        assert!(
            !updates.on_started(at(0), &PartitionPosition::default()),
            "told once"
        );
        assert!(updates.pop(99).is_none());
        let open = updates.pop(100).expect("its time is over");
        assert_eq!((open.positions.len(), open.errors.len()), (1, 0));
        assert!(
            !updates.on_started(at(1), &PartitionPosition::default()),
            "it follows as a position"
        );
        assert_eq!(updates.pop(100).expect("complete").asked, Asked::Update(7));
    }
}
