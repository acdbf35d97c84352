//! The segment story: 500 records of 48 B into 4 KiB segments. A look-up
//! bisects to the right segment and scans at most one index interval, and
//! `talweg log lookup` shows it.

use bytes::Bytes;
use serde_json::Value;
use std::{path::PathBuf, process::Command};
use talweg_harness::{
    Stack, binary,
    raw::{RawProduce, batch, connect, create_topic},
};
use talweg_proto::v1::Acks;

fn talweg(args: &[&str]) -> Value {
    let output = Command::new(binary("talweg"))
        .arg("--json")
        .args(args)
        .output()
        .expect("talweg");
    assert!(
        output.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}"))
}

fn partition_folder(stack: &Stack) -> PathBuf {
    let entries = std::fs::read_dir(stack.storage_data(0)).expect("data folder");
    let mut folders = entries
        .map(|e| e.expect("entry").path())
        .filter(|p| p.display().to_string().ends_with("-0"));
    folders.next().expect("the partition's folder")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lookup_bisects_and_scans_one_interval() {
    let mut stack = Stack::builder().start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(
        &c,
        "t",
        1,
        &[("segment.bytes", "4096"), ("index.interval.bytes", "512")],
    )
    .await;
    let mut stream = RawProduce::open(&c, Acks::All).await;
    for i in 0..500_i64 {
        let value: Bytes = format!("{i:048}").into();
        assert_eq!(stream.batch("t", 0, batch(&[&value])).await, Ok(i));
    }
    stack.storages[0].stop(std::time::Duration::from_secs(6));
    let folder = partition_folder(&stack);
    let mut bases: Vec<i64> = std::fs::read_dir(&folder)
        .expect("segments")
        .filter_map(|e| {
            e.expect("entry")
                .file_name()
                .to_str()?
                .strip_suffix(".log")?
                .parse()
                .ok()
        })
        .collect();
    bases.sort_unstable();
    assert!(bases.len() > 10, "{} segments", bases.len());
    // A batch of one such record, and what an interval holds of them at most.
    let record_bytes = batch(&[&[0; 48]]).len();
    let most = 512_usize.div_ceil(record_bytes) + 1;
    let compared_most = bases.len().ilog2() + 2;
    let index = stack.storage_data(0).join("index");
    let (folder, index) = (
        folder.to_str().expect("utf-8"),
        index.to_str().expect("utf-8"),
    );
    for offset in (0..500)
        .step_by(7)
        .chain([499])
        .chain(bases.iter().copied())
    {
        let expected = *bases
            .iter()
            .rev()
            .find(|b| **b <= offset)
            .expect("a segment");
        let asked = offset.to_string();
        let lookup = ["log", "lookup", folder, &asked, "--interval", "512"];
        // By a scan of the segment, and by the store that the server left.
        for args in [lookup.to_vec(), [&lookup[..], &["--index", index]].concat()] {
            let found = talweg(&args);
            assert!(
                found["segment"].to_string().contains(&expected.to_string()),
                "{offset}: {expected}: {found}"
            );
            assert_eq!(found["batch"]["base_offset"], offset, "{found}");
            let scanned = found["scanned_records"].as_u64().expect("a number") as usize;
            assert!(
                scanned <= most,
                "{offset}: scanned {scanned} records, at most {most}: {found}"
            );
            let compared = found["segments_compared"].as_u64().expect("a number");
            assert!(
                compared <= u64::from(compared_most),
                "{offset}: of {} segments: {found}",
                bases.len()
            );
        }
    }
}
