//! What a member reads: topics by name, by pattern, or both.
//!
//! A pattern is a regular expression in the syntax of RE2 (no look-around, no
//! back references, so linear time), over ASCII, that must match the whole name.
//! Names that begin with `__` are matched by no pattern, and neither are retry and
//! dead-letter topics: `orders.*` means orders, not what failed of them, in this
//! group or another. Who wants those names them.

use crate::{Refusal, Topics};
use regex::bytes::{Regex, RegexBuilder};
use std::collections::{BTreeMap, BTreeSet};
use talweg_types::{TopicId, check_name, limits};

/// Names and a pattern; a topic counts if either says so.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Subscription {
    pub names: BTreeSet<String>,
    pub pattern: Option<String>,
}

impl Subscription {
    pub fn names<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self {
            names: names.into_iter().map(str::to_owned).collect(),
            pattern: None,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Refusal> {
        if self.names.is_empty() && self.pattern.is_none() {
            return Err(Refusal::invalid("topics", "name a topic or give a pattern"));
        }
        Refusal::limit("topics", self.names.len(), limits::SUBSCRIBED_TOPICS_MAX)?;
        for name in &self.names {
            check_name(name).map_err(|error| Refusal::invalid("topics", &error.to_string()))?;
        }
        if let Some(pattern) = &self.pattern {
            compile(pattern)?;
        }
        Ok(())
    }
}

/// Compiled, whole-name matching.
fn compile(pattern: &str) -> Result<Regex, Refusal> {
    Refusal::limit("pattern", pattern.len(), limits::TOPIC_PATTERN_BYTES_MAX)?;
    let build = |text: &str| {
        RegexBuilder::new(text)
            .unicode(false)
            .size_limit(limits::TOPIC_PATTERN_COMPILED_BYTES_MAX)
            .dfa_size_limit(limits::TOPIC_PATTERN_COMPILED_BYTES_MAX)
            .nest_limit(50)
            .build()
            .map_err(|error| Refusal::invalid("pattern", &error.to_string()))
    };
    // Alone first: an unbalanced parenthesis must not pair with ours.
    build(pattern)?;
    build(&format!(r"\A(?:{pattern})\z"))
}

/// The compiled patterns of a group's members.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patterns(BTreeMap<String, Regex>);

impl Patterns {
    /// Keeps those in use and compiles what is new. One that no longer compiles
    /// (a later build with lower limits) matches nothing.
    pub fn retain<'a>(&mut self, used: impl Iterator<Item = &'a String>) {
        let mut kept = BTreeMap::new();
        for pattern in used {
            let ours = self.0.remove_entry(pattern);
            let compiled = ours.or_else(|| Some((pattern.clone(), compile(pattern).ok()?)));
            kept.extend(compiled);
        }
        self.0 = kept;
    }

    /// The ids of the topics that a subscription means now.
    pub fn resolve(&self, subscription: &Subscription, topics: &Topics) -> BTreeSet<TopicId> {
        let names = subscription.names.iter();
        let named = names.filter_map(|name| topics.named(name).map(|topic| topic.id));
        let pattern = subscription.pattern.as_ref();
        let matched = pattern.and_then(|pattern| self.0.get(pattern)).into_iter();
        let matched = matched.flat_map(|regex| {
            let fitting = topics.iter().filter(|(name, topic)| {
                !name.starts_with("__") && !topic.derived && regex.is_match(name.as_bytes())
            });
            fitting.map(|(_, topic)| topic.id)
        });
        named.chain(matched).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Topic;
    use talweg_types::TopicId;

    fn topics() -> Topics {
        let names = [
            "flights",
            "flights.eu",
            "flight",
            "__consumer_offsets",
            "Gates",
            "flights.g.dlq",
        ];
        Topics::new(names.iter().enumerate().map(|(at, name)| {
            let topic = Topic {
                id: id(at),
                racks: vec![vec![]],
                derived: name.ends_with(".dlq"),
            };
            ((*name).to_owned(), topic)
        }))
    }

    fn id(at: usize) -> TopicId {
        let mut bytes = [0; 16];
        bytes[15] = u8::try_from(at).unwrap() + 1;
        TopicId::from_slice(&bytes).unwrap()
    }

    fn resolve(names: &[&str], pattern: &str) -> Vec<usize> {
        let subscription = Subscription {
            pattern: Some(pattern.to_owned()),
            ..Subscription::names(names.iter().copied())
        };
        subscription.check().unwrap();
        let mut patterns = Patterns::default();
        patterns.retain(subscription.pattern.iter());
        let found = patterns.resolve(&subscription, &topics());
        (0..6).filter(|at| found.contains(&id(*at))).collect()
    }

    #[test]
    fn a_pattern_matches_whole_names_and_nothing_internal() {
        assert_eq!(resolve(&[], "flights.*"), [0, 1]);
        assert_eq!(resolve(&[], "flight|Gates"), [2, 4]);
        assert_eq!(resolve(&[], ".*"), [0, 1, 2, 4]);
        assert_eq!(resolve(&[], "(?i)gates"), [4]);
        assert_eq!(resolve(&["flights", "absent"], r"\w+\.eu"), [0, 1]);
    }

    /// Story: a group reads `flights.*`, and one of its records becomes a dead letter.
    /// The dead letter does not come back to the group, or to another one.
    #[test]
    fn a_pattern_passes_derived_topics_by_and_a_name_does_not() {
        assert_eq!(resolve(&[], r"flights\..*"), [1]);
        assert_eq!(resolve(&[], r"flights\.g\.dlq"), []);
        assert_eq!(resolve(&["flights.g.dlq"], "flight"), [2, 5]);
    }

    #[test]
    fn a_hostile_pattern_is_refused_by_name() {
        for pattern in [
            "(",
            "a)(b",
            r"(?=x)",
            r"(a)\1",
            r"\p{L}",
            "((a{100}){100}){100}",
            &"(".repeat(60),
            &"a".repeat(2_000),
        ] {
            let subscription = Subscription {
                pattern: Some(pattern.to_owned()),
                ..Subscription::default()
            };
            let refusal = subscription.check().expect_err(pattern).to_string();
            assert!(refusal.contains("pattern"), "{pattern}: {refusal}");
        }
        assert!(Subscription::default().check().is_err());
        assert!(Subscription::names(["a b"]).check().is_err());
        assert!(Subscription::names(["__consumer_offsets"]).check().is_err());
    }
}
