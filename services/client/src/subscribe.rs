//! One member of a consumer group over a Subscribe stream.
//!
//! The member outlives its stream: a broken one is opened again, elsewhere, with
//! the resume token, and a drain is followed before its deadline, once everything
//! that was said on the old stream is answered. What was sent and not committed comes
//! again then; `Resumed` says so.

#[cfg(test)]
mod tests;

use crate::{
    backoff::Backoff,
    client::Client,
    pool::{Lease, Traffic},
};
use std::time::Duration;
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1::{
    self, subscribe_request, subscribe_response::Frame,
    subscribe_service_client::SubscribeServiceClient,
};
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// Frames of ours that wait for the network.
const OUTGOING: usize = 64;
/// A sign of life at least so often, and within a third of the session time-out.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// A stream that drains is left after this, whatever its gateway allows.
const DRAIN_MAX: Duration = Duration::from_secs(30);

/// What a member hears.
#[derive(Clone, PartialEq, Debug)]
pub enum SubscribeEvent {
    /// The stream was opened again: records that were not committed come again.
    Resumed(v1::SubscribeOpened),
    /// A frame as it came; never `opened` or `drain`.
    Frame(Frame),
    /// The server closed the stream on purpose after [`Subscriber::leave`].
    Closed,
}

/// A member.
pub struct Subscriber {
    client: Client,
    open: v1::SubscribeOpen,
    stream: Option<Stream>,
    opened: v1::SubscribeOpened,
    /// Without a stream for longer than this ends in an error.
    patience: Duration,
    /// The server was told that the member leaves.
    leaving: bool,
    /// It could not be told on the stream of then.
    leave_due: bool,
    next_commit: u64,
}

struct Stream {
    /// None: our side is closed, what was said is still answered.
    requests: Option<mpsc::Sender<v1::SubscribeRequest>>,
    /// It is left then at the latest.
    until: Option<Instant>,
    frames: Streaming<v1::SubscribeResponse>,
    heartbeat: tokio::time::Interval,
    server: std::sync::Arc<str>,
    _lease: Lease,
}

fn request(frame: subscribe_request::Frame) -> v1::SubscribeRequest {
    v1::SubscribeRequest { frame: Some(frame) }
}

impl Stream {
    fn beat(&self) {
        let beat = subscribe_request::Frame::Heartbeat(v1::Heartbeat::default());
        // A full queue is a stream that is busy with other frames.
        if let Some(requests) = &self.requests {
            drop(requests.try_send(request(beat)));
        }
    }
}

impl Subscriber {
    /// Joins. `open.credit` is granted at once; more is granted with [`Self::grant`].
    ///
    /// # Errors
    /// The gateway's refusal; UNAVAILABLE if none is reached within `call_timeout`.
    pub async fn open(client: &Client, open: v1::SubscribeOpen) -> Result<Self, Refusal> {
        let patience = client.config().call_timeout;
        let (stream, opened) = connect(client, &open, patience).await?;
        Ok(Self {
            client: client.clone(),
            open,
            stream: Some(stream),
            opened,
            patience,
            leaving: false,
            leave_due: false,
            next_commit: 1,
        })
    }

    /// The member's id, epoch and resume token, as last told.
    pub fn opened(&self) -> &v1::SubscribeOpened {
        &self.opened
    }

    /// Waits for the next event. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The group cannot go on for this member (FENCED, …), or no gateway was reached
    /// for `call_timeout`. Nothing follows an error.
    pub async fn next(&mut self) -> Result<SubscribeEvent, Refusal> {
        loop {
            let Some(stream) = &mut self.stream else {
                return self.resume().await;
            };
            let until = stream.until;
            let late = async move {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            let frame = tokio::select! {
                frame = stream.frames.message() => frame,
                _ = stream.heartbeat.tick() => {
                    stream.beat();
                    continue;
                }
                () = late => {
                    self.stream = None;
                    continue;
                }
            };
            match frame {
                Ok(Some(v1::SubscribeResponse { frame: Some(frame) })) => match frame {
                    Frame::Error(error) => {
                        self.stream = None;
                        return Err(Refusal::from_detail(error));
                    }
                    Frame::Drain(drain) => self.follow_drain(drain),
                    Frame::Closing(_) => self.stream = None,
                    frame => return Ok(SubscribeEvent::Frame(frame)),
                },
                // A frame of a newer version.
                Ok(Some(_)) => {}
                Ok(None) if self.leaving => return Ok(SubscribeEvent::Closed),
                Ok(None) => self.stream = None,
                Err(status) => {
                    let refusal = Refusal::from_status(&status);
                    self.stream = None;
                    if !refusal.is_retriable() && refusal.code != ErrorCode::Internal {
                        return Err(refusal);
                    }
                }
            }
            if self.leaving && self.stream.is_none() {
                return Ok(SubscribeEvent::Closed);
            }
        }
    }

    /// Goes elsewhere before the deadline. Our side is closed at once, so that the
    /// gateway stores and answers what it has of us, and ends the stream then.
    fn follow_drain(&mut self, drain: v1::Drain) {
        if !drain.resume_token.is_empty() {
            self.opened.resume_token = drain.resume_token;
        }
        if let Some(stream) = &mut self.stream {
            self.client.avoid(&stream.server);
            let left = Duration::from_millis(drain.deadline_ms.into()).min(DRAIN_MAX);
            stream.requests = None;
            stream.until.get_or_insert(Instant::now() + left);
        }
    }

    async fn resume(&mut self) -> Result<SubscribeEvent, Refusal> {
        self.open.resume_token = self.opened.resume_token.clone();
        // It named who the member was to be; the token knows who it is.
        self.open.member_id.clear();
        let (stream, opened) = connect(&self.client, &self.open, self.patience).await?;
        self.stream = Some(stream);
        self.opened = opened.clone();
        if std::mem::take(&mut self.leave_due) {
            self.leave().await;
        }
        Ok(SubscribeEvent::Resumed(opened))
    }

    /// Sends a frame; one for a stream that is broken or drains is dropped (`false`),
    /// `Resumed` follows.
    async fn send(&mut self, frame: subscribe_request::Frame) -> bool {
        let requests = self.stream.as_ref().and_then(|it| it.requests.as_ref());
        match requests {
            Some(requests) => requests.send(request(frame)).await.is_ok(),
            None => false,
        }
    }

    /// Grants more credit.
    pub async fn grant(&mut self, bytes: i64, records: i64) {
        self.send(subscribe_request::Frame::Credit(v1::Credit {
            bytes,
            records,
        }))
        .await;
    }

    /// Everything below these offsets is processed.
    pub async fn ack(&mut self, next: Vec<v1::SubscribePosition>) {
        self.send(subscribe_request::Frame::Ack(v1::SubscribeAck { next }))
            .await;
    }

    /// Stores offsets; the id comes back in `committed`.
    pub async fn commit(&mut self, next: Vec<v1::SubscribePosition>) -> u64 {
        let commit_id = self.next_commit;
        self.next_commit += 1;
        self.send(subscribe_request::Frame::Commit(v1::SubscribeCommit {
            commit_id,
            next,
        }))
        .await;
        commit_id
    }

    /// One record failed.
    pub async fn nack(&mut self, record: v1::SubscribePosition, reason: &str, poison: bool) {
        let reason = reason.to_owned();
        let nack = v1::SubscribeNack {
            record: Some(record),
            reason,
            poison,
        };
        self.send(subscribe_request::Frame::Nack(nack)).await;
    }

    /// Nothing is sent from these for a while.
    pub async fn pause(&mut self, partitions: Vec<v1::SubscribePosition>) {
        self.send(subscribe_request::Frame::Pause(v1::SubscribePause {
            partitions,
        }))
        .await;
    }

    /// They go on.
    pub async fn go_on(&mut self, partitions: Vec<v1::SubscribePosition>) {
        self.send(subscribe_request::Frame::Resume(v1::SubscribeResume {
            partitions,
        }))
        .await;
    }

    /// Moves positions.
    pub async fn seek(&mut self, next: Vec<v1::SubscribePosition>) {
        self.send(subscribe_request::Frame::Seek(v1::SubscribeSeek { next }))
            .await;
    }

    /// Gives up partitions that were asked back.
    pub async fn revoked(&mut self, partitions: Vec<v1::SubscribePosition>) {
        self.send(subscribe_request::Frame::Revoked(v1::SubscribeRevoked {
            partitions,
        }))
        .await;
    }

    /// Leaves the group; [`Self::next`] ends with `Closed`.
    pub async fn leave(&mut self) {
        let leave = subscribe_request::Frame::Leave(v1::SubscribeLeave {});
        self.leaving = self.send(leave).await;
        self.leave_due = !self.leaving;
    }
}

/// Opens a stream somewhere, within `patience`.
async fn connect(
    client: &Client,
    open: &v1::SubscribeOpen,
    patience: Duration,
) -> Result<(Stream, v1::SubscribeOpened), Refusal> {
    let deadline = Instant::now() + patience;
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
    loop {
        let server = client.server();
        let refusal = match connect_to(client, &server, open.clone()).await {
            Ok(opened) => return Ok(opened),
            Err(refusal) => refusal,
        };
        client.avoid(&server);
        let pause = backoff.pause(refusal.retry_after_ms);
        // A connection that broke says INTERNAL, for no server has said anything.
        let passes = refusal.is_retriable() || refusal.code == ErrorCode::Internal;
        if !passes || Instant::now() + pause >= deadline {
            return Err(refusal);
        }
        tokio::time::sleep(pause).await;
    }
}

async fn connect_to(
    client: &Client,
    server: &std::sync::Arc<str>,
    open: v1::SubscribeOpen,
) -> Result<(Stream, v1::SubscribeOpened), Refusal> {
    let lease = client.pool().lease(server, Traffic::Fetch)?;
    let every = match open.session_timeout_ms {
        0 => HEARTBEAT,
        ms => HEARTBEAT.min(Duration::from_millis(u64::from(ms) / 3)),
    };
    let (requests, queue) = mpsc::channel(OUTGOING);
    drop(requests.try_send(request(subscribe_request::Frame::Open(open))));
    let call = async {
        let mut service = SubscribeServiceClient::new(lease.channel().clone());
        let answer = service.subscribe(ReceiverStream::new(queue)).await;
        let mut frames = answer
            .map_err(|status| Refusal::from_status(&status))?
            .into_inner();
        let first = frames
            .message()
            .await
            .map_err(|status| Refusal::from_status(&status))?;
        match first.and_then(|response| response.frame) {
            Some(Frame::Opened(opened)) => Ok((frames, opened)),
            Some(Frame::Error(error)) => Err(Refusal::from_detail(error)),
            _ => Err(Refusal::unavailable(format!(
                "{server} did not open the stream"
            ))),
        }
    };
    let limit = client.config().attempt_timeout;
    let late = || Refusal::unavailable(format!("{server} did not open the stream in time"));
    let (frames, opened) = tokio::time::timeout(limit, call)
        .await
        .map_err(|_| late())??;
    let mut heartbeat = interval(every.max(Duration::from_millis(10)));
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let server = server.clone();
    Ok((
        Stream {
            requests: Some(requests),
            until: None,
            frames,
            heartbeat,
            server,
            _lease: lease,
        },
        opened,
    ))
}
