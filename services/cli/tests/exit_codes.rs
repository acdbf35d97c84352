//! Scripts see exit codes, standard output and standard error; these are what
//! is tested, by running the program. Public case: redpanda #19888 and #3397,
//! where a command that failed printed so and ended with 0.

use serde_json::Value;
use std::{
    io::Write,
    process::{Child, Command, Output, Stdio},
};

/// Nothing listens there: connections are refused.
const NOBODY: &str = "http://127.0.0.1:1";

fn talweg(words: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_talweg"))
        .args(words.split_whitespace())
        .env_remove("TALWEG_BOOTSTRAP")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts")
}

fn finish(mut child: Child) -> Output {
    if let Some(mut stdin) = child.stdin.take() {
        // A command that does not read its input has closed it.
        drop(stdin.write_all(b"one\ntwo\n"));
    }
    child.wait_with_output().expect("the program ends")
}

fn run(words: &str) -> Output {
    finish(talweg(words))
}

fn error(output: &Output) -> Value {
    let text = String::from_utf8(output.stderr.clone()).expect("UTF-8");
    let value: Value = serde_json::from_str(text.trim())
        .unwrap_or_else(|e| panic!("{e}: {text:?} is not one JSON line"));
    value["error"].clone()
}

const NETWORK_COMMANDS: &[&str] = &[
    "topic create t --partitions 1",
    "topic list",
    "topic describe t",
    "topic alter t --partitions 2",
    "topic delete t",
    "topic config-keys",
    "produce t",
    "produce t --acks 0",
    "consume t --until-end",
    "bench produce t --records 1",
    "bench fetch t --records 1",
    "bench latency t --records 1",
    "cluster describe",
];

#[test]
fn a_cluster_that_cannot_be_reached_is_a_typed_error_and_exit_code_1() {
    // At once, because each one is patient for some seconds.
    let children: Vec<(&str, Child)> = NETWORK_COMMANDS
        .iter()
        .map(|words| (*words, talweg(&format!("--json -b {NOBODY} {words}"))))
        .collect();
    for (words, child) in children {
        let output = finish(child);
        assert_eq!(output.status.code(), Some(1), "{words}");
        assert!(
            output.stdout.is_empty(),
            "{words} claims something on standard output"
        );
        let error = error(&output);
        assert_eq!(error["code"], "UNAVAILABLE", "{words}: {error}");
        assert_eq!(error["retriable"], true, "{words}");
        assert!(
            error["message"].as_str().is_some_and(|m| !m.is_empty()),
            "{words}"
        );
        assert!(error["details"].is_object(), "{words}");
    }
}

#[test]
fn without_json_an_error_is_one_line() {
    let output = run(&format!("-b {NOBODY} topic list"));
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(text.lines().count(), 1, "{text:?}");
    assert!(
        text.starts_with("error: ") && text.contains("[UNAVAILABLE]"),
        "{text:?}"
    );
}

#[test]
fn wrong_usage_is_exit_code_2_with_and_without_json() {
    for words in [
        "nonsense",
        "topic",
        "topic alter t",
        "produce",
        "produce t --acks 3",
        "produce t --key a --key-separator :",
        "consume t --from yesterday",
        "log lookup p",
        "bench produce t --form thin --direct",
        "topic create t --config a=1 --config a=2",
        "topic list -b https://h:1",
    ] {
        let plain = run(words);
        assert_eq!(plain.status.code(), Some(2), "{words}");
        assert!(
            !plain.stderr.is_empty() && plain.stdout.is_empty(),
            "{words}"
        );
        let json = run(&format!("{words} --json"));
        assert_eq!(json.status.code(), Some(2), "{words}");
        assert!(json.stdout.is_empty(), "{words}");
        assert_eq!(error(&json)["code"], "INVALID_ARGUMENT", "{words}");
    }
}

#[test]
fn help_and_version_are_good_ends() {
    for words in [
        "--help",
        "--version",
        "topic --help",
        "topic create --help",
        "produce --help",
        "dev --help",
        "bench latency --help",
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(0), "{words}");
        assert!(
            !output.stdout.is_empty() && output.stderr.is_empty(),
            "{words}"
        );
    }
    assert_eq!(
        run("").status.code(),
        Some(2),
        "no command is wrong usage, though help is shown"
    );
}

#[test]
fn a_file_that_is_not_there_is_named_before_anything_is_sent() {
    let output = run(&format!(
        "--json -b {NOBODY} produce t --file /nowhere/at/all"
    ));
    assert_eq!(output.status.code(), Some(1));
    let error = error(&output);
    assert_eq!(error["code"], "INVALID_ARGUMENT");
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|m| m.contains("/nowhere/at/all")),
        "{error}"
    );
}

#[test]
fn the_bootstrap_comes_from_the_environment_when_no_option_is_given() {
    let output = Command::new(env!("CARGO_BIN_EXE_talweg"))
        .args(["topic", "list", "--json"])
        .env("TALWEG_BOOTSTRAP", "https://from-the-environment:1")
        .output()
        .expect("the program runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        error(&output)["message"]
            .as_str()
            .is_some_and(|m| m.contains("TLS")),
        "the variable was read"
    );
}

#[test]
fn baselines_print_one_json_object() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().display();
    let output = run(&format!(
        "--json bench raw --dir {dir} --bytes 5000000 --files 3"
    ));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&report["bytes"], &report["files"]),
        (&5_000_000.into(), &3.into())
    );
    let output = run("--json bench stream --bytes 20000000 --frame-bytes 1000000 --streams 2");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["bytes"], 40_000_000);
    assert!(
        report["cpu_seconds_per_gb"]["servers"]["stream-serve"].is_number(),
        "{report}"
    );
    let output = run("--json bench raw --dir /nowhere/at/all --bytes 1");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}
