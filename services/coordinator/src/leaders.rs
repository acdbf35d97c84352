//! Questions about partitions, asked at their leaders, each with its own answer.

use crate::node::Node;
use bytes::Bytes;
use std::{collections::BTreeMap, future::Future, time::Duration};
use talweg_client::{
    delivery::{Route, Target},
    pool::Traffic,
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    storage::v1::{
        Backlog, BacklogQuery, MeasureBacklogRequest,
        internal_log_service_client::InternalLogServiceClient,
    },
    v1::{
        ErrorDetail, ListOffsetsRequest, OffsetAnswer, OffsetQuery, offset_query::At,
        offset_service_client::OffsetServiceClient,
    },
};
use talweg_types::{Offset, TopicPartition};
use tokio::task::JoinSet;
use tonic::{Request, Status, transport::Channel};

/// For one leader to answer.
const LEADER_TIME: Duration = Duration::from_secs(2);
/// Rounds: a leader may have changed.
const ROUNDS: u32 = 4;
const BETWEEN_ROUNDS: Duration = Duration::from_millis(150);
/// Partitions in one request.
const QUESTIONS_MAX: usize = 10_000;

type Answers<K, A> = BTreeMap<K, Result<A, Refusal>>;

/// What tells questions apart, and which partition's leader answers.
trait Place: Copy + Ord + Send + 'static {
    fn partition(&self) -> TopicPartition;
}

impl Place for TopicPartition {
    fn partition(&self) -> TopicPartition {
        *self
    }
}

/// From where a backlog is measured, and to which end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct BacklogFrom {
    pub at: TopicPartition,
    pub offset: Offset,
    /// To the last stable offset, not the high watermark.
    pub committed: bool,
}

impl Place for BacklogFrom {
    fn partition(&self) -> TopicPartition {
        self.at
    }
}

/// Bounds, and the offset that `how` asks for.
pub async fn offsets(
    node: &Node,
    partitions: impl IntoIterator<Item = TopicPartition>,
    how: Option<At>,
) -> Answers<TopicPartition, OffsetAnswer> {
    let query = |at: TopicPartition| OffsetQuery {
        topic: String::new(),
        topic_id: Bytes::copy_from_slice(at.topic_id.as_bytes()),
        partition: at.partition.0,
        at: how,
    };
    let questions = partitions.into_iter().map(|at| (at, query(at)));
    let call = |channel: Channel, queries: Vec<OffsetQuery>| async move {
        let request = timed(ListOffsetsRequest { queries });
        let answer = OffsetServiceClient::new(channel)
            .list_offsets(request)
            .await;
        Ok::<_, Status>(answer?.into_inner().answers)
    };
    let error = |answer: &OffsetAnswer| answer.error.clone();
    ask(node, questions.collect(), call, error).await
}

/// What lies between committed offsets and the ends.
pub async fn backlogs(
    node: &Node,
    positions: impl IntoIterator<Item = BacklogFrom>,
) -> Answers<BacklogFrom, Backlog> {
    let query = |from: BacklogFrom| {
        let query = BacklogQuery {
            topic_id: Bytes::copy_from_slice(from.at.topic_id.as_bytes()),
            partition: from.at.partition.0,
            offset: from.offset.0,
            committed: from.committed,
        };
        (from, query)
    };
    let call = |channel: Channel, queries: Vec<BacklogQuery>| async move {
        let request = timed(MeasureBacklogRequest { queries });
        let mut client = InternalLogServiceClient::new(channel);
        let answer = client.measure_backlog(request).await;
        Ok::<_, Status>(answer?.into_inner().backlogs)
    };
    let error = |answer: &Backlog| answer.error.clone();
    let questions = positions.into_iter().map(query).collect();
    ask(node, questions, call, error).await
}

fn timed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(LEADER_TIME);
    request
}

async fn ask<K, Q, A, Fut>(
    node: &Node,
    mut open: BTreeMap<K, Q>,
    call: impl Fn(Channel, Vec<Q>) -> Fut + Copy + Send + 'static,
    error: impl Fn(&A) -> Option<ErrorDetail>,
) -> Answers<K, A>
where
    K: Place,
    Q: Clone + Send + 'static,
    A: Send + 'static,
    Fut: Future<Output = Result<Vec<A>, Status>> + Send,
{
    let mut answers = BTreeMap::new();
    for round in 1..=ROUNDS {
        for (at, answer) in round_of(node, &open, call).await {
            let answer = answer.and_then(|answer| match error(&answer) {
                Some(detail) => Err(Refusal::from_detail(detail)),
                None => Ok(answer),
            });
            let again = answer.as_ref().is_err_and(Refusal::is_retriable) && round < ROUNDS;
            if !again {
                open.remove(&at);
                answers.insert(at, answer);
            }
        }
        if open.is_empty() {
            break;
        }
        tokio::time::sleep(BETWEEN_ROUNDS).await;
    }
    for at in open.into_keys() {
        let why = format!("the leader of {} did not answer", at.partition());
        answers.insert(at, Err(Refusal::unavailable(why)));
    }
    answers
}

async fn round_of<K, Q, A, Fut>(
    node: &Node,
    open: &BTreeMap<K, Q>,
    call: impl Fn(Channel, Vec<Q>) -> Fut + Copy + Send + 'static,
) -> Vec<(K, Result<A, Refusal>)>
where
    K: Place,
    Q: Clone + Send + 'static,
    A: Send + 'static,
    Fut: Future<Output = Result<Vec<A>, Status>> + Send,
{
    let view = node.view.get();
    let mut done = Vec::new();
    let mut by_leader: BTreeMap<Target, Vec<(K, Q)>> = BTreeMap::new();
    for (at, question) in open {
        match view.leader(at.partition()) {
            Route::To(target) => {
                let group = by_leader.entry(target).or_default();
                group.push((*at, question.clone()));
            }
            Route::Wait(refusal) | Route::Gone(refusal) => done.push((*at, Err(refusal))),
        }
    }
    let mut asked = JoinSet::new();
    for (target, group) in by_leader {
        let mut group = group.into_iter().peekable();
        while group.peek().is_some() {
            let chunk: Vec<_> = group.by_ref().take(QUESTIONS_MAX).collect();
            let lease = node.pool.lease(&target.address, Traffic::Control);
            asked.spawn(async move {
                let (partitions, questions): (Vec<_>, Vec<_>) = chunk.into_iter().unzip();
                let answered = match lease {
                    Ok(lease) => {
                        let asked = call(lease.channel().clone(), questions);
                        let grace = LEADER_TIME + Duration::from_millis(200);
                        match tokio::time::timeout(grace, asked).await {
                            Ok(answered) => {
                                answered.map_err(|status| Refusal::from_status(&status))
                            }
                            Err(_) => Err(Refusal::new(
                                ErrorCode::TimedOut,
                                "the leader did not answer in time",
                            )),
                        }
                    }
                    Err(refusal) => Err(refusal),
                };
                pair(partitions, answered)
            });
        }
    }
    done.extend(asked.join_all().await.into_iter().flatten());
    done
}

fn pair<K, A>(
    partitions: Vec<K>,
    answered: Result<Vec<A>, Refusal>,
) -> Vec<(K, Result<A, Refusal>)> {
    match answered {
        Ok(answers) if answers.len() == partitions.len() => {
            let answers = answers.into_iter().map(Ok);
            partitions.into_iter().zip(answers).collect()
        }
        Ok(_) => {
            let odd = Refusal::internal("the leader left questions without an answer");
            let odd = std::iter::repeat_with(|| Err(odd.clone()));
            partitions.into_iter().zip(odd).collect()
        }
        Err(refusal) => {
            let same = std::iter::repeat_with(|| Err(refusal.clone()));
            partitions.into_iter().zip(same).collect()
        }
    }
}
