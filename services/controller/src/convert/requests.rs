//! Requests and frames from outside, checked for form; the core checks sense.

use crate::core::{
    AlterTopic, CreateTopic, DeleteTopic, DeriveTopic, FolderStatus, Health, Plane, Registration,
    Request,
};
use prost::bytes::Bytes;
use std::collections::BTreeSet;
use talweg_kit::errors::Refusal;
use talweg_proto::{controller::v1 as wire, v1};
use talweg_types::{FolderId, Incarnation, NodeId, PartitionIndex, TopicId, TopicPartition};
use uuid::Uuid;

/// Topics in one confirmation, folders of one node, bytes of a text field.
const CONFIRM_MAX: usize = 10_000;
const FOLDERS_MAX: usize = 64;
/// Replicas that one node may name; far above what one may hold.
const REPLICAS_MAX: usize = 100_000;
const TEXT_BYTES_MAX: usize = 1_024;

pub(super) fn uuid(field: &str, bytes: &Bytes) -> Result<Uuid, Refusal> {
    Uuid::from_slice(bytes)
        .map_err(|_| Refusal::invalid(field, format!("an id has 16 bytes, not {}", bytes.len())))
}

pub(super) fn partition(
    field: &str,
    topic: &Bytes,
    partition: u32,
) -> Result<TopicPartition, Refusal> {
    Ok(TopicPartition {
        topic_id: TopicId(uuid(field, topic)?),
        partition: PartitionIndex(partition),
    })
}

/// Absent is empty.
pub fn topic_id(bytes: &Bytes) -> Result<Option<TopicId>, Refusal> {
    if bytes.is_empty() {
        return Ok(None);
    }
    uuid("topic_id", bytes).map(|id| Some(TopicId(id)))
}

pub fn create(request: v1::CreateTopicRequest) -> Request {
    Request::Create(CreateTopic {
        name: request.name,
        partitions: request.partitions,
        replication_factor: request.replication_factor,
        config: request.config.into_iter().collect(),
        idempotency_key: request.idempotency_key,
        id: TopicId(Uuid::new_v4()),
    })
}

pub fn derive(request: wire::EnsureDerivedTopicRequest) -> Result<Request, Refusal> {
    Ok(Request::Derive(DeriveTopic {
        source: TopicId(uuid("source_topic_id", &request.source_topic_id)?),
        name: request.name,
        group: request.group,
        id: TopicId(Uuid::new_v4()),
    }))
}

pub fn alter(request: v1::AlterTopicRequest) -> Request {
    Request::Alter(AlterTopic {
        name: request.name,
        partitions: request.partitions,
        set: request.config.into_iter().collect(),
        reset: request.reset_config.into_iter().collect(),
    })
}

pub fn delete(request: v1::DeleteTopicRequest) -> Result<Request, Refusal> {
    let id = topic_id(&request.topic_id)?;
    let name = (!request.name.is_empty()).then_some(request.name);
    Ok(Request::Delete(DeleteTopic { name, id }))
}

pub fn confirm(request: &wire::ConfirmReplicasDeletedRequest) -> Result<Request, Refusal> {
    for (field, count) in [
        ("topic_ids", request.topic_ids.len()),
        ("partitions", request.partitions.len()),
    ] {
        if count > CONFIRM_MAX {
            let reason = format!("at most {CONFIRM_MAX} at a time, not {count}");
            return Err(Refusal::invalid(field, reason));
        }
    }
    let partitions = request.partitions.iter();
    let partitions = partitions.map(|at| partition("partitions", &at.topic_id, at.partition));
    let topics = request
        .topic_ids
        .iter()
        .map(|id| uuid("topic_ids", id).map(TopicId));
    Ok(Request::ConfirmDeleted {
        node: NodeId(request.node_id),
        incarnation: Incarnation(request.incarnation),
        topics: topics.collect::<Result<_, _>>()?,
        partitions: partitions.collect::<Result<_, _>>()?,
    })
}

/// A node's first frame.
pub fn registration(frame: wire::RegisterNode) -> Result<Registration, Refusal> {
    let plane = match frame.plane() {
        v1::Plane::Storage => Plane::Storage,
        v1::Plane::Coordinator => Plane::Coordinator,
        v1::Plane::Gateway => Plane::Gateway,
        v1::Plane::Controller | v1::Plane::Unspecified => {
            return Err(Refusal::invalid("register.plane", "has no sessions"));
        }
    };
    for (field, text) in [
        ("register.grpc_address", &frame.grpc_address),
        ("register.http_address", &frame.http_address),
        ("register.rack", &frame.rack),
        ("register.version", &frame.version),
    ] {
        if text.len() > TEXT_BYTES_MAX {
            let reason = format!("has at most {TEXT_BYTES_MAX} bytes, not {}", text.len());
            return Err(Refusal::invalid(field, reason));
        }
    }
    if frame.grpc_address.is_empty() {
        return Err(Refusal::invalid(
            "register.grpc_address",
            "must not be empty",
        ));
    }
    if frame.folders.len() > FOLDERS_MAX {
        let reason = format!("at most {FOLDERS_MAX}, not {}", frame.folders.len());
        return Err(Refusal::invalid("register.folders", reason));
    }
    let cluster = match frame.cluster_id.is_empty() {
        true => None,
        false => Some(uuid("register.cluster_id", &frame.cluster_id)?),
    };
    let fresh = frame
        .folders
        .iter()
        .filter(|f| f.boot() == wire::FolderBoot::New);
    let fresh = fresh
        .filter_map(|f| FolderId::from_slice(&f.folder_id))
        .collect();
    let folders = frame.folders.iter();
    let ids = folders.map(|f| uuid("register.folders.folder_id", &f.folder_id).map(FolderId));
    Ok(Registration {
        plane,
        node: NodeId(frame.node_id),
        cluster,
        process: uuid("register.process_id", &frame.process_id)?,
        folders: ids.collect::<Result<BTreeSet<_>, _>>()?,
        fresh,
        clean: frame
            .folders
            .iter()
            .all(|folder| lost_nothing(folder.boot())),
        grpc_address: frame.grpc_address,
        http_address: frame.http_address,
        rack: frame.rack,
        version: frame.version,
    })
}

/// The page cache of the folder's last use is whole, or was flushed.
fn lost_nothing(boot: wire::FolderBoot) -> bool {
    match boot {
        wire::FolderBoot::New | wire::FolderBoot::Clean | wire::FolderBoot::SameBoot => true,
        wire::FolderBoot::Unclean | wire::FolderBoot::Unspecified => false,
    }
}

/// Folders of a heartbeat; what has no id is left out.
pub fn folder_statuses(folders: Vec<v1::FolderDescription>) -> Vec<FolderStatus> {
    let known = folders.into_iter().take(FOLDERS_MAX).filter_map(|folder| {
        Some(FolderStatus {
            id: FolderId::from_slice(&folder.folder_id)?,
            free_bytes: folder.free_bytes,
            total_bytes: folder.total_bytes,
            failure: folder.failure,
            full: folder.full,
        })
    });
    known.collect()
}

/// Replicas that fail or have no room; what has no id is left out.
pub fn health(frame: wire::ReplicaHealth) -> Health {
    Health {
        failed: replicas(frame.failed),
        full: replicas(frame.full),
    }
}

fn replicas(topics: Vec<wire::ReplicasOfTopic>) -> BTreeSet<TopicPartition> {
    let each = topics.into_iter().flat_map(|of| {
        let topic_id = TopicId::from_slice(&of.topic_id);
        let tp = move |partition| {
            Some(TopicPartition {
                topic_id: topic_id?,
                partition: PartitionIndex(partition),
            })
        };
        of.partitions.into_iter().filter_map(tp)
    });
    each.take(REPLICAS_MAX).collect()
}

/// The answer to a registration.
pub fn registered(
    node: NodeId,
    cluster: Uuid,
    incarnation: Incarnation,
    session_timeout_ms: u32,
    revision: i64,
) -> wire::NodeRegistered {
    wire::NodeRegistered {
        node_id: node.0,
        cluster_id: Bytes::copy_from_slice(cluster.as_bytes()),
        incarnation: incarnation.0,
        session_timeout_ms,
        revision,
    }
}
