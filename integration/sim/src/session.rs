//! A node and its controller: the session, the watch, proposals. Mirrors
//! `services/storage`'s `control::session`, `control::follow` and
//! `replicate::proposer`.

use crate::{
    Checked, Happened,
    net::{Conn, Message, Peer},
    process::Asked,
    world::World,
};
use std::{collections::BTreeSet, sync::Arc};
use talweg_controller::core::{
    AlterInSync, InSyncProposal, InSyncResult, LogEnd, Plane, Registration,
};
use talweg_log::Boot;
use talweg_replication::{InSync, MonotonicMs};
use talweg_storage::parts::{ClusterView, ProposalAnswer, ViewUpdate};
use talweg_types::{Incarnation, NodeId, TopicPartition};
use uuid::Uuid;

pub const SESSION_MS: u64 = 3_000;
const REGISTER_MS: u64 = 10_000;
const CALL_MS: u64 = 2_000;

#[derive(Default)]
pub struct Session {
    stream: Option<Conn>,
    live: bool,
    /// Of the two machines that controllers run on.
    machine: usize,
    heard: MonotonicMs,
    beat: MonotonicMs,
    again: MonotonicMs,
    failures: u32,
}

impl World {
    fn controller(&self, machine: usize) -> Peer {
        Peer {
            end: self.nodes.len() + machine,
            life: self.control.life_on(machine),
        }
    }

    pub fn session_tick(&mut self, node: usize) -> Checked {
        let clock = self.nodes[node].clock(self.now);
        let now = self.now;
        let Some(process) = self.process(node) else {
            return Ok(());
        };
        let session = &mut process.session;
        match session.stream {
            None if clock >= session.again => self.register(node),
            None => {}
            Some(conn) => {
                let patience = if session.live {
                    SESSION_MS
                } else {
                    REGISTER_MS
                };
                if clock.since(session.heard) > patience {
                    self.send(conn, 0, Message::Closed);
                    self.end_session(node);
                } else if session.live && clock.since(session.beat) >= SESSION_MS / 3 {
                    session.beat = clock;
                    let failed = process.folder.failed().is_some();
                    self.send(conn, 0, Message::Heartbeat { failed });
                }
            }
        }
        let Some(process) = self.process(node) else {
            return Ok(());
        };
        if process.watch.is_none() && now >= process.watch_again {
            self.watch(node);
        }
        let Some(process) = self.process(node) else {
            return Ok(());
        };
        if process
            .asked
            .as_ref()
            .is_some_and(|asked| clock > asked.until)
        {
            self.on_altered(node, None);
        }
        Ok(())
    }

    fn register(&mut self, node: usize) {
        let clock = self.nodes[node].clock(self.now);
        let from = self.nodes[node].peer();
        let cluster = self.nodes[node].cluster;
        let Some(process) = self.process(node) else {
            return;
        };
        let folders = BTreeSet::from([process.folder.id()]);
        let fresh = process.boot == Boot::New;
        let registration = Registration {
            plane: Plane::Storage,
            node: process.node,
            cluster,
            process: process.id,
            grpc_address: format!("http://node-{}:7072", process.node),
            http_address: String::new(),
            rack: format!("rack-{}", process.node.0 % 3),
            fresh: if fresh {
                folders.clone()
            } else {
                BTreeSet::new()
            },
            folders,
            clean: process.boot != Boot::Unclean,
            version: "simulated".into(),
        };
        let machine = process.session.machine;
        let to = self.controller(machine);
        let conn = self.net.open(from, to);
        self.send(conn, 0, Message::Register(Box::new(registration)));
        if let Some(process) = self.process(node) {
            process.session.stream = Some(conn);
            process.session.live = false;
            process.session.heard = clock;
        }
    }

    fn end_session(&mut self, node: usize) {
        let clock = self.nodes[node].clock(self.now);
        let wait = self.rng.between(20, 150);
        if let Some(process) = self.process(node) {
            let session = &mut process.session;
            session.stream = None;
            session.live = false;
            session.machine = 1 - session.machine;
            session.failures = session.failures.saturating_add(1);
            session.again = clock.plus((wait << session.failures.min(4)).min(1_000));
        }
    }

    fn watch(&mut self, node: usize) {
        let from = self.nodes[node].peer();
        let Some(process) = self.process(node) else {
            return;
        };
        let machine = process.session.machine;
        let to = self.controller(machine);
        let conn = self.net.open(from, to);
        if let Some(process) = self.process(node) {
            process.watch = Some(conn);
            process.update = ViewUpdate::new(Arc::clone(&process.view));
        }
        self.send(conn, 0, Message::Watch);
    }

    fn end_watch(&mut self, node: usize) {
        let again = self.now + self.rng.between(20, 600);
        if let Some(process) = self.process(node) {
            process.watch = None;
            process.watch_again = again;
        }
    }

    /// Whatever comes over a stream.
    pub fn on_stream(&mut self, node: usize, conn: Conn, message: Message) -> Checked {
        let Some(process) = self.process(node) else {
            return Ok(());
        };
        if process.session.stream == Some(conn) {
            return self.on_session(node, conn, message);
        }
        if process.watch == Some(conn) {
            return match message {
                Message::View(update) => self.on_view(node, conn, &update),
                _ => {
                    self.end_watch(node);
                    Ok(())
                }
            };
        }
        match message {
            // Of a session that is over.
            Message::Registered { .. }
            | Message::Ack
            | Message::AskEnds(_)
            | Message::View(_)
            | Message::Fenced => {
                self.send(conn, 0, Message::Closed);
                Ok(())
            }
            message => self.on_replicate(node, conn, message),
        }
    }

    fn on_session(&mut self, node: usize, conn: Conn, message: Message) -> Checked {
        let clock = self.nodes[node].clock(self.now);
        let Some(process) = self.process(node) else {
            return Ok(());
        };
        let session = &mut process.session;
        match message {
            Message::Registered {
                incarnation,
                cluster,
            } => {
                session.live = true;
                session.failures = 0;
                session.heard = clock;
                session.beat = clock;
                process.contacts.write().controller_heard(clock);
                self.on_registered(node, incarnation, cluster)
            }
            Message::Ack => {
                session.heard = clock;
                process.contacts.write().controller_heard(clock);
                Ok(())
            }
            Message::AskEnds(asked) => {
                let ends = asked.into_iter().filter_map(|tp| {
                    let handle = process.handles.get(&tp)?;
                    handle.failure().is_none().then(|| {
                        let end = LogEnd {
                            epoch: handle.reader.last_epoch(),
                            offset: handle.reader.bounds().log_end,
                        };
                        (tp, end)
                    })
                });
                let ends: Vec<(TopicPartition, LogEnd)> = ends.collect();
                self.send(conn, 0, Message::Ends(ends));
                Ok(())
            }
            Message::Fenced => {
                self.coverage.note(Happened::Stale);
                self.exit(node)
            }
            _ => {
                self.end_session(node);
                Ok(())
            }
        }
    }

    fn on_registered(&mut self, node: usize, incarnation: Incarnation, cluster: Uuid) -> Checked {
        self.nodes[node].cluster = Some(cluster);
        // What was lost is taken in.
        self.nodes[node].lost = false;
        self.nodes[node].wiped = false;
        let life = self.nodes[node].life;
        let Some(process) = self.process(node) else {
            return Ok(());
        };
        if process.incarnation != Some(incarnation) {
            let wait = self.rng.between(0, 20);
            let incarnation = incarnation.0;
            self.after(
                wait,
                crate::world::Event::Marked {
                    node,
                    life,
                    incarnation,
                },
            );
        }
        Ok(())
    }

    fn on_view(
        &mut self,
        node: usize,
        conn: Conn,
        update: &talweg_proto::controller::v1::WatchClusterResponse,
    ) -> Checked {
        let Some(process) = self.process(node) else {
            return Ok(());
        };
        let Some(update) = update.update.clone() else {
            return Ok(());
        };
        match process.update.apply(update) {
            Ok(Some(view)) => {
                never_back(&process.view, &view)
                    .map_err(|why| format!("the view of node {}: {why}", node + 1))?;
                process.view = view;
                self.look_at_all(node);
            }
            Ok(None) => {}
            Err(_) => {
                self.end_watch(node);
                self.send(conn, 0, Message::Closed);
            }
        }
        Ok(())
    }

    /// Asks for changes of in-sync sets, one call at a time.
    pub fn ask_controller(&mut self, node: usize) {
        let clock = self.nodes[node].clock(self.now);
        let from = self.nodes[node].peer();
        let now = self.now;
        let Some(process) = self.process(node) else {
            return;
        };
        if process.asked.is_some() || now < process.ask_again {
            return;
        }
        let proposals: Vec<_> = process.outbox.take_proposals().into_iter().collect();
        let (false, Some(incarnation)) = (proposals.is_empty(), process.incarnation) else {
            return;
        };
        let asked = AlterInSync {
            node: process.node,
            incarnation,
            proposals: proposals
                .iter()
                .map(|(tp, proposal)| in_sync_proposal(tp, proposal))
                .collect(),
        };
        let machine = process.session.machine;
        let call = self.net.name();
        let to = self.controller(machine);
        self.send_single(from, to, call, &Message::Alter(asked));
        if let Some(process) = self.process(node) {
            process.asked = Some(Asked {
                call,
                until: clock.plus(CALL_MS),
                proposals,
            });
        }
    }

    /// An answer to a call.
    pub fn on_answer(&mut self, node: usize, call: Conn, message: Message) -> Checked {
        let Message::Altered(results) = message else {
            return Ok(());
        };
        let waits = self.process(node).is_some_and(|process| {
            process
                .asked
                .as_ref()
                .is_some_and(|asked| asked.call == call)
        });
        if waits {
            self.on_altered(node, results);
        }
        Ok(())
    }

    /// `None`: nobody knows what came of it.
    fn on_altered(&mut self, node: usize, results: Option<Vec<InSyncResult>>) {
        let clock = self.nodes[node].clock(self.now);
        let again = self.now + self.rng.between(20, 200);
        let Some(process) = self.process(node) else {
            return;
        };
        let Some(asked) = process.asked.take() else {
            return;
        };
        if results.is_none() {
            process.ask_again = again;
        }
        let mut results = results.unwrap_or_default().into_iter();
        for (tp, proposal) in &asked.proposals {
            let answer = match results.next() {
                None => ProposalAnswer::TimedOut { id: proposal.id },
                Some(InSyncResult {
                    refused: None,
                    state: Some(state),
                }) => ProposalAnswer::Confirmed(InSync {
                    epoch: state.leader_epoch,
                    partition_epoch: state.partition_epoch,
                    members: state.in_sync.iter().copied().collect(),
                }),
                Some(InSyncResult { state, .. }) => ProposalAnswer::Refused {
                    id: proposal.id,
                    partition_epoch: state
                        .map_or(talweg_types::PartitionEpoch(-1), |s| s.partition_epoch),
                },
            };
            if let Some(replica) = process.replicas.get_mut(tp) {
                replica.on_proposal(clock, answer, &mut process.out);
            }
        }
    }
}

/// Rule 9, for what a node knows: whoever told it.
fn never_back(before: &ClusterView, after: &ClusterView) -> Checked {
    if after.revision < before.revision {
        let (from, to) = (before.revision, after.revision);
        return Err(format!("the revision goes back from {from} to {to}"));
    }
    for (id, topic) in &before.topics {
        let now = after.topics.get(id).map(|topic| &topic.partitions);
        for (index, old) in &topic.partitions {
            let Some(new) = now.and_then(|partitions| partitions.get(index)) else {
                continue;
            };
            if new.leader_epoch < old.leader_epoch || new.partition_epoch < old.partition_epoch {
                return Err(format!(
                    "{id}/{index}: an epoch goes back: {old:?} to {new:?}"
                ));
            }
        }
    }
    Ok(())
}

fn in_sync_proposal(
    tp: &TopicPartition,
    proposal: &talweg_replication::Proposal,
) -> InSyncProposal {
    let members = proposal.members.iter();
    let members = members.map(|member| (member.node, member.incarnation.unwrap_or_default()));
    let members: Vec<(NodeId, Incarnation)> = members.collect();
    InSyncProposal {
        partition: *tp,
        leader_epoch: proposal.epoch,
        partition_epoch: proposal.partition_epoch,
        members,
        attempt: proposal.id.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use talweg_proto::controller::v1::PartitionState;
    use talweg_storage::parts::TopicView;
    use talweg_types::TopicId;

    fn view(revision: i64, leader_epoch: i32, partition_epoch: i64) -> ClusterView {
        let state = PartitionState {
            leader_epoch,
            partition_epoch,
            ..PartitionState::default()
        };
        let id = TopicId(Uuid::from_u128(1));
        let topic = TopicView {
            id,
            topic: Default::default(),
            config: Default::default(),
            partitions: [(0, state)].into(),
            earlier_counts: Vec::new(),
        };
        let mut view = ClusterView::empty();
        view.revision = revision;
        view.topics.insert(id, Arc::new(topic));
        view
    }

    /// An older snapshot is refused before it gets here: only doctored views go back.
    #[test]
    fn views_that_go_back_are_found() {
        let before = view(5, 3, 7);
        for fine in [view(5, 3, 7), view(6, 3, 8), view(9, 4, 9)] {
            assert_eq!(never_back(&before, &fine), Ok(()));
        }
        for back in [view(4, 3, 7), view(6, 2, 8), view(6, 4, 6)] {
            never_back(&before, &back).expect_err("it goes back");
        }
    }
}
