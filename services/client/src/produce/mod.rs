//! Producers: single records through a gateway ([`RecordProducer`]), encoded
//! batches through a gateway or straight to the leaders ([`BatchProducer`]),
//! and batches that their producer numbers itself ([`NumberedProducer`]).
//!
//! Everything sent has exactly one [`Outcome`]. A producer that is dropped
//! leaves what is unanswered without one: its receipts say unknown.

mod batches;
mod link;
mod numbered;
mod outcome;
mod records;
mod routes;

pub use batches::BatchProducer;
pub use numbered::NumberedProducer;
pub use outcome::{Delivered, Delivery, Outcome, Receipts};
pub use records::RecordProducer;
pub use routes::GatewayRoutes;

use std::time::Duration;
use talweg_types::{Acks, Compression, limits};

/// Which way batches take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Via {
    /// Through the client's gateways.
    #[default]
    Gateway,
    /// Straight to the partition leaders.
    Leaders,
}

/// Settings of a producer.
#[derive(Clone, Debug)]
pub struct ProducerConfig {
    /// `None`: the topic's `default.acks`.
    pub acks: Option<Acks>,
    /// For one record or batch, from the call to its outcome.
    pub delivery_timeout: Duration,
    /// Codec of batches that a gateway packs; `None`: the topic's.
    pub compression: Option<Compression>,
    /// How long a gateway waits to fill a batch while one is in flight;
    /// `None`: its default.
    pub linger: Option<Duration>,
    /// Only for batches: which way they take.
    pub via: Via,
    /// Bytes of batches without an answer; more waits.
    pub in_flight_bytes: u32,
}

impl Default for ProducerConfig {
    fn default() -> Self {
        Self {
            acks: None,
            delivery_timeout: Duration::from_millis(limits::DELIVERY_TIMEOUT_MS_DEFAULT),
            compression: None,
            linger: None,
            via: Via::Gateway,
            in_flight_bytes: 32 * 1024 * 1024,
        }
    }
}
