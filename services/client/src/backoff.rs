//! Pauses between tries: doubling, bounded, with jitter, so that clients that
//! failed together do not come back together.

use rand::Rng;
use std::time::Duration;

/// Doubling pauses.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    tries: u32,
}

impl Backoff {
    /// Pauses begin around `first` and stay below `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            tries: 0,
        }
    }

    /// It worked: begin again at the first pause.
    pub fn reset(&mut self) {
        self.tries = 0;
    }

    /// How long to wait now: half to all of the doubled pause, and at least
    /// what the server asked for.
    pub fn pause(&mut self, advice_ms: u32) -> Duration {
        let full = self
            .first
            .saturating_mul(1 << self.tries.min(16))
            .min(self.longest);
        self.tries = self.tries.saturating_add(1);
        let jittered = full.mul_f64(rand::rng().random_range(0.5..=1.0));
        jittered.max(Duration::from_millis(advice_ms.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::Backoff;
    use std::time::Duration;

    #[test]
    fn pauses_double_within_bounds_and_take_advice() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(10), ms(100));
        for full in [10, 20, 40, 80, 100, 100] {
            let pause = backoff.pause(0);
            assert!(
                pause >= ms(full) / 2 && pause <= ms(full),
                "{pause:?} of {full} ms"
            );
        }
        assert!(backoff.pause(500) >= ms(500), "the server's advice is kept");
        backoff.reset();
        assert!(backoff.pause(0) <= ms(10));
    }
}
