//! Retry and dead-letter topics: their names, and the headers of records in them.

use std::collections::BTreeMap;
use talweg_client::view::{TopicView, View};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1::{FetchedRecord, Header};
use talweg_types::{TopicId, limits};

/// A record is not delivered before this, milliseconds since 1970, as decimal text.
pub const DUE_HEADER: &str = "talweg-retry-due-ms";
const RETRY_PREFIX: &str = "talweg-retry-";
const DLQ_PREFIX: &str = "talweg-dlq-";

/// Topic of the `n`th retry, from 1.
pub fn retry_topic(source: &str, group: &str, n: usize) -> String {
    format!("{source}.{group}.retry.{n}")
}

/// Topic of the dead letters.
pub fn dead_letter_topic(source: &str, group: &str) -> String {
    format!("{source}.{group}.dlq")
}

/// The topic is a retry topic of this group.
pub fn is_retry_of(topic: &TopicView, group: &str) -> bool {
    is_derived(topic)
        && topic.topic.derived_for_group == group
        && !topic.topic.name.ends_with(".dlq")
}

/// A retry or dead-letter topic of some group.
pub fn is_derived(topic: &TopicView) -> bool {
    !topic.topic.derived_from_topic_id.is_empty()
}

/// The group's retry topics of the sources that `wanted` names.
pub fn retry_topics(view: &View, group: &str, wanted: impl Fn(&TopicView) -> bool) -> Vec<String> {
    let mut names = Vec::new();
    for topic in view.topics().filter(|topic| is_retry_of(topic, group)) {
        let source = TopicId::from_slice(&topic.topic.derived_from_topic_id);
        let source = source.and_then(|id| view.topic(id));
        if source.is_some_and(|source| !is_derived(source) && wanted(source)) {
            names.push(topic.topic.name.clone());
        }
    }
    names
}

/// NAME_CONFLICT if one of the names that records of `source` would go to is too
/// long or another's.
pub fn check_names(
    view: &View,
    source: &TopicView,
    group: &str,
    retries: usize,
) -> Result<(), Refusal> {
    let name = &source.topic.name;
    let retries = (1..=retries).map(|n| retry_topic(name, group, n));
    for derived in retries.chain([dead_letter_topic(name, group)]) {
        let conflict = |why: String| Refusal::new(ErrorCode::NameConflict, why);
        if derived.len() > limits::NAME_BYTES_MAX {
            let why = format!(
                "the derived topic {derived:?} would have {} bytes, a name has at most {}",
                derived.len(),
                limits::NAME_BYTES_MAX
            );
            return Err(conflict(why).with_limit(
                "name",
                limits::NAME_BYTES_MAX as u64,
                derived.len() as u64,
                "bytes",
            ));
        }
        if let Some(other) = view.by_name(&derived) {
            let ours = other.topic.derived_from_topic_id[..] == source.id.as_bytes()[..]
                && other.topic.derived_for_group == group;
            if !ours {
                let why =
                    format!("{derived:?} is a topic of its own; failed records need the name");
                return Err(conflict(why));
            }
        }
    }
    Ok(())
}

/// When a record of a retry topic is due, milliseconds since 1970; one without a
/// header that can be read is due at once.
pub fn due_ms<'a>(headers: impl IntoIterator<Item = (&'a [u8], Option<&'a [u8]>)>) -> i64 {
    headers
        .into_iter()
        .find(|(name, _)| *name == DUE_HEADER.as_bytes())
        .and_then(|(_, value)| std::str::from_utf8(value?).ok()?.parse().ok())
        .unwrap_or(0)
}

/// [`due_ms`] of a record in thin form.
pub fn due_of(record: &FetchedRecord) -> i64 {
    due_ms(
        record
            .headers
            .iter()
            .map(|it| (it.name.as_bytes(), it.value.as_deref())),
    )
}

/// Where a failed record came from, and how often it was tried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    pub topic: String,
    pub partition: u32,
    pub offset: i64,
    pub timestamp_ms: i64,
    /// Attempts before the one that failed now.
    pub attempts: u32,
}

impl Origin {
    /// Of a record in its source topic, or in a retry topic, whose headers say it.
    pub fn of(topic: &str, partition: u32, retry: bool, record: &FetchedRecord) -> Self {
        let here = Self {
            topic: topic.to_owned(),
            partition,
            offset: record.offset,
            timestamp_ms: record.timestamp_ms,
            attempts: 0,
        };
        if !retry {
            return here;
        }
        let said: BTreeMap<&str, &str> = record
            .headers
            .iter()
            .filter_map(|it| {
                let name = it.name.strip_prefix(RETRY_PREFIX)?;
                Some((name, std::str::from_utf8(it.value.as_deref()?).ok()?))
            })
            .collect();
        let number = |name: &str| said.get(name).and_then(|text| text.parse::<i64>().ok());
        Self {
            topic: said
                .get("source-topic")
                .map_or(here.topic, |it| (*it).to_owned()),
            partition: number("source-partition")
                .and_then(|it| u32::try_from(it).ok())
                .unwrap_or(here.partition),
            offset: number("source-offset").unwrap_or(here.offset),
            timestamp_ms: number("source-timestamp").unwrap_or(here.timestamp_ms),
            attempts: number("attempts")
                .and_then(|it| u32::try_from(it).ok())
                .unwrap_or(0),
        }
    }

    /// The headers of the copy in a retry topic.
    pub fn retry_headers(&self, group: &str, reason: &str, due_ms: i64) -> Vec<Header> {
        let mut headers = self.headers(RETRY_PREFIX, "source-", group, reason);
        headers.push(header(DUE_HEADER, &due_ms.to_string()));
        headers
    }

    /// The headers of the copy in the dead-letter topic.
    pub fn dead_letter_headers(&self, group: &str, reason: &str) -> Vec<Header> {
        let mut headers = self.headers(DLQ_PREFIX, "", group, reason);
        headers[0].name = format!("{DLQ_PREFIX}source-topic");
        headers
    }

    fn headers(&self, prefix: &str, place: &str, group: &str, reason: &str) -> Vec<Header> {
        let named = |name: &str, value: &str| header(&format!("{prefix}{name}"), value);
        vec![
            named(&format!("{place}topic"), &self.topic),
            named(&format!("{place}partition"), &self.partition.to_string()),
            named(&format!("{place}offset"), &self.offset.to_string()),
            named(&format!("{place}timestamp"), &self.timestamp_ms.to_string()),
            named("attempts", &self.attempts.to_string()),
            named("reason", reason),
            named("group", group),
        ]
    }
}

/// The record's own headers, without those of earlier copies.
pub fn own_headers(headers: &[Header]) -> Vec<Header> {
    let own = headers
        .iter()
        .filter(|it| !it.name.starts_with(RETRY_PREFIX) && !it.name.starts_with(DLQ_PREFIX));
    own.cloned().collect()
}

fn header(name: &str, value: &str) -> Header {
    Header {
        name: name.to_owned(),
        value: Some(bytes::Bytes::copy_from_slice(value.as_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Story: a record fails, waits in a retry topic, fails again and becomes a
    /// dead letter; the dead letter says where it came from at first.
    #[test]
    fn a_copy_of_a_copy_knows_the_first_place() {
        let mut record = FetchedRecord {
            offset: 41,
            timestamp_ms: 7,
            headers: vec![header("a", "1"), header("a", "2")],
            ..Default::default()
        };
        let mut origin = Origin::of("orders", 3, false, &record);
        assert_eq!(origin.attempts, 0);
        origin.attempts = 1;
        record
            .headers
            .extend(origin.retry_headers("g", "broken", 99));
        (record.offset, record.timestamp_ms) = (0, 1_000);
        assert_eq!(due_of(&record), 99);
        let again = Origin::of("orders.g.retry.1", 3, true, &record);
        assert_eq!(again, origin);
        let names: Vec<String> = again
            .dead_letter_headers("g", "broken")
            .into_iter()
            .map(|it| it.name)
            .collect();
        let expected = [
            "source-topic",
            "partition",
            "offset",
            "timestamp",
            "attempts",
            "reason",
            "group",
        ];
        assert_eq!(names, expected.map(|name| format!("talweg-dlq-{name}")));
        assert_eq!(own_headers(&record.headers), record.headers[..2].to_vec());
        assert_eq!(due_of(&FetchedRecord::default()), 0);
    }
}
