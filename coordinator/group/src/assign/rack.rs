//! Readers near replicas, where evenness and stickiness leave the choice: moved
//! partitions are exchanged in pairs until no exchange brings more of them near.

use super::board::{Board, P};

/// Exchanges tried; above it the rest stays as it is.
const TRIES_MAX: usize = 2_000_000;

pub(super) fn bring_nearer(board: &mut Board<'_>) {
    let moved = (0..board.partitions.len()).filter(|p| !board.is_kept(*p));
    let moved: Vec<P> = moved
        .filter(|p| board.partitions[*p].holder.is_some())
        .collect();
    let mut tries = 0;
    // Each exchange brings at least one more near, so this ends.
    let mut changed = true;
    while changed {
        changed = false;
        for p in moved.iter().copied() {
            let holder = board.partitions[p].holder;
            let is_far = holder.is_some_and(|holder| !board.is_near(p, holder));
            if !is_far || board.partitions[p].racks.is_empty() {
                continue;
            }
            for other in moved.iter().copied() {
                tries += 1;
                if tries > TRIES_MAX {
                    return;
                }
                changed |= exchange(board, p, other);
            }
        }
    }
}

fn exchange(board: &mut Board<'_>, p: P, other: P) -> bool {
    let (Some(a), Some(b)) = (board.partitions[p].holder, board.partitions[other].holder) else {
        return false;
    };
    // Only for the sake of one that is far from its reader.
    if a == b || board.is_near(p, a) || !board.is_near(p, b) {
        return false;
    }
    let may =
        board.reads(b, board.partitions[p].topic) && board.reads(a, board.partitions[other].topic);
    let loses = board.is_near(other, b) && !board.is_near(other, a);
    if !may || loses {
        return false;
    }
    board.place(p, b);
    board.place(other, a);
    true
}
