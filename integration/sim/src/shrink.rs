//! A failing seed with as few faults as possible.

use crate::{Failure, Plan, run_without};
use std::collections::BTreeSet;

/// Leaves faults out, larger pieces first, as long as the seed still fails.
pub fn shrink(failure: &Failure) -> Failure {
    let count = Plan::of(failure.seed).faults.len();
    let mut best = failure.clone();
    let mut piece = count.div_ceil(2).max(1);
    loop {
        let mut smaller = false;
        let mut from = 0;
        while from < count {
            let some: BTreeSet<_> = (from..(from + piece).min(count)).collect();
            let left_out: BTreeSet<_> = best.left_out.union(&some).copied().collect();
            if left_out != best.left_out
                && let Err(found) = run_without(failure.seed, &left_out)
            {
                best = found;
                smaller = true;
            }
            from += piece;
        }
        if piece == 1 && !smaller {
            return best;
        }
        piece = (piece / 2).max(1);
    }
}
