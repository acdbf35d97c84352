//! A gateway's side of a Converse stream.

use super::{PATIENCE, world::client};
use std::collections::VecDeque;
use talweg_coordinator::Handle;
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::coordinator::v1::{
    Caller, CommitEvent, CommitOffset, CommitResults, ConverseOpen, ConverseRequest,
    ConverseResponse, JoinEvent, MemberProfile, MemberView, PartitionRef, PartitionsEvent,
    converse_request::Event, converse_response::What,
};
use talweg_types::TopicPartition;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

pub struct Gateway {
    requests: mpsc::Sender<ConverseRequest>,
    answers: Streaming<ConverseResponse>,
    next_id: u64,
    /// Unasked, in order.
    pub unasked: VecDeque<ConverseResponse>,
}

impl Gateway {
    pub async fn open(at: &Handle, process: u8) -> Self {
        let (requests, queue) = mpsc::channel(64);
        let open = ConverseOpen {
            node_id: 9,
            process_id: vec![process; 16].into(),
        };
        let first = ConverseRequest {
            event: Some(Event::Open(open)),
            ..ConverseRequest::default()
        };
        requests.send(first).await.expect("room");
        let answers = client(at).converse(ReceiverStream::new(queue)).await;
        Self {
            requests,
            answers: answers.expect("opened").into_inner(),
            next_id: 0,
            unasked: VecDeque::new(),
        }
    }

    pub async fn say(&mut self, group: &str, event: Event) -> u64 {
        self.next_id += 1;
        let request = ConverseRequest {
            request_id: self.next_id,
            group: group.into(),
            event: Some(event),
        };
        self.requests.send(request).await.expect("the stream lives");
        self.next_id
    }

    /// The next response; none at the end of the stream.
    pub async fn hear(&mut self) -> Option<ConverseResponse> {
        let next = tokio::time::timeout(PATIENCE, self.answers.message()).await;
        next.expect("a response in time").ok().flatten()
    }

    pub async fn answer(&mut self, id: u64) -> What {
        loop {
            let response = self.hear().await.expect("the stream lives");
            if response.request_id == id {
                return response.what.expect("something");
            }
            assert_eq!(response.request_id, 0, "an answer to nobody");
            self.unasked.push_back(response);
        }
    }

    pub async fn ask(&mut self, group: &str, event: Event) -> What {
        let id = self.say(group, event).await;
        self.answer(id).await
    }

    /// The next unasked response that `pick` takes; earlier ones are passed over.
    pub async fn told<T>(&mut self, pick: impl Fn(What) -> Option<T>) -> T {
        loop {
            let response = match self.unasked.pop_front() {
                Some(response) => response,
                None => self.hear().await.expect("the stream lives"),
            };
            if response.request_id == 0
                && let Some(found) = response.what.and_then(&pick)
            {
                return found;
            }
        }
    }

    pub async fn told_view(&mut self, good: impl Fn(&MemberView) -> bool) -> MemberView {
        self.told(|what| match what {
            What::View(view) if good(&view) => Some(view),
            _ => None,
        })
        .await
    }

    pub async fn join(&mut self, group: &str, member: u8) -> MemberView {
        match self.ask(group, join(member, "")).await {
            What::View(view) => view,
            other => panic!("{other:?}"),
        }
    }

    pub async fn commit(&mut self, group: &str, commit: CommitEvent) -> CommitResults {
        match self.ask(group, Event::Commit(commit)).await {
            What::Committed(results) => results,
            other => panic!("{other:?}"),
        }
    }
}

pub fn join(member: u8, instance: &str) -> Event {
    Event::Join(JoinEvent {
        new_member_id: vec![member; 16].into(),
        claim: bytes::Bytes::new(),
        profile: Some(MemberProfile {
            topics: vec!["t".into()],
            instance_id: instance.into(),
            session_timeout_ms: 10_000,
            ..MemberProfile::default()
        }),
    })
}

pub fn caller(of: &MemberView) -> Caller {
    Caller {
        member_id: of.member_id.clone(),
        member_epoch: of.member_epoch,
    }
}

pub fn revoked(of: &MemberView) -> Event {
    Event::Revoked(PartitionsEvent {
        caller: Some(caller(of)),
        partitions: of.revoking.clone(),
    })
}

pub fn refs(partitions: &[TopicPartition]) -> Vec<PartitionRef> {
    let all = partitions.iter().map(|at| PartitionRef {
        topic_id: super::world::bytes_of(at.topic_id),
        partition: at.partition.0,
    });
    all.collect()
}

pub fn offset(at: TopicPartition, offset: i64, delivered: bool) -> CommitOffset {
    CommitOffset {
        topic_id: super::world::bytes_of(at.topic_id),
        partition: at.partition.0,
        offset,
        leader_epoch: 1,
        metadata: String::new(),
        delivered,
    }
}

pub fn commit(by: Option<Caller>, offsets: Vec<CommitOffset>) -> CommitEvent {
    CommitEvent {
        caller: by,
        seek: false,
        offsets,
    }
}

pub fn code(what: What) -> ErrorCode {
    match what {
        What::Error(detail) => Refusal::from_detail(detail).code,
        other => panic!("not refused: {other:?}"),
    }
}
