//! What checking a batch costs beside its CRC, in CPU-seconds per GB: one
//! thread, data in cache, seeded incompressible values, medians of nine.
//!
//! ```text
//! check_cost
//! ```

use bytes::Bytes;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::hint::black_box;
use std::time::Instant;
use talweg_batch::{BatchBuilder, ValidationLimits, check_client_batch, verify_crc};
use talweg_types::{Compression, TimestampMs, TopicConfig};

const BATCH_BYTES: usize = 1_000_000;
const NOW: TimestampMs = TimestampMs(1_700_000_000_000);

fn batch(codec: Compression, value_bytes: usize, headers: usize) -> Bytes {
    let mut rng = SmallRng::seed_from_u64(7);
    let mut value = vec![0; value_bytes];
    let mut builder = BatchBuilder::new(codec);
    while builder.payload_bytes() + value_bytes + 100 < BATCH_BYTES {
        rng.fill(&mut value[..]);
        let headers = (0..headers).map(|_| (&b"trace-id"[..], Some(&b"0123456789abcdef"[..])));
        builder
            .push(NOW, Some(b"some key"), Some(&value), headers)
            .expect("a small record");
    }
    builder.build().expect("records were pushed")
}

/// CPU-seconds per GB of encoded batch; nothing here waits, so time is CPU.
fn cost(batch: &Bytes, mut work: impl FnMut(&Bytes)) -> f64 {
    let rounds = 200;
    let mut samples: Vec<f64> = (0..9)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..rounds {
                work(black_box(batch));
            }
            start.elapsed().as_secs_f64() / (rounds * batch.len()) as f64 * 1e9
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn main() {
    let limits = ValidationLimits::for_topic(&TopicConfig::default(), NOW);
    println!(
        "{:<8} {:>6} {:>8} {:>8} {:>8}   CPU-s/GB",
        "codec", "value", "headers", "crc", "check"
    );
    let cases = [
        (Compression::None, 1000, 0),
        (Compression::None, 1000, 2),
        (Compression::None, 100, 0),
        (Compression::None, 100, 2),
        (Compression::None, 10, 0),
    ];
    for (codec, value, headers) in cases {
        let batch = batch(codec, value, headers);
        let crc = cost(&batch, |batch| {
            black_box(verify_crc(batch)).expect("a good batch");
        });
        let check = cost(&batch, |batch| {
            black_box(check_client_batch(batch.clone(), &limits)).expect("a good batch");
        });
        println!("{codec:<8} {value:>6} {headers:>8} {crc:>8.3} {check:>8.3}");
    }
}
