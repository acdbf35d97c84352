//! Headers and trailers of gRPC over HTTP/2.

use crate::errors::Refusal;
use base64::{Engine, prelude::BASE64_STANDARD, prelude::BASE64_STANDARD_NO_PAD};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use std::{error::Error, sync::Arc, time::Duration};
use talweg_proto::v1::Effect;
use tonic::{Code, Status};

pub(super) const GRPC_CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

/// Trailers of a stream that ends with this status; `None` is OK.
pub(super) fn trailers(status: Option<&Status>) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(4);
    let written = match status {
        Some(status) => status.add_header(&mut map),
        None => Status::ok("").add_header(&mut map),
    };
    if let Err(fallback) = written {
        // Metadata that is not a header value; the code alone always is.
        map.clear();
        map.insert(
            Status::GRPC_STATUS,
            HeaderValue::from(fallback.code() as i32),
        );
    }
    map
}

/// The status in headers or trailers; `None` if there is none. `Some(Ok(()))` is OK.
pub(super) fn status_in(map: &HeaderMap) -> Option<Result<(), Status>> {
    map.get(Status::GRPC_STATUS)?;
    let status = match map.get(Status::GRPC_STATUS_DETAILS) {
        // tonic panics on details that are not base64.
        Some(details) if !is_base64(details) => {
            let mut map = map.clone();
            map.remove(Status::GRPC_STATUS_DETAILS);
            Status::from_header_map(&map)
        }
        _ => Status::from_header_map(map),
    }?;
    Some(if status.code() == Code::Ok {
        Ok(())
    } else {
        Err(status)
    })
}

fn is_base64(value: &HeaderValue) -> bool {
    let bytes = value.as_bytes();
    BASE64_STANDARD.decode(bytes).is_ok() || BASE64_STANDARD_NO_PAD.decode(bytes).is_ok()
}

/// Checks the headers of a request before its handler is called.
pub(super) fn check_request(headers: &HeaderMap) -> Result<(), Status> {
    check_encoding(headers)
}

/// True if the content type is gRPC's.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|it| it.as_bytes().starts_with(b"application/grpc"))
}

fn check_encoding(headers: &HeaderMap) -> Result<(), Status> {
    match headers.get("grpc-encoding") {
        Some(encoding) if encoding != "identity" => {
            let refusal = Refusal::not_built("data streams take no compressed messages");
            let mut status = refusal.to_status();
            status.metadata_mut().insert(
                "grpc-accept-encoding",
                tonic::metadata::MetadataValue::from_static("identity"),
            );
            Err(status)
        }
        _ => Ok(()),
    }
}

/// What the head of a response says: go on reading, or how it ended.
pub(super) fn check_response(
    status: StatusCode,
    headers: &HeaderMap,
) -> Option<Result<(), Status>> {
    if let Some(ended) = status_in(headers) {
        return Some(ended);
    }
    if status != StatusCode::OK {
        return Some(Err(http_failure(status)));
    }
    check_encoding(headers).err().map(Err)
}

/// As the gRPC specification maps HTTP failures of proxies and foreign servers.
fn http_failure(status: StatusCode) -> Status {
    let code = match status.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502 | 503 | 504 => Code::Unavailable,
        _ => Code::Unknown,
    };
    Status::new(code, format!("the peer answered with HTTP status {status}"))
}

/// A body that broke off: the connection went, or the peer reset the stream.
/// A lost connection is UNAVAILABLE with an unknown effect.
pub(super) fn broken(status: Status) -> Status {
    let mut source = status.source();
    while let Some(error) = source {
        if let Some(h2) = error.downcast_ref::<h2::Error>() {
            if h2.is_io() || h2.is_go_away() || h2.reason().is_none() {
                let message = format!("the connection was lost: {h2}");
                return Refusal::transport(message, Effect::Unknown).to_status();
            }
            break;
        }
        source = error.source();
    }
    status
}

/// A request that its sender gives up: HTTP/2 CANCEL.
pub(super) fn as_reset(status: &Status) -> Status {
    let mut status = status.clone();
    status.set_source(Arc::new(h2::Error::from(h2::Reason::CANCEL)));
    status
}

/// The deadline of a request, if it has one: the `grpc-timeout` header, up to
/// eight digits and a unit. One that cannot be read is ignored.
pub fn parse_grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|it| it.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}
