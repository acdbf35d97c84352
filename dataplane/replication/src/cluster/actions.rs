//! What happens next, by chance.

use super::{
    Checked,
    log::Record,
    world::{Message, World, at},
};
use crate::{Event, FetchedBody, FollowerEvent, ProposalId, Waiter};
use talweg_types::{Acks, Durability, LeaderEpoch, Offset};

/// Messages that may be under way; the oldest are lost above that.
const BAG: usize = 60;
const LATE: usize = 30;

impl World {
    pub(super) fn step(&mut self) -> Checked {
        self.now.0 += u64::try_from(self.rng.between(0, 25)).unwrap();
        let node = self.rng.below(3);
        match self.rng.below(100) {
            0..45 => {
                for _ in 0..self.rng.between(1, 4) {
                    self.deliver_one()?;
                }
            }
            45..57 => (0..3).try_for_each(|node| self.serve(node))?,
            57..65 => (0..3).try_for_each(|node| self.write_at(node))?,
            65..73 => (0..3).try_for_each(|node| self.produce(node))?,
            73..79 => self.flush(node)?,
            79..83 => self.tick(node)?,
            83 if self.rng.percent(30) || !self.nodes[node].follower.is_reconciled() => {
                self.break_session(node)?
            }
            84 => self.time_out(node)?,
            85 if self.rng.percent(20) => self.retain(node)?,
            86 if self.rng.percent(60) => self.kill(node),
            87 if self.rng.percent(80) => self.lose_power(node),
            88..93 => self.restart(node),
            93 => self.notice_death(node),
            94 if self.rng.percent(60) => self.controller_moves(),
            95..98 => self.deliver_late()?,
            _ => self.announce(),
        }
        let excess = self.bag.len().saturating_sub(BAG);
        self.bag.drain(..excess);
        let excess = self.late.len().saturating_sub(LATE);
        self.late.drain(..excess);
        self.look()
    }

    pub(super) fn look(&self) -> Checked {
        self.oracle
            .after_step(&self.nodes, &self.controller, self.settings.durability)
    }

    /// Any message, mostly an old one; some are lost, some come again.
    fn deliver_one(&mut self) -> Checked {
        if self.bag.is_empty() {
            return Ok(());
        }
        let reach = if self.rng.percent(70) {
            self.bag.len().min(4)
        } else {
            self.bag.len()
        };
        let index = self.rng.below(reach);
        let message = self.bag.remove(index);
        if self.rng.percent(10) {
            self.late.push(message.clone());
        } else if matches!(message, Message::Report(..)) && self.rng.percent(40) {
            // Late words of positions are the ones that mislead.
            self.late.push(message.clone());
        }
        if self.rng.percent(4) {
            return Ok(());
        }
        self.deliver(message)
    }

    /// Repeats of what was delivered long ago.
    fn deliver_late(&mut self) -> Checked {
        for _ in 0..self.late.len().min(6) {
            let index = self.rng.below(self.late.len());
            let message = self.late.swap_remove(index);
            self.deliver(message)?;
        }
        Ok(())
    }

    /// A leader sends what its followers do not have yet.
    pub(super) fn serve(&mut self, node: usize) -> Checked {
        let most = self.rng.between(1, 4);
        let this = &self.nodes[node];
        let Some(epoch) = this.leader.epoch().filter(|_| this.alive) else {
            return Ok(());
        };
        let sessions: Vec<_> = this.subscriptions.clone().into_iter().collect();
        for (to, mut session) in sessions {
            let log = &self.nodes[node].log;
            if LeaderEpoch(session.epoch) != epoch {
                continue;
            }
            let until = log.end().min(session.next + most);
            let frame = log.read(session.next, until);
            let body = if session.next < log.start {
                FetchedBody::BelowStart
            } else if let (Some(first), Some(last)) = (frame.first(), frame.last()) {
                let (first_epoch, last_epoch) = (LeaderEpoch(first.epoch), LeaderEpoch(last.epoch));
                let from = Offset(session.next);
                session.next = until;
                FetchedBody::Batches {
                    from,
                    end: Offset(until),
                    first_epoch,
                    last_epoch,
                    frame,
                }
            } else if self.nodes[node]
                .leader
                .owes_watermark(to, Offset(log.start))
                .is_some()
            {
                FetchedBody::Nothing
            } else {
                continue;
            };
            self.nodes[node].subscriptions.insert(to, session);
            self.answer(node, to, session, body);
        }
        Ok(())
    }

    fn write_at(&mut self, node: usize) -> Checked {
        if self.nodes[node].alive {
            self.write(node)?;
        }
        Ok(())
    }

    pub(super) fn produce(&mut self, node: usize) -> Checked {
        let acks = if self.rng.percent(80) {
            Acks::All
        } else {
            Acks::One
        };
        let this = &mut self.nodes[node];
        if !this.alive || this.leader.admit(acks).is_err() {
            return Ok(());
        }
        self.next_value += 1;
        let record = Record {
            epoch: this.leader.epoch().map_or(-1, |epoch| epoch.0),
            value: self.next_value,
        };
        let offset = this.log.end();
        this.log.append(&[record]);
        let waiter = Waiter {
            acks,
            end: Offset(offset + 1),
            token: (offset, record),
        };
        let waiters = if acks == Acks::All {
            vec![waiter]
        } else {
            vec![]
        };
        let log_end = Offset(this.log.end());
        self.lead(node, Event::Appended { log_end, waiters })
    }

    fn flush(&mut self, node: usize) -> Checked {
        let (low, high) = (self.nodes[node].log.flushed, self.nodes[node].log.end());
        let to = if self.rng.percent(50) {
            high
        } else {
            self.rng.between(low, high)
        };
        self.flush_to(node, to)
    }

    pub(super) fn flush_to(&mut self, node: usize, to: i64) -> Checked {
        let this = &mut self.nodes[node];
        if !this.alive {
            return Ok(());
        }
        this.log.flushed = to;
        let flushed_end = Offset(to);
        self.lead(node, Event::Flushed { flushed_end })?;
        self.follow(node, FollowerEvent::Flushed { flushed_end })
    }

    pub(super) fn tick(&mut self, node: usize) -> Checked {
        if self.nodes[node].alive {
            self.lead(node, Event::Tick)?;
        }
        Ok(())
    }

    pub(super) fn break_session(&mut self, node: usize) -> Checked {
        match self.nodes[node].follower.session() {
            Some(session) if self.nodes[node].alive => {
                self.follow(node, FollowerEvent::Broken { session })
            }
            _ => Ok(()),
        }
    }

    /// No answer to a proposal; it may be applied nevertheless.
    fn time_out(&mut self, node: usize) -> Checked {
        if !self.nodes[node].alive {
            return Ok(());
        }
        let id = ProposalId(u64::try_from(self.rng.between(1, 9)).unwrap());
        self.lead(node, Event::ProposalTimedOut { id })
    }

    /// The leader's log start moves.
    fn retain(&mut self, node: usize) -> Checked {
        let this = &mut self.nodes[node];
        if this.alive && this.leader.watermark_is_known() {
            let start = self.rng.between(this.log.start, this.log.high_watermark);
            this.log.trim(start);
        }
        Ok(())
    }

    /// The process dies, the page cache stays. Writes under way may have happened.
    fn kill(&mut self, node: usize) {
        let some = self.rng.below(3);
        let this = &mut self.nodes[node];
        if this.alive {
            this.alive = false;
            for frame in this.writing.drain(..).take(some) {
                this.log.append(&frame);
            }
            this.log.recover(false);
        }
    }

    /// What is not flushed is gone. On `replicated` partitions the promise is
    /// for a minority of losses at a time: another that may be elected has it
    /// all, and the controller has heard of every earlier loss.
    fn lose_power(&mut self, node: usize) {
        let replicated = self.settings.durability == Durability::Replicated;
        let earlier = self.nodes.iter().any(|node| node.lost);
        if replicated && (earlier || !self.another_has_it_all(node)) {
            return;
        }
        let this = &mut self.nodes[node];
        this.alive = false;
        this.writing.clear();
        this.log.recover(true);
        this.lost |= replicated;
    }

    fn another_has_it_all(&self, node: usize) -> bool {
        let state = &self.controller.state;
        let sets = state.in_sync.union(&state.eligible);
        sets.copied().map(at).any(|other| other != node)
    }

    /// A dead process comes back; one that has lost its session starts anew.
    pub(super) fn restart(&mut self, node: usize) {
        let id = self.nodes[node].id;
        if !self.nodes[node].alive || !self.controller.live.contains_key(&id) {
            self.kill(node);
            self.start(node);
        }
    }

    /// A session ends: its process is dead, or it is cut off and goes on as it
    /// was, leader or not.
    fn notice_death(&mut self, node: usize) {
        let id = self.nodes[node].id;
        if !self.nodes[node].alive || self.rng.percent(25) {
            self.controller.dead(id);
            self.announce();
        }
    }

    fn controller_moves(&mut self) {
        let choice = self.rng.below(2);
        self.controller.move_leader(choice);
        self.announce();
    }
}
