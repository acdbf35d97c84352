//! Rules for topic and group names; Kafka's.

use crate::{TopicId, limits::NAME_BYTES_MAX};
use thiserror::Error;

/// The internal topic that holds consumer groups and their committed offsets.
pub const CONSUMER_OFFSETS: &str = "__consumer_offsets";

/// Whether a topic is Talweg's own: clients may read it and change nothing.
pub fn is_internal(topic: &str) -> bool {
    topic.starts_with("__")
}

const REPLAY_PREFIX: &str = "dlq-replay.";

/// The group whose committed offsets say how far the dead letters of a topic were
/// put back. Made of the topic's id: a name with something added may be too long.
pub fn replay_group(dead_letters: TopicId) -> String {
    format!("{REPLAY_PREFIX}{dead_letters}")
}

/// The group keeps how far dead letters were put back, of a topic that is there: its
/// offsets go with the topic and not by their age, or all would be put back again.
pub fn keeps_replay(group: &str, offsets_of: impl IntoIterator<Item = TopicId>) -> bool {
    group.starts_with(REPLAY_PREFIX)
        && offsets_of
            .into_iter()
            .any(|topic| group == replay_group(topic))
}

/// Why a name was refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NameError {
    #[error("a name must not be empty")]
    Empty,
    #[error("a name has at most {NAME_BYTES_MAX} bytes, this one has {0}")]
    TooLong(usize),
    #[error("a name must not be \".\" or \"..\"")]
    Dots,
    #[error("a name has only letters, digits, '.', '_' and '-', not {0:?}")]
    Character(char),
    #[error("names that begin with \"__\" are reserved")]
    Reserved,
}

/// Checks a name that a client gave for something of its own.
pub fn check_name(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong(name.len()));
    }
    if name == "." || name == ".." {
        return Err(NameError::Dots);
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if let Some(bad) = name.chars().find(|c| !allowed(*c)) {
        return Err(NameError::Character(bad));
    }
    if is_internal(name) {
        return Err(NameError::Reserved);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_of_a_replay_lives_as_long_as_its_topic() {
        let topic = TopicId::from_slice(&[7; 16]).expect("16 bytes");
        let group = replay_group(topic);
        assert_eq!(check_name(&group), Ok(()));
        assert!(keeps_replay(&group, [TopicId::NIL, topic]));
        assert!(!keeps_replay(&group, []), "the topic is deleted");
        assert!(!keeps_replay(&group, [TopicId::NIL]));
        assert!(!keeps_replay("orders", [topic]));
    }

    #[test]
    fn names_follow_kafkas_rules() {
        for good in ["a", "flights", "A.b_c-9", "_x", &"n".repeat(249)] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("", NameError::Empty),
            (".", NameError::Dots),
            ("..", NameError::Dots),
            ("a b", NameError::Character(' ')),
            ("ä", NameError::Character('ä')),
            ("a/b", NameError::Character('/')),
            ("__offsets", NameError::Reserved),
        ] {
            assert_eq!(check_name(bad), Err(why), "{bad}");
        }
        assert_eq!(check_name(&"n".repeat(250)), Err(NameError::TooLong(250)));
    }
}
