//! A thread that works in the background until the node stops.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

/// The running thread. Dropped, it is told to stop and waited for.
pub struct Worker {
    stopping: Arc<AtomicBool>,
    /// Dropped to wake the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread knows of its end.
#[derive(Clone)]
pub struct Stopping {
    flag: Arc<AtomicBool>,
    stopped: Receiver<()>,
}

impl Worker {
    pub fn spawn(name: &str, run: impl FnOnce(Stopping) + Send + 'static) -> io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        let (stop, stopped) = bounded(0);
        let stopping = Stopping {
            flag: Arc::clone(&flag),
            stopped,
        };
        let thread = thread::Builder::new()
            .name(name.into())
            .spawn(move || run(stopping))?;
        Ok(Self {
            stopping: flag,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Nothing is begun any more; what is under way ends soon.
    pub fn stop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        self.stop = None;
    }

    /// For a disk that hangs: the thread is not waited for.
    pub fn abandon(&mut self) {
        self.stop();
        self.thread = None;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
        // It touches files until it has ended.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Stopping {
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    /// Waits so long at most; true if the thread must end.
    pub fn wait(&self, time: Duration) -> bool {
        !matches!(
            self.stopped.recv_timeout(time),
            Err(RecvTimeoutError::Timeout)
        )
    }
}
