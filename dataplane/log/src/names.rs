//! File names within a partition's folder.

use std::path::{Path, PathBuf};
use talweg_types::Offset;

pub(crate) const PARTITION: &str = "partition";
pub(crate) const SEGMENT: &str = "log";
pub(crate) const SEAL: &str = "seal";
pub(crate) const SESSIONS: &str = "sessions";
/// A `seal` that decides the replacement of segments; see `rewrite::swap`.
pub(crate) const SWAP: &str = "swap";
/// Suffix of a segment or seal that compaction is writing; without a `swap` file
/// it is removed at the next open.
pub(crate) const CLEANED: &str = ".cleaned";
/// An empty file: the log was not recovered since the machine went down.
pub(crate) const SUSPECT: &str = "suspect";
/// Suffix of a sidecar that is being written; removed at the next open.
pub(crate) const TEMPORARY: &str = ".tmp";
/// Suffix of a partition folder that is being deleted.
pub(crate) const DELETED: &str = ".deleted";

/// `<20-digit offset>.<kind>` in `folder`.
pub(crate) fn path(folder: &Path, offset: Offset, kind: &str) -> PathBuf {
    folder.join(format!("{:020}.{kind}", offset.0))
}

/// As [`path`], not yet in its place.
pub(crate) fn cleaned_path(folder: &Path, offset: Offset, kind: &str) -> PathBuf {
    folder.join(format!("{:020}.{kind}{CLEANED}", offset.0))
}

/// The offset in a name of that kind; only the canonical spelling counts.
pub(crate) fn parse(name: &str, kind: &str) -> Option<Offset> {
    let digits = name.strip_suffix(kind)?.strip_suffix('.')?;
    if digits.len() != 20 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().map(Offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_name_of_a_segment_is_one() {
        let path = path(Path::new("/f"), Offset(42), SEGMENT);
        assert_eq!(path, Path::new("/f/00000000000000000042.log"));
        assert_eq!(parse("00000000000000000042.log", SEGMENT), Some(Offset(42)));
        for name in [
            "42.log",
            "00000000000000000042.seal",
            "0000000000000000004x.log",
            "99999999999999999999.log",
            ".log",
            "",
        ] {
            assert_eq!(parse(name, SEGMENT), None, "{name}");
        }
    }
}
