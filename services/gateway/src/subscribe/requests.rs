//! A member's requests, as the coordinator takes them.

use super::core::{Answer, Request};
use crate::groups::{member_bytes, partition_ref};
use talweg_kit::errors::Refusal;
use talweg_proto::coordinator::v1::{
    Caller, CommitEvent, JoinEvent, MemberProfile, PartitionsEvent, StreamBrokenEvent,
    converse_request::Event, converse_response::What,
};
use talweg_types::{MemberId, TopicPartition};

/// A member in one of its lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Who {
    pub member: MemberId,
    pub epoch: i32,
}

impl Who {
    fn caller(self) -> Caller {
        Caller {
            member_id: member_bytes(self.member),
            member_epoch: self.epoch,
        }
    }

    /// `profile` is asked for where the member joins again, with these topics.
    pub fn event(
        self,
        request: Request,
        profile: impl FnOnce(Vec<String>) -> MemberProfile,
    ) -> Event {
        match request {
            Request::Heartbeat => Event::Heartbeat(self.caller()),
            Request::Leave => Event::Leave(self.caller()),
            Request::Revoked(partitions) => Event::Revoked(self.partitions(&partitions)),
            Request::Overran(partitions) => Event::Overran(self.partitions(&partitions)),
            Request::Commit { seek, offsets } => Event::Commit(CommitEvent {
                caller: Some(self.caller()),
                seek,
                offsets,
            }),
            Request::Rejoin(topics) => Event::Join(JoinEvent {
                new_member_id: member_bytes(self.member),
                claim: member_bytes(self.member),
                profile: Some(profile(topics)),
            }),
        }
    }

    fn partitions(self, partitions: &[TopicPartition]) -> PartitionsEvent {
        PartitionsEvent {
            caller: Some(self.caller()),
            partitions: partitions.iter().copied().map(partition_ref).collect(),
        }
    }

    /// Its stream ended without a leave.
    pub fn broken(self, in_flight: &[TopicPartition]) -> Event {
        Event::StreamBroken(StreamBrokenEvent {
            caller: Some(self.caller()),
            in_flight_known: true,
            in_flight: in_flight.iter().copied().map(partition_ref).collect(),
        })
    }
}

/// The answers that a member can get.
pub fn answer(what: What) -> Result<Answer, Refusal> {
    match what {
        What::Done(_) => Ok(Answer::Done),
        What::View(view) => Ok(Answer::View(view)),
        What::Committed(results) => Ok(Answer::Committed(results.results)),
        What::Error(detail) => Err(Refusal::from_detail(detail)),
        What::Removed(_) | What::ShardsMoved(_) => Err(Refusal::internal(
            "the coordinator answered with what it says unasked",
        )),
    }
}
