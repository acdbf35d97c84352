//! A real Prometheus over processes under test, with real rule files. It looks
//! every second; only the `for` times of the rules are shortened.

use crate::{Process, eventually, free_port, http::call};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

const START: Duration = Duration::from_secs(30);

/// A running Prometheus.
pub struct Prometheus {
    _process: Process,
    url: String,
}

fn program(name: &str) -> PathBuf {
    let path = Path::new("/usr/bin").join(name);
    assert!(
        path.exists(),
        "{name} is not installed: apt-get install prometheus (deploy/setup test does it)"
    );
    path
}

/// Checks rule files as promtool does.
pub fn check_rules(files: &[PathBuf]) {
    let output = Command::new(program("promtool"))
        .args(["check", "rules"])
        .args(files)
        .output()
        .expect("promtool runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

/// The rule file with every `for` cut to one second at most; nothing else differs.
pub fn shortened(rules: &str) -> String {
    let short = |line: &str| match line.trim_start().strip_prefix("for: ") {
        Some(time) if time.trim() != "0s" => {
            format!("{}for: 1s", &line[..line.len() - line.trim_start().len()])
        }
        _ => line.to_owned(),
    };
    rules.lines().map(|line| short(line) + "\n").collect()
}

impl Prometheus {
    /// Starts one in `folder` with shortened copies of `rules`. `targets`: plane
    /// and port of each process.
    pub fn start(folder: &Path, rules: &[PathBuf], targets: &[(&str, u16)]) -> Self {
        let copies: Vec<PathBuf> = rules
            .iter()
            .map(|file| {
                let name = file.file_name().expect("a file").to_string_lossy();
                let copy = folder.join(format!("short-{name}"));
                let text = std::fs::read_to_string(file).expect("a rule file");
                std::fs::write(&copy, shortened(&text)).expect("written");
                copy
            })
            .collect();
        let job = |plane: &str| {
            let of_plane = targets.iter().filter(|(other, _)| *other == plane);
            let hosts: Vec<_> = of_plane
                .map(|(_, port)| format!("127.0.0.1:{port}"))
                .collect();
            json!({"job_name": format!("talweg-{plane}"), "static_configs": [{"targets": hosts}]})
        };
        let planes: BTreeSet<_> = targets.iter().map(|(plane, _)| *plane).collect();
        // JSON is YAML too.
        let config = json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "900ms", "evaluation_interval": "1s"},
            "rule_files": copies,
            "scrape_configs": planes.into_iter().map(job).collect::<Vec<_>>(),
        });
        let file = folder.join("prometheus.yml");
        std::fs::write(&file, config.to_string()).expect("written");
        let port = free_port();
        let args = [
            format!("--config.file={}", file.display()),
            format!("--storage.tsdb.path={}", folder.join("tsdb").display()),
            format!("--web.listen-address=127.0.0.1:{port}"),
            "--log.level=warn".into(),
        ];
        let mut process =
            Process::foreign("prometheus", &program("prometheus"), args.into(), folder);
        process.start_at(port, START);
        Self {
            _process: process,
            url: format!("http://127.0.0.1:{port}/api/v1"),
        }
    }

    /// It refuses while it starts.
    async fn get(&self, path: &str) -> Result<Value, String> {
        let answer = call("GET", &format!("{}/{path}", self.url), &[], "").await;
        match answer.status {
            200 => Ok(answer.json["data"].clone()),
            status => Err(format!("{path}: {status}")),
        }
    }

    /// Every alert that fires or is about to: its name, state and labels.
    pub async fn alerts(&self) -> Vec<Value> {
        let data = self.get("alerts").await.expect("it has started");
        data["alerts"].as_array().cloned().unwrap_or_default()
    }

    /// Names of the alerts that fire.
    pub async fn firing(&self) -> BTreeSet<String> {
        let alerts = self.alerts().await;
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        firing.map(name).collect()
    }

    /// Waits until each of `names` fires.
    pub async fn fires(&self, names: &[&str], deadline: Duration) {
        eventually(&format!("{names:?} fire"), deadline, || async {
            let firing = self.firing().await;
            match names.iter().all(|name| firing.contains(*name)) {
                true => Ok(()),
                false => Err(format!("{firing:?}")),
            }
        })
        .await;
    }

    /// Waits until no alert fires or is about to, but for `besides`.
    pub async fn quiet(&self, besides: &[&str], deadline: Duration) {
        eventually("no alert", deadline, || async {
            let mut alerts = self.alerts().await;
            alerts.retain(|alert| !besides.contains(&name(alert).as_str()));
            match alerts.is_empty() {
                true => Ok(()),
                false => Err(format!("{alerts:?}")),
            }
        })
        .await;
    }

    /// Waits until every target was scraped and every rule evaluated.
    pub async fn looked(&self, deadline: Duration) {
        eventually("every target is scraped", deadline, || async {
            let targets = self.get("targets").await?;
            let rules = self.rules().await?;
            let up = targets["activeTargets"]
                .as_array()
                .is_some_and(|all| all.iter().all(|target| target["health"] == "up"));
            let ok = rules.iter().all(|rule| rule["health"] == "ok");
            match up && ok {
                true => Ok(()),
                false => Err(format!("{targets}")),
            }
        })
        .await;
    }

    /// The rules as they are loaded.
    pub async fn rules(&self) -> Result<Vec<Value>, String> {
        let data = self.get("rules").await?;
        let groups = data["groups"].as_array().cloned().unwrap_or_default();
        let of_group = |group: &Value| group["rules"].as_array().cloned().unwrap_or_default();
        Ok(groups.iter().flat_map(of_group).collect())
    }
}

fn name(alert: &Value) -> String {
    let name = alert["labels"]["alertname"].as_str();
    name.unwrap_or_default().to_owned()
}
