//! The failover story on real processes: `talweg tour failover` plays it, and
//! this test reads what it saw, step by step, instead of believing its exit code.

use serde_json::{Value, json};
use std::{collections::BTreeSet, process::Command};
use talweg_harness::binary;

/// Each step of the story as `--json` tells it; the last line apart.
fn played() -> (Vec<Value>, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(binary("talweg"))
        .args(["tour", "failover", "--json", "--dir"])
        .arg(folder.path().join("tour"))
        .output()
        .expect("talweg runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    let parse = |line: &str| serde_json::from_str(line).expect("a line of JSON");
    let mut lines: Vec<Value> = text.lines().map(parse).collect();
    let last = lines.pop().expect("a last line");
    let left = folder.path().join("tour").exists();
    assert!(!left, "nothing is left of a story that went well");
    (lines, last)
}

fn nodes(value: &Value) -> BTreeSet<u64> {
    let nodes = value.as_array().expect("a list");
    nodes
        .iter()
        .map(|node| node.as_u64().expect("an id"))
        .collect()
}

#[test]
fn acks_all_survives_what_the_story_does_to_its_nodes() {
    let (steps, last) = played();
    assert_eq!((&last["ok"], &last["steps"]), (&json!(true), &json!(7)));
    assert_eq!(steps.len(), 7);
    // Leader, in-sync set, watermark, log ends of n1 n2 n3; null is not looked at.
    let promised = [
        json!([1, [1, 2, 3], null, null]),
        json!([1, [1, 2, 3], 3, { "1": 3, "2": 3, "3": 3 }]),
        json!([1, [1, 2], 3, { "1": 3, "2": 3, "3": 3 }]),
        json!([1, [1, 2], 4, { "1": 4, "2": 4, "3": 3 }]),
        json!([1, [1, 2], 4, { "1": 6, "2": 4, "3": 3 }]),
        json!([2, [2], null, { "2": 4, "3": 3 }]),
        json!([null, [1, 2], 4, { "1": 4, "2": 4, "3": 3 }]),
    ];
    for (step, promised) in steps.iter().zip(&promised) {
        let partition = &step["seen"]["partition"];
        let same = |promised: &Value, seen: &Value| promised.is_null() || promised == seen;
        assert!(
            same(&promised[0], &partition["leader"])
                && nodes(&promised[1]) == nodes(&partition["in_sync"])
                && same(&promised[2], &partition["high_watermark"])
                && same(&promised[3], &partition["log_ends"]),
            "{promised} was promised: {step}"
        );
    }
    let seen = |step: usize| &steps[step - 1]["seen"];
    let shrunk = seen(3)["took_ms"].as_u64().expect("a time");
    assert!(
        shrunk <= 15_000,
        "n3 left the in-sync set after {shrunk} ms"
    );
    assert_eq!(seen(3)["n3_alive"], true);
    assert_eq!(seen(4)["replicas_holding"], 2);
    assert_eq!(seen(5)["consumer_sees"], 4);
    let held = seen(6)["held_ms"].as_u64().expect("a time");
    assert!(held < 10_000, "n2 was held for {held} ms");
    assert_eq!(seen(6)["refused"], "NOT_ENOUGH_REPLICAS");
    // As `topic describe` has it, not as a log file says it.
    let cut = json!({ "node": 1, "from": 6, "to": 4, "records": 2, "below_watermark": false });
    assert_eq!(seen(7)["truncated"], cut);
    assert_eq!(seen(7)["consumer_sees"], 4);
    assert_eq!(seen(7)["n3_alive"], true);
}
