//! Three nodes in three racks: a reader that names its rack is served by the
//! replica there, by leaders while that one is away, and by it again.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use talweg_harness::{
    Load, Stack, eventually, http,
    raw::{self, RawFetch, connect, create_topic, from, in_sync},
};
use talweg_proto::v1::{Acks, FetchOpen, Form, fetch_partition::Start, fetch_response::Frame};
use tonic::transport::Channel;

const PARTITIONS: u32 = 3;
/// For a restarted node to be in sync, and a reader to come back.
const BACK: Duration = Duration::from_secs(40);

/// What a reader saw, one list a partition, each in the order of arrival.
#[derive(Default)]
struct Seen {
    offsets: [Vec<i64>; PARTITIONS as usize],
    watermarks: [i64; PARTITIONS as usize],
    failure: Option<String>,
}

impl Seen {
    fn records(&self) -> usize {
        self.offsets.iter().map(Vec::len).sum()
    }

    fn take(&mut self, frame: Frame) {
        let position = match &frame {
            Frame::Records(frame) => frame.position.iter().collect::<Vec<_>>(),
            Frame::Positions(frame) => frame.positions.iter().collect(),
            other => {
                self.failure = Some(format!("{other:?}"));
                return;
            }
        };
        for at in position {
            let shown = &mut self.watermarks[at.partition as usize];
            if at.high_watermark < *shown {
                self.failure = Some(format!("the watermark {shown} stepped back: {at:?}"));
            }
            *shown = at.high_watermark;
        }
        if let Frame::Records(frame) = frame {
            let partition = frame.position.expect("a position").partition as usize;
            self.offsets[partition].extend(frame.records.iter().map(|r| r.offset));
        }
    }
}

async fn read(channel: &Channel, rack: &str) -> Arc<Mutex<Seen>> {
    let open = FetchOpen {
        partitions: (0..PARTITIONS)
            .map(|p| from("t", p, Start::Earliest(true)))
            .collect(),
        credit: Some(raw::PLENTY),
        form: Form::Records.into(),
        rack: rack.into(),
        ..Default::default()
    };
    let (mut stream, _) = RawFetch::open_with(channel, open).await;
    let seen = Arc::new(Mutex::new(Seen::default()));
    let writer = Arc::clone(&seen);
    tokio::spawn(async move {
        loop {
            match stream.next().await {
                Ok(Some(frame)) => writer.lock().expect("lock").take(frame),
                ended => {
                    writer.lock().expect("lock").failure = Some(format!("{ended:?}"));
                    return;
                }
            }
        }
    });
    seen
}

/// Encoded bytes that a node has sent to readers.
async fn fetched(stack: &Stack, storage: usize) -> u64 {
    let port = stack.ports_of("storage")[storage];
    http::metric(port, "talweg_storage_fetched_bytes_total").await as u64
}

/// Waits until the reader has progressed by what only `server` has sent.
async fn served_only_by(stack: &Stack, seen: &Mutex<Seen>, server: usize) {
    eventually("served by its rack only", BACK, || async {
        let before = [
            fetched(stack, 0).await,
            fetched(stack, 1).await,
            fetched(stack, 2).await,
        ];
        let records = seen.lock().expect("lock").records();
        eventually("more records", BACK, || async {
            let now = seen.lock().expect("lock").records();
            if now > records + 100 {
                Ok(())
            } else {
                Err(format!("{now} after {records}"))
            }
        })
        .await;
        let after = [
            fetched(stack, 0).await,
            fetched(stack, 1).await,
            fetched(stack, 2).await,
        ];
        let served = |i: usize| after[i] > before[i];
        if (0..3).all(|i| served(i) == (i == server)) {
            Ok(())
        } else {
            Err(format!("{before:?} {after:?}"))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_is_served_in_its_rack_while_there_is_a_replica() {
    let mut stack = Stack::builder().storages(3).racks(3).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", PARTITIONS as i32, &[]).await;
    let partitions = in_sync(&channel, "t", 3).await;
    assert!(partitions.iter().any(|p| p.leader != 2), "{partitions:?}");
    let load = Load::start(vec![stack.gateway(0)], "t", PARTITIONS, Acks::All).await;
    let seen = read(&channel, "r1").await;
    served_only_by(&stack, &seen, 1).await;

    stack.storages[1].kill9();
    let records = seen.lock().expect("lock").records();
    eventually("the leaders serve", Duration::from_secs(20), || async {
        let now = seen.lock().expect("lock").records();
        if now > records + 100 {
            Ok(())
        } else {
            Err(format!("{now} after {records}"))
        }
    })
    .await;
    tokio::task::block_in_place(|| stack.storages[1].start(Duration::from_secs(20)));
    in_sync(&channel, "t", 3).await;
    served_only_by(&stack, &seen, 1).await;

    let (acknowledged, _) = load.finish(&stack.gateway(0)).await;
    eventually("all was read", Duration::from_secs(20), || async {
        let seen = seen.lock().expect("lock");
        if seen.records() >= acknowledged {
            Ok(())
        } else {
            Err(format!("{} of {acknowledged}", seen.records()))
        }
    })
    .await;
    let seen = seen.lock().expect("lock");
    assert_eq!(seen.failure, None);
    for offsets in &seen.offsets {
        let expected: Vec<i64> = (0..offsets.len() as i64).collect();
        assert_eq!(*offsets, expected, "each record once and in order");
    }
}
