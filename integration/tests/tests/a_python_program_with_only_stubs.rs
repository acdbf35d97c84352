//! Python programs with nothing but grpcio and generated stubs produce and fetch in
//! both forms, consume as a member of a group that lives through a rebalance, and call
//! what reflection describes, as grpcurl does.

use std::{
    path::{Path, PathBuf},
    process::Command,
};
use talweg_harness::Stack;

fn root() -> PathBuf {
    // Asked at run time: the build cache is shared by clones in other places.
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("run by cargo"))
        .ancestors()
        .nth(2)
        .expect("repository")
        .to_owned()
}

/// The interpreter of the virtual environment that `deploy/setup test` makes.
fn python() -> PathBuf {
    let venv = std::env::var_os("TALWEG_VENV").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").expect("HOME")).join(".cache/talweg/venv"),
        PathBuf::from,
    );
    let python = venv.join("bin/python");
    assert!(
        python.exists(),
        "{} is missing; run deploy/setup test",
        python.display()
    );
    python
}

fn run(command: &mut Command) -> String {
    let output = command.output().expect("python starts");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{command:?}\n{out}{err}");
    out.into_owned()
}

#[tokio::test]
async fn a_python_program_with_only_stubs() {
    let stubs = tempfile::tempdir().expect("folder");
    let protos: Vec<_> = std::fs::read_dir(root().join("proto/talweg/v1"))
        .expect("protos")
        .map(|entry| entry.expect("entry").path())
        .collect();
    run(Command::new(python())
        .args(["-m", "grpc_tools.protoc", "-I"])
        .arg(root().join("proto"))
        .arg(format!("--python_out={}", stubs.path().display()))
        .arg(format!("--grpc_python_out={}", stubs.path().display()))
        .args(protos));
    let stack = Stack::builder().coordinators(1).start();
    let address = stack.gateway(0).replace("http://", "");
    for program in ["client.py", "reflect.py", "subscribe.py"] {
        let folder = root().join("integration/python");
        let path = format!("{}:{}", stubs.path().display(), folder.display());
        let said = run(Command::new(python())
            .arg(folder.join(program))
            .arg(&address)
            .env("PYTHONPATH", path));
        assert!(said.starts_with("ok:"), "{program}: {said}");
    }
    stack.shards_agree().await;
}
