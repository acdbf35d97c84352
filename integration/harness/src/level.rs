//! What processes hold, before a fault and after it.

use crate::{Process, Stack, eventually};
use std::{collections::BTreeMap, time::Duration};

/// Allowed above the level before: connections that end with their time-outs.
const DESCRIPTORS: u64 = 48;
/// Blocking threads end ten seconds after their last work.
const THREADS: u64 = 24;
/// Those of connections that end with their time-outs.
const TASKS: u64 = 96;
/// Memory of an allocator that keeps what it has for the next burst, caches that have filled.
const MEMORY_BYTES: u64 = 96 << 20;
const SETTLE: Duration = Duration::from_secs(40);

#[derive(Clone, Copy, Debug)]
struct Held {
    descriptors: u64,
    threads: u64,
    /// 0 of a program that does not show them.
    tasks: u64,
    memory_bytes: u64,
}

impl Held {
    async fn by(process: &Process) -> Result<Self, String> {
        let tasks = process.figure("talweg_process_tasks").await?;
        Ok(Self {
            descriptors: process.descriptors(),
            threads: process.threads(),
            tasks: tasks.unwrap_or_default() as u64,
            memory_bytes: process.private_bytes(),
        })
    }

    fn is_above(&self, before: &Self) -> bool {
        self.descriptors > before.descriptors + DESCRIPTORS
            || self.threads > before.threads + THREADS
            || self.tasks > before.tasks + TASKS
            || self.memory_bytes > before.memory_bytes + MEMORY_BYTES
    }
}

/// By process. One that was started anew in between is held to what the one before
/// it held, with the same slack: it begins with less.
#[derive(Clone, Debug)]
pub struct Level(BTreeMap<String, Held>);

impl Level {
    /// As it is now.
    pub async fn of(stack: &mut Stack) -> Self {
        let level = Self::now(stack).await;
        level.unwrap_or_else(|why| panic!("the level before: {why}"))
    }

    async fn now(stack: &mut Stack) -> Result<Self, String> {
        let mut held = BTreeMap::new();
        for process in stack.processes() {
            held.insert(process.name().to_owned(), Held::by(process).await?);
        }
        Ok(Self(held))
    }

    /// Waits until every process is there and holds no more than it did, with the
    /// slack above.
    pub async fn is_back(&self, stack: &mut Stack) {
        let stack = tokio::sync::Mutex::new(stack);
        eventually("the level before", SETTLE, || async {
            let now = Self::now(*stack.lock().await).await?;
            match now.above(self) {
                above if above.is_empty() => {
                    now.tell(self);
                    Ok(())
                }
                above => Err(above.join("; ")),
            }
        })
        .await;
    }

    /// For whoever looks for a slow leak below the slack.
    fn tell(&self, before: &Self) {
        for (name, now) in &self.0 {
            println!("{name}: {:?} → {now:?}", before.0.get(name));
        }
    }

    fn above(&self, before: &Self) -> Vec<String> {
        let judged = before.0.iter().filter_map(|(name, before)| {
            let Some(now) = self.0.get(name) else {
                return Some(format!("{name} does not run"));
            };
            now.is_above(before)
                .then(|| format!("{name}: {before:?} → {now:?}"))
        });
        judged.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(tasks: u64, descriptors: u64) -> Level {
        let held = Held {
            descriptors,
            threads: 10,
            tasks,
            memory_bytes: 1 << 20,
        };
        Level(BTreeMap::from([("gateway-0".to_owned(), held)]))
    }

    #[test]
    fn what_is_held_above_the_slack_is_told() {
        let before = level(100, 50);
        assert_eq!(level(100 + TASKS, 50).above(&before), Vec::<String>::new());
        assert_eq!(level(101 + TASKS, 50).above(&before).len(), 1);
        assert_eq!(level(100, 51 + DESCRIPTORS).above(&before).len(), 1);
        let gone = Level(BTreeMap::new());
        assert_eq!(gone.above(&before), ["gateway-0 does not run"]);
    }
}
