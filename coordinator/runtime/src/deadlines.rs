//! One order of all machines' deadlines, instead of a timer for each.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use talweg_types::MonotonicMs;

#[derive(Default)]
pub(crate) struct Deadlines {
    order: BTreeSet<(MonotonicMs, Arc<str>)>,
    by_name: BTreeMap<Arc<str>, MonotonicMs>,
}

impl Deadlines {
    pub fn set(&mut self, name: &Arc<str>, due: Option<MonotonicMs>) {
        let before = match due {
            Some(due) => self.by_name.insert(Arc::clone(name), due),
            None => self.by_name.remove(name),
        };
        if before == due {
            return;
        }
        if let Some(before) = before {
            self.order.remove(&(before, Arc::clone(name)));
        }
        if let Some(due) = due {
            self.order.insert((due, Arc::clone(name)));
        }
    }

    pub fn next(&self) -> Option<MonotonicMs> {
        self.order.first().map(|(due, _)| *due)
    }

    pub fn due(&self, now: MonotonicMs) -> Vec<Arc<str>> {
        let due = self.order.iter().take_while(|(due, _)| *due <= now);
        due.map(|(_, name)| Arc::clone(name)).collect()
    }
}
