//! A half-open interval of keys, in byte order.

use bytes::Bytes;

/// `start <= key < end`; without an end, every key from `start` on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyRange {
    start: Bytes,
    end: Option<Bytes>,
}

impl KeyRange {
    /// Exactly one key.
    pub fn key(key: &[u8]) -> Self {
        let end = [key, &[0]].concat();
        Self {
            start: Bytes::copy_from_slice(key),
            end: Some(end.into()),
        }
    }

    /// All keys that begin with `prefix`; the empty prefix is all keys.
    pub fn prefix(prefix: &[u8]) -> Self {
        Self {
            start: Bytes::copy_from_slice(prefix),
            end: after_prefix(prefix),
        }
    }

    pub fn all() -> Self {
        Self::prefix(b"")
    }

    /// From `start` (inclusive) to `end` (exclusive); empty if they cross.
    pub fn between(start: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        Self {
            start: start.into(),
            end: Some(end.into()),
        }
    }

    /// The same range without the keys up to and including `key`; to read on
    /// after a limited answer.
    #[must_use]
    pub fn after(&self, key: &[u8]) -> Self {
        Self {
            start: [key, &[0]].concat().into(),
            end: self.end.clone(),
        }
    }

    /// The first key that may be in it.
    pub fn start(&self) -> &Bytes {
        &self.start
    }

    /// The first key after it; `None`: no end.
    pub fn end(&self) -> Option<&Bytes> {
        self.end.as_ref()
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        key >= self.start.as_ref() && self.end.as_ref().is_none_or(|end| key < end.as_ref())
    }

    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end <= &self.start)
    }
}

/// The least key above all that begin with `prefix`; none if it is all 0xff.
fn after_prefix(prefix: &[u8]) -> Option<Bytes> {
    let keep = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=keep].to_vec();
    end[keep] += 1;
    Some(end.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_prefix_of_all_ones_has_no_end() {
        assert_eq!(KeyRange::prefix(&[0xff, 0xff]).end(), None);
        assert_eq!(
            KeyRange::prefix(&[1, 0xff]).end().map(AsRef::as_ref),
            Some(&[2][..])
        );
        assert_eq!(KeyRange::all().end(), None);
    }

    proptest! {
        #[test]
        fn a_prefix_range_holds_exactly_the_keys_with_that_prefix(
            prefix in proptest::collection::vec(250u8.., 0..4),
            key in proptest::collection::vec(250u8.., 0..6),
        ) {
            let range = KeyRange::prefix(&prefix);
            prop_assert_eq!(range.contains(&key), key.starts_with(&prefix));
            prop_assert!(KeyRange::key(&key).contains(&key));
            prop_assert!(!range.after(&key).contains(&key));
        }
    }
}
