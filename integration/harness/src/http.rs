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

/// One request that must be answered; `body` is sent as it is, with
/// `content-type: application/json`.
pub async fn call(method: &str, url: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let answer = try_call(method, url, headers, body).await;
    answer.unwrap_or_else(|why| panic!("{why}"))
}

/// The same of a server that may be away.
///
/// # Errors
/// Why there was no answer.
pub async fn try_call(
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<Answer, String> {
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
    let failed = |e: &dyn std::fmt::Display| format!("{method} {url}: {e}");
    let response = client.request(request).await.map_err(|e| failed(&e))?;
    let (parts, body) = response.into_parts();
    let body = body.collect().await.map_err(|e| failed(&e))?.to_bytes();
    let json = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Ok(Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        json,
        body,
    })
}

/// The sum of a metric's series on one process's page; 0 where it has none.
pub async fn metric(port: u16, name: &str) -> f64 {
    let url = format!("http://127.0.0.1:{port}/metrics");
    let page = call("GET", &url, &[], "").await.body;
    let page = String::from_utf8_lossy(&page).into_owned();
    let value = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let named = rest.starts_with('{') || rest.starts_with(' ');
        named.then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
    };
    page.lines().filter_map(value).sum()
}
