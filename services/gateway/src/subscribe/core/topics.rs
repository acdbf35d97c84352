//! The member's topics: those it named and the group's retry topics of them, as
//! they are now, and as the coordinator knows them.

use super::{
    Core, Request,
    fault::{Fault, planted},
};
use talweg_kit::errors::Refusal;

/// After a join that failed.
const AGAIN_MS: u64 = 1_000;
/// After one that the coordinator will not have as it is.
const REFUSED_AGAIN_MS: u64 = 60_000;

#[derive(Default)]
pub(super) struct Topics {
    wanted: Vec<String>,
    /// Of the newest join that succeeded.
    told: Vec<String>,
    /// No join before this.
    after_ms: u64,
}

impl Topics {
    pub fn joined(topics: Vec<String>) -> Self {
        Self {
            wanted: topics.clone(),
            told: topics,
            after_ms: 0,
        }
    }
}

impl Core {
    pub(super) fn on_topics(&mut self, topics: Vec<String>) {
        self.topics.wanted = topics;
    }

    /// Joins again while the coordinator knows other topics; one join at a time.
    /// Topics that appear while one is under way are seen when it is answered.
    pub(super) fn join_again(&mut self) {
        let Topics { wanted, told, .. } = &self.topics;
        let rejoin = |it: &Request| matches!(it, Request::Rejoin(_));
        let under_way = self.queue.iter().any(rejoin) || self.asked_to_rejoin();
        if wanted == told || under_way || self.leaving || self.now < self.topics.after_ms {
            return;
        }
        self.rejoining = true;
        self.queue.push_back(Request::Rejoin(wanted.clone()));
        if planted(Fault::JoinTakenForDone) {
            self.topics.told.clone_from(&self.topics.wanted);
        }
    }

    /// When a join is to be tried again.
    pub(super) fn join_due(&self) -> Option<u64> {
        let Topics {
            wanted,
            told,
            after_ms,
        } = &self.topics;
        (wanted != told && !self.leaving && self.now < *after_ms).then_some(*after_ms)
    }

    pub(super) fn on_rejoined(&mut self, topics: Vec<String>, refused: Option<&Refusal>) {
        self.rejoining = false;
        let Some(refusal) = refused else {
            self.topics.told = topics;
            return;
        };
        let pause = if refusal.is_retriable() {
            AGAIN_MS
        } else {
            REFUSED_AGAIN_MS
        };
        self.topics.after_ms = self.now.saturating_add(pause);
    }
}
