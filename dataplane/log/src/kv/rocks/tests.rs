//! Opening, losing and sharing a database's folder.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use bytes::Bytes;

use super::{RocksKv, RocksKvConfig, set_aside_path};
use crate::kv::{IndexKv, KvError, KvOp};

const KEY: &[u8] = b"key";

fn open(folder: &Path) -> Result<RocksKv, KvError> {
    RocksKv::open(folder, RocksKvConfig::default())
}

fn put(kv: &RocksKv, value: &'static [u8]) {
    let op = KvOp::Put(Bytes::from_static(KEY), Bytes::from_static(value));
    kv.write(vec![op]).expect("a write");
}

/// A closed database that holds `value`.
fn database(folder: &Path, value: &'static [u8]) {
    let kv = open(folder).expect("a database");
    put(&kv, value);
    kv.flush().expect("a flush");
}

/// Files of the database whose names start so.
fn files(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let named = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with(prefix))
    };
    paths.filter(named).collect()
}

#[test]
fn a_clean_stop_keeps_the_index() {
    // Without a write-ahead log, the flush at the end is what spares a rebuild.
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("index");
    database(&folder, b"1");
    let kv = open(&folder).unwrap();
    assert_eq!(kv.get(KEY).unwrap(), Some(Bytes::from_static(b"1")));
    assert!(kv.memory_bytes() > 0);
    assert!(!set_aside_path(&folder).exists());
}

#[test]
fn a_damaged_database_is_set_aside() {
    // The log has everything: an index that cannot be opened must not keep the node down, and only one is kept.
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("index");
    for round in [b"1", b"2"] {
        database(&folder, round);
        for manifest in files(&folder, "MANIFEST") {
            std::fs::write(manifest, b"not a manifest").unwrap();
        }
        let kv = open(&folder).unwrap();
        assert_eq!(
            kv.get(KEY).unwrap(),
            None,
            "an empty database took its place"
        );
        assert!(!files(&set_aside_path(&folder), "MANIFEST").is_empty());
        drop(kv);
        assert_eq!(
            std::fs::read_dir(folder.parent().unwrap()).unwrap().count(),
            2
        );
    }
}

#[test]
fn missing_pieces_are_set_aside_too() {
    // Half a deletion: the current file is gone, or a table that the manifest names.
    for prefix in ["CURRENT", "0"] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("index");
        database(&folder, b"1");
        let found = files(&folder, prefix);
        assert!(!found.is_empty());
        found
            .into_iter()
            .for_each(|file| std::fs::remove_file(file).unwrap());
        let kv = open(&folder).unwrap();
        assert_eq!(kv.get(KEY).unwrap(), None);
        put(&kv, b"2");
        assert_eq!(kv.get(KEY).unwrap(), Some(Bytes::from_static(b"2")));
    }
}

#[test]
fn a_file_in_the_way_is_set_aside() {
    // Whatever stands at the index's place, the node starts.
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("index");
    std::fs::write(&folder, b"a file").unwrap();
    drop(open(&folder).unwrap());
    assert_eq!(std::fs::read(set_aside_path(&folder)).unwrap(), b"a file");
}

#[test]
fn a_second_opening_is_refused() {
    // Two owners in one process: an error, and the first goes on undisturbed.
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("index");
    let kv = open(&folder).unwrap();
    put(&kv, b"1");
    let error = open(&folder).err().expect("held");
    assert!(error.to_string().contains("lock"), "{error}");
    assert!(!set_aside_path(&folder).exists());
    kv.flush().unwrap();
    assert_eq!(kv.get(KEY).unwrap(), Some(Bytes::from_static(b"1")));
}

/// Set for the child of the test below: the folder that it holds until its input ends.
const HOLD: &str = "TALWEG_TEST_HOLD_INDEX";

#[test]
fn a_database_of_another_process_is_never_touched() {
    // A second node started on the same folder by mistake must not take the first one's index away.
    if let Some(folder) = std::env::var_os(HOLD) {
        let kv = open(Path::new(&folder)).unwrap();
        put(&kv, b"1");
        println!("\nheld");
        std::io::stdout().flush().unwrap();
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("index");
    let test = "a_database_of_another_process_is_never_touched";
    let module = module_path!().split_once("::").unwrap().1;
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{module}::{test}"), "--nocapture"])
        .env(HOLD, &folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Kept open to the end: the child writes to it once more.
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(
        output.any(|line| line.unwrap() == "held"),
        "the child opened it"
    );
    let error = open(&folder).err().expect("held by the child");
    assert!(!set_aside_path(&folder).exists(), "{error}");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert_eq!(
        open(&folder).unwrap().get(KEY).unwrap(),
        Some(Bytes::from_static(b"1"))
    );
}

#[test]
fn a_lost_memtable_leaves_an_earlier_state() {
    // What a kill leaves is the state after some earlier write, whole, never half of one.
    let folder = tempfile::tempdir().unwrap();
    let (folder, copy) = (folder.path().join("index"), folder.path().join("copy"));
    let kv = open(&folder).unwrap();
    put(&kv, b"flushed");
    kv.flush().unwrap();
    put(&kv, b"in memory");
    // Its files as a kill would leave them.
    std::fs::create_dir(&copy).unwrap();
    for file in files(&folder, "") {
        std::fs::copy(&file, copy.join(file.file_name().unwrap())).unwrap();
    }
    assert_eq!(
        open(&copy).unwrap().get(KEY).unwrap(),
        Some(Bytes::from_static(b"flushed"))
    );
    assert!(!set_aside_path(&copy).exists());
}
