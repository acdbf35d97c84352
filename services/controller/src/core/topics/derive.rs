//! Retry and dead-letter topics of groups: as their source, made once, and nobody
//! else's. They outlive their source: what failed of it can still be looked at.

use crate::core::{
    Core, CreateTopic, DeriveTopic, Derived, Life, Now, Refusal, Reply, Topic, jobs::Progress,
    requests::Next,
};
use std::collections::BTreeMap;
use talweg_types::{NameError, TopicConfig, check_name, limits};

/// A copy carries headers that say where it failed and why.
const HEADER_ROOM_BYTES: u32 = 16 * 1024;
/// What a copy inherits as it is. Not the cleanup policy: a failed record is not
/// taken back by a newer one of its key.
const INHERITED: [&str; 10] = [
    "compression.type",
    "durability",
    "idempotency.window.ms",
    "max.unpacked.batch.bytes",
    "min.insync.replicas",
    "producer.id.expiration.ms",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.ms",
];

impl Core {
    pub(in crate::core) fn plan_derive(
        &mut self,
        now: Now,
        derive: &DeriveTopic,
        progress: &mut Progress,
    ) -> Result<Next, Refusal> {
        let named = |name: &str, why: NameError| Refusal::InvalidName {
            name: name.into(),
            why,
        };
        for name in [&derive.group, &derive.name] {
            check_name(name).map_err(|why| named(name, why))?;
        }
        let derived = Derived {
            source: derive.source,
            group: derive.group.clone(),
        };
        if let Some((id, topic)) = self.view.topic_by_name(&derive.name) {
            if topic.derived.as_ref() != Some(&derived) {
                return Err(Refusal::NameConflict {
                    name: derive.name.clone(),
                    group: derive.group.clone(),
                });
            }
            if topic.life == Life::Ready {
                return Ok(Next::Reply(Reply::Created(self.answer(id, Vec::new())?)));
            }
        }
        let source = self.view.visible_topic(derive.source);
        let source = source.ok_or(Refusal::UnknownTopicId { id: derive.source })?;
        super::refuse_internal(&source.name)?;
        if source.derived.is_some() {
            let name = &source.name;
            let reason = format!(
                "{name:?} is a retry or dead-letter topic itself; what fails of it has no topic"
            );
            return Err(Refusal::InvalidArgument {
                field: "source_topic_id",
                reason,
            });
        }
        let create = like(source, derive);
        self.plan_create(now, &create, Some(&derived), progress)
    }
}

fn like(source: &Topic, derive: &DeriveTopic) -> CreateTopic {
    let count = |count: u32| Some(i32::try_from(count).unwrap_or(i32::MAX));
    CreateTopic {
        name: derive.name.clone(),
        partitions: count(source.partitions),
        replication_factor: count(source.replication_factor),
        config: config_like(source),
        idempotency_key: String::new(),
        id: derive.id,
    }
}

fn config_like(source: &Topic) -> BTreeMap<String, String> {
    let inherited = source.config.iter();
    let inherited = inherited.filter(|(key, _)| INHERITED.contains(&key.as_str()));
    let mut config: BTreeMap<_, _> = inherited
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let of = TopicConfig::resolve_stored(&source.config);
    for (key, bytes, range) in [
        (
            "max.message.bytes",
            of.max_message_bytes,
            limits::MAX_MESSAGE_BYTES_RANGE,
        ),
        (
            "max.record.bytes",
            of.max_record_bytes,
            limits::MAX_RECORD_BYTES_RANGE,
        ),
    ] {
        let bytes = bytes.saturating_add(HEADER_ROOM_BYTES).min(range.1);
        config.insert(key.into(), bytes.to_string());
    }
    config
}
