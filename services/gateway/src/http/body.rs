//! JSON bodies and query strings, strictly: unknown fields and wrong types are
//! refused by name.

use super::{BODY_BYTES_MAX, reply::Failure};
use axum::{
    body::{Body, to_bytes},
    extract::{FromRequest, FromRequestParts, Query, Request},
    http::{header, request::Parts},
};
use serde::de::DeserializeOwned;
use talweg_client::{ErrorCode, Refusal};

/// A JSON body.
pub struct Json<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, _: &S) -> Result<Self, Failure> {
        check_type(&request)?;
        let bytes = read(request.into_body()).await?;
        serde_json::from_slice(&bytes)
            .map(Self)
            .map_err(|e| Failure::invalid("body", e.to_string()))
    }
}

/// The default of a missing content type is JSON; another type is refused
/// rather than guessed at.
fn check_type(request: &Request) -> Result<(), Failure> {
    let Some(value) = request.headers().get(header::CONTENT_TYPE) else {
        return Ok(());
    };
    let text = value.to_str().unwrap_or_default();
    let kind = text.split(';').next().unwrap_or_default().trim();
    // curl's default for -d; everything here is JSON, so it is taken as such.
    let known = ["application/json", "application/x-www-form-urlencoded"];
    if known.iter().any(|it| kind.eq_ignore_ascii_case(it)) {
        return Ok(());
    }
    let refusal = Refusal::invalid(
        "content-type",
        format!("must be application/json, not {text:?}"),
    );
    Err(Failure::with_status(415, refusal))
}

async fn read(body: Body) -> Result<axum::body::Bytes, Failure> {
    to_bytes(body, BODY_BYTES_MAX).await.map_err(|_| {
        let message = format!("a body has at most {BODY_BYTES_MAX} bytes");
        Failure::with_status(413, Refusal::new(ErrorCode::FrameTooLarge, message))
    })
}

/// A query string.
pub struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let query = Query::from_request_parts(parts, state).await;
        query
            .map(|Query(it)| Self(it))
            .map_err(|e| Failure::invalid("query", e.body_text()))
    }
}
