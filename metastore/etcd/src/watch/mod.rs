//! Watches that outlive their connection.
//!
//! A task follows the changes over one connection after another and hands
//! complete revisions to the watcher through a bounded queue; a slow watcher
//! holds up its own connection and nothing else. Each connection goes to the next
//! member and starts at the revision after the last complete one.
//!
//! **The whole namespace is watched** and the watcher's range picked out here.
//! etcd before 3.4.25 (and 3.5.8) answers a request for progress with its newest
//! revision even while earlier events are still on their way: who resumes from
//! there loses them. Events of one watch do come in order, so a change anywhere
//! in the namespace proves that everything before it has come. Answers to requests
//! for progress only show that the connection lives.

mod assemble;
mod session;

use crate::{EtcdMetastore, backoff::Backoff};
use assemble::Assembler;
use futures::StreamExt;
use session::{Broken, Session};
use std::time::Duration;
use talweg_metastore::{KeyRange, MetastoreError, Revision, WatchItem, WatchStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;

/// Items that wait for the watcher; an item is at most one transaction.
const QUEUE: usize = 64;
/// Between two connections.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

type Item = Result<WatchItem, MetastoreError>;

/// Starts a watch. It ends when the stream is dropped or after its first error.
pub(crate) fn start(store: EtcdMetastore, range: KeyRange, from: Revision) -> WatchStream {
    let (items, queue) = mpsc::channel(QUEUE);
    let follower = Follower {
        store,
        items,
        changes: Assembler::new(range, from),
        cluster: None,
    };
    let task = AbortOnDropHandle::new(tokio::spawn(follower.follow()));
    ReceiverStream::new(queue)
        .map(move |item| {
            // The task lives as long as the stream.
            let _ = &task;
            item
        })
        .boxed()
}

struct Follower {
    store: EtcdMetastore,
    items: mpsc::Sender<Item>,
    changes: Assembler,
    /// The etcd cluster that the revisions belong to.
    cluster: Option<u64>,
}

impl Follower {
    async fn follow(mut self) {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        // Watches of many processes spread over the members.
        let mut turn = rand::random::<u32>() as usize;
        loop {
            let before = self.changes.next();
            let broken = Session::new(&mut self).run(turn).await;
            self.changes.disconnected();
            match broken {
                Broken::Ended => return,
                Broken::Over(error) => {
                    // Nobody listens any more if this fails.
                    let _ = self.items.send(Err(error)).await;
                    return;
                }
                Broken::Lost(reason) => {
                    let next = self.changes.next();
                    tracing::warn!(%reason, from = %next, "a watch connects again");
                    if next > before {
                        backoff.reset();
                    }
                }
            }
            turn = turn.wrapping_add(1);
            tokio::time::sleep(backoff.pause()).await;
        }
    }
}
