//! What a poll asks for.

use crate::http::reply::Failure;
use std::{collections::BTreeMap, time::Duration};
use talweg_types::limits;

const MAX_BYTES: usize = 16 * 1024 * 1024;

/// The query string of a poll; `topic` and `position` may repeat.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PollQuery {
    pub group: Option<String>,
    pub topics: Vec<String>,
    pub max_records: usize,
    pub max_bytes: usize,
    pub wait: Duration,
    /// By topic and partition.
    pub positions: BTreeMap<(String, u32), i64>,
}

impl PollQuery {
    /// INVALID_ARGUMENT that names the parameter.
    pub fn parse(pairs: Vec<(String, String)>) -> Result<Self, Failure> {
        let mut query = Self {
            group: None,
            topics: Vec::new(),
            max_records: limits::HTTP_RECORDS_MAX as usize,
            max_bytes: limits::HTTP_BYTES_DEFAULT as usize,
            wait: Duration::ZERO,
            positions: BTreeMap::new(),
        };
        for (name, value) in pairs {
            match name.as_str() {
                "group" => query.group = Some(value),
                "topic" => query.topics.push(value),
                "max" => query.max_records = number("max", &value, 1, query.max_records)?,
                "max_bytes" => query.max_bytes = number("max_bytes", &value, 1, MAX_BYTES)?,
                "wait_ms" => {
                    let max = limits::HTTP_WAIT_MS_MAX as usize;
                    let ms = number("wait_ms", &value, 0, max)?;
                    query.wait = Duration::from_millis(ms as u64);
                }
                "position" => {
                    let (at, offset) = position(&value)?;
                    query.positions.insert(at, offset);
                }
                _ => return Err(Failure::invalid("query", format!("unknown field {name:?}"))),
            }
        }
        if query.topics.len() > limits::SUBSCRIBED_TOPICS_MAX {
            let why = format!("at most {} may be named", limits::SUBSCRIBED_TOPICS_MAX);
            return Err(Failure::invalid("topic", why));
        }
        Ok(query)
    }
}

fn number(field: &str, text: &str, low: usize, high: usize) -> Result<usize, Failure> {
    let number = text.parse().ok();
    number
        .filter(|it| (low..=high).contains(it))
        .ok_or_else(|| Failure::invalid(field, format!("is from {low} to {high}")))
}

/// `topic:partition:offset`.
fn position(text: &str) -> Result<((String, u32), i64), Failure> {
    let odd = || Failure::invalid("position", "must be topic:partition:offset");
    let mut parts = text.split(':');
    let (Some(topic), Some(partition), Some(offset), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(odd());
    };
    let partition = partition.parse().map_err(|_| odd())?;
    let offset: i64 = offset.parse().map_err(|_| odd())?;
    if topic.is_empty() || offset < 0 {
        return Err(odd());
    }
    Ok(((topic.to_owned(), partition), offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<PollQuery, Failure> {
        let pairs = pairs
            .iter()
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()));
        PollQuery::parse(pairs.collect())
    }

    #[test]
    fn polls_are_read_strictly() {
        let query = parse(&[
            ("topic", "a"),
            ("topic", "b"),
            ("position", "a:3:17"),
            ("max", "5"),
            ("wait_ms", "30000"),
        ])
        .expect("reads");
        assert_eq!(query.topics, ["a", "b"]);
        assert_eq!(query.positions[&("a".to_owned(), 3)], 17);
        assert_eq!((query.max_records, query.wait.as_secs()), (5, 30));
        for odd in [
            ("max", "0"),
            ("max", "501"),
            ("max_bytes", "0"),
            ("wait_ms", "30001"),
            ("wait_ms", "-1"),
            ("position", "a:3"),
            ("position", "a:3:-1"),
            ("position", ":3:1"),
            ("position", "a:3:1:1"),
            ("topics", "a"),
        ] {
            assert!(parse(&[odd]).is_err(), "{odd:?}");
        }
    }
}
