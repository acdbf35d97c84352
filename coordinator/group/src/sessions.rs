//! Signs of life, and what happens when they stop.

use crate::{Answer, Caller, Refusal, Removal, live::Stream, turn::Turn};
use std::collections::BTreeSet;
use talweg_types::{MemberId, TopicPartition};

impl Turn<'_> {
    pub fn on_heartbeat(&mut self, caller: Caller) -> Result<Answer, Refusal> {
        self.check_caller(caller)?;
        self.renew(caller.member);
        let Some((session, _)) = self.session(caller.member) else {
            return Err(Refusal::UnknownMember(caller.member));
        };
        match session.stream {
            // The stream outlived a move of the coordinator; views may have been lost.
            Stream::Unknown { .. } => {
                session.stream = Stream::Open;
                self.answer_view(caller.member)
            }
            // A broken stream does not come back; a heartbeat of it is late.
            Stream::Open | Stream::Broken(_) | Stream::Never => Ok(Answer::Done),
        }
    }

    /// The session goes on: the member may come back with its token.
    pub fn on_stream_broken(
        &mut self,
        caller: Caller,
        in_flight: Option<BTreeSet<TopicPartition>>,
    ) -> Result<Answer, Refusal> {
        self.check_caller(caller)?;
        if let Some((session, _)) = self.session(caller.member)
            && matches!(session.stream, Stream::Open | Stream::Unknown { .. })
        {
            session.stream = Stream::Broken(in_flight);
        }
        Ok(Answer::Done)
    }

    /// Views may have been lost with the link: the heartbeat by which a stream is
    /// known again is answered with the newest.
    pub fn on_link_broken(&mut self, members: &BTreeSet<MemberId>) -> Result<Answer, Refusal> {
        let until = self.now.monotonic.plus(self.settings.reattach_grace_ms);
        for id in members {
            if let Some((session, _)) = self.session(*id)
                && session.stream == Stream::Open
            {
                session.stream = Stream::Unknown { until };
            }
        }
        Ok(Answer::Done)
    }

    pub fn on_tick(&mut self) -> Result<Answer, Refusal> {
        let now = self.now.monotonic;
        let sessions = self.live.sessions.iter();
        let expired = sessions.filter(|(_, session)| session.expires <= now);
        for id in expired.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.count_death(id);
            self.remove_member(id, Removal::SessionExpired);
        }
        self.release_overdue();
        self.assign_if_due();
        self.forget_on();
        Ok(Answer::Done)
    }
}
