//! A shard whose log does not answer.

use crate::{Input, Limits, Now, Outcome, Output, Shard};
use std::sync::Arc;
use talweg_group::{
    Answer, Bounds, Caller, Commit, CommitItem, CommitKind, Committer, DeadLetterPolicy, Event,
    Group, Join, MemberKind, MemberMeta, Settings, Subscription, Timeouts, Topic, Topics,
};
use talweg_types::{LeaderEpoch, MemberId, Offset, PartitionIndex, TopicId, TopicPartition};

fn topics() -> Topics {
    let topic = Topic {
        id: TopicId::NIL,
        racks: vec![Vec::new(); 2],
        derived: false,
    };
    Topics::new([("t".to_owned(), topic)])
}

struct Bench {
    shard: Shard<Group>,
    topics: Topics,
    next_token: u64,
}

impl Bench {
    fn new(waiting: usize) -> Self {
        let limits = Limits {
            waiting,
            ..Limits::for_batches_of(1 << 20)
        };
        Self {
            shard: Shard::empty(Settings::default(), limits),
            topics: topics(),
            next_token: 0,
        }
    }

    fn step(&mut self, input: Input<Group>) -> Vec<Output<Group>> {
        self.shard.step(Now::default(), &self.topics, input)
    }

    /// The answer, if it came at once.
    fn ask(&mut self, event: Event) -> Option<Outcome<<Group as crate::Machine>::Answer>> {
        self.next_token += 1;
        let token = self.next_token;
        let name: Arc<str> = "g".into();
        let out = self.step(Input::Request { token, name, event });
        answer_to(token, out)
    }

    fn member(&mut self) -> Caller {
        let meta = MemberMeta {
            instance_id: None,
            client_id: "test".into(),
            rack: String::new(),
            kind: MemberKind::Streaming,
            subscription: Subscription::names(["t"]),
            assignor: None,
            timeouts: Timeouts::default(),
            policy: DeadLetterPolicy::default(),
            reads_committed: false,
        };
        let join = Join {
            new_id: MemberId::from_slice(&[1; 16]).expect("16 bytes"),
            claim: None,
            meta,
        };
        assert!(
            self.ask(Event::Join(join)).is_none(),
            "it waits for the log"
        );
        let last_offset = Offset(10);
        let out = self.step(Input::Appended { id: 1, last_offset });
        match answer_to(1, out) {
            Some(Outcome::Decided(Ok(Answer::View(view)))) => Caller {
                member: view.member,
                epoch: view.epoch,
            },
            other => panic!("{other:?}"),
        }
    }

    fn commit(
        &mut self,
        by: Caller,
        offset: i64,
    ) -> Option<Outcome<<Group as crate::Machine>::Answer>> {
        let item = CommitItem {
            at: TopicPartition {
                topic_id: TopicId::NIL,
                partition: PartitionIndex(0),
            },
            offset: Offset(offset),
            leader_epoch: LeaderEpoch(0),
            metadata: String::new(),
            bounds: Bounds::Delivered,
        };
        self.ask(Event::Commit(Commit {
            by: Committer::Member(by),
            kind: CommitKind::Commit,
            items: vec![item],
        }))
    }
}

fn answer_to(
    asked: u64,
    out: Vec<Output<Group>>,
) -> Option<Outcome<<Group as crate::Machine>::Answer>> {
    out.into_iter().find_map(|output| match output {
        Output::Answer { token, outcome, .. } if token == asked => Some(outcome),
        _ => None,
    })
}

/// Story: the log hangs and the queue is full. Who lives is heard at once all the
/// same, or every member would be out when the log is back; reads are refused, for
/// their number is bounded too.
#[test]
fn signs_of_life_need_no_log_and_nothing_waits_without_bound() {
    let mut bench = Bench::new(10);
    let me = bench.member();
    for offset in 1..=10 {
        assert!(bench.commit(me, offset).is_none(), "it waits");
    }
    let throttled = Some(Outcome::Throttled { limit: 10 });
    assert_eq!(bench.commit(me, 11), throttled);
    for _ in 0..100 {
        let heard = bench.ask(Event::Heartbeat(me));
        assert_eq!(heard, Some(Outcome::Decided(Ok(Answer::Done))));
    }
    let out = bench.step(Input::Barrier {
        token: 999,
        seal: false,
    });
    assert_eq!(answer_to(999, out), throttled);
    // What only time and links say waits for nothing either.
    let waiting = bench.shard.waiting();
    for _ in 0..100 {
        let event = Event::LinkBroken([me.member].into());
        bench.step(Input::Event {
            name: "g".into(),
            event,
        });
        bench.step(Input::All(Event::Expire {
            retention_ms: 1_000,
        }));
    }
    assert_eq!(bench.shard.waiting(), waiting);
    // A view rests on what is not committed, and there is no room to wait.
    assert_eq!(bench.ask(Event::Heartbeat(me)), throttled);
}

/// A sign of life is answered ahead of what was decided before it, but what it says
/// about the group is not.
#[test]
fn a_refusal_of_a_sign_of_life_waits_for_what_it_rests_on() {
    let mut bench = Bench::new(10);
    let me = bench.member();
    assert!(bench.ask(Event::Leave(me)).is_none());
    assert!(
        bench.ask(Event::Heartbeat(me)).is_none(),
        "it may still be in"
    );
}
