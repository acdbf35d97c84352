//! The dice fall on every side: a model that only ever loses everything would let a
//! weak recovery pass.

use std::{collections::BTreeSet, io::IoSlice, path::Path};

use super::{at, names, seeded};
use crate::fs::{
    LogFs, PowerLossFs,
    script::{put, read_all},
};

const PAGE: usize = 4096;

/// What became of a file of which one page of ones was flushed and three of twos not.
fn kinds(bytes: &[u8]) -> Vec<&'static str> {
    assert_eq!(bytes[..PAGE], [1; PAGE]);
    let tail = &bytes[PAGE..];
    let twos = tail.iter().filter(|byte| **byte == 2).count();
    let flipped = tail.iter().any(|byte| !matches!(byte, 0 | 2));
    let torn = !twos.is_multiple_of(PAGE);
    let is = [
        (tail.is_empty(), "nothing"),
        (twos == 3 * PAGE, "all"),
        (twos == tail.len() && torn && twos > PAGE, "a prefix"),
        (torn && twos < tail.len(), "a torn page"),
        (tail.len() == 3 * PAGE && twos == 0, "zeros"),
        (flipped, "a flipped bit"),
        (
            tail.get(2 * PAGE) == Some(&2) && twos <= 2 * PAGE,
            "a late page without an earlier one",
        ),
    ];
    is.iter()
        .filter(|(is, _)| *is)
        .map(|(_, kind)| *kind)
        .collect()
}

#[test]
fn bytes_are_lost_in_every_way() {
    // Nothing, all, and each kind of half between them turn up among a few hundred losses.
    let mut seen = BTreeSet::new();
    for seed in 0..300 {
        let fs = seeded(seed);
        let file = put(&fs, &at("f"), &[1; PAGE], 0);
        fs.flush_all(&at("")).unwrap();
        file.write_at(&[IoSlice::new(&[2; 3 * PAGE])], PAGE as u64)
            .unwrap();
        fs.power_loss_keeping_some().unwrap();
        seen.extend(kinds(&read_all(&fs, &at("f"))));
    }
    assert_eq!(seen.len(), 7, "{seen:?}");
}

#[test]
fn names_are_lost_in_every_way() {
    // Of three new files none, the first ones or all are found; and a folder may be ahead of another.
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let fs = seeded(seed);
        for folder in ["p", "q"] {
            fs.create_dir_all(&at(folder)).unwrap();
        }
        fs.flush_all(&at("")).unwrap();
        for file in ["p/1", "q/1", "p/2"] {
            put(&fs, &at(file), b"", 0);
        }
        fs.power_loss_keeping_some().unwrap();
        seen.insert((names(&fs, "p").len(), names(&fs, "q").len()));
    }
    let all: BTreeSet<_> = (0..3).flat_map(|p| [(p, 0), (p, 1)]).collect();
    assert_eq!(seen, all);
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
