//! One connection of a watch, from its beginning to its end.

use super::{Follower, Item, assemble::Change};
use crate::namespace::{Namespace, revision, to_etcd};
use etcd_client::{
    EventType, WatchOptions, WatchRequestSender, WatchResponse, WatchResponseStream,
    proto::{PbEvent, PbWatchResponse},
};
use std::time::Duration;
use talweg_metastore::{Event, KeyRange, MetastoreError, PROGRESS_INTERVAL, Revision};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

/// etcd splits what exceeds its largest request (1.5 MiB unless configured
/// otherwise) into fragments; a single event is never split.
const MAX_RESPONSE_BYTES: usize = 16 << 20;

/// Why a connection is over.
#[derive(Debug)]
pub(super) enum Broken {
    /// The watcher is gone.
    Ended,
    /// The watch cannot go on; the watcher is told.
    Over(MetastoreError),
    /// Another connection may do.
    Lost(String),
}

pub(super) struct Session<'a> {
    follower: &'a mut Follower,
    /// The history before the start was found to be kept; asked once.
    history_checked: bool,
    watch_id: i64,
}

impl<'a> Session<'a> {
    pub fn new(follower: &'a mut Follower) -> Self {
        Self {
            follower,
            history_checked: false,
            watch_id: 0,
        }
    }

    /// Follows the changes until the connection is over, and says why it is.
    pub async fn run(mut self, turn: usize) -> Broken {
        match self.try_run(turn).await {
            Ok(never) => match never {},
            Err(broken) => broken,
        }
    }

    async fn try_run(&mut self, turn: usize) -> Result<std::convert::Infallible, Broken> {
        let silence = self.follower.store.link.config().watch_silence;
        let (mut asking, mut responses) = self.open(turn).await?;
        let ask_every = (PROGRESS_INTERVAL / 2).min(silence / 3);
        let mut ask = interval_at(Instant::now() + ask_every, ask_every);
        ask.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = Instant::now();
        let gone = self.follower.items.clone();
        loop {
            tokio::select! {
                biased;
                () = gone.closed() => return Err(Broken::Ended),
                response = responses.message() => {
                    self.take(received(response)?).await?;
                    // Handing over may have taken long; that was not etcd's silence.
                    heard = Instant::now();
                }
                () = tokio::time::sleep_until(heard + silence) => {
                    return Err(Broken::Lost(format!("nothing was heard for {silence:?}")));
                }
                _ = ask.tick() => request_progress(&mut asking, ask_every).await?,
            }
        }
    }

    async fn open(&self, turn: usize) -> Result<(WatchRequestSender, WatchResponseStream), Broken> {
        let (key, end) = self.follower.store.namespace.range(&KeyRange::all());
        let options = WatchOptions::new()
            .with_range(end)
            .with_start_revision(to_etcd(self.follower.changes.next()))
            .with_progress_notify()
            .with_fragment();
        let opening = async {
            let client = self.follower.store.link.watch_client(turn).await;
            let client = client.map_err(|fault| fault.of_read().to_string())?;
            let watching = client
                .watch_client()
                .max_decoding_message_size(MAX_RESPONSE_BYTES)
                .watch(key, Some(options))
                .await;
            watching.map_err(|error| error.to_string())
        };
        let limit = self.follower.store.link.config().request_timeout;
        match timeout(limit, opening).await {
            Ok(Ok(stream)) => Ok(stream.split()),
            Ok(Err(reason)) => Err(Broken::Lost(reason)),
            Err(_) => Err(Broken::Lost(format!("no watch within {limit:?}"))),
        }
    }

    async fn take(&mut self, response: PbWatchResponse) -> Result<(), Broken> {
        let header = response.header.unwrap_or_default();
        let named = revision(header.revision);
        self.check_cluster(header.cluster_id)?;
        if response.compact_revision > 0 {
            let oldest = revision(response.compact_revision);
            return Err(Broken::Over(MetastoreError::Compacted { oldest }));
        }
        if response.canceled {
            let reason = response.cancel_reason;
            return Err(Broken::Lost(format!("etcd cancelled it: {reason}")));
        }
        self.follower.changes.saw(named);
        if response.created {
            self.watch_id = response.watch_id;
            return Ok(());
        }
        self.check_history().await?;
        if response.events.is_empty() && !response.fragment {
            // With this watch's id it came in order with the events; an answer to
            // a request has none and may have overtaken them.
            if response.watch_id == self.watch_id {
                self.follower.changes.proven(named);
            }
            let progress = self.follower.changes.progress();
            return self.hand_over(Ok(progress)).await;
        }
        self.take_events(response.events, response.fragment).await
    }

    /// A revision means nothing in another cluster, nor in one restored from a
    /// backup, which has a new identity.
    fn check_cluster(&mut self, cluster: u64) -> Result<(), Broken> {
        if cluster == 0 {
            return Ok(());
        }
        let known = *self.follower.cluster.get_or_insert(cluster);
        if known == cluster {
            return Ok(());
        }
        let reason = format!("etcd cluster {known:x} has become {cluster:x}");
        Err(Broken::Over(MetastoreError::Failed { reason }))
    }

    async fn take_events(&mut self, events: Vec<PbEvent>, fragment: bool) -> Result<(), Broken> {
        let names = &self.follower.store.namespace;
        let changes = events.into_iter().map(|event| change(names, event));
        let changes: Option<Vec<_>> = changes.collect();
        let changes = changes.ok_or_else(|| Broken::Lost("an event is not known".into()))?;
        let items = self
            .follower
            .changes
            .accept(changes, fragment)
            .map_err(|wrong| {
                let (revision, after) = (wrong.revision, wrong.after);
                Broken::Lost(format!("revision {revision} came after {after}"))
            })?;
        for item in items {
            self.hand_over(Ok(item)).await?;
        }
        Ok(())
    }

    /// A watch that starts exactly at the compacted revision may miss deletions of
    /// that revision: some versions of etcd forget them and do not say so. As
    /// long as the revision before the start can be read, there was no such
    /// compaction. Asked when the first thing is heard, by which time etcd has
    /// read the history for this watch.
    async fn check_history(&mut self) -> Result<(), Broken> {
        let before = Revision(self.follower.changes.next().0 - 1);
        if self.history_checked || before == Revision::NONE {
            return Ok(());
        }
        match self.follower.store.check_kept(before).await {
            Ok(()) => self.history_checked = true,
            Err(error @ MetastoreError::Compacted { .. }) => return Err(Broken::Over(error)),
            Err(error) => return Err(Broken::Lost(error.to_string())),
        }
        Ok(())
    }

    async fn hand_over(&self, item: Item) -> Result<(), Broken> {
        self.follower
            .items
            .send(item)
            .await
            .map_err(|_| Broken::Ended)
    }
}

fn received(
    response: Result<Option<WatchResponse>, etcd_client::Error>,
) -> Result<PbWatchResponse, Broken> {
    match response {
        Ok(Some(response)) => Ok(response.0),
        Ok(None) => Err(Broken::Lost("etcd ended it".into())),
        Err(error) => Err(Broken::Lost(error.to_string())),
    }
}

/// Bounded, for the queue of requests of a stalled connection may be full.
async fn request_progress(asking: &mut WatchRequestSender, within: Duration) -> Result<(), Broken> {
    match timeout(within, asking.request_progress()).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(Broken::Lost(error.to_string())),
        Err(_) => Err(Broken::Lost("it takes no requests".into())),
    }
}

/// `None` for an event that this program does not understand.
fn change(names: &Namespace, event: PbEvent) -> Option<Change> {
    let kind = event.r#type;
    let entry = names.entry(etcd_client::KeyValue(event.kv?))?;
    let revision = entry.mod_revision;
    let event = match EventType::try_from(kind).ok()? {
        EventType::Put => Event::Put(entry),
        EventType::Delete => Event::Delete {
            key: entry.key,
            revision,
        },
    };
    Some(Change { revision, event })
}
