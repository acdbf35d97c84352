//! `deploy/local/cluster` on this machine: up, looked at, written to and read from,
//! down. Nothing of it runs afterwards, its data stays.

use serde_json::Value;
use std::{
    collections::BTreeMap,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};
use talweg_harness::binary;

const KEYS: [&str; 6] = ["grpc", "http", "name", "node_id", "pid", "plane"];
const SMALL: [&str; 10] = [
    "--controllers",
    "2",
    "--storage",
    "2",
    "--racks",
    "2",
    "--gateways",
    "1",
    "--coordinators",
    "1",
];

/// Taken down when dropped, however the test ends.
struct Local {
    folder: PathBuf,
}

impl Local {
    fn run(&self, command: &str, more: &[&str]) -> Output {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let programs = binary("talweg-gateway");
        Command::new(root.join("deploy/local/cluster"))
            .arg(command)
            .arg("--dir")
            .arg(&self.folder)
            .args(more)
            .env("TALWEG_BIN", programs.parent().expect("a folder"))
            .output()
            .expect("python3 runs it")
    }

    fn done(&self, command: &str, more: &[&str]) -> String {
        let output = self.run(command, more);
        assert!(output.status.success(), "{command}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    fn status(&self) -> Vec<Value> {
        serde_json::from_str(&self.done("status", &["--json"])).expect("a list")
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.run("down", &[]);
    }
}

fn talweg(gateway: &str, line: &str, input: &[u8]) -> Vec<Value> {
    let mut child = Command::new(binary("talweg"))
        .args(["--bootstrap", gateway, "--json"])
        .args(line.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("talweg runs");
    let mut stdin = child.stdin.take().expect("piped");
    // A command that reads nothing has closed it.
    let _ = stdin.write_all(input);
    drop(stdin);
    let output = child.wait_with_output().expect("talweg ends");
    assert!(output.status.success(), "talweg {line}: {output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let parse = |line: &str| serde_json::from_str(line).expect("JSON");
    text.lines().map(parse).collect()
}

fn runs(pid: &Value) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|s| s.chars().next());
    state.is_some_and(|state| state != 'Z')
}

#[test]
fn what_goes_up_is_listed_serves_and_comes_down() {
    let folder = tempfile::tempdir().expect("a folder");
    let local = Local {
        folder: folder.path().join("cluster"),
    };
    local.done("up", &SMALL);
    let listed = local.status();
    let mut planes: BTreeMap<&str, usize> = BTreeMap::new();
    for entry in &listed {
        let keys: Vec<_> = entry.as_object().expect("an object").keys().collect();
        assert_eq!(keys, KEYS, "{entry}");
        assert!(runs(&entry["pid"]), "{entry}");
        let plane = entry["plane"].as_str().expect("a plane");
        *planes.entry(plane).or_default() += 1;
        let http = entry["http"].as_str().expect("a URL");
        assert_eq!(http.starts_with("http://"), plane != "etcd", "{entry}");
        if plane == "storage" {
            assert!(entry["node_id"].as_u64() > Some(0), "{entry}");
        }
    }
    let promised = [
        ("controller", 2),
        ("coordinator", 1),
        ("etcd", 1),
        ("gateway", 1),
        ("storage", 2),
    ];
    assert_eq!(planes, BTreeMap::from(promised));

    let second = local.run("up", &SMALL);
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    assert_eq!(local.status(), listed, "what runs is left alone");

    let gateway = listed.iter().find(|entry| entry["plane"] == "gateway");
    let url = gateway.expect("a gateway")["grpc"].as_str();
    let url = url.expect("a URL");
    talweg(
        url,
        "topic create t --partitions 1 --replication-factor 2",
        b"",
    );
    talweg(url, "produce t --acks all", b"one\ntwo\n");
    let read = talweg(url, "consume t --until-end", b"");
    let values: Vec<_> = read.iter().map(|record| &record["value"]).collect();
    assert_eq!(values, ["one", "two"]);

    local.done("down", &[]);
    assert_eq!(local.status(), Vec::<Value>::new());
    for entry in &listed {
        assert!(!runs(&entry["pid"]), "{entry} still runs");
    }
    assert!(local.folder.join("storage-1").is_dir(), "data stays");
}
