//! Jobs and their two queues. Node sessions go before requests; a job that has
//! written goes on before others of its queue, so that it is done in one piece
//! unless a node needs attention.

use super::{
    Change, Core, Effect, Loss, Now, Registration, StreamId,
    requests::{CallId, Next, Request},
    topics::Creation,
};
use std::{collections::VecDeque, time::Duration};
use talweg_types::{NodeId, TopicId};

/// Requests that may wait.
pub(super) const WAITING_MAX: usize = 1_000;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Job {
    /// Writes the cluster's id if there is none.
    FoundCluster,
    /// Finishes what was left half done: topics being created, partitions of
    /// deleted topics, tombstones that wait for nobody.
    Tidy,
    /// Takes a node in; `node` once its record is written and its session made.
    Register {
        stream: StreamId,
        registration: Registration,
        node: Option<NodeId>,
    },
    /// Makes the sets and leaders of a node's partitions agree with its session.
    Reconcile { node: NodeId },
    /// Elects where everybody who may have what is missing has answered.
    Recover,
    /// Decides what leaders propose.
    InSync,
    /// Moves some leaderships to where they belong; once.
    Balance { done: bool },
    /// Ends reassignments whose new replicas are in sync.
    Reassign,
    /// Begins the next moves of a balancing.
    Rebalance,
    /// Gives shards of internal topics to coordinators.
    Shards,
    /// A request; what it has found out so far is kept in `progress`.
    Request {
        call: CallId,
        request: Request,
        progress: Progress,
    },
}

/// What a request must remember between its transactions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Progress {
    Fresh,
    /// Partitions are being written.
    Creating(Creation),
    /// The topic was found and is being deleted.
    Deleting(TopicId),
    /// The block up to this id (exclusive) is being taken.
    Allocating {
        end: i64,
    },
    /// Replicas are asked for their ends, until then.
    Asking {
        until: Duration,
    },
    /// The change was asked for at least once.
    Written,
}

impl Job {
    pub(super) fn from_request(call: CallId, request: Request) -> Self {
        Self::Request {
            call,
            request,
            progress: Progress::Fresh,
        }
    }

    fn is_ordinary(&self) -> bool {
        matches!(self, Self::Request { .. })
    }

    /// Gives way after each of its transactions: a death is more urgent.
    fn gives_way(&self) -> bool {
        matches!(
            self,
            Self::InSync | Self::Balance { .. } | Self::Reassign | Self::Rebalance | Self::Shards
        )
    }
}

#[derive(Debug)]
pub(super) struct Jobs {
    urgent: VecDeque<Job>,
    ordinary: VecDeque<Job>,
    /// Requests that wait for something else than their turn.
    parked: Vec<Job>,
    /// The write under way and the job that asked for it.
    pub(super) writing: Option<(Vec<Change>, Job)>,
}

impl Jobs {
    pub(super) fn new() -> Self {
        Self {
            urgent: VecDeque::new(),
            ordinary: VecDeque::new(),
            parked: Vec::new(),
            writing: None,
        }
    }

    /// Bounded by the number of streams and nodes: one job each is enough.
    pub(super) fn urgent(&mut self, job: Job) {
        if !self.urgent.contains(&job) {
            self.urgent.push_back(job);
        }
    }

    /// Refuses with the number that waits already.
    pub(super) fn ordinary(&mut self, job: Job) -> Result<(), usize> {
        let waiting = self.ordinary.len() + self.parked.len();
        if waiting >= WAITING_MAX {
            return Err(waiting);
        }
        self.ordinary.push_back(job);
        Ok(())
    }

    /// The next job to plan; `None` while a write is under way.
    pub(super) fn next(&mut self) -> Option<Job> {
        if self.writing.is_some() {
            return None;
        }
        self.urgent
            .pop_front()
            .or_else(|| self.ordinary.pop_front())
    }

    pub(super) fn write(&mut self, changes: Vec<Change>, job: Job) {
        self.writing = Some((changes, job));
    }

    pub(super) fn written(&mut self) -> Option<(Vec<Change>, Job)> {
        self.writing.take()
    }

    /// Puts a job that has written back to the front of its queue.
    pub(super) fn resume(&mut self, job: Job) {
        match job.is_ordinary() {
            true => self.ordinary.push_front(job),
            false if job.gives_way() => self.urgent(job),
            false => self.urgent.push_front(job),
        }
    }

    /// What waited looks again.
    pub(super) fn unpark(&mut self) {
        let parked = std::mem::take(&mut self.parked);
        parked
            .into_iter()
            .rev()
            .for_each(|job| self.ordinary.push_front(job));
    }

    pub(super) fn park(&mut self, job: Job) {
        self.parked.push(job);
    }
}

impl Core {
    /// The job's next transaction; `None`: it is done.
    pub(super) fn plan(
        &mut self,
        now: Now,
        job: &mut Job,
        effects: &mut Vec<Effect>,
    ) -> Option<Vec<Change>> {
        match job {
            Job::FoundCluster => self.plan_cluster(now),
            Job::Tidy => self.plan_tidy(),
            Job::Register {
                stream,
                registration,
                node,
            } => self.plan_register(now, *stream, registration, node, effects),
            Job::Reconcile { node } => self.plan_reconcile(*node, Loss::Nothing),
            Job::Recover => self.plan_recover(now),
            Job::InSync => self.plan_in_sync(effects),
            Job::Balance { done } => self.plan_balance(now, done),
            Job::Reassign => self.plan_moves(),
            Job::Rebalance => self.plan_rebalance(now),
            Job::Shards => self.plan_shards(now),
            Job::Request {
                call,
                request,
                progress,
            } => {
                match self.plan_request(now, request, progress) {
                    Ok(Next::Write(changes)) => return Some(changes),
                    Ok(Next::Wait) => {
                        self.jobs.park(Job::Request {
                            call: *call,
                            request: request.clone(),
                            progress: progress.clone(),
                        });
                    }
                    Ok(Next::Reply(reply)) => {
                        effects.push(Effect::Reply {
                            call: *call,
                            outcome: Ok(reply),
                        });
                    }
                    Err(refusal) => {
                        effects.push(Effect::Reply {
                            call: *call,
                            outcome: Err(refusal),
                        });
                    }
                }
                None
            }
        }
    }
}
