//! What was decided, on its way to whoever waits for it.

use super::{
    converse::Voice,
    task::Task,
    waiters::{GroupAnswer, Waiter, end_name, merge, passed, short_of, what},
};
use crate::{convert, refusals};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use talweg_coordinator_runtime::{Input, Outcome};
use talweg_group::{Answer, Effect, Event, Group};
use talweg_kit::errors::Refusal;
use talweg_proto::coordinator::v1::converse_response::What;
use talweg_types::TopicPartition;

impl Task {
    pub fn on_answer(
        &mut self,
        token: u64,
        number: u64,
        wrote: bool,
        outcome: Outcome<GroupAnswer>,
    ) -> Option<Input<Group>> {
        let shard = self.handle.at.partition.0;
        self.node.metrics.ended(end_name(&outcome));
        // What is in the log was decided by whoever holds the shard. The rest might be old.
        let unsure = !wrote && !self.node.is_in_session();
        let decided = matches!(outcome, Outcome::Decided(_) | Outcome::Passed(_));
        let mut again = None;
        match self.waiters.remove(&token) {
            None => {}
            Some(Waiter::Link {
                link,
                request_id,
                group,
                refused,
                at,
                member,
            }) => {
                self.note_commits(&group, &at, &refused, &outcome);
                again = self.routes.on_answer(&group, member, &link, &outcome);
                if withholds_view(&outcome, unsure) {
                    again = again.or_else(|| unheard(&group, member));
                }
                let epoch = self.handle.epoch.0;
                let what = match unsure && decided {
                    true => What::Error(refusals::no_session().detail()),
                    false => what(outcome, refused, epoch, number, shard),
                };
                link.answer(request_id, &group, what);
            }
            Some(Waiter::Do { reply, group, at }) => {
                self.note_commits(&group, &at, &Default::default(), &outcome);
                let answer = match (short_of(&outcome, shard), outcome) {
                    _ if unsure && decided => Err(refusals::no_session()),
                    (Some(refusal), _) => Err(refusal),
                    (None, Outcome::Decided(Ok(answer))) => Ok(answer),
                    (None, _) => Ok(Answer::Done),
                };
                // Whoever asked may have gone.
                let _ = reply.send(answer);
            }
            Some(Waiter::Read(release)) if unsure => release(Err(refusals::no_session())),
            Some(Waiter::Read(release)) => release(passed(&outcome, shard)),
            Some(Waiter::Check {
                hash,
                groups,
                reply,
            }) => match passed(&outcome, shard) {
                Ok(applied) => self.keeping.check(hash, groups, applied, reply),
                Err(refusal) => drop(reply.send(Err(refusal))),
            },
        }
        again
    }

    /// Acknowledged commits, for the pace.
    fn note_commits(
        &mut self,
        group: &Arc<str>,
        at: &[TopicPartition],
        refused: &BTreeMap<usize, Refusal>,
        outcome: &Outcome<GroupAnswer>,
    ) {
        let Outcome::Decided(Ok(Answer::Committed(results))) = outcome else {
            return;
        };
        let now = self.node.now().monotonic;
        let merged = merge(results.clone(), refused.clone());
        for (at, stored) in at.iter().zip(merged) {
            if let Ok(stored) = stored {
                self.node.metrics.offset_commits.inc();
                self.pace.committed(group, *at, stored.offset, now);
            }
        }
    }

    pub fn on_effect(&mut self, group: &Arc<str>, number: u64, effect: Effect) {
        let (member, what) = match effect {
            Effect::Tell(view) => {
                let epoch = self.handle.epoch.0;
                (view.member, What::View(convert::view(&view, epoch, number)))
            }
            Effect::Removed { member, why } => {
                (member, What::Removed(convert::removed(member, why)))
            }
        };
        let gone = matches!(what, What::Removed(_));
        if let Some(link) = self.routes.get(group, member) {
            // One that is missed is mended by the next, or by a heartbeat's answer.
            link.answer(0, group, what);
        }
        if gone {
            self.routes.remove(group, member);
        }
    }
}

/// A view was decided, and is not given after all. A sign of life that is answered
/// without one waits for nothing: if one waited in vain, it was for its view.
fn withholds_view(outcome: &Outcome<GroupAnswer>, unsure: bool) -> bool {
    match outcome {
        Outcome::Decided(Ok(Answer::View(_))) => unsure,
        Outcome::NotDone | Outcome::Throttled { .. } => true,
        _ => false,
    }
}

/// Nothing would repeat the view: the group took the stream for known when it decided. As
/// with a broken link, the next heartbeat is answered with the view.
fn unheard(group: &Arc<str>, voice: Voice) -> Option<Input<Group>> {
    let Voice::Here(member) = voice else {
        return None;
    };
    Some(Input::Event {
        name: Arc::clone(group),
        event: Event::LinkBroken(BTreeSet::from([member])),
    })
}

/// The partitions of a commit, in its order.
pub fn committed_partitions(event: &Event) -> Vec<TopicPartition> {
    match event {
        Event::Commit(commit) => commit.items.iter().map(|item| item.at).collect(),
        _ => Vec::new(),
    }
}
