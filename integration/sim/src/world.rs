//! Everything together: one queue of events in virtual time.

use crate::{
    Checked, Coverage,
    client::Clients,
    control::Control,
    net::{Conn, Life, Message, Net, Peer},
    node::Node,
    oracle::Oracle,
    plan::{End, Plan},
    rng::Rng,
};
use std::{cell::Cell, collections::BTreeMap};
use talweg_types::{TimestampMs, TopicPartition};

/// Where the clients are; no link of theirs is cut.
pub const CLIENTS: End = 1_000;
/// Wall time at the beginning.
const WALL_MS: i64 = 1_700_000_000_000;

thread_local! {
    static WALL: Cell<i64> = const { Cell::new(WALL_MS) };
}

/// The wall clock of the node that is being stepped.
pub fn wall_clock() -> TimestampMs {
    TimestampMs(WALL.get())
}

pub fn set_wall(now: u64) {
    WALL.set(WALL_MS + i64::try_from(now).unwrap_or(0));
}

#[derive(Debug)]
pub enum Event {
    /// On a stream, to its side 0 or 1.
    Arrives {
        conn: Conn,
        side: usize,
        message: Message,
    },
    /// A call, a client's message.
    Single {
        from: Peer,
        to: Peer,
        call: Conn,
        message: Message,
    },
    NodeTick {
        node: usize,
        life: Life,
    },
    /// A flush ends.
    FlushEnds {
        node: usize,
        life: Life,
        tp: TopicPartition,
    },
    /// A log is read.
    Opens {
        node: usize,
        life: Life,
        tp: TopicPartition,
    },
    /// The folders are marked.
    Marked {
        node: usize,
        life: Life,
        incarnation: u64,
    },
    Starts {
        node: usize,
        life: Life,
    },
    TermTick {
        term: Life,
    },
    WriteEnds {
        term: Life,
    },
    TermBegins,
    TermEnds {
        term: Life,
    },
    Probed {
        term: Life,
        node: u32,
        incarnation: u64,
    },
    Fault(usize),
    FaultEnds(usize),
    ClientsAct,
    LateWords,
}

pub struct World {
    pub plan: Plan,
    pub now: u64,
    order: u64,
    queue: BTreeMap<(u64, u64), Event>,
    pub net: Net,
    pub nodes: Vec<Node>,
    pub control: Control,
    pub clients: Clients,
    pub oracle: Oracle,
    pub coverage: Coverage,
    /// Chances of nodes and disks.
    pub rng: Rng,
    pub trace: u64,
    /// No faults any more: everybody is to come to rest.
    pub healing: bool,
    pub steps: u64,
    pub log: bool,
}

impl World {
    pub fn new(plan: Plan) -> Self {
        let seed = plan.seed;
        set_wall(0);
        let nodes: Vec<_> = (0..plan.nodes)
            .map(|index| Node::new(index, seed, plan.drift[index]))
            .collect();
        let mut world = Self {
            net: Net::new(Rng::new(seed, 2), plan.wild),
            control: Control::new(Rng::new(seed, 3), plan.nodes),
            clients: Clients::new(Rng::new(seed, 4)),
            rng: Rng::new(seed, 5),
            oracle: Oracle::new(plan.nodes),
            coverage: Coverage::default(),
            nodes,
            plan,
            now: 0,
            order: 0,
            queue: BTreeMap::new(),
            trace: 0xcbf2_9ce4_8422_2325,
            healing: false,
            steps: 0,
            log: std::env::var_os("TALWEG_SIM_LOG").is_some(),
        };
        world.after(0, Event::TermBegins);
        for node in 0..world.nodes.len() {
            let life = world.nodes[node].life;
            let wait = world.rng.between(1, 300);
            world.after(wait, Event::Starts { node, life });
        }
        world
    }

    pub fn after(&mut self, ms: u64, event: Event) {
        self.at(self.now + ms, event);
    }

    pub fn at(&mut self, time: u64, event: Event) {
        self.order += 1;
        self.queue.insert((time.max(self.now), self.order), event);
    }

    /// Mixes a number into the trace.
    pub fn mix(&mut self, number: u64) {
        self.trace = (self.trace ^ number)
            .wrapping_mul(0x0000_0100_0000_01b3)
            .rotate_left(17);
    }

    /// For a person who looks at one seed.
    pub fn say(&self, text: impl FnOnce() -> String) {
        if self.log {
            eprintln!("{:>7} {}", self.now, text());
        }
    }

    /// Everything until `time`.
    pub fn run_until(&mut self, time: u64) -> Checked {
        while let Some(((at, _), event)) = self.queue.pop_first() {
            if at > time {
                // Put back as it was.
                self.order += 1;
                self.queue.insert((at, 0), event);
                break;
            }
            self.now = self.now.max(at);
            self.step(event)?;
        }
        self.now = self.now.max(time);
        Ok(())
    }

    fn step(&mut self, event: Event) -> Checked {
        if let Some(until) = self.held(&event) {
            self.at(until, event);
            return Ok(());
        }
        self.steps += 1;
        set_wall(self.now);
        self.mix(self.now);
        match event {
            Event::Arrives {
                conn,
                side,
                message,
            } => self.on_arrival(conn, side, message),
            Event::Single {
                from,
                to,
                call,
                message,
            } => self.on_single(from, to, call, message),
            Event::NodeTick { node, life } => {
                self.on_node(node, life, |world| world.on_node_tick(node))
            }
            Event::FlushEnds { node, life, tp } => {
                self.on_node(node, life, |world| world.on_flush_ends(node, tp))
            }
            Event::Opens { node, life, tp } => {
                self.on_node(node, life, |world| world.on_opens(node, tp))
            }
            Event::Marked {
                node,
                life,
                incarnation,
            } => self.on_node(node, life, |world| world.on_marked(node, incarnation)),
            Event::Starts { node, life } => {
                if self.nodes[node].life == life && self.nodes[node].process.is_none() {
                    self.start_process(node)?;
                }
                Ok(())
            }
            Event::TermTick { term } => self.on_term_tick(term),
            Event::WriteEnds { term } => self.on_write_ends(term),
            Event::TermBegins => self.begin_term(),
            Event::TermEnds { term } => {
                self.end_term(term);
                Ok(())
            }
            Event::Probed {
                term,
                node,
                incarnation,
            } => self.on_probed(term, node, incarnation),
            Event::Fault(number) => self.on_fault(number),
            Event::FaultEnds(number) => self.on_fault_ends(number),
            Event::ClientsAct => self.clients_act(),
            Event::LateWords => self.on_late_words(),
        }
    }

    /// Until when the node that it is for does nothing.
    fn held(&self, event: &Event) -> Option<u64> {
        let node = match event {
            Event::Arrives { conn, side, .. } => self.net.streams.get(conn)?.peers[*side].end,
            Event::Single { to, .. } => to.end,
            Event::NodeTick { node, .. }
            | Event::Opens { node, .. }
            | Event::Marked { node, .. } => *node,
            // A disk goes on while its process stands still; what it did is seen later.
            Event::FlushEnds { node, .. } => *node,
            _ => return None,
        };
        let until = self.nodes.get(node)?.paused_until;
        (until > self.now).then_some(until)
    }

    /// Steps a process, if it is still that one, and then looks at what it did.
    pub fn on_node(
        &mut self,
        node: usize,
        life: Life,
        step: impl FnOnce(&mut Self) -> Checked,
    ) -> Checked {
        if self.nodes[node].life != life || self.nodes[node].process.is_none() {
            return Ok(());
        }
        step(self)?;
        self.settle_node(node)
    }

    /// Sends on a stream; whoever has closed it says nothing more.
    pub fn send(&mut self, conn: Conn, side: usize, message: Message) {
        if let Some(at) = self.net.on_stream(conn, side, self.now) {
            self.at(
                at,
                Event::Arrives {
                    conn,
                    side: 1 - side,
                    message,
                },
            );
        }
    }

    pub fn send_single(&mut self, from: Peer, to: Peer, call: Conn, message: &Message) {
        for at in self.net.single(from.end, to.end, self.now) {
            let message = message.clone();
            self.at(
                at,
                Event::Single {
                    from,
                    to,
                    call,
                    message,
                },
            );
        }
    }

    fn on_arrival(&mut self, conn: Conn, side: usize, message: Message) -> Checked {
        let Some(stream) = self.net.streams.get(&conn) else {
            return Ok(());
        };
        let to = stream.peers[side];
        self.coverage.delivered += 1;
        self.mix(conn * 2 + side as u64);
        if to.end < self.nodes.len() {
            let node = &self.nodes[to.end];
            if node.life == to.life && node.process.is_some() {
                self.nodes[to.end].heard = self.now;
                return self.on_node(to.end, to.life, |world| {
                    world.on_stream(to.end, conn, message)
                });
            }
            // The kernel answers for a process that is gone; a machine that is down does not.
            if !node.off && !matches!(message, Message::Closed) {
                self.send(conn, side, Message::Closed);
            }
            return Ok(());
        }
        self.on_control_stream(to.life, conn, message)
    }

    fn on_single(&mut self, from: Peer, to: Peer, call: Conn, message: Message) -> Checked {
        self.coverage.delivered += 1;
        self.mix(call);
        if to.end == CLIENTS {
            return self.on_client_message(message);
        }
        if to.end >= self.nodes.len() {
            return self.on_call(from, to, call, message);
        }
        if from.end != CLIENTS {
            self.nodes[to.end].heard = self.now;
        }
        match message {
            // To whatever process listens there now.
            Message::Produce { op, attempt } => {
                let life = self.nodes[to.end].life;
                self.on_node(to.end, life, |world| world.on_produce(to.end, op, attempt))
            }
            message if from.end == CLIENTS => Err(format!("a client sends {message:?}")),
            message => self.on_node(to.end, to.life, |world| {
                world.on_answer(to.end, call, message)
            }),
        }
    }
}
