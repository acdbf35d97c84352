//! The model keeps what it promises to keep, loses what it may lose, and harms
//! nothing else.

use std::path::Path;

use super::PowerLossFs;
use crate::fs::LogFs;

mod durability;
mod faults;
mod losses;
mod properties;

/// An empty disk with the durable folder `/d`.
fn disk() -> PowerLossFs {
    seeded(42)
}

fn seeded(seed: u64) -> PowerLossFs {
    let fs = PowerLossFs::in_memory(seed);
    fs.create_dir_all(&at("")).expect("a folder");
    fs.flush_all(Path::new("/")).expect("a flush");
    fs
}

fn at(name: &str) -> std::path::PathBuf {
    Path::new("/d").join(name)
}

fn names(fs: &dyn LogFs, folder: &str) -> Vec<String> {
    let entries = fs.list(&at(folder)).expect("a folder");
    entries.into_iter().map(|entry| entry.name).collect()
}
