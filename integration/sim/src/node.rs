//! A machine with its disk and clock, and how its process comes and goes.

use crate::{
    Checked, Happened,
    disk::Disk,
    net::{Life, Message, Peer},
    process::Process,
    world::{Event, World},
};
use talweg_replication::MonotonicMs;

/// After an exit on its own account.
const RESTART_MS: u64 = 500;

pub struct Node {
    pub index: usize,
    pub disk: Disk,
    /// The present process, or the next one.
    pub life: Life,
    pub process: Option<Box<Process>>,
    /// The machine has no power: nobody even refuses.
    pub off: bool,
    pub paused_until: u64,
    /// The cluster that it belongs to, as its folder says.
    pub cluster: Option<uuid::Uuid>,
    drift: i64,
    /// Bytes were lost, and no controller has taken that in yet.
    pub lost: bool,
    pub wiped: bool,
    /// When anything last came from another machine.
    pub heard: u64,
    disks: u64,
    seed: u64,
}

impl Node {
    pub fn new(index: usize, seed: u64, drift: i64) -> Self {
        let seed = seed.wrapping_mul(31).wrapping_add(index as u64);
        Self {
            index,
            disk: Disk::new(seed),
            life: 1,
            process: None,
            off: false,
            paused_until: 0,
            cluster: None,
            drift,
            lost: false,
            wiped: false,
            heard: 0,
            disks: 0,
            seed,
        }
    }

    /// Its monotonic clock.
    pub fn clock(&self, now: u64) -> MonotonicMs {
        let drifted = i128::from(now) * i128::from(1_000_000 + self.drift) / 1_000_000;
        MonotonicMs(100_000 + u64::try_from(drifted).unwrap_or(0))
    }

    pub fn peer(&self) -> Peer {
        Peer {
            end: self.index,
            life: self.life,
        }
    }
}

impl World {
    pub fn process(&mut self, node: usize) -> Option<&mut Process> {
        self.nodes[node].process.as_deref_mut()
    }

    /// The process ends; its kernel closes its streams.
    pub fn kill(&mut self, node: usize, down: u64) -> Checked {
        self.nodes[node].paused_until = 0;
        if self.nodes[node].process.is_none() {
            return Ok(());
        }
        self.say(|| format!("node {} killed", node + 1));
        self.leave_disk(node, false);
        self.nodes[node].disk.fs.process_crash();
        let mine = self.nodes[node].peer();
        let open: Vec<_> = self
            .net
            .streams
            .iter()
            .flat_map(|(conn, stream)| (0..2).map(move |side| (*conn, side, stream.peers[side])))
            .filter(|(_, _, peer)| *peer == mine)
            .map(|(conn, side, _)| (conn, side))
            .collect();
        for (conn, side) in open {
            self.send(conn, side, Message::Closed);
        }
        self.forget_process(node, down);
        Ok(())
    }

    /// The machine ends; nobody is told.
    pub fn lose_power(&mut self, node: usize, some: bool, down: u64) -> Checked {
        self.say(|| format!("node {} loses power", node + 1));
        self.coverage.note(Happened::PowerLoss);
        self.nodes[node].paused_until = 0;
        self.leave_disk(node, true);
        let disk = &self.nodes[node].disk;
        let lost = if some {
            disk.fs.power_loss_keeping_some()
        } else {
            disk.fs.power_loss()
        };
        lost.map_err(|error| format!("power loss: {error}"))?;
        self.nodes[node].lost = true;
        self.nodes[node].off = true;
        self.forget_process(node, down);
        Ok(())
    }

    /// What the oracle knows of the logs when nobody has them any more, and a
    /// flush that is under way gets somewhere or not.
    fn leave_disk(&mut self, node: usize, power: bool) {
        let half = self.rng.percent(50);
        let changes = self.rng.between(1, 12);
        let Some(process) = self.nodes[node].process.take() else {
            return;
        };
        if process.folder.failed().is_some() {
            self.oracle.on_failed(node);
        }
        let tickets = process.tickets.into_values();
        let disk = &mut self.nodes[node].disk;
        if power && half && disk.stops_at.is_none() {
            disk.fs.freeze_at(disk.fs.operations() + changes);
            tickets.for_each(|ticket| drop(ticket.run()));
        }
        disk.stops_at = None;
        disk.fs.limit_free_bytes(None);
    }

    fn forget_process(&mut self, node: usize, down: u64) {
        self.oracle.on_down(node);
        let changed = {
            let World { nodes, rng, .. } = self;
            nodes[node].disk.age_index(rng)
        };
        if changed {
            self.coverage.note(Happened::IndexBehind);
        }
        self.nodes[node].life += 1;
        let life = self.nodes[node].life;
        self.after(down, Event::Starts { node, life });
    }

    /// An empty disk in the place of the old one.
    pub fn wipe(&mut self, node: usize, down: u64) -> Checked {
        self.kill(node, down)?;
        let this = &mut self.nodes[node];
        this.disks += 1;
        this.disk = Disk::new(this.seed ^ (this.disks << 40));
        this.lost = true;
        this.wiped = true;
        self.oracle.on_wipe(node);
        self.coverage.note(Happened::Wiped);
        Ok(())
    }

    /// It ends by itself, and somebody starts it again.
    pub fn exit(&mut self, node: usize) -> Checked {
        self.kill(node, RESTART_MS)
    }

    /// A disk that stopped within a change ends its machine.
    pub fn stop_if_disk_has(&mut self, node: usize) -> Checked {
        if self.nodes[node].disk.has_stopped() {
            self.coverage.note(Happened::HalfDone);
            self.oracle.on_stop(node);
            let (some, down) = (self.rng.percent(50), self.rng.between(50, 4_000));
            self.lose_power(node, some, down)?;
        }
        Ok(())
    }
}
