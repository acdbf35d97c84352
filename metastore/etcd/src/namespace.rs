//! The one place where keys get their prefix and lose it again, and where
//! etcd's entries become ours.

use bytes::Bytes;
use etcd_client::KeyValue as EtcdKeyValue;
use talweg_metastore::{KeyRange, KeyValue, LeaseId, Revision};

/// All keys of one cluster: `talweg/<namespace>/…`. No namespace contains a
/// slash, so none lies within another.
#[derive(Clone, Debug)]
pub(crate) struct Namespace {
    prefix: Bytes,
    whole: KeyRange,
}

impl Namespace {
    pub fn new(name: &str) -> Self {
        let prefix = Bytes::from(format!("talweg/{name}/"));
        let whole = KeyRange::prefix(&prefix);
        Self { prefix, whole }
    }

    /// etcd's key for ours.
    pub fn key(&self, key: &[u8]) -> Vec<u8> {
        [&self.prefix, key].concat()
    }

    /// etcd's start (inclusive) and end (exclusive) of a range that is not empty.
    pub fn range(&self, range: &KeyRange) -> (Vec<u8>, Vec<u8>) {
        let end = match range.end() {
            Some(end) => self.key(end),
            None => self.whole.end().map(|end| end.to_vec()).unwrap_or_default(),
        };
        (self.key(range.start()), end)
    }

    /// Our key for etcd's; `None` if it is not ours.
    pub fn strip(&self, key: Vec<u8>) -> Option<Bytes> {
        key.starts_with(&self.prefix)
            .then(|| Bytes::from(key).slice(self.prefix.len()..))
    }

    /// Our entry for etcd's; `None` if its key is not ours.
    pub fn entry(&self, kv: EtcdKeyValue) -> Option<KeyValue> {
        let kv = kv.0;
        Some(KeyValue {
            key: self.strip(kv.key)?,
            value: kv.value.into(),
            create_revision: revision(kv.create_revision),
            mod_revision: revision(kv.mod_revision),
            version: u64::try_from(kv.version).unwrap_or(0),
            lease: LeaseId(kv.lease),
        })
    }
}

/// etcd counts in signed numbers and never below zero.
pub(crate) fn revision(of_etcd: i64) -> Revision {
    Revision(u64::try_from(of_etcd).unwrap_or(0))
}

/// A revision that no signed number holds is as far in the future as etcd can say.
pub(crate) fn to_etcd(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_back_as_it_went_in_and_a_foreign_one_does_not() {
        let names = Namespace::new("a");
        let inside = names.key(b"topic/1");
        assert_eq!(inside, b"talweg/a/topic/1");
        assert_eq!(names.strip(inside), Some("topic/1".into()));
        assert_eq!(names.strip(b"talweg/b/topic/1".to_vec()), None);
        assert_eq!(names.strip(b"talweg/ab/topic/1".to_vec()), None);
    }

    #[test]
    fn a_range_without_an_end_ends_with_the_namespace() {
        let (start, end) = Namespace::new("a").range(&KeyRange::all());
        assert_eq!(
            (start.as_slice(), end.as_slice()),
            (&b"talweg/a/"[..], &b"talweg/a0"[..])
        );
    }
}
