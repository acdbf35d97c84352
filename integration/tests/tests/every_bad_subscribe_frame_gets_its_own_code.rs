//! Every frame of a member that may not be gets its own code: an open frame ends the
//! stream with it; of a member that is in, only what breaks the rules of the stream ends it,
//! and where a frame was wrong the next good one is taken. Nothing is stored by any of them.

use bytes::Bytes;
use std::time::Duration;
use talweg_client::{ErrorCode, Refusal};
use talweg_harness::{
    Stack,
    member::{position, subscription},
    raw::{self, RawProduce, connect, create_topic},
};
use talweg_proto::v1::{
    self, Acks, SubscribeRequest, subscribe_request::Frame as Ask, subscribe_response::Frame,
    subscribe_service_client::SubscribeServiceClient,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Channel};

const PATIENCE: Duration = Duration::from_secs(40);

/// A stream as a stranger writes it.
struct Raw {
    requests: mpsc::Sender<SubscribeRequest>,
    responses: Streaming<v1::SubscribeResponse>,
}

impl Raw {
    async fn begin(channel: &Channel, first: Ask) -> Self {
        let (requests, rx) = mpsc::channel(16);
        let frame = Some(first);
        requests
            .send(SubscribeRequest { frame })
            .await
            .expect("room");
        let mut client = SubscribeServiceClient::new(channel.clone());
        let responses = client.subscribe(ReceiverStream::new(rx)).await;
        let responses = responses.expect("headers come at once").into_inner();
        Self {
            requests,
            responses,
        }
    }

    /// A member that has its partition and a record.
    async fn reading(channel: &Channel, group: &str) -> Self {
        let mut raw = Self::begin(channel, Ask::Open(subscription(group, "t"))).await;
        let hear = async {
            loop {
                let frame = raw
                    .responses
                    .message()
                    .await
                    .expect("lives")
                    .expect("goes on");
                if let Some(Frame::Records(_)) = frame.frame {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE, hear).await.expect("records");
        raw
    }

    async fn send(&self, frame: Ask) {
        let frame = Some(frame);
        let sent = self.requests.send(SubscribeRequest { frame }).await;
        sent.expect("the stream lives");
    }

    /// The member lives: a good commit is taken.
    async fn takes(&mut self, next: v1::SubscribePosition) {
        let (commit_id, next) = (8, vec![next]);
        self.send(Ask::Commit(v1::SubscribeCommit { commit_id, next }))
            .await;
        let hear = async {
            loop {
                let frame = self.responses.message().await.expect("lives");
                if let Some(Frame::Committed(committed)) = frame.expect("goes on").frame
                    && committed.commit_id == commit_id
                {
                    return committed.error;
                }
            }
        };
        let error = tokio::time::timeout(PATIENCE, hear).await;
        assert_eq!(error.expect("an answer"), None);
    }

    async fn leave(mut self) {
        self.send(Ask::Leave(v1::SubscribeLeave {})).await;
        // Until the goodbye.
        while let Ok(Some(_)) = self.responses.message().await {}
    }

    /// How the frame was refused, and whether the stream goes on after it.
    async fn refused(&mut self) -> (ErrorCode, bool) {
        let hear = async {
            loop {
                let detail = match self.responses.message().await {
                    Err(status) => return (Refusal::from_status(&status).code, false),
                    Ok(None) => panic!("it ended without a reason"),
                    Ok(Some(frame)) => match frame.frame {
                        Some(Frame::PartitionError(error)) => error.error,
                        Some(Frame::Committed(committed)) => committed.error,
                        Some(Frame::Error(error)) => {
                            return (Refusal::from_detail(error).code, false);
                        }
                        _ => None,
                    },
                };
                if let Some(detail) = detail {
                    return (Refusal::from_detail(detail).code, true);
                }
            }
        };
        tokio::time::timeout(PATIENCE, hear)
            .await
            .expect("an answer")
    }
}

type Case = (&'static str, ErrorCode, Ask);

fn changed(change: impl FnOnce(&mut v1::SubscribeOpen)) -> Ask {
    let mut open = subscription("bad", "t");
    change(&mut open);
    Ask::Open(open)
}

fn bad_opens() -> Vec<Case> {
    let credit = |bytes, records| Some(v1::Credit { bytes, records });
    vec![
        (
            "no open frame",
            ErrorCode::ProtocolViolation,
            Ask::Leave(v1::SubscribeLeave {}),
        ),
        (
            "no group",
            ErrorCode::InvalidName,
            changed(|it| it.group.clear()),
        ),
        (
            "a bad group",
            ErrorCode::InvalidName,
            changed(|it| it.group = "a b".into()),
        ),
        (
            "no topic",
            ErrorCode::InvalidArgument,
            changed(|it| it.topics.clear()),
        ),
        (
            "a bad topic",
            ErrorCode::InvalidName,
            changed(|it| it.topics = vec!["a b".into()]),
        ),
        (
            "a bad pattern",
            ErrorCode::InvalidArgument,
            changed(|it| it.pattern = "(".into()),
        ),
        (
            "a long pattern",
            ErrorCode::LimitExceeded,
            changed(|it| it.pattern = "a".repeat(100_000)),
        ),
        (
            "no credit",
            ErrorCode::InvalidCredit,
            changed(|it| it.credit = None),
        ),
        (
            "credit below nothing",
            ErrorCode::InvalidCredit,
            changed(|it| it.credit = credit(-1, 1)),
        ),
        (
            "credit for less than a batch",
            ErrorCode::CreditTooSmall,
            changed(|it| it.credit = credit(100, 10)),
        ),
        (
            "an unknown assignor",
            ErrorCode::InvalidArgument,
            changed(|it| it.assignor = "best".into()),
        ),
        (
            "an unknown form",
            ErrorCode::InvalidArgument,
            changed(|it| it.form = 99),
        ),
        (
            "an unknown policy",
            ErrorCode::InvalidArgument,
            changed(|it| it.reset_policy = 99),
        ),
        (
            "a session of a moment",
            ErrorCode::InvalidArgument,
            changed(|it| it.session_timeout_ms = 1),
        ),
        (
            "an order of topics",
            ErrorCode::NotBuilt,
            changed(|it| it.topic_order = vec!["t".into()]),
        ),
        (
            "a forged token",
            ErrorCode::InvalidResumeToken,
            changed(|it| it.resume_token = b"forged".as_slice().into()),
        ),
        (
            "a long name",
            ErrorCode::LimitExceeded,
            changed(|it| it.instance_id = "i".repeat(100_000)),
        ),
    ]
}

/// Frames of a member that reads partition 0 of `t`, three records.
fn bad_frames(id: &Bytes) -> Vec<Case> {
    let at = |partition, offset| vec![position(id, partition, offset)];
    let odd = position(&Bytes::from_static(b"short"), 0, 1);
    let long = v1::SubscribePosition {
        metadata: "m".repeat(5_000),
        ..position(id, 0, 1)
    };
    let commit = |next| Ask::Commit(v1::SubscribeCommit { commit_id: 7, next });
    let nack = |offset, reason: &str| {
        Ask::Nack(v1::SubscribeNack {
            record: Some(position(id, 0, offset)),
            reason: reason.into(),
            poison: false,
        })
    };
    let credit = v1::Credit {
        bytes: -1,
        records: 0,
    };
    vec![
        (
            "a second open frame",
            ErrorCode::ProtocolViolation,
            changed(|_| {}),
        ),
        (
            "credit taken back",
            ErrorCode::InvalidCredit,
            Ask::Credit(credit),
        ),
        (
            "a commit beyond what was sent",
            ErrorCode::OffsetOutOfRange,
            commit(at(0, 1_000)),
        ),
        (
            "a commit of another's partition",
            ErrorCode::Fenced,
            commit(at(7, 1)),
        ),
        (
            "a commit of no topic",
            ErrorCode::InvalidArgument,
            commit(vec![odd.clone()]),
        ),
        (
            "a commit with a book",
            ErrorCode::LimitExceeded,
            commit(vec![long]),
        ),
        (
            "an acknowledgement beyond what was sent",
            ErrorCode::OffsetOutOfRange,
            Ask::Ack(v1::SubscribeAck { next: at(0, 1_000) }),
        ),
        (
            "a nack of what was not sent",
            ErrorCode::InvalidArgument,
            nack(1_000, "no good"),
        ),
        (
            "a nack with a book",
            ErrorCode::InvalidArgument,
            nack(0, &"r".repeat(100_000)),
        ),
        (
            "a seek to before the beginning",
            ErrorCode::InvalidArgument,
            Ask::Seek(v1::SubscribeSeek { next: at(0, -1) }),
        ),
        (
            "a seek in another's partition",
            ErrorCode::Fenced,
            Ask::Seek(v1::SubscribeSeek { next: at(7, 1) }),
        ),
        (
            "a pause of another's partition",
            ErrorCode::Fenced,
            Ask::Pause(v1::SubscribePause {
                partitions: at(7, 0),
            }),
        ),
        (
            "a pause of no topic",
            ErrorCode::InvalidArgument,
            Ask::Pause(v1::SubscribePause {
                partitions: vec![odd],
            }),
        ),
        (
            "giving up what is not asked back",
            ErrorCode::InvalidArgument,
            Ask::Revoked(v1::SubscribeRevoked {
                partitions: at(0, 0),
            }),
        ),
        (
            "new credentials",
            ErrorCode::NotBuilt,
            Ask::Credentials(v1::RefreshCredentials::default()),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bad_frame_gets_its_own_code() {
    let stack = Stack::builder().coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    let id = create_topic(&channel, "t", 1, &[]).await;
    let mut produce = RawProduce::open(&channel, Acks::All).await;
    let three = raw::batch(&[b"a", b"b", b"c"]);
    produce.batch("t", 0, three).await.expect("appended");
    let mut wrong = Vec::new();
    for (what, code, open) in bad_opens() {
        let mut stream = Raw::begin(&channel, open).await;
        let refused = stream.refused().await;
        if refused != (code, false) {
            wrong.push(format!("{what}: {code:?} expected, {refused:?}"));
        }
    }
    let mut groups = vec!["bad".to_owned()];
    for (what, code, bad) in bad_frames(&id) {
        // A stream that breaks leaves its member behind for a session.
        let group = format!("g-{}", groups.len());
        let ends = matches!(
            code,
            ErrorCode::ProtocolViolation | ErrorCode::InvalidCredit
        );
        let mut stream = Raw::reading(&channel, &group).await;
        stream.send(bad).await;
        let refused = stream.refused().await;
        if refused != (code, !ends) {
            wrong.push(format!("{what}: {code:?} expected, {refused:?}"));
        }
        if refused.1 {
            stream.takes(position(&id, 0, 0)).await;
            stream.leave().await;
        }
        groups.push(group);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    for group in groups {
        // Where the reset policy began, or no such group.
        let stored = raw::stored(&channel, &group, "t").await.unwrap_or_default();
        assert!(
            stored.values().all(|offset| *offset == 0),
            "{group}: {stored:?}"
        );
    }
    stack.shards_agree().await;
    assert_eq!(stack.alarms(), Vec::<String>::new());
}
