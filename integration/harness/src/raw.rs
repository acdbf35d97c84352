//! Streams as a stranger writes them: tonic's generated clients, no code of our
//! own in between, so that every frame of a test is in plain sight.

mod offsets;
mod topics;

pub use offsets::{commit, commit_by, stored};
pub use topics::{
    bounds, create_replicated, create_topic, describe, describe_topic, drain, in_sync, leader,
};

use bytes::Bytes;
use std::{collections::VecDeque, time::Duration};
use talweg_batch::BatchBuilder;
use talweg_kit::errors::Refusal;
use talweg_proto::v1::{
    self, Acks, Credit, ErrorCode, ErrorDetail, FetchOpen, FetchPartition, FetchRequest,
    FetchResponse, ProduceOpen, ProduceRequest, ProduceResponse, fetch_partition::Start,
    fetch_request, fetch_response, fetch_service_client::FetchServiceClient, produce_request,
    produce_response, produce_service_client::ProduceServiceClient,
};
use talweg_types::{Compression, ProducerEpoch, ProducerId, Sequence, TimestampMs};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Status, Streaming,
    transport::{Channel, Endpoint},
};

/// Nothing in these tests may take longer.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// One connection.
pub async fn connect(url: &str) -> Channel {
    Endpoint::from_shared(url.to_owned())
        .expect("url")
        .connect()
        .await
        .unwrap_or_else(|e| panic!("{url}: {e}"))
}

/// The error detail of a refused call.
pub fn detail(status: &Status) -> ErrorDetail {
    Refusal::from_status(status).detail()
}

/// The code of an error detail.
pub fn code(detail: &ErrorDetail) -> ErrorCode {
    ErrorCode::try_from(detail.code).expect("a known code")
}

/// An uncompressed batch of values without keys.
pub fn batch(values: &[&[u8]]) -> Bytes {
    numbered_batch(
        values,
        ProducerId::NONE,
        ProducerEpoch::NONE,
        Sequence::NONE,
    )
}

/// The same with a producer's numbers.
pub fn numbered_batch(
    values: &[&[u8]],
    id: ProducerId,
    epoch: ProducerEpoch,
    base: Sequence,
) -> Bytes {
    keyed_batch(None, values, id, epoch, base)
}

/// The same, every record with this key.
pub fn keyed_batch(
    key: Option<&[u8]>,
    values: &[&[u8]],
    id: ProducerId,
    epoch: ProducerEpoch,
    base: Sequence,
) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    if !id.is_none() {
        builder = builder.with_producer(id, epoch, base);
    }
    for value in values {
        builder
            .push(TimestampMs(now_ms()), key, Some(value), [])
            .expect("a small record");
    }
    builder.build().expect("a batch")
}

/// The wall clock.
pub fn now_ms() -> i64 {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970");
    i64::try_from(since.as_millis()).expect("this millennium")
}

/// A Produce stream.
pub struct RawProduce {
    requests: Option<mpsc::Sender<ProduceRequest>>,
    responses: Streaming<ProduceResponse>,
    next_sequence: u64,
}

/// A Produce stream at a server that may be away or break: its two ends once it is
/// open, whatever it answers.
pub async fn try_produce(
    url: &str,
    connect: Duration,
    open: ProduceOpen,
) -> Option<(mpsc::Sender<ProduceRequest>, Streaming<ProduceResponse>)> {
    let endpoint = Endpoint::from_shared(url.to_owned()).expect("a url");
    let channel = endpoint.connect_timeout(connect).connect().await.ok()?;
    let (requests, rx) = mpsc::channel(4);
    let frame = Some(produce_request::Frame::Open(open));
    requests.send(ProduceRequest { frame }).await.ok()?;
    let mut client = ProduceServiceClient::new(channel);
    let responses = client.produce(ReceiverStream::new(rx)).await.ok()?;
    Some((requests, responses.into_inner()))
}

impl RawProduce {
    /// Opens without sending anything.
    pub async fn silent(channel: &Channel) -> Self {
        let (requests, rx) = mpsc::channel(64);
        let mut client =
            ProduceServiceClient::new(channel.clone()).max_decoding_message_size(4 << 20);
        let responses = timeout(PATIENCE, client.produce(ReceiverStream::new(rx)))
            .await
            .expect("headers come at once")
            .expect("open");
        Self {
            requests: Some(requests),
            responses: responses.into_inner(),
            next_sequence: 0,
        }
    }

    /// Opens with these acks and takes the `opened` frame.
    pub async fn open(channel: &Channel, acks: Acks) -> Self {
        Self::open_with(
            channel,
            ProduceOpen {
                acks: acks.into(),
                ..Default::default()
            },
        )
        .await
    }

    pub async fn open_with(channel: &Channel, open: ProduceOpen) -> Self {
        let mut stream = Self::silent(channel).await;
        stream.send(produce_request::Frame::Open(open)).await;
        match stream.next().await {
            Ok(Some(produce_response::Frame::Opened(_))) => stream,
            other => panic!("not opened: {other:?}"),
        }
    }

    pub async fn send(&mut self, frame: produce_request::Frame) {
        let requests = self.requests.as_ref().expect("not finished");
        // A server that has ended the stream does not read; its status is what the test looks at.
        let _ = requests.send(ProduceRequest { frame: Some(frame) }).await;
    }

    /// Half-closes.
    pub fn finish(&mut self) {
        self.requests = None;
    }

    /// The next frame but heartbeats.
    pub async fn next(&mut self) -> Result<Option<produce_response::Frame>, Status> {
        loop {
            let frame = timeout(PATIENCE, self.responses.message())
                .await
                .expect("an answer in time")?;
            match frame.map(|f| f.frame.expect("a known frame")) {
                Some(produce_response::Frame::Heartbeat(_)) => {}
                other => return Ok(other),
            }
        }
    }

    /// Sends one encoded batch; its stream sequence.
    pub async fn send_batch(&mut self, topic: &str, partition: u32, batches: Bytes) -> u64 {
        let first_sequence = self.next_sequence;
        self.next_sequence += 1;
        self.send(produce_request::Frame::Batch(v1::BatchFrame {
            topic: topic.into(),
            partition,
            first_sequence,
            batches,
            ..Default::default()
        }))
        .await;
        first_sequence
    }

    /// Sends records; the stream sequence of the first.
    pub async fn send_records(&mut self, topic: &str, records: Vec<v1::Record>) -> u64 {
        let first_sequence = self.next_sequence;
        self.next_sequence += records.len() as u64;
        self.send(produce_request::Frame::Records(v1::RecordsFrame {
            topic: topic.into(),
            first_sequence,
            records,
            ..Default::default()
        }))
        .await;
        first_sequence
    }

    /// Sends one batch and waits for its base offset or its refusal.
    pub async fn batch(
        &mut self,
        topic: &str,
        partition: u32,
        batches: Bytes,
    ) -> Result<i64, ErrorDetail> {
        self.send_batch(topic, partition, batches).await;
        match self.next().await.expect("the stream lives") {
            Some(produce_response::Frame::BatchAck(ack)) => Ok(ack.base_offsets[0]),
            Some(produce_response::Frame::Refusal(refusal)) => {
                Err(refusal.error.expect("an error"))
            }
            other => panic!("neither ack nor refusal: {other:?}"),
        }
    }

    /// Sends one record and waits for its offset or its refusal.
    pub async fn record(
        &mut self,
        topic: &str,
        record: v1::Record,
    ) -> Result<(u32, i64), ErrorDetail> {
        self.send_records(topic, vec![record]).await;
        match self.next().await.expect("the stream lives") {
            Some(produce_response::Frame::RecordsAck(ack)) => Ok((ack.partition, ack.base_offset)),
            Some(produce_response::Frame::Refusal(refusal)) => {
                Err(refusal.error.expect("an error"))
            }
            other => panic!("neither ack nor refusal: {other:?}"),
        }
    }
}

/// A Fetch stream.
pub struct RawFetch {
    requests: Option<mpsc::Sender<FetchRequest>>,
    responses: Streaming<FetchResponse>,
    waiting: VecDeque<fetch_response::Frame>,
}

/// A partition and where to begin.
pub fn from(topic: &str, partition: u32, start: Start) -> FetchPartition {
    FetchPartition {
        topic: topic.into(),
        partition,
        start: Some(start),
        ..Default::default()
    }
}

/// Credit for everything that a small test can read.
pub const PLENTY: Credit = Credit {
    bytes: 64 << 20,
    records: 10_000_000,
};

impl RawFetch {
    /// Opens without sending anything.
    pub async fn silent(channel: &Channel) -> Self {
        let (requests, rx) = mpsc::channel(64);
        let mut client =
            FetchServiceClient::new(channel.clone()).max_decoding_message_size(4 << 20);
        let responses = timeout(PATIENCE, client.fetch(ReceiverStream::new(rx)))
            .await
            .expect("headers come at once")
            .expect("open");
        Self {
            requests: Some(requests),
            responses: responses.into_inner(),
            waiting: VecDeque::new(),
        }
    }

    /// Opens in thin form with plenty of credit and takes the `opened` frame.
    pub async fn records(channel: &Channel, partitions: Vec<FetchPartition>) -> Self {
        let open = FetchOpen {
            partitions,
            credit: Some(PLENTY),
            form: v1::Form::Records.into(),
            ..Default::default()
        };
        Self::open_with(channel, open).await.0
    }

    pub async fn open_with(channel: &Channel, open: FetchOpen) -> (Self, v1::FetchOpened) {
        let mut stream = Self::silent(channel).await;
        stream.send(fetch_request::Frame::Open(open)).await;
        match stream.next().await {
            Ok(Some(fetch_response::Frame::Opened(opened))) => (stream, opened),
            other => panic!("not opened: {other:?}"),
        }
    }

    pub async fn send(&mut self, frame: fetch_request::Frame) {
        let requests = self.requests.as_ref().expect("not finished");
        let _ = requests.send(FetchRequest { frame: Some(frame) }).await;
    }

    pub fn finish(&mut self) {
        self.requests = None;
    }

    /// The next frame, positions included.
    pub async fn next(&mut self) -> Result<Option<fetch_response::Frame>, Status> {
        if let Some(frame) = self.waiting.pop_front() {
            return Ok(Some(frame));
        }
        let frame = timeout(PATIENCE, self.responses.message())
            .await
            .expect("a frame in time")?;
        Ok(frame.map(|f| f.frame.expect("a known frame")))
    }

    /// The next partition error; data and positions before it are passed over.
    pub async fn error(&mut self) -> ErrorDetail {
        loop {
            match self
                .next()
                .await
                .expect("the stream lives")
                .expect("the stream goes on")
            {
                fetch_response::Frame::PartitionError(error) => {
                    return error.error.expect("an error");
                }
                fetch_response::Frame::Positions(_) | fetch_response::Frame::Records(_) => {}
                other => panic!("not a partition error: {other:?}"),
            }
        }
    }

    /// Exactly `count` records: (partition, record), in the order of arrival.
    pub async fn take(&mut self, count: usize) -> Vec<(u32, v1::FetchedRecord)> {
        let mut found = Vec::new();
        while found.len() < count {
            match self
                .next()
                .await
                .expect("the stream lives")
                .expect("the stream goes on")
            {
                fetch_response::Frame::Records(frame) => {
                    let partition = frame.position.expect("a position").partition;
                    found.extend(frame.records.into_iter().map(|r| (partition, r)));
                }
                fetch_response::Frame::Positions(_) => {}
                other => panic!("after {} records: {other:?}", found.len()),
            }
        }
        assert_eq!(found.len(), count, "more than was written");
        found
    }
}

/// Every record of a partition from its start to its high watermark.
pub async fn read_all(channel: &Channel, topic: &str, partition: u32) -> Vec<v1::FetchedRecord> {
    let at = bounds(channel, topic, partition).await.expect("bounds");
    let mut stream =
        RawFetch::records(channel, vec![from(topic, partition, Start::Earliest(true))]).await;
    let mut found: Vec<v1::FetchedRecord> = Vec::new();
    let mut next = at.log_start_offset;
    while next < at.high_watermark {
        match stream
            .next()
            .await
            .expect("the stream lives")
            .expect("the stream goes on")
        {
            fetch_response::Frame::Records(frame) => {
                next = frame.position.as_ref().expect("a position").next_offset;
                let (bytes, records) = (frame.records.len() * 16 + 1024, frame.records.len());
                let size = frame.records.iter().map(prost_len).sum::<usize>() + bytes;
                found.extend(frame.records);
                let credit = Credit {
                    bytes: i64::try_from(size).expect("small"),
                    records: i64::try_from(records).expect("small"),
                };
                stream.send(fetch_request::Frame::Credit(credit)).await;
            }
            fetch_response::Frame::Positions(p) => {
                next = p
                    .positions
                    .iter()
                    .map(|p| p.next_offset)
                    .max()
                    .unwrap_or(next)
                    .max(next);
            }
            other => panic!("{other:?}"),
        }
    }
    found.retain(|r| r.offset < at.high_watermark);
    found
}

fn prost_len(record: &v1::FetchedRecord) -> usize {
    record.value.as_ref().map_or(0, Bytes::len) + record.key.as_ref().map_or(0, Bytes::len)
}
