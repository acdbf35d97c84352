//! Ending a process, and threads of their own for what must not wait.

use std::{future::Future, io, thread};
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

/// A single-threaded runtime on a thread of its own, for work that must go on
/// when the main runtime's threads are busy or stuck behind a disk: a node's
/// session with its controller. Dropping it stops the thread; tasks on it are
/// dropped at their next await.
#[derive(Debug)]
pub struct SideRuntime {
    handle: runtime::Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
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
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            // An error means that the owner was dropped: stop as well.
            drop(runtime.block_on(stopped));
            runtime.shutdown_background();
        })?;
        Ok(Self {
            handle,
            stop: Some(stop),
            thread: Some(thread),
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

impl Drop for SideRuntime {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It waits for nothing but its current poll. A panic there was
            // reported by the thread itself.
            drop(thread.join());
        }
    }
}
