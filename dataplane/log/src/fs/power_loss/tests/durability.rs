//! What is left after a crash, case by case.

use std::{io::IoSlice, path::Path};

use super::{at, disk, names};
use crate::fs::{
    LogFs, PowerLossFs,
    script::{dump, put, read_all},
};

#[test]
fn flushed_bytes_survive_and_others_do_not() {
    // A segment is appended to after its last flush: the loss is exactly what came after.
    let fs = disk();
    let file = put(&fs, &at("f"), &[1; 5000], 0);
    fs.flush_dir(&at("")).unwrap();
    file.flush().unwrap();
    file.write_at(&[IoSlice::new(&[2; 6000])], 4000).unwrap();
    assert_eq!(file.len().unwrap(), 10_000);
    assert_eq!(fs.durable_len(&at("f")).unwrap(), 5000);
    fs.power_loss().unwrap();
    assert_eq!(read_all(&fs, &at("f")), [1; 5000]);
}

#[test]
fn a_process_crash_loses_nothing() {
    // The page cache outlives the process, and so does the boot.
    let fs = disk();
    let boot = fs.boot_id().unwrap();
    put(&fs, &at("f"), b"never flushed", 0);
    fs.process_crash();
    assert_eq!(read_all(&fs, &at("f")), b"never flushed");
    assert_eq!(fs.boot_id().unwrap(), boot);
    fs.power_loss().unwrap();
    assert!(names(&fs, "").is_empty());
    assert_ne!(fs.boot_id().unwrap(), boot);
}

#[test]
fn a_new_file_needs_its_folder_flushed() {
    // The bytes are on disk, the name is not: nobody finds them.
    let fs = disk();
    put(&fs, &at("f"), b"f", 0).flush().unwrap();
    fs.power_loss().unwrap();
    assert!(names(&fs, "").is_empty());

    put(&fs, &at("f"), b"f", 0);
    fs.flush_dir(&at("")).unwrap();
    fs.power_loss().unwrap();
    assert_eq!(
        read_all(&fs, &at("f")),
        b"",
        "the name is on disk, the bytes are not"
    );
}

#[test]
fn a_new_folder_needs_its_parent_flushed() {
    // Flushing inside a folder does not make the folder itself durable.
    let fs = disk();
    fs.create_dir_all(&at("p/q")).unwrap();
    put(&fs, &at("p/q/f"), b"f", 0).flush().unwrap();
    fs.flush_dir(&at("p/q")).unwrap();
    fs.flush_dir(&at("p")).unwrap();
    let before = fs.process();
    fs.power_loss().unwrap();
    assert!(names(&fs, "").is_empty());
    assert!(
        before.list(&at("")).is_err(),
        "the process died with the machine"
    );

    fs.create_dir_all(&at("p/q")).unwrap();
    put(&fs, &at("p/q/f"), b"f", 0).flush().unwrap();
    for folder in ["", "p", "p/q"] {
        fs.flush_dir(&at(folder)).unwrap();
    }
    fs.power_loss().unwrap();
    assert_eq!(read_all(&fs, &at("p/q/f")), b"f");
}

#[test]
fn a_replaced_file_is_old_until_the_folder_is_flushed() {
    // The way sidecar files are written: new beside old, flush, rename, flush the folder.
    let fs = disk();
    put(&fs, &at("f"), b"old", 0);
    fs.flush_all(&at("")).unwrap();
    let replace = |flush_bytes: bool| {
        let new = put(&fs, &at("f.new"), b"newer", 0);
        if flush_bytes {
            new.flush().unwrap();
        }
        fs.rename(&at("f.new"), &at("f")).unwrap();
    };
    replace(true);
    assert_eq!(read_all(&fs, &at("f")), b"newer");
    fs.power_loss().unwrap();
    assert_eq!(
        (names(&fs, ""), read_all(&fs, &at("f"))),
        (vec!["f".into()], b"old".to_vec())
    );

    replace(false);
    fs.flush_dir(&at("")).unwrap();
    fs.power_loss().unwrap();
    assert_eq!(
        read_all(&fs, &at("f")),
        b"",
        "renamed before its bytes were flushed"
    );

    replace(true);
    fs.flush_dir(&at("")).unwrap();
    fs.power_loss().unwrap();
    assert_eq!(
        (names(&fs, ""), read_all(&fs, &at("f"))),
        (vec!["f".into()], b"newer".to_vec())
    );
}

#[test]
fn a_rename_between_folders_is_whole_or_nothing() {
    // A folder is set aside: flushing either end moves it, together with what had to come before.
    for flushed in ["from", "to"] {
        let fs = disk();
        fs.create_dir_all(&at("from/t")).unwrap();
        fs.create_dir_all(&at("to")).unwrap();
        fs.flush_all(&at("")).unwrap();
        put(&fs, &at("from/t/f"), b"f", 0).flush().unwrap();
        put(&fs, &at("from/other"), b"", 0);
        fs.rename(&at("from/t"), &at("to/t")).unwrap();
        fs.flush_dir(&at(flushed)).unwrap();
        fs.power_loss().unwrap();
        assert_eq!(names(&fs, "from"), ["other"], "{flushed}");
        assert_eq!(names(&fs, "to"), ["t"]);
        assert!(
            names(&fs, "to/t").is_empty(),
            "its own folder was never flushed"
        );
    }
}

#[test]
fn a_removal_needs_its_folder_flushed() {
    // A deleted segment comes back, whole, if the power goes before the folder's flush.
    let fs = disk();
    put(&fs, &at("f"), b"f", 0);
    fs.create_dir_all(&at("t/u")).unwrap();
    put(&fs, &at("t/u/g"), b"g", 0);
    fs.flush_all(&at("")).unwrap();
    let whole = dump(&fs, &at(""));
    fs.remove_file(&at("f")).unwrap();
    fs.remove_dir_all(&at("t")).unwrap();
    assert!(names(&fs, "").is_empty());
    fs.power_loss().unwrap();
    assert_eq!(dump(&fs, &at("")), whole);

    fs.remove_file(&at("f")).unwrap();
    fs.remove_dir_all(&at("t")).unwrap();
    fs.flush_dir(&at("")).unwrap();
    fs.power_loss().unwrap();
    assert!(names(&fs, "").is_empty());
}

#[test]
fn what_was_moved_out_of_a_removed_folder_is_saved_with_its_removal() {
    // A file is rescued from a folder, then the folder goes: its removal must not take the file along.
    let fs = disk();
    fs.create_dir_all(&at("old/sub")).unwrap();
    fs.create_dir_all(&at("other")).unwrap();
    put(&fs, &at("old/sub/f"), b"f", 0);
    fs.flush_all(&at("")).unwrap();
    fs.rename(&at("old/sub/f"), &at("other/f")).unwrap();
    fs.remove_dir_all(&at("old")).unwrap();
    fs.flush_dir(&at("")).unwrap();
    fs.power_loss().unwrap();
    assert_eq!(names(&fs, ""), ["other"]);
    assert_eq!(read_all(&fs, &at("other/f")), b"f");
}

#[test]
fn a_folder_that_takes_an_emptied_ones_place_comes_after_the_emptying() {
    // Over a real folder a rename onto one that still has its files would be refused.
    let folder = tempfile::tempdir().unwrap();
    let fs = PowerLossFs::over_folder(folder.path()).unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["a", "b"] {
        fs.create_dir_all(&at(name)).unwrap();
        put(&fs, &at(name).join(name), b"f", 0);
    }
    fs.flush_all(folder.path()).unwrap();
    fs.remove_file(&at("b/b")).unwrap();
    fs.rename(&at("a"), &at("b")).unwrap();
    fs.flush_dir(folder.path()).unwrap();
    let real = dump(&crate::fs::RealFs, &at("b"));
    assert_eq!(real.keys().collect::<Vec<_>>(), ["a"]);
    assert!(!at("a").exists());
}

#[test]
fn a_cut_needs_a_flush() {
    // Recovery cuts a torn tail and appends; without a flush between, the cut and the new bytes are both undone.
    let fs = disk();
    let file = put(&fs, &at("f"), &[1; 9000], 0);
    fs.flush_all(&at("")).unwrap();
    file.set_len(5000).unwrap();
    file.write_at(&[IoSlice::new(&[2; 100])], 5000).unwrap();
    fs.power_loss().unwrap();
    assert_eq!(read_all(&fs, &at("f")), [1; 9000]);

    let file = fs.open(&at("f"), false).unwrap();
    file.set_len(5000).unwrap();
    file.flush().unwrap();
    file.set_len(9000).unwrap();
    fs.power_loss().unwrap();
    assert_eq!(read_all(&fs, &at("f")), [1; 5000]);
}

#[test]
fn handles_die_in_a_crash() {
    // A thread of the dead process that wakes late must not touch the next one's files.
    for power_loss in [false, true] {
        let fs = disk();
        let process = fs.process();
        let file = put(&process, &at("f"), b"f", 0);
        fs.flush_all(&at("")).unwrap();
        match power_loss {
            true => fs.power_loss().unwrap(),
            false => fs.process_crash(),
        }
        assert!(file.read_at(&mut [0], 0).is_err());
        assert!(file.write_at(&[IoSlice::new(b"late")], 0).is_err());
        assert!(file.flush().is_err());
        assert!(process.remove_file(&at("f")).is_err());
        drop(file);
        assert_eq!(read_all(&fs.process(), &at("f")), b"f");
    }
}

#[test]
fn over_a_folder_the_end_of_the_process_is_the_loss() {
    // The value stands for the process: what it did not flush was only in its memory.
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("t")).unwrap();
    std::fs::write(at("t/there"), b"before").unwrap();

    let fs = PowerLossFs::over_folder(folder.path()).unwrap();
    let boot = fs.boot_id().unwrap();
    assert_eq!(read_all(&fs, &at("t/there")), b"before");
    let file = put(&fs, &at("t/new"), &[1; 5000], 0);
    file.flush().unwrap();
    assert!(!at("t/new").exists());
    fs.flush_dir(&at("t")).unwrap();
    assert_eq!(std::fs::read(at("t/new")).unwrap(), [1; 5000]);
    file.write_at(&[IoSlice::new(&[2; 5000])], 2000).unwrap();
    fs.rename(&at("t/there"), &at("moved")).unwrap();
    assert_eq!(read_all(&fs, &at("moved")), b"before");
    assert!(
        fs.power_loss().is_err(),
        "it cannot take back what other processes may have seen"
    );
    drop((file, fs));

    let fs = PowerLossFs::over_folder(folder.path()).unwrap();
    assert_ne!(fs.boot_id().unwrap(), boot);
    assert_eq!(read_all(&fs, &at("t/new")), [1; 5000]);
    assert_eq!(read_all(&fs, &at("t/there")), b"before");
    assert_eq!(dump(&fs, folder.path()).len(), 3);
    assert!(
        fs.list(Path::new("/")).is_err(),
        "only what lies below the folder"
    );
}

#[test]
fn a_removed_file_lives_until_it_is_closed() {
    // Retention removes a segment that a reader has open, also over a folder, where the real file goes.
    let folder = tempfile::tempdir().unwrap();
    let fs = PowerLossFs::over_folder(folder.path()).unwrap();
    let path = folder.path().join("f");
    let file = put(&fs, &path, &[3; 5000], 0);
    file.flush().unwrap();
    fs.flush_dir(folder.path()).unwrap();
    fs.remove_file(&path).unwrap();
    fs.flush_dir(folder.path()).unwrap();
    assert!(!path.exists());
    let mut buf = [0; 5000];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 5000);
    assert_eq!(buf, [3; 5000]);
}
