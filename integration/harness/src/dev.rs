//! `talweg dev` as a real process.

use crate::{Process, free_port};
use std::{path::PathBuf, time::Duration};
use tempfile::TempDir;

const START: Duration = Duration::from_secs(30);

/// `talweg dev` as a real process.
pub struct Dev {
    pub process: Process,
    grpc: u16,
    http: u16,
    temp: Option<TempDir>,
}

impl Dev {
    pub fn start() -> Self {
        let temp = TempDir::with_prefix("talweg-dev-").expect("temp folder");
        let (grpc, http) = (free_port(), free_port());
        let args = [
            "dev".into(),
            "--data-dir".into(),
            temp.path().join("data").display().to_string(),
            "--grpc".into(),
            format!("127.0.0.1:{grpc}"),
            "--http".into(),
            format!("127.0.0.1:{http}"),
        ];
        let mut process = Process::new("dev", "talweg", args.into(), temp.path());
        process.start(START);
        Self {
            process,
            grpc,
            http,
            temp: Some(temp),
        }
    }

    /// gRPC URL.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.grpc)
    }

    /// HTTP URL.
    pub fn http(&self) -> String {
        format!("http://127.0.0.1:{}", self.http)
    }

    /// The data folder.
    pub fn data(&self) -> PathBuf {
        self.temp
            .as_ref()
            .expect("until dropped")
            .path()
            .join("data")
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(temp) = self.temp.take()
        {
            eprintln!("data and logs are kept in {}", temp.keep().display());
        }
    }
}
