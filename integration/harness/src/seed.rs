//! The seed of a test that chooses at random.

/// `TALWEG_SEED`, or a new one; printed, so that a failure can be repeated.
pub fn seed() -> u64 {
    let given = std::env::var("TALWEG_SEED").ok();
    let seed = given
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(rand::random);
    eprintln!("TALWEG_SEED={seed}");
    seed
}
