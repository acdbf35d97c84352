//! Identity of idempotent producers.

/// Given out by the controller in blocks below 2^62; derived ids of HTTP
/// producers lie above (see docs/formats). -1 is "not idempotent", as in Kafka.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ProducerId(pub i64);

impl ProducerId {
    pub const NONE: Self = Self(-1);

    pub fn is_none(self) -> bool {
        self.0 < 0
    }
}

/// Fences earlier lives of the same producer id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ProducerEpoch(pub i16);

impl ProducerEpoch {
    pub const NONE: Self = Self(-1);
}

/// A record's number within (producer id, epoch, partition): from 0 to
/// `i32::MAX`, then 0 again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sequence(pub i32);

impl Sequence {
    pub const NONE: Self = Self(-1);

    /// The sequence `records` further on, wrapping from `i32::MAX` to 0.
    #[must_use]
    pub fn plus(self, records: i32) -> Self {
        let next = (i64::from(self.0) + i64::from(records)).rem_euclid(1 << 31);
        Self(i32::try_from(next).expect("below 2^31 by the modulus"))
    }
}

#[cfg(test)]
mod tests {
    use super::Sequence;

    #[test]
    fn sequences_wrap_to_zero_as_in_kafka() {
        assert_eq!(Sequence(i32::MAX).plus(1), Sequence(0));
        assert_eq!(Sequence(i32::MAX - 1).plus(3), Sequence(1));
        assert_eq!(Sequence(5).plus(0), Sequence(5));
    }
}
