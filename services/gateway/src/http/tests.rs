//! What can be shown without other processes: bodies, headers, the description.

use super::{OPENAPI, numbered::Numbered, record::*};
use axum::{
    body::to_bytes,
    http::{HeaderMap, HeaderValue},
    response::IntoResponse,
};
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use talweg_proto::v1;
use talweg_types::{ProducerId, Sequence};

fn record(body: Value) -> Result<v1::Record, u16> {
    let body: RecordBody = serde_json::from_value(body).map_err(|_| 400_u16)?;
    body.into_record()
        .map_err(|failure| failure.into_response().status().as_u16())
}

#[test]
fn null_and_empty_text_and_bytes_stay_apart() {
    let found = record(json!({"key": "", "value": null})).expect("valid");
    assert_eq!((found.key, found.value), (Some(Bytes::new()), None));
    let found = record(json!({"value_base64": "/wA="})).expect("valid");
    assert_eq!(
        (found.key, found.value),
        (None, Some(Bytes::from_static(&[0xff, 0])))
    );
}

#[test]
fn headers_come_as_pairs_or_as_an_object() {
    let pairs = record(json!({"headers": [["a", "1"], ["a", null], ["", {"base64": "AA=="}]]}))
        .expect("valid");
    let values: Vec<_> = pairs
        .headers
        .iter()
        .map(|h| (h.name.as_str(), h.value.as_deref()))
        .collect();
    assert_eq!(
        values,
        [("a", Some(&b"1"[..])), ("a", None), ("", Some(&[0][..]))]
    );
    let object = record(json!({"headers": {"x": "y"}})).expect("valid");
    assert_eq!(
        object.headers,
        [v1::Header {
            name: "x".into(),
            value: Some(Bytes::from_static(b"y"))
        }]
    );
}

#[test]
fn bad_records_are_refused() {
    for body in [
        json!({"key": 1}),
        json!({"colour": "red"}),
        json!({"key": "a", "key_base64": "YQ=="}),
        json!({"value_base64": "YQ"}),
        json!({"value_base64": "Y Q=="}),
        json!({"value_base64": "_w=="}),
        json!({"headers": [["only name"]]}),
        json!({"headers": "text"}),
        json!({"headers": {"x": 1}}),
        json!({"headers": {"x": {"base64": "?"}}}),
        json!({"partition": -1}),
    ] {
        assert_eq!(record(body.clone()), Err(400), "{body}");
    }
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(k, v)| {
            (
                (*k).parse().expect("name"),
                HeaderValue::from_str(v).expect("value"),
            )
        })
        .collect()
}

#[test]
fn a_named_producer_has_a_stable_id_above_all_blocks() {
    let found = Numbered::from_headers(&headers(&[("x-producer-id", "abc"), ("x-sequence", "7")]))
        .expect("valid");
    let found = found.expect("both headers");
    assert_eq!(found.sequence, Sequence(7));
    // SHA-256("abc") begins with ba7816bf8f01cfea.
    assert_eq!(
        found.producer_id(),
        ProducerId((1 << 62) + (0xba78_16bf_8f01_cfea_u64 >> 3) as i64)
    );
}

#[test]
fn half_of_the_producer_headers_or_bad_ones_are_refused() {
    let long = "n".repeat(129);
    for pairs in [
        vec![("x-producer-id", "a")],
        vec![("x-sequence", "0")],
        vec![("x-producer-id", ""), ("x-sequence", "0")],
        vec![("x-producer-id", long.as_str()), ("x-sequence", "0")],
        vec![("x-producer-id", "a"), ("x-sequence", "-1")],
        vec![("x-producer-id", "a"), ("x-sequence", "2147483648")],
    ] {
        assert!(
            Numbered::from_headers(&headers(&pairs)).is_err(),
            "{pairs:?}"
        );
    }
    assert_eq!(
        Numbered::from_headers(&HeaderMap::new()).expect("none is fine"),
        None
    );
}

#[test]
fn bytes_that_are_not_text_are_shown_as_base64() {
    let record = v1::FetchedRecord {
        offset: 3,
        timestamp_ms: 5,
        key: Some(Bytes::from_static(&[0xff])),
        value: None,
        headers: vec![v1::Header {
            name: "h".into(),
            value: Some(Bytes::from_static(&[0xfe])),
        }],
        leader_epoch: 0,
    };
    let expected = json!({"offset": 3, "timestamp": 5, "key_base64": "/w==", "value": null, "headers": [["h", {"base64": "/g=="}]]});
    assert_eq!(shown(&record), expected);
}

/// Every route of the source is described, and nothing else is.
#[test]
fn the_description_lists_every_route() {
    let described: Value = serde_json::from_str(OPENAPI).expect("JSON");
    assert_eq!(described["openapi"], "3.1.0");
    let described: BTreeSet<&str> = described["paths"]
        .as_object()
        .expect("paths")
        .keys()
        .map(String::as_str)
        .collect();
    let source = include_str!("mod.rs");
    let mut routes: BTreeSet<&str> = source
        .split('"')
        .filter(|s| s.starts_with("/v1/") || *s == "/openapi.json")
        .collect();
    routes.extend(["/healthz", "/readyz", "/metrics"]);
    assert_eq!(routes, described);
}

#[tokio::test]
async fn errors_are_json_with_the_status_of_the_catalogue() {
    use talweg_client::{ErrorCode, Refusal};
    let failure: super::Failure = Refusal::new(ErrorCode::NoLeader, "t-0 has no leader now").into();
    let response = failure.into_response();
    assert_eq!(
        (
            response.status().as_u16(),
            response.headers()["retry-after"].as_bytes()
        ),
        (503, &b"1"[..])
    );
    let body = to_bytes(response.into_body(), 10_000).await.expect("body");
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(
        (&body["code"], &body["retriable"]),
        (&json!("NO_LEADER"), &json!(true))
    );
}
