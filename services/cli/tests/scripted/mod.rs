//! A gateway that does what the name of the topic says, so that the command
//! line meets every kind of answer. Every topic has two partitions.

use async_trait::async_trait;
use std::{net::SocketAddr, time::Duration};
use talweg_kit::{
    data_stream::{
        FrameReceiver, FrameSender, PeerInfo, StreamHandler, fetch_service, produce_service,
    },
    errors::{ErrorCode, Refusal},
    net::{self, ServerHandle, ServerOptions},
};
use talweg_proto::v1::{
    self,
    cluster_service_server::{ClusterService, ClusterServiceServer},
    fetch_request, fetch_response, produce_request, produce_response,
    topic_service_server::{TopicService, TopicServiceServer},
};
use tonic::{Request, Response, Status, service::Routes};

/// Records that each partition of the fetch stories holds when they begin.
pub const HELD: i64 = 3;

/// A limit of a balancing that somebody stops.
pub const STOPPED: u64 = 7;

/// Serves until the handle is dropped.
pub async fn serve() -> (SocketAddr, ServerHandle) {
    let listener = net::bind("127.0.0.1:0").await.expect("a free port");
    let routes = Routes::new(TopicServiceServer::new(Scripted))
        .add_service(ClusterServiceServer::new(Scripted))
        .add_service(produce_service::<Scripted>(Scripted))
        .add_service(fetch_service::<Scripted>(Scripted));
    let server = net::serve(listener, routes, ServerOptions::default()).expect("serving");
    (server.addr(), server)
}

struct Scripted;

fn topic(name: &str) -> v1::Topic {
    v1::Topic {
        name: name.into(),
        // The name in the id, so that frames that carry only the id can be told apart.
        topic_id: id(name),
        partitions: 2,
        replication_factor: 1,
        ..v1::Topic::default()
    }
}

fn id(name: &str) -> bytes::Bytes {
    let mut id = [b' '; 16];
    id[..name.len()].copy_from_slice(name.as_bytes());
    id.to_vec().into()
}

fn name_of(id: &[u8]) -> String {
    String::from_utf8_lossy(id).trim_end().to_owned()
}

type Answer<T> = Result<Response<T>, Status>;

fn unimplemented<T>() -> Answer<T> {
    Err(Status::unimplemented("not in this script"))
}

#[tonic::async_trait]
impl TopicService for Scripted {
    async fn describe_topic(
        &self,
        request: Request<v1::DescribeTopicRequest>,
    ) -> Answer<v1::DescribeTopicResponse> {
        let name = request.into_inner().name;
        if name == "unknown" {
            return Err(
                Refusal::new(ErrorCode::UnknownTopic, "there is no topic \"unknown\"").into(),
            );
        }
        let partition = |partition| v1::PartitionDescription {
            partition,
            leader: 1,
            leader_epoch: 7,
            replicas: vec![if name == "moved" { 2 } else { 1 }],
            recovered: (name == "lossy").then_some(v1::RecoveredDescription {
                leader_epoch: 7,
                unclean: true,
                time_ms: 11,
                from_offset: 3,
            }),
            ..Default::default()
        };
        let partitions = (0..2).map(partition).collect();
        Ok(Response::new(v1::DescribeTopicResponse {
            topic: Some(topic(&name)),
            partitions,
        }))
    }

    async fn create_topic(
        &self,
        _: Request<v1::CreateTopicRequest>,
    ) -> Answer<v1::CreateTopicResponse> {
        Err(Refusal::new(ErrorCode::TopicExists, "it exists")
            .with_existing_topic(id("taken"))
            .into())
    }

    async fn delete_topic(
        &self,
        _: Request<v1::DeleteTopicRequest>,
    ) -> Answer<v1::DeleteTopicResponse> {
        unimplemented()
    }

    async fn alter_topic(
        &self,
        _: Request<v1::AlterTopicRequest>,
    ) -> Answer<v1::AlterTopicResponse> {
        unimplemented()
    }

    async fn list_topics(
        &self,
        _: Request<v1::ListTopicsRequest>,
    ) -> Answer<v1::ListTopicsResponse> {
        Ok(Response::new(v1::ListTopicsResponse {
            topics: vec![topic("a"), topic("b")],
        }))
    }

    async fn list_config_keys(
        &self,
        _: Request<v1::ListConfigKeysRequest>,
    ) -> Answer<v1::ListConfigKeysResponse> {
        unimplemented()
    }
}

#[tonic::async_trait]
impl ClusterService for Scripted {
    type WatchMetadataStream = tokio_stream::Empty<Result<v1::WatchMetadataResponse, Status>>;
    type BalanceClusterStream =
        tokio_stream::Iter<std::vec::IntoIter<Result<v1::BalanceClusterResponse, Status>>>;

    async fn get_metadata(
        &self,
        request: Request<v1::GetMetadataRequest>,
    ) -> Answer<v1::GetMetadataResponse> {
        let topic = |name: &String| v1::TopicMetadata {
            topic: Some(topic(name)),
            ..Default::default()
        };
        let topics = request.into_inner().topics.iter().map(topic).collect();
        let metadata = v1::Metadata {
            topics,
            ..v1::Metadata::default()
        };
        Ok(Response::new(v1::GetMetadataResponse {
            metadata: Some(metadata),
        }))
    }

    async fn watch_metadata(
        &self,
        _: Request<v1::WatchMetadataRequest>,
    ) -> Answer<Self::WatchMetadataStream> {
        unimplemented()
    }

    /// Two moves. With a limit of [`STOPPED`] somebody stops it after the first.
    async fn balance_cluster(
        &self,
        request: Request<v1::BalanceClusterRequest>,
    ) -> Answer<Self::BalanceClusterStream> {
        let stopped = request.into_inner().throttle_bytes_per_second == STOPPED;
        let progress = |left: u32| v1::BalanceClusterResponse {
            moves_total: 2,
            moves_done: 2 - left,
            moves: vec![v1::Reassignment::default(); left as usize],
            ..Default::default()
        };
        let last = v1::BalanceClusterResponse {
            done: !stopped,
            stopped,
            ..progress(u32::from(stopped))
        };
        let told = vec![Ok(progress(2)), Ok(last)];
        Ok(Response::new(tokio_stream::iter(told)))
    }

    async fn describe_cluster(
        &self,
        _: Request<v1::DescribeClusterRequest>,
    ) -> Answer<v1::DescribeClusterResponse> {
        unimplemented()
    }

    async fn drain_node(&self, _: Request<v1::DrainNodeRequest>) -> Answer<v1::DrainNodeResponse> {
        unimplemented()
    }

    async fn undrain_node(
        &self,
        _: Request<v1::UndrainNodeRequest>,
    ) -> Answer<v1::UndrainNodeResponse> {
        unimplemented()
    }

    async fn remove_node(
        &self,
        _: Request<v1::RemoveNodeRequest>,
    ) -> Answer<v1::RemoveNodeResponse> {
        unimplemented()
    }

    /// Over before anybody looks: "moved" is where it was to go, others are not.
    async fn reassign_partition(
        &self,
        _: Request<v1::ReassignPartitionRequest>,
    ) -> Answer<v1::ReassignPartitionResponse> {
        Ok(Response::new(v1::ReassignPartitionResponse {
            reassignment_id: id("move"),
        }))
    }

    async fn list_reassignments(
        &self,
        _: Request<v1::ListReassignmentsRequest>,
    ) -> Answer<v1::ListReassignmentsResponse> {
        Ok(Response::new(v1::ListReassignmentsResponse::default()))
    }

    async fn cancel_reassignment(
        &self,
        _: Request<v1::CancelReassignmentRequest>,
    ) -> Answer<v1::CancelReassignmentResponse> {
        unimplemented()
    }

    async fn elect_leader(
        &self,
        _: Request<v1::ElectLeaderRequest>,
    ) -> Answer<v1::ElectLeaderResponse> {
        Ok(Response::new(v1::ElectLeaderResponse {
            leader: 1,
            leader_epoch: 7,
        }))
    }
}

/// "good" acknowledges everything; "partial" refuses every second record of the
/// stream; "breaks" ends the stream with an error when records come.
#[async_trait]
impl StreamHandler<v1::ProduceRequest, v1::ProduceResponse> for Scripted {
    async fn serve(
        &self,
        _: PeerInfo,
        mut requests: FrameReceiver<v1::ProduceRequest>,
        responses: FrameSender<v1::ProduceResponse>,
    ) -> Result<(), Status> {
        let credit = Some(v1::Credit {
            bytes: 8 << 20,
            records: 10_000,
        });
        let opened = v1::ProduceOpened {
            credit,
            heartbeat_interval_ms: 10_000,
            ..Default::default()
        };
        say(&responses, produce_response::Frame::Opened(opened)).await;
        let mut offset = 100;
        while let Some(request) = requests.next().await {
            let Some(produce_request::Frame::Records(frame)) = request?.frame else {
                continue;
            };
            for (sequence, record) in (frame.first_sequence..).zip(&frame.records) {
                match (frame.topic.as_str(), sequence % 2) {
                    ("breaks", _) => return Err(Status::unavailable("pulled the plug")),
                    ("partial", 1) => say(&responses, refusal(sequence)).await,
                    _ => {
                        let partition = record.partition.unwrap_or_default();
                        say(&responses, ack(sequence, offset, partition)).await;
                        offset += 1;
                    }
                }
            }
        }
        Ok(())
    }
}

async fn say(responses: &FrameSender<v1::ProduceResponse>, frame: produce_response::Frame) {
    // Who has gone hears nothing.
    let frame = v1::ProduceResponse { frame: Some(frame) };
    responses.send(frame).await.ok();
}

fn ack(sequence: u64, base_offset: i64, partition: u32) -> produce_response::Frame {
    produce_response::Frame::RecordsAck(v1::RecordsAck {
        partition,
        base_offset,
        timestamp_ms: 1_000,
        sequences: vec![sequence],
        ..v1::RecordsAck::default()
    })
}

fn refusal(sequence: u64) -> produce_response::Frame {
    let error = Refusal::new(ErrorCode::RecordTooLarge, "too large").with_limit(
        "max.record.bytes",
        10,
        11,
        "bytes",
    );
    produce_response::Frame::Refusal(v1::ProduceRefusal {
        sequences: vec![sequence],
        error: Some(error.detail()),
        ..v1::ProduceRefusal::default()
    })
}

/// Each partition has [`HELD`] records, and one more that came while reading.
/// "half" refuses partition 1.
#[async_trait]
impl StreamHandler<v1::FetchRequest, v1::FetchResponse> for Scripted {
    async fn serve(
        &self,
        _: PeerInfo,
        mut requests: FrameReceiver<v1::FetchRequest>,
        responses: FrameSender<v1::FetchResponse>,
    ) -> Result<(), Status> {
        let tell = async |frame| {
            let frame = v1::FetchResponse { frame: Some(frame) };
            responses.send(frame).await.ok();
        };
        let opened = v1::FetchOpened {
            heartbeat_interval_ms: 10_000,
            ..Default::default()
        };
        tell(fetch_response::Frame::Opened(opened)).await;
        while let Some(request) = requests.next().await {
            let Some(fetch_request::Frame::Update(update)) = request?.frame else {
                continue;
            };
            for add in &update.add {
                if name_of(&add.topic_id) == "half" && add.partition == 1 {
                    tell(damaged(add)).await;
                    continue;
                }
                let positions = vec![position(add, 0, HELD)];
                tell(fetch_response::Frame::Updated(v1::FetchUpdated {
                    update_id: update.update_id,
                    positions,
                }))
                .await;
                tell(records(add)).await;
            }
        }
        // A client that half-closes still reads.
        tokio::time::sleep(Duration::from_millis(10)).await;
        Ok(())
    }
}

fn damaged(add: &v1::FetchPartition) -> fetch_response::Frame {
    let error =
        Refusal::new(ErrorCode::DataDamaged, "the bytes on disk are damaged").with_damage(0, 2);
    fetch_response::Frame::PartitionError(v1::FetchPartitionError {
        topic_id: add.topic_id.clone(),
        partition: add.partition,
        generation: add.generation,
        error: Some(error.detail()),
        ..v1::FetchPartitionError::default()
    })
}

fn position(
    add: &v1::FetchPartition,
    next_offset: i64,
    high_watermark: i64,
) -> v1::PartitionPosition {
    v1::PartitionPosition {
        topic_id: add.topic_id.clone(),
        partition: add.partition,
        next_offset,
        last_stable_offset: high_watermark,
        high_watermark,
        generation: add.generation,
        ..v1::PartitionPosition::default()
    }
}

fn records(add: &v1::FetchPartition) -> fetch_response::Frame {
    let record = |offset: i64| v1::FetchedRecord {
        offset,
        timestamp_ms: 1_000 + offset,
        key: (offset > 0).then(|| "k".into()),
        value: (offset != 1).then(|| vec![b'v', 0xff].into()),
        headers: vec![],
        leader_epoch: 1,
    };
    fetch_response::Frame::Records(v1::FetchedRecords {
        position: Some(position(add, HELD + 1, HELD + 1)),
        credit_left: None,
        records: (0..=HELD).map(record).collect(),
    })
}
