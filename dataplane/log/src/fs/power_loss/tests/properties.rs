//! Random programs, crashes and dice.

use std::{collections::BTreeSet, io::IoSlice, path::Path};

use proptest::prelude::*;

use super::at;
use crate::fs::{
    LogFs, PowerLossFs,
    script::{Op, Player, dump, ops, put, read_all},
};

fn seeded(seed: u64) -> PowerLossFs {
    let fs = PowerLossFs::in_memory(seed);
    fs.create_dir_all(&at("")).expect("a folder");
    fs.flush_all(&at("")).expect("a flush");
    fs
}

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

/// How often each kind of outcome shows up in `losses` runs.
#[derive(Default, Debug)]
struct Tally {
    nothing: u32,
    all: u32,
    cut_inside_a_page: u32,
    zeros: u32,
    flipped: u32,
    last_page_without_an_earlier_one: u32,
}

impl Tally {
    /// Looks at a file of which one page of ones was flushed, and three of twos not.
    fn add(&mut self, bytes: &[u8]) {
        assert_eq!(bytes[..4096], [1; 4096]);
        let tail = &bytes[4096..];
        let twos = tail.iter().filter(|byte| **byte == 2).count();
        let odd = tail.iter().any(|byte| !matches!(byte, 0 | 2));
        self.nothing += u32::from(tail.is_empty());
        self.all += u32::from(twos == 3 * 4096);
        self.cut_inside_a_page += u32::from(!odd && twos % 4096 != 0);
        self.zeros += u32::from(tail.len() == 3 * 4096 && twos == 0 && !odd);
        self.flipped += u32::from(odd);
        self.last_page_without_an_earlier_one +=
            u32::from(tail.len() == 3 * 4096 && tail[4096 * 2] == 2 && twos < 2 * 4096 + 1);
    }

    fn check(&self) {
        let Self {
            nothing,
            all,
            cut_inside_a_page,
            zeros,
            flipped,
            last_page_without_an_earlier_one,
        } = self;
        let seen = [
            nothing,
            all,
            cut_inside_a_page,
            zeros,
            flipped,
            last_page_without_an_earlier_one,
        ];
        assert!(seen.iter().all(|count| **count > 0), "{self:?}");
    }
}

#[test]
fn every_kind_of_loss_happens() {
    // A model that only ever loses everything would let a weak recovery pass.
    let mut tally = Tally::default();
    for seed in 0..300 {
        let fs = seeded(seed);
        let file = put(&fs, &at("f"), &[1; 4096], 0);
        fs.flush_all(&at("")).unwrap();
        file.write_at(&[IoSlice::new(&[2; 3 * 4096])], 4096)
            .unwrap();
        fs.power_loss_keeping_some().unwrap();
        tally.add(&read_all(&fs, &at("f")));
    }
    tally.check();
}

#[test]
fn new_bytes_never_stand_before_a_cut_tail() {
    // A follower cuts its log and appends: the new bytes reach the disk after the cut, or not at all.
    let mut leaked = 0;
    for seed in 0..100 {
        let fs = seeded(seed);
        let file = put(&fs, &at("f"), &[1; 3 * 4096], 0);
        fs.flush_all(&at("")).unwrap();
        file.set_len(5000).unwrap();
        file.write_at(&[IoSlice::new(&[2; 100])], 5000).unwrap();
        fs.power_loss_keeping_some().unwrap();
        let bytes = read_all(&fs, &at("f"));
        assert_eq!(bytes[..5000], [1; 5000]);
        if bytes[5000..].contains(&2) {
            assert!(
                bytes.len() <= 5100,
                "seed {seed}: the old tail is still there"
            );
            leaked += 1;
        }
    }
    assert!(leaked > 0);
}

#[test]
fn a_flush_cut_short_and_writeback_leak_over_a_folder_too() {
    // Killed in the middle of a flush, or after the kernel wrote something back, a real folder holds a torn tail.
    let (mut by_flush, mut by_writeback) = (0, 0);
    for round in 0..40 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let fs = PowerLossFs::over_folder(folder.path()).unwrap();
        let file = put(&fs, &path, &[1; 4096], 0);
        fs.flush_all(folder.path()).unwrap();
        match round % 2 {
            0 => fs.freeze_at(fs.operations() + 2),
            _ => fs.set_writeback(Some(1)),
        }
        file.write_at(&[IoSlice::new(&[2; 3 * 4096])], 4096)
            .unwrap();
        let flushed = if round % 2 == 0 {
            file.flush()
        } else {
            file.len().map(|_| ())
        };
        assert_eq!(flushed.is_err(), round % 2 == 0);
        drop((file, fs));
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes[..4096], [1; 4096]);
        match round % 2 {
            0 => by_flush += usize::from(bytes.len() > 4096),
            _ => by_writeback += usize::from(bytes.len() > 4096),
        }
    }
    assert!(
        by_flush > 0 && by_writeback > 0,
        "{by_flush} {by_writeback}"
    );
    assert!(
        !Path::new("/d").exists(),
        "the model in memory leaves the machine alone"
    );
}
