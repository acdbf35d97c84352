//! The one thread that owns the database: it decides each request against the
//! state, makes the change durable, then makes it visible. It ends leases too.
//!
//! Callers wait in a bounded queue. When the thread ends, for whatever reason,
//! the waiting ones and all later ones are answered.

use crate::disk::Disk;
use std::{
    fmt, io,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use talweg_metastore::{
    Lease, LeaseId, MetastoreError, Txn, TxnOutcome,
    mvcc::{Commit, Decision, Shared},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Calls under way; more wait for a place.
const QUEUE: usize = 1024;
/// How long the thread sleeps without a lease to watch.
const IDLE: Duration = Duration::from_secs(3600);

type Answer<T> = oneshot::Sender<Result<T, MetastoreError>>;

pub(crate) enum Request {
    Txn {
        txn: Txn,
        answer: Answer<TxnOutcome>,
    },
    Grant {
        ttl: Duration,
        answer: Answer<Lease>,
    },
    KeepAlive {
        lease: LeaseId,
        answer: Answer<()>,
    },
    Revoke {
        lease: LeaseId,
        answer: Answer<()>,
    },
    Stop,
}

/// A request keeps its place until it is served, also when its caller left.
struct Queued {
    request: Request,
    made: Instant,
    _place: Option<OwnedSemaphorePermit>,
}

pub(crate) struct Writer {
    requests: SyncSender<Queued>,
    /// One permit per place in the queue, so that sending never blocks.
    places: Arc<Semaphore>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(crate) fn start(disk: Disk, shared: Arc<Shared>) -> io::Result<Self> {
        // One place more than permits: for `Stop`.
        let (requests, inbox) = sync_channel(QUEUE + 1);
        let owner = Owner {
            disk,
            shared,
            started: Instant::now(),
        };
        let thread = std::thread::Builder::new()
            .name("metastore".into())
            .spawn(move || owner.run(&inbox))?;
        Ok(Self {
            requests,
            places: Arc::new(Semaphore::new(QUEUE)),
            thread: Some(thread),
        })
    }

    pub(crate) async fn call<T>(
        &self,
        request: impl FnOnce(Answer<T>) -> Request,
    ) -> Result<T, MetastoreError> {
        let place = self.places.clone().acquire_owned().await.map_err(closed)?;
        let (answer, answered) = oneshot::channel();
        let queued = Queued {
            request: request(answer),
            made: Instant::now(),
            _place: Some(place),
        };
        self.requests.try_send(queued).map_err(closed)?;
        answered.await.unwrap_or_else(|_| {
            Err(MetastoreError::Unknown {
                reason: "the store was closed meanwhile".into(),
            })
        })
    }

    /// Ends the thread and waits for it; the database is closed then.
    pub(crate) fn stop(&mut self) {
        let _ = self.requests.send(Queued {
            request: Request::Stop,
            made: Instant::now(),
            _place: None,
        });
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the metastore's thread has panicked");
        }
    }
}

fn closed(why: impl fmt::Display) -> MetastoreError {
    MetastoreError::Unavailable {
        reason: format!("the store is closed: {why}"),
    }
}

struct Owner {
    disk: Disk,
    shared: Arc<Shared>,
    started: Instant,
}

impl Owner {
    fn run(self, inbox: &Receiver<Queued>) {
        loop {
            let queued = inbox.recv_timeout(self.until_deadline());
            // A request is served as of when it was made: a lease does not run
            // out because its keep-alive waited behind a slow disk.
            let made = queued
                .as_ref()
                .map_or_else(|_| Instant::now(), |queued| queued.made);
            let now = made.saturating_duration_since(self.started);
            self.end_due_leases(now);
            match queued {
                Ok(Queued {
                    request: Request::Stop,
                    ..
                })
                | Err(RecvTimeoutError::Disconnected) => {
                    return;
                }
                Ok(queued) => self.serve(queued.request, now),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Callers that went away do not mind that their answer is dropped.
    fn serve(&self, request: Request, now: Duration) {
        match request {
            Request::Txn { txn, answer } => drop(answer.send(self.txn(&txn))),
            Request::Grant { ttl, answer } => {
                drop(answer.send(self.shared.with(|mvcc| Ok(mvcc.grant(now, ttl)))));
            }
            Request::KeepAlive { lease, answer } => {
                drop(answer.send(self.shared.with(|mvcc| mvcc.keep_alive(now, lease))));
            }
            Request::Revoke { lease, answer } => drop(answer.send(self.end_lease(lease))),
            Request::Stop => {}
        }
    }

    fn txn(&self, txn: &Txn) -> Result<TxnOutcome, MetastoreError> {
        match self.shared.with(|mvcc| mvcc.prepare(txn))? {
            Decision::Answer(outcome) => Ok(outcome),
            Decision::Commit(commit) => {
                let revision = commit.revision;
                self.commit(commit)?;
                Ok(TxnOutcome::Committed { revision })
            }
        }
    }

    /// First durable, then visible.
    fn commit(&self, commit: Commit) -> Result<(), MetastoreError> {
        if let Err(reason) = self.disk.commit(&commit) {
            tracing::error!(%reason, "the metadata store failed; it must be reopened");
            let failed = MetastoreError::Failed { reason };
            self.shared.end(failed.clone());
            return Err(failed);
        }
        // Only a store that is being closed refuses; the change is on disk.
        self.shared
            .apply(commit)
            .map_err(|e| MetastoreError::Unknown {
                reason: e.to_string(),
            })
    }

    fn end_lease(&self, lease: LeaseId) -> Result<(), MetastoreError> {
        if let Some(commit) = self.shared.with(|mvcc| mvcc.prepare_lease_end(lease))? {
            self.commit(commit)?;
        }
        self.shared.with(|mvcc| {
            mvcc.remove_lease(lease);
            Ok(())
        })
    }

    fn until_deadline(&self) -> Duration {
        match self.shared.with(|mvcc| Ok(mvcc.next_deadline())) {
            Ok(Some((deadline, _))) => deadline.saturating_sub(self.started.elapsed()),
            Ok(None) | Err(_) => IDLE,
        }
    }

    fn end_due_leases(&self, now: Duration) {
        let due = || self.shared.with(|mvcc| Ok(mvcc.next_deadline()));
        while let Ok(Some((deadline, lease))) = due()
            && deadline <= now
        {
            if self.end_lease(lease).is_err() {
                return;
            }
        }
    }
}
