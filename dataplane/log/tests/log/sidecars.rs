//! Sidecar parsers: what was written is read; any other bytes are an error that
//! says why, never a panic.

use proptest::prelude::*;
use talweg_log::sidecar::{
    Sidecar, SidecarError,
    identity::{FolderFile, MarkerFile},
    partition::{EpochStart, PartitionFile},
    seal::{BLOCK_BYTES, Cleaned, SealFile, SealedDamage},
    sessions::{KeyEntry, RememberedBatch, SegmentState, SessionEntry, SessionsFile},
};
use talweg_types::*;

fn partition_file() -> PartitionFile {
    let mut file = PartitionFile::new(crate::common::tp());
    file.log_start = Offset(5);
    file.flushed_end = Offset(100);
    file.flushed_segment = Offset(80);
    file.flushed_position = 12_345;
    file.high_watermark = Offset(99);
    file.highest_epoch = LeaderEpoch(7);
    file.generation = 3;
    file.last_append = TimestampMs(1_700_000_000_000);
    file.epochs = vec![
        EpochStart {
            epoch: LeaderEpoch(1),
            start: Offset(0),
        },
        EpochStart {
            epoch: LeaderEpoch(7),
            start: Offset(50),
        },
    ];
    file
}

fn seal_file() -> SealFile {
    SealFile {
        base: Offset(10),
        end: Offset(90),
        bytes: BLOCK_BYTES * 2 + 1,
        first_append: TimestampMs(1),
        last_append: TimestampMs(2),
        max_timestamp: TimestampMs(3),
        damage: vec![SealedDamage {
            start_position: 5,
            end_position: 9,
            start: Offset(11),
            end: Offset(12),
        }],
        cleaned: Some(Cleaned {
            revision: 3,
            end: Offset(80),
            next_horizon: TimestampMs(7),
        }),
        blocks: vec![1, 2, 3],
    }
}

fn sessions_file() -> SessionsFile {
    let batch = |n: i32| RememberedBatch {
        first_sequence: Sequence(n),
        last_sequence: Sequence(n),
        base_offset: Offset(i64::from(n)),
        last_offset: Offset(i64::from(n)),
        append_time: TimestampMs(9),
    };
    SessionsFile {
        fence: None,
        offset: Offset(100),
        segment: SegmentState {
            base: Offset(80),
            position: 70_000,
            first_append: TimestampMs(1),
            last_append: TimestampMs(2),
            max_timestamp: TimestampMs(3),
            blocks: vec![7, 8],
        },
        sessions: vec![SessionEntry {
            producer: ProducerId(4),
            epoch: ProducerEpoch(2),
            batches: (0..5).map(batch).collect(),
        }],
        keys: vec![KeyEntry {
            key: (*b"key").into(),
            offset: Offset(3),
            batch_base: Offset(2),
            batch_records: 4,
            append_time: TimestampMs(5),
        }],
    }
}

fn all() -> Vec<Vec<u8>> {
    let folder = FolderFile {
        id: FolderId(uuid::Uuid::from_u128(9)),
    };
    let marker = MarkerFile {
        boot_id: "boot".into(),
        mount_id: "ext4 8:1".into(),
        incarnation: Incarnation(6),
    };
    vec![
        folder.encode(),
        marker.encode(),
        partition_file().encode(),
        seal_file().encode(),
        sessions_file().encode(),
    ]
}

fn parse_all(bytes: &[u8]) -> usize {
    usize::from(FolderFile::decode(bytes).is_ok())
        + usize::from(MarkerFile::decode(bytes).is_ok())
        + usize::from(PartitionFile::decode(bytes).is_ok())
        + usize::from(SealFile::decode(bytes).is_ok())
        + usize::from(SessionsFile::decode(bytes).is_ok())
}

#[test]
fn what_was_written_is_read_by_its_own_kind_only() {
    assert_eq!(
        PartitionFile::decode(&partition_file().encode()),
        Ok(partition_file())
    );
    assert_eq!(SealFile::decode(&seal_file().encode()), Ok(seal_file()));
    assert_eq!(
        SessionsFile::decode(&sessions_file().encode()),
        Ok(sessions_file())
    );
    for bytes in all() {
        assert_eq!(parse_all(&bytes), 1);
    }
}

#[test]
fn any_flipped_bit_and_any_cut_is_noticed() {
    for bytes in all() {
        for position in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[position] ^= 1 << (position % 8);
            assert_eq!(parse_all(&flipped), 0, "byte {position}");
            assert_eq!(parse_all(&bytes[..position]), 0, "cut at {position}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(parse_all(&longer), 0);
    }
}

#[test]
fn a_later_version_is_refused_with_its_number() {
    let mut bytes = partition_file().encode();
    bytes[5] = 9;
    let content = bytes.len() - 4;
    let checksum = crc32c::crc32c(&bytes[..content]).to_be_bytes();
    bytes[content..].copy_from_slice(&checksum);
    assert_eq!(
        PartitionFile::decode(&bytes),
        Err(SidecarError::UnknownVersion {
            version: 9,
            newest: 1
        })
    );
}

fn fixture(version: u8, name: &str) -> std::path::PathBuf {
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("run by cargo");
    let folder = std::path::Path::new(&folder).join("tests/fixtures");
    folder.join(format!("v{version}")).join(name)
}

/// Files as each release wrote them, byte for byte: they are read for ever.
#[test]
fn files_of_every_version_are_read_as_they_were() {
    let names = ["folder", "marker", "partition", "seal", "sessions"];
    for (name, bytes) in names.into_iter().zip(all()) {
        let version = bytes[5];
        let newest = fixture(version, name);
        if std::env::var_os("TALWEG_WRITE_FIXTURES").is_some() {
            std::fs::create_dir_all(newest.parent().expect("a folder")).expect("made");
            std::fs::write(&newest, &bytes).expect("written");
        }
        for version in 1..=version {
            let bytes = std::fs::read(fixture(version, name)).expect("fixture");
            assert_eq!(
                parse_all(&bytes),
                1,
                "{name} of version {version} is still read"
            );
        }
        assert_eq!(
            std::fs::read(&newest).expect("fixture"),
            bytes,
            "{name} is still written so; a new layout is a new version"
        );
    }
}

/// A seal from before compaction: nothing was compacted.
#[test]
fn a_seal_of_version_1_says_nothing_of_compaction() {
    let bytes = std::fs::read(fixture(1, "seal")).expect("fixture");
    let expected = SealFile {
        cleaned: None,
        ..seal_file()
    };
    assert_eq!(SealFile::decode(&bytes), Ok(expected));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_a_parser_panic(
        kind in 0usize..5,
        noise in proptest::collection::vec(any::<u8>(), 0..64),
        at in 12usize..400,
        whole in any::<bool>(),
    ) {
        // Noise, and valid files with noise in the body and the checksum made right.
        if whole {
            prop_assert_eq!(parse_all(&noise), 0);
        } else {
            let mut bytes = all().swap_remove(kind);
            let content = bytes.len() - 4;
            for (position, byte) in (at..content).zip(&noise) {
                bytes[position] = *byte;
            }
            let checksum = crc32c::crc32c(&bytes[..content]).to_be_bytes();
            bytes[content..].copy_from_slice(&checksum);
            parse_all(&bytes);
        }
    }
}
