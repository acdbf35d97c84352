//! Refusals survive every way they travel, and say what their reader needs.

use super::*;
use prost::Message;
use serde_json::json;
use talweg_batch::BatchError;
use talweg_proto::v1::{ErrorDetail, LeaderHint};
use talweg_types::{check_name, topic_config::TopicConfig};
use tonic::{Code, Status};

fn with_every_kind_of_detail() -> Vec<Refusal> {
    let new = |code| Refusal::new(code, "a sentence");
    let hint = LeaderHint {
        node_id: 3,
        addresses: vec!["http://a:7072".into()],
        leader_epoch: 9,
    };
    vec![
        new(ErrorCode::NotLeader).with_leader(hint),
        new(ErrorCode::OffsetOutOfRange).with_bounds(5, 10),
        new(ErrorCode::BatchTooLarge).with_limit("max.message.bytes", 10u32, 11u64, "bytes"),
        new(ErrorCode::InvalidArgument).with_field("open.acks", "why"),
        new(ErrorCode::OutOfOrderSequence).with_sequence(2, 7, 9),
        new(ErrorCode::DataDamaged).with_damage(5, 8),
        new(ErrorCode::LogTruncated).with_truncation(4, 100),
        new(ErrorCode::InvalidConfig).with_config("k", "v", "why"),
        new(ErrorCode::TopicExists).with_existing_topic(vec![7; 16]),
        new(ErrorCode::Throttled).retry_after(250),
    ]
}

#[test]
fn a_refusal_survives_status_and_frame() {
    let plain = all_codes().map(|code| Refusal::new(code, "ä sentence"));
    for refusal in plain.chain(with_every_kind_of_detail()) {
        assert_eq!(Refusal::from_detail(refusal.detail()), refusal);
        let status = refusal.to_status();
        assert_eq!(status.code(), row(refusal.code).grpc);
        assert_eq!(Refusal::from_status(&status), refusal);
        // Over the wire, as headers.
        let mut headers = http::HeaderMap::new();
        status.add_header(&mut headers).expect("headers");
        let received = Status::from_header_map(&headers).expect("a status");
        assert_eq!(Refusal::from_status(&received), refusal);
    }
}

/// A newer peer may know more codes. What it says about retry and effect counts.
#[test]
fn a_code_from_the_future_keeps_what_its_sender_said() {
    let detail = ErrorDetail {
        code: 9_999,
        message: "new".into(),
        retriable: true,
        effect: Effect::NotDone as i32,
        ..Default::default()
    };
    let refusal = Refusal::from_detail(detail);
    assert_eq!(refusal.code, ErrorCode::Unspecified);
    assert!(refusal.is_retriable());
    assert_eq!(refusal.effect(), Effect::NotDone);
}

/// Nobody but our servers attaches a detail. A status without one says little
/// about what happened, and nothing must be read into it.
#[test]
fn a_status_without_detail_has_an_unknown_effect() {
    for number in 1..=16 {
        let status = Status::new(Code::from(number), "foreign");
        let refusal = Refusal::from_status(&status);
        if status.code() != Code::Unimplemented {
            assert_eq!(refusal.effect(), Effect::Unknown, "{:?}", status.code());
        }
    }
    let unavailable = Refusal::from_status(&Status::unavailable("proxy"));
    assert_eq!(unavailable.code, ErrorCode::Unavailable);
    assert!(unavailable.is_retriable());
}

/// Details that are not ours, or are damaged, are as good as none.
#[test]
fn damaged_details_are_ignored() {
    let status = Status::with_details(Code::NotFound, "x", vec![0xff, 0xff, 0xff].into());
    assert_eq!(Refusal::from_status(&status).message, "x");
}

#[test]
fn a_long_sentence_is_cut_to_fit_into_headers() {
    let refusal = Refusal::new(ErrorCode::Internal, "ü".repeat(100_000));
    let status = refusal.to_status();
    assert!(status.message().chars().all(|letter| letter == 'ü'));
    let mut headers = http::HeaderMap::new();
    status.add_header(&mut headers).expect("headers");
    let size: usize = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum();
    // Percent-encoding triples each byte of it.
    assert!(size < 8 * 1024, "{size} bytes of headers");
    assert!(refusal.detail().encoded_len() < 2 * 1024);
}

/// gRPC libraries with a retry policy read this.
#[test]
fn a_delay_is_also_given_as_pushback() {
    let status = Refusal::new(ErrorCode::Throttled, "slow")
        .retry_after(250)
        .to_status();
    let pushback = status
        .metadata()
        .get("grpc-retry-pushback-ms")
        .expect("pushback");
    assert_eq!(pushback.to_str().expect("text"), "250");
}

#[test]
fn json_is_flat_and_complete() {
    let refusal = Refusal::new(ErrorCode::OffsetOutOfRange, "gone").with_bounds(5, 10);
    assert_eq!(
        refusal.json(),
        json!({
            "code": "OFFSET_OUT_OF_RANGE",
            "message": "gone",
            "retriable": false,
            "effect": "not_done",
            "retry_after_ms": 0,
            "details": {"log_start_offset": 5, "high_watermark": 10},
        })
    );
    let exists = Refusal::new(ErrorCode::TopicExists, "there").with_existing_topic(vec![7; 16]);
    let id = "07070707-0707-0707-0707-070707070707";
    assert_eq!(exists.json()["details"], json!({ "topic_id": id }));
    assert_eq!(Refusal::internal("x").json()["details"], json!({}));
    for refusal in with_every_kind_of_detail() {
        let json = refusal.json();
        let empty = json["details"].as_object().expect("an object").is_empty();
        assert_eq!(empty, refusal.details.is_none(), "{json}");
    }
}

#[test]
fn errors_of_the_pure_crates_have_their_codes() {
    let code = |refusal: Refusal| refusal.code;
    let batch = |error: BatchError| code(error.into());
    assert_eq!(batch(BatchError::Magic(1)), ErrorCode::UnsupportedMagic);
    assert_eq!(batch(BatchError::Codec(7)), ErrorCode::UnsupportedCodec);
    assert_eq!(
        batch(BatchError::Crc {
            stated: 1,
            computed: 2
        }),
        ErrorCode::CorruptBatch
    );
    assert_eq!(batch(BatchError::ControlBatch), ErrorCode::InvalidRecord);
    assert_eq!(batch(BatchError::Transactional), ErrorCode::NotBuilt);
    assert_eq!(
        batch(BatchError::UnpacksTooLarge { limit: 9 }),
        ErrorCode::UnpacksTooLarge
    );
    let too_large = Refusal::from(BatchError::TooLarge {
        limit: 10,
        actual: 11,
    });
    assert_eq!(too_large.code, ErrorCode::BatchTooLarge);
    assert_eq!(too_large.json()["details"]["limit"], json!(10));

    let name = |name| code(check_name(name).expect_err("refused").into());
    assert_eq!(name(""), ErrorCode::InvalidName);
    assert_eq!(name("__offsets"), ErrorCode::InternalTopic);

    let set = |key, value| {
        code(
            TopicConfig::default()
                .set(key, value)
                .expect_err("no")
                .into(),
        )
    };
    assert_eq!(set("nonsense", "1"), ErrorCode::InvalidConfig);
    assert_eq!(set("segment.bytes", "1"), ErrorCode::InvalidConfig);
    assert_eq!(
        set("message.timestamp.type", "CreateTime"),
        ErrorCode::NotBuilt
    );
}
