//! A producer that numbers its own batches and sends the same bytes again until
//! they are acknowledged: what a careful client does, with generated stubs only.

use crate::{Acked, raw};
use bytes::Bytes;
use std::{
    collections::{BTreeSet, VecDeque},
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
const SILENCE: Duration = Duration::from_secs(5);

/// What a writer did.
#[derive(Debug, Default)]
pub struct Written {
    /// In the order of sending.
    pub acked: Vec<Acked>,
    /// Every value that was ever sent.
    pub sent: BTreeSet<Vec<u8>>,
    /// How often it had to connect again.
    pub reconnects: usize,
    /// The longest time between two acknowledgements.
    pub longest_gap: Duration,
}

struct Pending {
    bytes: Bytes,
    values: Vec<Vec<u8>>,
}

/// One writer of one partition.
pub struct Writer {
    urls: Vec<String>,
    topic: String,
    partition: u32,
    number: u32,
    acks: Acks,
    identity: (ProducerId, ProducerEpoch),
    sequence: Sequence,
    count: u64,
    pending: VecDeque<Pending>,
    written: Written,
    last_ack: Instant,
}

impl Writer {
    /// Gets a producer id through the gateway at `identities`; streams go to each of `urls` in turn.
    pub async fn new(
        identities: &str,
        urls: Vec<String>,
        topic: &str,
        partition: u32,
        number: u32,
        acks: Acks,
    ) -> Self {
        let channel = raw::connect(identities).await;
        let request = v1::InitProducerRequest::default();
        let identity = ProducerServiceClient::new(channel)
            .init_producer(request)
            .await
            .expect("init producer")
            .into_inner();
        let epoch = i16::try_from(identity.producer_epoch).expect("16 bits");
        Self {
            urls,
            topic: topic.into(),
            partition,
            number,
            acks,
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
                    self.number,
                    self.pending.len()
                );
            }
            if self.one_stream(stop, progress).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            self.written.reconnects += 1;
        }
        self.written
    }

    fn next_batch(&mut self) {
        let values: Vec<Vec<u8>> = (0..RECORDS)
            .map(|_| {
                self.count += 1;
                format!("w{}-{:08}", self.number, self.count).into_bytes()
            })
            .collect();
        let slices: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        let bytes = raw::numbered_batch(&slices, self.identity.0, self.identity.1, self.sequence);
        self.sequence = self.sequence.plus(i32::try_from(RECORDS).expect("few"));
        self.written.sent.extend(values.iter().cloned());
        self.pending.push_back(Pending { bytes, values });
    }

    /// Opens a stream, sends everything unanswered again, goes on until it
    /// breaks (`Err`) or there is nothing left to do.
    async fn one_stream(&mut self, stop: &AtomicBool, progress: &AtomicU64) -> Result<(), String> {
        let url = self.urls[self.written.reconnects % self.urls.len()].clone();
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
            acks: self.acks.into(),
            client_id: format!("writer-{}", self.number),
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
                    topic: self.topic.clone(),
                    partition: self.partition,
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
                    self.number, error.message
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
        for (i, value) in done.values.into_iter().enumerate() {
            let offset = base + i64::try_from(i).expect("few");
            self.written.acked.push(Acked {
                partition: self.partition,
                offset,
                writer: self.number,
                value,
            });
        }
        progress.fetch_add(RECORDS as u64, Ordering::Relaxed);
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
