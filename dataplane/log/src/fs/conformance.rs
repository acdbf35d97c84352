//! One suite for every [`LogFs`]: the real one, and the power-loss one in memory
//! and over a folder, must be told apart only by a crash.

use std::{
    io::{self, IoSlice},
    path::Path,
};

use proptest::prelude::*;

use super::{
    DirEntry, LogFs, PowerLossFs, RealFs,
    script::{Player, dump, ops, put, read_all},
};

/// Runs `check` on each implementation with an empty folder.
fn on_each(check: impl Fn(&dyn LogFs, &Path)) {
    let folder = tempfile::tempdir().expect("a folder");
    check(&RealFs, folder.path());
    let memory = PowerLossFs::in_memory(1);
    memory.create_dir_all(Path::new("/data")).expect("a folder");
    check(&memory, Path::new("/data"));
    let folder = tempfile::tempdir().expect("a folder");
    let over = PowerLossFs::over_folder(folder.path()).expect("a file system");
    check(&over, folder.path());
}

fn kind<T>(outcome: io::Result<T>) -> Option<io::ErrorKind> {
    outcome.err().map(|error| error.kind())
}

#[test]
fn a_file_is_read_as_it_was_written() {
    // Many slices, more than one system call takes, with empty ones between, land in order.
    on_each(|fs, root| {
        let parts: Vec<Vec<u8>> = (0..3000_usize).map(|i| vec![i as u8; i % 7]).collect();
        let whole: Vec<u8> = parts.concat();
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let file = fs.open(&root.join("f"), true).unwrap();
        file.write_at(&slices, 5).unwrap();
        assert_eq!(file.len().unwrap(), 5 + whole.len() as u64);
        let bytes = read_all(fs, &root.join("f"));
        assert_eq!(bytes[..5], [0; 5], "a gap reads as zeros");
        assert_eq!(bytes[5..], whole);

        let mut buf = vec![0; 100];
        let tail = file.len().unwrap() - 30;
        assert_eq!(
            file.read_at(&mut buf, tail).unwrap(),
            30,
            "short only at the end"
        );
        assert_eq!(file.read_at(&mut buf, tail + 30).unwrap(), 0);
        assert_eq!(file.read_at(&mut [], 0).unwrap(), 0);
        file.write_at(&[], 3).unwrap();
        file.write_at(&[IoSlice::new(&[]), IoSlice::new(&[])], 3)
            .unwrap();
        assert_eq!(
            read_all(fs, &root.join("f")),
            bytes,
            "an empty write changes nothing"
        );
    });
}

#[test]
fn what_is_in_memory_is_read_without_waiting() {
    // A reader on a session thread may only take what the page cache has; right after a write that is all.
    on_each(|fs, root| {
        let file = put(fs, &root.join("f"), &[7; 10_000], 0);
        let mut buf = vec![0; 5000];
        // A file system that cannot tell answers None; it must never answer wrongly.
        if let Some(n) = file.try_read_at(&mut buf, 1000).unwrap() {
            assert!(n > 0 && buf[..n].iter().all(|byte| *byte == 7));
        }
        if let Some(n) = file.try_read_at(&mut buf, 9_990).unwrap() {
            assert!(n <= 10);
        }
        assert!(matches!(
            file.try_read_at(&mut buf, 20_000).unwrap(),
            None | Some(0)
        ));
        assert_eq!(file.try_read_at(&mut [], 0).unwrap(), Some(0));
    });
}

#[test]
fn lengths_change_as_asked() {
    // Cut and grown again, a file shows zeros where old bytes were.
    on_each(|fs, root| {
        let file = put(fs, &root.join("f"), &[7; 9000], 0);
        file.flush().unwrap();
        file.set_len(5000).unwrap();
        file.set_len(9000).unwrap();
        let mut wanted = vec![7; 5000];
        wanted.resize(9000, 0);
        assert_eq!(read_all(fs, &root.join("f")), wanted);
        file.flush().unwrap();
        assert_eq!(read_all(fs, &root.join("f")), wanted);
        assert_eq!(
            kind(file.set_len(u64::MAX)),
            Some(io::ErrorKind::InvalidInput)
        );
        assert!(file.write_at(&[IoSlice::new(b"x")], u64::MAX - 5).is_err());
    });
}

#[test]
fn folders_say_what_is_in_them() {
    // Entries come in name order; opening an existing file to create it keeps its bytes.
    on_each(|fs, root| {
        fs.create_dir_all(&root.join("d/e")).unwrap();
        fs.create_dir_all(&root.join("d/e")).unwrap();
        put(fs, &root.join("d/z"), b"z", 0);
        put(fs, &root.join("d/b"), b"b", 0);
        drop(fs.open(&root.join("d/b"), true).unwrap());
        assert_eq!(read_all(fs, &root.join("d/b")), b"b");
        let entry = |name: &str, is_dir| DirEntry {
            name: name.to_owned(),
            is_dir,
        };
        let wanted = [entry("b", false), entry("e", true), entry("z", false)];
        assert_eq!(fs.list(&root.join("d")).unwrap(), wanted);
        fs.remove_file(&root.join("d/z")).unwrap();
        fs.remove_dir_all(&root.join("d")).unwrap();
        fs.remove_dir_all(&root.join("d")).unwrap();
        assert_eq!(fs.list(root).unwrap(), []);
    });
}

#[test]
fn a_rename_takes_the_place_of_what_was_there() {
    // The replaced file stays readable for those who have it open; folders move with all they hold.
    on_each(|fs, root| {
        let old = put(fs, &root.join("old"), b"old", 0);
        put(fs, &root.join("new"), b"new!", 0);
        fs.rename(&root.join("new"), &root.join("old")).unwrap();
        assert_eq!(read_all(fs, &root.join("old")), b"new!");
        let mut buf = [0; 8];
        assert_eq!(old.read_at(&mut buf, 0).unwrap(), 3);
        assert_eq!(&buf[..3], b"old");
        old.write_at(&[IoSlice::new(b"OLD+")], 0).unwrap();
        old.flush().unwrap();
        fs.flush_dir(root).unwrap();
        assert_eq!(
            old.read_at(&mut buf, 0).unwrap(),
            4,
            "also after the names are flushed"
        );

        fs.create_dir_all(&root.join("d/e")).unwrap();
        put(fs, &root.join("d/e/f"), b"f", 0);
        fs.rename(&root.join("d"), &root.join("g")).unwrap();
        assert_eq!(read_all(fs, &root.join("g/e/f")), b"f");
        fs.rename(&root.join("g"), &root.join("g")).unwrap();
        assert!(
            fs.rename(&root.join("g"), &root.join("g/e/g")).is_err(),
            "not into itself"
        );
    });
}

#[test]
fn what_cannot_be_done_is_refused_alike() {
    // The log decides on the kind of an error, so the kinds are part of the contract.
    use io::ErrorKind::*;
    on_each(|fs, root| {
        let at = |name: &str| root.join(name);
        put(fs, &at("f"), b"f", 0);
        fs.create_dir_all(&at("d")).unwrap();
        fs.create_dir_all(&at("full/x")).unwrap();
        assert_eq!(kind(fs.open(&at("none"), false)), Some(NotFound));
        assert_eq!(kind(fs.open(&at("none/f"), true)), Some(NotFound));
        assert_eq!(kind(fs.open(&at("f/g"), true)), Some(NotADirectory));
        assert_eq!(kind(fs.open(&at("d"), true)), Some(IsADirectory));
        assert_eq!(kind(fs.open(&at("d"), false)), Some(IsADirectory));
        assert_eq!(kind(fs.create_dir_all(&at("f"))), Some(AlreadyExists));
        assert_eq!(kind(fs.create_dir_all(&at("f/d"))), Some(NotADirectory));
        assert_eq!(kind(fs.rename(&at("none"), &at("x"))), Some(NotFound));
        assert_eq!(kind(fs.rename(&at("f"), &at("none/x"))), Some(NotFound));
        assert_eq!(kind(fs.rename(&at("f"), &at("d"))), Some(IsADirectory));
        assert_eq!(kind(fs.rename(&at("d"), &at("f"))), Some(NotADirectory));
        assert_eq!(
            kind(fs.rename(&at("d"), &at("full"))),
            Some(DirectoryNotEmpty)
        );
        assert_eq!(kind(fs.remove_file(&at("none"))), Some(NotFound));
        assert_eq!(kind(fs.remove_file(&at("d"))), Some(IsADirectory));
        assert_eq!(kind(fs.remove_dir_all(&at("f"))), Some(NotADirectory));
        assert_eq!(kind(fs.list(&at("none"))), Some(NotFound));
        assert_eq!(kind(fs.list(&at("f"))), Some(NotADirectory));
        assert_eq!(kind(fs.flush_dir(&at("none"))), Some(NotFound));
        assert_eq!(kind(fs.flush_dir(&at("f"))), Some(NotADirectory));
        assert_eq!(kind(fs.flush_all(&at("none"))), Some(NotFound));
        assert_eq!(kind(fs.mount_id(&at("none"))), Some(NotFound));
    });
}

#[test]
fn the_place_is_identified() {
    // Boot and mount stay the same while nothing happens, and space is never more free than there is.
    on_each(|fs, root| {
        assert!(!fs.boot_id().unwrap().is_empty());
        assert_eq!(fs.boot_id().unwrap(), fs.boot_id().unwrap());
        assert_eq!(fs.mount_id(root).unwrap(), fs.mount_id(root).unwrap());
        let space = fs.space(root).unwrap();
        assert!(space.free_bytes <= space.total_bytes && space.total_bytes > 0);
        let file = put(fs, &root.join("f"), b"f", 0);
        assert!(file.modified_ms().unwrap() > 1_700_000_000_000);
        fs.flush_all(root).unwrap();
    });
}

#[cfg(feature = "test-boot-id")]
#[test]
fn a_test_build_takes_its_boot_id_from_the_environment() {
    // Only a child process can be given another environment without racing the other tests.
    const CHILD: &str = "TALWEG_TEST_BOOT_ID_CHILD";
    if std::env::var_os(CHILD).is_some() {
        assert_eq!(RealFs.boot_id().unwrap(), "another boot");
        return;
    }
    let name = "fs::conformance::a_test_build_takes_its_boot_id_from_the_environment";
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .envs([(CHILD, "1"), ("TALWEG_TEST_BOOT_ID", "another boot")])
        .status();
    assert!(status.unwrap().success());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn without_a_crash_all_are_one(ops in ops(60), restart in 0..60_usize) {
        // Every call's outcome agrees with the real file system's, through a crash of the process, and the folder ends up the same.
        let (real, over) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let memory_fs = PowerLossFs::in_memory(3);
        memory_fs.create_dir_all(Path::new("/m"))?;
        let over_fs = PowerLossFs::over_folder(over.path())?;
        let mut players = [
            Player::new(RealFs, real.path()),
            Player::new(memory_fs.clone(), Path::new("/m")),
            Player::new(over_fs.clone(), over.path()),
        ];
        for (i, op) in ops.iter().enumerate() {
            if i == restart {
                players.iter_mut().for_each(Player::close_all);
                memory_fs.process_crash();
                over_fs.process_crash();
            }
            let [wanted, memory, folder] = players.each_mut().map(|player| player.play(op));
            prop_assert_eq!(&memory, &wanted, "in memory, {} {:?}", i, op);
            prop_assert_eq!(&folder, &wanted, "over a folder, {} {:?}", i, op);
        }
        let wanted = dump(&RealFs, real.path());
        prop_assert_eq!(&dump(&memory_fs, Path::new("/m")), &wanted);
        prop_assert_eq!(&dump(&over_fs, over.path()), &wanted);
        over_fs.flush_all(over.path())?;
        drop(players);
        drop(over_fs);
        let again = PowerLossFs::over_folder(over.path())?;
        prop_assert_eq!(&dump(&again, over.path()), &wanted, "what was flushed is in the folder");
    }
}
