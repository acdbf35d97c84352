//! Failures that others met on long streams, replayed on real processes. Each
//! test names its public source and says what was adapted.

use bytes::Bytes;
use std::time::{Duration, Instant};
use talweg_harness::{
    Stack, eventually,
    raw::{RawFetch, RawProduce, batch, bounds, connect, create_topic, describe, from, in_sync},
};
use talweg_proto::v1::{
    self, Acks, Credit, FetchOpen, Form, Record, cluster_service_client::ClusterServiceClient,
    fetch_partition::Start, fetch_request, fetch_response,
};
use tonic::transport::Channel;

/// For progress on a busy machine.
const PROGRESS: Duration = Duration::from_secs(30);

fn open(partitions: Vec<v1::FetchPartition>, bytes: i64, form: Form) -> FetchOpen {
    FetchOpen {
        partitions,
        credit: Some(Credit {
            bytes,
            records: 1_000_000,
        }),
        form: form.into(),
        ..Default::default()
    }
}

/// B120, hyperium/hyper #2899: streams that nobody reads do not stop another
/// stream, produce or calls on the same connection. Adapted: credit is given by
/// the application, 128 KiB for each of 20 streams; 24 MB go through the one that is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b120_streams_that_nobody_reads_stop_no_other() {
    let stack = Stack::builder().start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "t", 1, &[("max.message.bytes", "131072")]).await;
    let mut unread = Vec::new();
    for _ in 0..20 {
        let partitions = vec![from("t", 0, Start::Earliest(true))];
        unread.push(
            RawFetch::open_with(&c, open(partitions, 128 << 10, Form::Batches))
                .await
                .0,
        );
    }
    let partitions = vec![from("t", 0, Start::Earliest(true))];
    let (mut read, _) = RawFetch::open_with(&c, open(partitions, 4 << 20, Form::Batches)).await;
    let mut produce = RawProduce::open(&c, Acks::All).await;
    let payload = batch(&[&vec![5; 100_000]]);
    let began = Instant::now();
    for offset in 0..240 {
        assert_eq!(produce.batch("t", 0, payload.clone()).await, Ok(offset));
        let mut next = offset;
        while next <= offset {
            if let fetch_response::Frame::Batches(frame) =
                read.next().await.expect("lives").expect("goes on")
            {
                next = frame.position.expect("a position").next_offset;
                let credit = Credit {
                    bytes: frame.batches.len() as i64,
                    records: 1,
                };
                read.send(fetch_request::Frame::Credit(credit)).await;
            }
        }
        if offset % 40 == 0 {
            let asked = Instant::now();
            bounds(&c, "t", 0).await.expect("a call");
            assert!(
                asked.elapsed() < Duration::from_secs(2),
                "{:?}",
                asked.elapsed()
            );
        }
    }
    println!(
        "24 MB in {:?} beside {} unread streams",
        began.elapsed(),
        unread.len()
    );
}

/// B121, hyperium/hyper #4003, hyperium/h2 #853: many two-way streams on one
/// connection with sizes at the edge of the default window; all of them move.
/// Adapted: 100 streams, three sizes each, no stream waits for another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b121_streams_at_the_edge_of_a_window_all_move() {
    let stack = Stack::builder().start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "t", 4, &[]).await;
    let mut streams = Vec::new();
    for number in 0..100_u32 {
        let c = c.clone();
        streams.push(tokio::spawn(async move {
            let mut stream = RawProduce::open(&c, Acks::All).await;
            let overhead = batch(&[&vec![0; 65_000]]).len() - 65_000;
            for total in [65_534, 65_535, 65_536] {
                let bytes = batch(&[&vec![0; total - overhead]]);
                assert_eq!(bytes.len(), total);
                // Each answer within the harness's patience, or it panics.
                stream.batch("t", number % 4, bytes).await.expect("taken");
            }
        }));
    }
    for stream in streams {
        stream.await.expect("it moved");
    }
    let mut end = 0;
    for partition in 0..4 {
        end += bounds(&c, "t", partition)
            .await
            .expect("bounds")
            .high_watermark;
    }
    assert_eq!(end, 300);
}

/// B133, redpanda-data/redpanda #3809, #9533: many readers of many partitions
/// take no more memory than the credit that they gave, while producers write.
/// Adapted: 60 streams over 50 partitions, each with credit for 3 MB that nobody
/// reads; 30 MB written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b133_wide_fetches_do_not_take_all_memory() {
    const PARTITIONS: u32 = 50;
    let stack = Stack::builder().start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "t", PARTITIONS as i32, &[]).await;
    let mut streams = Vec::new();
    for _ in 0..60 {
        let channel = connect(&stack.gateway(0)).await;
        let partitions = (0..PARTITIONS).map(|p| from("t", p, Start::Earliest(true)));
        let (stream, _) =
            RawFetch::open_with(&channel, open(partitions.collect(), 3 << 20, Form::Batches)).await;
        streams.push(stream);
    }
    let before = (
        stack.gateways[0].private_bytes(),
        stack.storages[0].private_bytes(),
    );
    let mut produce = RawProduce::open(&c, Acks::Leader).await;
    let mut noise = vec![0; 300_000];
    rand::RngCore::fill_bytes(
        &mut <rand::rngs::SmallRng as rand::SeedableRng>::seed_from_u64(2),
        &mut noise,
    );
    let bytes = batch(&[&noise]);
    for round in 0..100_u32 {
        produce
            .batch("t", round % PARTITIONS, bytes.clone())
            .await
            .expect("produce goes on");
    }
    let mib = |bytes: u64| bytes >> 20;
    let after = (
        stack.gateways[0].private_bytes(),
        stack.storages[0].private_bytes(),
    );
    let grown = (
        mib(after.0.saturating_sub(before.0)),
        mib(after.1.saturating_sub(before.1)),
    );
    println!("gateway and storage have grown by {grown:?} MiB");
    // 60 streams × 30 MB would be 1,800 MB; what was granted is 180.
    assert!(grown.0 < 500 && grown.1 < 400, "{grown:?} MiB");
    // One that begins to read gets everything.
    let (mut stream, mut read) = (streams.swap_remove(0), 0);
    while read < 100 {
        if let fetch_response::Frame::Batches(frame) =
            stream.next().await.expect("lives").expect("goes on")
        {
            let batches = talweg_batch::split_batches(frame.batches.clone());
            let records: usize = batches
                .map(|batch| {
                    let records = talweg_batch::decode_records(&batch.expect("whole"), 16 << 20);
                    records.expect("records").len()
                })
                .sum();
            read += records;
            let credit = Credit {
                bytes: frame.batches.len() as i64,
                records: records as i64,
            };
            stream.send(fetch_request::Frame::Credit(credit)).await;
        }
    }
}

/// B152, nats-io/nats.go #2063: leaders move while a reader has no credit left;
/// when it gives some, delivery goes on. Adapted: 6 moves by draining nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b152_a_reader_without_credit_outlives_leader_changes() {
    let stack = Stack::builder().storages(3).start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "t", 1, &[]).await;
    in_sync(&c, "t", 3).await;
    let mut reader = RawFetch::open_with(
        &c,
        FetchOpen {
            partitions: vec![from("t", 0, Start::Earliest(true))],
            credit: Some(Credit {
                bytes: 4 << 20,
                records: 1,
            }),
            ..Default::default()
        },
    )
    .await
    .0;
    let mut idle = RawFetch::records(&c, vec![from("t", 0, Start::Earliest(true))]).await;
    for round in 0..6_i64 {
        write(&c, round).await;
        assert_eq!(reader.take(1).await[0].1.offset, round);
        assert_eq!(idle.take(1).await[0].1.offset, round);
        move_leader(&c).await;
        let credit = Credit {
            bytes: 1_000,
            records: 1,
        };
        reader.send(fetch_request::Frame::Credit(credit)).await;
    }
    write(&c, 6).await;
    assert_eq!(reader.take(1).await[0].1.offset, 6);
    assert_eq!(idle.take(1).await[0].1.offset, 6);
}

/// In thin form: the gateway numbers it, so that a move of the leader costs nothing.
async fn write(c: &Channel, offset: i64) {
    let record = Record {
        value: Some(Bytes::from_static(b"x")),
        ..Default::default()
    };
    let mut stream = RawProduce::open(c, Acks::All).await;
    assert_eq!(stream.record("t", record).await, Ok((0, offset)));
}

/// Drains the node that leads until another one does.
async fn move_leader(c: &Channel) {
    let before = describe(c, "t").await.expect("described")[0].leader;
    let mut cluster = ClusterServiceClient::new(c.clone());
    let request = v1::DrainNodeRequest { node_id: before };
    cluster.drain_node(request).await.expect("drained");
    eventually("another leads", PROGRESS, || async {
        let leader = describe(c, "t").await?[0].leader;
        match leader > 0 && leader != before {
            true => Ok(()),
            false => Err(format!("{leader}")),
        }
    })
    .await;
    let request = v1::UndrainNodeRequest { node_id: before };
    cluster.undrain_node(request).await.expect("undrained");
}
