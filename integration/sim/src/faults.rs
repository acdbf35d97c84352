//! What the plan does to the cluster.

use crate::{
    Checked, Happened,
    plan::Kind,
    world::{Event, World},
};
use talweg_controller::core::Request;
use talweg_types::{Durability, NodeId, Offset};

impl World {
    pub fn on_fault(&mut self, number: usize) -> Checked {
        if self.healing {
            return Ok(());
        }
        let kind = self.plan.faults[number].kind.clone();
        self.say(|| format!("fault {number}: {kind:?}"));
        self.mix(number as u64);
        self.coverage.faults += 1;
        let now = self.now;
        match kind {
            Kind::Kill { node, down } => self.kill(node, down)?,
            Kind::PowerLoss { node, down, some } => self.lose_power(node, some, down)?,
            Kind::PowerLossWithin { node, changes, .. } => {
                let disk = &mut self.nodes[node].disk;
                let at = disk.fs.operations() + changes;
                if self.nodes[node].process.is_some() {
                    let disk = &mut self.nodes[node].disk;
                    disk.fs.freeze_at(at);
                    disk.stops_at = Some(at);
                }
            }
            Kind::PowerLossOfAll { apart, some } => {
                for node in 0..self.nodes.len() {
                    let down = 100 + self.rng.between(0, apart);
                    self.lose_power(node, some, down)?;
                }
            }
            Kind::Pause { node, span } => {
                self.coverage.note(Happened::Paused);
                self.nodes[node].paused_until = now + span;
            }
            Kind::Cut { from, to, span } => self.net.cut(from, to, now + span),
            Kind::Isolate {
                node,
                into,
                out,
                span,
            } => {
                for other in (0..self.nodes.len() + 2).filter(|other| *other != node) {
                    if into {
                        self.net.cut(other, node, now + span);
                    }
                    if out {
                        self.net.cut(node, other, now + span);
                    }
                }
            }
            Kind::SlowLink {
                from,
                to,
                extra,
                span,
            } => self.net.slow(from, to, extra, now + span),
            Kind::BreakStreams { node } => self.break_streams(node)?,
            Kind::SlowFlush { node, flush, span } => {
                self.nodes[node].disk.flush_ms = flush;
                self.after(span, Event::FaultEnds(number));
            }
            Kind::DiskFull { node, span } => {
                let room = self.rng.between(0, 4_000);
                self.nodes[node].disk.fs.limit_free_bytes(Some(room));
                self.after(span, Event::FaultEnds(number));
            }
            Kind::FlushFails { node, after } => self.nodes[node].disk.fs.fail_flush_after(after),
            Kind::Wipe { node, down } => {
                if self.others_have_it_all(node) {
                    self.wipe(node, down)?;
                }
            }
            Kind::Failover { gap, zombie } => self.depose(gap, zombie),
            Kind::UnclearWrites { span } => self.control.unclear_until = now + span,
            Kind::Retain { partition, keep } => self.retain(partition, keep)?,
            Kind::Drain { node, span } => {
                self.drain(node, true)?;
                self.after(span, Event::FaultEnds(number));
            }
        }
        Ok(())
    }

    pub fn on_fault_ends(&mut self, number: usize) -> Checked {
        match self.plan.faults[number].kind {
            Kind::SlowFlush { node, .. } => self.nodes[node].disk.flush_ms = 4,
            Kind::DiskFull { node, .. } => self.nodes[node].disk.fs.limit_free_bytes(None),
            Kind::Drain { node, .. } => self.drain(node, false)?,
            _ => {}
        }
        Ok(())
    }

    fn drain(&mut self, node: usize, draining: bool) -> Checked {
        let node = NodeId(node as u32 + 1);
        self.ask(Request::Drain { node, draining })
    }

    /// A disk may only be emptied while others hold all that was promised: the
    /// promise at replication factor 3 is for one loss at a time.
    fn others_have_it_all(&self, node: usize) -> bool {
        let id = NodeId(node as u32 + 1);
        if self
            .nodes
            .iter()
            .any(|other| other.lost || other.disk.stops_at.is_some())
        {
            return false;
        }
        self.partitions().iter().all(|tp| {
            let Some(state) = self.control.partition(tp) else {
                return false;
            };
            let is_synced = self.topic_of(tp).durability == Durability::Synced;
            let Some(truth) = self.oracle.truths.get(tp) else {
                return false;
            };
            let members = state.in_sync.iter().chain(&state.eligible);
            let holds = |other: &NodeId| truth.holds(other.0 as usize - 1, is_synced).is_ok();
            let others = members
                .filter(|other| **other != id && holds(other))
                .count();
            !state.replicas.contains(&id) || others > 0 && !state.leader.is_none()
        })
    }

    fn retain(&mut self, partition: usize, keep: u64) -> Checked {
        let tp = self.partitions()[partition];
        let Some(state) = self.control.partition(&tp) else {
            return Ok(());
        };
        if state.leader.is_none() {
            return Ok(());
        }
        let node = state.leader.0 as usize - 1;
        let life = self.nodes[node].life;
        self.on_node(node, life, |world| {
            let Some(process) = world.process(node) else {
                return Ok(());
            };
            let Some(replica) = process.replicas.get_mut(&tp) else {
                return Ok(());
            };
            let bounds = replica.log.bounds();
            let before = Offset(bounds.high_watermark.0.saturating_sub(keep as i64));
            let leads = replica.handle.leads().is_some();
            if leads && before > bounds.log_start && !process.tickets.contains_key(&tp) {
                // A disk that is full or has failed refuses.
                let _ = replica.delete_records(Some(before));
            }
            Ok(())
        })
    }
}
