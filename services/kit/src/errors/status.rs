//! Refusals on the wire: an [`v1::ErrorDetail`], and a gRPC status whose
//! `grpc-status-details-bin` holds a `google.rpc.Status` with that detail.

use super::{Refusal, row};
use bytes::Bytes;
use prost::Message;
use std::error::Error;
use talweg_proto::v1::{self, Effect, ErrorCode};
use tonic::{Code, Status};

/// Names the detail inside `google.protobuf.Any`.
const TYPE_URL: &str = "type.googleapis.com/talweg.v1.ErrorDetail";

/// A sentence is cut here. It travels three times in one header block (text,
/// and twice in the details), which peers bound to 8 or 16 KiB.
const MESSAGE_BYTES_MAX: usize = 1024;

/// google.rpc.Status.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// google.protobuf.Any.
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

impl Refusal {
    /// As it travels in frames and in status details.
    pub fn detail(&self) -> v1::ErrorDetail {
        v1::ErrorDetail {
            code: self.code as i32,
            message: cut(&self.message).to_owned(),
            retriable: self.is_retriable(),
            effect: self.effect() as i32,
            retry_after_ms: self.retry_after_ms,
            details: self.details.clone(),
        }
    }

    /// Reads a detail. A code that this version does not know becomes
    /// `Unspecified` and keeps what its sender said about retry and effect.
    pub fn from_detail(detail: v1::ErrorDetail) -> Self {
        let code = ErrorCode::try_from(detail.code).unwrap_or(ErrorCode::Unspecified);
        let effect = match Effect::try_from(detail.effect) {
            Ok(Effect::Unspecified) | Err(_) => Effect::Unknown,
            Ok(known) => known,
        };
        let said = (detail.retriable, effect);
        let table = (row(code).retriable, row(code).effect);
        Self {
            code,
            message: detail.message,
            details: detail.details,
            retry_after_ms: detail.retry_after_ms,
            seen: (said != table).then_some(said),
        }
    }

    /// As a gRPC status.
    pub fn to_status(&self) -> Status {
        let grpc = row(self.code).grpc;
        let message = cut(&self.message);
        let rpc = RpcStatus {
            code: grpc as i32,
            message: message.to_owned(),
            details: vec![Any {
                type_url: TYPE_URL.into(),
                value: self.detail().encode_to_vec().into(),
            }],
        };
        let mut status = Status::with_details(grpc, message, rpc.encode_to_vec().into());
        if self.retry_after_ms > 0 && self.is_retriable() {
            // Read by the retry policies of the gRPC libraries.
            status
                .metadata_mut()
                .insert("grpc-retry-pushback-ms", self.retry_after_ms.into());
        }
        status
    }

    /// Reads a status. One that carries our detail gives back the refusal; any
    /// other is a failure of the transport or of a foreign server, whose effect
    /// is unknown unless the connection was never made.
    pub fn from_status(status: &Status) -> Self {
        if let Some(detail) = detail_of(status) {
            return Self::from_detail(detail);
        }
        let message = status.message().to_owned();
        let effect = if is_connect_failure(status) {
            Effect::NotDone
        } else {
            Effect::Unknown
        };
        let (code, retriable) = match status.code() {
            Code::Unimplemented => return Self::not_built(message),
            Code::InvalidArgument | Code::OutOfRange => (ErrorCode::InvalidArgument, false),
            Code::NotFound | Code::AlreadyExists | Code::FailedPrecondition => {
                (ErrorCode::Unspecified, false)
            }
            Code::PermissionDenied => (ErrorCode::PermissionDenied, false),
            Code::Unauthenticated => (ErrorCode::Unauthenticated, false),
            Code::DeadlineExceeded => (ErrorCode::TimedOut, true),
            Code::ResourceExhausted => (ErrorCode::Throttled, true),
            Code::Unavailable | Code::Cancelled | Code::Aborted => (ErrorCode::Unavailable, true),
            Code::Ok | Code::Unknown | Code::Internal | Code::DataLoss => {
                (ErrorCode::Internal, false)
            }
        };
        Self {
            seen: Some((retriable, effect)),
            ..Self::new(code, message)
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        refusal.to_status()
    }
}

impl From<&Refusal> for Status {
    fn from(refusal: &Refusal) -> Self {
        refusal.to_status()
    }
}

impl From<Refusal> for v1::ErrorDetail {
    fn from(refusal: Refusal) -> Self {
        refusal.detail()
    }
}

/// Our detail in a status, if it has one that can be read.
fn detail_of(status: &Status) -> Option<v1::ErrorDetail> {
    if status.details().is_empty() {
        return None;
    }
    let rpc = RpcStatus::decode(status.details()).ok()?;
    let any = rpc
        .details
        .into_iter()
        .find(|any| any.type_url == TYPE_URL)?;
    v1::ErrorDetail::decode(any.value).ok()
}

fn is_connect_failure(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

fn cut(message: &str) -> &str {
    &message[..message.floor_char_boundary(MESSAGE_BYTES_MAX)]
}
