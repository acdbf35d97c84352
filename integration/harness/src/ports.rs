//! Ports that stay the same over a process's restarts.

use std::{
    net::TcpListener,
    sync::atomic::{AtomicU16, Ordering},
};

/// Below Linux's ephemeral range (32768 and up), so that no outgoing connection
/// takes a port while its server is down.
const FIRST: u16 = 12_000;
const LAST: u16 = 31_999;
static NEXT: AtomicU16 = AtomicU16::new(0);

/// A loopback port that nobody listens on. Test binaries run side by side, so
/// each begins at a place of its own and checks.
pub fn free_port() -> u16 {
    let span = LAST - FIRST;
    let begin = u16::try_from(std::process::id() % u32::from(span)).expect("below the span");
    for _ in 0..span {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + begin.wrapping_mul(7).wrapping_add(step) % span;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port in {FIRST}..={LAST}");
}
