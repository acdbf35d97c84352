//! In the end nothing fails, and everything must come to rest.

use super::{client::Life, world::World};
use crate::{Event, GroupStatus};
use std::collections::BTreeSet;
use talweg_types::PartitionIndex;

impl World {
    pub fn heal(&mut self) -> Result<(), String> {
        // Several sessions and rebalances one after the other.
        for _ in 0..60 {
            self.clients.retain(|client| client.life != Life::Dead);
            self.now.monotonic = self.now.monotonic.plus(50);
            self.decide(Event::Tick)?;
            self.commit()?;
            for event in std::mem::take(&mut self.inbox) {
                self.decide(event)?;
                self.commit()?;
            }
            for n in 0..self.clients.len() {
                self.settle(n);
            }
        }
        self.at_rest()
    }

    fn settle(&mut self, n: usize) {
        while !self.clients[n].views.is_empty() {
            self.clients[n].read();
        }
        let client = &self.clients[n];
        match client.life {
            Life::In => {
                let heartbeat = Event::Heartbeat(client.caller());
                let confirmation = client.confirmation();
                self.send(heartbeat);
                confirmation.into_iter().for_each(|event| self.send(event));
            }
            Life::Broken => self.claim(n),
            // The token of one that is out is void; it comes anew.
            Life::Joining | Life::Out => {
                let instance = client.instance.clone();
                self.clients[n].life = Life::Dead;
                self.join(instance);
            }
            Life::Dead => {}
        }
    }

    fn at_rest(&self) -> Result<(), String> {
        let group = &self.runtime.group;
        let inside = self.clients.iter().filter(|client| client.life == Life::In);
        let ids: BTreeSet<_> = inside.clone().map(|client| client.id).collect();
        let members: BTreeSet<_> = group.state().members().keys().copied().collect();
        if ids != members {
            return Err(format!("members {members:?}, clients {ids:?}"));
        }
        if members.is_empty() {
            return Ok(());
        }
        if group.status() != GroupStatus::Stable {
            return Err(format!("the group is {:?}", group.status()));
        }
        let mut held = BTreeSet::new();
        let mut loads = Vec::new();
        for client in inside {
            let has = client.held();
            loads.push(has.len());
            let current = group.state().current(client.id);
            if current.is_none_or(|current| !current.owned.keys().eq(has.iter())) {
                return Err(format!("{} does not know what it has", client.id));
            }
            if has.into_iter().any(|at| !held.insert(at)) {
                return Err("a partition is held twice".into());
            }
        }
        let topics = self.topics.iter();
        let all: usize = topics.map(|(_, partitions)| *partitions).sum();
        let known = held.iter().all(|at| {
            let topic = self.topics.iter().find(|(id, _)| *id == at.topic_id);
            topic.is_some_and(|(_, count)| {
                at.partition < PartitionIndex(u32::try_from(*count).unwrap())
            })
        });
        if held.len() != all || !known {
            return Err(format!("{} of {all} partitions are held", held.len()));
        }
        let spread = loads.iter().max().unwrap_or(&0) - loads.iter().min().unwrap_or(&0);
        if spread > 1 {
            return Err(format!("loads {loads:?}"));
        }
        Ok(())
    }
}
