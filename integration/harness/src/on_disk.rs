//! What lies on a node's disk, for tests that damage it.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// The folder of a partition of topic `id` on a node.
pub fn replica(data: &Path, id: &[u8], partition: u32) -> PathBuf {
    let id = uuid::Uuid::from_slice(id).expect("16 bytes");
    data.join(format!("{id}-{partition}"))
}

/// The segment files of a replica, in offset order.
pub fn segments(replica: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(replica).expect("a replica");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut segments: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|kind| kind == "log"))
        .collect();
    segments.sort();
    segments
}

/// One bit of a file is another.
pub fn flip(file: &Path, position: u64) {
    let file = File::options()
        .read(true)
        .write(true)
        .open(file)
        .expect("a file");
    let mut byte = [0];
    file.read_exact_at(&mut byte, position).expect("read");
    file.write_all_at(&[byte[0] ^ 0x10], position)
        .expect("written");
}
