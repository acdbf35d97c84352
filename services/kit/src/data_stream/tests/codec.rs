//! The bytes: what we write is what every other encoder writes, and what we
//! read may come in any pieces, or be anything at all.

use super::*;
use crate::{
    data_stream::{DataFrame, FrameDecoder},
    errors::{ErrorCode, Refusal},
};
use bytes::{BufMut, BytesMut};
use proptest::prelude::{ProptestConfig, prop, prop_assert, prop_assert_eq, proptest};
use prost::Message;
use rand::{Rng, SeedableRng};
use tonic::Code;

fn split<T: DataFrame>(frame: T) -> (Bytes, Bytes) {
    let mut head = BytesMut::new();
    let payload = frame.split(&mut head);
    (head.freeze(), payload)
}

fn encoded<T: DataFrame>(message: &T) -> Vec<u8> {
    let mut wire = vec![0];
    wire.put_u32(message.encoded_len() as u32);
    message.encode_raw(&mut wire);
    wire
}

fn all_frames<T: DataFrame>(decoder: &mut FrameDecoder) -> Vec<T> {
    std::iter::from_fn(|| decoder.decode().expect("valid frames")).collect()
}

/// Set PROPTEST_CASES for a long run.
fn cases() -> u32 {
    let given = std::env::var("PROPTEST_CASES").ok();
    given.and_then(|it| it.parse().ok()).unwrap_or(400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    /// Head and payload together are byte for byte what prost writes, for
    /// every frame of both directions.
    #[test]
    fn head_and_payload_are_the_message(seed: u64) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let request = super::produce_request(&mut rng);
        let (head, payload) = split(request.clone());
        prop_assert_eq!([&head[..], &payload].concat(), encoded(&request));
        let response = super::fetch_response(&mut rng);
        let (head, payload) = split(response.clone());
        prop_assert_eq!([&head[..], &payload].concat(), encoded(&response));
    }

    /// The stream of bytes may be cut anywhere, also into single bytes.
    #[test]
    fn any_chunking_gives_the_same_frames(seed: u64, step in 1usize..5_000) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let sent: Vec<_> = (0..5).map(|_| super::produce_request(&mut rng)).collect();
        let wire: Vec<u8> = sent.iter().flat_map(encoded).collect();
        let mut decoder = FrameDecoder::default();
        let mut received = Vec::new();
        let mut rest = Bytes::from(wire);
        while !rest.is_empty() {
            let length = rng.random_range(1..=step).min(rest.len());
            decoder.push(rest.split_to(length));
            received.extend(all_frames::<v1::ProduceRequest>(&mut decoder));
        }
        prop_assert_eq!(received, sent);
        prop_assert!(decoder.is_empty());
    }

    /// A peer that sends nonsense gets an error or is waited for; it never
    /// makes us panic.
    #[test]
    fn nonsense_is_refused(mut wire: Vec<u8>, chunk in 1usize..50, framed: bool) {
        if framed && wire.len() > 5 {
            let length = (wire.len() - 5) as u32;
            wire[0] = 0;
            wire[1..5].copy_from_slice(&length.to_be_bytes());
        }
        let mut decoder = FrameDecoder::default();
        for piece in wire.chunks(chunk) {
            decoder.push(Bytes::copy_from_slice(piece));
            while let Ok(Some(_)) = decoder.decode::<v1::FetchResponse>() {}
        }
    }

    /// One flipped or cut byte in a valid stream: the same.
    #[test]
    fn a_damaged_stream_is_refused(seed: u64, at: prop::sample::Index, flip in 1u8..) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut wire = encoded(&super::produce_request(&mut rng));
        let at = at.index(wire.len());
        wire[at] ^= flip;
        let mut decoder = FrameDecoder::default();
        decoder.push(wire.into());
        while let Ok(Some(_)) = decoder.decode::<v1::ProduceRequest>() {}
    }
}

/// A payload that came as a chunk of its own, or within one, is not copied.
#[test]
fn payloads_are_slices_of_what_was_received() {
    let (head, payload) = split(numbered(7, 100_000));
    let separate = payload.as_ptr();
    let mut decoder = FrameDecoder::default();
    decoder.push(head);
    decoder.push(payload);
    assert_eq!(
        payload_pointer(&mut decoder),
        separate,
        "a chunk of its own"
    );

    let whole = Bytes::from(encoded(&numbered(7, 100_000)));
    let within = whole[whole.len() - 100_000..].as_ptr();
    decoder.push(whole);
    assert_eq!(payload_pointer(&mut decoder), within, "within a chunk");
}

fn payload_pointer(decoder: &mut FrameDecoder) -> *const u8 {
    let frame: v1::ProduceRequest = decoder.decode().expect("valid").expect("whole");
    match frame.frame {
        Some(produce_request::Frame::Batch(batch)) => batch.batches.as_ptr(),
        other => panic!("not a batch: {other:?}"),
    }
}

/// A message sent byte by byte costs memory for its bytes, not for each piece.
#[test]
fn crumbs_are_merged() {
    let wire = Bytes::from(encoded(&numbered(1, 1_000_000)));
    let mut decoder = FrameDecoder::default();
    for at in 0..wire.len() - 1 {
        decoder.push(wire.slice(at..=at));
        if at % 1_000 == 0 {
            assert!(
                decoder
                    .decode::<v1::ProduceRequest>()
                    .expect("not yet")
                    .is_none()
            );
        }
    }
    assert!(
        decoder.chunk_count() < 10,
        "{} chunks",
        decoder.chunk_count()
    );
    decoder.push(wire.slice(wire.len() - 1..));
    assert_eq!(
        number_of(decoder.decode().expect("valid").expect("whole")),
        1
    );
}

fn refused(wire: impl Into<Bytes>) -> (Code, ErrorCode) {
    let mut decoder = FrameDecoder::default();
    decoder.push(wire.into());
    let status = decoder.decode::<v1::ProduceRequest>().expect_err("refused");
    (status.code(), Refusal::from_status(&status).code)
}

/// The length alone is enough to refuse: nothing is set aside for it.
#[test]
fn a_frame_above_the_limit_is_refused_by_its_length() {
    let limit = talweg_types::limits::GRPC_MESSAGE_BYTES;
    let mut wire = vec![0];
    wire.put_u32(limit + 1);
    let too_large = (Code::ResourceExhausted, ErrorCode::FrameTooLarge);
    assert_eq!(refused(wire), too_large);
    assert_eq!(refused(vec![0, 0xff, 0xff, 0xff, 0xff]), too_large);

    let mut at_limit = vec![0];
    at_limit.put_u32(limit);
    let mut decoder = FrameDecoder::default();
    decoder.push(at_limit.into());
    assert!(
        decoder
            .decode::<v1::ProduceRequest>()
            .expect("allowed")
            .is_none()
    );
    assert!(!decoder.is_empty(), "ending here is ending inside a frame");
}

#[test]
fn compressed_and_malformed_messages_are_refused() {
    let violation = (Code::InvalidArgument, ErrorCode::ProtocolViolation);
    assert_eq!(
        refused(vec![1, 0, 0, 0, 0]),
        (Code::Unimplemented, ErrorCode::NotBuilt)
    );
    assert_eq!(refused(vec![2, 0, 0, 0, 0]), violation);
    assert_eq!(refused(vec![0, 0, 0, 0, 1, 0xff]), violation);
}

/// Two million empty records are four megabytes on the wire and would be half a
/// gigabyte in memory.
#[test]
fn a_frame_of_too_many_records_or_headers_is_refused() {
    let too_many = (Code::ResourceExhausted, ErrorCode::FrameTooLarge);
    // RecordsFrame under tag 2; records under tag 4; headers under tag 3.
    let records = nested(2, &[0x22, 0].repeat(2_000_000));
    assert_eq!(refused(framed(&records)), too_many);
    let headers = nested(2, &nested(4, &[0x1a, 0].repeat(1_000_000)));
    assert_eq!(refused(framed(&headers)), too_many);
}

fn nested(tag: u8, inner: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag << 3 | 2];
    prost::encoding::encode_varint(inner.len() as u64, &mut bytes);
    bytes.extend_from_slice(inner);
    bytes
}

fn framed(message: &[u8]) -> Vec<u8> {
    let mut wire = vec![0];
    wire.put_u32(message.len() as u32);
    wire.extend_from_slice(message);
    wire
}

/// The densest frame that a server of ours packs passes.
#[test]
fn a_full_frame_of_the_smallest_records_passes() {
    let record = v1::FetchedRecord {
        offset: 1 << 40,
        timestamp_ms: 1_700_000_000_000,
        value: Some(Bytes::new()),
        ..Default::default()
    };
    let count = 1024 * 1024 / (record.encoded_len() + 2);
    let frame = v1::FetchResponse {
        frame: Some(fetch_response::Frame::Records(v1::FetchedRecords {
            records: vec![record; count],
            ..Default::default()
        })),
    };
    let mut decoder = FrameDecoder::default();
    for piece in encoded(&frame).chunks(16 * 1024) {
        decoder.push(Bytes::copy_from_slice(piece));
    }
    assert_eq!(decoder.decode().expect("valid"), Some(frame));
}
