//! What a produce waits for, what durability means, and the codecs.

use std::{fmt, str::FromStr};

/// When a produce is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum Acks {
    /// Not at all; refusals are still answered.
    Zero,
    /// When the leader's counted end has passed the batch.
    One,
    /// When the high watermark has passed the batch.
    All,
}

/// What a replica counts as held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Only what it has flushed to stable storage.
    Synced,
    /// What is written to its page cache; flushed in the background.
    Replicated,
}

/// The codec of a record batch; the values are Kafka's attribute bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Compression {
    None = 0,
    Gzip = 1,
    Snappy = 2,
    Lz4 = 3,
    Zstd = 4,
}

macro_rules! text {
    ($name:ident { $($variant:ident = $text:literal),+ $(,)? }) => {
        impl $name {
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        /// The error names the allowed words.
        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(format!("must be one of {}", [$($text),+].join(", "))),
                }
            }
        }
    };
}

text!(Acks { Zero = "0", One = "1", All = "all" });
text!(Durability { Synced = "synced", Replicated = "replicated" });
text!(Compression { None = "none", Gzip = "gzip", Snappy = "snappy", Lz4 = "lz4", Zstd = "zstd" });

impl Compression {
    /// From the low three bits of a batch's attributes; `None` if unknown.
    pub fn from_attributes(attributes: i16) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|codec| *codec as i16 == attributes & 7)
    }
}
