//! What storage nodes say of the replicas that they hold, asked all at once with
//! a deadline. A node that does not answer is known by its reason.

use crate::node::Node;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use talweg_client::{
    pool::Traffic,
    view::{PartitionView, TopicView, View},
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    storage::v1::{
        DescribeReplicasRequest, ReplicaDescription, replica_service_client::ReplicaServiceClient,
    },
    v1::{self, ReplicaDetail},
};
use talweg_types::{NodeId, TopicId};
use tokio::task::JoinSet;
use tonic::Request;

/// How long a node may take to tell.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Replicas of some topics, by node: what it said, or why it said nothing.
#[derive(Default)]
pub struct Replicas {
    by_node: BTreeMap<u32, Result<Held, String>>,
}

type Held = BTreeMap<(TopicId, u32), ReplicaDescription>;

impl Replicas {
    /// Asks each node that holds a replica of these topics.
    pub async fn ask(node: &Node, view: &View, topics: &[&TopicView]) -> Self {
        let mut wanted: BTreeMap<u32, BTreeSet<TopicId>> = BTreeMap::new();
        for topic in topics {
            let holders = topic.partitions.iter().flat_map(|p| &p.replicas);
            for holder in holders {
                wanted.entry(*holder).or_default().insert(topic.id);
            }
        }
        let mut asked = JoinSet::new();
        let mut by_node = BTreeMap::new();
        for (id, topics) in wanted {
            let Some(address) = view.storage(NodeId(id)) else {
                by_node.insert(id, Err("the node is not alive".to_owned()));
                continue;
            };
            by_node.insert(id, Err("asking it broke off".to_owned()));
            let lease = node.pool.lease(&address.grpc_address, Traffic::Control);
            asked.spawn(async move {
                let lease = lease?;
                let client = ReplicaServiceClient::new(lease.channel().clone());
                Ok::<_, Refusal>((id, ask(client, &topics).await))
            });
        }
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok(Ok((id, held))) => drop(by_node.insert(id, held.map_err(|why| why.message))),
                Ok(Err(refusal)) => tracing::debug!(%refusal, "a node cannot be asked"),
                Err(error) => tracing::error!(%error, "asking a node for its replicas broke off"),
            }
        }
        Self { by_node }
    }

    fn get(&self, node: u32, topic: TopicId, partition: u32) -> Result<&ReplicaDescription, &str> {
        match self.by_node.get(&node) {
            None => Err("the node was not asked"),
            Some(Err(why)) => Err(why),
            Some(Ok(held)) => held
                .get(&(topic, partition))
                .ok_or("the node has not opened the replica"),
        }
    }

    /// As the partition's leader says it; `None` if it does not, or leads no more.
    pub fn leader(
        &self,
        topic: TopicId,
        partition: u32,
        leader: NodeId,
    ) -> Option<&ReplicaDescription> {
        let described = self.get(leader.0, topic, partition).ok()?;
        described.leader.then_some(described)
    }

    /// Bytes of a replica's log, as far as the node says it.
    pub fn size(&self, node: u32, topic: TopicId, partition: u32) -> Option<u64> {
        Some(self.get(node, topic, partition).ok()?.size_bytes)
    }

    /// Each replica of a partition, in the order of the assignment.
    pub fn details(
        &self,
        topic: TopicId,
        partition: u32,
        state: &PartitionView,
    ) -> Vec<ReplicaDetail> {
        let leader = self.leader(topic, partition, state.leader);
        let detail = |node: &u32| {
            let caught_up = |described: &ReplicaDescription| {
                let followers = described.followers.iter();
                let follower = followers.into_iter().find(|f| f.node_id == *node);
                follower.map(|f| f.last_caught_up_ms)
            };
            let of_leader = || (*node == state.leader.0).then(wall_now_ms);
            let named = ReplicaDetail {
                node_id: *node,
                in_sync: state.in_sync.contains(node),
                last_caught_up_ms: leader.and_then(|l| of_leader().or_else(|| caught_up(l))),
                ..ReplicaDetail::default()
            };
            match self.get(*node, topic, partition) {
                Ok(own) => ReplicaDetail {
                    bounds: own.bounds,
                    size_bytes: Some(own.size_bytes),
                    truncations: own.truncations,
                    failure: own.failure.clone(),
                    ..named
                },
                Err(why) => ReplicaDetail {
                    unknown: why.to_owned(),
                    ..named
                },
            }
        };
        state.replicas.iter().map(detail).collect()
    }

    /// How far a move is: what its new replicas have of the leader's bytes.
    pub fn measure(&self, topic: &TopicView, moving: &mut v1::Reassignment) {
        let added = moving.to.iter().filter(|node| !moving.from.contains(node));
        let added: Vec<_> = added.copied().collect();
        let leader = topic
            .partitions
            .get(moving.partition as usize)
            .map(|state| state.leader);
        let whole = leader.and_then(|leader| self.leader(topic.id, moving.partition, leader));
        let Some(whole) = whole.map(|whole| whole.size_bytes) else {
            return;
        };
        moving.bytes_total = Some(whole.saturating_mul(added.len() as u64));
        // One that is only planned has nothing yet.
        let begun = !moving.reassignment_id.is_empty();
        let done = added.iter().map(|node| match begun {
            true => Some(self.size(*node, topic.id, moving.partition)?.min(whole)),
            false => Some(0),
        });
        moving.bytes_done = done.sum();
    }
}

async fn ask(
    mut client: ReplicaServiceClient<tonic::transport::Channel>,
    topics: &BTreeSet<TopicId>,
) -> Result<Held, Refusal> {
    let topic_ids = topics
        .iter()
        .map(|id| bytes::Bytes::copy_from_slice(id.as_bytes()));
    let mut request = Request::new(DescribeReplicasRequest {
        topic_ids: topic_ids.collect(),
    });
    request.set_timeout(TIMEOUT);
    let answer = tokio::time::timeout(TIMEOUT, client.describe_replicas(request)).await;
    let late = |_| Refusal::new(ErrorCode::TimedOut, "the node did not answer in time");
    let response = answer
        .map_err(late)?
        .map_err(|status| Refusal::from_status(&status))?;
    let keyed =
        |it: ReplicaDescription| Some(((TopicId::from_slice(&it.topic_id)?, it.partition), it));
    Ok(response
        .into_inner()
        .replicas
        .into_iter()
        .filter_map(keyed)
        .collect())
}

/// Adds to moves how far they are.
pub async fn measure(node: &Node, moves: &mut [v1::Reassignment]) {
    let view = node.view.get();
    let names: BTreeSet<_> = moves.iter().map(|moving| moving.topic.clone()).collect();
    let topics: Vec<_> = names.iter().filter_map(|name| view.by_name(name)).collect();
    let topics: Vec<&TopicView> = topics.into_iter().map(|topic| &**topic).collect();
    if topics.is_empty() {
        return;
    }
    let replicas = Replicas::ask(node, &view, &topics).await;
    for moving in moves {
        if let Some(topic) = view.by_name(&moving.topic) {
            replicas.measure(topic, moving);
        }
    }
}

fn wall_now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use talweg_types::LeaderEpoch;

    fn topic() -> TopicId {
        TopicId::from_slice(&[7; 16]).expect("16 bytes")
    }

    fn held(size_bytes: u64, leader: bool) -> Result<Held, String> {
        let described = ReplicaDescription {
            leader,
            size_bytes,
            followers: vec![talweg_proto::storage::v1::FollowerDescription {
                node_id: 2,
                last_caught_up_ms: 99,
            }],
            ..Default::default()
        };
        Ok(BTreeMap::from([((topic(), 0), described)]))
    }

    fn state() -> PartitionView {
        PartitionView {
            leader: NodeId(1),
            leader_epoch: LeaderEpoch(3),
            replicas: vec![1, 2, 3, 4],
            in_sync: vec![1, 2],
            ..PartitionView::default()
        }
    }

    fn replicas() -> Replicas {
        let by_node = BTreeMap::from([
            (1, held(1_000, true)),
            (2, held(1_000, false)),
            (3, Err("the node is not alive".into())),
            (4, held(300, false)),
        ]);
        Replicas { by_node }
    }

    /// What a node does not say is absent, with the reason; never a zero.
    #[test]
    fn a_node_that_does_not_answer_is_known_by_its_reason() {
        let details = replicas().details(topic(), 0, &state());
        let caught_up: Vec<_> = details.iter().map(|d| d.last_caught_up_ms).collect();
        assert!(caught_up[0].is_some_and(|at| at > 99), "the leader: now");
        assert_eq!(caught_up[1..], [Some(99), None, None]);
        let sizes: Vec<_> = details.iter().map(|d| d.size_bytes).collect();
        assert_eq!(sizes, [Some(1_000), Some(1_000), None, Some(300)]);
        assert_eq!(details[2].unknown, "the node is not alive");
        assert!(details[0].in_sync && !details[2].in_sync);
    }

    #[test]
    fn a_move_is_measured_by_what_its_new_replicas_have() {
        let mut view = View::default();
        view.set_topic(v1::Topic {
            name: "t".into(),
            topic_id: topic().as_bytes().to_vec().into(),
            partitions: 1,
            ..Default::default()
        });
        view.set_partition(topic(), 0, state());
        let known = view.topic(topic()).expect("there");
        let measured = |to: &[u32], id: &'static [u8]| {
            let mut moving = v1::Reassignment {
                reassignment_id: id.into(),
                from: vec![1, 2, 3],
                to: to.to_vec(),
                ..Default::default()
            };
            replicas().measure(known, &mut moving);
            (moving.bytes_done, moving.bytes_total)
        };
        assert_eq!(measured(&[4, 2, 3], b"id"), (Some(300), Some(1_000)));
        assert_eq!(measured(&[4, 2, 3], b""), (Some(0), Some(1_000)), "planned");
        assert_eq!(measured(&[2, 1, 3], b"id"), (Some(0), Some(0)));
        assert_eq!(
            measured(&[5, 2, 3], b"id"),
            (None, Some(1_000)),
            "not asked"
        );
    }
}
