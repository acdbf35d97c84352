//! Retention moves the log start while a reader is in the deleted segment and
//! while the topic is idle; client timestamps do not steer it.

use std::time::Duration;
use talweg_harness::{
    Stack, eventually,
    raw::{self, RawFetch, RawProduce, batch, code, connect, create_topic, from, now_ms},
};
use talweg_proto::v1::{
    self, Acks, Credit, ErrorCode, FetchOpen, Form, error_detail::Details, fetch_partition::Start,
    fetch_request, fetch_response,
};
use talweg_types::{Compression, TimestampMs};
use tonic::transport::Channel;

async fn start_reaches(channel: &Channel, topic: &str, expected: i64, deadline: Duration) {
    eventually("the log start moves", deadline, || async {
        let bounds = raw::bounds(channel, topic, 0).await?;
        if bounds.log_start_offset >= expected {
            Ok(())
        } else {
            Err(format!("{bounds:?}"))
        }
    })
    .await;
}

/// KAFKA-6482, apache/iggy #2629: records from far in the future, an idle topic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_topic_empties_whatever_its_timestamps_say() {
    let stack = Stack::builder().start();
    let c = connect(&stack.gateway(0)).await;
    let ten_years = (10_i64 * 365 * 86_400_000).to_string();
    create_topic(
        &c,
        "t",
        1,
        &[
            ("retention.ms", "1500"),
            ("segment.bytes", "4096"),
            ("message.timestamp.after.max.ms", &ten_years),
        ],
    )
    .await;
    let mut stream = RawProduce::open(&c, Acks::All).await;
    for i in 0..20_i64 {
        let mut builder = talweg_batch::BatchBuilder::new(Compression::None);
        // Every other record claims to be of the future, the rest of the distant past.
        let when = if i % 2 == 0 {
            now_ms() + 9 * 365 * 86_400_000
        } else {
            1
        };
        builder
            .push(TimestampMs(when), None, Some(&[9; 1000]), [])
            .expect("push");
        stream
            .batch("t", 0, builder.build().expect("build"))
            .await
            .expect("produce");
    }
    // Young records are still there, although some claim to be of 1970.
    assert_eq!(
        raw::bounds(&c, "t", 0)
            .await
            .expect("bounds")
            .log_start_offset,
        0
    );
    // Not another write: all of it goes, the segment that was active too.
    start_reaches(&c, "t", 20, Duration::from_secs(20)).await;
    let offset = stream
        .batch("t", 0, batch(&[b"next"]))
        .await
        .expect("produce");
    assert_eq!(offset, 20, "offsets go on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_in_a_deleted_segment_is_told_the_bounds() {
    let stack = Stack::builder().start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(
        &c,
        "t",
        1,
        &[
            ("retention.bytes", "20000"),
            ("segment.bytes", "8192"),
            ("max.message.bytes", "4096"),
        ],
    )
    .await;
    let mut stream = RawProduce::open(&c, Acks::All).await;
    for _ in 0..8 {
        stream
            .batch("t", 0, batch(&[&[1; 1000]]))
            .await
            .expect("produce");
    }
    // A reader with credit for a few batches only stands in the first segment.
    let (mut reader, _) = RawFetch::open_with(
        &c,
        FetchOpen {
            partitions: vec![from("t", 0, Start::Earliest(true))],
            credit: Some(Credit {
                bytes: 4096,
                records: 3,
            }),
            form: Form::Records.into(),
            ..Default::default()
        },
    )
    .await;
    assert_eq!(reader.take(3).await.last().map(|(_, r)| r.offset), Some(2));
    for _ in 0..60 {
        stream
            .batch("t", 0, batch(&[&[1; 1000]]))
            .await
            .expect("produce");
    }
    start_reaches(&c, "t", 20, Duration::from_secs(20)).await;
    reader
        .send(fetch_request::Frame::Credit(Credit {
            bytes: 1 << 20,
            records: 1000,
        }))
        .await;
    // What was already on its way may still come; then it is told, never skipped silently.
    let mut next = 3;
    let error = loop {
        match reader.next().await.expect("lives").expect("goes on") {
            fetch_response::Frame::Records(frame) => {
                for record in frame.records {
                    assert_eq!(record.offset, next, "no silent skip");
                    next += 1;
                }
            }
            fetch_response::Frame::PartitionError(error) => break error.error.expect("an error"),
            fetch_response::Frame::Positions(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(code(&error), ErrorCode::OffsetOutOfRange);
    let Some(Details::Bounds(bounds)) = error.details else {
        panic!("no bounds: {error:?}")
    };
    // The bounds are of the moment it was told: the reader's next record was gone then.
    assert!(
        bounds.log_start_offset > next && bounds.high_watermark > bounds.log_start_offset,
        "at {next}: {bounds:?}"
    );
    // A seek to the start that it was told goes on; when that has gone meanwhile,
    // it is told again.
    let mut start = bounds.log_start_offset;
    for update_id in 1.. {
        let seek = vec![from("t", 0, Start::Offset(start))];
        reader
            .send(fetch_request::Frame::Update(v1::FetchUpdate {
                update_id,
                seek,
                ..Default::default()
            }))
            .await;
        let told = loop {
            match reader.next().await.expect("lives").expect("goes on") {
                fetch_response::Frame::Records(frame) => {
                    assert!(frame.records[0].offset >= start);
                    return;
                }
                fetch_response::Frame::PartitionError(error) => break error.error,
                _ => {}
            }
        };
        let Some(Details::Bounds(bounds)) = told.and_then(|error| error.details) else {
            panic!("no bounds")
        };
        assert!(bounds.log_start_offset > start);
        start = bounds.log_start_offset;
    }
}
