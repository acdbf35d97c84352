//! Single records through a gateway: a task that owns the streams, behind a
//! bounded mailbox.
//!
//! A gateway stream is an idempotent producer whose promise ends with the
//! stream: what is unanswered when it breaks is *unknown* and never sent again.
//! A drain is followed make-before-break: new records go to the new stream,
//! answers still come on the old one.

mod answers;

use super::link::{Place, RecordLink};
use super::{Delivered, Outcome, ProducerConfig, Receipts};
use crate::{backoff::Backoff, client::Client, pool::Traffic};
use futures::stream::{BoxStream, SelectAll, StreamExt, abortable};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};
use talweg_kit::{
    data_stream,
    errors::{ErrorCode, Refusal},
};
use talweg_proto::v1::{self, produce_request, produce_response::Frame};
use talweg_types::{Acks, Compression, Offset, PartitionIndex, TimestampMs, limits};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tonic::Status;

/// Calls between callers and the task.
const MAILBOX: usize = 64;
/// Payload of one frame stays below this, but for a single record.
const FRAME_BYTES: usize = limits::FRAME_PAYLOAD_BYTES as usize;
/// Records of one frame; well below the grant of records.
const FRAME_RECORDS: usize = 2_000;

/// Sends records through a gateway. Clones share the stream; when the last one
/// is dropped, what is unanswered is given up.
#[derive(Clone)]
pub struct RecordProducer {
    calls: mpsc::Sender<Call>,
}

enum Call {
    Send {
        topic: String,
        records: Vec<v1::Record>,
        reply: oneshot::Sender<Vec<Outcome>>,
    },
    Flush(oneshot::Sender<()>),
}

impl RecordProducer {
    /// Opens a producer; its stream opens with the first record.
    pub fn open(client: &Client, config: ProducerConfig) -> Self {
        let (calls, mailbox) = mpsc::channel(MAILBOX);
        tokio::spawn(Task::new(client.clone(), config).run(mailbox));
        Self { calls }
    }

    /// Sends records in this order; waits while too much is unanswered. The
    /// receipts resolve when all of them are answered.
    pub async fn send(&self, topic: &str, records: Vec<v1::Record>) -> Result<Receipts, Refusal> {
        let (reply, outcomes) = oneshot::channel();
        let count = records.len();
        self.call(Call::Send {
            topic: topic.into(),
            records,
            reply,
        })
        .await?;
        Ok(Receipts {
            outcomes,
            records: count,
        })
    }

    /// Waits until nothing is unanswered.
    pub async fn flush(&self) -> Result<(), Refusal> {
        let (reply, flushed) = oneshot::channel();
        self.call(Call::Flush(reply)).await?;
        flushed
            .await
            .map_err(|_| Refusal::internal("the producer has ended"))
    }

    async fn call(&self, call: Call) -> Result<(), Refusal> {
        self.calls
            .send(call)
            .await
            .map_err(|_| Refusal::internal("the producer has ended"))
    }
}

/// One call's records, as far as they are answered.
struct Job {
    outcomes: Vec<Option<Outcome>>,
    left: usize,
    reply: oneshot::Sender<Vec<Outcome>>,
}

/// Records that wait for credit or for a stream; one frame.
struct Waiting {
    job: u64,
    first_index: usize,
    topic: String,
    records: Vec<v1::Record>,
    bytes: Vec<i64>,
    deadline: Instant,
}

struct Event {
    link: u64,
    what: Result<Option<Frame>, Option<Status>>,
}

struct Task {
    client: Client,
    config: ProducerConfig,
    /// The newest link is last; earlier ones drain.
    links: Vec<RecordLink>,
    /// The last of `links` takes records.
    current: bool,
    events: SelectAll<BoxStream<'static, Event>>,
    jobs: BTreeMap<u64, Job>,
    waiting: VecDeque<Waiting>,
    flushes: Vec<oneshot::Sender<()>>,
    next_job: u64,
    next_link: u64,
    backoff: Backoff,
    dial_at: Instant,
}

impl Task {
    fn new(client: Client, config: ProducerConfig) -> Self {
        Self {
            client,
            config,
            links: Vec::new(),
            current: false,
            events: SelectAll::new(),
            jobs: BTreeMap::new(),
            waiting: VecDeque::new(),
            flushes: Vec::new(),
            next_job: 0,
            next_link: 0,
            backoff: Backoff::new(Duration::from_millis(20), Duration::from_secs(1)),
            dial_at: Instant::now(),
        }
    }

    async fn run(mut self, mut mailbox: mpsc::Receiver<Call>) {
        let mut heartbeat =
            tokio::time::interval(Duration::from_millis(limits::HEARTBEAT_MS_RANGE.0));
        loop {
            self.pump();
            if self.jobs.is_empty() {
                for flush in self.flushes.drain(..) {
                    // An error: whoever waited has gone.
                    flush.send(()).ok();
                }
            }
            let blocked = !self.waiting.is_empty();
            tokio::select! {
                biased;
                Some(event) = self.events.next() => self.on_event(event),
                call = mailbox.recv(), if !blocked => match call {
                    Some(call) => self.on_call(call),
                    None => return,
                },
                _ = heartbeat.tick() => self.on_heartbeat(),
                () = tokio::time::sleep(Duration::from_millis(20)), if blocked => self.expire(),
            }
        }
    }

    fn on_heartbeat(&mut self) {
        let time_ms = crate::clock::Clock::wall_ms();
        for link in self.links.iter().filter(|link| link.opened) {
            link.put(produce_request::Frame::Heartbeat(v1::Heartbeat { time_ms }));
        }
    }

    fn on_call(&mut self, call: Call) {
        let (topic, records, reply) = match call {
            Call::Flush(reply) => return self.flushes.push(reply),
            Call::Send {
                topic,
                records,
                reply,
            } => (topic, records, reply),
        };
        if records.is_empty() {
            return drop(reply.send(Vec::new()));
        }
        let job = self.next_job;
        self.next_job += 1;
        let left = records.len();
        self.jobs.insert(
            job,
            Job {
                outcomes: vec![None; left],
                left,
                reply,
            },
        );
        let deadline = Instant::now() + self.config.delivery_timeout;
        for (first_index, records, bytes) in cut_frames(records) {
            let topic = topic.clone();
            self.waiting.push_back(Waiting {
                job,
                first_index,
                topic,
                records,
                bytes,
                deadline,
            });
        }
    }

    /// Sends what credit allows.
    fn pump(&mut self) {
        while !self.waiting.is_empty() {
            if !self.current && (Instant::now() < self.dial_at || !self.dial()) {
                return;
            }
            if !self.send_front() {
                return;
            }
        }
    }

    fn send_front(&mut self) -> bool {
        let (Some(link), Some(front)) = (self.links.last_mut(), self.waiting.front_mut()) else {
            return false;
        };
        let count = front.records.len() as i64;
        let bytes: i64 = front.bytes.iter().sum();
        if !link.may_send(bytes, count) {
            return false;
        }
        let frame = v1::RecordsFrame {
            topic: front.topic.clone(),
            first_sequence: link.unanswered.next_sequence(),
            records: std::mem::take(&mut front.records),
            ..v1::RecordsFrame::default()
        };
        // A refused frame comes back inside the error; records are shared bytes,
        // so a copy of the list is what it costs to keep them.
        let kept = frame.records.clone();
        if !link.put(produce_request::Frame::Records(frame)) {
            front.records = kept;
            return false;
        }
        link.give(-bytes, -count);
        if let Some(sent) = self.waiting.pop_front() {
            for (at, bytes) in sent.bytes.into_iter().enumerate() {
                link.unanswered.push(Place {
                    job: sent.job,
                    index: sent.first_index + at,
                    bytes,
                });
            }
            if self.config.acks == Some(Acks::Zero) {
                self.done_without_answer(sent.job, sent.first_index, count as usize);
            }
        }
        true
    }

    /// With acks 0 a record is done when it is sent.
    fn done_without_answer(&mut self, job: u64, first: usize, count: usize) {
        for index in first..first + count {
            let outcome = Outcome::Done(Delivered {
                partition: PartitionIndex(0),
                offset: None,
                timestamp: TimestampMs::NONE,
                durability: v1::Durability::default(),
                duplicate: false,
            });
            self.answer(
                Place {
                    job,
                    index,
                    bytes: 0,
                },
                outcome,
            );
        }
    }

    fn dial(&mut self) -> bool {
        let server = self.client.server();
        let lease = match self.client.pool().lease(&server, Traffic::Produce) {
            Ok(lease) => lease,
            Err(refusal) => {
                self.fail_waiting(&refusal);
                return false;
            }
        };
        let (sender, receiver) =
            data_stream::open_produce(lease.channel(), tonic::metadata::MetadataMap::new());
        let id = self.next_link;
        self.next_link += 1;
        let frames = receiver
            .map(move |it| Event {
                link: id,
                what: it.map(|response| response.frame).map_err(Some),
            })
            .chain(futures::stream::once(async move {
                Event {
                    link: id,
                    what: Err(None),
                }
            }));
        let (frames, reader) = abortable(frames);
        self.events.push(frames.boxed());
        let link = RecordLink::new(id, server, sender, reader, lease);
        link.put(produce_request::Frame::Open(self.open_frame()));
        self.links.push(link);
        self.current = true;
        true
    }

    fn open_frame(&self) -> v1::ProduceOpen {
        let acks = match self.config.acks {
            None => v1::Acks::Unspecified,
            Some(Acks::Zero) => v1::Acks::None,
            Some(Acks::One) => v1::Acks::Leader,
            Some(Acks::All) => v1::Acks::All,
        };
        let compression = match self.config.compression {
            None => v1::Compression::Unspecified,
            Some(Compression::None) => v1::Compression::None,
            Some(Compression::Gzip) => v1::Compression::Gzip,
            Some(Compression::Snappy) => v1::Compression::Snappy,
            Some(Compression::Lz4) => v1::Compression::Lz4,
            Some(Compression::Zstd) => v1::Compression::Zstd,
        };
        let ms = |duration: Duration| u32::try_from(duration.as_millis()).unwrap_or(u32::MAX);
        v1::ProduceOpen {
            client_id: self.client.config().client_id.clone(),
            acks: acks.into(),
            compression: compression.into(),
            delivery_timeout_ms: ms(self.config.delivery_timeout),
            linger_ms: self.config.linger.map(ms),
            ..v1::ProduceOpen::default()
        }
    }

    /// What was not sent is not done.
    fn fail_waiting(&mut self, refusal: &Refusal) {
        for waiting in std::mem::take(&mut self.waiting) {
            self.refuse(&waiting, refusal);
        }
    }

    fn refuse(&mut self, waiting: &Waiting, refusal: &Refusal) {
        for index in waiting.first_index..waiting.first_index + waiting.bytes.len() {
            let place = Place {
                job: waiting.job,
                index,
                bytes: 0,
            };
            self.answer(place, Outcome::Refused(refusal.clone()));
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        while self
            .waiting
            .front()
            .is_some_and(|front| front.deadline <= now)
        {
            if let Some(late) = self.waiting.pop_front() {
                let why = "the delivery time-out passed before a gateway could take the record";
                self.refuse(&late, &Refusal::new(ErrorCode::DeliveryTimeoutNotSent, why));
            }
        }
    }
}

/// Cuts records into frames: index of the first, records, payload bytes of each.
fn cut_frames(records: Vec<v1::Record>) -> Vec<(usize, Vec<v1::Record>, Vec<i64>)> {
    let mut frames: Vec<(usize, Vec<v1::Record>, Vec<i64>)> = Vec::new();
    let mut room = 0;
    for (index, record) in records.into_iter().enumerate() {
        let bytes = crate::payload::record_bytes(&record);
        match frames.last_mut() {
            Some((_, frame, sizes)) if bytes <= room && frame.len() < FRAME_RECORDS => {
                frame.push(record);
                sizes.push(bytes as i64);
                room -= bytes;
            }
            _ => {
                frames.push((index, vec![record], vec![bytes as i64]));
                room = FRAME_BYTES.saturating_sub(bytes);
            }
        }
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_hold_a_mebibyte_or_one_record() {
        let record = |bytes: usize| v1::Record {
            value: Some(vec![0; bytes].into()),
            ..Default::default()
        };
        let frames = cut_frames(vec![
            record(600_000),
            record(400_000),
            record(100_000),
            record(3_000_000),
            record(1),
        ]);
        let shape: Vec<(usize, usize)> = frames
            .iter()
            .map(|(at, records, _)| (*at, records.len()))
            .collect();
        assert_eq!(shape, vec![(0, 2), (2, 1), (3, 1), (4, 1)]);
        assert!(cut_frames(Vec::new()).is_empty());
    }
}
