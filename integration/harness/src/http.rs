//! A plain HTTP caller for the JSON surface.

use http_body_util::{BodyExt, Full};
use hyper::{Request, body::Bytes};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::Value;

/// What came back.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: http::HeaderMap,
    /// Null where the body is empty or not JSON.
    pub json: Value,
    pub body: Bytes,
}

/// One request; `body` is sent as it is, with `content-type: application/json`.
pub async fn call(method: &str, url: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let mut request = Request::builder().method(method).uri(url);
    if !body.is_empty() {
        request = request.header("content-type", "application/json");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request
        .body(Full::from(body.to_owned()))
        .expect("a request");
    let response = client
        .request(request)
        .await
        .unwrap_or_else(|e| panic!("{method} {url}: {e}"));
    let (parts, body) = response.into_parts();
    let body = body.collect().await.expect("a body").to_bytes();
    let json = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        json,
        body,
    }
}
