//! Commits whose offsets are checked against the log: by cached bounds, else the
//! leader is asked, and meanwhile the group's later requests wait in order.

use super::{converse::Said, task::Task};
use crate::refusals;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};
use talweg_group::{Bounds, Event};
use talweg_kit::errors::Refusal;
use talweg_proto::coordinator::v1::converse_response::What;
use talweg_types::{TopicPartition, limits};
use tokio::task::JoinSet;

type Found = BTreeMap<TopicPartition, Result<Bounds, Refusal>>;

/// What the leaders said, for the commit at the head of the group's queue.
pub struct Looked {
    group: Arc<str>,
    found: Found,
}

/// Groups with a commit that waits for a leader's word; it is the head of the queue.
#[derive(Default)]
pub struct Parking {
    groups: BTreeMap<Arc<str>, VecDeque<Said>>,
    /// Of all that waits.
    bytes: usize,
    looking: JoinSet<Looked>,
}

impl Parking {
    /// Behind what waits of the group; given back if nothing does. A sign of life waits
    /// for no commit.
    pub fn behind(&mut self, said: Said) -> Option<Said> {
        let alive = matches!(said.asked.event, Event::Heartbeat(_));
        let Some(queue) = self.groups.get_mut(&said.group).filter(|_| !alive) else {
            return Some(said);
        };
        let bytes = self.bytes.saturating_add(said.bytes);
        if queue.len() < limits::GROUP_PARKED_MAX && bytes <= limits::SHARD_PARKED_BYTES_MAX {
            self.bytes = bytes;
            queue.push_back(said);
        } else {
            refuse(&said);
        }
        None
    }

    /// Ahead of what came behind it while another commit was looked up. Given back if
    /// too much waits.
    fn ahead(&mut self, said: Said) -> Option<Said> {
        let bytes = self.bytes.saturating_add(said.bytes);
        if bytes > limits::SHARD_PARKED_BYTES_MAX {
            return Some(said);
        }
        self.bytes = bytes;
        let queue = self.groups.entry(Arc::clone(&said.group)).or_default();
        queue.push_front(said);
        None
    }

    /// The group's queue goes; who is in it waits here no more.
    fn take(&mut self, group: &Arc<str>) -> VecDeque<Said> {
        let queue = self.groups.remove(group).unwrap_or_default();
        let bytes: usize = queue.iter().map(|said| said.bytes).sum();
        self.bytes = self.bytes.saturating_sub(bytes);
        queue
    }

    /// Waits on, behind who is in the group's queue; false: it has none.
    fn append(&mut self, group: &Arc<str>, queue: &mut VecDeque<Said>) -> bool {
        let Some(parked) = self.groups.get_mut(group) else {
            return false;
        };
        self.bytes += queue.iter().map(|said| said.bytes).sum::<usize>();
        parked.append(queue);
        true
    }

    /// The next word of a leader; none while nothing is asked.
    pub async fn looked(&mut self) -> Option<Looked> {
        loop {
            match self.looking.join_next().await? {
                Ok(looked) => return Some(looked),
                // Cancelled with the shard.
                Err(_) => continue,
            }
        }
    }

    pub fn take_all(&mut self) -> Vec<Said> {
        self.looking.abort_all();
        self.bytes = 0;
        let groups = std::mem::take(&mut self.groups);
        groups.into_values().flatten().collect()
    }
}

impl Task {
    /// Gives the request back if its offsets can be judged now.
    pub fn look_up_bounds(&mut self, mut said: Said) -> Option<Said> {
        let unchecked = std::mem::take(&mut said.asked.unchecked);
        let Event::Commit(commit) = &mut said.asked.event else {
            return Some(said);
        };
        let mut unknown = BTreeSet::new();
        for place in unchecked {
            let Some(item) = commit.items.get_mut(place) else {
                continue;
            };
            match self.node.bounds.within(item.at, item.offset) {
                Some(bounds) => item.bounds = bounds,
                None => {
                    unknown.insert(item.at);
                    said.asked.unchecked.insert(place);
                }
            }
        }
        if unknown.is_empty() {
            return Some(said);
        }
        let (node, group) = (Arc::clone(&self.node), Arc::clone(&said.group));
        if let Some(said) = self.parking.ahead(said) {
            refuse(&said);
            return None;
        }
        self.parking.looking.spawn(async move {
            let found = node.bounds.refresh(&node, unknown).await;
            Looked { group, found }
        });
        None
    }

    /// The commit is decided, and what waited behind it.
    pub fn on_looked(&mut self, looked: Looked) {
        let Looked { group, mut found } = looked;
        let mut queue = self.parking.take(&group);
        let Some(mut first) = queue.pop_front() else {
            return;
        };
        let refused = apply(&mut first, &mut found);
        self.decide_said(first, refused);
        while let Some(next) = queue.pop_front() {
            self.say(next);
            self.parking.append(&group, &mut queue);
        }
    }
}

/// Nothing was done; later there is room.
fn refuse(said: &Said) {
    let detail = refusals::busy().detail();
    said.link
        .answer(said.request_id, &said.group, What::Error(detail));
}

/// Sets the bounds found and takes out what no leader answered for.
fn apply(said: &mut Said, found: &mut Found) -> BTreeMap<usize, Refusal> {
    let unchecked = std::mem::take(&mut said.asked.unchecked);
    let Event::Commit(commit) = &mut said.asked.event else {
        return BTreeMap::new();
    };
    let mut refused = BTreeMap::new();
    let items = std::mem::take(&mut commit.items).into_iter().enumerate();
    for (place, mut item) in items {
        if unchecked.contains(&place) {
            match found.get(&item.at) {
                Some(Ok(bounds)) => item.bounds = *bounds,
                Some(Err(refusal)) => {
                    refused.insert(place, refusal.clone());
                    continue;
                }
                None => {
                    let why = format!("the leader of {} did not answer", item.at);
                    refused.insert(place, Refusal::unavailable(why));
                    continue;
                }
            }
        }
        commit.items.push(item);
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{convert::Asked, link::Links};
    use talweg_group::{Caller, Commit, CommitKind, Committer, MemberEpoch};
    use talweg_kit::metrics::IntCounter;
    use talweg_types::MemberId;

    fn commit() -> Event {
        Event::Commit(Commit {
            by: Committer::Standalone,
            kind: CommitKind::Commit,
            items: Vec::new(),
        })
    }

    /// Story: no leader answers, and commits of many groups wait for their word. What
    /// waits is bounded over all of them; who is refused may come again, and a sign of
    /// life waits for nobody.
    #[tokio::test]
    async fn what_waits_is_bounded_in_bytes_and_signs_of_life_do_not_wait() {
        let cuts = IntCounter::new("cuts", "of the test").expect("a name");
        let (link, mut answers) = Links::default().open(1, b"p", cuts);
        let said = |group: &str, event: Event, bytes: usize| Said {
            link: Arc::clone(&link),
            request_id: 7,
            group: group.into(),
            asked: Asked {
                event,
                unchecked: BTreeSet::new(),
            },
            bytes,
        };
        let most = limits::SHARD_PARKED_BYTES_MAX;
        let mut parking = Parking::default();
        assert!(parking.ahead(said("g", commit(), most - 10)).is_none());
        assert!(parking.behind(said("g", commit(), 10)).is_none());
        assert!(parking.behind(said("g", commit(), 1)).is_none());
        let refused = answers.next().await.and_then(|answer| answer.what);
        let busy = refusals::busy().detail();
        assert_eq!(refused, Some(What::Error(busy)));
        assert!(parking.ahead(said("h", commit(), 1)).is_some());
        let alive = Event::Heartbeat(Caller {
            member: MemberId::from_slice(&[1; 16]).expect("16 bytes"),
            epoch: MemberEpoch(1),
        });
        assert!(parking.behind(said("g", alive, 1)).is_some());
        assert_eq!(parking.take(&"g".into()).len(), 2);
        assert_eq!(parking.bytes, 0);
        assert!(parking.ahead(said("h", commit(), most)).is_none());
        assert_eq!(parking.take_all().len(), 1);
        assert_eq!(parking.bytes, 0);
    }
}
