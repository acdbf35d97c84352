//! A Node program with nothing but grpc-js and the .proto files consumes as a member of
//! a group and survives a rebalance.

use std::{path::PathBuf, process::Command};
use talweg_harness::Stack;

fn from_env(key: &str) -> PathBuf {
    PathBuf::from(std::env::var_os(key).expect(key))
}

#[tokio::test]
async fn a_node_program_with_only_protos() {
    let root = from_env("CARGO_MANIFEST_DIR").join("../..");
    let packages = std::env::var_os("TALWEG_NODE").map_or_else(
        || from_env("HOME").join(".cache/talweg/node"),
        PathBuf::from,
    );
    let modules = packages.join("node_modules");
    assert!(
        modules.exists(),
        "{} is missing; run deploy/setup test",
        modules.display()
    );
    let stack = Stack::builder().coordinators(1).start();
    let output = Command::new("node")
        .arg(root.join("integration/node/subscribe.js"))
        .arg(stack.gateway(0).replace("http://", ""))
        .arg(root.join("proto"))
        .env("TALWEG_NODE_MODULES", &modules)
        .output()
        .expect("node starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.starts_with("ok:"),
        "{said}{error}"
    );
    stack.shards_agree().await;
}
