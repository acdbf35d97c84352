//! Everybody who watches the cluster. Each has a bounded queue; one whose queue
//! is full is dropped here and begins again with a fresh snapshot, so that a
//! slow watcher costs nobody anything.

use talweg_proto::controller::v1::WatchClusterResponse;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Changes that wait for one watcher.
const QUEUE: usize = 64;

#[derive(Default)]
pub struct Hub {
    watchers: Vec<Sender<WatchClusterResponse>>,
}

impl Hub {
    /// From the next change on.
    pub fn subscribe(&mut self) -> Receiver<WatchClusterResponse> {
        let (sender, receiver) = channel(QUEUE);
        self.watchers.push(sender);
        receiver
    }

    /// To everybody who keeps up.
    pub fn tell(&mut self, change: &WatchClusterResponse) {
        self.watchers
            .retain(|watcher| watcher.try_send(change.clone()).is_ok());
    }

    /// Everybody begins again with a snapshot.
    pub fn restart(&mut self) {
        self.watchers.clear();
    }

    /// Watchers that are there.
    pub fn len(&mut self) -> usize {
        self.watchers.retain(|watcher| !watcher.is_closed());
        self.watchers.len()
    }
}
