//! A group with its members.

use super::{Asked, topic_name};
use crate::convert::kind_name;
use std::collections::BTreeMap;
use talweg_group::{Assignor, Group, GroupStatus, Topics};
use talweg_kit::errors::Refusal;
use talweg_proto::v1::{self, DescribeGroupResponse, GroupAssignment, GroupMember};
use talweg_types::{MemberId, TopicId, TopicPartition};

pub fn state_name(status: GroupStatus) -> &'static str {
    match status {
        GroupStatus::Empty => "empty",
        GroupStatus::Assigning => "assigning",
        GroupStatus::Reconciling => "reconciling",
        GroupStatus::Stable => "stable",
    }
}

/// As a list shows it.
pub fn summary(name: &str, group: &Group, coordinator: u32, shard: u32) -> v1::Group {
    let state = group.state();
    v1::Group {
        group: name.into(),
        state: state_name(group.status()).into(),
        group_epoch: state.meta().map_or(0, |meta| meta.group_epoch.0),
        members: u32::try_from(state.members().len()).unwrap_or(u32::MAX),
        assignor: match group.assignor() {
            Assignor::Sticky => "sticky",
            Assignor::Range => "range",
            Assignor::RoundRobin => "round-robin",
        }
        .into(),
        coordinator,
        shard,
    }
}

impl Asked {
    pub async fn describe(&self) -> Result<DescribeGroupResponse, Refusal> {
        let topics = self.topics();
        let id = self.node.identity().map_or(0, |(id, _)| id.0);
        let name = self.group.clone();
        self.read(move |seen, group| DescribeGroupResponse {
            group: Some(summary(&name, group, id, seen.at.partition.0)),
            members: group
                .state()
                .members()
                .keys()
                .map(|id| member(group, *id, group.is_live(*id, seen.now), &topics))
                .collect(),
        })
        .await
    }
}

fn member(group: &Group, id: MemberId, live: bool, topics: &Topics) -> GroupMember {
    let state = group.state();
    let mut shown = GroupMember {
        member_id: id.to_string(),
        live,
        ..GroupMember::default()
    };
    if let Some(meta) = state.members().get(&id) {
        shown.instance_id = meta.instance_id.clone().unwrap_or_default();
        shown.client_id = meta.client_id.clone();
        shown.kind = kind_name(meta.kind).into();
        shown.rack = meta.rack.clone();
    }
    if let Some(current) = state.current(id) {
        shown.member_epoch = current.member_epoch.0;
        shown.assignment = by_topic(current.owned.keys().copied(), topics);
        let revoking = current.owned.iter().filter(|(_, owned)| owned.revoking);
        shown.revoking = by_topic(revoking.map(|(at, _)| *at), topics);
    }
    shown
}

fn by_topic(
    partitions: impl Iterator<Item = TopicPartition>,
    topics: &Topics,
) -> Vec<GroupAssignment> {
    let mut by_topic: BTreeMap<TopicId, Vec<u32>> = BTreeMap::new();
    for at in partitions {
        by_topic
            .entry(at.topic_id)
            .or_default()
            .push(at.partition.0);
    }
    let shown = by_topic
        .into_iter()
        .map(|(id, partitions)| GroupAssignment {
            topic: topic_name(topics, id),
            partitions,
        });
    shown.collect()
}
