//! `cleanup.policy`, and how large a share of a log must be dirty before it is
//! compacted.

use std::{fmt, str::FromStr};

/// What happens to old data of a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Cleanup {
    /// It goes by age and size.
    #[default]
    Delete,
    /// The newest record of each key stays.
    Compact,
    /// Both.
    CompactAndDelete,
}

impl Cleanup {
    pub fn compacts(self) -> bool {
        self != Self::Delete
    }

    /// Whether records go by age and size.
    pub fn deletes(self) -> bool {
        self != Self::Compact
    }
}

impl FromStr for Cleanup {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "delete" => Ok(Self::Delete),
            "compact" => Ok(Self::Compact),
            "compact,delete" | "delete,compact" => Ok(Self::CompactAndDelete),
            _ => Err("must be \"delete\", \"compact\" or \"compact,delete\"".into()),
        }
    }
}

impl fmt::Display for Cleanup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Delete => "delete",
            Self::Compact => "compact",
            Self::CompactAndDelete => "compact,delete",
        })
    }
}

/// A share from 0 to 1, in millionths: exact, and comparable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ratio(u32);

impl Ratio {
    const ONE: u32 = 1_000_000;
    pub const HALF: Self = Self(Self::ONE / 2);

    /// `part` of `whole`; 0 of nothing.
    pub fn of(part: u64, whole: u64) -> Self {
        let millionths = u128::from(part.min(whole)) * u128::from(Self::ONE);
        let share = millionths.checked_div(u128::from(whole)).unwrap_or(0);
        Self(u32::try_from(share).unwrap_or(Self::ONE))
    }

    pub fn millionths(self) -> u32 {
        self.0
    }
}

impl FromStr for Ratio {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().parse::<f64>() {
            Ok(share) if (0.0..=1.0).contains(&share) => {
                Ok(Self((share * f64::from(Self::ONE)).round() as u32))
            }
            _ => Err("must be a number in [0, 1]".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_and_ratios_are_read_as_written() {
        for text in ["delete", "compact", "compact,delete"] {
            assert_eq!(text.parse::<Cleanup>().expect(text).to_string(), text);
        }
        assert_eq!("delete,compact".parse(), Ok(Cleanup::CompactAndDelete));
        assert!("Compact".parse::<Cleanup>().is_err());
        assert_eq!("0.5".parse(), Ok(Ratio::HALF));
        assert_eq!("1".parse(), Ok(Ratio::of(7, 7)));
        assert_eq!(Ratio::of(0, 0), Ratio::of(0, 9));
        for wrong in ["", "NaN", "-0.1", "1.01", "half"] {
            assert!(wrong.parse::<Ratio>().is_err(), "{wrong}");
        }
    }
}
