//! What processes hold, before a fault and after it.

use crate::{Stack, eventually};
use std::{collections::BTreeMap, time::Duration};

/// Allowed above the level before: connections that end with their time-outs.
const DESCRIPTORS: u64 = 48;
/// Blocking threads end ten seconds after their last work.
const THREADS: u64 = 24;
/// Memory of an allocator that keeps what it has for the next burst, caches that have filled.
const MEMORY_BYTES: u64 = 96 << 20;
const SETTLE: Duration = Duration::from_secs(40);

#[derive(Clone, Copy, Debug)]
struct Held {
    descriptors: u64,
    threads: u64,
    memory_bytes: u64,
}

/// By process.
#[derive(Clone, Debug)]
pub struct Level(BTreeMap<String, Held>);

impl Level {
    /// As it is now.
    pub fn of(stack: &mut Stack) -> Self {
        let held = stack.processes().map(|process| {
            let held = Held {
                descriptors: process.descriptors(),
                threads: process.threads(),
                memory_bytes: process.private_bytes(),
            };
            (process.name().to_owned(), held)
        });
        Self(held.collect())
    }

    /// Waits until every process holds no more than it did, with the slack above.
    pub async fn is_back(&self, stack: &mut Stack) {
        let stack = std::cell::RefCell::new(stack);
        eventually("the level before", SETTLE, || async {
            let now = Self::of(&mut stack.borrow_mut());
            let above: Vec<_> = self
                .0
                .iter()
                .filter_map(|(name, before)| {
                    let now = now.0.get(name)?;
                    let too_much = now.descriptors > before.descriptors + DESCRIPTORS
                        || now.threads > before.threads + THREADS
                        || now.memory_bytes > before.memory_bytes + MEMORY_BYTES;
                    too_much.then(|| format!("{name}: {before:?} → {now:?}"))
                })
                .collect();
            if above.is_empty() {
                Ok(())
            } else {
                Err(above.join("; "))
            }
        })
        .await;
    }
}
