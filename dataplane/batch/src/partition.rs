//! The default partitioner: murmur2 of the key, as Kafka's Java client has it,
//! so that records of one key meet in one partition whatever client wrote them.

use talweg_types::PartitionIndex;

const SEED: u32 = 0x9747_b28c;
const M: u32 = 0x5bd1_e995;

/// 32-bit murmur2 with Kafka's seed.
pub fn murmur2(bytes: &[u8]) -> u32 {
    // Kafka's own length is an i32; keys are far shorter.
    let mut hash = SEED ^ bytes.len() as u32;
    let (words, tail) = bytes.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k = (k ^ (k >> 24)).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    if !tail.is_empty() {
        for (at, byte) in tail.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * at);
        }
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

/// The partition of a record with this key. No partitions counts as one, so
/// that there is nothing to divide by zero.
pub fn partition_for_key(key: &[u8], partitions: u32) -> PartitionIndex {
    PartitionIndex((murmur2(key) & 0x7fff_ffff) % partitions.max(1))
}
