//! The table of topic configuration keys: the one place that knows each key's
//! type, unit, range, default and meaning.
//!
//! Keys are Kafka's where Kafka has the thing. A key whose effect is not built
//! yet is in the table with a sentence and is refused by [`TopicConfig::set`].

use crate::{Acks, Cleanup, Compression, Durability, Ratio, limits};
use std::collections::BTreeMap;
use thiserror::Error;

/// Effective settings of a topic. `None` in an `Option` is "depends on the
/// replication factor", resolved by the accessors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicConfig {
    /// Age by append time after which sealed segments go; -1 never.
    pub retention_ms: i64,
    /// Bytes of a partition above which head segments go; -1 no limit.
    pub retention_bytes: i64,
    pub segment_bytes: u32,
    pub segment_ms: u64,
    pub index_interval_bytes: u32,
    pub max_message_bytes: u32,
    pub max_record_bytes: u32,
    pub max_unpacked_batch_bytes: u32,
    pub min_insync_replicas: Option<u32>,
    /// Codec of batches that a gateway packs.
    pub compression: Compression,
    pub durability: Option<Durability>,
    pub default_acks: Acks,
    pub min_acks: Acks,
    pub message_timestamp_after_max_ms: i64,
    pub producer_id_expiration_ms: u64,
    pub idempotency_window_ms: u64,
    /// How long a deleted segment's files stay for readers that are in them.
    pub file_delete_delay_ms: u64,
    pub cleanup: Cleanup,
    /// How long a tombstone stays after compaction has first met it.
    pub delete_retention_ms: u64,
    /// A log is compacted when this share of it was not yet.
    pub min_cleanable_dirty_ratio: Ratio,
    /// Records younger than this by append time are not compacted.
    pub min_compaction_lag_ms: u64,
    /// Records older than this by append time are compacted whatever the ratio.
    pub max_compaction_lag_ms: u64,
}

impl Default for TopicConfig {
    fn default() -> Self {
        Self {
            retention_ms: 7 * DAY_MS as i64,
            retention_bytes: -1,
            segment_bytes: 1 << 30,
            segment_ms: 7 * DAY_MS,
            index_interval_bytes: 4096,
            max_message_bytes: limits::MAX_MESSAGE_BYTES_DEFAULT,
            max_record_bytes: limits::MAX_RECORD_BYTES_DEFAULT,
            max_unpacked_batch_bytes: limits::UNPACKED_BATCH_BYTES_DEFAULT,
            min_insync_replicas: None,
            compression: Compression::Zstd,
            durability: None,
            default_acks: Acks::All,
            min_acks: Acks::Zero,
            message_timestamp_after_max_ms: 60 * 60 * 1000,
            producer_id_expiration_ms: DAY_MS,
            idempotency_window_ms: 10 * 60 * 1000,
            file_delete_delay_ms: 1_000,
            cleanup: Cleanup::Delete,
            delete_retention_ms: DAY_MS,
            min_cleanable_dirty_ratio: Ratio::HALF,
            min_compaction_lag_ms: 0,
            max_compaction_lag_ms: i64::MAX as u64,
        }
    }
}

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// A row of the table, as `config-keys` shows it.
#[derive(Clone, Copy, Debug)]
pub struct ConfigKey {
    pub name: &'static str,
    /// "int", "duration", "bytes", "ratio" or "enum".
    pub kind: &'static str,
    /// "ms", "bytes", "replicas" or "".
    pub unit: &'static str,
    /// What is allowed, in words.
    pub range: &'static str,
    pub default: &'static str,
    pub meaning: &'static str,
    /// False: setting it is refused with [`ConfigError::NotBuilt`].
    pub built: bool,
    apply: fn(&mut TopicConfig, &str) -> Result<(), String>,
}

/// Why a setting was refused; names the key.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ConfigError {
    #[error("unknown configuration key {key:?}; `talweg topic config-keys` lists all")]
    Unknown { key: String },
    #[error("{key} = {value:?}: {reason}")]
    Invalid {
        key: String,
        value: String,
        reason: String,
    },
    #[error("{key} has no effect in this version and is refused: {reason}")]
    NotBuilt { key: String, reason: String },
}

impl ConfigError {
    /// The key at fault.
    pub fn key(&self) -> &str {
        match self {
            Self::Unknown { key } | Self::Invalid { key, .. } | Self::NotBuilt { key, .. } => key,
        }
    }
}

fn int(text: &str, low: i64, high: i64) -> Result<i64, String> {
    match text.trim().parse::<i64>() {
        Ok(value) if (low..=high).contains(&value) => Ok(value),
        Ok(value) => Err(format!("{value} is outside [{low}, {high}]")),
        Err(_) => Err(format!("must be an integer in [{low}, {high}]")),
    }
}

fn u32_in(text: &str, low: u32, high: u32) -> Result<u32, String> {
    let value = int(text, i64::from(low), i64::from(high))?;
    u32::try_from(value).map_err(|e| e.to_string())
}

fn ms(text: &str, low: u64) -> Result<u64, String> {
    let low = i64::try_from(low).map_err(|e| e.to_string())?;
    u64::try_from(int(text, low, i64::MAX)?).map_err(|e| e.to_string())
}

fn later(_: &mut TopicConfig, _: &str) -> Result<(), String> {
    Ok(())
}

macro_rules! row {
    ($name:literal, $kind:literal, $unit:literal, $range:literal, $default:literal, $meaning:literal, $apply:expr) => {
        ConfigKey {
            name: $name,
            kind: $kind,
            unit: $unit,
            range: $range,
            default: $default,
            meaning: $meaning,
            built: true,
            apply: $apply,
        }
    };
}

macro_rules! not_built {
    ($name:literal, $kind:literal, $unit:literal, $range:literal, $default:literal, $meaning:literal) => {
        ConfigKey {
            name: $name,
            kind: $kind,
            unit: $unit,
            range: $range,
            default: $default,
            meaning: $meaning,
            built: false,
            apply: later,
        }
    };
}

/// All keys, in alphabetic order.
pub const KEYS: &[ConfigKey] = &[
    row!(
        "cleanup.policy",
        "enum",
        "",
        "delete, compact, or both: compact,delete",
        "delete",
        "What happens to old data: it goes by age and size, or all but the newest record of each key goes. Compacted topics take no record without a key.",
        |c, text| {
            c.cleanup = text.parse()?;
            Ok(())
        }
    ),
    row!(
        "compression.type",
        "enum",
        "",
        "none, gzip, snappy, lz4, zstd",
        "zstd",
        "Codec of batches that a gateway packs from single records. Batches that clients encode stay as they are.",
        |c, text| {
            c.compression = text.parse()?;
            Ok(())
        }
    ),
    row!(
        "default.acks",
        "enum",
        "",
        "0, 1, all",
        "all",
        "Acks of a produce stream or call that names none.",
        |c, text| {
            c.default_acks = text.parse()?;
            Ok(())
        }
    ),
    row!(
        "delete.retention.ms",
        "duration",
        "ms",
        "≥ 0",
        "86400000",
        "How long a tombstone stays in a compacted topic after compaction has first met it. Whoever reads from the start must get through within it.",
        |c, text| {
            c.delete_retention_ms = ms(text, 0)?;
            Ok(())
        }
    ),
    row!(
        "durability",
        "enum",
        "",
        "synced, replicated",
        "synced at replication factor 1, else replicated",
        "What a replica counts as held: what it has flushed, or what is in its page cache.",
        |c, text| {
            c.durability = Some(text.parse()?);
            Ok(())
        }
    ),
    row!(
        "file.delete.delay.ms",
        "duration",
        "ms",
        "[0, 3600000]",
        "1000",
        "How long the files of a deleted segment stay on disk after the log start has moved past them.",
        |c, text| {
            c.file_delete_delay_ms = u64::from(u32_in(text, 0, 3_600_000)?);
            Ok(())
        }
    ),
    row!(
        "idempotency.window.ms",
        "duration",
        "ms",
        "[1000, 86400000]",
        "600000",
        "How long an idempotency key is recognised; at most 100,000 keys a partition.",
        |c, text| {
            c.idempotency_window_ms = u64::from(u32_in(text, 1000, 86_400_000)?);
            Ok(())
        }
    ),
    row!(
        "index.interval.bytes",
        "bytes",
        "bytes",
        "[256, 1073741824]",
        "4096",
        "At least this many bytes of log lie between two entries of the offset index.",
        |c, text| {
            c.index_interval_bytes = u32_in(text, 256, 1 << 30)?;
            Ok(())
        }
    ),
    row!(
        "max.compaction.lag.ms",
        "duration",
        "ms",
        "≥ 100",
        "9223372036854775807",
        "In a compacted topic a segment is rolled, and compacted whatever the dirty ratio, when its first record is this old by append time.",
        |c, text| {
            c.max_compaction_lag_ms = ms(text, 100)?;
            Ok(())
        }
    ),
    row!(
        "max.message.bytes",
        "bytes",
        "bytes",
        "[1024, 3145728]",
        "1048576",
        "Largest encoded record batch, header included, after compression.",
        |c, text| {
            c.max_message_bytes = u32_in(
                text,
                limits::MAX_MESSAGE_BYTES_RANGE.0,
                limits::MAX_MESSAGE_BYTES_RANGE.1,
            )?;
            Ok(())
        }
    ),
    row!(
        "max.record.bytes",
        "bytes",
        "bytes",
        "[1, 3145728]",
        "1048576",
        "Largest record: key + value + header names and values, unpacked.",
        |c, text| {
            c.max_record_bytes = u32_in(
                text,
                limits::MAX_RECORD_BYTES_RANGE.0,
                limits::MAX_RECORD_BYTES_RANGE.1,
            )?;
            Ok(())
        }
    ),
    row!(
        "max.unpacked.batch.bytes",
        "bytes",
        "bytes",
        "[1024, 67108864]",
        "16777216",
        "Largest record batch after decompression.",
        |c, text| {
            c.max_unpacked_batch_bytes = u32_in(text, 1024, limits::UNPACKED_BATCH_BYTES_MAX)?;
            Ok(())
        }
    ),
    row!(
        "message.timestamp.after.max.ms",
        "duration",
        "ms",
        "≥ 0",
        "3600000",
        "A record timestamp further ahead of the leader's clock than this is refused.",
        |c, text| {
            c.message_timestamp_after_max_ms = int(text, 0, i64::MAX)?;
            Ok(())
        }
    ),
    not_built!(
        "message.timestamp.type",
        "enum",
        "",
        "CreateTime",
        "CreateTime",
        "Timestamps are the client's; the leader's append time is kept beside the batch."
    ),
    row!(
        "min.acks",
        "enum",
        "",
        "0, 1, all",
        "0",
        "A produce with weaker acks than this is refused.",
        |c, text| {
            c.min_acks = text.parse()?;
            Ok(())
        }
    ),
    row!(
        "min.cleanable.dirty.ratio",
        "ratio",
        "",
        "[0, 1]",
        "0.5",
        "A log is compacted when at least this share of its sealed bytes was not yet.",
        |c, text| {
            c.min_cleanable_dirty_ratio = text.parse()?;
            Ok(())
        }
    ),
    row!(
        "min.compaction.lag.ms",
        "duration",
        "ms",
        "≥ 0",
        "0",
        "Records younger than this by append time are not compacted.",
        |c, text| {
            c.min_compaction_lag_ms = ms(text, 0)?;
            Ok(())
        }
    ),
    row!(
        "min.insync.replicas",
        "int",
        "replicas",
        "[1, replication factor]",
        "1 at replication factor 1 or 2, else 2",
        "acks=all needs at least this many in-sync replicas.",
        |c, text| {
            let most = limits::REPLICATION_FACTOR_MAX;
            c.min_insync_replicas = Some(u32_in(text, 1, most)?);
            Ok(())
        }
    ),
    row!(
        "producer.id.expiration.ms",
        "duration",
        "ms",
        "≥ 1000",
        "86400000",
        "How long an idle idempotent producer is remembered, independent of retention.",
        |c, text| {
            c.producer_id_expiration_ms = ms(text, 1000)?;
            Ok(())
        }
    ),
    row!(
        "retention.bytes",
        "bytes",
        "bytes",
        "-1 or ≥ 0",
        "-1",
        "Bytes of a partition above which whole sealed segments go from the head; -1 is no limit.",
        |c, text| {
            c.retention_bytes = int(text, -1, i64::MAX)?;
            Ok(())
        }
    ),
    row!(
        "retention.ms",
        "duration",
        "ms",
        "-1 or ≥ 0",
        "604800000",
        "Age, by the leader's append time, after which whole sealed segments go from the head; -1 is never.",
        |c, text| {
            c.retention_ms = int(text, -1, i64::MAX)?;
            Ok(())
        }
    ),
    row!(
        "segment.bytes",
        "bytes",
        "bytes",
        "[4096, 2147483647]",
        "1073741824",
        "A segment is rolled before it grows above this.",
        |c, text| {
            c.segment_bytes = u32_in(text, 4096, i32::MAX as u32)?;
            Ok(())
        }
    ),
    row!(
        "segment.ms",
        "duration",
        "ms",
        "≥ 100",
        "604800000",
        "A segment is rolled when its first record is this old by append time, on an idle topic too.",
        |c, text| {
            c.segment_ms = ms(text, 100)?;
            Ok(())
        }
    ),
    not_built!(
        "unclean.leader.election.enable",
        "enum",
        "",
        "true, false",
        "false",
        "Unclean elections are an operator's decision, never automatic."
    ),
];

/// The row of a key.
pub fn find(key: &str) -> Option<&'static ConfigKey> {
    KEYS.iter().find(|row| row.name == key)
}

impl TopicConfig {
    /// Applies one setting.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        let row = find(key).ok_or_else(|| ConfigError::Unknown { key: key.into() })?;
        if !row.built {
            return Err(ConfigError::NotBuilt {
                key: key.into(),
                reason: row.meaning.into(),
            });
        }
        (row.apply)(self, value).map_err(|reason| ConfigError::Invalid {
            key: key.into(),
            value: value.into(),
            reason,
        })
    }

    /// Defaults overlaid with `settings`; the first refused one is the error.
    pub fn resolve(settings: &BTreeMap<String, String>) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        for (key, value) in settings {
            config.set(key, value)?;
        }
        config.check_together()?;
        Ok(config)
    }

    /// Settings that were checked when they were stored. Those that only a newer
    /// program knows are left at their defaults, one by one.
    pub fn resolve_stored(settings: &BTreeMap<String, String>) -> Self {
        let mut config = Self::default();
        for (key, value) in settings {
            // Said where it was refused; here nobody can do anything about it.
            let _ = config.set(key, value);
        }
        config
    }

    /// Rules between keys.
    fn check_together(&self) -> Result<(), ConfigError> {
        if self.default_acks < self.min_acks {
            return Err(ConfigError::Invalid {
                key: "default.acks".into(),
                value: self.default_acks.to_string(),
                reason: format!("is weaker than min.acks = {}", self.min_acks),
            });
        }
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms {
            return Err(ConfigError::Invalid {
                key: "min.compaction.lag.ms".into(),
                value: self.min_compaction_lag_ms.to_string(),
                reason: format!(
                    "is above max.compaction.lag.ms = {}",
                    self.max_compaction_lag_ms
                ),
            });
        }
        Ok(())
    }

    /// The durability in force at this replication factor.
    pub fn durability_at(&self, replication_factor: u32) -> Durability {
        self.durability.unwrap_or(if replication_factor <= 1 {
            Durability::Synced
        } else {
            Durability::Replicated
        })
    }

    /// `min.insync.replicas` in force at this replication factor, never above
    /// it: 1 up to two replicas, else 2, unless it is set.
    pub fn min_insync_at(&self, replication_factor: u32) -> u32 {
        let by_default = if replication_factor <= 2 { 1 } else { 2 };
        self.min_insync_replicas
            .unwrap_or(by_default)
            .min(replication_factor.max(1))
    }

    /// Refuses what cannot be kept at this replication factor.
    ///
    /// # Errors
    /// `min.insync.replicas` is above it.
    pub fn check_at(&self, replication_factor: u32) -> Result<(), ConfigError> {
        match self.min_insync_replicas {
            Some(min) if min > replication_factor => Err(ConfigError::Invalid {
                key: "min.insync.replicas".into(),
                value: min.to_string(),
                reason: format!("must be from 1 to the replication factor, {replication_factor}"),
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_key_takes_its_default_and_names_itself_when_refused() {
        let mut config = TopicConfig::default();
        for row in KEYS.iter().filter(|row| row.built) {
            if !row.default.contains(' ') {
                config
                    .set(row.name, row.default)
                    .unwrap_or_else(|e| panic!("{e}"));
            }
            let error = config.set(row.name, "nonsense").expect_err(row.name);
            assert!(error.to_string().contains(row.name), "{error}");
        }
        assert_eq!(
            config,
            TopicConfig::default(),
            "the table's defaults are the defaults"
        );
    }

    #[test]
    fn keys_that_are_not_built_are_refused_with_a_sentence() {
        for row in KEYS.iter().filter(|row| !row.built) {
            let error = TopicConfig::default()
                .set(row.name, row.default)
                .expect_err(row.name);
            assert!(matches!(error, ConfigError::NotBuilt { .. }), "{error}");
        }
    }

    #[test]
    fn keys_are_sorted_and_unique() {
        assert!(KEYS.windows(2).all(|pair| pair[0].name < pair[1].name));
    }

    #[test]
    fn min_insync_replicas_follows_the_replication_factor() {
        let at = |min: Option<&str>, factor| {
            let mut config = TopicConfig::default();
            if let Some(min) = min {
                config.set("min.insync.replicas", min).expect("in range");
            }
            (
                config.min_insync_at(factor),
                config.check_at(factor).is_ok(),
            )
        };
        for (min, factor, expected) in [
            (None, 1, (1, true)),
            (None, 2, (1, true)),
            (None, 3, (2, true)),
            (None, 7, (2, true)),
            (Some("2"), 2, (2, true)),
            (Some("3"), 3, (3, true)),
            (Some("3"), 2, (2, false)),
        ] {
            assert_eq!(at(min, factor), expected, "{min:?} at {factor}");
        }
    }

    #[test]
    fn rules_between_keys_hold() {
        let settings = BTreeMap::from([
            ("min.acks".into(), "all".into()),
            ("default.acks".into(), "1".into()),
        ]);
        let error = TopicConfig::resolve(&settings).expect_err("weaker default");
        assert_eq!(error.key(), "default.acks");
    }

    /// Story: a newer controller has stored a key that this program does not know; what
    /// it does know of the topic still holds.
    #[test]
    fn a_stored_setting_that_is_unknown_leaves_the_others_as_they_are() {
        let settings = BTreeMap::from([
            ("a.key.of.later".into(), "1".into()),
            ("retention.ms".into(), "-1".into()),
        ]);
        assert!(TopicConfig::resolve(&settings).is_err());
        assert_eq!(TopicConfig::resolve_stored(&settings).retention_ms, -1);
    }
}
