//! A producer that numbers its own batches and sends the same bytes again until
//! they are acknowledged: what a careful client does, with generated stubs only.

use crate::{
    history::{Outcome, Recorder, Send},
    raw,
};
use bytes::Bytes;
use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};
use talweg_proto::v1::{
    self, Acks, BatchFrame, ErrorCode, ProduceOpen, ProduceRequest, produce_request,
    produce_response, produce_service_client::ProduceServiceClient,
    producer_service_client::ProducerServiceClient,
};
use talweg_types::{ProducerEpoch, ProducerId, Sequence};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Endpoint};

const IN_FLIGHT: usize = 4;
const RECORDS: usize = 3;
const KEYS: u64 = 2;
const SILENCE: Duration = Duration::from_secs(5);

/// What a writer did.
#[derive(Debug, Default)]
pub struct Written {
    /// Records.
    pub acknowledged: usize,
    /// How often it had to connect again.
    pub reconnects: usize,
    /// The longest time between two acknowledgements.
    pub longest_gap: Duration,
}

struct Pending {
    bytes: Bytes,
    send: Send,
}

/// What a writer writes.
#[derive(Clone, Debug)]
pub struct WriterPlan {
    /// Gateway that gives out producer ids.
    pub identities: String,
    /// Streams go to each in turn.
    pub urls: Vec<String>,
    pub topic: String,
    pub partition: u32,
    /// Its name in values and in the history; one of its own for each writer.
    pub number: u32,
    pub acks: Acks,
    /// Where calls are written down.
    pub recorder: Recorder,
}

/// One writer of one partition.
pub struct Writer {
    plan: WriterPlan,
    identity: (ProducerId, ProducerEpoch),
    sequence: Sequence,
    count: u64,
    pending: VecDeque<Pending>,
    written: Written,
    last_ack: Instant,
}

impl Writer {
    /// Gets its producer id.
    pub async fn new(plan: WriterPlan) -> Self {
        let channel = raw::connect(&plan.identities).await;
        let request = v1::InitProducerRequest::default();
        let identity = ProducerServiceClient::new(channel)
            .init_producer(request)
            .await
            .expect("init producer")
            .into_inner();
        let epoch = i16::try_from(identity.producer_epoch).expect("16 bits");
        Self {
            plan,
            identity: (ProducerId(identity.producer_id), ProducerEpoch(epoch)),
            sequence: Sequence(0),
            count: 0,
            pending: VecDeque::new(),
            written: Written::default(),
            last_ack: Instant::now(),
        }
    }

    /// Writes until `stop`, then until everything sent is acknowledged, which
    /// must happen within `deadline` after that. `progress` counts acknowledged records.
    pub async fn run(
        mut self,
        stop: &AtomicBool,
        progress: &AtomicU64,
        deadline: Duration,
    ) -> Written {
        let mut stopped: Option<Instant> = None;
        while !(stop.load(Ordering::Relaxed) && self.pending.is_empty()) {
            if stop.load(Ordering::Relaxed) {
                let since = *stopped.get_or_insert_with(Instant::now);
                assert!(
                    since.elapsed() < deadline,
                    "writer {}: {} batches unanswered {deadline:?} after the end",
                    self.plan.number,
                    self.pending.len()
                );
            }
            if self.one_stream(stop, progress).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            self.written.reconnects += 1;
        }
        std::mem::take(&mut self.written)
    }

    fn next_batch(&mut self) {
        let number = self.count;
        self.count += 1;
        let values: Vec<Vec<u8>> = (0..RECORDS)
            .map(|i| format!("w{}-{number:08}-{i}", self.plan.number).into_bytes())
            .collect();
        let key = format!("w{}-k{}", self.plan.number, number % KEYS).into_bytes();
        let slices: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        let (id, epoch) = self.identity;
        let bytes = raw::keyed_batch(Some(&key), &slices, id, epoch, self.sequence);
        self.sequence = self.sequence.plus(i32::try_from(RECORDS).expect("few"));
        let now = self.plan.recorder.now();
        let send = Send {
            number,
            client: self.plan.number,
            partition: self.plan.partition,
            key,
            values,
            lasting: self.plan.acks == Acks::All,
            invoked: now,
            completed: now,
            outcome: Outcome::Unknown,
        };
        self.pending.push_back(Pending { bytes, send });
    }

    /// Opens a stream, sends everything unanswered again, goes on until it
    /// breaks (`Err`) or there is nothing left to do.
    async fn one_stream(&mut self, stop: &AtomicBool, progress: &AtomicU64) -> Result<(), String> {
        let url = self.plan.urls[self.written.reconnects % self.plan.urls.len()].clone();
        let endpoint = Endpoint::from_shared(url)
            .map_err(|e| e.to_string())?
            .connect_timeout(Duration::from_secs(1));
        let channel = endpoint.connect().await.map_err(|e| e.to_string())?;
        let (requests, rx) = mpsc::channel(16);
        let opening = ProduceServiceClient::new(channel);
        let mut opening = opening.max_decoding_message_size(4 << 20);
        let responses = timeout(SILENCE, opening.produce(ReceiverStream::new(rx))).await;
        let mut responses = responses
            .map_err(|e| e.to_string())?
            .map_err(|e| e.to_string())?
            .into_inner();
        let open = ProduceOpen {
            acks: self.plan.acks.into(),
            client_id: format!("writer-{}", self.plan.number),
            ..Default::default()
        };
        send(&requests, produce_request::Frame::Open(open)).await?;
        let mut on_stream = 0_usize; // how many of `pending` this stream carries
        let mut next_frame = 0_u64;
        loop {
            if on_stream == self.pending.len()
                && self.pending.len() < IN_FLIGHT
                && !stop.load(Ordering::Relaxed)
            {
                self.next_batch();
            }
            while on_stream < self.pending.len() {
                let batches = self.pending[on_stream].bytes.clone();
                let frame = BatchFrame {
                    topic: self.plan.topic.clone(),
                    partition: self.plan.partition,
                    first_sequence: next_frame,
                    batches,
                    ..Default::default()
                };
                send(&requests, produce_request::Frame::Batch(frame)).await?;
                on_stream += 1;
                next_frame += 1;
            }
            if self.pending.is_empty() {
                return Ok(());
            }
            let answered = self.answer(&mut responses, progress).await?;
            on_stream -= answered;
        }
    }

    /// Takes one frame; how many batches it answered.
    async fn answer(
        &mut self,
        responses: &mut Streaming<v1::ProduceResponse>,
        progress: &AtomicU64,
    ) -> Result<usize, String> {
        let frame = timeout(SILENCE, responses.message())
            .await
            .map_err(|e| e.to_string())?;
        let frame = frame
            .map_err(|e| e.to_string())?
            .ok_or("the stream ended")?;
        match frame.frame.ok_or("an empty frame")? {
            produce_response::Frame::BatchAck(ack) => {
                for base in &ack.base_offsets {
                    self.acknowledge(*base, progress);
                }
                Ok(ack.base_offsets.len())
            }
            produce_response::Frame::Refusal(refusal) => {
                let error = refusal.error.ok_or("no error")?;
                let known = raw::code(&error);
                let again = error.retriable
                    || error.effect == i32::from(v1::Effect::Unknown)
                    || matches!(
                        known,
                        ErrorCode::OutOfOrderSequence | ErrorCode::EarlierBatchFailed
                    );
                assert!(
                    again,
                    "writer {}: {known:?}: {}",
                    self.plan.number, error.message
                );
                Err(error.message)
            }
            produce_response::Frame::Drain(_) | produce_response::Frame::Closing(_) => {
                Err("draining".into())
            }
            _ => Ok(0),
        }
    }

    fn acknowledge(&mut self, base: i64, progress: &AtomicU64) {
        let done = self
            .pending
            .pop_front()
            .expect("an ack for a batch that was sent");
        assert!(
            base >= 0,
            "a repeat within the last five batches has its offset"
        );
        self.written.longest_gap = self.written.longest_gap.max(self.last_ack.elapsed());
        self.last_ack = Instant::now();
        self.written.acknowledged += done.send.values.len();
        self.plan.recorder.send(Send {
            completed: self.plan.recorder.now(),
            outcome: Outcome::Ok { base },
            ..done.send
        });
        progress.fetch_add(RECORDS as u64, Ordering::Relaxed);
    }
}

impl Drop for Writer {
    /// What was sent and not answered may have happened.
    fn drop(&mut self) {
        for pending in self.pending.drain(..) {
            self.plan.recorder.send(pending.send);
        }
    }
}

async fn send(
    requests: &mpsc::Sender<ProduceRequest>,
    frame: produce_request::Frame,
) -> Result<(), String> {
    requests
        .send(ProduceRequest { frame: Some(frame) })
        .await
        .map_err(|e| e.to_string())
}
