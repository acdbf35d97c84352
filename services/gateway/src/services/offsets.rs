//! Offsets and deletion of records: fanned out to the leaders, one answer a
//! partition, in the order of the request.

use super::{groups, lag};
use crate::node::Node;
use futures::stream::BoxStream;
use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};
use talweg_client::{
    delivery::{Route, Target},
    pool::Traffic,
};
use talweg_kit::errors::{Effect, ErrorCode, Refusal};
use talweg_proto::v1::{
    self, offset_service_client::OffsetServiceClient, offset_service_server::OffsetService,
};
use talweg_types::{PartitionIndex, TopicPartition};
use tokio::{task::JoinSet, time::Instant};
use tonic::{Request, Response, Status, transport::Channel};

/// For one leader to answer.
const LEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// For partitions without a leader to get one.
const PATIENCE: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(100);
/// Questions in one request.
const QUESTIONS_MAX: usize = 10_000;

/// Serves `OffsetService`.
pub struct Offsets(pub Arc<Node>);

/// A question about one partition that its leader answers.
trait Question: Clone + Send + 'static {
    type Answer: Send + 'static;

    /// Topic name, topic id, partition.
    fn names(&self) -> (&str, &[u8], u32);
    /// The same, with the topic's id set.
    fn with_id(self, id: &[u8]) -> Self;
    fn refused(&self, refusal: &Refusal) -> Self::Answer;
    fn error(answer: &Self::Answer) -> Option<&v1::ErrorDetail>;
    fn named(answer: Self::Answer, topic: &str) -> Self::Answer;
    /// Asked twice, it changes nothing the second time.
    fn may_repeat(&self) -> bool;
    fn ask(
        channel: Channel,
        questions: Vec<Self>,
    ) -> impl Future<Output = Result<Vec<Self::Answer>, Status>> + Send;
}

fn timed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(LEADER_TIMEOUT);
    request
}

impl Question for v1::OffsetQuery {
    type Answer = v1::OffsetAnswer;

    fn names(&self) -> (&str, &[u8], u32) {
        (&self.topic, &self.topic_id, self.partition)
    }

    fn with_id(mut self, id: &[u8]) -> Self {
        self.topic_id = bytes::Bytes::copy_from_slice(id);
        self
    }

    fn refused(&self, refusal: &Refusal) -> v1::OffsetAnswer {
        v1::OffsetAnswer {
            topic: self.topic.clone(),
            topic_id: self.topic_id.clone(),
            partition: self.partition,
            error: Some(refusal.detail()),
            ..Default::default()
        }
    }

    fn error(answer: &v1::OffsetAnswer) -> Option<&v1::ErrorDetail> {
        answer.error.as_ref()
    }

    fn named(mut answer: v1::OffsetAnswer, topic: &str) -> v1::OffsetAnswer {
        answer.topic = topic.into();
        answer
    }

    fn may_repeat(&self) -> bool {
        true
    }

    async fn ask(channel: Channel, queries: Vec<Self>) -> Result<Vec<v1::OffsetAnswer>, Status> {
        let request = timed(v1::ListOffsetsRequest { queries });
        let response = OffsetServiceClient::new(channel)
            .list_offsets(request)
            .await?;
        Ok(response.into_inner().answers)
    }
}

impl Question for v1::DeleteRecordsTarget {
    type Answer = v1::DeleteRecordsAnswer;

    fn names(&self) -> (&str, &[u8], u32) {
        (&self.topic, &self.topic_id, self.partition)
    }

    fn with_id(mut self, id: &[u8]) -> Self {
        self.topic_id = bytes::Bytes::copy_from_slice(id);
        self
    }

    fn refused(&self, refusal: &Refusal) -> v1::DeleteRecordsAnswer {
        v1::DeleteRecordsAnswer {
            topic: self.topic.clone(),
            topic_id: self.topic_id.clone(),
            partition: self.partition,
            error: Some(refusal.detail()),
            ..Default::default()
        }
    }

    fn error(answer: &v1::DeleteRecordsAnswer) -> Option<&v1::ErrorDetail> {
        answer.error.as_ref()
    }

    fn named(mut answer: v1::DeleteRecordsAnswer, topic: &str) -> v1::DeleteRecordsAnswer {
        answer.topic = topic.into();
        answer
    }

    fn may_repeat(&self) -> bool {
        self.before_offset >= 0
    }

    async fn ask(
        channel: Channel,
        targets: Vec<Self>,
    ) -> Result<Vec<v1::DeleteRecordsAnswer>, Status> {
        let request = timed(v1::DeleteRecordsRequest { targets });
        let response = OffsetServiceClient::new(channel)
            .delete_records(request)
            .await?;
        Ok(response.into_inner().answers)
    }
}

/// A question on its way: its place in the request, and the topic's name.
struct Open<Q> {
    place: usize,
    topic: String,
    question: Q,
}

/// Asks the leaders until all has an answer that is not "elsewhere" or "later",
/// or patience ends; then the last refusal is the answer.
async fn fan_out<Q: Question>(node: &Node, questions: Vec<Q>) -> Result<Vec<Q::Answer>, Refusal> {
    if questions.len() > QUESTIONS_MAX {
        let message = format!(
            "{} partitions in one request, at most {QUESTIONS_MAX}",
            questions.len()
        );
        return Err(Refusal::new(ErrorCode::LimitExceeded, message).with_limit(
            "partitions",
            QUESTIONS_MAX as u64,
            questions.len() as u64,
            "partitions",
        ));
    }
    let deadline = Instant::now() + PATIENCE;
    let mut answers: Vec<Option<Q::Answer>> = questions.iter().map(|_| None).collect();
    let mut open: Vec<Open<Q>> = questions
        .into_iter()
        .enumerate()
        .map(|(place, question)| Open {
            place,
            topic: question.names().0.to_owned(),
            question,
        })
        .collect();
    while !open.is_empty() {
        let last = Instant::now() + RETRY >= deadline;
        for (it, answer) in ask_all(node, std::mem::take(&mut open)).await {
            let later = Q::error(&answer).is_some_and(|detail| {
                let refusal = Refusal::from_detail(detail.clone());
                let safe = it.question.may_repeat() || refusal.effect() == Effect::NotDone;
                // Our view is ahead of a leader that does not know the topic yet.
                let lags = refusal.code == ErrorCode::UnknownTopic
                    && node
                        .view
                        .get()
                        .resolve(&it.topic, it.question.names().1)
                        .is_ok();
                (refusal.is_retriable() && safe) || lags
            });
            if later && !last {
                open.push(it);
            } else {
                answers[it.place] = Some(Q::named(answer, &it.topic));
            }
        }
        if !open.is_empty() {
            tokio::time::sleep(RETRY).await;
        }
    }
    Ok(answers.into_iter().flatten().collect())
}

/// One round: every question gets an answer.
async fn ask_all<Q: Question>(node: &Node, open: Vec<Open<Q>>) -> Vec<(Open<Q>, Q::Answer)> {
    let mut done = Vec::with_capacity(open.len());
    let mut by_leader: BTreeMap<Target, Vec<Open<Q>>> = BTreeMap::new();
    for mut it in open {
        match leader(node, &it.question) {
            Ok((target, topic, id)) => {
                it.topic = topic;
                it.question = it.question.with_id(&id);
                by_leader.entry(target).or_default().push(it);
            }
            Err(refusal) => {
                let answer = it.question.refused(&refusal);
                done.push((it, answer));
            }
        }
    }
    let mut asked = JoinSet::new();
    for (target, group) in by_leader {
        let lease = node.pool.lease(&target.address, Traffic::Control);
        asked.spawn(async move {
            let questions: Vec<Q> = group.iter().map(|it| it.question.clone()).collect();
            let expected = questions.len();
            let answers = async {
                let lease = lease?;
                let asking = tokio::time::timeout(
                    LEADER_TIMEOUT,
                    Q::ask(lease.channel().clone(), questions),
                );
                let late =
                    |_| Refusal::new(ErrorCode::TimedOut, "the leader did not answer in time");
                let answers = asking
                    .await
                    .map_err(late)?
                    .map_err(|status| Refusal::from_status(&status))?;
                match answers.len() == expected {
                    true => Ok(answers),
                    false => Err(Refusal::internal(
                        "the leader left questions without an answer",
                    )),
                }
            };
            match answers.await {
                Ok(answers) => group.into_iter().zip(answers).collect::<Vec<_>>(),
                Err(refusal) => group
                    .into_iter()
                    .map(|it| {
                        let answer = it.question.refused(&refusal);
                        (it, answer)
                    })
                    .collect(),
            }
        });
    }
    done.extend(asked.join_all().await.into_iter().flatten());
    done
}

fn leader<Q: Question>(node: &Node, question: &Q) -> Result<(Target, String, Vec<u8>), Refusal> {
    let view = node.view.get();
    let (name, id, partition) = question.names();
    let topic = view.resolve(name, id)?;
    let at = TopicPartition {
        topic_id: topic.id,
        partition: PartitionIndex(partition),
    };
    match view.leader(at) {
        Route::To(target) => Ok((
            target,
            topic.topic.name.clone(),
            topic.id.as_bytes().to_vec(),
        )),
        Route::Wait(refusal) | Route::Gone(refusal) => Err(refusal),
    }
}

impl Offsets {
    pub async fn list(
        &self,
        queries: Vec<v1::OffsetQuery>,
    ) -> Result<Vec<v1::OffsetAnswer>, Refusal> {
        fan_out(&self.0, queries).await
    }
}

#[tonic::async_trait]
impl OffsetService for Offsets {
    /// LIMIT_EXCEEDED; errors of partitions are in their answers.
    async fn list_offsets(
        &self,
        request: Request<v1::ListOffsetsRequest>,
    ) -> Result<Response<v1::ListOffsetsResponse>, Status> {
        let answers = self.list(request.into_inner().queries).await?;
        Ok(Response::new(v1::ListOffsetsResponse { answers }))
    }

    /// LIMIT_EXCEEDED; errors of partitions are in their answers.
    async fn delete_records(
        &self,
        request: Request<v1::DeleteRecordsRequest>,
    ) -> Result<Response<v1::DeleteRecordsResponse>, Status> {
        let answers = fan_out(&self.0, request.into_inner().targets).await?;
        Ok(Response::new(v1::DeleteRecordsResponse { answers }))
    }

    /// Of groups: as the coordinator answers.
    async fn commit_offsets(
        &self,
        request: Request<v1::CommitOffsetsRequest>,
    ) -> Result<Response<v1::CommitOffsetsResponse>, Status> {
        let request = request.into_inner();
        Ok(Response::new(groups::commit(&self.0, request).await?))
    }

    async fn fetch_offsets(
        &self,
        request: Request<v1::FetchOffsetsRequest>,
    ) -> Result<Response<v1::FetchOffsetsResponse>, Status> {
        let request = request.into_inner();
        Ok(Response::new(groups::fetch(&self.0, request).await?))
    }

    async fn reset_offsets(
        &self,
        request: Request<v1::ResetOffsetsRequest>,
    ) -> Result<Response<v1::ResetOffsetsResponse>, Status> {
        let request = request.into_inner();
        Ok(Response::new(groups::reset(&self.0, request).await?))
    }

    async fn delete_offsets(
        &self,
        request: Request<v1::DeleteOffsetsRequest>,
    ) -> Result<Response<v1::DeleteOffsetsResponse>, Status> {
        let request = request.into_inner();
        Ok(Response::new(groups::forget(&self.0, request).await?))
    }

    async fn get_lag(
        &self,
        request: Request<v1::GetLagRequest>,
    ) -> Result<Response<v1::GetLagResponse>, Status> {
        let request = request.into_inner();
        Ok(Response::new(lag::lag(&self.0, request).await?))
    }

    type WatchLagStream = BoxStream<'static, Result<v1::WatchLagResponse, Status>>;

    /// INVALID_ARGUMENT for a pause that is too short; then GetLag's answers.
    async fn watch_lag(
        &self,
        request: Request<v1::WatchLagRequest>,
    ) -> Result<Response<Self::WatchLagStream>, Status> {
        let permit = self.0.admit()?;
        let answers = lag::watch(Arc::clone(&self.0), request.into_inner(), permit)?;
        Ok(Response::new(answers))
    }
}
