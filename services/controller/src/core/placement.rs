//! Where new replicas go: to the node that has the fewest, then the fewest
//! leaders, then the lowest id; so that nodes fill up evenly and the same
//! state gives the same plan.

use super::{Core, Refusal};
use std::collections::BTreeSet;
use talweg_types::NodeId;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// `max.partitions.per.node`: replicas on one storage node.
    pub partitions_per_node: u32,
    /// `max.partitions.per.topic`.
    pub partitions_per_topic: u32,
}

impl Core {
    /// A node for each of `count` new partitions with one replica.
    pub(super) fn place(&self, count: u32) -> Result<Vec<NodeId>, Refusal> {
        let alive = self.sessions().filter(|(_, session)| session.can_host());
        let mut nodes: BTreeSet<(usize, usize, NodeId)> = alive
            .map(|(id, _)| (self.view.hosted_count(id), self.view.led_count(id), id))
            .collect();
        if nodes.is_empty() {
            return Err(Refusal::NotEnoughNodes);
        }
        let limit = self.settings.limits.partitions_per_node;
        let free = |hosted: usize| (limit as usize).saturating_sub(hosted);
        let room: usize = nodes.iter().map(|(hosted, ..)| free(*hosted)).sum();
        if room < count as usize {
            return Err(Refusal::LimitExceeded {
                name: "max.partitions.per.node",
                limit: u64::from(limit),
                actual: nodes.first().map_or(0, |(hosted, ..)| *hosted as u64) + u64::from(count),
                unit: "partitions",
                reason: format!(
                    "{count} more partitions do not fit: {} storage nodes are alive, each may \
                     hold {limit}, and {room} places are left",
                    nodes.len(),
                ),
            });
        }
        let mut placed = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let Some((hosted, led, id)) = nodes.pop_first() else {
                break;
            };
            nodes.insert((hosted + 1, led + 1, id));
            placed.push(id);
        }
        Ok(placed)
    }
}
