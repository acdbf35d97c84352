//! The format as others write it: batches and hashes of an independent
//! implementation (see `vectors/README.md`).

mod support;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde_json::Value;
use support::{exercise, test_limits};
use talweg_batch::{
    BatchBuilder, BatchError, BatchErrorKind, BatchHeader, Record, STAMP_BYTES, check_client_batch,
    decode_records, murmur2, partition_for_key, stamp_prefix, verify_crc,
};
use talweg_types::{
    Compression, LeaderEpoch, Offset, PartitionIndex, ProducerEpoch, ProducerId, Sequence,
    TimestampMs,
};

const MAX_UNPACKED: usize = 16 << 20;

fn read(name: &str) -> Vec<Value> {
    // Asked at run time: the build cache is shared by clones in other places.
    let crate_folder = std::env::var("CARGO_MANIFEST_DIR").expect("run by cargo");
    let path = format!("{crate_folder}/vectors/{name}");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn bytes(value: &Value) -> Bytes {
    let text = value.as_str().expect("base64 text");
    STANDARD.decode(text).expect("base64").into()
}

fn nullable(value: &Value) -> Option<Bytes> {
    (!value.is_null()).then(|| bytes(value))
}

fn int(value: &Value) -> i64 {
    value.as_i64().expect("an integer")
}

fn record(value: &Value) -> Record {
    let headers = value["headers"]
        .as_array()
        .expect("headers")
        .iter()
        .map(|header| {
            let name = header[0].as_str().expect("a name").to_owned();
            (Bytes::from(name), nullable(&header[1]))
        });
    Record {
        offset_delta: int(&value["offset_delta"]) as i32,
        timestamp: TimestampMs(int(&value["timestamp"])),
        key: nullable(&value["key"]),
        value: nullable(&value["value"]),
        headers: headers.collect(),
    }
}

fn records(vector: &Value) -> Vec<Record> {
    vector["records"]
        .as_array()
        .expect("records")
        .iter()
        .map(record)
        .collect()
}

fn build(vector: &Value, codec: Compression) -> Bytes {
    let mut builder = BatchBuilder::new(codec)
        .with_producer(
            ProducerId(int(&vector["producer_id"])),
            ProducerEpoch(int(&vector["producer_epoch"]) as i16),
            Sequence(int(&vector["base_sequence"]) as i32),
        )
        .with_transactional(vector["transactional"] == true);
    for record in records(vector) {
        builder.push_record(&record).expect("a valid record");
    }
    builder.build().expect("records were pushed")
}

#[test]
fn every_batch_decodes_to_the_listed_header_and_records() {
    // Another implementation's batches mean to us what they meant to it.
    let vectors = read("record_batches.json");
    assert_eq!(vectors.len(), 35);
    let (mut nulls, mut empties) = (0, 0);
    for (at, vector) in vectors.iter().enumerate() {
        let batch = bytes(&vector["batch"]);
        verify_crc(&batch).unwrap_or_else(|e| panic!("batch {at}: {e}"));
        let header = BatchHeader::parse(&batch).expect("a header");
        let codec = header.compression().expect("a known codec");
        let asked = vector["compression"].as_str().expect("a codec");
        assert!(
            codec == Compression::None || codec.as_str() == asked,
            "batch {at}"
        );
        assert_eq!(i64::from(header.crc), int(&vector["crc32c"]), "batch {at}");
        assert_eq!(
            header.first_timestamp.0,
            int(&vector["first_timestamp"]),
            "batch {at}"
        );
        assert_eq!(
            header.max_timestamp.0,
            int(&vector["max_timestamp"]),
            "batch {at}"
        );
        assert_eq!(
            i64::from(header.last_offset_delta),
            int(&vector["last_offset_delta"])
        );
        assert_eq!(
            header.producer_id.0,
            int(&vector["producer_id"]),
            "batch {at}"
        );
        assert_eq!(
            i64::from(header.producer_epoch.0),
            int(&vector["producer_epoch"])
        );
        assert_eq!(
            i64::from(header.base_sequence.0),
            int(&vector["base_sequence"])
        );
        assert_eq!(
            header.is_transactional(),
            vector["transactional"] == true,
            "batch {at}"
        );
        assert!(!header.is_control());
        assert_eq!(header.total_bytes(), batch.len());
        let expected = records(vector);
        let decoded = decode_records(&batch, MAX_UNPACKED);
        assert_eq!(decoded.as_ref(), Ok(&expected), "batch {at}");
        for (_, value) in expected.iter().flat_map(|record| &record.headers) {
            nulls += usize::from(value.is_none());
            empties += usize::from(value.as_ref().is_some_and(Bytes::is_empty));
        }
    }
    assert!(
        nulls > 100 && empties > 100,
        "the vectors tell null from empty"
    );
}

#[test]
fn the_uncompressed_ones_encode_again_to_the_same_bytes() {
    // A record has one encoding, so a batch can be rebuilt bit for bit.
    let mut same = 0;
    for (at, vector) in read("record_batches.json").iter().enumerate() {
        let batch = bytes(&vector["batch"]);
        let header = BatchHeader::parse(&batch).expect("a header");
        if header.compression() != Ok(Compression::None) {
            continue;
        }
        let again = build(vector, Compression::None);
        // The vectors carry leader epoch 0, as after a leader has stamped them.
        let stamped = [
            &stamp_prefix(&header, Offset(0), LeaderEpoch(0))[..],
            &again[STAMP_BYTES..],
        ]
        .concat();
        assert!(stamped == batch, "batch {at} differs");
        same += 1;
    }
    assert_eq!(same, 16);
}

#[test]
fn the_listed_records_survive_every_codec_of_ours() {
    // The same records packed by us, in each codec, come back unchanged.
    for (at, vector) in read("record_batches.json").iter().enumerate() {
        for codec in Compression::ALL {
            let batch = build(vector, *codec);
            verify_crc(&batch).expect("our own CRC");
            let decoded = decode_records(&batch, MAX_UNPACKED);
            assert_eq!(decoded, Ok(records(vector)), "batch {at} as {codec}");
        }
    }
}

#[test]
fn a_client_may_append_all_but_the_transactional_ones() {
    // The check at the door knows the others' habits too: what Kafka clients
    // send is accepted, except what is not built.
    for (at, vector) in read("record_batches.json").iter().enumerate() {
        let batch = bytes(&vector["batch"]);
        if vector["transactional"] == true {
            let refused = check_client_batch(batch, &test_limits());
            assert_eq!(refused, Err(BatchError::Transactional), "batch {at}");
        } else {
            check_client_batch(batch.clone(), &test_limits())
                .unwrap_or_else(|e| panic!("batch {at}: {e}"));
            assert!(exercise(&batch, &test_limits()));
        }
    }
}

#[test]
fn every_corrupt_batch_is_refused_with_the_error_of_its_damage() {
    // Flipped and cut batches never pass, neither at the door nor in recovery.
    let vectors = read("corrupt_batches.json");
    assert_eq!(vectors.len(), 70);
    for vector in &vectors {
        let why = vector["why"].as_str().expect("a reason");
        let batch = bytes(&vector["batch"]);
        let errors = [
            verify_crc(&batch).expect_err(why),
            check_client_batch(batch.clone(), &test_limits()).expect_err(why),
        ];
        for error in errors {
            assert_eq!(error.kind(), BatchErrorKind::Corrupt, "{why}: {error}");
            let fits = if why.starts_with("cut") {
                matches!(
                    error,
                    BatchError::TooShort { .. } | BatchError::Length { .. }
                )
            } else {
                // A flip can also make a count negative, which is seen first.
                matches!(
                    error,
                    BatchError::Crc { .. }
                        | BatchError::RecordCount(_)
                        | BatchError::LastOffsetDelta { .. }
                )
            };
            assert!(fits, "{why}: {error}");
        }
    }
}

#[test]
fn keys_go_to_the_partitions_that_kafka_chooses() {
    // Two clients in two languages must agree where a key lives.
    let vectors = read("murmur2.json");
    assert_eq!(vectors.len(), 49);
    for vector in &vectors {
        let key = bytes(&vector["key"]);
        assert_eq!(i64::from(murmur2(&key)), int(&vector["murmur2"]), "{key:?}");
        for (partitions, partition) in vector["partitions"].as_object().expect("partitions") {
            let partitions = partitions.parse().expect("a count");
            let expected = PartitionIndex(int(partition) as u32);
            assert_eq!(partition_for_key(&key, partitions), expected, "{key:?}");
        }
    }
    assert_eq!(
        partition_for_key(b"any", 0),
        PartitionIndex(0),
        "nothing to divide by"
    );
}
