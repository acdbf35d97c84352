//! Members without a stream. They live by their polls; what they were sent is
//! kept here, so that any gateway goes on from there.

use crate::{Answer, Caller, MemberEpoch, MemberKind, Refusal, turn::Turn};
use std::collections::BTreeMap;
use talweg_types::{MemberId, Offset, TopicPartition};

impl Turn<'_> {
    pub fn on_poll(
        &mut self,
        member: MemberId,
        epoch: Option<MemberEpoch>,
    ) -> Result<Answer, Refusal> {
        let caller = self.http_caller(member, epoch)?;
        self.renew(member);
        // It has come back from its last answer: done with what was asked back.
        let current = self.state.currents.get(&member);
        let owned = current.into_iter().flat_map(|current| &current.owned);
        let done = owned.filter(|(_, owned)| owned.revoking && owned.given_epoch <= caller.epoch);
        let done: Vec<_> = done.map(|(at, _)| *at).collect();
        self.release(member, &done);
        self.answer_view(member)
    }

    pub fn on_returned(
        &mut self,
        member: MemberId,
        epoch: Option<MemberEpoch>,
        next: BTreeMap<TopicPartition, Offset>,
    ) -> Result<Answer, Refusal> {
        let caller = self.http_caller(member, epoch)?;
        self.renew(member);
        let owned = self
            .state
            .currents
            .get(&member)
            .map(|current| &current.owned);
        let Some(session) = self.live.sessions.get_mut(&member) else {
            return Err(Refusal::UnknownMember(member));
        };
        for (at, offset) in next {
            let owned = owned.and_then(|owned| owned.get(&at));
            if owned.is_some_and(|owned| owned.given_epoch <= caller.epoch) {
                session.positions.insert(at, offset);
            }
        }
        Ok(Answer::Done)
    }

    /// The shared member's callers know no epoch; theirs is the present one.
    fn http_caller(&self, member: MemberId, epoch: Option<MemberEpoch>) -> Result<Caller, Refusal> {
        let state = &self.state;
        let (Some(meta), Some(current)) = (state.members.get(&member), state.currents.get(&member))
        else {
            return Err(Refusal::UnknownMember(member));
        };
        let epoch = match (meta.kind, epoch) {
            (MemberKind::HttpShared, _) => current.member_epoch,
            (MemberKind::Http, Some(epoch)) => epoch,
            (MemberKind::Http, None) => {
                return Err(Refusal::invalid("member", "the token has no epoch"));
            }
            (MemberKind::Streaming, _) => {
                return Err(Refusal::invalid(
                    "member",
                    "it has a stream; it does not poll",
                ));
            }
        };
        let caller = Caller { member, epoch };
        self.check_caller(caller)?;
        Ok(caller)
    }
}
