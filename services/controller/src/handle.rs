//! The way to the active controller's loop: a bounded mailbox, and who has it.

use crate::core::{Core, Event, FolderStatus, Registration, Reply, Request, StreamId};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    controller::v1::{NodeSessionResponse, WatchClusterResponse},
    v1::LeaderHint,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Status;

/// A request is answered within this, or its outcome is unknown.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a caller waits while nobody is elected, in milliseconds.
const RETRY_MS: u32 = 200;

/// A reply and the revision of the view that has it.
#[derive(Clone, Debug)]
pub struct Answer {
    pub reply: Reply,
    pub revision: u64,
}

/// The controller's end of a node's stream.
pub struct Peer {
    pub frames: mpsc::Sender<Result<NodeSessionResponse, Status>>,
    /// Dropped with the peer, it ends the task that reads the node's frames.
    pub _alive: DropGuard,
}

/// A snapshot and what comes after it.
pub type Subscription = (
    Vec<WatchClusterResponse>,
    mpsc::Receiver<WatchClusterResponse>,
);

pub enum Message {
    Register {
        stream: StreamId,
        registration: Registration,
        peer: Peer,
    },
    Heartbeat {
        stream: StreamId,
        folders: Vec<FolderStatus>,
        beat: u64,
    },
    /// Another later frame of a stream, or its end.
    Node(Event),
    Request {
        request: Request,
        answer: oneshot::Sender<Result<Answer, Refusal>>,
    },
    Read(Box<dyn FnOnce(&Core) + Send>),
    Watch {
        answer: oneshot::Sender<Subscription>,
    },
}

/// What this process is.
#[derive(Clone, Debug, Default)]
pub enum Role {
    /// Nothing is known yet.
    #[default]
    Starting,
    /// The URL of the active one, if known.
    Standby {
        active: String,
    },
    Active(mpsc::Sender<Message>),
    Stopped,
}

/// Cheap to clone; for the services.
#[derive(Clone, Default)]
pub struct Handle {
    role: Arc<watch::Sender<Role>>,
    streams: Arc<AtomicU64>,
}

impl Handle {
    pub fn set_role(&self, role: Role) {
        self.role.send_replace(role);
    }

    pub fn watch_role(&self) -> watch::Receiver<Role> {
        self.role.subscribe()
    }

    /// Streams are numbered over all terms, so that a late frame of one term
    /// names nothing in the next.
    pub fn next_stream(&self) -> StreamId {
        StreamId(self.streams.fetch_add(1, Ordering::Relaxed))
    }

    /// The active controller's mailbox.
    ///
    /// # Errors
    /// NOT_CONTROLLER with the active one's address, or UNAVAILABLE.
    pub fn mailbox(&self) -> Result<mpsc::Sender<Message>, Refusal> {
        match &*self.role.borrow() {
            Role::Active(mailbox) => Ok(mailbox.clone()),
            Role::Standby { active } => Err(not_controller(active)),
            Role::Starting => {
                Err(Refusal::unavailable("no controller is elected yet").retry_after(RETRY_MS))
            }
            Role::Stopped => {
                Err(Refusal::unavailable("this controller is stopping").retry_after(RETRY_MS))
            }
        }
    }

    /// Has a request decided and its outcome stored.
    pub async fn request(&self, request: Request) -> Result<Answer, Refusal> {
        let (answer, answered) = oneshot::channel();
        self.send(Message::Request { request, answer }).await?;
        match tokio::time::timeout(REQUEST_TIMEOUT, answered).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(unknown("this controller stopped being the active one")),
            Err(_) => Err(unknown("the metadata store does not answer")),
        }
    }

    /// Looks at the core.
    pub async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Core) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let (answer, answered) = oneshot::channel();
        let look = move |core: &Core| drop(answer.send(look(core)));
        self.send(Message::Read(Box::new(look))).await?;
        answered.await.map_err(|_| gone())
    }

    pub async fn watch(&self) -> Result<Subscription, Refusal> {
        let (answer, answered) = oneshot::channel();
        self.send(Message::Watch { answer }).await?;
        answered.await.map_err(|_| gone())
    }

    async fn send(&self, message: Message) -> Result<(), Refusal> {
        self.mailbox()?.send(message).await.map_err(|_| gone())
    }
}

/// A peer for a stream, and the token that says when it is over.
pub fn peer(
    frames: mpsc::Sender<Result<NodeSessionResponse, Status>>,
) -> (Peer, CancellationToken) {
    let token = CancellationToken::new();
    (
        Peer {
            frames,
            _alive: token.clone().drop_guard(),
        },
        token,
    )
}

/// Nothing was done; the next controller, or this one again, will answer.
pub fn gone() -> Refusal {
    Refusal::unavailable("this controller stopped being the active one").retry_after(RETRY_MS)
}

fn unknown(why: &str) -> Refusal {
    Refusal::new(
        ErrorCode::TimedOut,
        format!("{why}; the change may have been made"),
    )
}

fn not_controller(active: &str) -> Refusal {
    let addresses = (!active.is_empty()).then(|| active.to_owned());
    let hint = LeaderHint {
        node_id: 0,
        addresses: addresses.into_iter().collect(),
        leader_epoch: -1,
    };
    Refusal::new(
        ErrorCode::NotController,
        "this controller stands by; another is active",
    )
    .with_leader(hint)
    .retry_after(RETRY_MS)
}
