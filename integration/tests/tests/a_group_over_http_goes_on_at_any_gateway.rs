//! Two curls of one group over two gateways beside a member with a stream: positions
//! go on, commits are fenced, seeks move. A group that falls behind retention hears of it
//! before (`seconds_to_loss`) and gets a `gap` frame after.

mod operator;

use operator::{PATIENCE, list, try_talweg};
use serde_json::{Value, json};
use std::{process::Command, time::Duration};
use talweg_harness::{
    Member, Stack, eventually,
    member::{Commits, subscription},
    raw::{self, RawProduce, connect, create_topic},
};
use talweg_proto::v1::{self, Acks};

/// `seconds_to_loss` below this is the warning: some KiB of room, filled at a few hundred
/// bytes a second.
const WARNED: f64 = 600.0;

/// Status and body.
fn curl(args: &[&str]) -> (u16, Value) {
    let run = || {
        Command::new("curl")
            .args(["-sS", "-w", "\n%{http_code}"])
            .args(args)
            .output()
    };
    let output = tokio::task::block_in_place(run).expect("curl runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').expect("a status");
    let body = match body {
        "" => Value::Null,
        body => serde_json::from_str(body).unwrap_or_else(|why| panic!("{why}: {body}")),
    };
    (status.parse().expect("a status"), body)
}

fn post(url: &str, body: &Value, headers: &[&str]) -> (u16, Value) {
    let body = body.to_string();
    let mut args = vec![
        "-X",
        "POST",
        "-H",
        "content-type: application/json",
        "-d",
        &body,
    ];
    for header in headers {
        args.extend(["-H", header]);
    }
    args.push(url);
    curl(&args)
}

async fn produce(stack: &Stack, values: std::ops::Range<u32>) {
    let channel = connect(&stack.gateway(0)).await;
    let mut produce = RawProduce::open(&channel, Acks::All).await;
    for n in values {
        let record = v1::Record {
            partition: Some(n % 2),
            value: Some(n.to_string().into()),
            ..Default::default()
        };
        produce.record("t", record).await.expect("appended");
    }
}

fn values(answer: &Value) -> Vec<u32> {
    let number = |record: &Value| {
        record["value"]
            .as_str()
            .expect("text")
            .parse()
            .expect("a number")
    };
    list(&answer["records"]).iter().map(number).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_curls_over_two_gateways() {
    let stack = Stack::builder().gateways(2).coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", 2, &[]).await;
    produce(&stack, 0..20).await;
    let (one, two) = (stack.gateway_http(0), stack.gateway_http(1));
    // A member of its own; what it was sent goes on at the other gateway.
    let first = |url: &str| format!("{url}/v1/groups/g/records?topic=t&max=6&wait_ms=5000");
    let (status, answer) = eventually("records", PATIENCE, || async {
        let (status, answer) = curl(&[&first(&one)]);
        match list(&answer["records"]).is_empty() {
            true => Err(format!("{status} {answer}")),
            false => Ok((status, answer)),
        }
    })
    .await;
    assert_eq!(status, 200);
    let mut got = values(&answer);
    let member = answer["member"].as_str().expect("a member").to_owned();
    let header = format!("X-Member-Id: {member}");
    while got.len() < 20 {
        let (status, answer) = curl(&["-H", &header, &first(&two)]);
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["member"], member, "the same member");
        got.extend(values(&answer));
        assert!(list(&answer["records"]).len() <= 6);
    }
    got.sort_unstable();
    assert_eq!(
        got,
        (0..20).collect::<Vec<_>>(),
        "each once, over both gateways"
    );

    // A commit is the member's; without a commit nothing is stored.
    let (_, lag) = curl(&[&format!("{one}/v1/groups/g/lag?topic=t")]);
    assert_eq!(lag, json!({"0": 10, "1": 10}));
    let offsets = json!({"topic": "t", "offsets": {"0": 10, "1": 10}});
    for _ in 0..2 {
        let (status, body) = post(&format!("{two}/v1/groups/g/offsets"), &offsets, &[&header]);
        assert_eq!((status, &body), (204, &Value::Null), "twice is a no-op");
    }
    let (_, lag) = curl(&[&format!("{one}/v1/groups/g/lag?topic=t")]);
    assert_eq!(lag, json!({"0": 0, "1": 0}));
    let seek = json!({"group": "g", "partition": 1, "offset": 4});
    assert_eq!(
        post(&format!("{one}/v1/topics/t/seek"), &seek, &[&header]).0,
        204
    );
    let (_, lag) = curl(&[&format!("{one}/v1/groups/g/lag?topic=t&detail=true")]);
    let detail = list(&lag["lags"]).iter().find(|one| one["partition"] == 1);
    assert_eq!(detail.expect("partition 1")["lag_records"], 6, "{lag}");
    let (_, again) = curl(&["-H", &header, &first(&one)]);
    assert_eq!(
        values(&again).first(),
        Some(&9),
        "offset 4 of partition 1: {again}"
    );

    // A streaming member takes its share; commits without a member are fenced.
    let stream = Member::join(&[stack.gateway(0)], subscription("g", "t"), Commits::Frames).await;
    eventually("its share", PATIENCE, || async {
        // The HTTP member confirms with its polls.
        let (status, answer) = curl(&[
            "-H",
            &header,
            &format!("{two}/v1/groups/g/records?topic=t&max=1&wait_ms=100"),
        ]);
        match stream.owned().len() {
            1 => Ok(()),
            share => Err(format!("{share}: {status} {answer}")),
        }
    })
    .await;
    let (status, answer) = post(&format!("{one}/v1/groups/g/offsets"), &offsets, &[]);
    assert_eq!(
        (status, &answer["code"]),
        (409, &json!("FENCED")),
        "{answer}"
    );
    stream.leave(PATIENCE).await;
    stack.shards_agree().await;
    for (what, url) in [
        (
            "an unknown topic",
            format!("{one}/v1/groups/g/records?topic=no"),
        ),
        (
            "a bad group",
            format!("{one}/v1/groups/..%2f/records?topic=t"),
        ),
    ] {
        let (status, answer) = curl(&[&url]);
        assert!((400..500).contains(&status), "{what}: {status} {answer}");
    }
}

/// Polls until there are records or gaps; the answer.
async fn polled(url: &str, header: &str) -> Value {
    eventually("records", PATIENCE, || async {
        let (status, answer) = curl(&["-H", header, url]);
        let found = !list(&answer["records"]).is_empty();
        match status == 200 && found {
            true => Ok(answer),
            false => Err(format!("{status} {answer}")),
        }
    })
    .await
}

fn header_of(answer: &Value) -> String {
    format!(
        "X-Member-Id: {}",
        answer["member"].as_str().expect("a member")
    )
}

/// The endpoints that have the topic in their path, and what a query may say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topics_own_endpoints_consume_commit_and_seek() {
    let stack = Stack::builder().gateways(2).coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", 2, &[]).await;
    let mut produce = RawProduce::open(&channel, Acks::All).await;
    for n in 0..20_u32 {
        let record = v1::Record {
            partition: Some(n % 2),
            value: Some(n.to_string().into()),
            timestamp_ms: Some(i64::from(n) * 1_000),
            ..Default::default()
        };
        produce.record("t", record).await.expect("appended");
    }
    let (one, two) = (stack.gateway_http(0), stack.gateway_http(1));
    let consume = |url: &str| format!("{url}/v1/topics/t/consume?group=g&max_bytes=1000000");
    let mut answer = polled(&consume(&one), "X-Member-Id: new").await;
    let header = header_of(&answer);
    let mut got = values(&answer);
    while got.len() < 20 {
        answer = polled(&consume(&two), &header).await;
        got.extend(values(&answer));
    }
    got.sort_unstable();
    assert_eq!(got, (0..20).collect::<Vec<_>>(), "each once");
    let place = |partition, offset| json!({"topic": "t", "partition": partition, "offset": offset});
    assert_eq!(answer["positions"], json!([place(0, 10), place(1, 10)]));
    assert_eq!(
        (&answer["gaps"], &answer["errors"]),
        (&json!([]), &json!([]))
    );

    let commit = |offsets: Value| json!({"group": "g", "offsets": offsets});
    let url = format!("{two}/v1/topics/t/commit");
    let sent = post(&url, &commit(json!({"0": 10, "1": 10})), &[&header]);
    assert_eq!(sent, (204, Value::Null));
    let stored = eventually("offsets", PATIENCE, || raw::stored(&channel, "g", "t")).await;
    assert_eq!(stored, [(0, 10), (1, 10)].into());
    let (status, answer) = post(&url, &commit(json!({"0": 99})), &[&header]);
    assert_eq!(
        (status, &answer["code"]),
        (416, &json!("OFFSET_OUT_OF_RANGE")),
        "{answer}"
    );
    let (status, answer) = post(&url, &commit(json!({"0": -1})), &[&header]);
    assert_eq!(
        (status, &answer["code"]),
        (400, &json!("INVALID_ARGUMENT")),
        "{answer}"
    );

    // Offset 5 of partition 1 is the eleventh second; between two records the later one.
    let seek = |body: &str| {
        let mut body: Value = serde_json::from_str(body).expect("JSON");
        body["group"] = "g".into();
        post(&format!("{one}/v1/topics/t/seek"), &body, &[&header]).0
    };
    assert_eq!(seek(r#"{"partition": 1, "timestamp": 10500}"#), 204);
    assert_eq!(
        values(&polled(&consume(&two), &header).await),
        [11, 13, 15, 17, 19]
    );
    assert_eq!(
        seek(r#"{"partition": 1, "timestamp": 99999999}"#),
        204,
        "the end"
    );
    let stored = eventually("offsets", PATIENCE, || raw::stored(&channel, "g", "t")).await;
    assert_eq!(stored[&1], 10);
    assert_eq!(
        seek(r#"{"partition": 1, "timestamp": 1, "offset": 1}"#),
        400
    );
    assert_eq!(seek(r#"{"partition": 1}"#), 400);

    // A position that is said wins, over what was committed and what was returned.
    let from = format!("{}&position=t:0:7", consume(&one));
    assert_eq!(values(&polled(&from, &header).await), [14, 16, 18]);

    // What was deleted is told, and passed over.
    let target = v1::DeleteRecordsTarget {
        topic: "t".into(),
        partition: 0,
        before_offset: 4,
        ..Default::default()
    };
    let client = talweg_harness::member::client(&[stack.gateway(0)]);
    let deleted = client.offsets().delete_records(vec![target]).await;
    assert_eq!(deleted.expect("deleted")[0].error, None);
    let from = format!("{}&position=t:0:1", consume(&two));
    let answer = polled(&from, &header).await;
    let [gap] = list(&answer["gaps"]) else {
        panic!("{answer}");
    };
    let place = (&gap["topic"], &gap["partition"]);
    assert_eq!(place, (&json!("t"), &json!(0)), "{gap}");
    let lost = ["from_offset", "to_offset", "records_lost"].map(|key| gap[key].as_i64());
    assert_eq!(lost, [Some(1), Some(4), Some(3)], "{gap}");
    assert!(!gap["reason"].as_str().unwrap_or_default().is_empty());
    assert_eq!(values(&answer), [8, 10, 12, 14, 16, 18]);

    for odd in [
        "consume",
        "consume?group=g&topic=t",
        "consume?group=g&position=t:0",
        "consume?group=g&max_bytes=0",
        "consume?group=g&wait_ms=30001",
    ] {
        let (status, answer) = curl(&[&format!("{one}/v1/topics/t/{odd}")]);
        assert_eq!(
            (status, &answer["code"]),
            (400, &json!("INVALID_ARGUMENT")),
            "{odd}: {answer}"
        );
    }
    stack.shards_agree().await;
}

/// A partition goes from one member to another: what the first one was told before does
/// not commit there any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_member_id_commits_nothing() {
    let stack = Stack::builder().gateways(2).coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", 2, &[]).await;
    produce(&stack, 0..20).await;
    let (one, two) = (stack.gateway_http(0), stack.gateway_http(1));
    let poll = |url: &str| format!("{url}/v1/groups/g/records?topic=t&wait_ms=200");
    let old = header_of(&polled(&poll(&one), "X-Member-Id: new").await);
    let (mut first, mut second) = (old.clone(), "X-Member-Id: new".to_owned());
    // The first one gives up what it is asked for with its polls.
    let theirs = eventually("half each", PATIENCE, || {
        for (url, header) in [(&two, &mut second), (&one, &mut first)] {
            let (status, answer) = curl(&["-H", header, &poll(url)]);
            assert_eq!(status, 200, "{answer}");
            *header = header_of(&answer);
        }
        let (_, answer) = curl(&["-H", &second, &poll(&two)]);
        let positions = list(&answer["positions"]).to_vec();
        async move {
            match positions.as_slice() {
                [one] => Ok(one["partition"].as_u64().expect("a partition")),
                other => Err(format!("{other:?}")),
            }
        }
    })
    .await;
    let partition = theirs.to_string();
    let body = json!({"topic": "t", "offsets": {partition.as_str(): 10}});
    let commit =
        |url: &str, header: &str| post(&format!("{url}/v1/groups/g/offsets"), &body, &[header]);
    for (url, header) in [(&one, &old), (&two, &old), (&one, &first)] {
        let (status, answer) = commit(url, header);
        assert_eq!(
            (status, &answer["code"]),
            (409, &json!("FENCED")),
            "{answer}"
        );
    }
    let seek = json!({"group": "g", "partition": theirs, "offset": 3});
    let (status, answer) = post(&format!("{one}/v1/topics/t/seek"), &seek, &[&old]);
    assert_eq!(
        (status, &answer["code"]),
        (409, &json!("FENCED")),
        "{answer}"
    );
    assert_eq!(commit(&one, &second).0, 204, "its owner may");
    let stored = eventually("offsets", PATIENCE, || raw::stored(&channel, "g", "t")).await;
    assert_eq!(
        stored.get(&u32::try_from(theirs).expect("small")),
        Some(&10)
    );
    stack.shards_agree().await;
}

/// A member of its own asks for another topic as well: it gets it, and goes on in the
/// one that it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_over_http_asks_for_another_topic() {
    let stack = Stack::builder().gateways(1).coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    let mut produce = RawProduce::open(&channel, Acks::All).await;
    for topic in ["t", "u"] {
        create_topic(&channel, topic, 1, &[]).await;
        for n in 0..3_u32 {
            let record = v1::Record {
                value: Some(n.to_string().into()),
                ..Default::default()
            };
            produce.record(topic, record).await.expect("appended");
        }
    }
    let url = format!("{}/v1/groups/g/records", stack.gateway_http(0));
    let only_t = format!("{url}?topic=t&max=1&wait_ms=5000");
    let answer = eventually("a record", PATIENCE, || async {
        let (status, answer) = curl(&["-H", "X-Member-Id: new", &only_t]);
        match list(&answer["records"]).is_empty() {
            true => Err(format!("{status} {answer}")),
            false => Ok(answer),
        }
    })
    .await;
    assert_eq!(values(&answer), [0]);
    assert_eq!(answer["errors"], json!([]));
    let first = answer["member"].as_str().expect("a member").to_owned();
    let (mut header, mut got) = (format!("X-Member-Id: {first}"), Vec::new());
    let both = format!("{url}?topic=t&topic=u&wait_ms=500");
    while got.len() < 5 {
        let (status, answer) = curl(&["-H", &header, &both]);
        assert_eq!(status, 200, "{answer}");
        let place = |record: &Value| (record["topic"].clone(), record["offset"].clone());
        got.extend(list(&answer["records"]).iter().map(place));
        let member = answer["member"].as_str().expect("a member");
        assert_ne!(member, first, "it joined again");
        header = format!("X-Member-Id: {member}");
    }
    got.sort_by_key(|(topic, offset)| format!("{topic}{offset}"));
    let expected = [("t", 1), ("t", 2), ("u", 0), ("u", 1), ("u", 2)];
    assert_eq!(
        got,
        expected.map(|(topic, offset)| (json!(topic), json!(offset)))
    );
    stack.shards_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_behind_retention_is_warned_and_told() {
    let stack = Stack::builder().coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    // By size only: what is forecast comes from the pace of this story.
    let config = [
        ("segment.bytes", "4096"),
        ("retention.bytes", "20000"),
        ("retention.ms", "-1"),
    ];
    create_topic(&channel, "t", 2, &config).await;
    produce(&stack, 0..2).await;
    let member = Member::join(&[stack.gateway(0)], subscription("g", "t"), Commits::Frames).await;
    member
        .until("two records", PATIENCE, |heard| heard.committed.len() == 2)
        .await;
    member.leave(PATIENCE).await;
    produce(&stack, 2..60).await;
    eventually("it is warned", PATIENCE, || async {
        produce(&stack, 60..64).await;
        let lag = try_talweg(&stack, "group lag g")?;
        let lags = list(&lag["lags"]);
        let whole =
            |one: &Value| one["log_start_offset"].as_i64() <= one["committed_offset"].as_i64();
        assert!(lags.iter().all(whole), "warned only after the loss: {lag}");
        let soon = |one: &Value| one["seconds_to_loss"].as_f64().is_some_and(|s| s < WARNED);
        match lags.len() == 2 && lags.iter().all(soon) {
            true => Ok(()),
            false => Err(lag.to_string()),
        }
    })
    .await;
    eventually("retention passes it", PATIENCE, || async {
        produce(&stack, 64..300).await;
        let lag = try_talweg(&stack, "group lag g")?;
        let passed =
            |one: &Value| one["log_start_offset"].as_i64() > one["committed_offset"].as_i64();
        match list(&lag["lags"]).iter().all(passed) {
            true => Ok(()),
            false => Err(lag.to_string()),
        }
    })
    .await;
    let late = Member::join(&[stack.gateway(0)], subscription("g", "t"), Commits::Frames).await;
    late.until("a gap in each", Duration::from_secs(20), |heard| {
        heard.gaps.len() == 2
    })
    .await;
    late.until("records again", PATIENCE, |heard| !heard.records.is_empty())
        .await;
    for gap in late.heard().gaps {
        assert_eq!(
            (gap.from_offset, gap.records_lost),
            (1, gap.to_offset - 1),
            "{gap:?}"
        );
        assert!(!gap.reason.is_empty());
    }
    stack.shards_agree().await;
}
