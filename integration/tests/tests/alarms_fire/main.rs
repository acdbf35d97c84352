//! Every alert of deploy/alerts is brought about on real processes and fires in
//! a real Prometheus; a healthy cluster is silent. Each alert has its section in
//! the runbook, and each metric that it names exists.

mod book;
mod disks;
mod groups;
mod link;
mod replicas;

use std::{path::PathBuf, time::Duration};

/// For an alert to fire on a busy machine: session time-outs, a look a second,
/// a shortened `for`.
const FIRES: Duration = Duration::from_secs(40);
/// For everything to be well again.
const WELL: Duration = Duration::from_secs(60);

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("two folders up")
        .to_owned()
}

/// The real rule files.
fn rule_files() -> Vec<PathBuf> {
    let folder = repository().join("deploy/alerts");
    let entries = std::fs::read_dir(&folder).expect("deploy/alerts");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("entry").path()).collect();
    files.retain(|file| file.extension().is_some_and(|kind| kind == "yml"));
    files.sort();
    assert!(!files.is_empty(), "no rules in {}", folder.display());
    files
}

/// Stays silent over some looks of the Prometheus.
async fn stays_silent(prometheus: &talweg_harness::prometheus::Prometheus) {
    let mut looks = tokio::time::interval(Duration::from_millis(250));
    for _ in 0..16 {
        looks.tick().await;
        let alerts = prometheus.alerts().await;
        assert!(alerts.is_empty(), "a healthy cluster: {alerts:?}");
    }
}
