//! The member's topics: those it named and the group's retry topics of them, as
//! they are now, and as the coordinator knows them.

use super::{
    Core, Effect, Request,
    fault::{Fault, planted},
};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_types::limits;

/// After a join that failed.
const AGAIN_MS: u64 = 1_000;
/// After one that the coordinator will not have as it is.
const REFUSED_AGAIN_MS: u64 = 60_000;

/// The topics that a member is to have.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    pub names: Vec<String>,
    /// Retry topics of the group that are beyond the most that a member has.
    pub left_out: usize,
}

impl From<Vec<String>> for Wanted {
    fn from(names: Vec<String>) -> Self {
        Self { names, left_out: 0 }
    }
}

#[derive(Default)]
pub(super) struct Topics {
    wanted: Vec<String>,
    /// As the client was told.
    left_out: usize,
    /// Why the newest join was refused for good, as the client was told.
    refused: Option<Refusal>,
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
            ..Self::default()
        }
    }
}

impl Core {
    pub(super) fn on_topics(&mut self, Wanted { names, left_out }: Wanted) {
        self.topics.wanted = names;
        let before = std::mem::replace(&mut self.topics.left_out, left_out);
        if left_out > before {
            self.say_left_out(left_out);
        }
    }

    fn say_left_out(&mut self, left_out: usize) {
        let max = limits::SUBSCRIBED_TOPICS_MAX;
        let why = format!(
            "{left_out} retry topics of the group are not read by this member, which has {max} \
             topics already; failed records wait there until members with fewer topics read them"
        );
        let (most, all) = (max as u64, (max + left_out) as u64);
        let refusal = Refusal::new(ErrorCode::LimitExceeded, why);
        self.lacks(&refusal.with_limit("topics", most, all, "topics"));
    }

    /// The member goes on without something: said to its client and to the operator.
    fn lacks(&mut self, refusal: &Refusal) {
        self.effects.push(Effect::Warn(refusal.clone()));
        self.tell_refused_frame(refusal);
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
            ..
        } = &self.topics;
        (wanted != told && !self.leaving && self.now < *after_ms).then_some(*after_ms)
    }

    pub(super) fn on_rejoined(&mut self, topics: Vec<String>, refused: Option<&Refusal>) {
        self.rejoining = false;
        let Some(refusal) = refused else {
            self.topics.told = topics;
            self.topics.refused = None;
            return;
        };
        let pause = if refusal.is_retriable() {
            AGAIN_MS
        } else {
            self.say_refused(refusal);
            REFUSED_AGAIN_MS
        };
        self.topics.after_ms = self.now.saturating_add(pause);
    }

    /// Once, however often it is refused again.
    fn say_refused(&mut self, refusal: &Refusal) {
        if self.topics.refused.as_ref() == Some(refusal) {
            return;
        }
        self.topics.refused = Some(refusal.clone());
        let mut said = refusal.clone();
        said.message = format!(
            "the group's retry topics are not all read by this member, failed records wait there: {}",
            refusal.message
        );
        self.lacks(&said);
    }
}
