//! Record values for measurements: random bytes from a seed, the same for the
//! same seed, which no codec shortens.

use bytes::Bytes;
use rand::{RngCore, SeedableRng, rngs::SmallRng};

/// Bytes that are made once and handed out in slices. Far more than a batch,
/// so that no batch holds the same bytes twice.
const POOL_BYTES: usize = 16 << 20;

/// Hands out values of one size.
pub struct Payloads {
    pool: Bytes,
    size: usize,
    at: usize,
}

impl Payloads {
    /// Values of `size` bytes.
    pub fn new(seed: u64, size: usize) -> Self {
        let mut pool = vec![0; POOL_BYTES.max(size + 1)];
        SmallRng::seed_from_u64(seed).fill_bytes(&mut pool);
        Self {
            pool: pool.into(),
            size,
            at: 0,
        }
    }

    /// The next value: a slice, not a copy.
    pub fn next_value(&mut self) -> Bytes {
        if self.at + self.size > self.pool.len() {
            // The second round begins one byte further on, so that no value comes back at once.
            self.at = (self.at + 1) % self.size.max(1);
        }
        let value = self.pool.slice(self.at..self.at + self.size);
        self.at += self.size;
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn values_repeat_for_a_seed_and_not_within_it() {
        let (mut a, mut b, mut other) = (
            Payloads::new(1, 1000),
            Payloads::new(1, 1000),
            Payloads::new(2, 1000),
        );
        let mut seen = BTreeSet::new();
        for _ in 0..40_000 {
            let value = a.next_value();
            assert_eq!(value, b.next_value());
            assert_ne!(value, other.next_value());
            assert_eq!(value.len(), 1000);
            assert!(seen.insert(value), "a value came twice");
        }
    }

    #[test]
    fn no_codec_shortens_a_batch_of_them() {
        use talweg_batch::BatchBuilder;
        use talweg_types::{Compression, TimestampMs};
        let mut payloads = Payloads::new(7, 1000);
        let values: Vec<Bytes> = (0..500).map(|_| payloads.next_value()).collect();
        let size = |codec| {
            let mut builder = BatchBuilder::new(codec);
            for value in &values {
                let headers = std::iter::empty();
                builder
                    .push(TimestampMs(0), None, Some(value), headers)
                    .expect("a small record");
            }
            builder.build().expect("a small batch").len()
        };
        assert!(size(Compression::Zstd) * 100 > size(Compression::None) * 99);
    }
}
