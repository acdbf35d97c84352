//! Pauses that grow and are never the same for two clients.

use rand::Rng;
use std::time::Duration;

/// Doubles from `first` to `most`; each pause is drawn between half and all of it.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            next: first,
        }
    }

    pub fn pause(&mut self) -> Duration {
        let pause = self.next.mul_f64(rand::rng().random_range(0.5..=1.0));
        self.next = (self.next * 2).min(self.most);
        pause
    }

    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_start_anew() {
        let (first, most) = (Duration::from_millis(10), Duration::from_millis(80));
        let mut backoff = Backoff::new(first, most);
        for _ in 0..10 {
            let pause = backoff.pause();
            assert!(pause >= first / 2 && pause <= most);
        }
        assert!(backoff.pause() >= most / 2);
        backoff.reset();
        assert!(backoff.pause() <= first);
    }
}
