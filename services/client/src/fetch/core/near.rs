//! Moving a reader to a follower in its rack, and back to the leader.

use super::*;

impl FetchCore {
    /// The reader's position is known: it may be served nearer.
    pub(super) fn look_near(&mut self, partition: TopicPartition) {
        if !self.config.rack.is_empty() {
            self.near_due.insert(partition);
        }
    }

    /// Those whose pause is over; once a tick.
    pub(super) fn look_near_again(&mut self, now: u64) {
        if self.config.rack.is_empty() {
            return;
        }
        for (partition, part) in &self.parts {
            if !part.near && part.near_after <= now {
                self.near_due.insert(*partition);
            }
        }
    }

    /// A follower failed the partition; true if it was served by one. The leader
    /// is asked at once, and no patience is spent.
    pub(super) fn leave_near(&mut self, partition: TopicPartition, now: u64) -> bool {
        let Some(part) = self.parts.get_mut(&partition).filter(|part| part.near) else {
            return false;
        };
        part.leave_near(now);
        self.unplaced.insert(partition);
        true
    }

    /// Moves what should be served elsewhere.
    pub(super) fn place_near(
        &mut self,
        now: u64,
        routes: &dyn Routes,
        updates: &mut BTreeMap<LinkId, v1::FetchUpdate>,
    ) {
        for partition in std::mem::take(&mut self.near_due) {
            let Some(part) = self.parts.get_mut(&partition) else {
                continue;
            };
            let Place::On(_, target) = part.place.clone() else {
                continue;
            };
            let wish = routes
                .near(partition, &self.config.rack)
                .filter(|_| part.next_offset.is_some() && part.near_after <= now);
            match wish {
                Some(wish) if wish == target => {}
                Some(wish) => self.move_near(partition, wish, now, updates),
                None if part.near => {
                    part.near = false;
                    self.unplaced.insert(partition);
                }
                None => {}
            }
        }
    }

    /// The leader serves on until the stream to the follower is open.
    fn move_near(
        &mut self,
        partition: TopicPartition,
        target: Target,
        now: u64,
        updates: &mut BTreeMap<LinkId, v1::FetchUpdate>,
    ) {
        match self.link_to(&target, now) {
            Some(link) if self.sources.get(&link).is_some_and(|it| it.opened) => {
                self.put(partition, link, target, updates);
                if let Some(part) = self.parts.get_mut(&partition) {
                    part.near = true;
                }
            }
            Some(_) => drop(self.near_due.insert(partition)),
            // It cannot be dialled now; the next tick looks again.
            None => {}
        }
    }
}
