//! `talweg` alone is a member of a group: it commits each record, each batch or nothing,
//! ends after so many records or at the end, and leaves. It lists groups, forgets offsets
//! and shows the lag as it changes. Exit codes and the shapes of `--json` are what scripts
//! depend on.

mod operator;

use operator::{PATIENCE, list, talweg, try_talweg, until};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
};
use talweg_client::{ErrorCode, Refusal};
use talweg_harness::{
    Process, Stack, binary, eventually,
    raw::{self, RawProduce, connect, create_topic},
};
use talweg_proto::v1::{self, Acks, offset_service_client::OffsetServiceClient};
use tonic::transport::Channel;

const PARTITIONS: u32 = 2;

async fn started() -> (Stack, Channel) {
    let stack = Stack::builder().coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", PARTITIONS as i32, &[]).await;
    (stack, channel)
}

async fn produce(channel: &Channel, count: u32) {
    let mut produce = RawProduce::open(channel, Acks::All).await;
    for n in 0..count {
        let record = v1::Record {
            partition: Some(n % PARTITIONS),
            key: Some("k".into()),
            value: Some(n.to_string().into()),
            ..Default::default()
        };
        produce.record("t", record).await.expect("appended");
    }
}

/// Exit code, standard output, standard error.
fn run(stack: &Stack, line: &str) -> (Option<i32>, String, String) {
    let output = tokio::task::block_in_place(|| {
        Command::new(binary("talweg"))
            .args(["--bootstrap", &stack.gateway(0)])
            .args(line.split_whitespace())
            .output()
            .expect("talweg runs")
    });
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn lines(text: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}"));
    text.lines().map(parse).collect()
}

/// What a command that must end well has read: partition and offset of each line.
fn read(stack: &Stack, line: &str) -> Vec<(u64, i64)> {
    let (code, out, error) = run(stack, line);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{line}");
    lines(&out).iter().map(place).collect()
}

fn place(record: &Value) -> (u64, i64) {
    let keys: Vec<_> = record.as_object().expect("an object").keys().collect();
    let shape = [
        "headers",
        "key",
        "offset",
        "partition",
        "timestamp",
        "value",
    ];
    assert_eq!(
        keys.iter().copied().collect::<BTreeSet<_>>(),
        shape.map(str::to_owned).iter().collect()
    );
    let partition = record["partition"].as_u64().expect("a partition");
    (partition, record["offset"].as_i64().expect("an offset"))
}

async fn stored(channel: &Channel, group: &str) -> Vec<(u32, i64)> {
    let stored = eventually("offsets", PATIENCE, || raw::stored(channel, group, "t")).await;
    stored.into_iter().collect()
}

fn left(stack: &Stack, group: &str) {
    let described = talweg(stack, &format!("group describe {group}"));
    assert_eq!(
        (&described["state"], list(&described["members"]).len()),
        (&json!("empty"), 0),
        "it has left: {described}"
    );
}

/// A command that goes on until it is told to stop, and the file that it writes to.
fn going_on(stack: &Stack, name: &str, line: &str) -> (Process, PathBuf) {
    let out = stack.folder().join(format!("{name}.out"));
    // The shell becomes the program.
    let script = format!("exec \"$0\" \"$@\" > {}", out.display());
    let talweg = binary("talweg").display().to_string();
    let args = ["-c", &script, &talweg, "--bootstrap", &stack.gateway(0)];
    let args = args.into_iter().chain(line.split_whitespace());
    let args = args.map(str::to_owned).collect();
    let mut process = Process::foreign(name, Path::new("/bin/sh"), args, stack.folder());
    process.spawn();
    (process, out)
}

async fn written(out: &Path, hope: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    eventually("its output", PATIENCE, || async {
        let text = std::fs::read_to_string(out).map_err(|why| why.to_string())?;
        // The last line may not be whole yet.
        let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        let values = lines(whole);
        match hope(&values) {
            true => Ok(values),
            false => Err(text),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_reads_commits_and_leaves() {
    let (stack, channel) = started().await;
    produce(&channel, 20).await;

    let first = read(&stack, "consume t --group g --max 5");
    assert_eq!(first.len(), 5);
    let after: i64 = stored(&channel, "g").await.iter().map(|(_, at)| at).sum();
    assert_eq!(after, 5, "what was printed, and no more");
    left(&stack, "g");
    let rest = read(&stack, "consume t --group g --until-end --commit each");
    let all: BTreeSet<_> = first.iter().chain(&rest).copied().collect();
    assert_eq!((rest.len(), all.len()), (15, 20), "each once");
    assert_eq!(stored(&channel, "g").await, [(0, 10), (1, 10)]);
    left(&stack, "g");
    assert_eq!(read(&stack, "consume t --group g --until-end"), []);

    produce(&channel, 4).await;
    let new = read(&stack, "consume t --group g --until-end --commit batch");
    let new: BTreeSet<_> = new.into_iter().collect();
    assert_eq!(new, [(0, 10), (0, 11), (1, 10), (1, 11)].into());
    assert_eq!(stored(&channel, "g").await, [(0, 12), (1, 12)]);

    for _ in 0..2 {
        let again = read(&stack, "consume t --group n --until-end --commit none");
        assert_eq!(again.len(), 24, "nothing was stored");
        left(&stack, "n");
    }
    assert!(stored(&channel, "n").await.iter().all(|(_, at)| *at == 0));
    let latest = "consume t --group l --from latest --until-end";
    assert_eq!(read(&stack, latest), []);
    let values = run(&stack, "consume t --group v --until-end --format key-value").1;
    assert_eq!(values.lines().count(), 24);
    assert!(
        values.lines().all(|line| line.starts_with("k\t")),
        "{values}"
    );

    for odd in [
        "consume t --group g --partition 0",
        "consume t --group g --from 7",
        "consume t --group g --commit sometimes",
        "consume t --commit each",
        "consume t --group g --max 0",
    ] {
        let (code, out, error) = run(&stack, odd);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{odd}");
        assert!(!error.is_empty(), "{odd}");
    }
    for (line, code) in [
        ("consume no --group g --until-end", "UNKNOWN_TOPIC"),
        ("consume t --group .. --until-end", "INVALID_NAME"),
    ] {
        let (exit, _, error) = run(&stack, &format!("--json {line}"));
        let error: Value = serde_json::from_str(&error).expect("one line of JSON");
        assert_eq!(
            (exit, &error["error"]["code"]),
            (Some(1), &json!(code)),
            "{line}"
        );
    }
    stack.shards_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_ends_it_with_all_that_it_printed_stored() {
    let (stack, channel) = started().await;
    let (mut reader, out) = going_on(&stack, "reader", "consume t --group g");
    until(&stack, "group describe g", |group| {
        let owned = list(&group["members"])
            .iter()
            .map(|it| list(&it["assignment"]).len());
        owned.sum::<usize>() == PARTITIONS as usize
    })
    .await;
    produce(&channel, 6).await;
    written(&out, |records| records.len() == 6).await;
    reader.terminate();
    let (_, status) = tokio::task::block_in_place(|| reader.wait_exit(PATIENCE));
    assert!(status.success(), "{status}: {}", reader.log_tail());
    assert_eq!(stored(&channel, "g").await, [(0, 3), (1, 3)]);
    left(&stack, "g");
    stack.shards_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_are_listed_and_offsets_forgotten() {
    let (stack, channel) = started().await;
    produce(&channel, 4).await;
    let none = talweg(&stack, "group list");
    assert_eq!(
        none,
        json!({"groups": [], "missing_coordinators": [], "missing_shards": []})
    );
    read(&stack, "consume t --group b --until-end");
    read(&stack, "consume t --group a --until-end");
    let listed = talweg(&stack, "group list");
    let groups = list(&listed["groups"]);
    let names: Vec<_> = groups.iter().map(|it| it["group"].clone()).collect();
    assert_eq!(names, ["a", "b"], "in the order of their names");
    for group in groups {
        assert_eq!(
            (&group["state"], &group["members"]),
            (&json!("empty"), &json!(0))
        );
        assert!(
            group["shard"].is_u64() && group["coordinator"].is_u64(),
            "{group}"
        );
        assert!(group["group_epoch"].is_i64() && group["assignor"].is_string());
    }
    let (code, out, _) = run(&stack, "group list");
    assert_eq!(
        (code, out.lines().count()),
        (Some(0), 3),
        "a head and a line each: {out}"
    );

    let (member, _) = going_on(&stack, "member", "consume t --group a");
    until(&stack, "group describe a", |group| {
        list(&group["members"]).len() == 1
    })
    .await;
    let refused = try_talweg(&stack, "group forget a --topic t --partition 1");
    let refused = refused.expect_err("it is in use");
    assert!(refused.contains("GROUP_NOT_EMPTY"), "{refused}");
    drop(member);
    let forgotten = talweg(&stack, "group forget b --topic t --partition 1");
    assert_eq!(forgotten["group"], "b");
    let deleted = list(&forgotten["deleted"]);
    assert_eq!(deleted.len(), 1, "{forgotten}");
    assert_eq!(
        (
            &deleted[0]["topic"],
            &deleted[0]["partition"],
            &deleted[0]["committed_offset"]
        ),
        (&json!("t"), &json!(1), &json!(2))
    );
    assert_eq!(stored(&channel, "b").await, [(0, 2)]);
    let again = talweg(&stack, "group forget b --topic t --partition 1");
    assert_eq!(again["deleted"], json!([]), "twice is a no-op");
    let (exit, _, error) = run(&stack, "--json group forget b --topic no");
    assert_eq!(exit, Some(1));
    assert!(error.contains("UNKNOWN_TOPIC"), "{error}");
    // Its partition begins anew, by the reset policy.
    let again: BTreeSet<_> = read(&stack, "consume t --group b --until-end")
        .into_iter()
        .collect();
    assert_eq!(again, [(1, 0), (1, 1)].into());
    stack.shards_agree().await;
}

fn lag_of(value: &Value) -> Option<i64> {
    let lags = list(&value["lags"]).iter();
    lags.map(|it| it["lag_records"].as_i64()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lag_is_watched() {
    let (stack, channel) = started().await;
    produce(&channel, 4).await;
    read(&stack, "consume t --group g --until-end");
    let line = "group lag g --watch --interval 100 --json";
    let (mut watching, out) = going_on(&stack, "watching", line);
    let looks = written(&out, |looks| looks.len() >= 2).await;
    let keys: BTreeSet<_> = looks[0].as_object().expect("an object").keys().collect();
    assert_eq!(
        keys,
        ["group", "state", "lags"]
            .map(str::to_owned)
            .iter()
            .collect()
    );
    for key in [
        "topic",
        "partition",
        "member",
        "committed_offset",
        "log_end_offset",
        "lag_records",
        "lag_bytes",
        "lag_seconds",
    ] {
        assert!(
            looks[0]["lags"][0].get(key).is_some(),
            "{key}: {}",
            looks[0]
        );
    }
    assert_eq!(lag_of(&looks[0]), Some(0));
    produce(&channel, 6).await;
    written(&out, |looks| looks.last().and_then(lag_of) == Some(6)).await;
    read(&stack, "consume t --group g --until-end");
    written(&out, |looks| looks.last().and_then(lag_of) == Some(0)).await;
    watching.terminate();
    let (_, status) = tokio::task::block_in_place(|| watching.wait_exit(PATIENCE));
    assert!(status.success(), "{status}: {}", watching.log_tail());

    // A table a look, without the control codes of a terminal.
    let (mut table, out) = going_on(&stack, "table", "group lag g --watch --interval 100");
    let text = eventually("two tables", PATIENCE, || async {
        let text = std::fs::read_to_string(&out).unwrap_or_default();
        match text.matches("group g: empty\n").count() {
            0 | 1 => Err(text),
            _ => Ok(text),
        }
    })
    .await;
    assert!(
        text.contains("lag_records") && !text.contains('\x1b'),
        "{text}"
    );
    table.terminate();
    let (_, status) = tokio::task::block_in_place(|| table.wait_exit(PATIENCE));
    assert!(status.success(), "{status}");
    for (odd, code) in [
        ("group lag nobody --watch", 1),
        ("group lag g --watch --interval 99", 2),
        ("group lag g --interval 100", 2),
    ] {
        assert_eq!(run(&stack, odd).0, Some(code), "{odd}");
    }
    stack.shards_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lag_is_watched_with_stubs_alone() {
    let (stack, channel) = started().await;
    produce(&channel, 4).await;
    assert_eq!(raw::commit(&channel, "g", ("t", 1), 1).await, Ok(()));
    let request = |interval_ms| v1::WatchLagRequest {
        group: "g".into(),
        topic: "t".into(),
        interval_ms,
    };
    let mut offsets = OffsetServiceClient::new(channel.clone());
    for odd in [0, 99, u32::MAX] {
        let refused = offsets.watch_lag(request(odd)).await.expect_err("refused");
        assert_eq!(
            Refusal::from_status(&refused).code,
            ErrorCode::InvalidArgument,
            "{odd}"
        );
    }
    let looks = offsets.watch_lag(request(100)).await.expect("opens");
    let mut looks = looks.into_inner();
    let mut next = async || {
        let look = tokio::time::timeout(PATIENCE, looks.message()).await;
        let look = look.expect("in time").expect("lives").expect("goes on");
        assert_eq!(look.state, "empty");
        look.lags
            .iter()
            .map(|lag| (lag.partition, lag.lag_records))
            .collect::<Vec<_>>()
    };
    assert_eq!(next().await, [(1, 1)]);
    assert_eq!(raw::commit(&channel, "g", ("t", 1), 2).await, Ok(()));
    let late = std::time::Instant::now() + PATIENCE;
    while next().await != [(1, 0)] {
        assert!(
            std::time::Instant::now() < late,
            "it goes on at the old offset"
        );
    }
    stack.shards_agree().await;
}
