//! Topics: created, grown, configured, deleted.
//!
//! What clients see changes in one transaction each time, the commit point:
//! `creating` → `ready`, a higher partition count, a name given up for a
//! tombstone. Partition keys are written before it, or removed after it, in as
//! many transactions as it takes; [`super::Job::Tidy`] finishes what is left
//! over.

mod alter;
mod create;
mod delete;
mod derive;

pub use create::Creation;
pub(super) use create::new_topic;

use super::{Change, Core, Refusal, TopicAnswer};
use talweg_types::{Durability, TopicConfig, TopicId, is_internal};

/// Clients change no topic of ours.
fn refuse_internal(name: &str) -> Result<(), Refusal> {
    match is_internal(name) {
        true => Err(Refusal::InternalTopic { name: name.into() }),
        false => Ok(()),
    }
}

impl Core {
    /// The next transaction that finishes something left half done.
    pub(super) fn plan_tidy(&self) -> Option<Vec<Change>> {
        self.tidy_creations().or_else(|| self.tidy_tombstones())
    }

    /// A topic as it is answered, with what people should know.
    fn answer(&self, id: TopicId, mut warnings: Vec<String>) -> Result<TopicAnswer, Refusal> {
        let topic = self
            .view
            .visible_topic(id)
            .ok_or(Refusal::UnknownTopicId { id })?
            .clone();
        let config = TopicConfig::resolve_stored(&topic.config);
        if topic.replication_factor == 2 && config.min_insync_at(2) == 1 {
            warnings.push(
                "min.insync.replicas=1 with two replicas: while one of them is away, acknowledged \
                 records are on one node only"
                    .to_owned(),
            );
        }
        if config.durability == Some(Durability::Replicated) && topic.replication_factor == 1 {
            warnings.push(
                "durability=replicated with one replica: a power loss may take acknowledged \
                 records that were not flushed yet"
                    .to_owned(),
            );
        }
        Ok(TopicAnswer {
            id,
            topic,
            warnings,
        })
    }
}
