//! CPU time of processes on this machine, from `/proc/<pid>/stat`.

use crate::args::ProcessPid;
use std::{fs, path::Path, process};

/// CPU seconds, user and system, that a process has used since its start;
/// `None` if it is gone or was never there.
pub fn cpu_seconds(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks = ticks(&stat)?;
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// User plus system ticks: fields 14 and 15. The name in field 2 may hold
/// spaces and parentheses, so counting begins after the last one.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Other processes of ours on this machine: those whose program is named
/// `talweg` or `talweg-…`, measurements apart.
pub fn local_servers() -> Vec<ProcessPid> {
    let mut found: Vec<ProcessPid> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != process::id())
        .filter_map(|pid| {
            Some(ProcessPid {
                name: server_name(&fs::read(format!("/proc/{pid}/cmdline")).ok()?)?,
                pid,
            })
        })
        .collect();
    found.sort_by(|a, b| (&a.name, a.pid).cmp(&(&b.name, b.pid)));
    let alike = |name: &str| found.iter().filter(|other| other.name == name).count() > 1;
    let repeated: Vec<bool> = found.iter().map(|server| alike(&server.name)).collect();
    for (server, repeated) in found.iter_mut().zip(repeated) {
        if repeated {
            server.name = format!("{}#{}", server.name, server.pid);
        }
    }
    found
}

/// What a report calls the process with this command line.
fn server_name(cmdline: &[u8]) -> Option<String> {
    let mut words = cmdline
        .split(|byte| *byte == 0)
        .map(String::from_utf8_lossy);
    let program = words.next()?;
    let program = Path::new(program.as_ref())
        .file_name()?
        .to_str()?
        .to_owned();
    match program.as_str() {
        "talweg" => words
            .any(|word| word == "dev")
            .then(|| "talweg dev".to_owned()),
        other => other.starts_with("talweg-").then(|| other.to_owned()),
    }
}

/// CPU time of this process and of servers between two moments.
pub struct CpuMeter {
    client: f64,
    servers: Vec<(ProcessPid, f64)>,
}

/// What they used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuUse {
    /// Seconds of this process.
    pub client: f64,
    /// Seconds of each server that was there at both moments.
    pub servers: Vec<(String, f64)>,
}

impl CpuMeter {
    /// Starts now, for these servers or, if none is named, all that are found.
    pub fn start(named: &[ProcessPid]) -> Self {
        let servers = if named.is_empty() {
            local_servers()
        } else {
            named.to_vec()
        };
        let servers = servers
            .into_iter()
            .filter_map(|s| cpu_seconds(s.pid).map(|used| (s, used)))
            .collect();
        Self {
            client: cpu_seconds(process::id()).unwrap_or(0.0),
            servers,
        }
    }

    /// What was used since the start.
    pub fn stop(&self) -> CpuUse {
        let servers = self.servers.iter();
        CpuUse {
            client: cpu_seconds(process::id()).unwrap_or(self.client) - self.client,
            servers: servers
                .filter_map(|(s, before)| Some((s.name.clone(), cpu_seconds(s.pid)? - before)))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_found_behind_a_name_that_looks_like_fields() {
        let stat = "12 (a) S 1) R 1 1 1 0 -1 4194560 100 0 0 0 250 50 7 7 20 0 1 0 5 6 7";
        assert_eq!(ticks(stat), Some(300));
        assert_eq!(ticks("12 (a R 1"), None);
        assert_eq!(ticks(""), None);
    }

    #[test]
    fn our_own_time_grows_with_work() {
        let meter = CpuMeter::start(&[ProcessPid {
            name: "gone".into(),
            pid: u32::MAX,
        }]);
        let begun = std::time::Instant::now();
        let mut sum = 0u64;
        while cpu_seconds(process::id()).expect("we are here") - meter.client < 0.02 {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(1));
            assert!(begun.elapsed().as_secs() < 30, "no CPU time was counted");
        }
        let used = meter.stop();
        assert!(used.client >= 0.02, "{used:?}");
        assert_eq!(
            used.servers,
            [],
            "a process that is not there is not reported"
        );
    }

    #[test]
    fn servers_are_known_by_their_program() {
        for (cmdline, name) in [
            (&b"/usr/bin/talweg\0dev\0"[..], Some("talweg dev")),
            (b"target/debug/talweg\0--json\0dev\0", Some("talweg dev")),
            (b"talweg\0bench\0produce\0t\0", None),
            (b"./talweg-storage\0--grpc\0", Some("talweg-storage")),
            (b"/bin/bash\0-c\0talweg dev\0", None),
            (b"", None),
        ] {
            assert_eq!(server_name(cmdline).as_deref(), name, "{cmdline:?}");
        }
    }
}
