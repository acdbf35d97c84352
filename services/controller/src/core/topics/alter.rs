//! Growth and settings. All is checked first; the new partition count comes into
//! force, with the settings, once its partitions are written.

use super::{Creation, refuse_internal};
use crate::core::{
    AlterTopic, CHANGES_PER_WRITE, Change, Core, Life, Now, Refusal, Reply, Topic, Value,
    jobs::Progress, reconcile::put, requests::Next,
};
use std::collections::BTreeMap;
use talweg_metastore::keys::Key;
use talweg_types::{
    TopicConfig, TopicId,
    topic_config::{self, ConfigError},
};

impl Core {
    pub(in crate::core) fn plan_alter(
        &mut self,
        now: Now,
        alter: &AlterTopic,
        progress: &mut Progress,
    ) -> Result<Next, Refusal> {
        let name = &alter.name;
        refuse_internal(name)?;
        let (id, topic) = self
            .view
            .topic_by_name(name)
            .ok_or_else(|| Refusal::UnknownTopic { name: name.clone() })?;
        if topic.life == Life::Creating {
            return Err(Refusal::TopicNotReady { name: name.clone() });
        }
        let after = self.altered(now, topic, alter)?;
        if after.partitions > topic.partitions && !matches!(progress, Progress::Creating(_)) {
            let more = after.partitions - topic.partitions;
            let placed = self.place(more, after.replication_factor)?;
            *progress = Progress::Creating(Creation {
                first: topic.partitions,
                placed,
            });
        }
        if let Progress::Creating(creation) = progress {
            let partitions = self.missing_partitions(id, after.partitions, creation);
            if !partitions.is_empty() {
                return Ok(Next::Write(partitions));
            }
        }
        if after != *topic {
            if let Some(changes) = self.plan_minimum(id, &after) {
                return Ok(Next::Write(changes));
            }
            return Ok(Next::Write(vec![Change::put(
                Key::Topic(id),
                Value::Topic(after),
            )]));
        }
        let grown = matches!(progress, Progress::Creating(_));
        let warnings = grown.then(|| {
            "keys will move: records of a key written from now on may be in another partition than \
             earlier ones"
                .to_owned()
        });
        Ok(Next::Reply(Reply::Altered(
            self.answer(id, warnings.into_iter().collect())?,
        )))
    }

    /// Partitions with eligible replicas and enough in sync for a new, lower
    /// minimum: from then on the watermark passes them by, so they go first.
    fn plan_minimum(&self, id: TopicId, after: &Topic) -> Option<Vec<Change>> {
        let config = TopicConfig::resolve_stored(&after.config);
        let minimum = config.min_insync_at(after.replication_factor) as usize;
        let emptied = self.view.partitions_of(id).filter_map(|(tp, before)| {
            let enough = before.in_sync.len() >= minimum && !before.eligible.is_empty();
            let mut next = enough.then(|| before.clone())?;
            next.settle(minimum);
            Some(put(tp, next.after(before)?))
        });
        let changes: Vec<_> = emptied.take(CHANGES_PER_WRITE).collect();
        (!changes.is_empty()).then_some(changes)
    }

    /// The topic as asked for.
    fn altered(&self, now: Now, topic: &Topic, alter: &AlterTopic) -> Result<Topic, Refusal> {
        let mut after = topic.clone();
        after.config = altered_config(topic, alter)?;
        let Some(count) = alter.partitions else {
            return Ok(after);
        };
        let count = self.checked_count(count)?;
        if count < topic.partitions {
            let reason = format!(
                "partitions are never removed: topic {:?} has {}, asked for {count}",
                topic.name, topic.partitions
            );
            return Err(Refusal::InvalidPartitions { reason });
        }
        if count > topic.partitions {
            after.earlier.push((topic.partitions, now.wall));
            after.partitions = count;
        }
        Ok(after)
    }
}

/// Settings with some set and some back at their default; all of them allowed.
fn altered_config(topic: &Topic, alter: &AlterTopic) -> Result<BTreeMap<String, String>, Refusal> {
    let mut after = topic.config.clone();
    for key in &alter.reset {
        if alter.set.contains_key(key) {
            let reason = format!("{key} is both set and set back to its default");
            return Err(Refusal::InvalidArgument {
                field: "reset_config",
                reason,
            });
        }
        if topic_config::find(key).is_none() {
            let unknown = ConfigError::Unknown { key: key.clone() };
            return Err(Refusal::Config(unknown));
        }
        after.remove(key);
    }
    after.extend(alter.set.clone());
    TopicConfig::resolve(&after)?.check_at(topic.replication_factor)?;
    Ok(after)
}
