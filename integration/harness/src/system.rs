//! System tools that the nemesis needs: `ip`, `tc`, `mount`, `fsfreeze`.

use std::process::Command;

/// Panics with the reason unless this process may change networks and mounts.
pub fn require_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "network namespaces and loop mounts need root: run this test as root"
    );
}

/// Runs to the end; its output.
///
/// # Errors
/// The command with what it said.
pub fn try_run(program: &str, args: &[&str]) -> Result<String, String> {
    let described = || format!("{program} {}", args.join(" "));
    let output = Command::new(program)
        .args(args)
        .output()
        .map_err(|e| format!("{}: {e} (deploy/setup test installs it)", described()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("{}: {}", described(), said.trim()))
    }
}

/// The same for what must work.
pub fn run(program: &str, args: &[&str]) -> String {
    try_run(program, args).unwrap_or_else(|why| panic!("{why}"))
}

/// In a network namespace.
pub fn run_in(namespace: &str, program: &str, args: &[&str]) -> String {
    run(
        "ip",
        &[&["netns", "exec", namespace, program], args].concat(),
    )
}
