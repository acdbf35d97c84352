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
    looking: JoinSet<Looked>,
}

impl Parking {
    /// Behind what waits of the group; given back if nothing does.
    pub fn behind(&mut self, said: Said) -> Option<Said> {
        let Some(queue) = self.groups.get_mut(&said.group) else {
            return Some(said);
        };
        if queue.len() < limits::GROUP_PARKED_MAX {
            queue.push_back(said);
        } else {
            let detail = refusals::busy().detail();
            said.link
                .answer(said.request_id, &said.group, What::Error(detail));
        }
        None
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
        self.parking.looking.spawn(async move {
            let found = node.bounds.refresh(&node, unknown).await;
            Looked { group, found }
        });
        let queue = self.parking.groups.entry(Arc::clone(&said.group));
        // Ahead of what came behind it while another commit was looked up.
        queue.or_default().push_front(said);
        None
    }

    /// The commit is decided, and what waited behind it.
    pub fn on_looked(&mut self, looked: Looked) {
        let Looked { group, mut found } = looked;
        let mut queue = self.parking.groups.remove(&group).unwrap_or_default();
        let Some(mut first) = queue.pop_front() else {
            return;
        };
        let refused = apply(&mut first, &mut found);
        self.decide_said(first, refused);
        while let Some(next) = queue.pop_front() {
            self.say(next);
            if let Some(parked) = self.parking.groups.get_mut(&group) {
                parked.append(&mut queue);
            }
        }
    }
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
