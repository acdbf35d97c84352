//! What operators do in the stories: `talweg` as a program, and planes that are
//! started later.

#![allow(dead_code)]

use serde_json::Value;
use std::{process::Command, time::Duration};
use talweg_harness::{Process, Stack, binary, eventually, free_port};

/// For anything that a busy machine may take its time with.
pub const PATIENCE: Duration = Duration::from_secs(40);
const START: Duration = Duration::from_secs(30);

/// Runs `talweg` on the stack's first gateway; its answer.
///
/// # Errors
/// What it said on standard error.
pub fn try_talweg(stack: &Stack, line: &str) -> Result<Value, String> {
    let output = tokio::task::block_in_place(|| {
        Command::new(binary("talweg"))
            .args(["--bootstrap", &stack.gateway(0), "--json"])
            .args(line.split_whitespace())
            .output()
            .expect("talweg runs")
    });
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(error);
    }
    serde_json::from_slice(&output.stdout).map_err(|why| format!("{line}: {why}: {error}"))
}

/// The same, which must succeed.
pub fn talweg(stack: &Stack, line: &str) -> Value {
    try_talweg(stack, line).unwrap_or_else(|why| panic!("talweg {line}: {why}"))
}

/// Asks again until it is so.
pub async fn until(stack: &Stack, line: &str, hope: impl Fn(&Value) -> bool) -> Value {
    eventually(line, PATIENCE, || async {
        let value = try_talweg(stack, line)?;
        match hope(&value) {
            true => Ok(value),
            false => Err(value.to_string()),
        }
    })
    .await
}

pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Node ids in a list.
pub fn ids(value: &Value) -> Vec<u64> {
    list(value).iter().filter_map(Value::as_u64).collect()
}

/// A storage node as `cluster describe` shows it.
pub fn node(cluster: &Value, id: u64) -> &Value {
    let found = list(&cluster["nodes"]).iter().find(|n| n["node_id"] == id);
    found.unwrap_or_else(|| panic!("node {id} in {cluster}"))
}

/// Every partition has a leader and `in_sync` replicas in sync.
pub async fn all_in_sync(stack: &Stack, topic: &str, in_sync: usize) -> Value {
    until(stack, &format!("topic describe {topic}"), |value| {
        let whole = |p: &Value| !p["leader"].is_null() && ids(&p["in_sync"]).len() == in_sync;
        list(&value["partitions"]).iter().all(whole)
    })
    .await
}

fn settings(stack: &Stack, own: Vec<String>) -> Vec<String> {
    let controllers = format!("controllers={}", stack.controllers().join(","));
    let all = own.into_iter().chain([controllers]);
    all.flat_map(|setting| ["--set".to_owned(), setting])
        .collect()
}

fn listen(plane: &str, port: u16) -> String {
    format!("{plane}=127.0.0.1:{port}")
}

/// A storage node that joins later.
pub fn another_storage(stack: &Stack, name: &str) -> Process {
    let own = vec![
        listen("grpc", free_port()),
        listen("http", free_port()),
        format!("data_dirs={}", stack.folder().join(name).display()),
    ];
    let args = settings(stack, own);
    let mut process = Process::new(name, "talweg-storage", args, stack.folder());
    tokio::task::block_in_place(|| process.start(START));
    process
}

/// A gateway that joins later, and its URL.
pub fn another_gateway(stack: &Stack, name: &str) -> (Process, String) {
    let port = free_port();
    let own = vec![listen("grpc", port), listen("http", free_port())];
    let args = settings(stack, own);
    let mut process = Process::new(name, "talweg-gateway", args, stack.folder());
    tokio::task::block_in_place(|| process.start(START));
    (process, format!("http://127.0.0.1:{port}"))
}
