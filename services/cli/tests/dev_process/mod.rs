//! A `talweg dev` that a test owns: on free ports, data in a temporary folder,
//! killed when dropped.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

const START: Duration = Duration::from_secs(30);

/// The running process.
pub struct Dev {
    child: Child,
    pub grpc: String,
    pub started_in: Duration,
}

pub fn talweg() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_talweg"));
    command
        .env_remove("TALWEG_BOOTSTRAP")
        .env_remove("RUST_LOG");
    command
}

impl Dev {
    /// Starts it on this data folder and waits until it is ready.
    pub fn start(data: &Path) -> Self {
        let begun = Instant::now();
        let mut child = talweg()
            .args([
                "--json",
                "dev",
                "--grpc",
                "127.0.0.1:0",
                "--http",
                "127.0.0.1:0",
                "--data-dir",
            ])
            .arg(data)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let stdout = child.stdout.take().expect("piped");
        let (found, ready) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line).ok();
            found.send(line).ok();
        });
        let line = ready.recv_timeout(START).expect("ready in time");
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
        let grpc = ready["ready"]["grpc"]
            .as_str()
            .expect("an address")
            .to_owned();
        Self {
            child,
            grpc,
            started_in: begun.elapsed(),
        }
    }

    /// One command against it, with this input.
    pub fn run(&self, words: &str, input: &[u8]) -> Output {
        let mut child = talweg()
            .args(["--json", "-b", &self.grpc])
            .args(words.split_whitespace())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut stdin = child.stdin.take().expect("piped");
        let input = input.to_vec();
        let writing = thread::spawn(move || stdin.write_all(&input).ok());
        let output = child.wait_with_output().expect("it ends");
        writing.join().expect("no panic");
        output
    }

    /// As [`Self::run`], and it must succeed; its lines as JSON.
    pub fn lines(&self, words: &str, input: &[u8]) -> Vec<Value> {
        let output = self.run(words, input);
        assert!(output.status.success(), "{words}: {output:?}");
        json_lines(&output.stdout)
    }

    /// A reader that goes on until it is killed.
    pub fn reader(&self, topic: &str) -> Child {
        let mut command = talweg();
        command
            .args(["-b", &self.grpc, "consume", topic])
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command.spawn().expect("the program starts")
    }

    /// Sends a signal and waits for the end.
    pub fn end(mut self, signal: Signal) -> (Duration, Option<i32>) {
        let begun = Instant::now();
        let pid = i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .expect("a pid");
        kill_process(pid, signal).expect("it runs");
        let status = self.child.wait().expect("it ends");
        (begun.elapsed(), status.code())
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

pub fn json_lines(bytes: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(bytes).expect("UTF-8");
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect()
}

/// The folder of a partition.
pub fn partition_folder(data: &Path, topic_id: &str, partition: u32) -> PathBuf {
    data.join("storage").join(format!("{topic_id}-{partition}"))
}
