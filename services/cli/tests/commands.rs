//! The commands against a gateway that answers as scripted: what is printed
//! where, and with which exit code the program ends.

mod scripted;

use scripted::{HELD, STOPPED, serve};
use serde_json::{Value, json};
use std::{net::SocketAddr, process::Stdio, time::Duration};
use tokio::{io::AsyncWriteExt, process::Command, time::timeout};

struct Ended {
    code: Option<i32>,
    out: Vec<Value>,
    err: Vec<Value>,
}

fn command(gateway: SocketAddr, words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_talweg"));
    command
        .args(["--json", "-b", &format!("http://{gateway}")])
        .args(words.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

async fn run(gateway: SocketAddr, words: &str, input: &[u8]) -> Ended {
    let mut child = command(gateway, words).spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("piped");
    // A command that does not read its input has closed it.
    drop(stdin.write_all(input).await);
    drop(stdin);
    let output = timeout(Duration::from_secs(60), child.wait_with_output())
        .await
        .expect("it ends")
        .expect("output");
    let lines = |bytes: &[u8]| {
        let text = String::from_utf8(bytes.to_vec()).expect("UTF-8");
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
            .collect()
    };
    Ended {
        code: output.status.code(),
        out: lines(&output.stdout),
        err: lines(&output.stderr),
    }
}

#[tokio::test]
async fn produce_lists_every_acknowledged_line() {
    let (gateway, _server) = serve().await;
    let ended = run(gateway, "produce good --partition 1", b"one\n\nthree").await;
    assert_eq!(
        (ended.code, ended.err.len()),
        (Some(0), 0),
        "{:?}",
        ended.err
    );
    let line =
        |line, offset| json!({"line": line, "partition": 1, "offset": offset, "timestamp": 1000});
    assert_eq!(ended.out[..3], [line(1, 100), line(2, 101), line(3, 102)]);
    let summary = &ended.out[3]["summary"];
    assert_eq!(
        (
            &summary["acknowledged"],
            &summary["failed"],
            &summary["unknown"]
        ),
        (&json!(3), &json!(0), &json!(0))
    );
    assert_eq!(summary["bytes"], 8);
    assert!(summary["elapsed_ms"].is_number());
}

#[tokio::test]
async fn produce_without_input_is_done() {
    let (gateway, _server) = serve().await;
    let ended = run(gateway, "produce good", b"").await;
    assert_eq!(
        (ended.code, ended.out.len(), ended.err.len()),
        (Some(0), 1, 0)
    );
    assert_eq!(ended.out[0]["summary"]["acknowledged"], 0);
}

#[tokio::test]
async fn a_partial_failure_is_a_failure_and_says_of_each_line_what_became_of_it() {
    let (gateway, _server) = serve().await;
    let ended = run(gateway, "produce partial", b"1\n2\n3\n4\n").await;
    assert_eq!(ended.code, Some(1));
    let acknowledged: Vec<&Value> = ended.out[..2].iter().map(|line| &line["line"]).collect();
    assert_eq!(acknowledged, [&json!(1), &json!(3)]);
    assert_eq!(ended.out[2]["summary"]["failed"], 2);
    let failed: Vec<_> = ended
        .err
        .iter()
        .map(|line| (&line["line"], &line["outcome"], &line["error"]["code"]))
        .collect();
    let expected = [json!(2), json!(4)];
    let (outcome, code) = (json!("failed"), json!("RECORD_TOO_LARGE"));
    assert_eq!(
        failed,
        [
            (&expected[0], &outcome, &code),
            (&expected[1], &outcome, &code)
        ]
    );
    assert_eq!(ended.err[0]["error"]["details"]["limit"], 10);
}

#[tokio::test]
async fn records_of_a_broken_stream_are_unknown_and_that_is_no_success() {
    let (gateway, _server) = serve().await;
    let ended = run(gateway, "produce breaks", b"1\n2\n").await;
    assert_eq!(ended.code, Some(1));
    let summary = &ended.out.last().expect("a summary")["summary"];
    assert_eq!(
        (&summary["acknowledged"], &summary["unknown"]),
        (&json!(0), &json!(2)),
        "{summary}"
    );
    assert!(
        ended.err.iter().all(|line| line["outcome"] == "unknown"),
        "{:?}",
        ended.err
    );
}

#[tokio::test]
async fn what_is_wrong_with_every_record_is_said_once_and_before_the_input_is_read() {
    let (gateway, _server) = serve().await;
    for (words, code) in [
        ("produce unknown", "UNKNOWN_TOPIC"),
        ("produce good --partition 2", "UNKNOWN_PARTITION"),
    ] {
        let ended = run(gateway, words, b"1\n2\n").await;
        assert_eq!(
            (ended.code, ended.out.len(), ended.err.len()),
            (Some(1), 0, 1),
            "{words}"
        );
        assert_eq!(ended.err[0]["error"]["code"], code, "{words}");
    }
}

#[tokio::test]
async fn consume_until_end_prints_what_was_there_at_the_start_and_no_more() {
    let (gateway, _server) = serve().await;
    let ended = run(gateway, "consume good --until-end", b"").await;
    assert_eq!(
        (ended.code, ended.err.len()),
        (Some(0), 0),
        "{:?}",
        ended.err
    );
    assert_eq!(
        ended.out.len() as i64,
        2 * HELD,
        "the record that came later is not printed"
    );
    let first = json!({"partition": 0, "offset": 0, "timestamp": 1000, "key": null, "value_base64": "dv8=", "headers": []});
    let second = json!({"partition": 0, "offset": 1, "timestamp": 1001, "key": "k", "value": null, "headers": []});
    let partition_0: Vec<_> = ended
        .out
        .iter()
        .filter(|record| record["partition"] == 0)
        .collect();
    assert_eq!(partition_0[..2], [&first, &second]);
}

#[tokio::test]
async fn consume_takes_only_the_partitions_and_the_number_asked_for() {
    let (gateway, _server) = serve().await;
    let ended = run(
        gateway,
        "consume good --partition 1 --partition 1 --max 2",
        b"",
    )
    .await;
    assert_eq!((ended.code, ended.out.len()), (Some(0), 2));
    assert!(ended.out.iter().all(|record| record["partition"] == 1));
    let ended = run(gateway, "consume good --partition 2", b"").await;
    assert_eq!((ended.code, ended.out.len()), (Some(1), 0));
    assert_eq!(ended.err[0]["error"]["code"], "UNKNOWN_PARTITION");
}

#[tokio::test]
async fn a_damaged_partition_does_not_stop_the_others_and_is_no_success() {
    let (gateway, _server) = serve().await;
    let ended = run(gateway, "consume half --until-end", b"").await;
    assert_eq!(ended.code, Some(1));
    assert_eq!(ended.out.len() as i64, HELD, "partition 0 is printed whole");
    let error = &ended.err[0]["error"];
    assert_eq!(
        (&error["code"], &error["details"]["next_good_offset"]),
        (&json!("DATA_DAMAGED"), &json!(2))
    );
}

#[tokio::test]
async fn a_reader_that_has_had_enough_is_a_quiet_end() {
    let (gateway, _server) = serve().await;
    let mut child = command(gateway, "consume good")
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    let output = timeout(Duration::from_secs(60), child.wait_with_output())
        .await
        .expect("it ends")
        .expect("output");
    assert_eq!(
        (output.status.code(), output.stderr.len()),
        (Some(0), 0),
        "{output:?}"
    );
}

#[tokio::test]
async fn an_interrupt_ends_a_reader_that_waits() {
    let (gateway, _server) = serve().await;
    let mut child = command(gateway, "consume good --format value")
        .spawn()
        .expect("the program starts");
    let mut stdout = tokio::io::BufReader::new(child.stdout.take().expect("piped"));
    // When the first record is here, it is reading and will wait for more.
    let mut line = Vec::new();
    tokio::io::AsyncBufReadExt::read_until(&mut stdout, b'\n', &mut line)
        .await
        .expect("a record");
    let pid = child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .and_then(rustix::process::Pid::from_raw)
        .expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("a signal");
    let status = timeout(Duration::from_secs(10), child.wait())
        .await
        .expect("it ends")
        .expect("a status");
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn refusals_of_topic_commands_keep_code_and_details() {
    let (gateway, _server) = serve().await;
    let ended = run(gateway, "topic create taken", b"").await;
    assert_eq!((ended.code, ended.out.len()), (Some(1), 0));
    assert_eq!(ended.err[0]["error"]["code"], "TOPIC_EXISTS");
    assert_eq!(
        ended.err[0]["error"]["details"]["topic_id"],
        "74616b65-6e20-2020-2020-202020202020"
    );
    let ended = run(gateway, "topic list", b"").await;
    assert_eq!(ended.code, Some(0));
    let names: Vec<_> = ended.out[0]["topics"]
        .as_array()
        .expect("topics")
        .iter()
        .map(|t| &t["name"])
        .collect();
    assert_eq!(names, [&json!("a"), &json!("b")]);
}

#[tokio::test]
async fn a_balancing_that_is_stopped_is_no_success() {
    let (gateway, _server) = serve().await;
    // Progress, which is for people, goes to standard error.
    let balance = async |words: &str| -> (Option<i32>, Value) {
        let child = command(gateway, words).output();
        let output = timeout(Duration::from_secs(60), child).await;
        let output = output.expect("it ends").expect("output");
        let told = serde_json::from_slice(&output.stdout).expect("JSON");
        (output.status.code(), told)
    };
    let (code, told) = balance("cluster balance --execute").await;
    assert_eq!(code, Some(0));
    assert_eq!(
        (&told["done"], &told["stopped"]),
        (&json!(true), &json!(false))
    );
    let words = format!("cluster balance --execute --throttle {STOPPED}");
    let (code, told) = balance(&words).await;
    assert_eq!(code, Some(1));
    assert_eq!(
        (&told["done"], &told["stopped"], &told["moves_done"]),
        (&json!(false), &json!(true), &json!(1)),
        "{told}"
    );
}

#[tokio::test]
async fn a_move_that_was_cancelled_while_it_was_waited_for_is_no_success() {
    let (gateway, _server) = serve().await;
    let moved = run(gateway, "partition reassign moved:1 --to 2 --wait", b"").await;
    assert_eq!(moved.code, Some(0), "{:?}", moved.err);
    assert_eq!(moved.out[0]["done"], true);
    let words = "partition reassign cancelled:1 --to 2 --wait";
    let cancelled = run(gateway, words, b"").await;
    assert_eq!((cancelled.code, cancelled.out.len()), (Some(1), 0));
    let message = &cancelled.err[0]["error"]["message"];
    assert!(
        message.as_str().is_some_and(|m| m.contains("on [1]")),
        "{message}"
    );
}

#[tokio::test]
async fn an_unclean_election_says_what_was_recorded_of_it() {
    let (gateway, _server) = serve().await;
    let lossy = run(gateway, "partition elect lossy:0 --unclean", b"").await;
    assert_eq!(lossy.code, Some(0), "{:?}", lossy.err);
    assert_eq!(
        lossy.out[0]["recovered"],
        json!({"leader_epoch": 7, "unclean": true, "time_ms": 11, "from_offset": 3})
    );
    let clean = run(gateway, "partition elect good:0", b"").await;
    assert_eq!(
        (clean.code, &clean.out[0]["recovered"]),
        (Some(0), &Value::Null)
    );
}
