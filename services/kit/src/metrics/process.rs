//! Figures of this process, read from /proc/self and its runtimes when they are
//! asked for.

use crate::shutdown;
use prometheus::{
    Gauge, IntGauge, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use std::{
    fs,
    time::{SystemTime, UNIX_EPOCH},
};
use tokio::runtime;

/// Resident and private memory, CPU seconds, descriptors, threads, tasks.
pub(super) struct ProcessCollector {
    resident: IntGauge,
    private: IntGauge,
    cpu: Gauge,
    open_fds: IntGauge,
    max_fds: IntGauge,
    threads: IntGauge,
    tasks: IntGauge,
    started: IntGauge,
    /// The one that the registry was made on.
    runtime: Option<runtime::Handle>,
}

impl ProcessCollector {
    pub(super) fn new() -> Self {
        let int = |name: &str, help: &str| {
            IntGauge::with_opts(Opts::new(name, help)).expect("constant names are valid")
        };
        let cpu = Opts::new(
            "process_cpu_seconds",
            "CPU time of the process, user and system.",
        );
        Self {
            resident: int("process_resident_bytes", "Resident memory."),
            private: int(
                "process_private_bytes",
                "Resident memory that is not file pages: heap and stacks.",
            ),
            cpu: Gauge::with_opts(cpu).expect("constant names are valid"),
            open_fds: int("process_open_fds", "Open descriptors."),
            max_fds: int("process_max_fds", "Limit of open descriptors."),
            threads: int("process_threads", "Threads."),
            tasks: int(
                "process_tasks",
                "Tasks that have not ended, of the main runtime and those on a thread of their own.",
            ),
            started: started(),
            runtime: runtime::Handle::try_current().ok(),
        }
    }

    fn refresh(&self) {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| status_field(&status, name).unwrap_or(0);
        self.resident.set(field("VmRSS:") * 1024);
        self.private.set(field("RssAnon:") * 1024);
        self.threads.set(field("Threads:"));
        let tasks = self.runtime.as_ref().map_or(0, alive) + shutdown::side_tasks();
        self.tasks.set(i64::try_from(tasks).unwrap_or(i64::MAX));
        self.cpu.set(cpu_seconds());
        let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        // One of them is the folder itself.
        self.open_fds.set(open.saturating_sub(1) as i64);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        self.max_fds
            .set(limit.map_or(-1, |it| i64::try_from(it).unwrap_or(i64::MAX)));
    }

    fn gauges(&self) -> [&dyn Collector; 8] {
        [
            &self.resident,
            &self.private,
            &self.cpu,
            &self.open_fds,
            &self.max_fds,
            &self.threads,
            &self.tasks,
            &self.started,
        ]
    }
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges().into_iter().flat_map(|it| it.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.refresh();
        let gauges = self.gauges().into_iter();
        gauges.flat_map(|it| it.collect()).collect()
    }
}

fn alive(runtime: &runtime::Handle) -> usize {
    runtime.metrics().num_alive_tasks()
}

/// Now: a registry is made when the process starts.
fn started() -> IntGauge {
    let (name, help) = ("process_start_time_seconds", "When the process started.");
    let gauge = IntGauge::with_opts(Opts::new(name, help)).expect("constant names are valid");
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    gauge.set(since.map_or(0, |it| i64::try_from(it.as_secs()).unwrap_or(i64::MAX)));
    gauge
}

/// "VmRSS:     1234 kB" -> 1234.
fn status_field(status: &str, name: &str) -> Option<i64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// User and system time of all threads.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
