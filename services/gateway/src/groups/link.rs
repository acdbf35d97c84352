//! One Converse stream to one coordinator: a task that owns it, behind a
//! bounded queue. It ends with the stream; the next request opens another.

use super::mailbox::Mailboxes;
use std::{collections::HashMap, future::Future, sync::Arc};
use talweg_client::pool::{ChannelPool, Traffic};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::coordinator::v1::{
    ConverseOpen, ConverseRequest, ConverseResponse, converse_request::Event,
    converse_response::What, coordinator_service_client::CoordinatorServiceClient,
};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;

/// Requests that wait to be sent.
const QUEUE: usize = 256;
/// Requests without an answer; more wait.
const UNANSWERED_MAX: usize = 10_000;

struct Call {
    group: String,
    event: Event,
    reply: oneshot::Sender<What>,
}

/// A stream, or one that is being opened. Cheap to clone.
#[derive(Clone)]
pub struct Link {
    calls: mpsc::Sender<Call>,
}

impl Link {
    pub fn open(
        pool: &ChannelPool,
        address: &str,
        hello: ConverseOpen,
        mailboxes: Arc<Mailboxes>,
    ) -> Self {
        let (calls, queue) = mpsc::channel(QUEUE);
        let (pool, address) = (pool.clone(), address.to_owned());
        tokio::spawn(async move {
            let ended = converse(&pool, &address, hello, queue, &mailboxes).await;
            tracing::debug!(?ended, %address, "the stream to a coordinator ended");
            mailboxes.nudge_all();
        });
        Self { calls }
    }

    pub fn is_open(&self) -> bool {
        !self.calls.is_closed()
    }

    /// One request; the answer may be a refusal. UNAVAILABLE: the stream broke,
    /// and whether it was done is not known.
    pub fn call(
        &self,
        group: String,
        event: Event,
    ) -> impl Future<Output = Result<What, Refusal>> + use<> {
        let calls = self.calls.clone();
        async move {
            let broken = || Refusal::unavailable("the stream to the group's coordinator broke");
            let (reply, answer) = oneshot::channel();
            let call = Call {
                group,
                event,
                reply,
            };
            calls.send(call).await.map_err(|_| broken())?;
            answer.await.map_err(|_| broken())
        }
    }
}

async fn converse(
    pool: &ChannelPool,
    address: &str,
    hello: ConverseOpen,
    mut calls: mpsc::Receiver<Call>,
    mailboxes: &Mailboxes,
) -> Result<(), Refusal> {
    let lease = pool.lease(address, Traffic::Control)?;
    let (frames, sent) = mpsc::channel(QUEUE);
    let open = ConverseRequest {
        event: Some(Event::Open(hello)),
        ..Default::default()
    };
    let gone = || Refusal::new(ErrorCode::Unavailable, "the stream has ended");
    frames.send(open).await.map_err(|_| gone())?;
    let mut answers = CoordinatorServiceClient::new(lease.channel().clone())
        .max_decoding_message_size(64 << 20)
        .converse(ReceiverStream::new(sent))
        .await
        .map_err(|status| Refusal::from_status(&status))?
        .into_inner();
    let mut unanswered: HashMap<u64, oneshot::Sender<What>> = HashMap::new();
    let mut next_id = 1;
    loop {
        if unanswered.len() >= UNANSWERED_MAX {
            // Those that nobody waits for any more.
            unanswered.retain(|_, reply| !reply.is_closed());
        }
        tokio::select! {
            biased;
            answer = answers.message() => {
                let answer = answer.map_err(|status| Refusal::from_status(&status))?;
                on_answer(answer.ok_or_else(gone)?, &mut unanswered, mailboxes);
            }
            call = next(&frames, &mut calls), if unanswered.len() < UNANSWERED_MAX => {
                let Some((permit, call)) = call else { return Ok(()) };
                unanswered.insert(next_id, call.reply);
                permit.send(ConverseRequest {
                    request_id: next_id,
                    group: call.group,
                    event: Some(call.event),
                });
                next_id += 1;
            }
        }
    }
}

/// A request, once there is room for it. Dropping the future loses nothing.
async fn next<'a>(
    frames: &'a mpsc::Sender<ConverseRequest>,
    calls: &mut mpsc::Receiver<Call>,
) -> Option<(mpsc::Permit<'a, ConverseRequest>, Call)> {
    let permit = frames.reserve().await.ok()?;
    Some((permit, calls.recv().await?))
}

fn on_answer(
    answer: ConverseResponse,
    unanswered: &mut HashMap<u64, oneshot::Sender<What>>,
    mailboxes: &Mailboxes,
) {
    // A frame of a newer coordinator.
    let Some(what) = answer.what else { return };
    if answer.request_id != 0 {
        if let Some(reply) = unanswered.remove(&answer.request_id) {
            // An error: whoever asked has given up.
            reply.send(what).ok();
        }
        return;
    }
    match what {
        What::View(view) => mailboxes.view(&answer.group, view),
        What::Removed(removed) => mailboxes.removed(&answer.group, removed),
        What::ShardsMoved(_) => mailboxes.nudge_all(),
        What::Error(_) | What::Done(_) | What::Committed(_) => {}
    }
}
