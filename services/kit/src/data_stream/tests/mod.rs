mod codec;
mod streams;
mod tonic_peer;

use bytes::Bytes;
use rand::{Rng, RngCore, rngs::SmallRng};
use talweg_proto::v1::{self, fetch_response, produce_request};

fn bytes(rng: &mut SmallRng, up_to: usize) -> Bytes {
    let mut bytes = vec![0; rng.random_range(0..=up_to)];
    rng.fill_bytes(&mut bytes);
    bytes.into()
}

fn word(rng: &mut SmallRng) -> String {
    let length = rng.random_range(0..20);
    (0..length).map(|_| rng.random_range('a'..='z')).collect()
}

fn optional<T>(rng: &mut SmallRng, make: impl FnOnce(&mut SmallRng) -> T) -> Option<T> {
    rng.random_bool(0.5).then(|| make(rng))
}

fn many<T>(rng: &mut SmallRng, up_to: usize, make: impl Fn(&mut SmallRng) -> T) -> Vec<T> {
    (0..rng.random_range(0..=up_to))
        .map(|_| make(rng))
        .collect()
}

/// A payload of any size class: none, inline, a chunk of its own, large.
fn payload(rng: &mut SmallRng) -> Bytes {
    let up_to = [0, 10, 5_000, 200_000][rng.random_range(0..4)];
    bytes(rng, up_to)
}

fn header(rng: &mut SmallRng) -> v1::Header {
    v1::Header {
        name: word(rng),
        value: optional(rng, |rng| bytes(rng, 30)),
    }
}

fn record(rng: &mut SmallRng) -> v1::Record {
    v1::Record {
        key: optional(rng, |rng| bytes(rng, 30)),
        value: optional(rng, |rng| bytes(rng, 3_000)),
        headers: many(rng, 3, header),
        timestamp_ms: optional(rng, |rng| rng.random()),
        partition: optional(rng, |rng| rng.random()),
        idempotency_key: word(rng),
        due_time_ms: optional(rng, |rng| rng.random()),
    }
}

/// Any frame that a producing client may send.
fn produce_request(rng: &mut SmallRng) -> v1::ProduceRequest {
    use produce_request::Frame;
    let frame = match rng.random_range(0..6) {
        0 => None,
        1 => Some(Frame::Open(v1::ProduceOpen {
            client_id: word(rng),
            acks: rng.random_range(0..4),
            delivery_timeout_ms: rng.random(),
            linger_ms: optional(rng, |rng| rng.random()),
            resume_token: bytes(rng, 40),
            ..Default::default()
        })),
        2 => Some(Frame::Heartbeat(v1::Heartbeat {
            time_ms: rng.random(),
        })),
        3 => Some(Frame::Records(v1::RecordsFrame {
            topic: word(rng),
            topic_id: bytes(rng, 16),
            first_sequence: rng.random(),
            records: many(rng, 20, record),
        })),
        _ => Some(Frame::Batch(v1::BatchFrame {
            topic: word(rng),
            topic_id: bytes(rng, 16),
            partition: rng.random(),
            first_sequence: rng.random(),
            leader_epoch: optional(rng, |rng| rng.random()),
            batches: payload(rng),
        })),
    };
    v1::ProduceRequest { frame }
}

fn position(rng: &mut SmallRng) -> v1::PartitionPosition {
    v1::PartitionPosition {
        topic_id: bytes(rng, 16),
        topic: word(rng),
        partition: rng.random(),
        next_offset: rng.random(),
        high_watermark: rng.random(),
        generation: rng.random(),
        leader_epoch: rng.random(),
        ..Default::default()
    }
}

/// Any frame that a fetched-from server may send.
fn fetch_response(rng: &mut SmallRng) -> v1::FetchResponse {
    use fetch_response::Frame;
    let frame = match rng.random_range(0..5) {
        0 => None,
        1 => Some(Frame::Positions(v1::FetchPositions {
            positions: many(rng, 50, position),
            credit_left: None,
        })),
        2 => Some(Frame::Records(v1::FetchedRecords {
            position: optional(rng, position),
            credit_left: None,
            records: many(rng, 20, |rng| v1::FetchedRecord {
                offset: rng.random(),
                key: optional(rng, |rng| bytes(rng, 30)),
                value: optional(rng, |rng| bytes(rng, 3_000)),
                headers: many(rng, 3, header),
                ..Default::default()
            }),
        })),
        _ => Some(Frame::Batches(v1::FetchedBatches {
            position: optional(rng, position),
            credit_left: optional(rng, |rng| v1::Credit {
                bytes: rng.random(),
                records: rng.random(),
            }),
            first_offset: rng.random(),
            batches: payload(rng),
        })),
    };
    v1::FetchResponse { frame }
}

/// A batch frame whose payload names its number.
fn numbered(sequence: u64, size: usize) -> v1::ProduceRequest {
    v1::ProduceRequest {
        frame: Some(produce_request::Frame::Batch(v1::BatchFrame {
            topic: "t".into(),
            first_sequence: sequence,
            batches: vec![sequence as u8; size].into(),
            ..Default::default()
        })),
    }
}

/// The number of a batch frame, after its payload was checked.
fn number_of(request: v1::ProduceRequest) -> u64 {
    let Some(produce_request::Frame::Batch(batch)) = request.frame else {
        panic!("not a batch frame");
    };
    let expected = batch.first_sequence as u8;
    assert!(
        batch.batches.iter().all(|byte| *byte == expected),
        "payload was mixed up"
    );
    batch.first_sequence
}

fn answer(sequence: u64) -> v1::ProduceResponse {
    v1::ProduceResponse {
        frame: Some(v1::produce_response::Frame::BatchAck(v1::BatchAck {
            up_to_sequence: sequence,
            ..Default::default()
        })),
    }
}

fn answered(response: v1::ProduceResponse) -> u64 {
    match response.frame {
        Some(v1::produce_response::Frame::BatchAck(ack)) => ack.up_to_sequence,
        other => panic!("not an acknowledgement: {other:?}"),
    }
}
