//! Ending a process, and threads of their own for what must not wait.

use parking_lot::Mutex;
use std::{
    future::Future,
    io,
    sync::{Arc, Weak},
    thread,
};
use tokio::{runtime, signal::unix, sync::oneshot};
use tokio_util::sync::CancellationToken;

/// A token that SIGTERM or SIGINT cancels. A second signal ends the process at
/// once with status 130: whoever repeats it has waited long enough.
///
/// # Errors
/// The handlers could not be installed.
pub fn on_signals() -> io::Result<CancellationToken> {
    let mut terminate = unix::signal(unix::SignalKind::terminate())?;
    let mut interrupt = unix::signal(unix::SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let stop = token.clone();
    tokio::spawn(async move {
        for count in 1.. {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            if count > 1 {
                tracing::warn!(signal = name, "second signal: ending now");
                std::process::exit(130);
            }
            tracing::info!(signal = name, "stopping");
            stop.cancel();
        }
    });
    Ok(token)
}

/// The side runtimes of this process, for its figures.
static SIDES: Mutex<Vec<Weak<runtime::Handle>>> = Mutex::new(Vec::new());

/// Tasks of all side runtimes that have not ended.
pub(crate) fn side_tasks() -> usize {
    let mut sides = SIDES.lock();
    sides.retain(|side| side.strong_count() > 0);
    let alive = sides.iter().filter_map(Weak::upgrade);
    alive.map(|side| side.metrics().num_alive_tasks()).sum()
}

/// A single-threaded runtime on a thread of its own, for work that must go on
/// when the main runtime's threads are busy or stuck behind a disk: a node's
/// session with its controller. Dropping it ends the thread and drops its tasks,
/// at their next await; the drop itself waits for nothing.
#[derive(Debug)]
pub struct SideRuntime {
    handle: Arc<runtime::Handle>,
    /// Dropping it ends the thread.
    _stop: oneshot::Sender<()>,
}

impl SideRuntime {
    /// Starts the thread; its name shows in `top` (15 bytes).
    ///
    /// # Errors
    /// No thread or no runtime could be made.
    pub fn start(name: &str) -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let handle = Arc::new(runtime.handle().clone());
        let (stop, stopped) = oneshot::channel::<()>();
        thread::Builder::new().name(name.into()).spawn(move || {
            // An error means that the owner was dropped: stop as well.
            drop(runtime.block_on(stopped));
            runtime.shutdown_background();
        })?;
        let mut sides = SIDES.lock();
        sides.retain(|side| side.strong_count() > 0);
        sides.push(Arc::downgrade(&handle));
        Ok(Self {
            handle,
            _stop: stop,
        })
    }

    /// Spawns a task on it, from anywhere.
    pub fn spawn<F>(&self, task: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.handle.spawn(task)
    }

    /// For code that spawns by itself.
    pub fn handle(&self) -> &runtime::Handle {
        &self.handle
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc, time::Duration};
    use tokio::time::timeout;

    const SOON: Duration = Duration::from_secs(20);

    /// Its tasks run while the runtime that started it is blocked.
    #[tokio::test]
    async fn a_side_runtime_goes_on_while_the_main_one_is_stuck() {
        let side = SideRuntime::start("side").expect("started");
        let (tell, told) = mpsc::channel();
        side.spawn(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            tell.send(thread::current().name().map(str::to_owned)).ok();
        });
        // Blocks the only thread of this test's runtime.
        let name = told.recv_timeout(SOON).expect("it ran");
        assert_eq!(name.as_deref(), Some("side"));
    }

    /// Other tests of this process have side runtimes too: only more is seen for sure.
    #[tokio::test]
    async fn tasks_of_side_runtimes_are_counted() {
        let side = SideRuntime::start("side").expect("started");
        let tasks: Vec<_> = (0..3)
            .map(|_| side.spawn(std::future::pending::<()>()))
            .collect();
        assert!(side_tasks() >= tasks.len());
    }

    #[tokio::test]
    async fn dropping_a_side_runtime_drops_its_tasks() {
        let side = SideRuntime::start("side").expect("started");
        let (held, released) = oneshot::channel::<()>();
        side.spawn(async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        drop(side);
        let released = timeout(SOON, released).await.expect("dropped");
        released.expect_err("without a word");
    }

    #[tokio::test]
    async fn a_signal_cancels_the_token() {
        let token = on_signals().expect("handlers");
        assert!(!token.is_cancelled());
        let us = rustix::process::getpid();
        rustix::process::kill_process(us, rustix::process::Signal::TERM).expect("sent");
        timeout(SOON, token.cancelled()).await.expect("cancelled");
    }
}
