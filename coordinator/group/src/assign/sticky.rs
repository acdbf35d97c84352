//! The default: even first, then as few moves as that allows, then racks.
//!
//! 1. Everyone keeps what it had.
//! 2. What has no holder goes to the member with the least; topics with the fewest
//!    readers first.
//! 3. [`super::even`] shifts partitions from the fullest members until no shift,
//!    along a chain of members either, makes it more even.
//! 4. What need not have moved goes back, by exchanges that leave the loads as
//!    they are.
//! 5. [`super::rack`] exchanges moved partitions where that brings readers nearer.
//!
//! With equal subscriptions the number of moves is the least possible: a member
//! loses only what is above its even share, and shares of one more go to those
//! that have them already.

use super::{
    Assignment, Problem,
    board::{Board, P},
    even, rack,
};

pub(super) fn assign(problem: &Problem<'_>) -> Assignment {
    let mut board = Board::new(problem);
    keep(&mut board);
    place_free(&mut board);
    even::level(&mut board);
    send_back(&mut board);
    rack::bring_nearer(&mut board);
    board.assignment()
}

fn keep(board: &mut Board<'_>) {
    for p in 0..board.partitions.len() {
        if let Some(before) = board.partitions[p].before {
            board.place(p, before);
        }
    }
}

fn place_free(board: &mut Board<'_>) {
    let readers = |board: &Board<'_>, p: P| board.subscribers[board.partitions[p].topic].len();
    let mut free: Vec<P> = (0..board.partitions.len())
        .filter(|p| board.partitions[*p].holder.is_none() && readers(board, *p) > 0)
        .collect();
    free.sort_by_key(|p| (readers(board, *p), *p));
    // Below its even share a member needs more in any case: near ones first.
    let share = board.partitions.len() / board.members.len().max(1);
    free.retain(|p| {
        let readers = board.subscribers[board.partitions[*p].topic]
            .iter()
            .copied();
        let near = readers.filter(|m| board.members[*m].load < share && board.is_near(*p, *m));
        let least = near.min_by_key(|m| (board.members[*m].load, *m));
        least.is_none_or(|m| {
            board.place(*p, m);
            false
        })
    });
    for p in free {
        let readers = board.subscribers[board.partitions[p].topic].iter().copied();
        let least = readers.min_by_key(|m| (board.members[*m].load, !board.is_near(p, *m), *m));
        if let Some(m) = least {
            board.place(p, m);
        }
    }
}

/// Unequal subscriptions only: a shift may have moved more than it had to.
fn send_back(board: &mut Board<'_>) {
    for p in 0..board.partitions.len() {
        let partition = &board.partitions[p];
        let (Some(before), Some(holder)) = (partition.before, partition.holder) else {
            continue;
        };
        if before == holder {
            continue;
        }
        if board.members[before].load + 1 == board.members[holder].load {
            board.place(p, before);
            continue;
        }
        // Against a partition that its holder did not have before either.
        let held = board.members[before].held.iter();
        let held = held.filter(|(topic, _)| board.reads(holder, **topic));
        let mut moved = held.flat_map(|(_, held)| held.iter()).copied();
        if let Some(other) = moved.find(|other| !board.is_kept(*other)) {
            board.place(p, before);
            board.place(other, holder);
        }
    }
}
