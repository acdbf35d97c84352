//! The threads that wait for the disk: flushes, and whatever else is slow
//! (deleting a log, rebuilding an index).
//!
//! A job never holds a loop up; its result comes back as a command. Urgent
//! flushes (somebody waits for an answer) and background work have threads of
//! their own, so that a long background flush delays no acknowledgement.
//! Queues are bounded by what loops hand out: one ticket a partition, one
//! rebuild and one deletion a partition.

use crate::partition::{Command, FlushKind, LoopHandle};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
};
use talweg_log::{FlushTicket, LogError, LogFolder, LogReader, PartitionLog, run_together};
use talweg_types::TopicPartition;
use tokio::sync::oneshot;

/// Up to this many files are flushed side by side, above it the whole disk at once.
pub const FILES_SIDE_BY_SIDE: usize = 16;
/// Log indexed by one job, so that other jobs get their turn.
const REBUILD_BYTES: u64 = 64 << 20;

/// Something slow.
pub enum Job {
    Flush {
        back: FlushBack,
        tickets: Vec<(TopicPartition, FlushTicket)>,
    },
    Delete {
        log: Box<PartitionLog>,
        done: oneshot::Sender<Result<(), LogError>>,
    },
    RebuildIndex {
        reader: Arc<LogReader>,
        interval_bytes: u32,
        back: LoopHandle,
    },
}

/// Where the results of a flush go.
#[derive(Clone)]
pub struct FlushBack {
    pub to: LoopHandle,
    pub folder_index: usize,
    pub folder: Arc<LogFolder>,
    pub kind: FlushKind,
}

/// The way to the threads.
#[derive(Clone)]
pub struct Flushers {
    urgent: Sender<Job>,
    background: Sender<Job>,
}

impl Flushers {
    /// Starts the threads. They end when the last handle is dropped and their
    /// queue is empty.
    pub fn spawn(
        urgent_threads: usize,
        background_threads: usize,
    ) -> io::Result<(Self, Vec<JoinHandle<()>>)> {
        let (urgent, urgent_jobs) = unbounded();
        let (background, background_jobs) = unbounded();
        let mut threads = Vec::new();
        for (name, count, jobs) in [
            ("flush", urgent_threads.max(1), urgent_jobs),
            ("background", background_threads.max(1), background_jobs),
        ] {
            for number in 0..count {
                let jobs: Receiver<Job> = jobs.clone();
                let thread = thread::Builder::new().name(format!("{name}-{number}"));
                threads.push(thread.spawn(move || jobs.iter().for_each(run))?);
            }
        }
        Ok((Self { urgent, background }, threads))
    }

    /// Flushes these partitions of one folder: one job a partition, or above
    /// [`FILES_SIDE_BY_SIDE`] one for all.
    pub fn flush(&self, back: &FlushBack, tickets: Vec<(TopicPartition, FlushTicket)>) {
        let jobs = match back.kind {
            FlushKind::Urgent => &self.urgent,
            FlushKind::Background => &self.background,
        };
        // A send fails only when the threads have ended, after the loops.
        if tickets.len() > FILES_SIDE_BY_SIDE {
            let _ = jobs.send(Job::Flush {
                back: back.clone(),
                tickets,
            });
            return;
        }
        for ticket in tickets {
            let _ = jobs.send(Job::Flush {
                back: back.clone(),
                tickets: vec![ticket],
            });
        }
    }

    /// Anything else.
    pub fn run(&self, job: Job) {
        let _ = self.background.send(job);
    }
}

fn run(job: Job) {
    match job {
        Job::Flush { back, tickets } => flush(&back, tickets),
        Job::Delete { log, done } => {
            // The caller may have given up waiting; the log is deleted all the same.
            let _ = done.send(log.delete());
        }
        Job::RebuildIndex {
            reader,
            interval_bytes,
            back,
        } => {
            let tp = reader.topic_partition();
            match reader.rebuild_index(interval_bytes, REBUILD_BYTES) {
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(partition = %tp, %error, "index not rebuilt; tried again later")
                }
            }
            let _ = back.send(Command::IndexRebuilt { tp });
        }
    }
}

fn flush(back: &FlushBack, tickets: Vec<(TopicPartition, FlushTicket)>) {
    let (names, tickets): (Vec<_>, Vec<_>) = tickets.into_iter().unzip();
    let result = match tickets.as_slice() {
        [one] => one.run(),
        many => run_together(&back.folder, many),
    };
    let results = names
        .into_iter()
        .zip(tickets)
        .map(|(tp, ticket)| crate::partition::Flushed {
            tp,
            ticket,
            result: match &result {
                Ok(()) => Ok(()),
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            },
        });
    let results = results.collect();
    // After the loop has ended nobody waits for the result.
    let _ = back.to.send(Command::Flushed {
        folder: back.folder_index,
        kind: back.kind,
        results,
    });
}
