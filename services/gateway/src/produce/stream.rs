//! One Produce stream: one task that takes frames, delivers over its own
//! streams to the leaders, and sends the answers.
//!
//! It reads the next frame only when all answers so far are on their way, so
//! nothing here grows beyond the credit. When the process stops: what is
//! accepted is answered, then the drain frame goes out; frames are taken until
//! the deadline; then the stream ends with OK.

use super::{
    credit::Amount,
    open::Opening,
    session::{Now, Session},
};
use crate::{
    node::{Drain, Node, produce_grant},
    streams::{OPEN_TIMEOUT, begun, forced, ms_until, violation},
    token,
};
use std::{sync::Arc, time::Duration};
use talweg_client::{
    clock::Clock,
    delivery::{Upstream, UpstreamConfig},
};
use talweg_kit::{
    data_stream::{Closed, FrameReceiver, FrameSender, PeerInfo},
    errors::Refusal,
    net::Grant,
};
use talweg_proto::v1::{
    self, ProduceRequest, ProduceResponse, produce_request, produce_response::Frame,
};
use talweg_types::limits;
use tokio::{sync::watch, time::Instant};
use tonic::Status;

/// How long the drain frame waits for everything accepted to be answered.
const QUIESCE: Duration = Duration::from_millis(500);

/// Why a stream ended before its client ended it.
enum Ended {
    /// The client has gone.
    Gone,
    Refused(Status),
}

impl From<Closed> for Ended {
    fn from(_: Closed) -> Self {
        Self::Gone
    }
}

impl From<Status> for Ended {
    fn from(status: Status) -> Self {
        Self::Refused(status)
    }
}

/// Where the stream stands on the way to its end.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    Open,
    /// Reads nothing, answers what it has; the drain frame follows at the latest then.
    Quiescing {
        at_latest: Instant,
        drain: Drain,
    },
    /// The client knows.
    Told(Drain),
    /// Reads nothing more: the client is done, or its time is over.
    Ending,
}

pub struct ProduceStream {
    node: Arc<Node>,
    requests: FrameReceiver<ProduceRequest>,
    responses: FrameSender<ProduceResponse>,
    session: Session,
    upstream: Upstream,
    phase: Phase,
    stops: watch::Receiver<Option<Drain>>,
    next_heartbeat: Instant,
    /// Keeps this stream's share of the connection's credit.
    _grant: Option<Grant>,
}

impl ProduceStream {
    /// Waits for the open frame and answers it; `None` if the client went first.
    pub async fn open(
        node: Arc<Node>,
        peer: &PeerInfo,
        mut requests: FrameReceiver<ProduceRequest>,
        responses: FrameSender<ProduceResponse>,
    ) -> Result<Option<Self>, Status> {
        let first = tokio::time::timeout(OPEN_TIMEOUT, requests.next()).await;
        let first = first.map_err(|_| Status::from(violation("the open frame did not come")))?;
        let Some(request) = first.transpose()? else {
            return Ok(None);
        };
        let Some(produce_request::Frame::Open(open)) = request.frame else {
            return Err(violation("the first frame must be `open`").into());
        };
        let opening = Opening::check(open, &node.view.get().cluster_id)?;
        let (bytes, grant) = produce_grant(peer)?;
        let granted = Amount {
            bytes,
            records: limits::PRODUCE_CREDIT_RECORDS,
        };
        let opened = v1::ProduceOpened {
            credit: Some(granted.to_proto()),
            heartbeat_interval_ms: node.heartbeat_interval_ms(),
            node_id: node.id(),
            delivery_timeout_ms: u32::try_from(opening.delivery_timeout_ms).unwrap_or(u32::MAX),
        };
        let upstream = Upstream::new(
            Arc::new(node.view.clone()),
            node.pool.clone(),
            UpstreamConfig {
                client_id: opening.client_id.clone(),
                delivery_timeout: Duration::from_millis(opening.delivery_timeout_ms),
            },
            node.clock,
            rand::random(),
        );
        let stream = Self {
            session: Session::new(opening, granted, rand::random()),
            upstream,
            phase: Phase::Open,
            stops: node.watch_drain(),
            next_heartbeat: Instant::now() + node.heartbeat_wait(),
            node,
            requests,
            responses,
            _grant: grant,
        };
        let sent = stream
            .responses
            .send(ProduceResponse {
                frame: Some(Frame::Opened(opened)),
            })
            .await;
        Ok(sent.is_ok().then_some(stream))
    }

    /// Serves until the client is done, has gone or broken the rules, or the
    /// process stops.
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
            while let Some(answer) = self.session.next_answer() {
                self.count_answer(&answer);
                self.send(answer).await?;
            }
            self.count_stats();
            self.move_on().await?;
            if self.phase == Phase::Ending && self.session.is_quiet() {
                if self.node.draining().is_some() {
                    let reason = "this gateway is stopping".into();
                    self.send(Frame::Closing(v1::Closing { reason })).await?;
                }
                return Ok(());
            }
            let reading = matches!(self.phase, Phase::Open | Phase::Told(_));
            let timer = self.next_timer();
            tokio::select! {
                biased;
                () = self.upstream.next() => self.on_upstream(),
                drain = begun(&mut self.stops), if self.phase == Phase::Open => {
                    self.phase = Phase::Quiescing { at_latest: Instant::now() + QUIESCE, drain };
                }
                () = tokio::time::sleep_until(timer) => self.on_timer().await?,
                frame = self.requests.next(), if reading => match frame {
                    Some(frame) => self.on_frame(frame?)?,
                    None => self.phase = Phase::Ending,
                },
            }
        }
    }

    /// The next step on the way to the end, if it is due.
    async fn move_on(&mut self) -> Result<(), Ended> {
        match self.phase {
            Phase::Open => {}
            Phase::Quiescing { at_latest, drain } => {
                self.flush();
                let quiet = self.session.is_quiet();
                if quiet || Instant::now() >= at_latest {
                    let resume_token = match quiet {
                        true => token::produce(&self.node.view.get().cluster_id),
                        false => bytes::Bytes::new(),
                    };
                    let reason = "this gateway is stopping".into();
                    let deadline_ms = ms_until(drain.deadline);
                    self.phase = Phase::Told(drain);
                    self.send(Frame::Drain(v1::Drain {
                        reason,
                        deadline_ms,
                        resume_token,
                    }))
                    .await?;
                }
            }
            Phase::Told(drain) if Instant::now() >= drain.deadline => self.phase = Phase::Ending,
            Phase::Told(_) => {}
            Phase::Ending => self.flush(),
        }
        Ok(())
    }

    fn now(&self) -> Now {
        Now {
            mono_ms: self.node.clock.now_ms(),
            wall_ms: Clock::wall_ms(),
        }
    }

    fn flush(&mut self) {
        let view = self.node.view.get();
        self.session.flush(&view, &mut self.upstream);
    }

    fn next_timer(&self) -> Instant {
        let packs = self
            .session
            .next_time(self.now())
            .map(|ms| self.node.clock.at(ms));
        let phase = match self.phase {
            Phase::Quiescing { at_latest, .. } => Some(at_latest),
            Phase::Told(drain) => Some(drain.deadline),
            Phase::Open | Phase::Ending => None,
        };
        [packs, phase]
            .into_iter()
            .flatten()
            .fold(self.next_heartbeat, Instant::min)
    }

    async fn on_timer(&mut self) -> Result<(), Ended> {
        let (view, now) = (self.node.view.get(), self.now());
        self.session.on_time(&view, now, &mut self.upstream);
        if Instant::now() >= self.next_heartbeat {
            self.send(Frame::Heartbeat(v1::Heartbeat {
                time_ms: now.wall_ms,
            }))
            .await?;
        }
        Ok(())
    }

    fn on_upstream(&mut self) {
        for partition in self.upstream.take_renumber() {
            self.node.metrics.renumberings.inc();
            let fresh = self.node.ids.try_next();
            self.session.renumber(partition, fresh, &mut self.upstream);
        }
        let (view, now) = (self.node.view.get(), self.now());
        let settled = self.upstream.take_settled();
        self.session
            .on_settled(settled, &view, now, &mut self.upstream);
    }

    fn on_frame(&mut self, request: ProduceRequest) -> Result<(), Ended> {
        let (view, now) = (self.node.view.get(), self.now());
        match request.frame {
            Some(produce_request::Frame::Records(frame)) => {
                if self.session.needs_producer()
                    && let Some(id) = self.node.ids.try_next()
                {
                    self.session.set_producer(id);
                }
                self.node
                    .metrics
                    .records_in
                    .inc_by(frame.records.len() as u64);
                self.session
                    .on_records(frame, &view, now, &mut self.upstream);
            }
            Some(produce_request::Frame::Batch(frame)) => {
                self.session
                    .on_batches(frame, &view, now, &mut self.upstream);
            }
            Some(produce_request::Frame::Heartbeat(_)) => {}
            Some(produce_request::Frame::Credentials(_)) => {
                let refusal =
                    Refusal::not_built("Refreshed credentials are not built in this version.");
                self.session.refuse_frame(&refusal);
            }
            Some(produce_request::Frame::Open(_)) => {
                return Err(Ended::Refused(
                    violation("the stream is open already").into(),
                ));
            }
            None => return Err(Ended::Refused(violation("a frame without content").into())),
        }
        Ok(())
    }

    fn count_stats(&mut self) {
        let stats = self.session.take_stats();
        let metrics = &self.node.metrics;
        metrics.batches_in.inc_by(stats.batches);
        metrics.bytes_in.inc_by(stats.bytes);
        for ms in stats.delivered_ms {
            metrics.delivery_seconds.observe(ms as f64 / 1_000.0);
        }
    }

    fn count_answer(&self, answer: &Frame) {
        if let Frame::Refusal(refusal) = answer {
            self.node
                .metrics
                .records_refused
                .inc_by(refusal.sequences.len() as u64);
        }
    }

    async fn send(&mut self, frame: Frame) -> Result<(), Ended> {
        self.responses
            .send(ProduceResponse { frame: Some(frame) })
            .await?;
        self.next_heartbeat = Instant::now() + self.node.heartbeat_wait();
        Ok(())
    }
}
