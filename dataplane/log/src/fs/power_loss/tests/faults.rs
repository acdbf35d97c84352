//! What a test can make go wrong.

use std::{
    io::{self, ErrorKind, IoSlice},
    path::PathBuf,
    sync::{Arc, mpsc},
};

use parking_lot::Mutex;

use super::{at, disk, names};
use crate::fs::{
    LogFs,
    power_loss::OpKind,
    script::{put, read_all},
};

fn code<T>(outcome: io::Result<T>) -> Option<i32> {
    outcome.err().and_then(|error| error.raw_os_error())
}

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

#[test]
fn a_failed_flush_loses_the_dirty_pages_for_good() {
    // Linux calls the pages clean: reads show them, the next flush succeeds without them, the power loss tells.
    let fs = disk();
    let file = put(&fs, &at("f"), &[1; 4096], 0);
    fs.flush_all(&at("")).unwrap();
    fs.fail_flush_after(1);
    file.flush().unwrap();
    file.write_at(&[IoSlice::new(&[2; 8192])], 4096).unwrap();
    assert_eq!(code(file.flush()), Some(EIO));
    assert_eq!(
        read_all(&fs, &at("f"))[4096..],
        [2; 8192],
        "still in the page cache"
    );
    file.write_at(&[IoSlice::new(&[3; 4096])], 8192).unwrap();
    file.flush().unwrap();
    assert_eq!(read_all(&fs, &at("f"))[4096..8192], [2; 4096]);
    fs.power_loss().unwrap();
    let bytes = read_all(&fs, &at("f"));
    assert_eq!(bytes[..4096], [1; 4096]);
    assert_eq!(bytes[4096..8192], [0; 4096], "lost between two good pages");
    assert_eq!(bytes[8192..], [3; 4096], "written again, so flushed again");
}

#[test]
fn after_a_failed_flush_the_cache_may_forget() {
    // Without any crash, memory pressure brings back what the disk has.
    let fs = disk();
    let file = put(&fs, &at("f"), &[1; 4096], 0);
    fs.flush_all(&at("")).unwrap();
    file.write_at(&[IoSlice::new(&[2; 4096])], 0).unwrap();
    fs.fail_flush_after(0);
    assert_eq!(code(fs.flush_all(&at(""))), Some(EIO));
    fs.drop_caches();
    assert_eq!(read_all(&fs, &at("f")), [1; 4096]);
    file.write_at(&[IoSlice::new(&[3; 10])], 0).unwrap();
    fs.drop_caches();
    assert_eq!(
        read_all(&fs, &at("f"))[..10],
        [3; 10],
        "what is dirty stays"
    );
}

#[test]
fn a_failed_folder_flush_leaves_its_names_pending() {
    // Nothing durable, nothing lost; the caller must not believe either.
    let fs = disk();
    put(&fs, &at("f"), b"f", 0).flush().unwrap();
    fs.fail_flush_after(0);
    assert_eq!(code(fs.flush_dir(&at(""))), Some(EIO));
    assert_eq!(names(&fs, ""), ["f"]);
    fs.power_loss().unwrap();
    assert!(names(&fs, "").is_empty());
}

#[test]
fn a_full_disk_cuts_the_write() {
    // Part of the bytes are there, the call says ENOSPC, and space that comes back is used again.
    let fs = disk();
    let file = put(&fs, &at("f"), &[1; 1000], 0);
    put(&fs, &at("g"), &[9; 300], 0);
    fs.limit_free_bytes(Some(500));
    assert_eq!(fs.space(&at("")).unwrap().free_bytes, 500);
    let write = |bytes: &[u8], position| file.write_at(&[IoSlice::new(bytes)], position);
    write(&[2; 1000], 0).unwrap();
    assert_eq!(code(write(&[3; 1000], 900)), Some(ENOSPC));
    let bytes = read_all(&fs, &at("f"));
    assert_eq!(
        (bytes.len(), bytes[899], bytes[900], bytes[1499]),
        (1500, 2, 3, 3)
    );
    assert_eq!(code(write(&[4], 1500)), Some(ENOSPC));
    assert_eq!(code(file.set_len(1501)), Some(ENOSPC));
    assert_eq!(fs.space(&at("")).unwrap().free_bytes, 0);

    file.set_len(1400).unwrap();
    fs.remove_file(&at("g")).unwrap();
    assert_eq!(fs.space(&at("")).unwrap().free_bytes, 400);
    assert_eq!(code(write(&[6], 9000)), Some(ENOSPC));
    let why = "the gap did not fit, so nothing grew";
    assert_eq!(file.len().unwrap(), 1400, "{why}");
    assert_eq!(code(file.set_len(9000)), Some(ENOSPC));
    assert_eq!(fs.space(&at("")).unwrap().free_bytes, 400, "{why}");
    write(&[5; 400], 1400).unwrap();
    fs.limit_free_bytes(None);
    write(&[6], 9000).unwrap();
}

#[test]
fn a_flushed_bit_flips_only_on_request() {
    // Damage below the flushed end: seen by reads at once, and after a crash.
    let fs = disk();
    let file = put(&fs, &at("f"), &[0; 5000], 0);
    assert_eq!(
        fs.flip_bit(&at("f"), 10, 0).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    fs.flush_all(&at("")).unwrap();
    file.write_at(&[IoSlice::new(&[0; 1])], 4999).unwrap();
    fs.flip_bit(&at("f"), 4998, 3).unwrap();
    assert_eq!(
        read_all(&fs, &at("f"))[4998],
        8,
        "also in a page that is dirty"
    );
    assert!(fs.flip_bit(&at("f"), 0, 8).is_err());
    assert!(fs.flip_bit(&at("f"), 5000, 0).is_err());
    file.flush().unwrap();
    fs.power_loss().unwrap();
    let mut wanted = vec![0; 5000];
    wanted[4998] = 8;
    assert_eq!(read_all(&fs, &at("f")), wanted);
}

#[test]
fn a_frozen_system_answers_nothing_until_it_crashes() {
    // Between the moment of the crash and the restart no call may still have an effect.
    let fs = disk();
    let file = put(&fs, &at("f"), b"kept", 0);
    fs.flush_all(&at("")).unwrap();
    fs.freeze();
    let operations = fs.operations();
    assert!(file.write_at(&[IoSlice::new(b"late")], 0).is_err());
    assert!(file.flush().is_err());
    assert!(file.read_at(&mut [0], 0).is_err());
    assert!(fs.rename(&at("f"), &at("g")).is_err());
    assert!(fs.boot_id().is_err());
    assert_eq!(fs.operations(), operations, "it does not even count");
    fs.process_crash();
    assert_eq!(read_all(&fs, &at("f")), b"kept");
}

#[test]
fn the_hook_sees_every_call_and_may_refuse_it() {
    // A fault point: the n-th call of a kind on a path fails, and nothing of it is done.
    let fs = disk();
    type Call = (OpKind, PathBuf, Option<PathBuf>);
    let seen: Arc<Mutex<Vec<Call>>> = Arc::default();
    let log = seen.clone();
    let numbers: Arc<Mutex<Vec<u64>>> = Arc::default();
    let counted = numbers.clone();
    let before = fs.operations();
    fs.set_hook(Some(Arc::new(move |op| {
        log.lock()
            .push((op.kind, op.path.to_owned(), op.to.map(Into::into)));
        counted.lock().push(op.number);
        match op.kind {
            OpKind::Flush if op.path.ends_with("bad") => Err(ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    })));
    let good = put(&fs, &at("good"), b"1", 0);
    good.flush().unwrap();
    let bad = put(&fs, &at("bad"), b"1", 0);
    assert_eq!(bad.flush().unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(fs.durable_len(&at("bad")).unwrap(), 0);
    fs.rename(&at("bad"), &at("worse")).unwrap();
    good.len().unwrap();
    fs.set_hook(None);
    good.len().unwrap();

    use OpKind::{Create, Flush, Len, Rename, Write};
    let call = |kind, name: &str| (kind, at(name), None);
    let wanted = [
        call(Create, "good"),
        call(Write, "good"),
        call(Flush, "good"),
        call(Create, "bad"),
        call(Write, "bad"),
        call(Flush, "bad"),
        (Rename, at("bad"), Some(at("worse"))),
        call(Len, "good"),
    ];
    assert_eq!(*seen.lock(), wanted);
    // The refused flush did not happen, so the rename has its number.
    let after: Vec<u64> = numbers
        .lock()
        .iter()
        .map(|number| number - before)
        .collect();
    assert_eq!(after, [1, 2, 3, 4, 5, 6, 6, 6]);
}

#[test]
fn a_stalled_flush_keeps_nobody_else_waiting() {
    // The hook waits outside the lock: appends and reads go on while a flush hangs.
    let fs = disk();
    let file = put(&fs, &at("f"), b"1", 0);
    let (stalled, is_stalled) = mpsc::channel();
    let (resume, may_resume) = mpsc::channel::<()>();
    let may_resume = Mutex::new(may_resume);
    fs.set_hook(Some(Arc::new(move |op| {
        if op.kind == OpKind::Flush {
            stalled.send(()).map_err(io::Error::other)?;
            may_resume.lock().recv().map_err(io::Error::other)?;
        }
        Ok(())
    })));
    let flusher = std::thread::spawn({
        let file = file.clone();
        move || file.flush()
    });
    is_stalled.recv().unwrap();
    file.write_at(&[IoSlice::new(b"2")], 1).unwrap();
    assert_eq!(fs.durable_len(&at("f")).unwrap(), 0);
    resume.send(()).unwrap();
    flusher.join().unwrap().unwrap();
    assert_eq!(fs.durable_len(&at("f")).unwrap(), 2);
}

#[test]
fn a_call_that_wakes_after_the_crash_does_nothing() {
    // The hook plays a stall; before it ends the machine is down and up again.
    let fs = disk();
    let file = put(&fs, &at("f"), b"old", 0);
    fs.flush_all(&at("")).unwrap();
    let machine = fs.clone();
    fs.set_hook(Some(Arc::new(move |op| match op.kind {
        OpKind::Write => machine.power_loss(),
        _ => Ok(()),
    })));
    assert!(file.write_at(&[IoSlice::new(b"new")], 0).is_err());
    fs.set_hook(None);
    assert_eq!(read_all(&fs, &at("f")), b"old");
}

#[test]
fn a_cold_disk_would_wait() {
    // Readers then go to a worker.
    let fs = disk();
    let file = put(&fs, &at("f"), b"1", 0);
    fs.set_cold(true);
    assert_eq!(file.try_read_at(&mut [0], 0).unwrap(), None);
    assert_eq!(file.read_at(&mut [0], 0).unwrap(), 1);
    fs.set_cold(false);
    assert_eq!(file.try_read_at(&mut [0], 0).unwrap(), Some(1));
}

#[test]
fn time_and_mount_are_what_the_test_says() {
    // Retention reads the file's time after a crash; recovery compares mounts.
    let fs = disk();
    fs.set_time_ms(1000);
    let file = put(&fs, &at("f"), b"1", 0);
    fs.flush_all(&at("")).unwrap();
    fs.set_time_ms(2000);
    file.write_at(&[IoSlice::new(b"2")], 0).unwrap();
    assert_eq!(file.modified_ms().unwrap(), 2000);
    fs.power_loss().unwrap();
    assert_eq!(
        fs.open(&at("f"), false).unwrap().modified_ms().unwrap(),
        1000
    );
    fs.set_mount_id("another");
    assert_eq!(fs.mount_id(&at("")).unwrap(), "another");
}
