//! The partition log as a whole, on the power-loss file system. One binary, so
//! that it links once; each module says its story.

mod append_and_read;
mod backlog;
mod common;
mod compaction;
mod damage;
mod disk_trouble;
mod dump;
mod fences;
mod following;
mod index;
mod power_loss;
mod producers;
mod repair;
mod retention;
mod sidecars;
mod torn_tail;
