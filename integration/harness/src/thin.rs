//! A producer with nothing but records: the gateway numbers what it sends. Several
//! records are unanswered at any time, each is sent once, and each has one answer.

use crate::{
    history::{Outcome, Recorder, Send},
    raw,
};
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use talweg_proto::v1::{
    Acks, Effect, ProduceOpen, ProduceRefusal, ProduceRequest, ProduceResponse, Record, RecordsAck,
    RecordsFrame, produce_request, produce_response,
};
use tokio::{sync::mpsc, time::timeout};
use tonic::Streaming;

/// Records that may be unanswered.
const IN_FLIGHT: usize = 32;
/// In one frame.
const RECORDS: u64 = 3;
const KEYS: u64 = 2;
/// Between two frames: enough load, and a history that can be held.
const PACE: Duration = Duration::from_millis(10);
/// Frames or heartbeats come more often.
const SILENCE: Duration = Duration::from_secs(30);
/// Where their numbers begin, so that none is another writer's or a reader's.
const FIRST: u32 = 1_000;

/// What became of its records.
#[derive(Clone, Copy, Default, Debug)]
pub struct ThinWritten {
    pub acknowledged: usize,
    /// Refused as not done.
    pub failed: usize,
    /// Without an answer, or with one that says that it may have happened.
    pub unknown: usize,
    /// Streams that broke.
    pub broken: usize,
}

impl std::ops::AddAssign for ThinWritten {
    fn add_assign(&mut self, other: Self) {
        self.acknowledged += other.acknowledged;
        self.failed += other.failed;
        self.unknown += other.unknown;
        self.broken += other.broken;
    }
}

/// One writer of one partition.
pub struct ThinWriter {
    url: String,
    topic: String,
    partition: u32,
    recorder: Recorder,
    count: u64,
    /// By the sequence on the stream.
    pending: BTreeMap<u64, Send>,
    written: ThinWritten,
}

struct Stream {
    requests: mpsc::Sender<ProduceRequest>,
    responses: Streaming<ProduceResponse>,
    next_sequence: u64,
    /// It was told to finish.
    draining: bool,
}

impl ThinWriter {
    pub fn new(url: &str, topic: &str, partition: u32, recorder: Recorder) -> Self {
        Self {
            url: url.into(),
            topic: topic.into(),
            partition,
            recorder,
            count: 0,
            pending: BTreeMap::new(),
            written: ThinWritten::default(),
        }
    }

    fn client(&self) -> u32 {
        FIRST + self.partition
    }

    /// Writes until `stop`, then until everything sent has its answer, which must
    /// come within `deadline` after that.
    pub async fn run(mut self, stop: &AtomicBool, deadline: Duration) -> ThinWritten {
        while !stop.load(Ordering::Relaxed) {
            let Some(mut stream) = timeout(SILENCE, self.open()).await.ok().flatten() else {
                tokio::time::sleep(PACE).await;
                continue;
            };
            if self.one_stream(&mut stream, stop, deadline).await.is_none() {
                self.written.broken += 1;
            }
            self.give_up();
        }
        self.written
    }

    async fn open(&self) -> Option<Stream> {
        let open = ProduceOpen {
            acks: Acks::All.into(),
            client_id: format!("thin-{}", self.client()),
            ..Default::default()
        };
        let (requests, responses) =
            raw::try_produce(&self.url, Duration::from_secs(1), open).await?;
        Some(Stream {
            requests,
            responses,
            next_sequence: 0,
            draining: false,
        })
    }

    /// Until nothing more is to be written on it; `None`: it broke.
    async fn one_stream(
        &mut self,
        stream: &mut Stream,
        stop: &AtomicBool,
        deadline: Duration,
    ) -> Option<()> {
        let (mut heard, mut stopped) = (Instant::now(), None);
        let mut pace = tokio::time::interval(PACE);
        loop {
            let ends = stop.load(Ordering::Relaxed);
            if ends {
                let since = *stopped.get_or_insert_with(Instant::now);
                assert!(
                    since.elapsed() < deadline,
                    "thin writer {}: {} records unanswered {deadline:?} after the end",
                    self.client(),
                    self.pending.len()
                );
            }
            if (ends || stream.draining) && self.pending.is_empty() {
                return Some(());
            }
            tokio::select! {
                frame = stream.responses.message() => {
                    heard = Instant::now();
                    self.take(frame.ok()??.frame?, stream);
                }
                _ = pace.tick() => {
                    if heard.elapsed() > SILENCE {
                        return None;
                    }
                    if !ends && !stream.draining && self.pending.len() < IN_FLIGHT {
                        self.send(stream).await?;
                    }
                }
            }
        }
    }

    async fn send(&mut self, stream: &mut Stream) -> Option<()> {
        let first_sequence = stream.next_sequence;
        stream.next_sequence += RECORDS;
        let mut records = Vec::new();
        for sequence in first_sequence..stream.next_sequence {
            let send = self.next_record();
            records.push(Record {
                key: Some(send.key.clone().into()),
                value: send.values.first().map(|value| value.clone().into()),
                partition: Some(self.partition),
                ..Default::default()
            });
            self.pending.insert(sequence, send);
        }
        let frame = Some(produce_request::Frame::Records(RecordsFrame {
            topic: self.topic.clone(),
            first_sequence,
            records,
            ..Default::default()
        }));
        stream.requests.send(ProduceRequest { frame }).await.ok()
    }

    fn next_record(&mut self) -> Send {
        let (client, number) = (self.client(), self.count);
        self.count += 1;
        let now = self.recorder.now();
        Send {
            number,
            client,
            partition: self.partition,
            key: format!("thin{client}-k{}", number % KEYS).into_bytes(),
            values: vec![format!("thin{client}-{number:08}").into_bytes()],
            lasting: true,
            invoked: now,
            completed: now,
            outcome: Outcome::Unknown,
        }
    }

    fn take(&mut self, frame: produce_response::Frame, stream: &mut Stream) {
        match frame {
            produce_response::Frame::RecordsAck(ack) => self.on_ack(&ack),
            produce_response::Frame::Refusal(refusal) => self.on_refusal(&refusal),
            produce_response::Frame::Drain(_) => stream.draining = true,
            _ => {}
        }
    }

    fn on_ack(&mut self, ack: &RecordsAck) {
        assert_eq!(ack.partition, self.partition, "another partition's answer");
        for (base, sequence) in (ack.base_offset..).zip(&ack.sequences) {
            self.answered(*sequence, Outcome::Ok { base });
        }
        self.written.acknowledged += ack.sequences.len();
    }

    fn on_refusal(&mut self, refusal: &ProduceRefusal) {
        let error = refusal.error.clone().unwrap_or_default();
        let done = error.effect() == Effect::NotDone;
        let outcome = if done {
            Outcome::Failed
        } else {
            Outcome::Unknown
        };
        println!(
            "thin writer {}: {:?} for {} records: {}",
            self.client(),
            raw::code(&error),
            refusal.sequences.len(),
            error.message
        );
        for sequence in &refusal.sequences {
            self.answered(*sequence, outcome);
        }
        let count = if done {
            &mut self.written.failed
        } else {
            &mut self.written.unknown
        };
        *count += refusal.sequences.len();
    }

    fn answered(&mut self, sequence: u64, outcome: Outcome) {
        let send = self.pending.remove(&sequence);
        let send = send.unwrap_or_else(|| panic!("{sequence} was answered, and waits for nothing"));
        self.recorder.send(Send {
            completed: self.recorder.now(),
            outcome,
            ..send
        });
    }

    /// Nobody will answer these any more.
    fn give_up(&mut self) {
        self.written.unknown += self.pending.len();
        for send in std::mem::take(&mut self.pending).into_values() {
            self.recorder.send(Send {
                completed: self.recorder.now(),
                ..send
            });
        }
    }
}
