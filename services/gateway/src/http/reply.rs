//! Refusals as HTTP answers.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use talweg_client::Refusal;

/// An answer that is not success: the catalogue's status and the JSON error.
#[derive(Debug)]
pub struct Failure {
    status: u16,
    refusal: Refusal,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self {
            status: refusal.http_status(),
            refusal,
        }
    }
}

impl Failure {
    /// Where HTTP has a status that the catalogue does not know of.
    pub fn with_status(status: u16, refusal: Refusal) -> Self {
        Self { status, refusal }
    }

    /// A field of the request is wrong.
    pub fn invalid(field: &str, reason: impl Into<String>) -> Self {
        Refusal::invalid(field, reason).into()
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(self.refusal.json())).into_response();
        if matches!(self.status, 429 | 503) {
            // Whole seconds, rounded up; one where there is no advice.
            let seconds = self.refusal.retry_after_ms.div_ceil(1000).max(1);
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
