//! A `talweg dev` of our own: on free ports, with its data in a temporary
//! folder. It is stopped and its data removed, whatever happens to us, short
//! of a kill -9.

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

const START: Duration = Duration::from_secs(30);
/// It promises to end within 5 s.
const STOP: Duration = Duration::from_secs(10);
/// Lines of its log that are shown when something goes wrong.
const LOG_LINES: usize = 20;

/// A running server.
pub struct DevServer {
    child: Child,
    grpc: String,
    started_in: Duration,
    folder: TempDir,
}

impl DevServer {
    /// Starts it and waits until it is ready.
    pub fn start(talweg: &Path) -> Result<Self> {
        let folder = TempDir::with_prefix("talweg-demo-")?;
        let begun = Instant::now();
        let mut child = Command::new(talweg)
            .args([
                "dev",
                "--grpc",
                "127.0.0.1:0",
                "--http",
                "127.0.0.1:0",
                "--data-dir",
            ])
            .arg(folder.path().join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(folder.path().join("log"))?)
            .spawn()
            .with_context(|| talweg.display().to_string())?;
        let stdout = child.stdout.take();
        let mut server = Self {
            child,
            grpc: String::new(),
            started_in: Duration::ZERO,
            folder,
        };
        let Some(grpc) = stdout.and_then(ready_address) else {
            drop(server.stop());
            bail!("talweg dev did not become ready\n{}", server.log_tail());
        };
        server.grpc = grpc;
        server.started_in = begun.elapsed();
        Ok(server)
    }

    /// Its gRPC address, `host:port`.
    pub fn grpc(&self) -> &str {
        &self.grpc
    }

    /// From the start to being ready.
    pub fn started_in(&self) -> Duration {
        self.started_in
    }

    /// SIGTERM, and the time that it took to end; killed if it does not.
    pub fn stop(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It may have ended by itself.
            kill_process(pid, Signal::TERM).ok();
        }
        while begun.elapsed() < STOP {
            if let Some(status) = self.child.try_wait()? {
                if !status.success() {
                    bail!("talweg dev ended with {status}\n{}", self.log_tail());
                }
                return Ok(begun.elapsed());
            }
            thread::sleep(Duration::from_millis(5));
        }
        self.child.kill()?;
        self.child.wait()?;
        bail!("talweg dev did not end within {STOP:?} and was killed")
    }

    /// The last lines of what it said.
    pub fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_LINES)..];
        format!("talweg dev said:\n{}", tail.join("\n"))
    }
}

impl Drop for DevServer {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

/// The address in the ready line. Reads on behind it, so that the server never
/// blocks on its output.
fn ready_address(stdout: ChildStdout) -> Option<String> {
    let (found, ready) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Some(address) = address_in(&line) {
                // Only the first one is waited for.
                drop(found.send(address));
            }
        }
    });
    ready.recv_timeout(START).ok()
}

fn address_in(line: &str) -> Option<String> {
    let rest = line.strip_prefix("talweg dev ready ")?;
    rest.split_whitespace()
        .find_map(|word| word.strip_prefix("grpc="))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_stands_in_the_ready_line() {
        let line = "talweg dev ready grpc=127.0.0.1:4711 http=127.0.0.1:4712 data=x";
        assert_eq!(address_in(line).as_deref(), Some("127.0.0.1:4711"));
        assert_eq!(address_in("ready grpc=x"), None);
    }
}
