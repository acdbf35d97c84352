//! One Fetch stream: one task that reads from the leaders over its own streams,
//! holds what the client has credit for, and sends it.
//!
//! Client frames come before data, so that a busy stream hears its client. A
//! partition whose leader moves or restarts waits and goes on by itself; its
//! client hears of it only after `leader_patience_ms`.

mod client;

use super::{
    open::{self, Opening},
    reading::{Due, Heard, Reading, ReadingConfig, Sent},
    updates::{Asked, Pending, Updates},
};
use crate::{
    node::{Drain, Node},
    streams::{Ended, OPEN_TIMEOUT, begun, forced, ms_until, violation},
    token,
};
use bytes::Bytes;
use std::{sync::Arc, time::Duration};
use talweg_client::fetch::StartAt;
use talweg_kit::{
    data_stream::{FrameReceiver, FrameSender},
    errors::{ErrorCode, Refusal},
    fetch_credit::FetchCredit,
};
use talweg_proto::v1::{
    self, FetchPartition, FetchRequest, FetchResponse, FetchUpdate, fetch_request,
    fetch_response::Frame,
};
use talweg_types::TopicPartition;
use tokio::{sync::watch, time::Instant};
use tonic::Status;

/// How long `opened` and `updated` wait for leaders.
const ANSWER_WAIT_MS: u64 = 2_000;
/// Updates that may wait for leaders at a time.
const UPDATES_MAX: usize = 16;

pub struct FetchStream {
    node: Arc<Node>,
    requests: FrameReceiver<FetchRequest>,
    responses: FrameSender<FetchResponse>,
    reading: Reading,
    updates: Updates,
    half_closed: bool,
    drain: Option<Drain>,
    stops: watch::Receiver<Option<Drain>>,
    next_heartbeat: Instant,
}

impl FetchStream {
    /// Waits for the open frame; `None` if the client ended the stream instead.
    pub async fn open(
        node: Arc<Node>,
        mut requests: FrameReceiver<FetchRequest>,
        responses: FrameSender<FetchResponse>,
    ) -> Result<Option<Self>, Status> {
        let first = tokio::time::timeout(OPEN_TIMEOUT, requests.next()).await;
        let first = first.map_err(|_| Status::from(violation("the open frame did not come")))?;
        let Some(request) = first.transpose()? else {
            return Ok(None);
        };
        let Some(fetch_request::Frame::Open(open)) = request.frame else {
            return Err(violation("the first frame must be `open`").into());
        };
        let opening = Opening::check(&open)?;
        // The credit's sign and size first; what it must hold is known with the topics.
        let credit = FetchCredit::open(open.credit.as_ref(), 0)?;
        let config = ReadingConfig {
            client_id: opening.client_id,
            thin: opening.thin,
            isolation: opening.isolation,
            rack: opening.rack,
        };
        let mut stream = Self {
            stops: node.watch_drain(),
            next_heartbeat: Instant::now() + node.heartbeat_wait(),
            drain: None,
            half_closed: false,
            reading: Reading::new(Arc::clone(&node), config, credit),
            updates: Updates::default(),
            node,
            requests,
            responses,
        };
        stream.begin(open)?;
        Ok(Some(stream))
    }

    fn begin(&mut self, open: v1::FetchOpen) -> Result<(), Refusal> {
        let tokens = token::read_fetch(&open.resume_token, &self.node.view.get().cluster_id)?;
        let view = self.node.view.get();
        let named: Vec<TopicPartition> = open
            .partitions
            .iter()
            .filter_map(|it| Some(open::locate(&view, it).ok()?.1))
            .collect();
        let resumed = tokens
            .into_iter()
            .filter(|it| !named.contains(&it.partition))
            .map(|it| FetchPartition {
                topic_id: Bytes::copy_from_slice(it.partition.topic_id.as_bytes()),
                partition: it.partition.partition.0,
                start: Some(StartAt::Offset(it.next_offset).to_proto()),
                last_epoch: (it.last_epoch >= 0).then_some(it.last_epoch),
                ..FetchPartition::default()
            });
        let requests: Vec<FetchPartition> = open.partitions.into_iter().chain(resumed).collect();
        open::check_count(requests.len())?;
        let mut pending = Pending::new(Asked::Open, self.now_ms() + ANSWER_WAIT_MS);
        let mut largest = 0;
        for request in &requests {
            if let Ok((topic, _)) = open::locate(&view, request) {
                largest = largest.max(topic.config.max_message_bytes);
            }
            self.start(request, false, &mut pending);
        }
        self.reading.credit = FetchCredit::open(open.credit.as_ref(), largest)?;
        self.updates.push(pending);
        Ok(())
    }

    fn now_ms(&self) -> u64 {
        self.node.clock.now_ms()
    }

    /// Serves until the client has gone or broken the rules, nothing can follow
    /// any more, or the process stops.
    pub async fn run(mut self) -> Result<(), Status> {
        let forced = forced(self.stops.clone());
        let ended = tokio::select! {
            biased;
            ended = self.serve() => ended,
            () = forced => Ok(()),
        };
        match ended {
            Ok(()) | Err(Ended::Gone) => Ok(()),
            Err(Ended::Refused(status)) => Err(status),
        }
    }

    async fn serve(&mut self) -> Result<(), Ended> {
        loop {
            self.answer_updates().await?;
            self.send_data().await?;
            if let Some(reason) = self.end_reason() {
                return self
                    .send(Frame::Closing(v1::Closing {
                        reason: reason.into(),
                    }))
                    .await;
            }
            self.reading.set_target(self.drain.is_none());
            let listening = !self.half_closed && self.updates.len() < UPDATES_MAX;
            let timer = self.next_timer();
            tokio::select! {
                biased;
                drain = begun(&mut self.stops), if self.drain.is_none() => self.on_drain(drain).await?,
                frame = self.requests.next(), if listening => match frame {
                    Some(frame) => self.on_frame(frame?).await?,
                    None => self.half_closed = true,
                },
                heard = self.reading.wait() => self.on_heard(heard).await?,
                () = tokio::time::sleep_until(timer) => self.on_timer().await?,
            }
        }
    }

    /// Why nothing more will follow.
    fn end_reason(&self) -> Option<&'static str> {
        if self
            .drain
            .is_some_and(|drain| Instant::now() >= drain.deadline)
        {
            return Some("this gateway is stopping");
        }
        let credit = &self.reading.credit;
        let starved = credit.room().is_none() && !credit.allows_any();
        let (stuck, nothing) = (self.reading.is_stuck(), self.reading.is_empty());
        let idle = self.updates.len() == 0;
        (self.half_closed && idle && (nothing || starved || stuck))
            .then_some("nothing can follow: the client granted no more")
    }

    fn next_timer(&self) -> Instant {
        let updates = self.updates.next_time().map(|ms| self.node.clock.at(ms));
        let drain = self.drain.map(|drain| drain.deadline);
        // Nothing goes out before the answer to `open`.
        let telling = [Some(self.next_heartbeat), self.reading.positions_due()];
        let telling = telling
            .into_iter()
            .flatten()
            .filter(|_| !self.updates.is_opening());
        // One of the first two is there while the stream opens.
        let far = Instant::now() + Duration::from_secs(60);
        [updates, drain]
            .into_iter()
            .flatten()
            .chain(telling)
            .fold(far, Instant::min)
    }

    async fn on_timer(&mut self) -> Result<(), Ended> {
        let now = Instant::now();
        let opening = self.updates.is_opening();
        if !opening
            && (now >= self.next_heartbeat
                || self.reading.positions_due().is_some_and(|at| now >= at))
        {
            self.send_positions().await?;
        }
        Ok(())
    }

    async fn send_positions(&mut self) -> Result<(), Ended> {
        loop {
            let (positions, more) = self.reading.take_positions();
            self.send(Frame::Positions(positions)).await?;
            if !more {
                return Ok(());
            }
        }
    }

    // The leaders

    async fn on_heard(&mut self, heard: Vec<Heard>) -> Result<(), Ended> {
        for heard in heard {
            match heard {
                Heard::Started(partition, position) => {
                    if self.updates.on_started(partition, &position) {
                        self.reading.told(partition);
                    }
                    self.reading.tell_later(partition);
                }
                Heard::Stopped(partition, refusal) => self.stop(partition, &refusal).await?,
            }
        }
        Ok(())
    }

    /// Sends what the client's credit allows.
    async fn send_data(&mut self) -> Result<(), Ended> {
        while self.drain.is_none() && !self.updates.is_opening() {
            match self.reading.next_due() {
                None => return Ok(()),
                Some(Due::Stopped(partition, refusal)) => self.stop(partition, &refusal).await?,
                Some(Due::Frame(frame)) => match self.reading.send(frame) {
                    Some(Sent::Records(records)) => self.send(Frame::Records(records)).await?,
                    Some(Sent::Batches(batches)) => self.send(Frame::Batches(batches)).await?,
                    None => {}
                },
            }
        }
        Ok(())
    }

    /// The partition ends here; the others go on.
    async fn stop(&mut self, partition: TopicPartition, refusal: &Refusal) -> Result<(), Ended> {
        let Some(error) = self.reading.stop(partition, refusal) else {
            return Ok(());
        };
        if !self.updates.on_stopped(partition, &error) {
            self.send(Frame::PartitionError(error)).await?;
        }
        Ok(())
    }

    async fn send(&mut self, frame: Frame) -> Result<(), Ended> {
        self.responses
            .send(FetchResponse { frame: Some(frame) })
            .await?;
        self.next_heartbeat = Instant::now() + self.node.heartbeat_wait();
        Ok(())
    }
}
