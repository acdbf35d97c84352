//! What gateways say, and the way back to them.

use super::{
    answers::committed_partitions,
    task::Task,
    waiters::{GroupAnswer, Waiter},
};
use crate::{convert::Asked, link::Link};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use talweg_coordinator_runtime::{Input, Outcome};
use talweg_group::{Answer, Event, Group, MemberKind};
use talweg_kit::errors::Refusal;
use talweg_proto::coordinator::v1::{ConverseResponse, ShardsMoved, converse_response::What};
use talweg_types::MemberId;

/// What an answer says about a member's stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Voice {
    /// Nothing.
    Silent,
    /// It is open at this gateway.
    Here(MemberId),
    /// Of a join: the member that the answer names.
    Joined,
    /// It is open here no more.
    Gone(MemberId),
}

impl Voice {
    fn of(event: &Event) -> Self {
        match event {
            Event::Join(join) if join.meta.kind == MemberKind::Streaming => Self::Joined,
            Event::Heartbeat(caller) | Event::Revoked { caller, .. } => Self::Here(caller.member),
            Event::StreamBroken { caller, .. } => Self::Gone(caller.member),
            _ => Self::Silent,
        }
    }
}

/// By group and streaming member: where its stream is.
#[derive(Default)]
pub struct Routes {
    links: BTreeMap<(Arc<str>, MemberId), Arc<Link>>,
}

impl Routes {
    pub fn get(&self, group: &Arc<str>, member: MemberId) -> Option<&Arc<Link>> {
        self.links.get(&(Arc::clone(group), member))
    }

    pub fn remove(&mut self, group: &Arc<str>, member: MemberId) {
        self.links.remove(&(Arc::clone(group), member));
    }

    /// Only what the group took is believed. If the link has ended meanwhile, the
    /// group is to hear that.
    pub fn on_answer(
        &mut self,
        group: &Arc<str>,
        voice: Voice,
        link: &Arc<Link>,
        outcome: &Outcome<GroupAnswer>,
    ) -> Option<Input<Group>> {
        let Outcome::Decided(Ok(answer)) = outcome else {
            return None;
        };
        let here = match (voice, answer) {
            (Voice::Joined, Answer::View(view)) => view.member,
            (Voice::Here(member), _) => member,
            (Voice::Gone(member), _) => {
                let at_this = self.get(group, member).is_some_and(|it| it.id == link.id);
                if at_this {
                    self.remove(group, member);
                }
                return None;
            }
            (Voice::Silent | Voice::Joined, _) => return None,
        };
        let lost = || Input::Event {
            name: Arc::clone(group),
            event: Event::LinkBroken(BTreeSet::from([here])),
        };
        if link.is_over() {
            return Some(lost());
        }
        let key = (Arc::clone(group), here);
        let earlier = self.links.insert(key, Arc::clone(link));
        // A sign of life may come by a new link before the end of the earlier one is
        // known: views may have been lost with it all the same.
        let moved = earlier.is_some_and(|earlier| earlier.id != link.id);
        let unheard = moved && matches!(voice, Voice::Here(_));
        unheard.then(lost)
    }

    /// The members whose streams were behind the link, by group.
    pub fn remove_link(&mut self, id: u64) -> BTreeMap<Arc<str>, BTreeSet<MemberId>> {
        let mut gone: BTreeMap<Arc<str>, BTreeSet<MemberId>> = BTreeMap::new();
        self.links.retain(|(group, member), link| {
            let stays = link.id != id;
            if !stays {
                gone.entry(Arc::clone(group)).or_default().insert(*member);
            }
            stays
        });
        gone
    }

    /// Tells each gateway with members here that the shard moves.
    pub fn say_moved(&self, shard: u32) {
        let mut told = BTreeSet::new();
        for link in self.links.values() {
            if told.insert(link.id) {
                link.send(ConverseResponse {
                    request_id: 0,
                    group: String::new(),
                    what: Some(What::ShardsMoved(ShardsMoved {
                        shards: vec![shard],
                    })),
                });
            }
        }
    }
}

impl Task {
    /// Requests of one group are decided in order: also behind a commit that waits
    /// for a leader's word.
    pub fn on_said(&mut self, said: Said) {
        if let Some(said) = self.parking.behind(said) {
            self.say(said);
        }
    }

    pub fn say(&mut self, said: Said) {
        if let Some(said) = self.look_up_bounds(said) {
            self.decide_said(said, BTreeMap::new());
        }
    }

    /// `refused`: by place, items of the commit that are not in it any more.
    pub fn decide_said(&mut self, said: Said, refused: BTreeMap<usize, Refusal>) {
        let Said {
            link,
            request_id,
            group,
            asked,
            bytes: _,
        } = said;
        let mut at = committed_partitions(&asked.event);
        // In the order of the request, for the pace; those refused name nothing.
        for place in refused.keys() {
            let filler = at.first().copied();
            if let Some(filler) = filler.filter(|_| *place <= at.len()) {
                at.insert(*place, filler);
            }
        }
        let waiter = Waiter::Link {
            link,
            request_id,
            group: Arc::clone(&group),
            refused,
            at,
            member: Voice::of(&asked.event),
        };
        self.request(group, asked.event, waiter);
    }
}

/// One request of a gateway.
pub struct Said {
    pub link: Arc<Link>,
    pub request_id: u64,
    pub group: Arc<str>,
    pub asked: Asked,
    /// As it came.
    pub bytes: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Links;
    use talweg_kit::metrics::IntCounter;

    /// A gateway's new link is used before the end of its earlier one was heard: the
    /// member is asked for as after a broken link, once.
    #[test]
    fn a_member_that_comes_by_another_link_may_have_missed_its_view() {
        let (links, mut routes) = (Links::default(), Routes::default());
        let (group, member) = (
            Arc::from("g"),
            MemberId::from_slice(&[7; 16]).expect("an id"),
        );
        let counter = || IntCounter::new("cuts", "of the test").expect("a name");
        let (first, _a) = links.open(1, b"p", counter());
        let (second, _b) = links.open(1, b"q", counter());
        let done = Outcome::Decided(Ok(Answer::Done));
        let mut here = |link| routes.on_answer(&group, Voice::Here(member), link, &done);
        assert!(here(&first).is_none());
        assert!(here(&first).is_none());
        assert!(matches!(
            here(&second),
            Some(Input::Event { event: Event::LinkBroken(members), .. }) if members == BTreeSet::from([member])
        ));
        assert!(here(&second).is_none());
        assert!(routes.remove_link(first.id).is_empty());
    }
}
