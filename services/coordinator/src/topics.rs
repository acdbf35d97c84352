//! The topics as groups see them, from the cluster's view.

use std::collections::BTreeSet;
use talweg_client::view::View;
use talweg_group::{Topic, Topics};
use talweg_types::NodeId;

/// Topics with all their partitions; racks in order, those of live nodes only.
pub fn topics(view: &View) -> Topics {
    Topics::new(view.topics().map(|topic| {
        let racks = topic.partitions.iter().map(|partition| {
            let nodes = partition.replicas.iter();
            let racks = nodes.filter_map(|id| view.storage(NodeId(*id)));
            let racks = racks.map(|node| node.rack.clone());
            let racks: BTreeSet<String> = racks.filter(|rack| !rack.is_empty()).collect();
            racks.into_iter().collect()
        });
        let seen = Topic {
            id: topic.id,
            racks: racks.collect(),
            derived: !topic.topic.derived_from_topic_id.is_empty(),
        };
        (topic.topic.name.clone(), seen)
    }))
}
