//! Stored offsets: commit, fetch, delete.

use super::{Asked, topic_name};
use crate::{convert, refusals::refusal, shard::merge};
use std::collections::{BTreeMap, BTreeSet};
use talweg_group::{
    Answer, Bounds, Caller, Commit, CommitItem, CommitKind, Committed, Committer, Event,
    MemberEpoch, Topics,
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1::{
    CommitOffsetsRequest, CommitOffsetsResponse, CommittedOffset, DeleteOffsetsRequest,
    DeleteOffsetsResponse, ErrorDetail, FetchOffsetsResponse,
};
use talweg_types::{LeaderEpoch, MemberId, Offset, PartitionIndex, TopicPartition, limits};

impl Asked {
    /// Errors of partitions are in their answers; FENCED, UNKNOWN_MEMBER and
    /// LIMIT_EXCEEDED are for all.
    pub async fn commit(&self, of: CommitOffsetsRequest) -> Result<CommitOffsetsResponse, Refusal> {
        convert::check_count("offsets", of.offsets.len())?;
        let by = match of.member_id.as_str() {
            "" => Committer::Standalone,
            text => Committer::Member(Caller {
                member: text.parse::<MemberId>().map_err(|_| {
                    Refusal::invalid("member_id", format!("{text:?} is not a member id"))
                })?,
                epoch: MemberEpoch(of.member_epoch),
            }),
        };
        let mut refused = BTreeMap::new();
        let mut items = Vec::new();
        for (place, offset) in of.offsets.into_iter().enumerate() {
            match self.item(offset) {
                Ok(item) => items.push((place, item)),
                Err(refusal) => drop(refused.insert(place, refusal)),
            }
        }
        let items = self.with_bounds(items, &mut refused).await;
        let kind = match of.seek {
            true => CommitKind::Seek,
            false => CommitKind::Commit,
        };
        let event = Event::Commit(Commit { by, kind, items });
        let results = match self.shard.decide(&self.group, event).await? {
            Answer::Committed(results) => results,
            Answer::Done | Answer::More | Answer::View(_) => {
                return Err(Refusal::internal("not a commit's answer"));
            }
        };
        let errors = merge(results, refused)
            .into_iter()
            .map(|result| match result {
                Ok(_) => ErrorDetail::default(),
                Err(refusal) => refusal.detail(),
            });
        Ok(CommitOffsetsResponse {
            errors: errors.collect(),
        })
    }

    fn item(&self, offset: CommittedOffset) -> Result<CommitItem, Refusal> {
        let topics = self.topics();
        let at = match (offset.topic.as_str(), offset.topic_id.is_empty()) {
            ("", true) => {
                return Err(Refusal::invalid(
                    "offsets.topic",
                    "neither name nor id is given",
                ));
            }
            ("", false) => convert::partition(&offset.topic_id, offset.partition)?,
            (name, no_id) => {
                let at = TopicPartition {
                    topic_id: self.topic(name)?,
                    partition: PartitionIndex(offset.partition),
                };
                if !no_id && convert::partition(&offset.topic_id, 0)?.topic_id != at.topic_id {
                    let why = format!("topic {name:?} has another id now");
                    return Err(Refusal::new(ErrorCode::TopicIdChanged, why));
                }
                at
            }
        };
        check_partition(&topics, at)?;
        Ok(CommitItem {
            at,
            offset: Offset(offset.offset),
            leader_epoch: LeaderEpoch(offset.leader_epoch),
            metadata: offset.metadata,
            bounds: Bounds::Delivered,
        })
    }

    /// Those whose leader does not answer go to `refused`.
    async fn with_bounds(
        &self,
        items: Vec<(usize, CommitItem)>,
        refused: &mut BTreeMap<usize, Refusal>,
    ) -> Vec<CommitItem> {
        let bounds = &self.node.bounds;
        let unknown = items
            .iter()
            .filter(|(_, item)| bounds.within(item.at, item.offset).is_none());
        let unknown: BTreeSet<TopicPartition> = unknown.map(|(_, item)| item.at).collect();
        let found = match unknown.is_empty() {
            true => BTreeMap::new(),
            false => bounds.refresh(&self.node, unknown).await,
        };
        let mut judged = Vec::with_capacity(items.len());
        for (place, mut item) in items {
            let known = match found.get(&item.at) {
                Some(answer) => answer.clone(),
                None => bounds.within(item.at, item.offset).ok_or_else(|| {
                    Refusal::unavailable(format!("the bounds of {} are not known", item.at))
                }),
            };
            match known {
                Ok(bounds) => {
                    item.bounds = bounds;
                    judged.push(item);
                }
                Err(refusal) => drop(refused.insert(place, refusal)),
            }
        }
        judged
    }

    /// Nothing for a group of which nothing is stored.
    pub async fn fetch(&self, topic: &str) -> Result<FetchOffsetsResponse, Refusal> {
        let offsets = self.stored(topic, &BTreeSet::new()).await?;
        Ok(FetchOffsetsResponse { offsets })
    }

    /// Of one topic or all, of these partitions or all.
    pub async fn stored(
        &self,
        topic: &str,
        partitions: &BTreeSet<u32>,
    ) -> Result<Vec<CommittedOffset>, Refusal> {
        let only = match topic {
            "" => None,
            name => Some(self.topic(name)?),
        };
        let stored = self.read(|_, group| group.state().offsets().clone()).await;
        let stored = match stored {
            Err(refusal) if refusal.code == ErrorCode::UnknownGroup => BTreeMap::new(),
            other => other?,
        };
        let topics = self.topics();
        let wanted = stored.iter().filter(|(at, _)| {
            only.is_none_or(|id| id == at.topic_id)
                && (partitions.is_empty() || partitions.contains(&at.partition.0))
        });
        Ok(wanted.map(|(at, it)| committed(*at, it, &topics)).collect())
    }

    pub async fn delete_offsets(
        &self,
        of: DeleteOffsetsRequest,
    ) -> Result<DeleteOffsetsResponse, Refusal> {
        convert::check_count("partitions", of.partitions.len())?;
        if of.topic.is_empty() {
            return Err(Refusal::invalid("topic", "is missing"));
        }
        let wanted = of.partitions.into_iter().collect();
        let deleted = self.stored(&of.topic, &wanted).await?;
        let at = deleted
            .iter()
            .map(|it| convert::partition(&it.topic_id, it.partition));
        let at = at.collect::<Result<Vec<_>, _>>()?;
        // As much as one decision takes; it also says whether the group is in use.
        let part = limits::FORGOTTEN_AT_ONCE_MAX / 2;
        for part in at.chunks(part).chain(at.is_empty().then_some(&at[..])) {
            let event = Event::DeleteOffsets(part.iter().copied().collect());
            self.shard.decide(&self.group, event).await?;
        }
        Ok(DeleteOffsetsResponse { deleted })
    }
}

pub fn committed(at: TopicPartition, of: &Committed, topics: &Topics) -> CommittedOffset {
    CommittedOffset {
        topic: topic_name(topics, at.topic_id),
        topic_id: bytes::Bytes::copy_from_slice(at.topic_id.as_bytes()),
        partition: at.partition.0,
        offset: of.offset.0,
        leader_epoch: of.leader_epoch.0,
        metadata: of.metadata.clone(),
    }
}

fn check_partition(topics: &Topics, at: TopicPartition) -> Result<(), Refusal> {
    match topics.by_id(at.topic_id) {
        None => Err(refusal(&talweg_group::Refusal::UnknownTopic(at))),
        Some(topic) if topic.racks.len() <= at.partition.0 as usize => {
            Err(refusal(&talweg_group::Refusal::UnknownPartition(at)))
        }
        Some(_) => Ok(()),
    }
}
