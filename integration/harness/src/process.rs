//! One real process under test: its life, its signals, its logs.

use crate::net::Place;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

/// A built binary: beside the running test, or in `TALWEG_BIN_DIR`.
pub fn binary(name: &str) -> PathBuf {
    let folder = std::env::var_os("TALWEG_BIN_DIR").map_or_else(
        || {
            let test = std::env::current_exe().expect("path of the test");
            test.ancestors().nth(2).expect("target folder").to_owned()
        },
        PathBuf::from,
    );
    let path = folder.join(name);
    assert!(
        path.exists(),
        "{} is not built; `make test` builds it first",
        path.display()
    );
    path
}

/// A process that is killed when dropped. Its output goes to `<log>`, appended
/// over restarts.
pub struct Process {
    name: String,
    program: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    place: Place,
    log: PathBuf,
    child: Option<Child>,
    ready_line: Option<String>,
    /// How often it was started.
    pub(crate) starts: Arc<AtomicU32>,
}

impl Process {
    /// Describes a process; nothing runs yet.
    pub fn new(name: &str, program: &str, args: Vec<String>, logs: &Path) -> Self {
        Self {
            name: name.into(),
            program: binary(program),
            args,
            env: Vec::new(),
            place: Place::loopback(),
            log: logs.join(format!("{name}.log")),
            child: None,
            ready_line: None,
            starts: Arc::default(),
        }
    }

    /// A program that is not ours, by its path.
    pub fn foreign(name: &str, program: &Path, args: Vec<String>, logs: &Path) -> Self {
        Self {
            name: name.into(),
            program: program.to_owned(),
            args,
            env: Vec::new(),
            place: Place::loopback(),
            log: logs.join(format!("{name}.log")),
            child: None,
            ready_line: None,
            starts: Arc::default(),
        }
    }

    /// What it is told at its start.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = &str> {
        self.args.iter().map(String::as_str)
    }

    /// Lives there from the next start on.
    #[must_use]
    pub fn at(mut self, place: Place) -> Self {
        self.place = place;
        self
    }

    /// The program itself, or what enters a namespace and becomes it: the
    /// process id is the same.
    fn command(&self) -> Command {
        let Some(namespace) = &self.place.namespace else {
            return Command::new(&self.program);
        };
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{namespace}"))
            .arg("--")
            .arg(&self.program);
        command
    }

    /// Starts it and waits until this port is listened on: for a program that
    /// says nothing, or a controller that stands by.
    pub fn start_at(&mut self, port: u16, deadline: Duration) {
        self.spawn();
        let stdout = self.child.as_mut().and_then(|child| child.stdout.take());
        // Read to the end, so that the process never blocks on its output.
        std::thread::spawn(move || {
            stdout.map(|stdout| BufReader::new(stdout).lines().map_while(Result::ok).count())
        });
        let start = Instant::now();
        while std::net::TcpStream::connect((self.place.host.as_str(), port)).is_err() {
            assert!(
                self.is_running() && start.elapsed() < deadline,
                "{} does not listen on {port}\n{}",
                self.name,
                self.log_tail()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Adds an environment variable for the next start.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }

    /// Starts it and waits for the line on standard output that has "ready".
    pub fn start(&mut self, deadline: Duration) {
        self.spawn();
        self.wait_ready(deadline);
    }

    /// Starts it without waiting.
    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "{} runs already", self.name);
        self.starts.fetch_add(1, Ordering::Relaxed);
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .expect("log file");
        let child = self
            .command()
            .args(&self.args)
            .envs(self.env.iter().map(|(k, v)| (k.as_str(), v.as_str())))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", self.name));
        self.child = Some(child);
        self.ready_line = None;
    }

    /// Waits for the ready line of a spawned process.
    pub fn wait_ready(&mut self, deadline: Duration) {
        let child = self.child.as_mut().expect("spawned");
        let stdout = child.stdout.take().expect("piped once");
        let (found, ready) = mpsc::channel();
        // Goes on reading to the end, so that the process never blocks on its output.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if line.contains("ready") {
                    let _ = found.send(line);
                }
            }
        });
        match ready.recv_timeout(deadline) {
            Ok(line) => self.ready_line = Some(line),
            Err(e) => panic!(
                "{} not ready within {deadline:?} ({e})\n{}",
                self.name,
                self.log_tail()
            ),
        }
    }

    /// What it printed when it became ready.
    pub fn ready_line(&self) -> &str {
        self.ready_line.as_deref().unwrap_or_default()
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("running").id()
    }

    pub fn is_running(&mut self) -> bool {
        self.child
            .as_mut()
            .is_some_and(|c| matches!(c.try_wait(), Ok(None)))
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid())
            .ok()
            .and_then(Pid::from_raw)
            .expect("a pid");
        kill_process(pid, signal).unwrap_or_else(|e| panic!("{}: {signal:?}: {e}", self.name));
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            child.wait().expect("wait");
        }
    }

    /// SIGTERM, without waiting.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// SIGSTOP.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Waits for its end; the time it took and its status. Panics at the deadline.
    pub fn wait_exit(&mut self, deadline: Duration) -> (Duration, ExitStatus) {
        let start = Instant::now();
        loop {
            let child = self.child.as_mut().expect("running");
            if let Some(status) = child.try_wait().expect("wait") {
                self.child = None;
                return (start.elapsed(), status);
            }
            assert!(
                start.elapsed() < deadline,
                "{} still runs after {deadline:?}\n{}",
                self.name,
                self.log_tail()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// SIGTERM and a clean end within `deadline`.
    pub fn stop(&mut self, deadline: Duration) -> Duration {
        self.terminate();
        let (took, status) = self.wait_exit(deadline);
        assert!(
            status.success(),
            "{} ended with {status}\n{}",
            self.name,
            self.log_tail()
        );
        took
    }

    /// Its log file.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// Private memory in bytes: anonymous pages, page cache not counted.
    pub fn private_bytes(&self) -> u64 {
        self.status("RssAnon:") * 1024
    }

    /// Threads.
    pub fn threads(&self) -> u64 {
        self.status("Threads:")
    }

    /// Open descriptors.
    pub fn descriptors(&self) -> u64 {
        let path = format!("/proc/{}/fd", self.pid());
        let open = std::fs::read_dir(path).expect("descriptors");
        u64::try_from(open.count()).expect("fewer")
    }

    /// The number after `field` in the kernel's status of it.
    fn status(&self, field: &str) -> u64 {
        let path = format!("/proc/{}/status", self.pid());
        let status = std::fs::read_to_string(path).expect("status");
        let line = status.lines().find(|line| line.starts_with(field));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        number
            .and_then(|number| number.parse().ok())
            .unwrap_or_else(|| panic!("no {field} in {status}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "--- {} ({})\n{}",
                self.name,
                self.log.display(),
                self.log_tail()
            );
        }
        self.kill9();
    }
}
