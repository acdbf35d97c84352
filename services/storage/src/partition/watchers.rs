//! Waking fetch streams: each partition knows who reads it.
//!
//! A reader at the end of a partition arms its watcher and then looks once
//! more; whoever moves the watermark afterwards wakes it. Changes that every
//! reader must see (role, log start, deletion) wake armed or not. A watcher is
//! in its stream's list at most once, so the list is bounded by the stream's
//! partitions.

use parking_lot::Mutex;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use tokio::sync::Notify;

/// One stream's list of partitions to look at.
#[derive(Default)]
pub struct StreamWaker {
    ready: Mutex<Vec<Arc<Watcher>>>,
    notify: Notify,
}

/// One stream's interest in one partition.
pub struct Watcher {
    stream: Arc<StreamWaker>,
    key: u32,
    armed: AtomicBool,
    listed: AtomicBool,
}

/// Who reads a partition.
#[derive(Default)]
pub struct Watchers {
    list: Mutex<Vec<Arc<Watcher>>>,
}

impl StreamWaker {
    /// Keys of partitions to look at, in the order in which they woke.
    pub fn take(&self, into: &mut Vec<u32>) {
        let ready = std::mem::take(&mut *self.ready.lock());
        for watcher in ready {
            watcher.listed.store(false, Ordering::SeqCst);
            into.push(watcher.key);
        }
    }

    /// Resolves when there is something to take. Dropping the future loses nothing.
    pub async fn ready(&self) {
        loop {
            let notified = self.notify.notified();
            if !self.ready.lock().is_empty() {
                return;
            }
            notified.await;
        }
    }
}

impl Watcher {
    /// Wake me at the next move of the watermark. Look again after this.
    pub fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    fn list(self: &Arc<Self>) {
        if !self.listed.swap(true, Ordering::SeqCst) {
            self.stream.ready.lock().push(Arc::clone(self));
            self.stream.notify.notify_one();
        }
    }
}

impl Watchers {
    /// `key` is the stream's own name for the partition.
    pub fn register(&self, stream: &Arc<StreamWaker>, key: u32) -> Arc<Watcher> {
        let watcher = Arc::new(Watcher {
            stream: Arc::clone(stream),
            key,
            armed: AtomicBool::new(false),
            listed: AtomicBool::new(false),
        });
        self.list.lock().push(Arc::clone(&watcher));
        watcher
    }

    pub fn remove(&self, watcher: &Arc<Watcher>) {
        self.list
            .lock()
            .retain(|known| !Arc::ptr_eq(known, watcher));
    }

    /// The watermark has moved.
    pub fn wake_armed(&self) {
        for watcher in self.list.lock().iter() {
            if watcher.armed.load(Ordering::SeqCst) && watcher.armed.swap(false, Ordering::SeqCst) {
                watcher.list();
            }
        }
    }

    /// Something has changed that no reader may miss.
    pub fn wake_all(&self) {
        self.list.lock().iter().for_each(Watcher::list);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(stream: &StreamWaker) -> Vec<u32> {
        let mut keys = Vec::new();
        stream.take(&mut keys);
        keys
    }

    /// Story: data wakes who waits for it, a change of role wakes everybody, and
    /// nobody is listed twice.
    #[tokio::test]
    async fn armed_watchers_wake_on_data_and_all_on_changes() {
        let (stream, partition) = (Arc::new(StreamWaker::default()), Watchers::default());
        let (one, two) = (
            partition.register(&stream, 1),
            partition.register(&stream, 2),
        );
        partition.wake_armed();
        assert_eq!(taken(&stream), [0u32; 0]);
        one.arm();
        partition.wake_armed();
        partition.wake_armed();
        assert_eq!(taken(&stream), [1]);
        partition.wake_armed();
        assert_eq!(taken(&stream), [0u32; 0], "woken once for each arming");
        one.arm();
        partition.wake_armed();
        partition.wake_all();
        partition.wake_all();
        stream.ready().await;
        assert_eq!(taken(&stream), [1, 2]);
        partition.remove(&two);
        partition.wake_all();
        assert_eq!(taken(&stream), [1]);
        assert_eq!(partition.list.lock().len(), 1);
    }
}
