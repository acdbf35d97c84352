//! What happens to the controller, before anything is planned: sessions end,
//! requests queue, writes are done.

use super::{
    Change, Core, Effect, Now, Plane, Refusal, Request, SessionState, StreamId, Value, View,
    jobs::Job, requests::CallId,
};
use talweg_metastore::{Revision, keys::Key};
use talweg_types::NodeId;

/// Fewer sessions than this say nothing about who is cut off.
const SESSIONS_TO_JUDGE: usize = 3;

impl Core {
    pub(super) fn on_tick(&mut self, now: Now, effects: &mut Vec<Effect>) {
        self.ask_ends_again(now, effects);
        self.balance_if_due(now);
        self.jobs.unpark();
        if self.view.moving().next().is_some() {
            self.jobs.urgent(Job::Reassign);
        }
        if self.view.balance.is_some() {
            self.jobs.urgent(Job::Rebalance);
        }
        if self.offsets_topic_grows() {
            self.jobs.urgent(Job::Shards);
        }
    }

    /// A storage node or coordinator may be dead; nobody depends on gateways.
    pub(super) fn on_broken(&mut self, stream: StreamId) -> Option<Effect> {
        let node = self.sessions.on_broken(stream)?;
        let session = self.session(node)?;
        (session.plane != Plane::Gateway).then(|| Effect::Probe {
            node,
            incarnation: session.incarnation,
            address: session.grpc_address.clone(),
        })
    }

    pub(super) fn on_request(&mut self, call: CallId, request: Request, effects: &mut Vec<Effect>) {
        let queued = match request {
            Request::AlterInSync(asked) => {
                match self.check_process(asked.node, asked.incarnation) {
                    Ok(()) => {
                        self.jobs.urgent(Job::InSync);
                        self.in_sync.push(call, asked)
                    }
                    Err(refusal) => Err(refusal),
                }
            }
            request => {
                let job = Job::from_request(call, request);
                let queued = self.jobs.ordinary(job);
                queued.map_err(|waiting| Refusal::Busy { waiting })
            }
        };
        if let Err(refusal) = queued {
            let outcome = Err(refusal);
            effects.push(Effect::Reply { call, outcome });
        }
    }

    pub(super) fn on_written(&mut self, now: Now, revision: Revision, effects: &mut Vec<Effect>) {
        let Some((changes, job)) = self.jobs.written() else {
            return;
        };
        self.changed.note(&changes);
        let recovered = changes
            .iter()
            .filter_map(|change| self.new_recovery(change));
        effects.extend(recovered.collect::<Vec<_>>());
        let partitions: Vec<_> = changes.iter().filter_map(Change::partition).collect();
        let topics = changes.iter().any(|c| matches!(c.key, Key::Topic(_)));
        self.view.apply(revision, changes);
        self.jobs.resume(job);
        if topics {
            self.jobs.urgent(Job::Shards);
        }
        for tp in partitions {
            self.note_due(now.monotonic, tp);
            if self
                .view
                .partitions
                .get(&tp)
                .is_some_and(|p| p.value.moving.is_some())
            {
                self.jobs.urgent(Job::Reassign);
            }
        }
    }

    fn new_recovery(&self, change: &Change) -> Option<Effect> {
        let (Key::Partition(tp), Some(Value::Partition(next))) = (&change.key, &change.value)
        else {
            return None;
        };
        let before = self.view.partitions.get(tp)?.value.recovered;
        let recovered = next.recovered.filter(|new| before != Some(*new))?;
        Some(Effect::Recovered {
            partition: *tp,
            leader: next.leader,
            recovered,
        })
    }

    pub(super) fn on_reloaded(&mut self, now: Now, view: View) {
        if let Some((_, job)) = self.jobs.written() {
            self.jobs.resume(job);
        }
        self.changed.note_all(&self.view, &view);
        self.view = view;
        self.jobs.urgent(Job::Shards);
        self.note_all_due(now.monotonic);
    }

    /// A node that is told so registers again; its process keeps its
    /// incarnation, its partitions get new epochs.
    pub(super) fn end_silent_sessions(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let silent = self.sessions.silent(now.monotonic);
        if silent.is_empty() || self.resigned || self.is_cut_off(now, &silent) {
            if !silent.is_empty() && !self.resigned {
                self.resigned = true;
                effects.push(Effect::Resign);
            }
            return;
        }
        for node in silent {
            let session = self.sessions.end(node);
            let stream = session.and_then(|session| session.stream);
            effects.extend(stream.map(|stream| Effect::Close { stream }));
            self.on_dead(node);
        }
    }

    /// More than half of the sessions that lived went silent within one
    /// time-out. Nothing is decided about those that are silent now.
    fn is_cut_off(&mut self, now: Now, silent: &[NodeId]) -> bool {
        let live = |node: &&NodeId| {
            let session = self.sessions.get(**node);
            session.is_some_and(|session| session.state == SessionState::Live)
        };
        let newly = silent.iter().filter(live).count();
        let since = now.monotonic.saturating_sub(self.settings.session_timeout);
        self.silenced.retain(|at| *at > since);
        let lost = self.silenced.len() + newly;
        let before = self.silenced.len() + self.sessions.live();
        self.silenced
            .extend(std::iter::repeat_n(now.monotonic, newly));
        before >= SESSIONS_TO_JUDGE && lost * 2 > before
    }

    pub(super) fn on_dead(&mut self, node: NodeId) {
        self.changed.note_node(node);
        self.jobs.urgent(Job::Reconcile { node });
        self.jobs.urgent(Job::Shards);
    }
}
