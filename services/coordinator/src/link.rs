//! The way back to a gateway: one bounded queue a stream. A gateway that does not
//! read is cut; what it missed comes with the heartbeats on its next stream.

use parking_lot::Mutex;
use prost::Message;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};
use talweg_kit::metrics::IntCounter;
use talweg_proto::coordinator::v1::{ConverseResponse, converse_response::What};
use talweg_types::limits;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// One Converse stream.
pub struct Link {
    pub id: u64,
    /// For logs.
    pub gateway: u32,
    queue: mpsc::Sender<ConverseResponse>,
    /// Bytes in `queue`.
    queued: Arc<AtomicUsize>,
    /// The stream ends at once.
    pub cut: CancellationToken,
    /// It ends when what is queued has been read.
    pub ending: CancellationToken,
    cuts: IntCounter,
}

/// The stream's end of the queue.
pub struct Outgoing {
    queue: mpsc::Receiver<ConverseResponse>,
    queued: Arc<AtomicUsize>,
}

impl Link {
    /// Nothing that is sent arrives any more.
    pub fn is_over(&self) -> bool {
        self.cut.is_cancelled() || self.ending.is_cancelled()
    }

    pub fn answer(&self, request_id: u64, group: &str, what: What) {
        self.send(ConverseResponse {
            request_id,
            group: group.into(),
            what: Some(what),
        });
    }

    pub fn send(&self, response: ConverseResponse) {
        if self.is_over() {
            return;
        }
        let bytes = response.encoded_len();
        let queued = self.queued.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let fits = queued <= limits::LINK_QUEUE_BYTES_MAX;
        if !fits || self.queue.try_send(response).is_err() {
            self.cuts.inc();
            self.cut.cancel();
            tracing::warn!(
                gateway = self.gateway,
                queued,
                "a gateway does not read; its stream is cut"
            );
        }
    }
}

impl Outgoing {
    pub async fn next(&mut self) -> Option<ConverseResponse> {
        let response = self.queue.recv().await?;
        let bytes = response.encoded_len();
        self.queued.fetch_sub(bytes, Ordering::Relaxed);
        Some(response)
    }
}

/// All streams, by gateway process.
#[derive(Default)]
pub struct Links {
    next_id: AtomicU64,
    by_process: Mutex<BTreeMap<Vec<u8>, Arc<Link>>>,
}

impl Links {
    /// A new stream; it takes the place of the process's earlier one, which is cut.
    pub fn open(&self, gateway: u32, process: &[u8], cuts: IntCounter) -> (Arc<Link>, Outgoing) {
        let (sender, receiver) = mpsc::channel(limits::LINK_QUEUE_MAX);
        let queued = Arc::new(AtomicUsize::new(0));
        let link = Arc::new(Link {
            id: self.next_id.fetch_add(1, Ordering::Relaxed),
            gateway,
            queue: sender,
            queued: Arc::clone(&queued),
            cut: CancellationToken::new(),
            ending: CancellationToken::new(),
            cuts,
        });
        let mut links = self.by_process.lock();
        if let Some(earlier) = links.insert(process.to_vec(), Arc::clone(&link)) {
            earlier.cut.cancel();
        }
        let outgoing = Outgoing {
            queue: receiver,
            queued,
        };
        (link, outgoing)
    }

    pub fn close(&self, process: &[u8], link: &Link) {
        let mut links = self.by_process.lock();
        if links.get(process).is_some_and(|known| known.id == link.id) {
            links.remove(process);
        }
    }

    pub fn all(&self) -> Vec<Arc<Link>> {
        self.by_process.lock().values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use talweg_proto::coordinator::v1::Done;

    fn counter() -> IntCounter {
        IntCounter::new("cuts", "of the test").expect("a name")
    }

    /// Story: a gateway stops reading. Its queue fills, it is cut, nobody waits.
    #[tokio::test]
    async fn a_gateway_that_does_not_read_is_cut() {
        let links = Links::default();
        let (link, mut outgoing) = links.open(1, b"p", counter());
        for n in 0..limits::LINK_QUEUE_MAX {
            link.answer(n as u64, "g", What::Done(Done {}));
        }
        assert!(!link.cut.is_cancelled());
        link.answer(0, "g", What::Done(Done {}));
        assert!(link.cut.is_cancelled());
        assert!(outgoing.next().await.is_some());
    }

    #[tokio::test]
    async fn what_was_read_makes_room_in_bytes_too() {
        let links = Links::default();
        let (link, mut outgoing) = links.open(1, b"p", counter());
        let group = "g".repeat(limits::LINK_QUEUE_BYTES_MAX / 2 - 100);
        for _ in 0..5 {
            link.answer(1, &group, What::Done(Done {}));
            assert!(outgoing.next().await.is_some());
        }
        assert!(!link.cut.is_cancelled());
        for _ in 0..3 {
            link.answer(1, &group, What::Done(Done {}));
        }
        assert!(link.cut.is_cancelled(), "more than fits");
    }

    #[test]
    fn a_new_stream_takes_the_place_of_the_process_s_earlier_one() {
        let links = Links::default();
        let (first, _a) = links.open(1, b"p", counter());
        let (second, _b) = links.open(1, b"p", counter());
        assert!(first.cut.is_cancelled() && !second.cut.is_cancelled());
        links.close(b"p", &first);
        assert_eq!(
            links.all().len(),
            1,
            "the earlier end does not end the later"
        );
    }
}
