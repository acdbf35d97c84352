//! A node comes back with flipped bits in its segment files and the end of one cut
//! off. What it has lost comes from the other replicas, also while it leads; without
//! another replica the damage stays where it is and is shown.

use bytes::Bytes;
use std::{fs::File, path::Path, time::Duration};
use talweg_harness::{
    Stack, digest, eventually, flip,
    http::metric,
    raw::{
        PLENTY, RawFetch, RawProduce, batch, bounds, code, connect, create_replicated, drain, from,
        in_sync, leader,
    },
    replica, segments,
};
use talweg_proto::v1::{
    Acks, ErrorCode, FetchOpen, Form, UndrainNodeRequest,
    cluster_service_client::ClusterServiceClient, fetch_partition::Start, fetch_response,
};
use tokio::task::block_in_place;
use tonic::transport::Channel;

const START: Duration = Duration::from_secs(30);
const STOP: Duration = Duration::from_secs(15);
const PROGRESS: Duration = Duration::from_secs(30);
const RECORDS: i64 = 200;
const SMALL_SEGMENTS: [(&str, &str); 1] = [("segment.bytes", "65536")];

/// About thirteen segments.
async fn fill(c: &Channel) {
    let mut stream = RawProduce::open(c, Acks::All).await;
    for n in 0..RECORDS {
        let value = format!("{n:04000}");
        let offset = stream.batch("t", 0, batch(&[value.as_bytes()])).await;
        assert_eq!(offset, Ok(n));
    }
}

/// Reads as a client does that goes on when it may: every record up to the end, or
/// the code that it met.
async fn read(c: &Channel) -> Result<(), String> {
    let open = FetchOpen {
        partitions: vec![from("t", 0, Start::Earliest(true))],
        credit: Some(PLENTY),
        form: Form::Batches.into(),
        ..Default::default()
    };
    let (mut stream, _) = RawFetch::open_with(c, open).await;
    let mut next = 0;
    while next < RECORDS {
        let frame = stream.next().await.map_err(|status| status.to_string())?;
        match frame {
            Some(fetch_response::Frame::Batches(frame)) => next = check(next, &frame.batches),
            Some(fetch_response::Frame::PartitionError(error)) => {
                let error = error.error.expect("an error");
                return Err(format!("at {next}: {:?}", code(&error)));
            }
            Some(fetch_response::Frame::Positions(_)) => {}
            other => return Err(format!("at {next}: {other:?}")),
        }
    }
    Ok(())
}

fn check(mut next: i64, batches: &Bytes) -> i64 {
    for batch in talweg_batch::split_batches(batches.clone()) {
        let batch = batch.expect("whole batches");
        for record in talweg_batch::decode_records(&batch, 16 << 20).expect("records") {
            let value = String::from_utf8_lossy(record.value.as_deref().unwrap_or_default());
            assert_eq!(value.parse(), Ok(next), "in order, each once");
            next += 1;
        }
    }
    next
}

/// A bit in the middle of several closed segments, and the end of the open one.
fn damage(replica: &Path) -> usize {
    let files = segments(replica);
    let (last, closed) = files.split_last().expect("segments");
    assert!(closed.len() > 10, "{files:?}");
    for file in closed.iter().skip(1).step_by(3) {
        let bytes = file.metadata().expect("there").len();
        flip(file, bytes / 2);
    }
    let file = File::options().write(true).open(last).expect("there");
    let bytes = file.metadata().expect("there").len();
    file.set_len(bytes - 100).expect("cut");
    closed.iter().skip(1).step_by(3).count() + 1
}

/// B039, nats-io/nats-server #7549 and Jepsen NATS 2.12.1: a minority comes back with
/// single flipped bits, and each node leads in turn; all that was acknowledged can be
/// read, and the damaged replica copies what it has lost. Adapted: RF 3, one node
/// after the other; a reader through the gateway waits for the repair and sees no error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b039_flipped_bits_come_back_from_the_other_replicas() {
    let mut stack = Stack::builder().storages(3).start();
    let c = connect(&stack.gateway(0)).await;
    let id = create_replicated(&c, "t", 1, 3, &SMALL_SEGMENTS).await;
    in_sync(&c, "t", 3).await;
    fill(&c).await;
    for victim in 0..3_usize {
        let folder = replica(&stack.storage_data(victim), &id, 0);
        block_in_place(|| stack.storages[victim].stop(STOP));
        let damaged = damage(&folder);
        block_in_place(|| stack.storages[victim].start(START));
        in_sync(&c, "t", 3).await;
        let others: Vec<u32> = (1..=3).filter(|node| *node != victim as u32 + 1).collect();
        drain(&c, &others).await;
        eventually("it leads", PROGRESS, || async {
            match leader(&c, "t", 0).await == victim {
                true => Ok(()),
                false => Err("not yet".into()),
            }
        })
        .await;
        read(&c).await.expect("all, without an error");
        let port = stack.ports_of("storage")[victim];
        let repairs = metric(port, "talweg_storage_repairs_total").await;
        assert!(repairs as usize >= damaged, "{repairs} of {damaged}");
        eventually("nothing is shown as damaged", PROGRESS, || async {
            match metric(port, "talweg_storage_damaged_replicas").await {
                0.0 => Ok(()),
                count => Err(count.to_string()),
            }
        })
        .await;
        for node_id in others {
            let undrained = ClusterServiceClient::new(c.clone())
                .undrain_node(UndrainNodeRequest { node_id })
                .await;
            undrained.expect("undrained");
        }
    }
    in_sync(&c, "t", 3).await;
    let end = bounds(&c, "t", 0).await.expect("bounds").high_watermark;
    assert_eq!(end, RECORDS);
    block_in_place(|| {
        for storage in &mut stack.storages {
            storage.stop(STOP);
        }
    });
    let digests: Vec<_> = (0..3)
        .map(|node| digest(&replica(&stack.storage_data(node), &id, 0), end))
        .collect();
    assert!(digests.iter().all(|one| *one == digests[0]), "{digests:?}");
}

/// A replica that is alone serves what is good and says what is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_another_replica_the_damage_is_named_and_shown() {
    let mut stack = Stack::builder().storages(1).start();
    let c = connect(&stack.gateway(0)).await;
    let id = create_replicated(&c, "t", 1, 1, &SMALL_SEGMENTS).await;
    fill(&c).await;
    block_in_place(|| stack.storages[0].stop(STOP));
    let folder = replica(&stack.storage_data(0), &id, 0);
    let closed = &segments(&folder)[2];
    flip(closed, 30_000);
    block_in_place(|| stack.storages[0].start(START));
    let met = eventually("the damage is met", PROGRESS, || async {
        let met = read(&c).await.expect_err("something is lost");
        match met.contains(ErrorCode::DataDamaged.as_str_name())
            || met.contains(&format!("{:?}", ErrorCode::DataDamaged))
        {
            true => Ok(met),
            // The leader is not there yet.
            false => Err(met),
        }
    })
    .await;
    println!("{met}");
    let port = stack.ports_of("storage")[0];
    eventually("it is shown", PROGRESS, || async {
        match metric(port, "talweg_storage_damaged_replicas").await {
            1.0 => Ok(()),
            count => Err(count.to_string()),
        }
    })
    .await;
    assert_eq!(metric(port, "talweg_storage_repairs_total").await, 0.0);
}
