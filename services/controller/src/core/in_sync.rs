//! In-sync sets as leaders propose them: compare-and-set on both epochs, from
//! the leader's live process only, members named with their live processes.
//!
//! Proposals of many leaders share a transaction. Each is decided on the view
//! of its turn; one that is in force already is a success, so a proposal that
//! was written unclearly, or is repeated, does no harm.

use super::{
    CHANGES_PER_WRITE, CallId, Change, Core, Effect, Partition, Refusal, Reply, SessionState,
    fault::{Fault, planted},
    reconcile::put,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use talweg_types::{Incarnation, LeaderEpoch, NodeId, PartitionEpoch, TopicPartition};

/// Calls that may wait.
const WAITING_MAX: usize = 1_000;
/// Attempts of partitions that are gone are kept up to this number.
const FORGET_ABOVE: usize = 10_000;

/// A leader asks to change in-sync sets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AlterInSync {
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub proposals: Vec<InSyncProposal>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InSyncProposal {
    pub partition: TopicPartition,
    pub leader_epoch: LeaderEpoch,
    pub partition_epoch: PartitionEpoch,
    /// The whole set with the incarnations that the leader has heard.
    pub members: Vec<(NodeId, Incarnation)>,
    /// Counts the leader's attempts in its epoch; 0: not counted.
    pub attempt: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InSyncResult {
    /// Why not; `None`: it is in force.
    pub refused: Option<String>,
    /// As it is now; `None` if there is no such partition.
    pub state: Option<Partition>,
}

/// A call and what has been decided of it.
#[derive(Debug)]
struct Waiting {
    call: CallId,
    asked: AlterInSync,
    results: Vec<InSyncResult>,
}

/// Calls in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct InSyncCalls {
    waiting: VecDeque<Waiting>,
    /// The newest attempt that has arrived, by partition.
    newest: BTreeMap<TopicPartition, (LeaderEpoch, u64)>,
}

impl InSyncCalls {
    /// Refuses what has come before: a leader that was told "refused" counts on it
    /// that this attempt will never be applied.
    pub(super) fn push(&mut self, call: CallId, asked: AlterInSync) -> Result<(), Refusal> {
        if self.waiting.len() >= WAITING_MAX {
            return Err(Refusal::Busy {
                waiting: self.waiting.len(),
            });
        }
        let named = |one: &InSyncProposal| (one.leader_epoch, one.attempt);
        let came = |one: &InSyncProposal| {
            let newest = self.newest.get(&one.partition);
            one.attempt > 0 && newest.is_some_and(|newest| named(one) <= *newest)
        };
        if asked.proposals.iter().any(came) {
            return Err(Refusal::RepeatedProposal);
        }
        let attempts = asked.proposals.iter().filter(|one| one.attempt > 0);
        self.newest
            .extend(attempts.map(|one| (one.partition, named(one))));
        self.waiting.push_back(Waiting {
            call,
            asked,
            results: Vec::new(),
        });
        Ok(())
    }

    /// Partitions that are gone.
    fn forget(&mut self, exists: impl Fn(&TopicPartition) -> bool, count: usize) {
        if self.newest.len() > count + FORGET_ABOVE {
            self.newest.retain(|partition, _| exists(partition));
        }
    }
}

/// What becomes of a proposal now.
enum Verdict {
    Done(InSyncResult),
    Change(Partition),
}

impl Core {
    /// Decides what can be decided, and names the next transaction.
    pub(super) fn plan_in_sync(&mut self, effects: &mut Vec<Effect>) -> Option<Vec<Change>> {
        let partitions = &self.view.partitions;
        self.in_sync
            .forget(|tp| partitions.contains_key(tp), partitions.len());
        let mut waiting = std::mem::take(&mut self.in_sync.waiting);
        let mut changes = Vec::new();
        let mut touched = BTreeSet::new();
        for one in &mut waiting {
            self.advance(one, &mut changes, &mut touched);
            if changes.len() == CHANGES_PER_WRITE {
                break;
            }
        }
        waiting.retain_mut(|one| {
            let done = one.results.len() == one.asked.proposals.len();
            if done {
                effects.push(Effect::Reply {
                    call: one.call,
                    outcome: Ok(Reply::InSync(std::mem::take(&mut one.results))),
                });
            }
            !done
        });
        self.in_sync.waiting = waiting;
        (!changes.is_empty()).then_some(changes)
    }

    /// Results come in the order of the proposals, so what follows a change of
    /// the same call is looked at now and answered after it.
    fn advance(
        &self,
        one: &mut Waiting,
        changes: &mut Vec<Change>,
        touched: &mut BTreeSet<TopicPartition>,
    ) {
        let mut in_order = true;
        for proposal in &one.asked.proposals[one.results.len()..] {
            if changes.len() == CHANGES_PER_WRITE || touched.contains(&proposal.partition) {
                return;
            }
            match self.judge(&one.asked, proposal) {
                Verdict::Done(result) if in_order => one.results.push(result),
                Verdict::Done(_) => {}
                Verdict::Change(next) => {
                    in_order = false;
                    touched.insert(proposal.partition);
                    changes.push(put(proposal.partition, next));
                }
            }
        }
    }

    fn judge(&self, asked: &AlterInSync, proposal: &InSyncProposal) -> Verdict {
        let tp = proposal.partition;
        let stored = self.view.partitions.get(&tp).map(|stored| &stored.value);
        let rules = self.rules(tp.topic_id);
        let (Some(partition), Some(rules)) = (stored, rules) else {
            return refused(None, "there is no such partition".into());
        };
        if let Err(why) = self.check_proposal(asked, proposal, partition) {
            return refused(Some(partition), why);
        }
        let members: Vec<_> = proposal.members.iter().map(|(node, _)| *node).collect();
        let same = members.len() == partition.in_sync.len()
            && members.iter().all(|node| partition.in_sync.contains(node));
        if same && proposal.partition_epoch == partition.partition_epoch {
            // The leader is in doubt about an attempt that was not answered: a new
            // partition epoch tells it that none of them can be applied any more.
            return Verdict::Change(partition.confirmed_again());
        }
        if same {
            return Verdict::Done(InSyncResult {
                refused: None,
                state: Some(partition.clone()),
            });
        }
        let compared = !planted(Fault::PartitionEpochNotCompared);
        if proposal.partition_epoch != partition.partition_epoch && compared {
            let why = format!(
                "partition epoch {} is not the newest, {}",
                proposal.partition_epoch.0, partition.partition_epoch.0
            );
            return refused(Some(partition), why);
        }
        let mut next = partition.clone();
        next.replace_in_sync(&members, rules.minimum);
        match next.after(partition) {
            Some(next) => Verdict::Change(next),
            None => refused(Some(partition), "it changes nothing".into()),
        }
    }

    fn check_proposal(
        &self,
        asked: &AlterInSync,
        proposal: &InSyncProposal,
        partition: &Partition,
    ) -> Result<(), String> {
        if planted(Fault::LeaderNotCompared) {
            return Ok(());
        }
        if (partition.leader, partition.leader_incarnation) != (asked.node, asked.incarnation) {
            return Err(format!(
                "the leader is node {} in incarnation {}",
                partition.leader, partition.leader_incarnation.0
            ));
        }
        if proposal.leader_epoch != partition.leader_epoch {
            return Err(format!(
                "leader epoch {} is not the newest, {}",
                proposal.leader_epoch.0, partition.leader_epoch.0
            ));
        }
        let members = &proposal.members;
        if !members.iter().any(|(node, _)| *node == asked.node) {
            return Err("members must have the leader".into());
        }
        for (i, (node, incarnation)) in members.iter().enumerate() {
            if members[..i].iter().any(|(other, _)| other == node) {
                return Err(format!("members: node {node} is there twice"));
            }
            if !partition.replicas.contains(node) {
                return Err(format!("members: node {node} is no replica"));
            }
            if self.has_failed(proposal.partition, *node) {
                return Err(format!("members: the replica of node {node} has failed"));
            }
            self.check_member(partition, *node, *incarnation)?;
        }
        Ok(())
    }

    /// New members must be heard; of those that are in already the same process
    /// may still be awaited.
    fn check_member(
        &self,
        partition: &Partition,
        node: NodeId,
        incarnation: Incarnation,
    ) -> Result<(), String> {
        let session = self
            .session(node)
            .ok_or_else(|| format!("members: node {node} is dead"))?;
        // A leader that has not heard a member in its epoch keeps it as it is here.
        let kept = incarnation == Incarnation(0) && partition.in_sync.contains(&node);
        let kept = kept || planted(Fault::StaleMemberAdmitted);
        if session.incarnation != incarnation && !kept {
            return Err(format!(
                "members: node {node} lives in incarnation {}, not {}",
                session.incarnation.0, incarnation.0
            ));
        }
        let enough = session.state == SessionState::Live || partition.in_sync.contains(&node);
        match enough {
            true => Ok(()),
            false => Err(format!("members: node {node} has not registered yet")),
        }
    }

    /// Whether a call of this process may be looked at.
    pub(super) fn check_process(
        &self,
        node: NodeId,
        incarnation: Incarnation,
    ) -> Result<(), Refusal> {
        let known = self.view.nodes.get(&node);
        let known = known.ok_or(Refusal::UnknownNode { id: node })?;
        if known.value.incarnation != incarnation {
            return Err(Refusal::StaleIncarnation { id: node });
        }
        match self.alive(node) {
            Some(_) => Ok(()),
            None => Err(Refusal::NotRegistered { id: node }),
        }
    }
}

fn refused(state: Option<&Partition>, why: String) -> Verdict {
    Verdict::Done(InSyncResult {
        refused: Some(why),
        state: state.cloned(),
    })
}
