//! What an operator is woken for, counted over the view and the sessions.

use super::{Core, Life, Partition, Plane};
use talweg_types::{PartitionIndex, TimestampMs, TopicId};

/// Numbers for the alarms. Partitions of topics that are being created do not
/// count, nor do nodes that were removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// In-sync set smaller than min(`min.insync.replicas`, replication factor).
    pub below_min_in_sync: usize,
    pub without_leader: usize,
    /// A replica (of a move: one of those before it) is not in sync.
    pub under_replicated: usize,
    /// Replicas on nodes without a session.
    pub offline_replicas: usize,
    /// Storage nodes in the registry.
    pub storage_nodes: usize,
    /// Those of them without a session.
    pub offline_nodes: usize,
    /// Those of them whose newest start may have lost unflushed bytes.
    pub unclean_nodes: usize,
    /// The newest election by itself after which something may be missing.
    pub recovered: Option<TimestampMs>,
    /// The same, of those that an operator asked for.
    pub unclean: Option<TimestampMs>,
}

impl Core {
    /// Looks at every partition: for a timer, not for every change.
    pub fn census(&self) -> Census {
        let mut census = self.node_census();
        let mut topic: Option<(TopicId, Option<(PartitionIndex, usize)>)> = None;
        for (tp, stored) in &self.view.partitions {
            let (_, rules) = match &topic {
                Some(known) if known.0 == tp.topic_id => known,
                _ => topic.insert((tp.topic_id, self.in_force(tp.topic_id))),
            };
            if let Some((end, minimum)) = rules
                && tp.partition < *end
            {
                self.count(&mut census, &stored.value, *minimum);
            }
        }
        census
    }

    /// One past the last partition that clients see, and the minimum of in-sync replicas.
    fn in_force(&self, id: TopicId) -> Option<(PartitionIndex, usize)> {
        let topic = &self.view.topics.get(&id)?.value;
        let ready = topic.life == Life::Ready;
        ready.then_some((PartitionIndex(topic.partitions), self.rules(id)?.minimum))
    }

    fn count(&self, census: &mut Census, partition: &Partition, minimum: usize) {
        let wanted = match &partition.moving {
            Some(moving) => &moving.from,
            None => &partition.replicas,
        };
        let lagging = wanted.iter().any(|node| !partition.in_sync.contains(node));
        census.below_min_in_sync += usize::from(partition.in_sync.len() < minimum);
        census.without_leader += usize::from(partition.leader.is_none());
        census.under_replicated += usize::from(lagging);
        let offline = partition.replicas.iter();
        census.offline_replicas += offline
            .filter(|node| self.session(**node).is_none())
            .count();
        if let Some(recovered) = &partition.recovered {
            let newest = match recovered.unclean {
                true => &mut census.unclean,
                false => &mut census.recovered,
            };
            *newest = (*newest).max(Some(recovered.time));
        }
    }

    fn node_census(&self) -> Census {
        let mut census = Census::default();
        for (id, stored) in self.view.nodes.iter().filter(|(_, n)| !n.value.removed) {
            let session = self.session(*id).filter(|s| s.plane == Plane::Storage);
            census.storage_nodes += 1;
            census.offline_nodes += usize::from(session.is_none());
            census.unclean_nodes += usize::from(!stored.value.clean);
        }
        census
    }
}
