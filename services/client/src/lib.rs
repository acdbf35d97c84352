//! The Rust client: admin calls with typed refusals ([`Client`]), producers,
//! readers, and the machinery under both that a gateway uses as well.
//!
//! - [`pool`]: several HTTP/2 connections per peer, apart by kind of traffic;
//! - [`delivery`]: batches to their leaders, in order, each ending exactly once;
//! - [`fetch`]: partitions from their leaders, in order, without gap or repeat;
//! - [`view`]: what is known of topics, leaders and nodes;
//! - [`membership`]: the session and the watch of a gateway or coordinator.
//!
//! No clock, IO or await in what decides ([`delivery::DeliveryCore`],
//! [`fetch::FetchCore`], [`view::View`]).

mod admin;
pub mod backoff;
mod client;
pub mod clock;
mod cluster;
mod config;
pub mod delivery;
pub mod fetch;
mod groups;
pub mod membership;
mod offsets;
pub mod payload;
pub mod pool;
pub mod produce;
pub mod subscribe;
mod topics;
pub mod view;
pub mod watch;

pub use client::{Again, Client};
pub use config::ClientConfig;
pub use fetch::{FetchStart, Fetcher, FetcherConfig, StartAt};
pub use produce::{
    BatchProducer, Delivered, NumberedProducer, Outcome, ProducerConfig, RecordProducer, Via,
};
pub use subscribe::{SubscribeEvent, Subscriber};
pub use talweg_kit::errors::{ErrorCode, Refusal};
