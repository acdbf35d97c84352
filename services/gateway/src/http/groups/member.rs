//! Who asks: the `X-Member-Id` header.

use crate::http::reply::Failure;
use axum::{extract::FromRequestParts, http::request::Parts};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use std::collections::BTreeSet;
use talweg_batch::murmur2;
use talweg_proto::coordinator::v1::{Caller, MemberKind};
use talweg_types::MemberId;

const HEADER: &str = "x-member-id";
/// The value that asks for a member of one's own.
const NEW: &str = "new";
/// Callers without a member of their own are this one, in every group.
const SHARED: [u8; 16] = *b"talweg-http-all\0";

/// What the header says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said {
    /// No header: the shared member.
    Nothing,
    /// A member is to be made.
    New,
    /// A token of an earlier answer.
    Token {
        member: Bytes,
        epoch: i32,
        /// Which topics the member has, see [`mark_of`]; absent from earlier versions.
        topics: Option<u32>,
    },
}

/// A member of this surface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    pub id: Bytes,
    /// Absent only for the shared member, whose callers need not know it.
    pub epoch: Option<i32>,
    pub kind: MemberKind,
}

impl Said {
    /// INVALID_ARGUMENT for what is no token.
    fn parse(text: &str) -> Result<Self, Failure> {
        if text == NEW {
            return Ok(Self::New);
        }
        let odd = || Failure::invalid("X-Member-Id", "no member token of an earlier answer");
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| odd())?;
        let (member, rest) = bytes.split_first_chunk::<16>().ok_or_else(odd)?;
        let (epoch, rest) = rest.split_first_chunk::<4>().ok_or_else(odd)?;
        let topics = match rest {
            [] => None,
            rest => Some(<[u8; 4]>::try_from(rest).map_err(|_| odd())?),
        };
        Ok(Self::Token {
            member: Bytes::copy_from_slice(member),
            epoch: i32::from_be_bytes(*epoch),
            topics: topics.map(u32::from_be_bytes),
        })
    }

    pub fn member(&self) -> Member {
        let shared = Bytes::from_static(&SHARED);
        match self {
            Self::Nothing => Member {
                id: shared,
                epoch: None,
                kind: MemberKind::HttpShared,
            },
            Self::New => Member {
                id: crate::groups::member_bytes(MemberId(uuid::Uuid::now_v7())),
                epoch: None,
                kind: MemberKind::Http,
            },
            Self::Token { member, epoch, .. } => Member {
                kind: match *member == shared {
                    true => MemberKind::HttpShared,
                    false => MemberKind::Http,
                },
                id: member.clone(),
                epoch: Some(*epoch),
            },
        }
    }

    /// The member has its topics already, and they are not these.
    pub fn has_others_than(&self, topics: &[String]) -> bool {
        match self {
            Self::Token {
                topics: Some(mark), ..
            } => *mark != mark_of(topics),
            Self::Token { topics: None, .. } | Self::Nothing | Self::New => false,
        }
    }

    /// Who commits: nobody in particular, or the member of the token.
    pub fn caller(&self) -> Result<Option<Caller>, Failure> {
        match self {
            Self::Nothing => Ok(None),
            Self::New => Err(Failure::invalid(
                "X-Member-Id",
                "a new member has read nothing",
            )),
            Self::Token { member, epoch, .. } => Ok(Some(Caller {
                member_id: member.clone(),
                member_epoch: *epoch,
            })),
        }
    }
}

/// The token of a member in this epoch, with these topics.
pub fn token(member: &[u8], epoch: i32, topics: &[String]) -> String {
    let mark = mark_of(topics).to_be_bytes();
    URL_SAFE_NO_PAD.encode([member, &epoch.to_be_bytes(), &mark].concat())
}

/// Tells one set of topics from another, whatever their order.
fn mark_of(topics: &[String]) -> u32 {
    let topics: BTreeSet<&str> = topics.iter().map(String::as_str).collect();
    let names: Vec<&str> = topics.into_iter().collect();
    murmur2(names.join("\0").as_bytes())
}

impl<S: Send + Sync> FromRequestParts<S> for Said {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        match parts.headers.get(HEADER) {
            None => Ok(Self::Nothing),
            Some(value) => {
                let text = value.to_str();
                Self::parse(text.map_err(|_| Failure::invalid("X-Member-Id", "not ASCII"))?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_and_nothing_else_passes() {
        let said = Said::parse(&token(&[7; 16], 9, &[])).expect("a token");
        let expected = Member {
            id: vec![7; 16].into(),
            epoch: Some(9),
            kind: MemberKind::Http,
        };
        assert_eq!(said.member(), expected);
        let shared = Said::parse(&token(&SHARED, 3, &[])).expect("a token");
        assert_eq!(shared.member().kind, MemberKind::HttpShared);
        assert_eq!(Said::Nothing.member().id, shared.member().id);
        assert_eq!(Said::parse("new").expect("new"), Said::New);
        let (short, long) = (token(&[1; 15], 3, &[]), token(&[1; 17], 3, &[]));
        for odd in ["", "x", "AAAA", &short, &long] {
            assert!(Said::parse(odd).is_err(), "{odd:?}");
        }
        assert!(Said::New.caller().is_err());
        let earlier = URL_SAFE_NO_PAD.encode([&[7; 16][..], &9_i32.to_be_bytes()].concat());
        let earlier = Said::parse(&earlier).expect("a token of an earlier version");
        assert_eq!(earlier.member(), expected);
        assert!(!earlier.has_others_than(&["t".to_owned()]), "nobody knows");
    }

    /// Story: a member that polled one topic asks for another one.
    #[test]
    fn a_token_knows_the_topics_of_its_member() {
        let topics =
            |names: &[&str]| -> Vec<String> { names.iter().map(|it| (*it).into()).collect() };
        let said = Said::parse(&token(&[7; 16], 9, &topics(&["a", "b"]))).expect("a token");
        assert!(!said.has_others_than(&topics(&["b", "a", "a"])));
        assert!(said.has_others_than(&topics(&["a"])));
        assert!(said.has_others_than(&topics(&["ab"])));
        assert!(!Said::Nothing.has_others_than(&topics(&["a"])));
    }
}
