//! Mutates good batches, repairs length and CRC so that the damage is met
//! behind them, and checks that whatever comes out is refused or decodes.
//!
//! ```text
//! fuzz_batch [--seconds N] [--runs N] [--seed N] [--from RUN]
//! ```
//!
//! Stops at the first of seconds and runs; default 10 seconds, seed 1. A run
//! depends on seed and run number only: a failure names both, and
//! `--seed S --from R --runs 1` repeats it. Prints how often each outcome was
//! met, so that it can be seen how deep the damage got.

#[path = "../tests/support/mod.rs"]
mod support;

use bytes::Bytes;
use rand::{Rng, SeedableRng, rngs::SmallRng, seq::IndexedRandom};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use support::{T0, packers::pack, repair, seal, varint};
use talweg_batch::{BatchError, BatchHeader, ValidationLimits, check_client_batch};
use talweg_types::{
    Compression, ProducerEpoch, ProducerId, Sequence, TimestampMs, limits::IDEMPOTENCY_HEADER,
};

/// Numbers that break things.
const EDGES: &[i64] = &[
    0,
    1,
    -1,
    -2,
    2,
    7,
    63,
    64,
    127,
    128,
    255,
    8191,
    8192,
    1 << 20,
    1 << 30,
    i32::MAX as i64,
    i32::MIN as i64,
    1 << 32,
    1 << 35,
    i64::MAX,
    i64::MIN,
    T0,
    -T0,
    -T0 - 1,
];

struct Options {
    seconds: u64,
    runs: u64,
    seed: u64,
    from: u64,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        seconds: 10,
        runs: u64::MAX,
        seed: 1,
        from: 0,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let number = words
            .next()
            .ok_or_else(|| format!("{word} needs a number"))?;
        let number = number
            .parse()
            .map_err(|e| format!("{word} {number}: {e}"))?;
        match word.as_str() {
            "--seconds" => options.seconds = number,
            "--runs" => options.runs = number,
            "--seed" => options.seed = number,
            "--from" => options.from = number,
            _ => return Err(format!("unknown option {word}")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let deadline = Instant::now() + Duration::from_secs(options.seconds);
    let mut outcomes = BTreeMap::<String, u64>::new();
    let mut run = options.from;
    while run - options.from < options.runs && Instant::now() < deadline {
        let mut rng =
            SmallRng::seed_from_u64(options.seed ^ run.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        match catch_unwind(AssertUnwindSafe(|| one_run(&mut rng))) {
            Ok(outcome) => *outcomes.entry(outcome).or_default() += 1,
            Err(_) => {
                eprintln!("FAILED: --seed {} --from {run} --runs 1", options.seed);
                return ExitCode::FAILURE;
            }
        }
        run += 1;
    }
    for (outcome, count) in &outcomes {
        println!("{count:>10}  {outcome}");
    }
    println!(
        "{} runs, seed {}, no failure",
        run - options.from,
        options.seed
    );
    ExitCode::SUCCESS
}

/// One damaged batch through every entry; returns the name of the outcome.
fn one_run(rng: &mut SmallRng) -> String {
    let limits = ValidationLimits {
        max_unpacked_bytes: 1 << 18,
        ..support::test_limits()
    };
    let bytes = damaged(rng);
    if support::exercise(&bytes, &limits) {
        return "accepted".into();
    }
    match check_client_batch(bytes, &limits) {
        Ok(_) => panic!("refused at first, then accepted"),
        Err(BatchError::Record { fault, .. }) => format!("record: {}", name(&fault)),
        Err(BatchError::Unpack { codec, fault }) => format!("unpack {codec}: {}", name(&fault)),
        Err(error) => name(&error),
    }
}

/// The variant's name out of its debug form.
fn name(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.split([' ', '(', '{'])
        .next()
        .unwrap_or_default()
        .to_owned()
}

fn damaged(rng: &mut SmallRng) -> Bytes {
    let (mut header, mut payload) = good(rng);
    let codec = *Compression::ALL.choose(rng).expect("five codecs");
    header.attributes |= codec as i16;
    match rng.random_range(0..10) {
        // Wrong records, rightly packed.
        0..5 => {
            mutate(rng, &mut payload);
            let body = pack(codec, &payload);
            seal(header, &body)
        }
        // Right records, damaged packing.
        5..7 => {
            let mut body = pack(codec, &payload);
            mutate(rng, &mut body);
            seal(header, &body)
        }
        7 => {
            mutate_header(rng, &mut header);
            seal(header, &pack(codec, &payload))
        }
        // Anywhere, the length field right or not.
        8 => {
            let mut bytes = seal(header, &pack(codec, &payload)).to_vec();
            mutate(rng, &mut bytes);
            repair(&mut bytes, rng.random());
            bytes.into()
        }
        _ => {
            let length = rng.random_range(0..200);
            let mut bytes: Vec<u8> = (0..length).map(|_| rng.random()).collect();
            if let Some(magic) = bytes.get_mut(16) {
                *magic = 2;
            }
            repair(&mut bytes, true);
            bytes.into()
        }
    }
}

/// A good header, all but the codec, and its records.
fn good(rng: &mut SmallRng) -> (BatchHeader, Vec<u8>) {
    let records = rng.random_range(1..8);
    let mut header = support::plain_header(records);
    if rng.random() {
        header.producer_id = ProducerId(rng.random_range(0..=i64::MAX));
        header.producer_epoch = ProducerEpoch(rng.random_range(0..=i16::MAX));
        header.base_sequence = Sequence(rng.random_range(0..=i32::MAX));
    }
    let mut payload = Vec::new();
    let mut latest = i64::MIN;
    for delta in 0..records {
        let later = if delta == 0 {
            0
        } else {
            rng.random_range(-1000..1000)
        };
        latest = latest.max(later);
        let mut raw = support::Raw::at(delta.into());
        raw.timestamp_delta = varint(later);
        raw.key = nullable(rng, 20);
        raw.value = nullable(rng, 300);
        raw.headers = headers(rng);
        payload.extend(raw.bytes());
    }
    header.max_timestamp = TimestampMs(T0 + latest);
    (header, payload)
}

fn nullable(rng: &mut SmallRng, most: usize) -> Vec<u8> {
    if rng.random_ratio(1, 8) {
        return varint(-1);
    }
    let byte = rng.random();
    let noisy: bool = rng.random();
    let length = rng.random_range(0..most);
    let bytes: Vec<u8> = (0..length)
        .map(|_| if noisy { rng.random() } else { byte })
        .collect();
    support::field(&bytes)
}

fn headers(rng: &mut SmallRng) -> Vec<u8> {
    let count = if rng.random() {
        0
    } else {
        rng.random_range(1..4)
    };
    let mut out = varint(count);
    for at in 0..count {
        if at == 0 && rng.random_ratio(1, 3) {
            out.extend(support::field(IDEMPOTENCY_HEADER.as_bytes()));
            out.extend(support::field(b"key"));
        } else {
            out.extend(support::field("naïve".as_bytes()));
            out.extend(nullable(rng, 10));
        }
    }
    out
}

fn mutate_header(rng: &mut SmallRng, header: &mut BatchHeader) {
    for _ in 0..rng.random_range(1..3) {
        let edge = *EDGES.choose(rng).expect("edges");
        match rng.random_range(0..9) {
            0 => header.attributes = edge as i16,
            1 => header.attributes ^= 1 << rng.random_range(0..16),
            2 => header.last_offset_delta = edge as i32,
            3 => header.first_timestamp = TimestampMs(edge),
            4 => header.max_timestamp = TimestampMs(edge),
            5 => header.producer_id = ProducerId(edge),
            6 => header.producer_epoch = ProducerEpoch(edge as i16),
            7 => header.base_sequence = Sequence(edge as i32),
            _ => header.record_count = edge as i32,
        }
    }
}

/// One to three changes: flips, bytes, varints, cuts, copies.
fn mutate(rng: &mut SmallRng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.random_range(1..4) {
        let at = rng.random_range(0..=bytes.len());
        let to = rng.random_range(at..=bytes.len().min(at + 40));
        match rng.random_range(0..7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << rng.random_range(0..8),
            1 if at < bytes.len() => bytes[at] = rng.random(),
            2 => drop(bytes.drain(at..to)),
            3 => bytes.extend_from_within(at..to),
            4 => {
                let edge = *EDGES.choose(rng).expect("edges");
                let edge = support::padded_varint(edge, rng.random_range(1..4));
                let end = bytes.len().min(at + 1);
                bytes.splice(at..end, edge);
            }
            5 => {
                let noise: Vec<u8> = (at..to).map(|_| rng.random()).collect();
                bytes.splice(at..at, noise);
            }
            _ => bytes.truncate(at.max(bytes.len() / 2)),
        }
    }
}
