//! `talweg dev` as a process: it starts, refuses, stops, is killed, and what it
//! acknowledged is there each time.
#![cfg(feature = "dev")]

mod dev_process;

use dev_process::{Dev, json_lines, partition_folder, talweg};
use rustix::process::Signal;
use serde_json::Value;
use std::{collections::BTreeSet, io::Read, net::TcpListener, path::Path, time::Duration};
use talweg_batch::BatchBuilder;
use talweg_client::{BatchProducer, Client, ClientConfig, ProducerConfig};
use talweg_types::{Compression, TimestampMs};

fn numbers(from: u32, to: u32) -> Vec<u8> {
    (from..to)
        .flat_map(|n| format!("{n}\n").into_bytes())
        .collect()
}

/// Values of everything in the topic, each once.
fn values(dev: &Dev, topic: &str) -> BTreeSet<String> {
    let records = dev.lines(&format!("consume {topic} --until-end"), b"");
    let values: BTreeSet<String> = records
        .iter()
        .map(|r| r["value"].as_str().expect("text").to_owned())
        .collect();
    assert_eq!(values.len(), records.len(), "a record is there twice");
    values
}

#[test]
fn what_was_acknowledged_outlives_a_stop_with_live_streams_and_a_kill() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let data = parent.path().join("data");
    let dev = Dev::start(&data);
    dev.lines("topic create t --partitions 3", b"");
    let acknowledged = dev.lines("produce t", &numbers(0, 2_000));
    assert_eq!(
        acknowledged.last().expect("a summary")["summary"]["acknowledged"],
        2_000
    );

    // A reader whose stream lives on when the process is told to stop.
    let mut reader = dev.reader("t");
    let mut first = [0];
    reader
        .stdout
        .as_mut()
        .expect("piped")
        .read_exact(&mut first)
        .expect("it reads");
    let (took, code) = dev.end(Signal::TERM);
    assert_eq!(code, Some(0), "a clean end");
    assert!(took < Duration::from_secs(5), "{took:?}");
    reader.kill().expect("it waits for the server to come back");
    reader.wait().expect("it ends");
    assert!(
        data.join("storage/clean").exists(),
        "the log was closed cleanly"
    );

    let dev = Dev::start(&data);
    assert_eq!(values(&dev, "t").len(), 2_000);
    dev.lines("produce t", &numbers(2_000, 3_000));
    dev.end(Signal::KILL);

    let dev = Dev::start(&data);
    let expected: BTreeSet<String> = (0..3_000).map(|n| n.to_string()).collect();
    assert_eq!(values(&dev, "t"), expected);
}

#[test]
fn a_folder_or_port_in_use_is_refused_by_name_and_leaves_the_other_alone() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let data = parent.path().join("data");
    let dev = Dev::start(&data);
    let refused = |words: &[&str], folder: &Path| {
        let output = talweg()
            .args(["--json", "dev"])
            .args(words)
            .arg("--data-dir")
            .arg(folder)
            .output()
            .expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stdout.is_empty(), "it was never ready");
        json_lines(&output.stderr)[0]["error"]["message"]
            .as_str()
            .expect("a message")
            .to_owned()
    };
    let free = ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"];
    let message = refused(&free, &data);
    assert!(
        message.contains("in use") && message.contains(&data.display().to_string()),
        "{message}"
    );

    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    for option in ["--grpc", "--http"] {
        let other = if option == "--grpc" {
            "--http"
        } else {
            "--grpc"
        };
        let message = refused(
            &[option, &address, other, "127.0.0.1:0"],
            &parent.path().join("other"),
        );
        assert!(message.contains(&address), "{message}");
    }
    dev.lines("topic create still-there --partitions 1", b"");
}

#[test]
fn bytes_null_and_empty_come_out_as_they_went_in() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let dev = Dev::start(&parent.path().join("data"));
    dev.lines("topic create t --partitions 1", b"");
    let input = b"k:v\r\n:empty key\nno separator\nN:V\nk:\n\n\xff:\xfe\n";
    dev.lines(
        "produce t --key-separator : --null-key N --null-value V --header a=1 --header a=",
        input,
    );
    let records = dev.lines("consume t --until-end", b"");
    let pick = |name: &str| {
        records
            .iter()
            .map(|r| r.get(name).cloned())
            .collect::<Vec<_>>()
    };
    let text = |text: &str| Some(Value::from(text));
    let null = Some(Value::Null);
    assert_eq!(
        pick("key"),
        [
            text("k"),
            text(""),
            null.clone(),
            null.clone(),
            text("k"),
            null.clone(),
            None
        ]
    );
    let value = [
        text("v\r"),
        text("empty key"),
        text("no separator"),
        null,
        text(""),
        text(""),
        None,
    ];
    assert_eq!(pick("value"), value);
    assert_eq!(records[6]["key_base64"], "/w==");
    assert_eq!(records[6]["value_base64"], "/g==");
    assert!(
        records
            .iter()
            .all(|r| r["headers"] == serde_json::json!([["a", "1"], ["a", ""]])),
        "{records:?}"
    );
}

/// One batch a record, so that segments and index entries fall where the story wants them.
async fn produce_48_bytes_500_times(grpc: &str) {
    let client = Client::connect([grpc], ClientConfig::default()).expect("a URL");
    let producer = BatchProducer::open(&client, ProducerConfig::default())
        .await
        .expect("a producer");
    for n in 0..500 {
        let mut builder = BatchBuilder::new(Compression::None);
        let value = format!("{n:048}");
        builder
            .push(
                TimestampMs(1_000 + n),
                None,
                Some(value.as_bytes()),
                std::iter::empty(),
            )
            .expect("a record");
        let batch = builder.build().expect("a batch");
        let delivery = producer.send("t", 0, batch).await.expect("sent");
        delivery.await.into_result().expect("acknowledged");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_up_bisects_to_the_segment_and_scans_at_most_one_index_interval() {
    // 500 records of 48 bytes in segments of 4 KiB, with an index entry every 512 bytes.
    let parent = tempfile::tempdir().expect("a temporary folder");
    let data = parent.path().join("data");
    let dev = Dev::start(&data);
    let settings = "--config segment.bytes=4096 --config index.interval.bytes=512";
    let created = dev.lines(&format!("topic create t --partitions 1 {settings}"), b"");
    let folder = partition_folder(&data, created[0]["topic_id"].as_str().expect("an id"), 0);
    produce_48_bytes_500_times(&dev.grpc).await;
    dev.end(Signal::TERM);

    let log = |words: &str| {
        let mut command = talweg();
        command
            .args(["--json", "log"])
            .args(words.split_whitespace());
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{words}: {output:?}");
        json_lines(&output.stdout)
    };
    let path = folder.display();
    let summary = log(&format!("dump {path} --verify"))
        .pop()
        .expect("a summary")["summary"]
        .clone();
    assert_eq!(
        (
            &summary["records"],
            &summary["end_offset"],
            &summary["problems"]
        ),
        (&500.into(), &500.into(), &0.into())
    );
    let segments = summary["segments"].as_u64().expect("a number");
    assert!(
        (12..=20).contains(&segments),
        "{segments} segments of 4 KiB"
    );
    let index = data.join("storage/index");
    for offset in [0, 1, 33, 34, 35, 36, 250, 498, 499] {
        for store in ["".to_owned(), format!(" --index {}", index.display())] {
            let found = log(&format!("lookup {path} {offset} --interval 512{store}"))[0].clone();
            let number = |value: &Value| value.as_u64().expect("a number");
            assert!(
                number(&found["segment"]["base_offset"]) <= offset
                    && number(&found["segment"]["bytes"]) <= 4096,
                "{found}"
            );
            assert_eq!(
                number(&found["batch"]["base_offset"]),
                offset,
                "one batch a record"
            );
            assert!(
                number(&found["segments_compared"]) <= 2 + u64::from(segments.ilog2()),
                "it bisects: {found}"
            );
            // The entry is at most an interval, and the batch that crossed it, before the offset.
            assert!(
                number(&found["scanned_bytes"]) < 512 + number(&found["batch"]["bytes"]),
                "{found}"
            );
            let entry = number(&found["index_entry"]["position"]);
            assert_eq!(
                entry + number(&found["scanned_bytes"]),
                number(&found["batch"]["position"])
            );
        }
    }
    let digest = |to: u32| log(&format!("dump {path} --digest --to {to}"))[0]["sha256"].clone();
    assert_eq!(digest(400), digest(400));
    assert_ne!(
        digest(400),
        digest(401),
        "the digest depends on every record"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_is_named_by_verify_and_no_success() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let data = parent.path().join("data");
    let dev = Dev::start(&data);
    let created = dev.lines(
        "topic create t --partitions 1 --config segment.bytes=4096",
        b"",
    );
    let folder = partition_folder(&data, created[0]["topic_id"].as_str().expect("an id"), 0);
    produce_48_bytes_500_times(&dev.grpc).await;
    dev.end(Signal::TERM);
    let segment = folder.join(format!("{:020}.log", 0));
    let mut bytes = std::fs::read(&segment).expect("the first segment");
    bytes[1_000] ^= 1;
    std::fs::write(&segment, bytes).expect("doctored");
    let output = talweg()
        .args(["--json", "log", "dump", "--verify"])
        .arg(&folder)
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let lines = json_lines(&output.stdout);
    let damage = lines
        .iter()
        .find_map(|line| line.get("damage"))
        .expect("the damage is named");
    let number = |name: &str| damage[name].as_i64().expect("a number");
    assert!(
        number("from_offset") < number("next_good_offset"),
        "{damage}"
    );
    assert!(
        number("next_good_offset") < 40,
        "only around the flipped bit: {damage}"
    );
    let output = talweg()
        .args(["--json", "log", "dump", "--digest"])
        .arg(&folder)
        .output()
        .expect("it runs");
    assert_eq!(
        output.status.code(),
        Some(1),
        "a digest over a part would compare what is not there"
    );
    assert_eq!(
        json_lines(&output.stderr)[0]["error"]["code"],
        "DATA_DAMAGED"
    );
}

#[test]
fn a_cold_start_is_quick() {
    // The promise is under a second on a warm machine; here a build may run beside us.
    let parent = tempfile::tempdir().expect("a temporary folder");
    let dev = Dev::start(&parent.path().join("data"));
    assert!(
        dev.started_in < Duration::from_secs(5),
        "{:?}",
        dev.started_in
    );
}
