//! Calls to etcd: a deadline for each, a bounded number of attempts, and another
//! member after one that failed.

use crate::{EtcdConfig, backoff::Backoff, fault::Fault};
use etcd_client::{Client, ConnectOptions, KvClient};
use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The largest answer that is taken. A refused transaction may bring back 128
/// values of etcd's largest request (1.5 MiB) each; etcd sends them in one message.
const MAX_ANSWER_BYTES: usize = 256 << 20;
/// Between attempts of one call.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Whether a call may be made again when nobody knows what became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Repeat {
    /// It changes nothing, or the second time changes nothing more.
    Free,
    /// Only if the first was certainly not done.
    IfNotDone,
}

/// One client to one member at a time. A member that fails a call is left for the
/// next one: whoever hangs or is cut off costs one call and not every third.
pub(crate) struct Link {
    config: EtcdConfig,
    client: Mutex<Dialled>,
}

struct Dialled {
    client: Client,
    /// Which endpoint, counted on without end; tells calls that fail together
    /// whether another has already moved on.
    turn: usize,
}

impl Link {
    /// Makes connections when they are needed, not yet.
    pub async fn new(config: EtcdConfig) -> Result<Self, Fault> {
        // Every endpoint must be usable, not only the first.
        for turn in 0..config.endpoints.len() {
            dial(&config, turn).await?;
        }
        // Many processes spread over the members.
        let turn = rand::random_range(0..config.endpoints.len().max(1));
        let client = Mutex::new(Dialled {
            client: dial(&config, turn).await?,
            turn,
        });
        Ok(Self { config, client })
    }

    pub fn config(&self) -> &EtcdConfig {
        &self.config
    }

    /// A client of its own for one watch: a slow watcher must not take the window
    /// of the connection that calls use, and a watch that was given up must not
    /// come back on the connection that failed it.
    pub async fn watch_client(&self, turn: usize) -> Result<Client, Fault> {
        dial(&self.config, turn).await
    }

    /// Makes a call, again at another member if that is safe and there is time.
    pub async fn call<T, F>(&self, repeat: Repeat, call: impl Fn(Client) -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let whole = self.config.request_timeout;
        let deadline = Instant::now() + whole;
        // A call that may be repeated leaves time for a second member.
        let attempt = if repeat == Repeat::Free {
            whole / 2
        } else {
            whole
        };
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        // Every member twice, and the first once more.
        let mut attempts = 2 * self.config.endpoints.len() + 1;
        loop {
            let (client, turn) = self.client();
            let until = deadline.min(Instant::now() + attempt);
            let fault = match timeout_at(until, call(client)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => Fault::from(error),
                Err(_) => Fault::TimedOut(whole),
            };
            if fault.is_answer() {
                return Err(fault);
            }
            self.move_on(turn).await;
            attempts -= 1;
            let again = repeat == Repeat::Free || matches!(fault, Fault::NotDone(_));
            let pause = backoff.pause();
            if !again || attempts == 0 || Instant::now() + pause >= deadline {
                return Err(fault);
            }
            tokio::time::sleep(pause).await;
        }
    }

    fn client(&self) -> (Client, usize) {
        let dialled = self.client.lock();
        (dialled.client.clone(), dialled.turn)
    }

    /// To the next member, unless another call has gone there already.
    async fn move_on(&self, from: usize) {
        let turn = from.wrapping_add(1);
        let Ok(client) = dial(&self.config, turn).await else {
            return;
        };
        let mut dialled = self.client.lock();
        if dialled.turn == from {
            *dialled = Dialled { client, turn };
        }
    }
}

/// The calls on keys, with room for their answers.
pub(crate) fn kv(client: &Client) -> KvClient {
    client
        .kv_client()
        .max_decoding_message_size(MAX_ANSWER_BYTES)
}

/// A client that connects on its first call. Every call requires that the member
/// has a leader: one that was cut off from the others refuses at once instead
/// of keeping us waiting.
async fn dial(config: &EtcdConfig, turn: usize) -> Result<Client, Fault> {
    let endpoint = &config.endpoints[turn % config.endpoints.len()];
    let options = ConnectOptions::new()
        .with_require_leader(true)
        .with_connect_timeout(config.connect_timeout);
    Ok(Client::connect([endpoint], Some(options)).await?)
}
