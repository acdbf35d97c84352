//! Takes away namespaces, processes in them and mounts: our own at the end, and
//! those of a process that ended without doing so.

use crate::system::try_run;
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;

/// Folder in which `ip netns` keeps namespaces.
const NAMESPACES: &str = "/run/netns";

/// Removes what processes that are gone have left on this machine.
pub fn sweep() {
    for name in namespaces() {
        let owner = name
            .strip_prefix("twg-")
            .and_then(|rest| rest.split('-').next());
        if owner.is_some_and(is_gone) {
            remove_one(&name);
        }
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for mount in mounts.lines().filter_map(|line| line.split(' ').nth(1)) {
        let owner = mount
            .rsplit_once("/disk-")
            .and_then(|(_, rest)| rest.split('-').next());
        if owner.is_some_and(is_gone) {
            // Thawing fails where nothing is frozen.
            let _ = try_run("fsfreeze", &["-u", mount]);
            report(try_run("umount", &["-l", mount]));
        }
    }
}

/// True if `pid` is a number and no process has it.
fn is_gone(pid: &str) -> bool {
    pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists()
}

fn namespaces() -> Vec<String> {
    let entries = std::fs::read_dir(NAMESPACES).into_iter().flatten();
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect()
}

/// Removes the namespaces whose names begin with `prefix` and a dash.
pub fn remove(prefix: &str) {
    let of_prefix = |name: &String| {
        let rest = name.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.starts_with('-'))
    };
    namespaces()
        .iter()
        .filter(|n| of_prefix(n))
        .for_each(|name| remove_one(name));
}

fn remove_one(name: &str) {
    let pids = try_run("ip", &["netns", "pids", name]).unwrap_or_default();
    for pid in pids.split_whitespace().filter_map(|pid| pid.parse().ok()) {
        // It may have ended meanwhile.
        let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
    }
    report(try_run("ip", &["netns", "del", name]));
}

/// Cleaning goes on; what could not be removed is told.
fn report(result: Result<String, String>) {
    if let Err(why) = result {
        eprintln!("{why}");
    }
}
