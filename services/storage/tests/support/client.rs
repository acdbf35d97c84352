//! Clients of the data streams that send what a test says, right or wrong.

use super::PATIENCE;
use bytes::Bytes;
use talweg_batch::{BatchBuilder, decode_records, split_batches};
use talweg_kit::{
    data_stream::{FrameReceiver, FrameSender, open_fetch, open_produce},
    errors::{ErrorCode, Refusal},
};
use talweg_proto::v1::{
    Acks, BatchAck, BatchFrame, Credit, FetchOpen, FetchPartition, FetchPartitionError,
    FetchRequest, FetchResponse, FetchUpdate, FetchedBatches, Form, PartitionPosition, ProduceOpen,
    ProduceOpened, ProduceRefusal, ProduceRequest, ProduceResponse, fetch_partition::Start,
    fetch_request, fetch_response, produce_request, produce_response,
};
use talweg_types::{Compression, ProducerEpoch, ProducerId, Sequence, TimestampMs};
use tonic::{Status, metadata::MetadataMap, transport::Channel};

/// A batch of these values, without keys.
pub fn batch(values: &[&str]) -> Bytes {
    batch_at(values, 1_000, None)
}

/// With a timestamp, and numbered by producer 5 if a sequence is given.
pub fn batch_at(values: &[&str], timestamp: i64, sequence: Option<i32>) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    if let Some(sequence) = sequence {
        builder.set_producer(ProducerId(5), ProducerEpoch(0), Sequence(sequence));
    }
    for value in values {
        builder
            .push(TimestampMs(timestamp), None, Some(value.as_bytes()), [])
            .expect("record");
    }
    builder.build().expect("batch")
}

/// One record of so many bytes.
pub fn batch_of(bytes: usize) -> Bytes {
    batch(&[&"x".repeat(bytes)])
}

/// A Produce stream.
pub struct Produce {
    pub frames: FrameSender<ProduceRequest>,
    pub answers: FrameReceiver<ProduceResponse>,
    pub opened: ProduceOpened,
    pub next: u64,
}

/// What a server says on a Produce stream.
pub type Said = produce_response::Frame;

pub fn produce_frame(frame: produce_request::Frame) -> ProduceRequest {
    ProduceRequest { frame: Some(frame) }
}

impl Produce {
    pub async fn open(channel: &Channel, acks: Acks) -> Self {
        Self::open_with(
            channel,
            ProduceOpen {
                acks: acks as i32,
                ..Default::default()
            },
        )
        .await
        .expect("opened")
    }

    pub async fn open_with(channel: &Channel, open: ProduceOpen) -> Result<Self, Refusal> {
        let (frames, mut answers) = open_produce(channel, MetadataMap::new());
        frames
            .send(produce_frame(produce_request::Frame::Open(open)))
            .await
            .expect("sent");
        match next(&mut answers).await {
            Some(Ok(ProduceResponse {
                frame: Some(Said::Opened(opened)),
            })) => Ok(Self {
                frames,
                answers,
                opened,
                next: 0,
            }),
            Some(Err(status)) => Err(Refusal::from_status(&status)),
            other => panic!("{other:?}"),
        }
    }

    pub async fn raw(&self, frame: produce_request::Frame) {
        self.frames.send(produce_frame(frame)).await.expect("sent");
    }

    /// Sends batches as one frame; returns the sequence of the first.
    pub async fn send(&mut self, topic: &str, partition: u32, batches: &[Bytes]) -> u64 {
        let first_sequence = self.next;
        self.next += batches.len() as u64;
        let batches = batches.concat().into();
        let frame = BatchFrame {
            topic: topic.into(),
            partition,
            first_sequence,
            batches,
            ..Default::default()
        };
        self.raw(produce_request::Frame::Batch(frame)).await;
        first_sequence
    }

    /// The next frame but heartbeats; none at the end of the stream.
    pub async fn said(&mut self) -> Option<Result<Said, Status>> {
        loop {
            match next(&mut self.answers).await? {
                Ok(ProduceResponse {
                    frame: Some(Said::Heartbeat(_)),
                }) => {}
                Ok(response) => return Some(Ok(response.frame.expect("a frame has content"))),
                Err(status) => return Some(Err(status)),
            }
        }
    }

    pub async fn ack(&mut self) -> BatchAck {
        match self.said().await {
            Some(Ok(Said::BatchAck(ack))) => ack,
            other => panic!("{other:?}"),
        }
    }

    pub async fn refusal(&mut self) -> (ErrorCode, ProduceRefusal) {
        match self.said().await {
            Some(Ok(Said::Refusal(refusal))) => {
                let code = refusal.error.as_ref().expect("an error").code;
                (ErrorCode::try_from(code).expect("known"), refusal)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Sends one batch and waits until it is done; returns its base offset.
    pub async fn one(&mut self, topic: &str, partition: u32, batch: Bytes) -> i64 {
        let sequence = self.send(topic, partition, &[batch]).await;
        let ack = self.ack().await;
        assert_eq!(ack.up_to_sequence, sequence);
        ack.base_offsets[0]
    }

    /// The stream ends with this refusal.
    pub async fn ends_with(mut self) -> Refusal {
        loop {
            match self.said().await {
                Some(Ok(_)) => {}
                Some(Err(status)) => return Refusal::from_status(&status),
                None => panic!("the stream ended well"),
            }
        }
    }
}

/// A Fetch stream.
pub struct Fetch {
    pub frames: FrameSender<FetchRequest>,
    pub answers: FrameReceiver<FetchResponse>,
    pub positions: Vec<PartitionPosition>,
}

pub type Told = fetch_response::Frame;

pub fn partition(topic: &str, partition: u32, start: Start) -> FetchPartition {
    FetchPartition {
        topic: topic.into(),
        partition,
        start: Some(start),
        ..Default::default()
    }
}

pub fn fetch_open(partitions: Vec<FetchPartition>, bytes: i64, records: i64) -> FetchOpen {
    FetchOpen {
        partitions,
        credit: Some(Credit { bytes, records }),
        form: Form::Batches as i32,
        ..Default::default()
    }
}

impl Fetch {
    /// With plenty of credit.
    pub async fn open(channel: &Channel, partitions: Vec<FetchPartition>) -> Self {
        Self::open_with(channel, fetch_open(partitions, 64 << 20, 1_000_000))
            .await
            .expect("opened")
    }

    pub async fn open_with(channel: &Channel, open: FetchOpen) -> Result<Self, Refusal> {
        let (frames, mut answers) = open_fetch(channel, MetadataMap::new());
        let frame = fetch_request::Frame::Open(open);
        frames
            .send(FetchRequest { frame: Some(frame) })
            .await
            .expect("sent");
        match next(&mut answers).await {
            Some(Ok(FetchResponse {
                frame: Some(Told::Opened(opened)),
            })) => Ok(Self {
                frames,
                answers,
                positions: opened.positions,
            }),
            Some(Err(status)) => Err(Refusal::from_status(&status)),
            other => panic!("{other:?}"),
        }
    }

    pub async fn raw(&self, frame: fetch_request::Frame) {
        self.frames
            .send(FetchRequest { frame: Some(frame) })
            .await
            .expect("sent");
    }

    pub async fn credit(&self, bytes: i64, records: i64) {
        self.raw(fetch_request::Frame::Credit(Credit { bytes, records }))
            .await;
    }

    pub async fn update(&self, update: FetchUpdate) {
        self.raw(fetch_request::Frame::Update(update)).await;
    }

    /// The next frame; none at the end of the stream.
    pub async fn told(&mut self) -> Option<Result<Told, Status>> {
        let response = next(&mut self.answers).await?;
        Some(response.map(|response| response.frame.expect("a frame has content")))
    }

    pub async fn batches(&mut self) -> FetchedBatches {
        loop {
            match self.told().await {
                Some(Ok(Told::Batches(batches))) => return batches,
                Some(Ok(Told::Positions(_))) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    pub async fn error(&mut self) -> (ErrorCode, FetchPartitionError) {
        loop {
            match self.told().await {
                Some(Ok(Told::PartitionError(error))) => {
                    let code = error.error.as_ref().expect("an error").code;
                    return (ErrorCode::try_from(code).expect("known"), error);
                }
                Some(Ok(Told::Positions(_))) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Values of the next records, at least `count`.
    pub async fn values(&mut self, count: usize) -> Vec<String> {
        let mut all = Vec::new();
        while all.len() < count {
            all.extend(values(&self.batches().await));
        }
        all
    }

    pub async fn ends_with(mut self) -> Refusal {
        loop {
            match self.told().await {
                Some(Ok(_)) => {}
                Some(Err(status)) => return Refusal::from_status(&status),
                None => panic!("the stream ended well"),
            }
        }
    }
}

/// Values of the records that were due.
pub fn values(frame: &FetchedBatches) -> Vec<String> {
    let mut all = Vec::new();
    for bytes in split_batches(frame.batches.clone()) {
        let bytes = bytes.expect("a batch");
        let header = talweg_batch::BatchHeader::parse(&bytes).expect("a header");
        for record in decode_records(&bytes, 64 << 20).expect("records") {
            if header.base_offset.0 + i64::from(record.offset_delta) >= frame.first_offset {
                all.push(String::from_utf8(record.value.expect("a value").to_vec()).expect("text"));
            }
        }
    }
    all
}

async fn next<T: talweg_kit::data_stream::DataFrame>(
    answers: &mut FrameReceiver<T>,
) -> Option<Result<T, Status>> {
    tokio::time::timeout(PATIENCE, answers.next())
        .await
        .expect("the server says something in time")
}
