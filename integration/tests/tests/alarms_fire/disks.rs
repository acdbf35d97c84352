//! A disk that fills, hangs and breaks, and a clock that jumps.

use super::{FIRES, WELL, rule_files, stays_silent};
use std::{path::Path, process::Command};
use talweg_harness::{
    Stack,
    disk::Disk,
    eventually, flip,
    prometheus::Prometheus,
    raw::{RawFetch, RawProduce, batch, code, connect, create_topic, from},
    replica, segments,
};
use talweg_proto::v1::{Acks, ErrorCode, fetch_partition::Start};
use tokio::task::JoinSet;
use tonic::transport::Channel;

/// What this file brings about.
pub const FIRED: &[&str] = &[
    "TalwegDiskReserveNear",
    "TalwegDiskFull",
    "TalwegUnflushedBytesOld",
    "TalwegFolderFailed",
    "TalwegReplicasFailed",
    "TalwegClockDrift",
    "TalwegReplicaDamaged",
];

const MIB: u64 = 1 << 20;
const PARTITIONS: u32 = 2;

/// A library that puts the wall clock of storage nodes two minutes ahead while
/// a file is there. The monotonic clocks are left alone.
fn skew_library(folder: &Path) -> String {
    let source = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
  long failed = syscall(SYS_clock_gettime, clock, time);
  if (failed == 0 && clock == CLOCK_REALTIME && strcmp(program_invocation_short_name, "talweg-storage") == 0) {
    const char *file = getenv("SKEW_FILE");
    if (file && access(file, F_OK) == 0) time->tv_sec += 120;
  }
  return (int)failed;
}
"#;
    let (input, output) = (folder.join("skew.c"), folder.join("skew.so"));
    std::fs::write(&input, source).expect("written");
    let built = Command::new("gcc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&output, &input])
        .status()
        .expect("gcc, which the build needs too");
    assert!(built.success(), "gcc: {built}");
    output.display().to_string()
}

/// A record to each partition at once, whatever comes of it, until it is dropped.
fn write(c: &Channel) -> JoinSet<()> {
    let mut writers = JoinSet::new();
    for partition in 0..PARTITIONS {
        let c = c.clone();
        writers.spawn(async move {
            let mut stream = RawProduce::open(&c, Acks::Leader).await;
            stream.send_batch("t", partition, batch(&[b"x"])).await;
            // The answer is not what this is about.
            let _ = stream.next().await;
        });
    }
    writers
}

/// Waits until a record was taken by each partition.
async fn taken(c: &Channel) {
    for partition in 0..PARTITIONS {
        eventually("produce is taken", WELL, || async {
            let mut stream = RawProduce::open(c, Acks::Leader).await;
            let answer = stream.batch("t", partition, batch(&[b"x"])).await;
            answer.map(drop).map_err(|e| e.message)
        })
        .await;
    }
}

/// A bit of a closed segment flips, and a reader meets it; nobody else has the record.
async fn damage(c: &Channel, folders: &[&Path]) {
    let id = create_topic(c, "small", 1, &[("segment.bytes", "4096")]).await;
    let mut stream = RawProduce::open(c, Acks::All).await;
    for _ in 0..12 {
        let taken = stream.batch("small", 0, batch(&[&[b'x'; 1_000]])).await;
        taken.expect("produce");
    }
    let mut replicas = folders.iter().map(|folder| replica(folder, &id, 0));
    let there = replicas.find(|folder| folder.exists());
    flip(&segments(&there.expect("a replica"))[1], 2_000);
    let start = from("small", 0, Start::Earliest(true));
    let mut reader = RawFetch::records(c, vec![start]).await;
    assert_eq!(code(&reader.error().await), ErrorCode::DataDamaged);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alarms_of_disks_and_clocks_fire() {
    let folder = tempfile::TempDir::with_prefix("talweg-alarms-").expect("temp folder");
    let skew = folder.path().join("skew-now");
    let disk = Disk::new(folder.path(), "storage", 96 * MIB);
    let own = folder.path().join("storage");
    let data = disk.path().join("data");
    let dirs = format!("data_dirs={},{}", own.display(), data.display());
    let stack = Stack::builder()
        .set("storage", &dirs)
        .set("storage", &format!("disk_reserve_bytes={}", 16 * MIB))
        .env("LD_PRELOAD", &skew_library(folder.path()))
        .env("SKEW_FILE", &skew.display().to_string())
        .start();
    let c = connect(&stack.gateway(0)).await;
    // One partition lies in each folder.
    create_topic(&c, "t", PARTITIONS as i32, &[("durability", "replicated")]).await;
    taken(&c).await;
    let prometheus = Prometheus::start(stack.folder(), &rule_files(), stack.scraped());
    prometheus.looked(WELL).await;
    stays_silent(&prometheus).await;

    disk.fill(24 * MIB);
    prometheus.fires(&["TalwegDiskReserveNear"], FIRES).await;
    disk.fill(8 * MIB);
    prometheus.fires(&["TalwegDiskFull"], FIRES).await;
    assert!(
        !prometheus.firing().await.contains("TalwegDiskReserveNear"),
        "one of the two"
    );
    disk.empty();
    prometheus.quiet(&[], WELL).await;

    disk.freeze();
    let writing = write(&c);
    prometheus.fires(&["TalwegUnflushedBytesOld"], FIRES).await;
    disk.thaw();
    drop(writing);
    prometheus.quiet(&[], WELL).await;
    taken(&c).await;

    std::fs::write(&skew, "").expect("written");
    prometheus.fires(&["TalwegClockDrift"], FIRES).await;
    std::fs::remove_file(&skew).expect("removed");
    prometheus.quiet(&[], WELL).await;

    damage(&c, &[&own, &data]).await;
    prometheus.fires(&["TalwegReplicaDamaged"], FIRES).await;

    disk.break_down();
    let writing = write(&c);
    let broken = ["TalwegFolderFailed", "TalwegReplicasFailed"];
    prometheus.fires(&broken, FIRES).await;
    drop((writing, stack));
    // Only now: the processes are gone.
    drop(disk);
}
