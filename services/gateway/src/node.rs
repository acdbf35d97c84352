//! What every part of a gateway shares: settings, the view, the way to the
//! controller, producer ids, and whether the process stops.

use crate::{
    config::GatewayConfig, groups::Coordinators, ids::ProducerIds, metrics::GatewayMetrics,
};
use rand::Rng;
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use talweg_client::{
    Client, ProducerConfig, RecordProducer, clock::Clock, pool::ChannelPool, view::SharedView,
};
use talweg_kit::{
    data_stream::PeerInfo,
    errors::{ErrorCode, Refusal},
    net::Grant,
};
use talweg_types::{Acks, limits};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::Instant,
};

/// How long a stream waits for the first view.
const FIRST_VIEW: Duration = Duration::from_secs(5);

/// The process is told to stop; streams end at `deadline`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drain {
    /// When streams are closed.
    pub deadline: Instant,
}

/// The gateway as its own client: what it reads and writes itself takes the
/// way of everyone else.
pub struct Own {
    pub client: Client,
    /// Acks of all in-sync replicas.
    pub copies: RecordProducer,
}

/// A gateway.
pub struct Node {
    pub config: GatewayConfig,
    /// Topics, leaders, nodes; as it was while no controller is there.
    pub view: SharedView,
    /// The controllers.
    pub controller: Client,
    /// Connections to leaders.
    pub pool: ChannelPool,
    /// The coordinators of groups.
    pub coordinators: Coordinators,
    own: OnceLock<Own>,
    pub ids: ProducerIds,
    pub metrics: GatewayMetrics,
    pub clock: Clock,
    id: AtomicU32,
    streams: Arc<Semaphore>,
    drain: watch::Sender<Option<Drain>>,
}

impl Node {
    pub fn new(
        config: GatewayConfig,
        controller: Client,
        ids: ProducerIds,
        metrics: GatewayMetrics,
    ) -> Self {
        let view = SharedView::default();
        let pool = ChannelPool::new(Duration::from_secs(2));
        Self {
            coordinators: Coordinators::new(view.clone(), pool.clone()),
            own: OnceLock::new(),
            view,
            pool,
            controller,
            ids,
            metrics,
            clock: Clock::default(),
            id: AtomicU32::new(config.node_id),
            streams: Arc::new(Semaphore::new(config.streams_max)),
            drain: watch::Sender::new(None),
            config,
        }
    }

    /// Its id; 0 before the controller has given one.
    pub fn id(&self) -> u32 {
        self.id.load(Ordering::Relaxed)
    }

    pub fn set_id(&self, id: u32) {
        self.id.store(id, Ordering::Relaxed);
        self.coordinators.set_node_id(id);
    }

    /// `client` talks to this gateway's own gRPC address. Once, at the start.
    pub fn set_own(&self, client: Client) {
        let config = ProducerConfig {
            acks: Some(Acks::All),
            ..Default::default()
        };
        let copies = RecordProducer::open(&client, config);
        self.own.get_or_init(|| Own { client, copies });
    }

    /// UNAVAILABLE before the start is done.
    pub fn own(&self) -> Result<&Own, Refusal> {
        self.own
            .get()
            .ok_or_else(|| Refusal::unavailable("this gateway is starting"))
    }

    /// A place among the streams.
    pub fn admit(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        if self.draining().is_some() {
            return Err(draining());
        }
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| {
            let limit = self.config.streams_max;
            let message = format!("this gateway serves at most {limit} streams");
            Refusal::new(ErrorCode::Throttled, message)
                .with_limit("streams_max", limit as u64, limit as u64 + 1, "streams")
                .retry_after(1_000)
        })
    }

    /// Waits until this gateway knows the cluster's topics, so that a stream
    /// opened while it starts is not told that its topic is unknown. Bounded:
    /// without a controller the stream opens and hears UNAVAILABLE.
    pub async fn first_view(&self) {
        self.view
            .wait(FIRST_VIEW, |view| !view.cluster_id.is_empty())
            .await;
    }

    /// When an idle stream says that it lives.
    pub fn heartbeat_wait(&self) -> Duration {
        let (low, high) = self.config.heartbeat_ms;
        // Margin, so that the promise "at least every `high`" is kept.
        let high = high.saturating_sub(high / 20).max(low);
        Duration::from_millis(rand::rng().random_range(low.min(high)..=high))
    }

    /// As told to clients, milliseconds.
    pub fn heartbeat_interval_ms(&self) -> u32 {
        u32::try_from(self.config.heartbeat_ms.1).unwrap_or(u32::MAX)
    }

    /// Begins to stop: streams are told and end at the deadline.
    pub fn start_drain(&self, drain: Duration) {
        self.drain.send_replace(Some(Drain {
            deadline: Instant::now() + drain,
        }));
    }

    pub fn draining(&self) -> Option<Drain> {
        *self.drain.borrow()
    }

    pub fn watch_drain(&self) -> watch::Receiver<Option<Drain>> {
        self.drain.subscribe()
    }
}

/// A new stream while the process stops.
pub fn draining() -> Refusal {
    Refusal::unavailable("this gateway is stopping").retry_after(200)
}

/// Unanswered bytes that a Produce stream may have, and its hold on the
/// connection's budget. THROTTLED when that is used up.
pub fn produce_grant(peer: &PeerInfo) -> Result<(u64, Option<Grant>), Refusal> {
    let Some(connection) = &peer.connection else {
        return Ok((limits::PRODUCE_CREDIT_BYTES, None));
    };
    let grant = connection.grant(
        limits::PRODUCE_CREDIT_BYTES,
        limits::PRODUCE_CREDIT_BYTES_MIN,
    );
    let grant = grant.ok_or_else(|| {
        let why = "the streams of this connection hold all its credit; open another connection";
        Refusal::new(ErrorCode::Throttled, why)
    })?;
    Ok((grant.bytes(), Some(grant)))
}
