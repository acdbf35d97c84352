//! [`Mvcc`] behind a lock, with watches. A watch is a cursor into the log of
//! changes: it holds no queue that could grow, and one that falls behind the
//! history is told `Compacted`.

use super::{Commit, Mvcc};
use crate::{KeyRange, MetastoreError, PROGRESS_INTERVAL, Revision, WatchItem, WatchStream};
use futures::StreamExt;
use parking_lot::Mutex;
use std::{collections::VecDeque, sync::Arc};
use tokio::{sync::watch, time::Instant};

/// Revisions that a watch looks at under one lock.
const WATCH_CHUNK: usize = 128;

pub struct Shared {
    state: Mutex<State>,
    /// The newest revision, to wake watches; also sent when the store ends.
    newest: watch::Sender<Revision>,
}

struct State {
    mvcc: Mvcc,
    /// Set once: why the store answers nothing more.
    ended: Option<MetastoreError>,
}

impl Shared {
    pub fn new(mvcc: Mvcc) -> Arc<Self> {
        let newest = watch::Sender::new(mvcc.revision());
        Arc::new(Self {
            state: Mutex::new(State { mvcc, ended: None }),
            newest,
        })
    }

    /// Runs `f` on the state, unless the store has ended. Watches wake up if it
    /// moved the revision.
    pub fn with<R>(
        &self,
        f: impl FnOnce(&mut Mvcc) -> Result<R, MetastoreError>,
    ) -> Result<R, MetastoreError> {
        let mut state = self.state.lock();
        if let Some(ended) = &state.ended {
            return Err(ended.clone());
        }
        let result = f(&mut state.mvcc);
        let revision = state.mvcc.revision();
        drop(state);
        self.newest.send_if_modified(|newest| {
            let moved = *newest < revision;
            *newest = revision.max(*newest);
            moved
        });
        result
    }

    /// Makes a prepared and durable change visible.
    pub fn apply(&self, commit: Commit) -> Result<(), MetastoreError> {
        self.with(|mvcc| {
            mvcc.apply(commit);
            Ok(())
        })
    }

    /// From now on every call and every watch is answered `why`.
    pub fn end(&self, why: MetastoreError) {
        self.state.lock().ended.get_or_insert(why);
        self.newest.send_modify(|_| ());
    }

    /// See [`crate::Metastore::watch`].
    pub fn watch(
        self: &Arc<Self>,
        range: KeyRange,
        from: Revision,
    ) -> Result<WatchStream, MetastoreError> {
        // Revision 0 is before the first one; asking from there means all.
        let next = from.max(Revision::FIRST);
        self.with(|mvcc| mvcc.changes(&range, next, 0).map(|_| ()))?;
        let cursor = Cursor {
            wakes: self.newest.subscribe(),
            shared: self.clone(),
            range,
            next,
            pending: VecDeque::new(),
            progress_due: None,
        };
        let items = futures::stream::unfold(Some(cursor), |cursor| async {
            let mut cursor = cursor?;
            match cursor.next_item().await {
                Ok(item) => Some((Ok(item), Some(cursor))),
                Err(error) => Some((Err(error), None)),
            }
        });
        Ok(items.boxed())
    }
}

struct Cursor {
    shared: Arc<Shared>,
    wakes: watch::Receiver<Revision>,
    range: KeyRange,
    /// The first revision not looked at.
    next: Revision,
    pending: VecDeque<WatchItem>,
    /// `None` until the replay is complete, which is said at once.
    progress_due: Option<Instant>,
}

impl Cursor {
    async fn next_item(&mut self) -> Result<WatchItem, MetastoreError> {
        loop {
            if let Some(item) = self.pending.pop_front() {
                self.progress_due = self
                    .progress_due
                    .map(|_| Instant::now() + PROGRESS_INTERVAL);
                return Ok(item);
            }
            self.wakes.mark_unchanged();
            let newest = self.look()?;
            if !self.pending.is_empty() || self.next <= newest {
                continue;
            }
            let due = *self.progress_due.get_or_insert_with(Instant::now);
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(due) => {
                    self.progress_due = Some(Instant::now() + PROGRESS_INTERVAL);
                    return Ok(WatchItem::Progress { revision: newest });
                }
                // The sender lives in `shared`, which this cursor keeps alive.
                _ = self.wakes.changed() => {}
            }
        }
    }

    /// Takes the next chunk of changes; returns the newest revision.
    fn look(&mut self) -> Result<Revision, MetastoreError> {
        let (items, next, newest) = self.shared.with(|mvcc| {
            let (items, next) = mvcc.changes(&self.range, self.next, WATCH_CHUNK)?;
            Ok((items, next, mvcc.revision()))
        })?;
        self.pending.extend(items);
        self.next = next;
        Ok(newest)
    }
}
