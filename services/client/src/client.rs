//! The client's handle: admin calls with typed refusals, deadlines and retries.

use crate::{
    backoff::Backoff,
    config::ClientConfig,
    pool::{ChannelPool, Traffic},
};
use parking_lot::Mutex;
use std::{future::Future, sync::Arc, time::Duration};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1::{self, Effect, error_detail::Details};
use tokio::time::Instant;
use tonic::{Request, Response, Status, transport::Channel};

/// An election takes about as long.
const NOBODY_ACTIVE_MS: u32 = 1_000;

/// Servers that one client knows at most: those it was given, and hints.
const SERVERS_MAX: usize = 32;

/// A connection to a cluster through its gateways (or to any server that
/// serves the same services). Cheap to clone.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    pool: ChannelPool,
    config: ClientConfig,
    /// Best first.
    servers: Mutex<Vec<Arc<str>>>,
}

/// Whether a call whose outcome is unknown may be made again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Again {
    /// It reads, or a repeat is recognised.
    Safe,
    /// Only if it certainly was not done.
    NotDoneOnly,
}

impl Client {
    /// Knows the servers; connects on first use. Refused if no URL is given or
    /// one is not a URL.
    pub fn connect<S: AsRef<str>>(
        bootstrap: impl IntoIterator<Item = S>,
        config: ClientConfig,
    ) -> Result<Self, Refusal> {
        let pool = ChannelPool::new(config.connect_timeout);
        Self::with_pool(bootstrap, config, pool)
    }

    /// As [`Self::connect`], sharing connections.
    pub fn with_pool<S: AsRef<str>>(
        bootstrap: impl IntoIterator<Item = S>,
        config: ClientConfig,
        pool: ChannelPool,
    ) -> Result<Self, Refusal> {
        let servers: Vec<Arc<str>> = bootstrap
            .into_iter()
            .map(|url| url.as_ref().into())
            .collect();
        if servers.is_empty() {
            return Err(Refusal::invalid("bootstrap", "names no server"));
        }
        for server in &servers {
            // Says at once what is wrong with a URL.
            pool.lease(server, Traffic::Control)?;
        }
        let servers = Mutex::new(servers);
        Ok(Self {
            shared: Arc::new(Shared {
                pool,
                config,
                servers,
            }),
        })
    }

    /// Its connections.
    pub fn pool(&self) -> &ChannelPool {
        &self.shared.pool
    }

    /// Its settings.
    pub fn config(&self) -> &ClientConfig {
        &self.shared.config
    }

    /// The server asked first.
    pub fn server(&self) -> Arc<str> {
        self.shared.servers.lock()[0].clone()
    }

    /// All servers, the one asked first in front.
    pub fn servers(&self) -> Vec<Arc<str>> {
        self.shared.servers.lock().clone()
    }

    /// Asks others before this one from now on. False: there are no others, or
    /// it was not the first one.
    pub fn avoid(&self, server: &str) -> bool {
        let mut servers = self.shared.servers.lock();
        let first = &*servers[0] == server && servers.len() > 1;
        if first {
            servers.rotate_left(1);
        }
        first
    }

    /// Asks this one first from now on; one that is not known is added.
    pub fn prefer(&self, hinted: &str) {
        let mut servers = self.shared.servers.lock();
        match servers.iter().position(|server| &**server == hinted) {
            Some(at) => servers.swap(0, at),
            None if servers.len() < SERVERS_MAX => servers.insert(0, hinted.into()),
            None => servers[0] = hinted.into(),
        }
    }

    /// Makes a unary call: tries again elsewhere and later, until
    /// `call_timeout`, what was refused as retriable and (unless `again` is
    /// safe) as not done.
    pub async fn call<Req, Resp, F, Fut>(
        &self,
        again: Again,
        request: Req,
        call: F,
    ) -> Result<Resp, Refusal>
    where
        Req: Clone,
        F: Fn(Channel, Request<Req>) -> Fut,
        Fut: Future<Output = Result<Response<Resp>, Status>>,
    {
        let deadline = Instant::now() + self.shared.config.call_timeout;
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        // What the one in charge has said; that another one is not says nothing.
        let mut said = None;
        loop {
            let server = self.server();
            let refusal = match self.attempt(&server, request.clone(), &call).await {
                Ok(response) => return Ok(response),
                Err(refusal) => refusal,
            };
            if !may_try_again(&refusal, again) {
                return Err(refusal);
            }
            match hint(&refusal) {
                Some(hinted) => self.prefer(hinted),
                None => {
                    self.avoid(&server);
                }
            }
            let pause = backoff.pause(refusal.retry_after_ms);
            if refusal.code != ErrorCode::NotController {
                said = Some(refusal.clone());
            }
            if Instant::now() + pause >= deadline {
                return Err(nobody_active(said.unwrap_or(refusal)));
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn attempt<Req, Resp, F, Fut>(
        &self,
        server: &str,
        message: Req,
        call: &F,
    ) -> Result<Resp, Refusal>
    where
        F: Fn(Channel, Request<Req>) -> Fut,
        Fut: Future<Output = Result<Response<Resp>, Status>>,
    {
        let lease = self.shared.pool.lease(server, Traffic::Control)?;
        let limit = self.shared.config.attempt_timeout;
        let mut request = Request::new(message);
        request.set_timeout(limit);
        // The server's own deadline answer is better than ours: wait a bit longer.
        let grace = limit + Duration::from_millis(500);
        match tokio::time::timeout(grace, call(lease.channel().clone(), request)).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(Refusal::from_status(&status)),
            Err(_) => Err(Refusal::new(
                ErrorCode::TimedOut,
                format!("{server} did not answer within {} ms", limit.as_millis()),
            )),
        }
    }

    /// Gives out a producer id, or raises the epoch of one: `(id, epoch)` held now.
    pub async fn init_producer(
        &self,
        held: Option<(i64, i32)>,
    ) -> Result<v1::InitProducerResponse, Refusal> {
        let request = v1::InitProducerRequest {
            producer_id: held.map(|(id, _)| id),
            producer_epoch: held.map(|(_, epoch)| epoch),
            ..v1::InitProducerRequest::default()
        };
        // An id that nobody uses harms nobody.
        self.call(Again::Safe, request, |channel, request| async move {
            v1::producer_service_client::ProducerServiceClient::new(channel)
                .init_producer(request)
                .await
        })
        .await
    }
}

/// When every controller has been asked and none is active or reached, that is the
/// answer; which of them stands by is no matter of the caller's. With the delay
/// after which it is sensible to ask again.
fn nobody_active(refusal: Refusal) -> Refusal {
    match refusal.code {
        ErrorCode::NotController => {
            Refusal::unavailable("no controller is active").retry_after(NOBODY_ACTIVE_MS)
        }
        ErrorCode::Unavailable if refusal.retry_after_ms == 0 => {
            refusal.retry_after(NOBODY_ACTIVE_MS)
        }
        _ => refusal,
    }
}

fn may_try_again(refusal: &Refusal, again: Again) -> bool {
    refusal.is_retriable() && (again == Again::Safe || refusal.effect() == Effect::NotDone)
}

/// Where to go instead, as the refusal says.
fn hint(refusal: &Refusal) -> Option<&str> {
    match &refusal.details {
        Some(Details::Leader(hint)) => hint.addresses.first().map(String::as_str),
        _ => None,
    }
}
