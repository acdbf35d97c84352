//! `OffsetService` for the partitions that this node leads: offsets by time and
//! place, deletion of records. The rest is a coordinator's.

use super::{not_here, replicas::bounds};
use crate::{
    fetch::{offset_for_time, out_of_range},
    node::Node,
    partition::Command,
    resolve,
};
use std::sync::Arc;
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_log::LogError;
use talweg_proto::v1::{
    CommitOffsetsRequest, CommitOffsetsResponse, DeleteOffsetsRequest, DeleteOffsetsResponse,
    DeleteRecordsAnswer, DeleteRecordsRequest, DeleteRecordsResponse, DeleteRecordsTarget,
    FetchOffsetsRequest, FetchOffsetsResponse, GetLagRequest, GetLagResponse, ListOffsetsRequest,
    ListOffsetsResponse, OffsetAnswer, OffsetQuery, ResetOffsetsRequest, ResetOffsetsResponse,
    WatchLagRequest, WatchLagResponse, offset_query::At, offset_service_server::OffsetService,
};
use talweg_types::{Offset, TimestampMs, limits};
use tokio::sync::oneshot;
use tokio_stream::Empty;
use tonic::{Request, Response, Status};

pub struct Offsets {
    pub node: Arc<Node>,
}

#[tonic::async_trait]
impl OffsetService for Offsets {
    type WatchLagStream = Empty<Result<WatchLagResponse, Status>>;

    /// LIMIT_EXCEEDED for too many queries; else each answer has its own code.
    async fn list_offsets(
        &self,
        request: Request<ListOffsetsRequest>,
    ) -> Result<Response<ListOffsetsResponse>, Status> {
        let queries = request.into_inner().queries;
        check_count("queries", queries.len())?;
        let mut answers = Vec::with_capacity(queries.len());
        for query in queries {
            let (topic, topic_id, partition) =
                (query.topic.clone(), query.topic_id.clone(), query.partition);
            answers.push(match self.answer(query).await {
                Ok(answer) => answer,
                Err(refusal) => OffsetAnswer {
                    topic,
                    topic_id,
                    partition,
                    error: Some(refusal.detail()),
                    ..Default::default()
                },
            });
        }
        Ok(Response::new(ListOffsetsResponse { answers }))
    }

    /// LIMIT_EXCEEDED for too many targets; else each answer has its own code.
    async fn delete_records(
        &self,
        request: Request<DeleteRecordsRequest>,
    ) -> Result<Response<DeleteRecordsResponse>, Status> {
        let targets = request.into_inner().targets;
        check_count("targets", targets.len())?;
        let mut answers = Vec::with_capacity(targets.len());
        for target in targets {
            let (topic, topic_id, partition) = (
                target.topic.clone(),
                target.topic_id.clone(),
                target.partition,
            );
            answers.push(match self.delete(target).await {
                Ok(answer) => answer,
                Err(refusal) => DeleteRecordsAnswer {
                    topic,
                    topic_id,
                    partition,
                    error: Some(refusal.detail()),
                    ..Default::default()
                },
            });
        }
        Ok(Response::new(DeleteRecordsResponse { answers }))
    }

    /// NOT_BUILT.
    async fn commit_offsets(
        &self,
        _: Request<CommitOffsetsRequest>,
    ) -> Result<Response<CommitOffsetsResponse>, Status> {
        Err(not_here("CommitOffsets"))
    }

    /// NOT_BUILT.
    async fn fetch_offsets(
        &self,
        _: Request<FetchOffsetsRequest>,
    ) -> Result<Response<FetchOffsetsResponse>, Status> {
        Err(not_here("FetchOffsets"))
    }

    /// NOT_BUILT.
    async fn reset_offsets(
        &self,
        _: Request<ResetOffsetsRequest>,
    ) -> Result<Response<ResetOffsetsResponse>, Status> {
        Err(not_here("ResetOffsets"))
    }

    /// NOT_BUILT.
    async fn delete_offsets(
        &self,
        _: Request<DeleteOffsetsRequest>,
    ) -> Result<Response<DeleteOffsetsResponse>, Status> {
        Err(not_here("DeleteOffsets"))
    }

    /// NOT_BUILT.
    async fn get_lag(&self, _: Request<GetLagRequest>) -> Result<Response<GetLagResponse>, Status> {
        Err(not_here("GetLag"))
    }

    /// NOT_BUILT.
    async fn watch_lag(
        &self,
        _: Request<WatchLagRequest>,
    ) -> Result<Response<Self::WatchLagStream>, Status> {
        Err(not_here("WatchLag"))
    }
}

impl Offsets {
    async fn answer(&self, query: OffsetQuery) -> Result<OffsetAnswer, Refusal> {
        resolve::wait_for_news(&self.node, &query.topic, &query.topic_id, query.partition).await;
        let topic = resolve::topic(&self.node, &query.topic, &query.topic_id)?;
        let (handle, epoch) = resolve::readable_partition(&self.node, &topic, query.partition)?;
        let (offset, timestamp_ms) = match query.at {
            Some(At::TimestampMs(timestamp)) => {
                let found = offset_for_time(&self.node, &handle, TimestampMs(timestamp)).await?;
                (
                    found.map(|(offset, _)| offset.0),
                    found.map(|(_, timestamp)| timestamp.0),
                )
            }
            Some(At::Earliest(_)) => (Some(handle.reader.bounds().log_start.0), None),
            Some(At::Latest(_)) => (Some(handle.reader.bounds().high_watermark.0), None),
            None => (None, None),
        };
        Ok(OffsetAnswer {
            topic: topic.topic.name.clone(),
            topic_id: topic.topic.topic_id.clone(),
            partition: query.partition,
            offset,
            timestamp_ms,
            bounds: Some(bounds(handle.reader.bounds())),
            leader_epoch: epoch.0,
            error: None,
        })
    }

    async fn delete(&self, target: DeleteRecordsTarget) -> Result<DeleteRecordsAnswer, Refusal> {
        resolve::wait_for_news(
            &self.node,
            &target.topic,
            &target.topic_id,
            target.partition,
        )
        .await;
        let topic = resolve::topic(&self.node, &target.topic, &target.topic_id)?;
        resolve::check_writable(&topic.topic.name)?;
        let (handle, _) = resolve::readable_partition(&self.node, &topic, target.partition)?;
        let before = match target.before_offset {
            -1 => None,
            offset if offset >= 0 => Some(Offset(offset)),
            offset => {
                let reason = format!("is an offset, or -1 for the high watermark, not {offset}");
                return Err(Refusal::invalid("before_offset", reason));
            }
        };
        let (done, answer) = oneshot::channel();
        let stopped = |_| resolve::draining();
        self.node
            .loop_of(&handle)
            .send(Command::DeleteRecords {
                tp: handle.tp,
                before,
                done,
            })
            .map_err(|_| resolve::draining())?;
        let start = answer
            .await
            .map_err(stopped)?
            .map_err(|error| log_refusal(&error))?;
        Ok(DeleteRecordsAnswer {
            topic: topic.topic.name.clone(),
            topic_id: topic.topic.topic_id.clone(),
            partition: target.partition,
            log_start_offset: start.0,
            error: None,
        })
    }
}

fn check_count(field: &str, count: usize) -> Result<(), Refusal> {
    let max = limits::FETCH_PARTITIONS_MAX;
    if count > max {
        let message = format!("{count} {field} in one call, at most {max} are allowed");
        return Err(Refusal::new(ErrorCode::LimitExceeded, message).with_limit(
            field,
            max as u64,
            count as u64,
            field,
        ));
    }
    Ok(())
}

fn log_refusal(error: &LogError) -> Refusal {
    let new = |code| Refusal::new(code, error.to_string());
    match error {
        LogError::OutOfRange { offset, bounds } => out_of_range(*offset, *bounds),
        LogError::FolderFailed(_) => new(ErrorCode::FolderFailed),
        LogError::DiskFull => new(ErrorCode::DiskFull),
        LogError::Deleted => new(ErrorCode::UnknownTopic),
        LogError::Io { .. } | LogError::FlushInFlight | LogError::RewriteInFlight => {
            new(ErrorCode::Unavailable)
        }
        LogError::StaleEpoch { .. } | LogError::WrongIdentity { .. } | LogError::Sidecar { .. } => {
            new(ErrorCode::Internal)
        }
    }
}
