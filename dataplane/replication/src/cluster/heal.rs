//! After the storm: everyone is up, nothing is lost any more. It must come to
//! rest with everyone in sync and everything committed.

use super::{Checked, world::World};

const ROUNDS: usize = 60;

impl World {
    pub(super) fn heal(&mut self) -> Checked {
        self.bag.clear();
        self.late.clear();
        for node in 0..3 {
            self.restart(node);
        }
        // Questions that were lost are given up.
        for node in 0..3 {
            for id in 1..200 {
                let id = crate::ProposalId(id);
                self.lead(node, crate::Event::ProposalTimedOut { id })?;
            }
        }
        self.drain()?;
        for node in 0..3 {
            self.break_session(node)?;
        }
        for round in 0..ROUNDS {
            if round == ROUNDS / 2 {
                for node in 0..3 {
                    self.produce(node)?;
                }
            }
            self.round()?;
        }
        self.rested()
    }

    fn round(&mut self) -> Checked {
        self.now.0 += 300;
        self.announce();
        self.drain()?;
        for node in 0..3 {
            self.tick(node)?;
            self.serve(node)?;
            self.drain()?;
            self.finish_writes(node)?;
            let end = self.nodes[node].log.end();
            self.flush_to(node, end)?;
        }
        self.drain()?;
        self.look()
    }

    fn drain(&mut self) -> Checked {
        while !self.bag.is_empty() {
            let message = self.bag.remove(0);
            self.deliver(message)?;
        }
        Ok(())
    }

    fn rested(&self) -> Checked {
        let state = &self.controller.state;
        let committed = i64::try_from(self.oracle.committed.len()).unwrap();
        let all = self
            .nodes
            .iter()
            .all(|node| node.log.end() == committed && node.log.high_watermark == committed);
        if state.in_sync.len() == 3 && all {
            return Ok(());
        }
        let ends: Vec<_> = self
            .nodes
            .iter()
            .map(|node| (node.log.end(), node.log.high_watermark))
            .collect();
        Err(format!(
            "no rest: {committed} committed, {ends:?}, {state:?}"
        ))
    }
}
