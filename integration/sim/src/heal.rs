//! After the storm: everybody is up and nothing is lost any more. The cluster
//! must come to rest: all in sync, all committed, everything acknowledged there.

use crate::{
    Checked, Happened,
    truth::Shadow,
    world::{Event, World},
};
use talweg_types::TopicPartition;

/// Until the cluster must be at rest.
const PATIENCE_MS: u64 = 120_000;
const LOOK_MS: u64 = 1_000;
/// Clients go on for so long after the storm.
const CALM_MS: u64 = 4_000;
/// Who waits for a log that is gone for good is told by the operator.
const OPERATOR_MS: u64 = 30_000;

impl World {
    /// A cluster in which all partitions stand.
    pub fn begin(&mut self) -> Checked {
        let until = 30_000;
        for step in 1.. {
            self.run_until(step * 100)?;
            if self.all_registered() {
                break;
            }
            if self.now > until {
                return Err("the cluster does not begin: not all nodes are registered".into());
            }
        }
        let topics = self.plan.topics.clone();
        for (number, topic) in topics.iter().enumerate() {
            self.create_topic(number, topic)?;
        }
        while !self.all_lead() {
            self.run_until(self.now + 100)?;
            if self.now > until {
                return Err("the cluster does not begin: not all partitions are led".into());
            }
        }
        let partitions = self.partitions();
        self.clients.begin(&partitions);
        self.after(0, Event::ClientsAct);
        if self.plan.wild {
            self.after(500, Event::LateWords);
        }
        for number in 0..self.plan.faults.len() {
            let at = self.plan.faults[number].at;
            self.after(at, Event::Fault(number));
        }
        Ok(())
    }

    fn all_registered(&self) -> bool {
        let here = |node: &crate::node::Node| {
            node.process
                .as_ref()
                .is_some_and(|p| p.incarnation.is_some())
        };
        self.nodes.iter().all(here)
    }

    fn all_lead(&self) -> bool {
        self.partitions()
            .iter()
            .all(|tp| self.leader_of(tp).is_some())
    }

    /// The node that leads, and knows it.
    fn leader_of(&self, tp: &TopicPartition) -> Option<usize> {
        let state = self.control.partition(tp)?;
        let index = (state.leader.0 as usize).checked_sub(1)?;
        let handle = self.nodes[index].process.as_ref()?.handles.get(tp)?;
        (handle.leads()? == state.leader_epoch).then_some(index)
    }

    pub fn heal(&mut self) -> Checked {
        self.say(|| "healing".into());
        self.healing = true;
        self.net.heal();
        self.control.unclear_until = 0;
        for node in 0..self.nodes.len() {
            let this = &mut self.nodes[node];
            this.disk.flush_ms = 4;
            this.disk.fs.limit_free_bytes(None);
            this.disk.fs.fail_flush_after(u64::MAX);
            this.paused_until = 0;
            if this.disk.stops_at.is_some() {
                let within = self.rng.percent(50);
                self.lose_power(node, within, 100)?;
            }
            // An operator starts what has failed.
            let failed = self.nodes[node]
                .process
                .as_ref()
                .is_some_and(|p| p.folder.failed().is_some());
            if failed {
                self.kill(node, 100)?;
            }
        }
        for node in 0..self.nodes.len() {
            let node_id = talweg_types::NodeId(node as u32 + 1);
            self.ask(talweg_controller::core::Request::Drain {
                node: node_id,
                draining: false,
            })?;
        }
        let begun = self.now;
        self.run_until(begun + CALM_MS)?;
        self.clients.quiet = true;
        loop {
            self.run_until(self.now + LOOK_MS)?;
            match self.at_rest() {
                Ok(()) => return self.final_look(),
                Err(why) if self.now > begun + PATIENCE_MS => {
                    return Err(format!("no rest: {why}"));
                }
                Err(_) => {}
            }
            let waited = self.now - begun;
            if waited > OPERATOR_MS && waited.is_multiple_of(10_000) {
                self.operate()?;
            }
            if waited > OPERATOR_MS {
                self.undrain()?;
            }
        }
    }

    fn undrain(&mut self) -> Checked {
        let draining: Vec<_> = self
            .control
            .store
            .nodes
            .iter()
            .filter(|(_, n)| n.value.draining)
            .map(|(id, _)| *id)
            .collect();
        for node in draining {
            self.ask(talweg_controller::core::Request::Drain {
                node,
                draining: false,
            })?;
        }
        Ok(())
    }

    /// Where a log that was waited for is gone for good, an operator decides.
    fn operate(&mut self) -> Checked {
        for tp in self.partitions() {
            let stuck = self
                .control
                .partition(&tp)
                .is_some_and(|p| p.leader.is_none());
            if stuck {
                self.coverage.note(Happened::Unclean);
                self.elect_unclean(tp)?;
            }
        }
        Ok(())
    }

    fn at_rest(&self) -> Checked {
        for tp in self.partitions() {
            self.partition_rests(&tp)
                .map_err(|why| format!("{tp}: {why}"))?;
        }
        if self.clients.waiting() > 0 {
            return Err(format!(
                "{} batches wait for their answer",
                self.clients.waiting()
            ));
        }
        let end = |tp: &TopicPartition| self.oracle.truths.get(tp).map_or(0, |truth| truth.end());
        match self.clients.readers_behind(end) {
            0 => Ok(()),
            behind => Err(format!("{behind} consumers are behind")),
        }
    }

    /// How each node stands in a partition, for whoever reads a failure.
    fn stands(&self, tp: &TopicPartition) -> String {
        let Some(truth) = self.oracle.truths.get(tp) else {
            return String::new();
        };
        let one = |(node, shadow): (usize, &Shadow)| {
            let process = self.nodes[node].process.as_ref();
            let handle = process.and_then(|process| process.handles.get(tp));
            let failure = handle.and_then(|handle| handle.failure());
            format!(
                "node {} holds {}..{} flushed {} watermark {} epoch {} open {} failure {failure:?}",
                node + 1,
                shadow.base,
                shadow.end(),
                shadow.flushed,
                shadow.watermark,
                shadow.last_epoch(),
                shadow.open,
            )
        };
        let all = truth.shadows.iter().enumerate().map(one);
        all.collect::<Vec<_>>().join(", ")
    }

    fn partition_rests(&self, tp: &TopicPartition) -> Checked {
        let state = self.control.partition(tp).ok_or("not there")?;
        let leader = self
            .leader_of(tp)
            .ok_or_else(|| format!("no leader: {state:?}"))?;
        if state.in_sync.len() != state.replicas.len() {
            return Err(format!("not all in sync: {}; {state:?}", self.stands(tp)));
        }
        let truth = self.oracle.truths.get(tp).ok_or("nothing known")?;
        let end = truth.shadows[leader].end();
        for node in &state.replicas {
            let shadow = &truth.shadows[node.0 as usize - 1];
            if shadow.end() != end || shadow.watermark != end || truth.end() != end {
                return Err(format!(
                    "node {node} ends at {} with watermark {}, the leader at {end}, committed {}",
                    shadow.end(),
                    shadow.watermark,
                    truth.end()
                ));
            }
        }
        Ok(())
    }

    /// Everything is compared, byte by byte as it is read.
    fn final_look(&mut self) -> Checked {
        for tp in self.partitions() {
            self.look_at_partition(tp)
                .map_err(|why| format!("{tp} at rest: {why}"))?;
        }
        Ok(())
    }

    fn look_at_partition(&mut self, tp: TopicPartition) -> Checked {
        let replicas = self
            .control
            .partition(&tp)
            .map(|state| state.replicas.clone())
            .unwrap_or_default();
        let truth = self.oracle.truths.get(&tp).ok_or("nothing known")?;
        truth.acks_are_kept()?;
        self.once_each(truth)?;
        for node in replicas {
            let index = node.0 as usize - 1;
            let handle = self.nodes[index]
                .process
                .as_ref()
                .and_then(|p| p.handles.get(&tp))
                .ok_or("not open")?;
            let first = handle.reader.first_offset().0;
            for (offset, record) in crate::oracle::read_from(&handle.reader, first)? {
                let committed = truth.committed.get(offset as usize).copied();
                if committed != Some(record) {
                    return Err(format!(
                        "node {node} holds {record:?} at {offset}, committed is {committed:?}"
                    ));
                }
            }
            let replica = self.nodes[index]
                .process
                .as_ref()
                .and_then(|p| p.replicas.get(&tp))
                .ok_or("not open")?;
            replica
                .log
                .check()
                .map_err(|why| format!("node {node}: {why}"))?;
        }
        Ok(())
    }

    /// No record twice, and those of a producer id in their order. A producer that
    /// begins anew does it under another id, which fences nothing: a late copy of
    /// what it sent under the old one may still find its place.
    fn once_each(&self, truth: &crate::truth::Truth) -> Checked {
        let mut seen = std::collections::HashSet::new();
        let mut last = std::collections::BTreeMap::new();
        for record in &truth.committed {
            let Some(producer) = self.clients.producer_of(record.value) else {
                continue;
            };
            if !seen.insert(record.value) {
                return Err(format!("record {} is there twice", record.value));
            }
            let before = last.insert(producer, record.value);
            if before.is_some_and(|before| before > record.value) {
                return Err(format!(
                    "record {} comes after {before:?} of the same producer",
                    record.value
                ));
            }
        }
        Ok(())
    }
}
