//! Random programs, crashes and dice.

use std::{collections::BTreeSet, io::IoSlice};

use proptest::prelude::*;

use super::{at, seeded};
use crate::fs::{
    LogFs, PowerLossFs,
    script::{Op, Player, dump, ops, put, read_all},
};

#[derive(Clone, Debug)]
enum Change {
    Write(u64, Vec<u8>),
    SetLen(u64),
    Flush,
}

fn change() -> impl Strategy<Value = Change> {
    let bytes = (1..=255_u8, 1..9000_usize).prop_map(|(fill, n)| vec![fill; n]);
    prop_oneof![
        6 => (0..20_000_u64, bytes).prop_map(|(at, bytes)| Change::Write(at, bytes)),
        2 => (0..20_000_u64).prop_map(Change::SetLen),
        2 => Just(Change::Flush),
    ]
}

/// What may be found of one file after a loss: the flushed bytes, and for each byte
/// what was written over it since.
struct Bounds {
    flushed: Vec<u8>,
    written: Vec<BTreeSet<u8>>,
    shortest: usize,
    longest: usize,
}

impl Bounds {
    fn after_flush(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        Self {
            flushed: bytes,
            written: vec![BTreeSet::new(); 32_000],
            shortest: len,
            longest: len,
        }
    }

    fn changed(&mut self, now: &[u8], position: usize, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            self.written[position + i].insert(*byte);
        }
        self.shortest = self.shortest.min(now.len());
        self.longest = self.longest.max(now.len());
    }

    fn check(&self, found: &[u8]) {
        assert!(
            (self.shortest..=self.longest).contains(&found.len()),
            "length {}",
            found.len()
        );
        for (i, byte) in found.iter().enumerate() {
            let old = self.flushed.get(i).copied().unwrap_or(0);
            let may_be_zero = i >= self.shortest;
            let untouched = *byte == old || (may_be_zero && *byte == 0);
            let near = |new: &u8| (new ^ byte).count_ones() <= 1;
            let new = self.written[i].iter().any(near);
            // A byte that was never flushed may also be a flipped zero of a gap.
            let flipped_gap = may_be_zero && byte.count_ones() <= 1;
            assert!(
                untouched || new || flipped_gap,
                "{byte} at {i}, flushed {old}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn flushed_bytes_are_never_harmed(
        seed: u64,
        writeback in prop::option::of(1..4_u64),
        changes in prop::collection::vec(change(), 1..25),
    ) {
        // Whatever leaks out of the page cache, early or in the loss: a byte that was flushed and not written since is as it was.
        let fs = seeded(seed);
        let path = at("f");
        let file = put(&fs, &path, &[], 0);
        fs.flush_all(&at(""))?;
        fs.set_writeback(writeback);
        let mut bounds = Bounds::after_flush(Vec::new());
        for change in &changes {
            match change {
                Change::Write(position, bytes) => {
                    file.write_at(&[IoSlice::new(bytes)], *position)?;
                    bounds.changed(&read_all(&fs, &path), *position as usize, bytes);
                }
                Change::SetLen(len) => {
                    file.set_len(*len)?;
                    bounds.changed(&read_all(&fs, &path), 0, &[]);
                }
                Change::Flush => {
                    file.flush()?;
                    bounds = Bounds::after_flush(read_all(&fs, &path));
                }
            }
        }
        fs.power_loss_keeping_some()?;
        bounds.check(&read_all(&fs, &path));
    }

    #[test]
    fn names_survive_in_their_order(seed: u64, ops in prop::collection::vec((0..4_u8, 0..4_u8, 0..4_u8), 1..20)) {
        // After the loss the folder is as it was at some moment since its last flush.
        let fs = seeded(seed);
        let name = |n: u8| at(&n.to_string());
        let mut moments = vec![dump(&fs, &at(""))];
        for (i, (kind, a, b)) in ops.into_iter().enumerate() {
            match kind {
                0 => put(&fs, &name(a), format!("file {i}, twelve").as_bytes(), 0).flush()?,
                1 => drop(fs.rename(&name(a), &name(b))),
                2 => drop(fs.remove_file(&name(a))),
                _ => {
                    fs.flush_dir(&at(""))?;
                    moments.clear();
                }
            }
            // A file written again in place is another file to its folder.
            if kind == 0 && moments.last().is_some_and(|last| last.contains_key(&a.to_string())) {
                fs.flush_dir(&at(""))?;
                moments.clear();
            }
            moments.push(dump(&fs, &at("")));
        }
        fs.power_loss_keeping_some()?;
        let found = dump(&fs, &at(""));
        prop_assert!(
            moments.iter().any(|moment| without_bytes(moment) == without_bytes(&found)),
            "{found:?} is none of {moments:?}"
        );
    }

    #[test]
    fn both_backings_lose_the_same(ops in ops(60)) {
        // A loss in memory and the end of a process over a folder leave the same files.
        let folder = tempfile::tempdir()?;
        let memory_fs = seeded(1);
        let over_fs = PowerLossFs::over_folder(folder.path())?;
        let mut memory = Player::new(memory_fs.clone(), &at(""));
        let mut over = Player::new(over_fs, folder.path());
        for op in &ops {
            prop_assert_eq!(memory.play(op), over.play(op), "{:?}", op);
        }
        memory_fs.power_loss()?;
        drop(over);
        let again = PowerLossFs::over_folder(folder.path())?;
        prop_assert_eq!(dump(&memory_fs, &at("")), dump(&again, folder.path()));
    }

    #[test]
    fn the_same_seed_falls_the_same(seed: u64, ops in ops(40)) {
        // A failure found by a seed can be looked at again.
        let run = || {
            let fs = seeded(seed);
            fs.set_writeback(Some(3));
            let mut player = Player::new(fs.clone(), &at(""));
            let outcomes: Vec<String> = ops.iter().map(|op| player.play(op)).collect();
            fs.power_loss_keeping_some().expect("a loss");
            (outcomes, dump(&fs, &at("")), fs.boot_id().expect("a boot"))
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn a_call_cut_short_puts_nothing_else_in_doubt(seed: u64, ops in ops(30), at_change in 1..25_u64) {
        // The process dies inside one call: nothing but that call is in doubt.
        let fs = seeded(seed);
        let twin = seeded(seed);
        fs.freeze_at(fs.operations() + at_change);
        let mut player = Player::new(fs.clone(), &at(""));
        let mut whole = Player::new(twin.clone(), &at(""));
        for op in &ops {
            let before = dump(&twin, &at(""));
            whole.play(op);
            player.play(op);
            if fs.boot_id().is_ok() {
                continue;
            }
            let after = dump(&twin, &at(""));
            fs.process_crash();
            let found = dump(&fs, &at(""));
            match op {
                Op::Write { .. } | Op::Append { .. } => {
                    prop_assert!(found.keys().eq(before.keys()));
                    for (name, bytes) in &found {
                        check_prefix(bytes, &before[name], &after[name]);
                    }
                }
                Op::RemoveDir(_) | Op::CreateDir(_) => {
                    let (few, many) = if before.len() < after.len() { (before, after) } else { (after, before) };
                    prop_assert!(few.keys().all(|name| found.contains_key(name)));
                    prop_assert!(found.iter().all(|(name, bytes)| many.get(name) == Some(bytes)));
                }
                _ => prop_assert!(found == before || found == after, "{:?}", op),
            }
            return Ok(());
        }
        prop_assert!(fs.operations() < at_change + 2, "it froze too late or not at all");
    }
}

type Dump = std::collections::BTreeMap<String, Option<Vec<u8>>>;

/// Files by their first bytes, which name them and are flushed when written.
fn without_bytes(dump: &Dump) -> Vec<(&String, Vec<u8>)> {
    let start = |bytes: &Vec<u8>| bytes.iter().take(14).copied().collect::<Vec<u8>>();
    dump.iter()
        .map(|(name, bytes)| (name, bytes.as_ref().map(start).unwrap_or_default()))
        .collect()
}

/// `found` is `before` with the first part of what `after` changed in it.
fn check_prefix(found: &Option<Vec<u8>>, before: &Option<Vec<u8>>, after: &Option<Vec<u8>>) {
    let (Some(found), Some(before), Some(after)) = (found, before, after) else {
        assert_eq!(found, before);
        return;
    };
    assert!((before.len()..=after.len()).contains(&found.len()));
    let same = found
        .iter()
        .zip(after)
        .take_while(|(found, after)| found == after)
        .count();
    assert!(
        found[same..] == *before.get(same..).unwrap_or_default(),
        "no prefix of the write"
    );
}
