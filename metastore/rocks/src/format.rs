//! What is stored, format 1. RocksDB checks its own blocks and log records.
//!
//! ```text
//! key                 value
//! m/format            1 byte: 1
//! m/revision          u64: the newest revision
//! d/<user key>        u8 1 | u64 created | u64 modified | u64 version | i64 lease | user value
//! ```
//!
//! Numbers are big-endian. The revision and the entries that it changed are in
//! one write.

use talweg_metastore::{KeyValue, LeaseId, Revision};

pub(crate) const FORMAT: u8 = 1;
pub(crate) const FORMAT_KEY: &[u8] = b"m/format";
pub(crate) const REVISION_KEY: &[u8] = b"m/revision";
pub(crate) const DATA_PREFIX: &[u8] = b"d/";
/// The first key after all of [`DATA_PREFIX`].
pub(crate) const DATA_END: &[u8] = b"d0";

const ENTRY_VERSION: u8 = 1;
const HEADER: usize = 1 + 4 * 8;

pub(crate) fn data_key(key: &[u8]) -> Vec<u8> {
    [DATA_PREFIX, key].concat()
}

pub(crate) fn encode(entry: &KeyValue) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + entry.value.len());
    bytes.push(ENTRY_VERSION);
    bytes.extend(entry.create_revision.0.to_be_bytes());
    bytes.extend(entry.mod_revision.0.to_be_bytes());
    bytes.extend(entry.version.to_be_bytes());
    bytes.extend(entry.lease.0.to_be_bytes());
    bytes.extend(&entry.value);
    bytes
}

/// `None` if the bytes are not an entry of a known version.
pub(crate) fn decode(data_key: &[u8], bytes: &[u8]) -> Option<KeyValue> {
    let key = data_key.strip_prefix(DATA_PREFIX)?;
    let (header, value) = bytes.split_at_checked(HEADER)?;
    let (version, numbers) = header.split_first()?;
    let number = |i: usize| number(&numbers[i * 8..i * 8 + 8]);
    (*version == ENTRY_VERSION).then_some(KeyValue {
        key: key.to_vec().into(),
        value: value.to_vec().into(),
        create_revision: Revision(number(0)?),
        mod_revision: Revision(number(1)?),
        version: number(2)?,
        lease: LeaseId(number(3)?.cast_signed()),
    })
}

/// A big-endian u64; `None` for any other length.
pub(crate) fn number(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> KeyValue {
        KeyValue {
            key: "k".into(),
            value: "value".into(),
            create_revision: Revision(1),
            mod_revision: Revision(u64::MAX),
            version: 3,
            lease: LeaseId(-4),
        }
    }

    #[test]
    fn entries_round_trip() {
        let encoded = encode(&entry());
        assert_eq!(decode(&data_key(b"k"), &encoded), Some(entry()));
    }

    #[test]
    fn cut_and_foreign_bytes_do_not_decode() {
        let mut encoded = encode(&KeyValue {
            value: "".into(),
            ..entry()
        });
        for length in 0..encoded.len() {
            assert_eq!(decode(b"d/k", &encoded[..length]), None, "{length} bytes");
        }
        assert_eq!(decode(b"x/k", &encoded), None);
        encoded[0] = 2;
        assert_eq!(decode(b"d/k", &encoded), None, "a later version");
    }

    #[test]
    fn the_format_of_today_is_these_bytes() {
        let mut expected = vec![1];
        expected.extend([0, 0, 0, 0, 0, 0, 0, 1]);
        expected.extend([0xff; 8]);
        expected.extend([0, 0, 0, 0, 0, 0, 0, 3]);
        expected.extend([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfc]);
        expected.extend(b"value");
        assert_eq!(encode(&entry()), expected);
    }
}
