//! Drives a [`FetchCore`] over real streams. The caller's task does all the
//! work, inside [`FetchUpstream::next`].

use super::core::{Effect, FetchCore, FetchCoreConfig};
use super::event::{FetchEvent, Interest, StartAt};
use crate::{
    clock::Clock,
    delivery::{LinkId, Routes, Target},
    pool::{ChannelPool, Lease, Traffic},
};
use futures::stream::{AbortHandle, BoxStream, SelectAll, StreamExt, abortable};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};
use talweg_kit::{
    data_stream::{self, FrameSender, TrySendError},
    errors::Refusal,
};
use talweg_proto::v1::{self, fetch_response};
use talweg_types::TopicPartition;
use tokio::sync::watch;
use tonic::Status;

/// How often waiting partitions are looked at, and without any.
const TICK_MS: u64 = 20;
const IDLE_TICK_MS: u64 = 1_000;

struct StreamEvent {
    link: LinkId,
    /// `Err(None)`: ended with OK.
    what: Result<Option<fetch_response::Frame>, Option<Status>>,
}

struct Stream {
    sender: FrameSender<v1::FetchRequest>,
    /// Frames that the stream's queue had no room for.
    backlog: VecDeque<v1::FetchRequest>,
    reader: AbortHandle,
    _lease: Lease,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Stream {
    fn flush(&mut self) {
        while let Some(request) = self.backlog.pop_front() {
            match self.sender.try_send(request) {
                Ok(()) => {}
                Err(TrySendError::Full(request)) => return self.backlog.push_front(request),
                // Whoever reads it sees that it ended.
                Err(TrySendError::Closed) => return self.backlog.clear(),
            }
        }
    }
}

/// Partitions read from their leaders (or by way of a gateway).
pub struct FetchUpstream {
    core: FetchCore,
    streams: BTreeMap<LinkId, Stream>,
    received: SelectAll<BoxStream<'static, StreamEvent>>,
    routes: Arc<dyn Routes>,
    changes: watch::Receiver<u64>,
    pool: ChannelPool,
    clock: Clock,
    ticked_ms: u64,
}

impl FetchUpstream {
    /// Without partitions; streams open as partitions need them.
    pub fn new(routes: Arc<dyn Routes>, pool: ChannelPool, config: FetchCoreConfig) -> Self {
        Self {
            core: FetchCore::new(config),
            streams: BTreeMap::new(),
            received: SelectAll::new(),
            changes: routes.changes(),
            routes,
            pool,
            clock: Clock::default(),
            ticked_ms: 0,
        }
    }

    /// Begins to read a partition; one that is read already begins anew.
    pub fn add(&mut self, interest: Interest) {
        self.core.add(interest);
    }

    /// Moves a partition; unknown ones are ignored.
    pub fn seek(&mut self, partition: TopicPartition, start: StartAt, last_epoch: Option<i32>) {
        self.core.seek(partition, start, last_epoch);
    }

    /// Stops reading a partition; unknown ones are ignored.
    pub fn remove(&mut self, partition: TopicPartition) {
        self.core.remove(partition);
    }

    /// True if the partition is being read.
    pub fn contains(&self, partition: TopicPartition) -> bool {
        self.core.contains(partition)
    }

    /// How many bytes may be on their way here; see [`FetchCore::set_target`].
    pub fn set_target(&mut self, bytes: i64) {
        self.core.set_target(bytes);
    }

    /// The largest batch that may come.
    pub fn largest_batch(&self) -> i64 {
        self.core.largest_batch()
    }

    /// Works until there are events. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Vec<FetchEvent> {
        loop {
            self.pump();
            let events = self.core.take_events();
            if !events.is_empty() {
                return events;
            }
            let restless =
                self.core.is_restless() || self.streams.values().any(|it| !it.backlog.is_empty());
            let due = self.ticked_ms + if restless { TICK_MS } else { IDLE_TICK_MS };
            let now = self.clock.now_ms();
            if now >= due {
                self.ticked_ms = now;
                self.core.tick(now);
                continue;
            }
            let busy = restless || !self.core.has_no_streams();
            tokio::select! {
                biased;
                Some(event) = self.received.next() => self.on_event(event),
                Ok(()) = self.changes.changed() => self.core.on_routes_changed(),
                () = tokio::time::sleep_until(self.clock.at(due)), if busy => {}
                else => std::future::pending().await,
            }
        }
    }

    /// Sends what is to be sent; [`Self::next`] does so too.
    pub fn pump(&mut self) {
        let now = self.clock.now_ms();
        for target in self.core.take_drained() {
            self.routes.avoid(&target);
        }
        self.core.pump(now, &*self.routes);
        for effect in self.core.take_effects() {
            match effect {
                Effect::Open(link, target) => self.open(link, &target, now),
                Effect::Send(link, frame) => {
                    if let Some(stream) = self.streams.get_mut(&link) {
                        stream
                            .backlog
                            .push_back(v1::FetchRequest { frame: Some(frame) });
                    }
                }
                Effect::Close(link) => drop(self.streams.remove(&link)),
            }
        }
        self.streams.values_mut().for_each(Stream::flush);
    }

    fn open(&mut self, link: LinkId, target: &Target, now: u64) {
        let lease = match self.pool.lease(&target.address, Traffic::Fetch) {
            Ok(lease) => lease,
            Err(refusal) => return self.core.on_ended(link, Some(refusal), now),
        };
        let (sender, receiver) =
            data_stream::open_fetch(lease.channel(), tonic::metadata::MetadataMap::new());
        let frames = receiver
            .map(move |it| StreamEvent {
                link,
                what: it.map(|it| it.frame).map_err(Some),
            })
            .chain(futures::stream::once(async move {
                StreamEvent {
                    link,
                    what: Err(None),
                }
            }));
        let (frames, reader) = abortable(frames);
        self.received.push(frames.boxed());
        let backlog = VecDeque::new();
        self.streams.insert(
            link,
            Stream {
                sender,
                backlog,
                reader,
                _lease: lease,
            },
        );
    }

    fn on_event(&mut self, event: StreamEvent) {
        let now = self.clock.now_ms();
        match event.what {
            Ok(Some(frame)) => self.core.on_frame(event.link, frame, now),
            // A frame of a newer server.
            Ok(None) => {}
            Err(status) => {
                if self.streams.remove(&event.link).is_none() {
                    return;
                }
                let refusal = status.map(|status| Refusal::from_status(&status));
                tracing::debug!(?refusal, link = event.link.0, "fetch stream ended");
                self.core.on_ended(event.link, refusal, now);
            }
        }
    }
}

/// Also after an error or a late `pump`.
impl std::fmt::Debug for FetchUpstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FetchUpstream")
            .field("streams", &self.streams.len())
            .finish_non_exhaustive()
    }
}
