//! Levelling: partitions go from fuller to emptier members until loads are as
//! even as subscriptions allow.
//!
//! A member can pass a partition to any reader of its topic, so a shift is a path
//! of such passes from a member to one that has at least two fewer. Loads are as
//! even as they can be exactly when no such path is left (an optimal semi-matching;
//! Harvey, Ladner, Lovász and Tamir, 2006).

use super::board::{Board, M, P, T};
use std::collections::VecDeque;

pub(super) fn level(board: &mut Board<'_>) {
    // Members from which no shift helps, with all they can reach. A shift that
    // starts elsewhere never needs to enter them.
    let mut done = vec![false; board.members.len()];
    loop {
        let open = (0..board.members.len()).filter(|m| !done[*m]);
        let Some(fullest) = open.max_by_key(|m| (board.members[*m].load, *m)) else {
            return;
        };
        let search = Search::from(board, fullest, &done);
        match search.emptiest(board) {
            Some(to) if board.members[to].load + 2 <= board.members[fullest].load => {
                search.shift(board, to);
            }
            _ => search.reached.iter().for_each(|m| done[*m] = true),
        }
    }
}

/// Who can be reached by passing partitions on, nearest first.
struct Search {
    reached: Vec<M>,
    /// By member: who passes to it, and of which topic.
    via: Vec<Option<(M, T)>>,
}

impl Search {
    fn from(board: &Board<'_>, source: M, done: &[bool]) -> Self {
        let mut via = vec![None; board.members.len()];
        let mut seen_member = done.to_vec();
        let mut seen_topic = vec![false; board.subscribers.len()];
        let mut reached = Vec::new();
        let mut queue = VecDeque::from([source]);
        seen_member[source] = true;
        while let Some(m) = queue.pop_front() {
            reached.push(m);
            for t in board.members[m].held.keys().copied() {
                if std::mem::replace(&mut seen_topic[t], true) {
                    continue;
                }
                for next in board.subscribers[t].iter().copied() {
                    if !std::mem::replace(&mut seen_member[next], true) {
                        via[next] = Some((m, t));
                        queue.push_back(next);
                    }
                }
            }
        }
        Self { reached, via }
    }

    /// Of equals the nearest.
    fn emptiest(&self, board: &Board<'_>) -> Option<M> {
        let reached = self.reached.iter().copied();
        reached.min_by_key(|m| board.members[*m].load)
    }

    fn shift(&self, board: &mut Board<'_>, to: M) {
        let mut receiver = to;
        while let Some((giver, topic)) = self.via[receiver] {
            if let Some(p) = to_pass(board, giver, receiver, topic) {
                board.place(p, receiver);
            }
            receiver = giver;
        }
    }
}

/// Which partition of the topic: one that goes home, else one that has moved
/// already, else one that comes nearer.
fn to_pass(board: &Board<'_>, giver: M, receiver: M, topic: T) -> Option<P> {
    let held = board.members[giver].held.get(&topic)?;
    held.iter().copied().min_by_key(|p| {
        let goes_home = board.partitions[*p].before == Some(receiver);
        let nearer = i8::from(board.is_near(*p, receiver)) - i8::from(board.is_near(*p, giver));
        (!goes_home, board.is_kept(*p), -nearer)
    })
}
