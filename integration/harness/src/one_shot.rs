//! A client without producer numbers: each batch is sent once and never again,
//! so that what becomes of it is the server's word alone.

use crate::{
    history::{Outcome, Recorder, Send},
    raw,
};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use talweg_proto::v1::{
    Acks, BatchFrame, Effect, ErrorCode, ProduceOpen, ProduceRequest, ProduceResponse,
    produce_request, produce_response,
};
use tokio::{sync::mpsc, time::timeout};
use tonic::Streaming;

/// An answer that takes longer is not waited for; the outcome is unknown.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two batches.
const PACE: Duration = Duration::from_millis(20);

/// One batch of one record at a time.
pub struct OneShot {
    pub url: String,
    pub topic: String,
    pub partition: u32,
    /// Its name in values and in the history.
    pub number: u32,
    pub acks: Acks,
    pub recorder: Recorder,
}

/// What was answered.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    pub invoked: Duration,
    pub completed: Duration,
    /// The offset or the code; `None`: no answer.
    pub answer: Option<Result<i64, ErrorCode>>,
}

struct Stream {
    requests: mpsc::Sender<ProduceRequest>,
    responses: Streaming<ProduceResponse>,
    sent: u64,
}

impl OneShot {
    /// Writes until `stop`.
    pub async fn run(self, stop: &AtomicBool) -> Vec<Answered> {
        let mut answers = Vec::new();
        let mut stream = None;
        let mut number = 0;
        while !stop.load(Ordering::Relaxed) {
            if stream.is_none() {
                stream = timeout(PATIENCE, self.open()).await.ok().flatten();
            }
            if let Some(open) = &mut stream {
                let answered = self.one(open, number).await;
                number += 1;
                if answered.answer.is_none() {
                    stream = None;
                }
                answers.push(answered);
            }
            tokio::time::sleep(PACE).await;
        }
        answers
    }

    async fn open(&self) -> Option<Stream> {
        let open = ProduceOpen {
            acks: self.acks.into(),
            client_id: format!("once-{}", self.number),
            ..Default::default()
        };
        let (requests, responses) = raw::try_produce(&self.url, PATIENCE, open).await?;
        Some(Stream {
            requests,
            responses,
            sent: 0,
        })
    }

    async fn one(&self, stream: &mut Stream, number: u64) -> Answered {
        let value = format!("once{}-{number:08}", self.number).into_bytes();
        let batch = BatchFrame {
            topic: self.topic.clone(),
            partition: self.partition,
            first_sequence: stream.sent,
            batches: raw::batch(&[&value]),
            ..Default::default()
        };
        stream.sent += 1;
        let invoked = self.recorder.now();
        let frame = Some(produce_request::Frame::Batch(batch));
        let answer = match stream.requests.send(ProduceRequest { frame }).await {
            Ok(()) => timeout(PATIENCE, answer(&mut stream.responses)).await,
            Err(_) => Ok(None),
        };
        let answer = answer.ok().flatten();
        let completed = self.recorder.now();
        self.recorder.send(Send {
            number,
            client: self.number,
            partition: self.partition,
            key: Vec::new(),
            values: vec![value],
            lasting: self.acks == Acks::All,
            invoked,
            completed,
            outcome: match &answer {
                Some(Ok(base)) => Outcome::Ok { base: *base },
                Some(Err((_, Effect::NotDone))) => Outcome::Failed,
                Some(Err(_)) | None => Outcome::Unknown,
            },
        });
        Answered {
            invoked,
            completed,
            answer: answer.map(|answer| answer.map_err(|(code, _)| code)),
        }
    }
}

/// The next answer to a batch; `None`: the stream has ended.
async fn answer(
    responses: &mut Streaming<ProduceResponse>,
) -> Option<Result<i64, (ErrorCode, Effect)>> {
    loop {
        match responses.message().await.ok()??.frame? {
            produce_response::Frame::BatchAck(ack) => {
                return ack.base_offsets.first().copied().map(Ok);
            }
            produce_response::Frame::Refusal(refusal) => {
                let error = refusal.error?;
                return Some(Err((raw::code(&error), error.effect())));
            }
            produce_response::Frame::Drain(_) | produce_response::Frame::Closing(_) => return None,
            _ => {}
        }
    }
}
