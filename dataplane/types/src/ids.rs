//! Immutable identifiers. Names are for look-ups only; everything that is
//! stored or compared carries one of these.

use std::{fmt, str::FromStr};
use uuid::Uuid;

macro_rules! uuid_id {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub Uuid);

        impl $name {
            /// The nil id: "not set". Never names anything.
            pub const NIL: Self = Self(Uuid::nil());

            /// The 16 bytes in network order, as they travel and are stored.
            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }

            /// From 16 bytes in network order; `None` for any other length.
            pub fn from_slice(bytes: &[u8]) -> Option<Self> {
                Uuid::from_slice(bytes).ok().map(Self)
            }

            pub fn is_nil(&self) -> bool {
                self.0.is_nil()
            }
        }

        /// Lower-case hyphenated, as in JSON and in folder names.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(text).map(Self)
            }
        }
    };
}

uuid_id! {
    /// A topic's id. A recreated topic has another one.
    TopicId
}

uuid_id! {
    /// A log folder's (disk's) id, written when the folder is first used.
    FolderId
}

uuid_id! {
    /// A member of a consumer group, from its join to its removal. Time-ordered
    /// (version 7), so that members sort as they joined.
    MemberId
}

/// A storage node, gateway or coordinator, from 1. Zero is "none".
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct NodeId(pub u32);

impl NodeId {
    /// No node; on the wire "no leader".
    pub const NONE: Self = Self(0);

    pub fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One life of a node's process, counted up by the controller at each
/// registration. A process never continues an epoch of an earlier incarnation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Incarnation(pub u64);

/// A partition's number within its topic, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct PartitionIndex(pub u32);

impl fmt::Display for PartitionIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The immutable address of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TopicPartition {
    pub topic_id: TopicId,
    pub partition: PartitionIndex,
}

/// `<topic id>-<partition>`: the name of the partition's folder.
impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic_id, self.partition)
    }
}

impl FromStr for TopicPartition {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (id, partition) = text.rsplit_once('-').ok_or(())?;
        let parsed = Self {
            topic_id: id.parse().map_err(|_| ())?,
            partition: PartitionIndex(partition.parse().map_err(|_| ())?),
        };
        // Only the canonical spelling names a folder.
        (parsed.to_string() == text).then_some(parsed).ok_or(())
    }
}
