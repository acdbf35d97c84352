//! What must be true after every step, told by somebody who sees everything.

use super::{Checked, controller::Controller, log::Record, node::Node};
use std::collections::BTreeMap;
use talweg_types::Durability;

#[derive(Default)]
pub(super) struct Oracle {
    /// Below every watermark that was published, by offset.
    pub committed: Vec<Record>,
    pub acknowledged: usize,
    /// The highest watermark published by each epoch.
    published: BTreeMap<i32, i64>,
    /// Who leads in each epoch.
    leaders: BTreeMap<i32, (u32, u64)>,
}

fn index(offset: i64) -> usize {
    usize::try_from(offset).unwrap()
}

impl Oracle {
    fn committed_end(&self) -> i64 {
        i64::try_from(self.committed.len()).unwrap()
    }

    /// The log agrees with what was promised from `from` to `to`.
    fn agrees(&self, node: &Node, from: i64, to: i64) -> Checked {
        for offset in from.max(node.log.start)..to {
            let (held, promised) = (node.log.get(offset), self.committed.get(index(offset)));
            if held.is_none() || held.as_ref() != promised {
                let id = node.id.0;
                return Err(format!(
                    "node {id} holds {held:?} at {offset}, promised was {promised:?}"
                ));
            }
        }
        Ok(())
    }

    pub(super) fn on_watermark(&mut self, node: &Node, epoch: i32, to: i64) -> Checked {
        let before = self.committed_end();
        for offset in before..to {
            let record = node.log.get(offset);
            let record = record.ok_or(format!("watermark {to} above the log end"))?;
            self.committed.push(record);
        }
        let highest = self.published.entry(epoch).or_insert(to);
        *highest = to.max(*highest);
        self.agrees(node, 0, to)
    }

    pub(super) fn on_done(&mut self, offset: i64, record: Record) -> Checked {
        self.acknowledged += 1;
        if self.committed.get(index(offset)) == Some(&record) {
            Ok(())
        } else {
            Err(format!(
                "{record:?} at {offset} was acknowledged, not committed"
            ))
        }
    }

    pub(super) fn on_lead(&mut self, node: &Node, epoch: i32) -> Checked {
        let process = (node.id.0, node.incarnation);
        if *self.leaders.entry(epoch).or_insert(process) != process {
            return Err(format!("two processes lead in epoch {epoch}"));
        }
        // One that learns late that it once was elected lacks what came since.
        self.agrees(node, 0, self.published_before(epoch))
    }

    fn published_before(&self, epoch: i32) -> i64 {
        let earlier = self.published.range(..epoch).map(|(_, to)| *to);
        earlier.max().unwrap_or(0)
    }

    pub(super) fn after_step(
        &self,
        nodes: &[Node],
        controller: &Controller,
        durability: Durability,
    ) -> Checked {
        self.sets_hold_what_was_promised(nodes, controller, durability)?;
        for node in nodes.iter().filter(|node| node.alive) {
            self.node_is_right(node)?;
        }
        for (at, one) in nodes.iter().enumerate() {
            for other in &nodes[at + 1..] {
                if let Some(offset) = one.log.mismatch(&other.log) {
                    let (one, other) = (one.id.0, other.id.0);
                    return Err(format!("logs of {one} and {other} differ at {offset}"));
                }
            }
        }
        Ok(())
    }

    fn node_is_right(&self, node: &Node) -> Checked {
        let watermark = node.log.high_watermark;
        if watermark > self.committed_end() {
            return Err(format!("node {} stores a watermark of its own", node.id.0));
        }
        self.agrees(node, watermark - 3, watermark)?;
        node.leader.check().map_err(|error| error.to_string())?;
        let check = node.follower.check(&node.log);
        check.map_err(|error| error.to_string())?;
        let Some(epoch) = node
            .leader
            .epoch()
            .filter(|_| node.leader.watermark_is_known())
        else {
            return Ok(());
        };
        if self.published_before(epoch.0) > node.leader.high_watermark().0 {
            return Err(format!("the watermark stepped back in epoch {epoch}"));
        }
        Ok(())
    }

    /// Item 4: whoever may be elected has counted all that was published.
    fn sets_hold_what_was_promised(
        &self,
        nodes: &[Node],
        controller: &Controller,
        durability: Durability,
    ) -> Checked {
        let end = self.committed_end();
        let state = &controller.state;
        for node in nodes {
            let electable = state.in_sync.contains(&node.id) || state.eligible.contains(&node.id);
            if !electable || node.lost {
                continue;
            }
            let counted = match durability {
                Durability::Synced => node.log.flushed,
                Durability::Replicated => node.log.end(),
            };
            if counted < end {
                let id = node.id.0;
                return Err(format!("node {id} may lead with {counted} of {end}"));
            }
            self.agrees(node, end - 3, end)?;
        }
        Ok(())
    }
}
