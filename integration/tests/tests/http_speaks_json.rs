//! The HTTP surface with a plain HTTP caller: topics, both produces, fetch,
//! health, and errors with their statuses.

use serde_json::{Value, json};
use talweg_harness::{
    Stack,
    http::{Answer, call},
    raw,
};

struct Http {
    base: String,
}

impl Http {
    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Answer {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        call(method, &format!("{}{path}", self.base), headers, &body).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], &Value::Null).await
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        self.send("POST", path, &[], &body).await
    }
}

fn refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!(
        (answer.status, answer.json["code"].as_str()),
        (status, Some(code)),
        "{answer:?}"
    );
    assert!(
        answer.json["message"].as_str().is_some_and(|m| m.len() > 8),
        "{answer:?}"
    );
    assert!(
        answer.json["retriable"].is_boolean() && !answer.json["details"].is_string(),
        "{answer:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_speaks_json() {
    let stack = Stack::builder().start();
    let http = Http {
        base: stack.gateway_http(0),
    };

    // Health.
    for path in ["/healthz", "/readyz"] {
        assert_eq!(http.get(path).await.status, 200, "{path}");
    }
    let metrics = http.get("/metrics").await;
    assert!(
        metrics.status == 200 && metrics.body.starts_with(b"# HELP"),
        "{metrics:?}"
    );
    let api = http.get("/openapi.json").await;
    assert!(
        api.json["openapi"]
            .as_str()
            .is_some_and(|v| v.starts_with("3.1")),
        "{api:?}"
    );

    // Topics.
    let topic = json!({"name": "h", "partitions": 2, "retention_ms": 3_600_000, "config": {"compression.type": "gzip"}});
    let created = http
        .send("POST", "/v1/topics", &[("idempotency-key", "once")], &topic)
        .await;
    assert_eq!(created.status, 201, "{created:?}");
    let id = created.json["topic_id"].clone();
    assert_eq!(id.as_str().map(str::len), Some(36), "a hyphenated id");
    let again = http
        .send("POST", "/v1/topics", &[("idempotency-key", "once")], &topic)
        .await;
    assert_eq!(
        (again.status, &again.json["topic_id"]),
        (201, &id),
        "the same key is the same request"
    );
    let other = http.post("/v1/topics", topic.clone()).await;
    refused(&other, 409, "TOPIC_EXISTS");
    assert!(
        other.json.to_string().contains(id.as_str().expect("id")),
        "says whose the name is: {other:?}"
    );
    let got = http.get("/v1/topics/h").await;
    assert_eq!(got.status, 200);
    refused(&http.get("/v1/topics/nope").await, 404, "UNKNOWN_TOPIC");
    refused(
        &http.post("/v1/topics", json!({"name": "a b"})).await,
        400,
        "INVALID_NAME",
    );
    refused(
        &http
            .post(
                "/v1/topics",
                json!({"name": "c", "cleanup_policy": "compost"}),
            )
            .await,
        400,
        "INVALID_CONFIG",
    );
    refused(
        &http
            .post("/v1/topics", json!({"name": "c", "colour": "red"}))
            .await,
        400,
        "INVALID_ARGUMENT",
    );
    let grown = http
        .send("PATCH", "/v1/topics/h", &[], &json!({"partitions": 3}))
        .await;
    assert_eq!(grown.status, 200, "{grown:?}");
    assert!(
        grown.json["warnings"]
            .as_array()
            .is_some_and(|w| !w.is_empty()),
        "keys move: {grown:?}"
    );

    // Records: text and null, empty and null apart, headers, bytes.
    let sent = [
        json!({"key": "k", "value": "v", "headers": [["a", "1"], ["a", null], ["b", {"base64": "/w=="}]], "partition": 0}),
        json!({"key": null, "value": "", "partition": 0}),
        json!({"key": "", "value": null, "partition": 0}),
        json!({"key": "o", "value": "object headers", "headers": {"x": "y"}, "partition": 0}),
    ];
    for (i, record) in sent.iter().enumerate() {
        let answer = http
            .post("/v1/topics/h/records?acks=all", record.clone())
            .await;
        assert_eq!(
            (answer.status, &answer.json),
            (202, &json!({"partition": 0, "offset": i})),
            "{answer:?}"
        );
    }
    let none = http
        .post(
            "/v1/topics/h/records?acks=0",
            json!({"value": "x", "partition": 1}),
        )
        .await;
    assert_eq!((none.status, &none.json), (202, &json!({})));
    // B156 (confluentinc/kafka-rest #112): strict base64.
    let bytes = http
        .post(
            "/v1/topics/h/produce",
            json!({"key": "b", "value": "/wA=", "acks": "all", "partition": 0}),
        )
        .await;
    assert_eq!(
        (bytes.status, &bytes.json["offset"]),
        (200, &json!(4)),
        "{bytes:?}"
    );
    assert!(bytes.json["timestamp"].is_i64(), "{bytes:?}");
    for bad in ["/wA", "/wA==", "not base64!", "/w A="] {
        refused(
            &http
                .post(
                    "/v1/topics/h/produce",
                    json!({"value": bad, "partition": 0}),
                )
                .await,
            400,
            "INVALID_ARGUMENT",
        );
    }
    let found = http.get("/v1/topics/h/partitions/0/records?offset=0").await;
    assert_eq!(found.status, 200, "{found:?}");
    let records = found.json["records"].as_array().expect("records");
    assert_eq!(
        (
            records.len(),
            &found.json["next_offset"],
            &found.json["high_watermark"]
        ),
        (5, &json!(5), &json!(5))
    );
    assert_eq!(
        records[0]["headers"],
        json!([["a", "1"], ["a", null], ["b", {"base64": "/w=="}]])
    );
    assert_eq!(
        (&records[1]["key"], &records[1]["value"]),
        (&Value::Null, &json!(""))
    );
    assert_eq!(
        (&records[2]["key"], &records[2]["value"]),
        (&json!(""), &Value::Null)
    );
    assert_eq!(records[3]["headers"], json!([["x", "y"]]));
    assert_eq!(records[4]["value_base64"], json!("/wA="));
    assert!(
        records[4].get("value").is_none(),
        "bytes are not text: {}",
        records[4]
    );

    // Idempotency: by key, and by producer and sequence.
    let keyed = json!({"value": "bW9uZXk=", "idempotency_key": "pay-1"});
    let first = http.post("/v1/topics/h/produce", keyed.clone()).await;
    let repeat = http.post("/v1/topics/h/produce", keyed).await;
    assert_eq!(
        (first.status, repeat.status),
        (200, 200),
        "{first:?} {repeat:?}"
    );
    assert_eq!(
        (&first.json["partition"], &first.json["offset"]),
        (&repeat.json["partition"], &repeat.json["offset"])
    );
    let numbered = |sequence: &'static str| {
        let http = &http;
        async move {
            let headers = [("x-producer-id", "till-7"), ("x-sequence", sequence)];
            http.send(
                "POST",
                "/v1/topics/h/records",
                &headers,
                &json!({"value": sequence, "partition": 2}),
            )
            .await
        }
    };
    let base = numbered("0").await;
    assert_eq!(base.status, 202, "{base:?}");
    assert_eq!(
        numbered("0").await.json["offset"],
        base.json["offset"],
        "a repeated sequence gets the original offset"
    );
    let gap = numbered("2").await;
    refused(&gap, 409, "OUT_OF_ORDER_SEQUENCE");
    assert!(
        gap.json["details"].to_string().contains('1'),
        "the expected sequence: {gap:?}"
    );
    for sequence in ["1", "2", "3", "4", "5", "6"] {
        assert_eq!(numbered(sequence).await.status, 202);
    }
    let old = numbered("0").await;
    assert_eq!(
        (old.status, &old.json["offset"], &old.json["duplicate"]),
        (202, &Value::Null, &json!(true)),
        "{old:?}"
    );

    // Fetch: by time, out of range, long poll, limits.
    let end = http
        .get("/v1/topics/h/partitions/0/records?offset=0")
        .await
        .json["high_watermark"]
        .as_i64()
        .expect("a number");
    let late = http.get("/v1/topics/h/partitions/0/records?offset=9").await;
    refused(&late, 416, "OFFSET_OUT_OF_RANGE");
    assert!(
        late.json["details"]["high_watermark"] == json!(end),
        "with the bounds: {late:?}"
    );
    let by_time = http
        .get(&format!(
            "/v1/topics/h/partitions/0/records?timestamp={}",
            raw::now_ms() + 60_000
        ))
        .await;
    assert_eq!(
        (
            by_time.status,
            &by_time.json["records"],
            &by_time.json["next_offset"]
        ),
        (200, &json!([]), &json!(end))
    );
    let started = std::time::Instant::now();
    let awaited = format!("/v1/topics/h/partitions/0/records?offset={end}&wait_ms=20000");
    let poll = http.get(&awaited);
    let late_record = async {
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        http.post(
            "/v1/topics/h/records",
            json!({"value": "awaited", "partition": 0}),
        )
        .await
    };
    let (polled, _) = tokio::join!(poll, late_record);
    assert_eq!(
        polled.json["records"][0]["value"],
        json!("awaited"),
        "{polled:?}"
    );
    assert!(
        started.elapsed().as_secs() < 10,
        "woken by the record, not by the time-out"
    );
    refused(
        &http
            .get("/v1/topics/h/partitions/0/records?offset=0&wait_ms=30001")
            .await,
        400,
        "INVALID_ARGUMENT",
    );
    refused(
        &http.get("/v1/topics/h/partitions/7/records?offset=0").await,
        404,
        "UNKNOWN_PARTITION",
    );
    refused(
        &http
            .post("/v1/topics/h/records?acks=2", json!({"value": "x"}))
            .await,
        400,
        "INVALID_ARGUMENT",
    );
    refused(
        &http
            .post(
                "/v1/topics/h/records",
                json!({"value": "x".repeat(1_100_000)}),
            )
            .await,
        413,
        "RECORD_TOO_LARGE",
    );
    for bad in [
        "/v1/groups/g/lag",
        "/v1/groups/g/records",
        "/v1/groups/g/records?topic=h&max=501",
        "/v1/topics/h/consume",
        "/v1/topics/h/consume?group=g&position=h:0",
    ] {
        refused(&http.get(bad).await, 400, "INVALID_ARGUMENT");
    }

    let gone = http.send("DELETE", "/v1/topics/h", &[], &Value::Null).await;
    assert!(matches!(gone.status, 200 | 204), "{gone:?}");
    refused(&http.get("/v1/topics/h").await, 404, "UNKNOWN_TOPIC");
}
