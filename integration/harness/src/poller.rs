//! A reader that follows a topic through everything and writes down each frame.

use crate::{
    history::{Bounds, Poll, Recorder},
    raw,
};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use talweg_proto::v1::{
    self, Credit, ErrorCode, FetchOpen, FetchRequest, FetchResponse, FetchedRecords, Form,
    PartitionPosition, fetch_partition::Start, fetch_request, fetch_response,
    fetch_service_client::FetchServiceClient,
};
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Endpoint};

const GRANT: Credit = Credit {
    bytes: 8 << 20,
    records: 100_000,
};
/// Frames or heartbeats come more often.
const SILENCE: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(50);
/// For reading the rest once the end is known.
const REST: Duration = Duration::from_secs(60);
/// Where readers' numbers begin, so that none is a writer's.
pub const FIRST_READER: u32 = 10_000;

/// Partition → one past the last record that a reader must have seen to end.
pub type Ends = BTreeMap<u32, i64>;

/// Reads all partitions of one topic in thin form, from the log start on.
pub struct Poller {
    pub url: String,
    pub topic: String,
    /// From 0.
    pub number: u32,
    pub partitions: u32,
    pub recorder: Recorder,
    /// Empty until writers have ended.
    pub until: watch::Receiver<Option<Ends>>,
}

#[derive(Clone, Copy, Default)]
struct Position {
    next: i64,
    last_epoch: Option<i32>,
    /// The next frame is the first after a stream was opened here.
    seeks: bool,
}

type Positions = BTreeMap<u32, Position>;

impl Poller {
    /// Reads until it has reached the ends. Gives up a minute after they are
    /// known; the checker then says what was not seen.
    pub async fn run(self) {
        self.recorder.reader(self.client());
        let mut positions: Positions = (0..self.partitions)
            .map(|partition| (partition, Position::default()))
            .collect();
        let mut last: Option<Instant> = None;
        while !self.is_done(&positions) {
            if self.until.borrow().is_some()
                && last.get_or_insert_with(Instant::now).elapsed() > REST
            {
                return;
            }
            if self.one_stream(&mut positions).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    fn client(&self) -> u32 {
        FIRST_READER + self.number
    }

    fn is_done(&self, positions: &Positions) -> bool {
        let until = self.until.borrow();
        let Some(ends) = until.as_ref() else {
            return false;
        };
        positions
            .iter()
            .all(|(p, at)| at.next >= ends.get(p).copied().unwrap_or(0))
    }

    /// Reads until the stream breaks (`Err`) or nothing is left to read.
    async fn one_stream(&self, positions: &mut Positions) -> Result<(), String> {
        let (requests, mut responses) = self.open(positions).await?;
        let mut heard = Instant::now();
        while !self.is_done(positions) {
            let Ok(frame) = timeout(LOOK, responses.message()).await else {
                if heard.elapsed() > SILENCE {
                    return Err("silence".into());
                }
                continue;
            };
            heard = Instant::now();
            let frame = frame.map_err(|e| e.to_string())?.ok_or("ended")?;
            match frame.frame.ok_or("an empty frame")? {
                fetch_response::Frame::Records(frame) => {
                    let credit = self.take(frame, positions);
                    let frame = Some(fetch_request::Frame::Credit(credit));
                    let sent = requests.send(FetchRequest { frame }).await;
                    sent.map_err(|e| e.to_string())?;
                }
                fetch_response::Frame::Positions(frame) => {
                    for position in &frame.positions {
                        self.note(position, Vec::new(), positions);
                    }
                }
                fetch_response::Frame::PartitionError(error) => return Err(self.refused(error)),
                fetch_response::Frame::Drain(_) | fetch_response::Frame::Closing(_) => {
                    return Err("draining".into());
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn open(
        &self,
        positions: &mut Positions,
    ) -> Result<(mpsc::Sender<FetchRequest>, Streaming<FetchResponse>), String> {
        let endpoint = Endpoint::from_shared(self.url.clone()).map_err(|e| e.to_string())?;
        let endpoint = endpoint.connect_timeout(Duration::from_secs(1));
        let channel = endpoint.connect().await.map_err(|e| e.to_string())?;
        let (requests, rx) = mpsc::channel(64);
        let open = FetchOpen {
            client_id: format!("reader-{}", self.number),
            partitions: positions
                .iter_mut()
                .map(|(partition, at)| {
                    at.seeks = true;
                    v1::FetchPartition {
                        last_epoch: at.last_epoch,
                        ..raw::from(&self.topic, *partition, Start::Offset(at.next))
                    }
                })
                .collect(),
            credit: Some(GRANT),
            form: Form::Records.into(),
            ..Default::default()
        };
        let frame = Some(fetch_request::Frame::Open(open));
        let sent = requests.send(FetchRequest { frame }).await;
        sent.map_err(|e| e.to_string())?;
        let mut client = FetchServiceClient::new(channel).max_decoding_message_size(4 << 20);
        let responses = timeout(SILENCE, client.fetch(ReceiverStream::new(rx))).await;
        let responses = responses.map_err(|e| e.to_string())?;
        Ok((requests, responses.map_err(|e| e.to_string())?.into_inner()))
    }

    /// Writes down records; what may be sent for them.
    fn take(&self, frame: FetchedRecords, positions: &mut Positions) -> Credit {
        let epoch = frame.records.last().map(|record| record.leader_epoch);
        let mut bytes = 0;
        let records: Vec<_> = frame
            .records
            .into_iter()
            .map(|record| {
                let value = record.value.unwrap_or_default().to_vec();
                bytes += value.len() + record.key.map_or(0, |key| key.len()) + PER_RECORD;
                (record.offset, value)
            })
            .collect();
        let credit = Credit {
            bytes: i64::try_from(bytes).expect("at most a frame"),
            records: i64::try_from(records.len()).expect("at most a frame"),
        };
        let position = frame.position.expect("records have a position");
        self.note(&position, records, positions);
        if let Some(at) = positions.get_mut(&position.partition) {
            at.last_epoch = epoch.or(at.last_epoch);
        }
        credit
    }

    fn note(
        &self,
        position: &PartitionPosition,
        records: Vec<(i64, Vec<u8>)>,
        positions: &mut Positions,
    ) {
        let at = positions.entry(position.partition).or_default();
        let (client, partition) = (self.client(), position.partition);
        let now = self.recorder.now();
        let seek = std::mem::take(&mut at.seeks).then_some(at.next);
        at.next = position.next_offset;
        self.recorder.poll(Poll {
            client,
            partition,
            seek,
            records,
            next: position.next_offset,
            at: now,
        });
        // A leader that does not know its watermark yet says nothing about it.
        if position.high_watermark >= 0 {
            self.recorder.bounds(Bounds {
                observer: format!("reader {}", self.number),
                partition,
                log_start: position.log_start_offset,
                last_stable: position.last_stable_offset,
                high_watermark: position.high_watermark,
                at: now,
            });
        }
    }

    fn refused(&self, error: v1::FetchPartitionError) -> String {
        let detail = error.error.unwrap_or_default();
        let code = raw::code(&detail);
        let broken = matches!(
            code,
            ErrorCode::LogTruncated | ErrorCode::OffsetOutOfRange | ErrorCode::DataDamaged
        );
        // What a reader has seen lies below the watermark and stays there.
        assert!(
            !broken,
            "reader {} of partition {}: {code:?}: {}",
            self.number, error.partition, detail.message
        );
        detail.message
    }
}

/// Credit is counted a little above what a record holds.
const PER_RECORD: usize = 16;
