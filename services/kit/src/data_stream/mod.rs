//! The codec of the data streams (Produce, Fetch, Subscribe, Replicate): gRPC framing without
//! tonic's copying codec.
//!
//! Sending, a frame's payload (`batches`) leaves as an HTTP/2 chunk of its own
//! behind the few bytes of its head; receiving, payload `Bytes` are slices of
//! the received HTTP/2 data. On the wire it is plain gRPC: any client or
//! server made from the .proto files is a peer.
//!
//! What it keeps, for each stream:
//! - response headers go out at once, so opening never waits for the other side to speak;
//! - the request and response bodies are read only when the receiver is asked
//!   for a frame, so a slow reader holds back its own peer and nobody else;
//! - at most [`QUEUE_FRAMES`] frames wait to be sent, none is larger than
//!   [`GRPC_MESSAGE_BYTES`](talweg_types::limits::GRPC_MESSAGE_BYTES);
//! - arbitrary bytes from a peer end that stream with a status, nothing else.
//!
//! A payload slice keeps the buffer alive that it was received in (up to the
//! HTTP/2 frame size, 1 MiB). Copy what is small and kept for long.

mod body;
mod client;
mod decoder;
mod frame;
mod guard;
mod receiver;
mod sender;
mod server;
mod wire;

#[cfg(test)]
mod tests;

pub use client::{open, open_fetch, open_produce, open_subscribe};
pub use decoder::FrameDecoder;
pub use frame::{DataFrame, split_nested, split_whole};
pub use guard::Shape;
pub use receiver::FrameReceiver;
pub use sender::{Closed, FrameSender, TrySendError};
pub use server::{
    DataService, PeerInfo, StreamHandler, fetch_service, produce_service, subscribe_service,
};
pub use wire::parse_grpc_timeout;

use talweg_proto::{storage, v1};

/// Frames that wait between a sender and the connection.
pub const QUEUE_FRAMES: usize = 32;

/// A bidirectional streaming method that uses this codec.
pub trait StreamMethod: Send + Sync + 'static {
    /// Full name of the service, as in the .proto file.
    const SERVICE: &'static str;
    /// "/" service "/" method.
    const PATH: &'static str;
    /// What the client sends.
    type Request: DataFrame;
    /// What the server sends.
    type Response: DataFrame;
}

/// `talweg.v1.ProduceService/Produce`.
#[derive(Clone, Copy, Debug)]
pub enum ProduceMethod {}

impl StreamMethod for ProduceMethod {
    const SERVICE: &'static str = "talweg.v1.ProduceService";
    const PATH: &'static str = "/talweg.v1.ProduceService/Produce";
    type Request = v1::ProduceRequest;
    type Response = v1::ProduceResponse;
}

/// `talweg.v1.FetchService/Fetch`.
#[derive(Clone, Copy, Debug)]
pub enum FetchMethod {}

impl StreamMethod for FetchMethod {
    const SERVICE: &'static str = "talweg.v1.FetchService";
    const PATH: &'static str = "/talweg.v1.FetchService/Fetch";
    type Request = v1::FetchRequest;
    type Response = v1::FetchResponse;
}

/// `talweg.v1.SubscribeService/Subscribe`.
#[derive(Clone, Copy, Debug)]
pub enum SubscribeMethod {}

impl StreamMethod for SubscribeMethod {
    const SERVICE: &'static str = "talweg.v1.SubscribeService";
    const PATH: &'static str = "/talweg.v1.SubscribeService/Subscribe";
    type Request = v1::SubscribeRequest;
    type Response = v1::SubscribeResponse;
}

/// `talweg.storage.v1.ReplicationService/Replicate`.
#[derive(Clone, Copy, Debug)]
pub enum ReplicateMethod {}

impl StreamMethod for ReplicateMethod {
    const SERVICE: &'static str = "talweg.storage.v1.ReplicationService";
    const PATH: &'static str = "/talweg.storage.v1.ReplicationService/Replicate";
    type Request = storage::v1::ReplicateRequest;
    type Response = storage::v1::ReplicateResponse;
}
