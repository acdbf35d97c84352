//! Every command that the operator's pages name is run against a real cluster on
//! etcd, in the order in which a night with a lost node, a replaced disk and a
//! partition without a leader would need them. A command that a page names and
//! nobody rehearses fails this test.

mod operator;

use operator::{
    PATIENCE, all_in_sync, another_storage, ids, list, node, talweg, try_talweg, until,
};
use serde_json::Value;
use std::{
    cell::RefCell,
    collections::BTreeSet,
    fs,
    path::PathBuf,
    process::{Command, Output},
};
use talweg_harness::{
    Load, Stack, binary, eventually,
    raw::{RawProduce, batch, connect},
};
use talweg_proto::v1::{Acks, produce_response::Frame};
use tonic::transport::Channel;

const PAGES: [&str; 3] = [
    "README.md",
    "docs/operations/README.md",
    "docs/operations/alarms.md",
];
/// Rehearsed by tests of their own: (command, test).
const ELSEWHERE: [(&str, &str); 8] = [
    ("talweg tour failover", "the_failover_story"),
    ("talweg dev", "acknowledged_records_survive_kill_9"),
    ("talweg group lag", "the_command_line_reads_as_a_group"),
    (
        "talweg group lag GROUP --watch",
        "the_command_line_reads_as_a_group",
    ),
    (
        "talweg group describe GROUP",
        "the_command_line_reads_as_a_group",
    ),
    (
        "talweg group forget GROUP --topic TOPIC",
        "the_command_line_reads_as_a_group",
    ),
    ("talweg group delete GROUP", "field_reports_groups"),
    (
        "talweg dlq list --group GROUP",
        "failed_records_are_tried_again_and_then_set_aside",
    ),
];
/// A node's id, a partition, a throttle: what stands for something else in a page.
const PLACES: [&str; 12] = [
    "ID",
    "TOPIC",
    "TOPIC:P",
    "FOLDER",
    "PATH",
    "R",
    "G",
    "1,2,4",
    "1,2,3",
    "BYTES_PER_S",
    "…",
    "B",
];

fn project() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").expect("run by cargo");
    PathBuf::from(here).join("../..")
}

/// The words of a command that are not arguments: "partition elect --unclean".
fn shape(line: &str) -> BTreeSet<String> {
    let words = line
        .split_whitespace()
        .map(|word| word.trim_matches(['[', ']']));
    let words = words.flat_map(|word| word.split('='));
    let fixed = words.filter(|word| {
        !PLACES.contains(word)
            && (word.starts_with("--") || word.chars().all(|c| c.is_ascii_lowercase()))
    });
    let shown = fixed.filter(|word| !["--json", "retention.ms"].contains(word));
    shown.map(str::to_owned).collect()
}

/// Code spans that begin with `talweg `.
fn spans(page: &str) -> impl Iterator<Item = &str> {
    let odd = page.split('`').skip(1).step_by(2);
    odd.filter(|span| span.starts_with("talweg ") && !span.starts_with("talweg -b"))
}

/// The pages' commands that nothing in `done` covers. A command is covered by one
/// with at least its words.
fn missing(pages: &[String], done: &[BTreeSet<String>]) -> Vec<String> {
    let elsewhere = ELSEWHERE.map(|(line, _)| line);
    let named = pages.iter().flat_map(|page| spans(page));
    let named = named.filter(|span| !elsewhere.contains(span));
    let lacks = |span: &&str| {
        let wanted = shape(span);
        !done.iter().any(|run| wanted.is_subset(run))
    };
    named.filter(lacks).map(str::to_owned).collect()
}

/// Runs commands and remembers which.
struct Night<'a> {
    stack: &'a Stack,
    done: RefCell<Vec<BTreeSet<String>>>,
}

impl Night<'_> {
    fn remember(&self, line: &str) {
        self.done
            .borrow_mut()
            .push(shape(&format!("talweg {line}")));
    }

    /// With `--json`, and once more in text, if that changes nothing.
    fn run(&self, line: &str) -> Value {
        self.remember(line);
        talweg(self.stack, line)
    }

    fn look(&self, line: &str) -> Value {
        let text = self.text(line);
        assert!(text.status.success(), "{line}: {text:?}");
        assert!(!text.stdout.is_empty(), "{line} says something");
        self.run(line)
    }

    fn text(&self, line: &str) -> Output {
        let gateway = self.stack.gateway(0);
        let run = || {
            Command::new(binary("talweg"))
                .args(["-b", &gateway])
                .args(line.split_whitespace())
                .output()
        };
        tokio::task::block_in_place(run).expect("talweg runs")
    }

    async fn until(&self, line: &str, hope: impl Fn(&Value) -> bool) -> Value {
        self.remember(line);
        until(self.stack, line, hope).await
    }
}

/// The page's script, as it stands there, with `talweg` on the path.
fn script(stack: &Stack, page: &str) -> Output {
    let from = page.split_once("```sh\n").expect("a script").1;
    let script = from.split_once("```").expect("its end").0;
    let programs = binary("talweg").parent().expect("a folder").to_owned();
    let path = std::env::var("PATH").expect("PATH");
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", script]);
    shell.env("PATH", format!("{}:{path}", programs.display()));
    shell.env("TALWEG_BOOTSTRAP", stack.gateway(0));
    tokio::task::block_in_place(|| shell.output()).expect("bash runs")
}

async fn write(channel: &Channel, topic: &str, value: &[u8]) {
    let mut produce = RawProduce::open(channel, Acks::Leader).await;
    produce.send_batch(topic, 0, batch(&[value])).await;
    match produce.next().await {
        Ok(Some(Frame::BatchAck(_))) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_of_the_pages_is_run_on_a_cluster() {
    let mut stack = Stack::builder().storages(4).controllers_on_etcd(2).start();
    let pages = PAGES.map(|page| fs::read_to_string(project().join(page)).expect(page));
    let channel = connect(&stack.gateway(0)).await;
    let night = Night {
        stack: &stack,
        done: RefCell::default(),
    };
    night.run("topic create t --partitions 6 --replication-factor 3");
    night.run("topic create pair --partitions 1 --replication-factor 2");
    all_in_sync(&stack, "t", 3).await;
    let load = Load::start(vec![stack.gateway(0)], "t", 6, Acks::All).await;
    load.advance(0, 100, PATIENCE).await;

    // A healthy cluster: the script names no partition.
    let whole = script(&stack, &pages[2]);
    assert!(
        whole.status.success() && whole.stdout.is_empty(),
        "{whole:?}"
    );
    night.look("cluster describe");
    let topic = night.look("topic describe t");
    assert!(
        list(&topic["partitions"])
            .iter()
            .all(|p| !p["replicas_detail"].is_null()),
        "{topic}"
    );
    night.run("topic alter t --config retention.ms=86400000");
    night.look("consume t --rack r1 --max 1");

    // Planned work on a node.
    night.run("node drain 1");
    night
        .until("topic describe t", |topic| {
            list(&topic["partitions"]).iter().all(|p| p["leader"] != 1)
        })
        .await;
    night.run("node undrain 1");
    let leads =
        |topic: &Value, id: u64| list(&topic["partitions"]).iter().any(|p| p["leader"] == id);
    night
        .until("topic describe t", |topic| leads(topic, 1))
        .await;

    // One more node, one less.
    let mut fifth = another_storage(&stack, "storage-fifth");
    night
        .until("cluster describe", |cluster| {
            list(&cluster["nodes"]).iter().any(|n| n["node_id"] == 5)
        })
        .await;
    let plan = night.look("cluster balance --plan");
    assert!(!list(&plan["moves"]).is_empty(), "{plan}");
    night.run("cluster balance --execute --throttle 50000000");
    night.run("node drain 4");
    night.run("cluster balance --execute");
    let gone = night
        .until("cluster describe", |cluster| {
            node(cluster, 4)["replicas"] == 0
        })
        .await;
    assert_eq!(node(&gone, 4)["draining"], true, "{gone}");

    // A move by hand, looked at, taken back, done.
    night.run("topic create big --partitions 1 --replication-factor 3");
    for n in 0..8_u8 {
        let value: Vec<u8> = (0..900_000_u32)
            .map(|i| (i.wrapping_mul(i) % 251) as u8 ^ n)
            .collect();
        write(&channel, "big", &value).await;
    }
    let before = all_in_sync(&stack, "big", 3).await;
    let old = ids(&before["partitions"][0]["replicas"]);
    let new = [1, 2, 3, 5]
        .into_iter()
        .find(|id| !old.contains(id))
        .expect("a node without");
    let to = format!("{},{},{new}", old[0], old[1]);
    night.run(&format!("partition reassign big:0 --to {to} --throttle 1"));
    let status = night.look("partition status");
    assert_eq!(list(&status["reassignments"]).len(), 1, "{status}");
    night.run("partition cancel big:0");
    let again = format!("partition reassign big:0 --to {to} --throttle 50000000 --wait");
    night.remember(&again);
    eventually("the first copy is deleted", PATIENCE, || async {
        try_talweg(&stack, &again)
    })
    .await;
    assert_eq!(
        ids(&all_in_sync(&stack, "big", 3).await["partitions"][0]["replicas"]),
        [old[0], old[1], new]
    );
    night.run("partition elect big:0");

    // What a node has on disk.
    let folder = fs::read_dir(stack.storage_data(0)).expect("a data folder");
    let names = folder.map(|entry| entry.expect("an entry").path());
    // `<topic id>-<partition>`
    let is_replica =
        |path: &PathBuf| path.is_dir() && path.to_string_lossy().matches('-').count() >= 5;
    let replica = names.into_iter().find(is_replica).expect("a replica");
    night.look(&format!("log dump {} --verify", replica.display()));
    night.look(&format!(
        "log dump {} --digest --newest --to 1",
        replica.display()
    ));
    load.finish(&stack.gateway(0)).await;
    let done = night.done.into_inner();

    // A partition whose last leader is gone for good.
    let pair = all_in_sync(&stack, "pair", 2).await;
    let first = pair["partitions"][0]["leader"].as_u64().expect("a leader");
    let second = ids(&pair["partitions"][0]["replicas"])
        .into_iter()
        .find(|id| *id != first);
    let second = second.expect("a follower");
    write(&channel, "pair", b"both").await;
    let mut stop = |stack: &mut Stack, id: u64| match id {
        5 => fifth.kill9(),
        _ => stack.storages[id as usize - 1].kill9(),
    };
    stop(&mut stack, second);
    until(&stack, "topic describe pair", |pair| {
        ids(&pair["partitions"][0]["in_sync"]) == [first]
    })
    .await;
    write(&channel, "pair", b"one").await;
    stop(&mut stack, first);
    until(&stack, "topic describe pair", |pair| {
        pair["partitions"][0]["leader"].is_null()
    })
    .await;
    let lame = script(&stack, &pages[2]);
    let named = String::from_utf8_lossy(&lame.stdout).into_owned();
    assert!(
        lame.status.success() && named.contains("\"topic\":\"pair\""),
        "{lame:?}"
    );
    match second {
        5 => tokio::task::block_in_place(|| fifth.start(PATIENCE)),
        _ => tokio::task::block_in_place(|| stack.storages[second as usize - 1].start(PATIENCE)),
    }
    eventually("none is eligible", PATIENCE, || async {
        let refused = try_talweg(&stack, "partition elect pair:0").expect_err("nobody leads");
        match refused.contains("NO_LEADER") {
            true => Ok(()),
            false => Err(refused),
        }
    })
    .await;
    let night = Night {
        stack: &stack,
        done: RefCell::new(done),
    };
    night.remember("partition elect pair:0 --unclean");
    let elected = eventually("the best that lives leads", PATIENCE, || async {
        try_talweg(&stack, "partition elect pair:0 --unclean")
    })
    .await;
    assert_eq!(elected["recovered"]["unclean"], true, "{elected}");
    let pair = night
        .until("topic describe pair", |pair| {
            pair["partitions"][0]["leader"] == second
        })
        .await;
    assert_eq!(
        pair["partitions"][0]["recovered"], elected["recovered"],
        "{pair}"
    );

    // The node that was drained leaves for good.
    let done = night.done.into_inner();
    stack.storages[3].stop(PATIENCE);
    let night = Night {
        stack: &stack,
        done: RefCell::new(done),
    };
    night.remember("node remove 4");
    eventually("it is forgotten", PATIENCE, || async {
        try_talweg(&stack, "node remove 4")
    })
    .await;
    let after = night.look("cluster describe");
    assert!(
        list(&after["nodes"]).iter().all(|n| n["node_id"] != 4),
        "{after}"
    );

    let left = missing(&pages, &night.done.into_inner());
    assert!(
        left.is_empty(),
        "pages name these, nobody rehearses them: {left:#?}"
    );
}

#[test]
fn a_command_that_nobody_runs_is_missed() {
    let done = [
        shape("talweg node drain 1"),
        shape("talweg partition reassign t:0 --to 1,2 --wait"),
    ];
    let page = |text: &str| vec![text.to_owned()];
    assert!(
        missing(
            &page("do `talweg node drain ID`, `talweg partition reassign TOPIC:P --to 1,2,4`"),
            &done
        )
        .is_empty()
    );
    assert_eq!(
        missing(&page("or `talweg node undrain ID`"), &done),
        ["talweg node undrain ID"]
    );
    let flag = "talweg partition reassign TOPIC:P --throttle B";
    assert_eq!(missing(&page(&format!("`{flag}`")), &done), [flag]);
    for (_, test) in ELSEWHERE {
        let file = project()
            .join("integration/tests/tests")
            .join(format!("{test}.rs"));
        assert!(file.exists(), "{test}");
    }
}
