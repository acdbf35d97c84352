//! The gateway's side of the coordinator plane: which coordinator holds a
//! group, one Converse stream to each, and what it says unasked.
//!
//! Every request is repeated until its deadline while the answer is that the
//! shard is elsewhere, loading or out of reach; all of them are made so that a
//! repeat changes nothing (joins carry a fresh member id, commits are whole
//! offsets). A coordinator that moves costs its members nothing but this wait.

mod ask;
mod link;
mod mailbox;

#[cfg(test)]
mod tests;

pub use ask::ask;
pub use mailbox::{Post, Registered};

use crate::node::Node;
use bytes::Bytes;
use link::Link;
use mailbox::Mailboxes;
use parking_lot::Mutex;
use rand::RngCore;
use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use talweg_client::{
    backoff::Backoff,
    delivery::Routes,
    pool::ChannelPool,
    view::{Coordinator, SharedView},
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::coordinator::v1::{
    ConverseOpen, PartitionRef, converse_request::Event, converse_response::What,
};
use talweg_types::{MemberId, PartitionIndex, TopicId, TopicPartition};
use tokio::time::{Instant, timeout_at};

/// Pauses between two tries of one request.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// One try; a coordinator that has not answered by then is asked again.
const ATTEMPT: Duration = Duration::from_secs(10);

/// The coordinators, for the members on this gateway. Cheap to clone.
#[derive(Clone)]
pub struct Coordinators {
    inner: Arc<Inner>,
}

struct Inner {
    view: SharedView,
    pool: ChannelPool,
    process_id: Bytes,
    node_id: AtomicU32,
    /// By address.
    links: Mutex<BTreeMap<Arc<str>, Link>>,
    mailboxes: Arc<Mailboxes>,
}

impl Coordinators {
    /// Without a stream; they open with the first request.
    pub fn new(view: SharedView, pool: ChannelPool) -> Self {
        let mut process_id = [0; 16];
        rand::rng().fill_bytes(&mut process_id);
        let inner = Inner {
            view,
            pool,
            process_id: Bytes::copy_from_slice(&process_id),
            node_id: AtomicU32::new(0),
            links: Mutex::default(),
            mailboxes: Arc::default(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// The id that streams opened from now on carry.
    pub fn set_node_id(&self, id: u32) {
        self.inner.node_id.store(id, Ordering::Relaxed);
    }

    /// What the coordinator says to this member from now on comes here. An earlier
    /// stream of the same member on this gateway is told that it was replaced.
    pub fn register(&self, group: &str, member: MemberId) -> Registered {
        Mailboxes::register(&self.inner.mailboxes, group, member)
    }

    /// Asks the group's coordinator, whoever it is, until `patience` is over.
    ///
    /// # Errors
    /// The coordinator's refusal; the last one where it was worth a repeat.
    pub async fn request(
        &self,
        group: &str,
        event: Event,
        patience: Duration,
    ) -> Result<What, Refusal> {
        self.retried(group, patience, |at| {
            let answer = self.link(&at).call(group.to_owned(), event.clone());
            async move {
                match answer.await? {
                    What::Error(detail) => Err(Refusal::from_detail(detail)),
                    what => Ok(what),
                }
            }
        })
        .await
    }

    /// Runs `attempt` against the group's coordinator until it succeeds, is refused
    /// for good, or `patience` is over.
    pub async fn retried<T, F>(
        &self,
        group: &str,
        patience: Duration,
        attempt: impl Fn(Coordinator) -> F,
    ) -> Result<T, Refusal>
    where
        F: Future<Output = Result<T, Refusal>>,
    {
        let deadline = Instant::now() + patience;
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        let mut changes = self.inner.view.changes();
        loop {
            let refusal = match self.inner.view.get().coordinator(group) {
                Err(nobody) => nobody,
                Ok(at) => {
                    let until = deadline.min(Instant::now() + ATTEMPT);
                    match timeout_at(until, attempt(at)).await {
                        Ok(Ok(done)) => return Ok(done),
                        Ok(Err(refusal)) => refusal,
                        Err(_) => Refusal::new(
                            ErrorCode::TimedOut,
                            "the group's coordinator did not answer in time",
                        ),
                    }
                }
            };
            let pause = backoff.pause(refusal.retry_after_ms);
            if !is_passing(&refusal) || Instant::now() + pause >= deadline {
                return Err(refusal);
            }
            // A new view may say where the shard is now.
            let moved = matches!(refusal.code, ErrorCode::NotCoordinator);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                Ok(()) = changes.changed(), if moved => {}
            }
        }
    }

    /// The stream to a coordinator, opened if there is none.
    fn link(&self, at: &Coordinator) -> Link {
        let mut links = self.inner.links.lock();
        links.retain(|_, link| link.is_open());
        let open = || {
            let hello = ConverseOpen {
                node_id: self.inner.node_id.load(Ordering::Relaxed),
                process_id: self.inner.process_id.clone(),
            };
            let mailboxes = Arc::clone(&self.inner.mailboxes);
            Link::open(&self.inner.pool, &at.address, hello, mailboxes)
        };
        links
            .entry(Arc::clone(&at.address))
            .or_insert_with(open)
            .clone()
    }
}

/// Worth a repeat of the same request, at the same place or another.
fn is_passing(refusal: &Refusal) -> bool {
    use ErrorCode as E;
    matches!(
        refusal.code,
        E::NotCoordinator
            | E::Loading
            | E::ShardFenced
            | E::Unavailable
            | E::Throttled
            | E::TimedOut
            | E::NotEnoughReplicas
            | E::NotEnoughReplicasAfterAppend
            | E::LeadershipLost
            | E::NoLeader
    )
}

/// As partitions travel.
pub fn partition_ref(at: TopicPartition) -> PartitionRef {
    PartitionRef {
        topic_id: id_bytes(at.topic_id),
        partition: at.partition.0,
    }
}

/// A partition from its parts on the wire; `None` if the id has not 16 bytes.
pub fn partition_at(topic_id: &[u8], partition: u32) -> Option<TopicPartition> {
    Some(TopicPartition {
        topic_id: TopicId::from_slice(topic_id)?,
        partition: PartitionIndex(partition),
    })
}

/// A topic's id as it travels.
pub fn id_bytes(id: TopicId) -> Bytes {
    Bytes::copy_from_slice(id.as_bytes())
}

/// A member's id as it travels.
pub fn member_bytes(id: MemberId) -> Bytes {
    Bytes::copy_from_slice(id.as_bytes())
}

/// INVALID_ARGUMENT or INVALID_NAME for a group id that breaks the rules of names.
pub fn check_group(group: &str) -> Result<(), Refusal> {
    talweg_types::check_name(group).map_err(|error| {
        let reason = error.to_string();
        Refusal::new(ErrorCode::InvalidName, format!("group: {reason}")).with_field("group", reason)
    })
}

impl Node {
    /// Answers about a group with nobody to ask wait this long.
    pub const GROUP_PATIENCE: Duration = Duration::from_secs(10);
}
