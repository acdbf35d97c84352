//! What loops have to say to other nodes and to the controller, kept until the
//! tasks that do the talking take it. A loop never waits here.

use parking_lot::Mutex;
use std::{collections::BTreeMap, sync::Arc};
use talweg_log::ReplicaBatch;
use talweg_replication::{OpenFetch, Proposal, Report};
use talweg_types::{NodeId, Offset, TimestampMs, TopicPartition};
use tokio::sync::{Notify, mpsc};

/// Batches on their way from a leader to the loop that appends them.
pub struct ReplicaFrame {
    pub batches: Vec<ReplicaBatch>,
    /// When the leader appended them: from each offset on, to the next one; in offset
    /// order. Empty: not known.
    pub append_times: Vec<(Offset, TimestampMs)>,
    /// Given back when the batches are written.
    pub _credit: CreditHold,
}

/// Bytes that a loop holds; dropping it gives them back to the stream.
pub struct CreditHold {
    bytes: u64,
    back: Arc<CreditBack>,
}

/// The bytes that came from one node, over all its streams: those that wait in
/// loops, and those that loops have given back and no stream has granted again.
#[derive(Default)]
pub struct CreditBack {
    counts: Mutex<Counts>,
    notify: Notify,
}

#[derive(Default)]
struct Counts {
    held: u64,
    back: u64,
}

impl CreditBack {
    pub fn hold(self: &Arc<Self>, bytes: u64) -> CreditHold {
        self.counts.lock().held += bytes;
        CreditHold {
            bytes,
            back: Arc::clone(self),
        }
    }

    pub fn take(&self) -> u64 {
        std::mem::take(&mut self.counts.lock().back)
    }

    /// For a new stream: what of `limit` is not held by frames of earlier ones.
    /// What was given back is in it, and not given back any more. Waits until
    /// that is at least `least`.
    pub async fn room(&self, limit: u64, least: u64) -> u64 {
        loop {
            let returned = self.returned();
            {
                let mut counts = self.counts.lock();
                let room = limit.saturating_sub(counts.held);
                if room >= least {
                    counts.back = 0;
                    return room;
                }
            }
            returned.await;
        }
    }

    pub async fn returned(&self) {
        self.notify.notified().await;
    }
}

impl Drop for CreditHold {
    fn drop(&mut self) {
        {
            let mut counts = self.back.counts.lock();
            counts.held = counts.held.saturating_sub(self.bytes);
            counts.back += self.bytes;
        }
        self.back.notify.notify_one();
    }
}

/// A word about one partition for its leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    /// Fetch from here, in a new session.
    Fetch {
        fetch: OpenFetch,
        flushed_end: Offset,
        log_start: Offset,
        high_watermark: Offset,
    },
    /// Written or flushed so far.
    Report(Report),
    /// This node does not fetch it here any more.
    Stop,
}

/// The words for one node, the newest for each partition.
#[derive(Default)]
pub struct Letters {
    words: Mutex<BTreeMap<TopicPartition, Word>>,
    notify: Notify,
}

impl Letters {
    fn put(&self, tp: TopicPartition, word: Word) {
        let mut words = self.words.lock();
        // A report belongs to a fetch that must be heard first.
        if let (Word::Report(report), Some(Word::Fetch { fetch, .. })) = (&word, words.get(&tp))
            && report.session <= fetch.session
        {
            return;
        }
        words.insert(tp, word);
        drop(words);
        self.notify.notify_one();
    }

    /// Takes everything.
    pub fn take(&self) -> BTreeMap<TopicPartition, Word> {
        std::mem::take(&mut *self.words.lock())
    }

    pub fn forget_stops(&self) {
        self.words.lock().retain(|_, word| *word != Word::Stop);
    }

    pub fn is_empty(&self) -> bool {
        self.words.lock().is_empty()
    }

    /// Resolves when there is something to take.
    pub async fn ready(&self) {
        loop {
            let notified = self.notify.notified();
            if !self.is_empty() {
                return;
            }
            notified.await;
        }
    }
}

/// What all loops of a node share for talking.
pub struct Outbox {
    letters: Mutex<BTreeMap<NodeId, Arc<Letters>>>,
    /// Nodes that somebody follows for the first time.
    new: mpsc::UnboundedSender<(NodeId, Arc<Letters>)>,
    proposals: Mutex<BTreeMap<TopicPartition, Proposal>>,
    proposed: Notify,
    /// A replica has failed.
    failed: Notify,
}

/// Nodes to start a puller for, one message each.
pub type NewNodes = mpsc::UnboundedReceiver<(NodeId, Arc<Letters>)>;

impl Outbox {
    pub fn new() -> (Arc<Self>, NewNodes) {
        let (new, nodes) = mpsc::unbounded_channel();
        let outbox = Self {
            letters: Mutex::default(),
            new,
            proposals: Mutex::default(),
            proposed: Notify::new(),
            failed: Notify::new(),
        };
        (Arc::new(outbox), nodes)
    }

    pub fn say(&self, to: NodeId, tp: TopicPartition, word: Word) {
        let letters = Arc::clone(self.letters.lock().entry(to).or_insert_with(|| {
            let letters = Arc::<Letters>::default();
            // Fails only when the process ends.
            let _ = self.new.send((to, Arc::clone(&letters)));
            letters
        }));
        letters.put(tp, word);
    }

    pub fn propose(&self, tp: TopicPartition, proposal: Proposal) {
        self.proposals.lock().insert(tp, proposal);
        self.proposed.notify_one();
    }

    /// A replica has failed: the controller is to know soon.
    pub fn say_failed(&self) {
        self.failed.notify_one();
    }

    /// Resolves when a replica has failed since the last call.
    pub async fn failed(&self) {
        self.failed.notified().await;
    }

    pub fn take_proposals(&self) -> BTreeMap<TopicPartition, Proposal> {
        std::mem::take(&mut *self.proposals.lock())
    }

    pub async fn proposed(&self) {
        loop {
            let notified = self.proposed.notified();
            if !self.proposals.lock().is_empty() {
                return;
            }
            notified.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use talweg_replication::{ReplicaEnds, SessionTag};
    use talweg_types::{Incarnation, LeaderEpoch, PartitionIndex, TopicId};

    fn tp() -> TopicPartition {
        TopicPartition {
            topic_id: TopicId(uuid::Uuid::from_u128(1)),
            partition: PartitionIndex(0),
        }
    }

    fn report(session: u64, end: i64) -> Word {
        Word::Report(Report {
            node: NodeId(2),
            epoch: LeaderEpoch(1),
            incarnation: Incarnation(1),
            session: SessionTag(session),
            ends: ReplicaEnds {
                log_end: Offset(end),
                flushed_end: Offset(0),
            },
        })
    }

    fn fetch(session: u64) -> Word {
        Word::Fetch {
            fetch: OpenFetch {
                session: SessionTag(session),
                leader: NodeId(1),
                epoch: LeaderEpoch(1),
                incarnation: Incarnation(1),
                next: Offset(0),
                last_epoch: LeaderEpoch::NONE,
                not_before: Default::default(),
            },
            flushed_end: Offset(0),
            log_start: Offset(0),
            high_watermark: Offset(0),
        }
    }

    #[test]
    fn the_newest_word_stands_and_a_report_never_hides_its_fetch() {
        let letters = Letters::default();
        letters.put(tp(), report(1, 5));
        letters.put(tp(), report(1, 6));
        assert_eq!(letters.take()[&tp()], report(1, 6));
        letters.put(tp(), fetch(2));
        letters.put(tp(), report(2, 7));
        assert_eq!(letters.take()[&tp()], fetch(2));
        letters.put(tp(), fetch(3));
        letters.put(tp(), Word::Stop);
        assert_eq!(letters.take()[&tp()], Word::Stop);
    }

    #[tokio::test]
    async fn credit_comes_back_when_the_last_holder_drops_it() {
        let back = Arc::<CreditBack>::default();
        let (one, two) = (back.hold(5), back.hold(7));
        assert_eq!(back.take(), 0);
        drop(one);
        back.returned().await;
        drop(two);
        assert_eq!((back.take(), back.take()), (12, 0));
    }

    /// A stream that broke while loops were slow: the next one is granted what is
    /// left, and not less than it can use.
    #[tokio::test]
    async fn frames_of_an_earlier_stream_count_for_the_next() {
        let back = Arc::<CreditBack>::default();
        let (one, two) = (back.hold(60), back.hold(30));
        assert_eq!(back.room(100, 10).await, 10);
        let waiting = back.room(100, 20);
        tokio::pin!(waiting);
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(two);
        assert_eq!(waiting.await, 40);
        assert_eq!(back.take(), 0, "it was granted with the stream");
        drop(one);
        assert_eq!(back.take(), 60);
    }
}
