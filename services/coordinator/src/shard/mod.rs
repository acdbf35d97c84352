//! One shard of this coordinator: a task that owns its state, a handle to talk to it.

mod answers;
mod appending;
mod check;
mod commits;
mod converse;
mod keeping;
mod pace;
mod take;
mod task;
mod waiters;

pub use check::Checked;
pub use converse::Said;
pub use pace::Pace;
pub use take::replay;
pub use waiters::merge;

use crate::{node::Node, refusals};
use parking_lot::Mutex;
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};
use talweg_coordinator_runtime::{Now, Shard};
use talweg_group::{Answer, Event, Group};
use talweg_kit::errors::Refusal;
use talweg_types::{Offset, ShardEpoch, TopicId, TopicPartition, limits};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// What a read sees: all that is decided.
pub struct Seen<'a> {
    pub shard: &'a Shard<Group>,
    pub pace: &'a Pace,
    pub now: Now,
    pub at: TopicPartition,
}

/// Hands over what was read, once all that it rests on is committed.
pub type Release = Box<dyn FnOnce(Result<Offset, Refusal>) + Send>;

/// What a shard is asked.
pub enum Command {
    /// From a gateway's stream.
    Said(Said),
    /// One event, and its answer.
    Do {
        group: Arc<str>,
        event: Event,
        reply: oneshot::Sender<Result<Answer, Refusal>>,
    },
    Read(Box<dyn FnOnce(&Seen<'_>) -> Release + Send>),
    /// The state hashes, of one moment.
    Check(oneshot::Sender<Result<Checked, Refusal>>),
    LinkGone(u64),
    Deleted(BTreeSet<TopicId>),
}

const LOADING: u8 = 0;
const SERVING: u8 = 1;
const OVER: u8 = 2;

/// A shard, from the order to take it to its end.
pub struct ShardHandle {
    pub at: TopicPartition,
    pub epoch: ShardEpoch,
    mailbox: mpsc::Sender<Command>,
    phase: AtomicU8,
    drop_it: CancellationToken,
    ended: watch::Sender<bool>,
    /// Wakes who waits for a change of the phase.
    changed: Notify,
    /// Why the last attempt to take it failed.
    trouble: Mutex<Option<String>>,
    over_since: Mutex<Option<Instant>>,
}

impl ShardHandle {
    /// Begins to take the shard.
    /// Not before the one that held it earlier has written its last: it would write
    /// into this one's view.
    pub fn take(
        node: Arc<Node>,
        at: TopicPartition,
        epoch: ShardEpoch,
        before: Option<Arc<Self>>,
    ) -> Arc<Self> {
        let (mailbox, commands) = mpsc::channel(limits::SHARD_MAILBOX_MAX);
        let handle = Arc::new(Self {
            at,
            epoch,
            mailbox,
            phase: AtomicU8::new(LOADING),
            drop_it: CancellationToken::new(),
            ended: watch::Sender::new(false),
            changed: Notify::new(),
            trouble: Mutex::new(None),
            over_since: Mutex::new(None),
        });
        let taking = Arc::clone(&handle);
        tokio::spawn(async move {
            if let Some(before) = before {
                before.ended().await;
            }
            task::run(node, taking, commands).await;
        });
        handle
    }

    pub fn is_serving(&self) -> bool {
        self.phase.load(Ordering::Acquire) == SERVING
    }

    /// It was lost, or given up.
    pub fn is_over(&self) -> bool {
        self.phase.load(Ordering::Acquire) == OVER
    }

    /// It has been over for so long.
    pub fn is_over_since(&self, time: Duration) -> bool {
        let over = *self.over_since.lock();
        over.is_some_and(|since| since.elapsed() >= time)
    }

    fn set_phase(&self, phase: u8) {
        if phase == OVER {
            *self.over_since.lock() = Some(Instant::now());
        }
        self.phase.store(phase, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Another has it, or the process stops.
    pub fn drop_it(&self) {
        self.drop_it.cancel();
    }

    /// Waits until it is gone.
    pub async fn ended(&self) {
        // The sender lives in `self`.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Why it is not served yet, if an attempt failed.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    /// THROTTLED if its mailbox is full, NOT_COORDINATOR or LOADING if it does not serve.
    pub fn tell(&self, command: Command) -> Result<(), Refusal> {
        match self.phase.load(Ordering::Acquire) {
            SERVING => {}
            LOADING => return Err(refusals::loading(self.at.partition.0)),
            _ => return Err(refusals::not_coordinator(self.at.partition.0)),
        }
        self.mailbox.try_send(command).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => refusals::busy(),
            mpsc::error::TrySendError::Closed(_) => refusals::not_coordinator(self.at.partition.0),
        })
    }

    /// Waits for room: what must not be missed by a shard that serves.
    pub async fn tell_surely(&self, command: Command) {
        if !self.is_over() {
            // Over in the meantime: nobody is left to be told.
            let _ = self.mailbox.send(command).await;
        }
    }

    /// Decides on one event.
    pub async fn decide(&self, group: &str, event: Event) -> Result<Answer, Refusal> {
        let (reply, answer) = oneshot::channel();
        let group = group.into();
        self.tell(Command::Do {
            group,
            event,
            reply,
        })?;
        answer.await.unwrap_or_else(|_| Err(self.gone()))
    }

    /// What `look` sees, once all that it rests on is committed.
    pub async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Seen<'_>) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let (reply, answer) = oneshot::channel();
        let read = move |seen: &Seen<'_>| -> Release {
            let found = look(seen);
            Box::new(move |passed| drop(reply.send(passed.map(|_| found))))
        };
        self.tell(Command::Read(Box::new(read)))?;
        answer.await.unwrap_or_else(|_| Err(self.gone()))
    }

    /// Its hashes at one moment, and those of the kept view.
    pub async fn check(&self) -> Result<Checked, Refusal> {
        let (reply, answer) = oneshot::channel();
        self.tell(Command::Check(reply))?;
        answer.await.unwrap_or_else(|_| Err(self.gone()))
    }

    fn gone(&self) -> Refusal {
        refusals::not_coordinator(self.at.partition.0)
    }
}
