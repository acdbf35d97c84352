//! Which coordinator gets which shard: even, with as few moves as that takes.

use std::collections::{BTreeMap, BTreeSet};
use talweg_types::NodeId;

/// The shards that change hands, and to whom. `held`: each shard's holder if it is one
/// of `members`. With nobody to take them none does.
///
/// Afterwards no member has two more than another, and no shard has moved that need not.
pub(super) fn moves<K: Copy + Ord>(
    held: &BTreeMap<K, Option<NodeId>>,
    members: &BTreeSet<NodeId>,
) -> BTreeMap<K, NodeId> {
    if members.is_empty() {
        return BTreeMap::new();
    }
    let mut of: BTreeMap<NodeId, Vec<K>> = members.iter().map(|id| (*id, Vec::new())).collect();
    let mut free: Vec<K> = Vec::new();
    for (shard, holder) in held {
        match holder.and_then(|holder| of.get_mut(&holder)) {
            Some(shards) => shards.push(*shard),
            None => free.push(*shard),
        }
    }
    // Those that have most keep one more, as far as the remainder reaches.
    let (share, mut more) = (held.len() / members.len(), held.len() % members.len());
    let mut by_size: Vec<NodeId> = members.iter().copied().collect();
    by_size.sort_by_key(|id| std::cmp::Reverse(of.get(id).map_or(0, Vec::len)));
    let mut quota = BTreeMap::new();
    for id in by_size {
        let extra = usize::from(more > 0);
        more -= extra;
        quota.insert(id, share + extra);
    }
    for (id, shards) in &mut of {
        let keep = quota.get(id).copied().unwrap_or(0).min(shards.len());
        free.extend(shards.drain(keep..));
    }
    free.sort_unstable();
    let mut free = free.into_iter();
    let mut moved = BTreeMap::new();
    for (id, shards) in &of {
        let room = quota.get(id).copied().unwrap_or(0) - shards.len();
        moved.extend(free.by_ref().take(room).map(|shard| (shard, *id)));
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sizes(
        held: &BTreeMap<u32, Option<NodeId>>,
        moved: &BTreeMap<u32, NodeId>,
        members: &BTreeSet<NodeId>,
    ) -> Vec<usize> {
        let after = |shard: &u32| moved.get(shard).copied().or(held[shard]);
        let count = |id: &NodeId| held.keys().filter(|s| after(s) == Some(*id)).count();
        members.iter().map(count).collect()
    }

    proptest! {
        #[test]
        fn even_complete_and_with_the_fewest_moves(
            holders in proptest::collection::vec(0u32..6, 0..60),
            members in proptest::collection::btree_set(1u32..6, 0..5),
        ) {
            let members: BTreeSet<NodeId> = members.into_iter().map(NodeId).collect();
            let known = |id: u32| Some(NodeId(id)).filter(|id| members.contains(id));
            let held: BTreeMap<u32, Option<NodeId>> =
                (0..).zip(holders).map(|(shard, id)| (shard, known(id))).collect();
            let moved = moves(&held, &members);
            if members.is_empty() {
                prop_assert!(moved.is_empty());
                return Ok(());
            }
            let sizes = sizes(&held, &moved, &members);
            let (least, most) = (sizes.iter().min(), sizes.iter().max());
            prop_assert_eq!(sizes.iter().sum::<usize>(), held.len(), "all are held");
            prop_assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1));
            for (shard, to) in &moved {
                prop_assert_ne!(held[shard], Some(*to), "moved to where it was");
            }
            // The fewest: what nobody holds, and what is above the greatest even share,
            // of which only the remainder may have one more.
            let mut had: Vec<usize> = members
                .iter()
                .map(|id| held.values().filter(|h| **h == Some(*id)).count())
                .collect();
            had.sort_unstable_by(|a, b| b.cmp(a));
            let (share, more) = (held.len() / members.len(), held.len() % members.len());
            let kept: usize = had
                .iter()
                .enumerate()
                .map(|(rank, had)| (*had).min(share + usize::from(rank < more)))
                .sum();
            prop_assert_eq!(moved.len(), held.len() - kept);
        }
    }
}
