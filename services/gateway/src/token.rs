//! Resume tokens: opaque to clients, readable by every gateway of the cluster.
//!
//! ```text
//! version 1 │ kind 'P', 'F' or 'S' │ cluster id (16)
//!           for 'F': per partition
//!             topic id (16) │ partition u32 │ next offset i64 │ last epoch i32, big-endian
//!           for 'S': member id (16) │ the group's id
//! ```
//! A produce token says nothing but "everything accepted was answered"; a fetch
//! token holds the positions; those of a subscriber are stored with its group, so
//! that its token says only who it is.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_types::{MemberId, PartitionIndex, TopicId, TopicPartition, limits};

const VERSION: u8 = 1;
const HEAD_BYTES: usize = 2 + 16;
const POSITION_BYTES: usize = 16 + 4 + 8 + 4;

/// A position in a fetch token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    pub partition: TopicPartition,
    /// The next offset due.
    pub next_offset: i64,
    /// Epoch of the last batch read; -1 if none was.
    pub last_epoch: i32,
}

fn head(kind: u8, cluster_id: &[u8]) -> BytesMut {
    let mut token = BytesMut::with_capacity(HEAD_BYTES);
    token.put_u8(VERSION);
    token.put_u8(kind);
    let mut id = [0; 16];
    if cluster_id.len() == 16 {
        id.copy_from_slice(cluster_id);
    }
    token.put_slice(&id);
    token
}

/// A token for a Produce stream on which everything accepted is answered.
pub fn produce(cluster_id: &[u8]) -> Bytes {
    head(b'P', cluster_id).freeze()
}

/// A token with the positions of a Fetch stream.
pub fn fetch(cluster_id: &[u8], positions: &[Position]) -> Bytes {
    let mut token = head(b'F', cluster_id);
    token.reserve(positions.len() * POSITION_BYTES);
    for it in positions {
        token.put_slice(it.partition.topic_id.as_bytes());
        token.put_u32(it.partition.partition.0);
        token.put_i64(it.next_offset);
        token.put_i32(it.last_epoch);
    }
    token.freeze()
}

/// INVALID_RESUME_TOKEN unless it is empty or one of [`produce`].
pub fn check_produce(token: &Bytes, cluster_id: &[u8]) -> Result<(), Refusal> {
    if token.is_empty() || *token == produce(cluster_id) {
        return Ok(());
    }
    Err(invalid())
}

/// The positions of a token of [`fetch`]; none for an empty one.
/// INVALID_RESUME_TOKEN for anything else.
pub fn read_fetch(token: &Bytes, cluster_id: &[u8]) -> Result<Vec<Position>, Refusal> {
    if token.is_empty() {
        return Ok(Vec::new());
    }
    let mut rest = token
        .strip_prefix(&head(b'F', cluster_id)[..])
        .ok_or_else(invalid)?;
    if !rest.len().is_multiple_of(POSITION_BYTES)
        || rest.len() / POSITION_BYTES > limits::FETCH_PARTITIONS_MAX
    {
        return Err(invalid());
    }
    let mut positions = Vec::with_capacity(rest.len() / POSITION_BYTES);
    while rest.has_remaining() {
        let id = rest.copy_to_bytes(16);
        positions.push(Position {
            partition: TopicPartition {
                topic_id: TopicId::from_slice(&id).ok_or_else(invalid)?,
                partition: PartitionIndex(rest.get_u32()),
            },
            next_offset: rest.get_i64(),
            last_epoch: rest.get_i32(),
        });
    }
    Ok(positions)
}

/// A token for a member of a group.
pub fn subscribe(cluster_id: &[u8], member: MemberId, group: &str) -> Bytes {
    let mut token = head(b'S', cluster_id);
    token.put_slice(member.as_bytes());
    token.put_slice(group.as_bytes());
    token.freeze()
}

/// The member of a token of [`subscribe`]; `None` for an empty one.
/// INVALID_RESUME_TOKEN for anything else, another group's too.
pub fn read_subscribe(
    token: &Bytes,
    cluster_id: &[u8],
    group: &str,
) -> Result<Option<MemberId>, Refusal> {
    if token.is_empty() {
        return Ok(None);
    }
    let rest = token
        .strip_prefix(&head(b'S', cluster_id)[..])
        .ok_or_else(invalid)?;
    let (member, of) = rest.split_at_checked(16).ok_or_else(invalid)?;
    if of != group.as_bytes() {
        return Err(invalid());
    }
    MemberId::from_slice(member).map(Some).ok_or_else(invalid)
}

fn invalid() -> Refusal {
    Refusal::new(
        ErrorCode::InvalidResumeToken,
        "the resume token was not made by a gateway of this cluster; open anew",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_members_token_is_good_for_its_group_only() {
        let member = MemberId::from_slice(&[9; 16]).expect("16 bytes");
        let token = subscribe(&[1; 16], member, "g");
        let read = |cluster: u8, group| read_subscribe(&token, &[cluster; 16], group);
        assert_eq!(read(1, "g").expect("reads"), Some(member));
        assert!(read(1, "h").is_err() && read(2, "g").is_err());
        assert!(read_fetch(&token, &[1; 16]).is_err(), "another kind");
        let none = read_subscribe(&Bytes::new(), &[1; 16], "g");
        assert_eq!(none.expect("empty"), None);
        for cut in 1..token.len() {
            assert!(read_subscribe(&token.slice(..cut), &[1; 16], "g").is_err());
        }
    }

    #[test]
    fn tokens_come_back_as_they_went_and_nothing_else_passes() {
        let position = |partition| Position {
            partition: TopicPartition {
                topic_id: TopicId::from_slice(&[3; 16]).expect("16 bytes"),
                partition: PartitionIndex(partition),
            },
            next_offset: i64::MAX,
            last_epoch: -1,
        };
        let positions = vec![position(0), position(7)];
        let token = fetch(&[1; 16], &positions);
        assert_eq!(read_fetch(&token, &[1; 16]).expect("reads"), positions);
        assert_eq!(read_fetch(&Bytes::new(), &[1; 16]).expect("empty"), vec![]);
        assert!(check_produce(&produce(&[1; 16]), &[1; 16]).is_ok());

        assert!(read_fetch(&token, &[2; 16]).is_err(), "another cluster");
        assert!(
            read_fetch(&produce(&[1; 16]), &[1; 16]).is_err(),
            "another kind"
        );
        assert!(check_produce(&token, &[1; 16]).is_err(), "another kind");
        for cut in 1..token.len() {
            if (cut - HEAD_BYTES.min(cut)) % POSITION_BYTES != 0 || cut < HEAD_BYTES {
                assert!(
                    read_fetch(&token.slice(..cut), &[1; 16]).is_err(),
                    "cut at {cut}"
                );
            }
        }
    }
}
