//! Balancing the cluster. What is stored is only that it goes on; what is left
//! to do is planned anew from the partitions as they are, so that nodes may come
//! and go meanwhile and the next controller goes on with it. It ends when
//! nothing is left to do.

mod planner;

pub use planner::PlannedMove;
pub(super) use planner::{PlanNode, PlanPartition, plan};

use super::{
    Balance, CHANGES_PER_WRITE, Change, Core, Move, Now, Refusal, Reply, Session, Value,
    jobs::Progress,
    reconcile::put,
    requests::{BalanceCluster, Next},
};
use std::collections::BTreeMap;
use talweg_metastore::keys::Key;
use talweg_types::NodeId;
use uuid::Uuid;

/// Partitions that move at a time.
const PARALLEL: usize = 4;

/// How far the balancing is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BalanceProgress {
    /// It goes on.
    pub running: bool,
    /// Planned when it began.
    pub moves_total: usize,
    pub planned: Vec<PlannedMove>,
}

impl Core {
    /// What evens the cluster out, moves under way taken as done.
    pub fn planned_moves(&self) -> Vec<PlannedMove> {
        let hosts: Vec<_> = self.hosts().collect();
        let nodes = self.view.nodes.iter().filter(|(_, n)| !n.value.removed);
        let node = |(id, stored): (&NodeId, &super::Stored<super::Node>)| {
            let full = self.session(*id).is_some_and(Session::is_full);
            let node = PlanNode {
                rack: stored.value.rack.clone(),
                takes: hosts.contains(id) && !full,
                leaves: stored.value.draining,
            };
            (*id, node)
        };
        let nodes: BTreeMap<_, _> = nodes.map(node).collect();
        let partitions = self.view.partitions.iter().map(|(tp, stored)| {
            let p = &stored.value;
            let target = p.moving.as_ref().map(|moving| moving.to.clone());
            PlanPartition {
                tp: *tp,
                fixed: target.is_some()
                    || p.leader.is_none()
                    || self.view.visible_partition(*tp).is_none(),
                replicas: target.unwrap_or_else(|| p.replicas.clone()),
                barred: p.removed.clone(),
            }
        });
        let limit = self.settings.limits.partitions_per_node as usize;
        plan(&nodes, partitions.collect(), limit)
    }

    pub fn balance_progress(&self) -> BalanceProgress {
        let balance = self.view.balance.as_ref().map(|stored| &stored.value);
        BalanceProgress {
            running: balance.is_some(),
            moves_total: balance.map_or(0, |balance| balance.moves_total as usize),
            planned: self.planned_moves(),
        }
    }

    /// Begins, joins or stops a balancing.
    pub(super) fn plan_balance_request(
        &self,
        now: Now,
        asked: &BalanceCluster,
        progress: &mut Progress,
    ) -> Result<Next, Refusal> {
        let before = self.view.balance.as_ref().map(|stored| &stored.value);
        let Some(throttle) = asked.throttle else {
            return Ok(match before {
                Some(_) => Next::Write(vec![Change::delete(Key::Balance)]),
                None => Next::Reply(Reply::Balancing),
            });
        };
        let next = match before {
            // It has ended already, or goes on.
            None if *progress == Progress::Written => return Ok(Next::Reply(Reply::Balancing)),
            Some(balance) if balance.throttle == throttle => {
                return Ok(Next::Reply(Reply::Balancing));
            }
            Some(balance) => Balance {
                throttle,
                ..balance.clone()
            },
            None => {
                let moves = self.planned_moves().len();
                if moves == 0 {
                    return Ok(Next::Reply(Reply::Balancing));
                }
                Balance {
                    id: asked.id,
                    throttle,
                    started: now.wall,
                    moves_total: u32::try_from(moves).unwrap_or(u32::MAX),
                }
            }
        };
        *progress = Progress::Written;
        let change = Change::put(Key::Balance, Value::Balance(next));
        Ok(Next::Write(vec![change]))
    }

    /// The next moves of a balancing that goes on: copies first, a few at a time;
    /// then what changes places only; then its end.
    pub(super) fn plan_rebalance(&self, now: Now) -> Option<Vec<Change>> {
        let balance = &self.view.balance.as_ref()?.value;
        let moving = self.view.moving().count();
        if moving >= PARALLEL {
            return None;
        }
        let planned = self.planned_moves();
        if planned.is_empty() {
            return (moving == 0).then(|| vec![Change::delete(Key::Balance)]);
        }
        let copies = planned.iter().filter(|planned| planned.copies() > 0);
        let copies = copies.filter_map(|planned| self.begun(now, balance, planned));
        let copies: Vec<_> = copies.take(PARALLEL - moving).collect();
        if !copies.is_empty() || moving > 0 {
            return (!copies.is_empty()).then_some(copies);
        }
        let reordered = planned.iter().filter_map(|planned| self.reordered(planned));
        let reordered: Vec<_> = reordered.take(CHANGES_PER_WRITE).collect();
        (!reordered.is_empty()).then_some(reordered)
    }

    fn begun(&self, now: Now, balance: &Balance, planned: &PlannedMove) -> Option<Change> {
        let before = &self.view.partitions.get(&planned.tp)?.value;
        let mut next = before.clone();
        let moving = Move {
            id: move_id(balance.id, planned, before.partition_epoch.0),
            from: before.replicas.clone(),
            to: planned.to.clone(),
            throttle: share(balance.throttle),
            started: now.wall,
        };
        next.replicas = moving.all();
        next.moving = Some(moving);
        next.settle(self.rules(planned.tp.topic_id)?.minimum);
        Some(put(planned.tp, next.after(before)?))
    }

    fn reordered(&self, planned: &PlannedMove) -> Option<Change> {
        let before = &self.view.partitions.get(&planned.tp)?.value;
        let minimum = self.rules(planned.tp.topic_id)?.minimum;
        let mut next = before.clone();
        next.replicas.clone_from(&planned.to);
        next.settle(minimum);
        Some(put(planned.tp, next.after(before)?))
    }
}

/// Of the limit of all copies together; 0 is no limit.
fn share(throttle: u64) -> u64 {
    match throttle {
        0 => 0,
        throttle => (throttle / PARALLEL as u64).max(1),
    }
}

/// The core draws no lots: the id of a move follows from what it is a part of.
fn move_id(balance: Uuid, planned: &PlannedMove, partition_epoch: i64) -> Uuid {
    let part = u128::from(planned.tp.partition.0) << 64 | partition_epoch.unsigned_abs() as u128;
    Uuid::from_u128(balance.as_u128() ^ planned.tp.topic_id.0.as_u128() ^ part)
}
