//! kill -9 with a large active segment and a cold page cache: the node serves
//! again within two seconds, because recovery reads from the flushed end only.

use std::time::{Duration, Instant};
use talweg_harness::{
    Stack,
    raw::{self, RawProduce, batch, connect, create_topic},
};
use talweg_proto::v1::Acks;

/// A gigabyte, as promised; one batch under the segment's limit.
const MEGABYTES: usize = 1_000;
const PROMISE: Duration = Duration::from_secs(2);

/// Tells the kernel to forget the file's pages; what is dirty is written first.
fn forget_pages(folder: &std::path::Path) {
    for entry in std::fs::read_dir(folder).expect("folder") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            forget_pages(&path);
        } else if path.extension().is_some_and(|e| e == "log") {
            let file = std::fs::File::open(&path).expect("segment");
            file.sync_all().expect("flush");
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("fadvise");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_segment_restarts_quickly() {
    let mut stack = Stack::builder().start();
    let c = connect(&stack.gateway(0)).await;
    create_topic(&c, "t", 1, &[("durability", "replicated")]).await;
    let bytes = batch(&[&vec![7_u8; 999_000]]);
    let mut stream = RawProduce::open(&c, Acks::All).await;
    for i in 0..MEGABYTES {
        assert_eq!(stream.batch("t", 0, bytes.clone()).await, Ok(i as i64));
    }
    stack.storages[0].kill9();
    forget_pages(&stack.storage_data(0));
    let started = Instant::now();
    stack.storages[0].start(Duration::from_secs(20));
    let took = started.elapsed();
    eprintln!("serving again after {took:?}");
    assert!(took < PROMISE, "{took:?}");
    assert_eq!(
        raw::bounds(&c, "t", 0)
            .await
            .expect("bounds")
            .log_end_offset,
        MEGABYTES as i64,
        "nothing is lost"
    );
}
