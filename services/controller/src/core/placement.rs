//! Where new replicas go. A partition's replicas are in as many racks as there
//! are; among the racks left, the node with the fewest replicas takes one; those
//! without room come last. The
//! first replica is preferred as the leader: of those chosen, the one that is
//! preferred least often so far. Ties go to the lowest id, so that the same
//! state gives the same plan.

use super::{Core, Partition, Refusal};
use std::collections::BTreeMap;
use talweg_types::NodeId;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// `max.partitions.per.node`: replicas on one storage node.
    pub partitions_per_node: u32,
    /// `max.partitions.per.topic`.
    pub partitions_per_topic: u32,
}

/// A node while replicas are placed.
pub(super) struct Place {
    id: NodeId,
    rack: String,
    full: bool,
    hosted: usize,
    preferred: usize,
}

impl Core {
    /// Nodes that may take new replicas.
    pub(super) fn hosts(&self) -> impl Iterator<Item = NodeId> {
        let able = |(id, session): (NodeId, &super::Session)| {
            (session.can_host() && !self.is_draining(id)).then_some(id)
        };
        self.sessions().filter_map(able)
    }

    /// The replicas of each of `count` new partitions.
    pub(super) fn place(&self, count: u32, factor: u32) -> Result<Vec<Vec<NodeId>>, Refusal> {
        let mut places = self.places();
        if places.len() < factor as usize {
            return Err(Refusal::NotEnoughNodes {
                needed: factor,
                alive: u32::try_from(places.len()).unwrap_or(u32::MAX),
            });
        }
        let limit = self.settings.limits.partitions_per_node as usize;
        let mut placed = Vec::with_capacity(count as usize);
        for done in 0..count {
            let chosen = choose(&places, factor as usize, limit);
            let Some(replicas) = chosen else {
                return Err(self.no_room(&places, count, done, factor));
            };
            placed.push(take(&mut places, replicas));
        }
        Ok(placed)
    }

    /// Nodes for so many more replicas of a partition, as for a new one.
    pub(super) fn place_more(
        &self,
        places: &mut [Place],
        partition: &Partition,
        count: usize,
    ) -> Option<Vec<NodeId>> {
        let rack_of = |node: &NodeId| self.session(*node).map(|session| session.rack.clone());
        let mut racks: Vec<String> = partition.replicas.iter().filter_map(rack_of).collect();
        let limit = self.settings.limits.partitions_per_node as usize;
        let mut added = Vec::with_capacity(count);
        while added.len() < count {
            let free = places.iter_mut().filter(|place| {
                let taken = [&partition.replicas, &partition.removed, &added];
                place.hosted < limit && !taken.iter().any(|nodes| nodes.contains(&place.id))
            });
            let next = free.min_by_key(|place| {
                let in_rack = racks.iter().filter(|rack| **rack == place.rack).count();
                (place.full, in_rack, place.hosted, place.id)
            })?;
            next.hosted += 1;
            racks.push(next.rack.clone());
            added.push(next.id);
        }
        Some(added)
    }

    pub(super) fn places(&self) -> Vec<Place> {
        let mut preferred: BTreeMap<NodeId, usize> = BTreeMap::new();
        let firsts = self.view.partitions.values();
        for first in firsts.filter_map(|stored| stored.value.replicas.first()) {
            *preferred.entry(*first).or_default() += 1;
        }
        let place = |id| Place {
            id,
            rack: self.session(id).map(|s| s.rack.clone()).unwrap_or_default(),
            full: self.session(id).is_some_and(super::Session::is_full),
            hosted: self.view.hosted_count(id),
            preferred: preferred.get(&id).copied().unwrap_or_default(),
        };
        self.hosts().map(place).collect()
    }

    fn no_room(&self, places: &[Place], count: u32, done: u32, factor: u32) -> Refusal {
        let limit = self.settings.limits.partitions_per_node;
        let fullest = places.iter().map(|place| place.hosted as u64).min();
        Refusal::LimitExceeded {
            name: "max.partitions.per.node",
            limit: u64::from(limit),
            actual: fullest.unwrap_or_default() + u64::from(count - done),
            unit: "partitions",
            reason: format!(
                "{count} more partitions with {factor} replicas each do not fit: {} storage nodes \
                 can take replicas, each may hold {limit}, and there is room for {done}",
                places.len(),
            ),
        }
    }
}

/// Indexes of the places that take the next partition, the leader's first.
fn choose(places: &[Place], factor: usize, limit: usize) -> Option<Vec<usize>> {
    let mut chosen: Vec<usize> = Vec::with_capacity(factor);
    while chosen.len() < factor {
        let in_rack = |rack: &str| chosen.iter().filter(|i| places[**i].rack == rack).count();
        let free = (0..places.len()).filter(|i| places[*i].hosted < limit && !chosen.contains(i));
        let next = free.min_by_key(|i| {
            let place = &places[*i];
            (
                place.full,
                in_rack(&place.rack),
                place.hosted,
                place.preferred,
                place.id,
            )
        })?;
        chosen.push(next);
    }
    let leader = (0..factor).min_by_key(|at| {
        let place = &places[chosen[*at]];
        (place.preferred, place.id)
    });
    chosen.swap(0, leader?);
    Some(chosen)
}

fn take(places: &mut [Place], chosen: Vec<usize>) -> Vec<NodeId> {
    if let Some(first) = chosen.first() {
        places[*first].preferred += 1;
    }
    let each = chosen.into_iter().map(|i| {
        places[i].hosted += 1;
        places[i].id
    });
    each.collect()
}
