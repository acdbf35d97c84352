//! What a member has in its hands, how far it has got there, and what went wrong: pure.

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use talweg_proto::v1;

/// A partition by topic id and number.
pub type Place = (Bytes, u32);

/// A partition in our hands.
struct Owned {
    /// The next offset to print.
    next: i64,
    committed: i64,
    /// The end that it had at the first position that was told.
    end: Option<i64>,
}

/// A member's partitions.
pub struct Holding {
    until_end: bool,
    owned: BTreeMap<Place, Owned>,
    /// Something was assigned, or it is known that nothing will be.
    assigned: bool,
    /// Partitions with trouble that may pass and has not yet.
    troubled: BTreeSet<Place>,
    /// Something went wrong for good.
    pub failed: bool,
}

impl Holding {
    /// Nothing yet. `until_end`: it is over where each partition has reached the end
    /// that it had when it was given.
    pub fn new(until_end: bool) -> Self {
        Self {
            until_end,
            owned: BTreeMap::new(),
            assigned: false,
            troubled: BTreeSet::new(),
            failed: false,
        }
    }

    /// A new stream: what is ours is told anew, with its positions.
    pub fn resumed(&mut self) {
        self.owned.clear();
        self.troubled.clear();
        self.assigned = false;
    }

    pub fn assigned(&mut self, partitions: &[v1::PartitionPosition]) {
        self.assigned = true;
        for position in partitions {
            // -1: by the reset policy; a position follows.
            let owned = Owned {
                next: position.next_offset,
                committed: position.next_offset,
                end: None,
            };
            let place = (position.topic_id.clone(), position.partition);
            self.owned.insert(place, owned);
        }
    }

    /// Until the end is to be read, and so far there is nothing to read.
    pub fn waits_for_a_share(&self) -> bool {
        self.until_end && !self.assigned
    }

    /// True: the group is settled, and others have it all.
    pub fn on_described(&mut self, described: &v1::DescribeGroupResponse, me: &str) -> bool {
        let group = described.group.as_ref();
        let stable = group.is_some_and(|group| group.state == "stable");
        let mut members = described.members.iter();
        let mine = members.find(|member| member.member_id == me);
        let nothing = mine.is_some_and(|it| it.assignment.is_empty() && it.revoking.is_empty());
        let settled = stable && nothing && self.waits_for_a_share();
        self.assigned |= settled;
        settled
    }

    /// The partition is read, whatever was wrong before.
    pub fn on_position(&mut self, position: &v1::PartitionPosition) {
        let place = (position.topic_id.clone(), position.partition);
        self.troubled.remove(&place);
        if let Some(owned) = self.owned.get_mut(&place) {
            if owned.next < 0 {
                owned.committed = position.next_offset;
            }
            owned.end.get_or_insert(position.high_watermark);
            owned.next = owned.next.max(position.next_offset);
        }
    }

    /// A record came; true if it is to be printed.
    pub fn take(&mut self, place: &Place, offset: i64, high_watermark: i64) -> bool {
        let Some(owned) = self.owned.get_mut(place) else {
            return false;
        };
        let end = *owned.end.get_or_insert(high_watermark);
        if self.until_end && offset >= end {
            return false;
        }
        owned.next = offset.saturating_add(1);
        self.troubled.remove(place);
        true
    }

    /// The partition stopped, for a while or for good.
    pub fn on_error(&mut self, place: Place, passes: bool) {
        if !passes {
            self.failed = true;
            self.troubled.remove(&place);
            self.owned.remove(&place);
        } else if self.owned.contains_key(&place) {
            self.troubled.insert(place);
        }
    }

    /// It is another member's from now on, with its trouble.
    pub fn given_up(&mut self, place: &Place) {
        self.troubled.remove(place);
        self.owned.remove(place);
    }

    /// Everything printed and not committed; it counts as committed from now on.
    pub fn uncommitted(&mut self) -> Vec<v1::SubscribePosition> {
        let owned = self.owned.iter_mut();
        let due = owned.filter(|(_, owned)| owned.next > owned.committed);
        due.map(|((topic_id, partition), owned)| {
            owned.committed = owned.next;
            v1::SubscribePosition {
                topic_id: topic_id.clone(),
                partition: *partition,
                offset: owned.next,
                ..Default::default()
            }
        })
        .collect()
    }

    /// Nothing is left to read.
    pub fn is_over(&self) -> bool {
        let at_end = |owned: &Owned| owned.end.is_some_and(|end| owned.next >= end);
        self.until_end && self.assigned && self.owned.values().all(at_end)
    }

    /// Something went wrong and was not overcome.
    pub fn has_failed(&self) -> bool {
        self.failed || !self.troubled.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(partition: u32, next_offset: i64, high_watermark: i64) -> v1::PartitionPosition {
        v1::PartitionPosition {
            topic_id: vec![1; 16].into(),
            partition,
            next_offset,
            high_watermark,
            ..Default::default()
        }
    }

    fn place(partition: u32) -> Place {
        (vec![1; 16].into(), partition)
    }

    fn described(state: &str, mine: &[u32]) -> v1::DescribeGroupResponse {
        let assignment = |partitions: &[u32]| v1::GroupAssignment {
            topic: "t".into(),
            partitions: partitions.to_vec(),
        };
        let member = |id: &str, partitions: &[u32]| v1::GroupMember {
            member_id: id.into(),
            assignment: match partitions {
                [] => Vec::new(),
                some => vec![assignment(some)],
            },
            ..Default::default()
        };
        v1::DescribeGroupResponse {
            group: Some(v1::Group {
                state: state.into(),
                ..Default::default()
            }),
            members: vec![member("other", &[0]), member("me", mine)],
        }
    }

    /// Story: one partition, and another member has it. The command ends once that is
    /// settled and not before; without `--until-end` it waits for its turn.
    #[test]
    fn a_member_without_a_partition_has_nothing_to_read_to_the_end() {
        let mut holding = Holding::new(true);
        assert!(!holding.is_over(), "nobody knows yet");
        for early in [
            described("assigning", &[]),
            described("reconciling", &[]),
            described("stable", &[1]),
        ] {
            assert!(!holding.on_described(&early, "me"));
        }
        assert!(!holding.on_described(&described("stable", &[]), "stranger"));
        assert!(!holding.is_over());
        assert!(holding.on_described(&described("stable", &[]), "me"));
        assert!(holding.is_over() && !holding.has_failed());
        let mut waits = Holding::new(false);
        assert!(!waits.on_described(&described("stable", &[]), "me"));
        assert!(!waits.is_over());
    }

    #[test]
    fn trouble_that_passed_is_no_failure() {
        let mut holding = Holding::new(true);
        holding.assigned(&[position(0, 0, 0), position(1, 5, 0)]);
        holding.on_error(place(0), true);
        holding.on_error(place(1), true);
        assert!(holding.has_failed(), "not overcome");
        holding.on_position(&position(0, 0, 3));
        assert!(holding.take(&place(1), 5, 9));
        assert!(!holding.has_failed());
        holding.on_error(place(1), true);
        holding.given_up(&place(1));
        assert!(!holding.has_failed(), "another one's now");
        holding.on_error(place(0), false);
        assert!(holding.has_failed() && holding.is_over());
    }

    #[test]
    fn what_is_printed_is_committed_once_and_the_end_is_that_of_the_beginning() {
        let mut holding = Holding::new(true);
        holding.assigned(&[position(0, -1, 0)]);
        holding.on_position(&position(0, 2, 4));
        assert!(holding.uncommitted().is_empty(), "nothing was printed");
        assert!(holding.take(&place(0), 2, 4) && holding.take(&place(0), 3, 9));
        assert_eq!(holding.uncommitted()[0].offset, 4);
        assert!(holding.uncommitted().is_empty());
        assert!(!holding.take(&place(0), 4, 9), "it came later");
        assert!(holding.is_over());
    }
}
