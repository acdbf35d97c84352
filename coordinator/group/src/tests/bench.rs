//! A group, its log, and what members were told.

use crate::*;
use std::collections::{BTreeMap, BTreeSet};
use talweg_types::{LeaderEpoch, MemberId, Offset, PartitionIndex, TopicId, TopicPartition};

pub(crate) struct Bench {
    pub group: Group,
    pub now: Now,
    pub topics: Topics,
    pub log: Vec<Record>,
    pub views: BTreeMap<MemberId, View>,
    pub removed: Vec<(MemberId, Removal)>,
}

pub(crate) fn id(n: u8) -> MemberId {
    MemberId::from_slice(&[n; 16]).unwrap()
}

pub(crate) fn topic_id(n: u8) -> TopicId {
    TopicId::from_slice(&[100 + n; 16]).unwrap()
}

/// Partition `p` of topic 0.
pub(crate) fn at(p: u32) -> TopicPartition {
    TopicPartition {
        topic_id: topic_id(0),
        partition: PartitionIndex(p),
    }
}

pub(crate) fn topics(partitions: &[usize]) -> Topics {
    Topics::new(partitions.iter().enumerate().map(|(n, count)| {
        let topic = Topic {
            id: topic_id(u8::try_from(n).unwrap()),
            racks: vec![vec![]; *count],
            derived: false,
        };
        (format!("t{n}"), topic)
    }))
}

pub(crate) fn meta() -> MemberMeta {
    MemberMeta {
        instance_id: None,
        client_id: "test".into(),
        rack: String::new(),
        kind: MemberKind::Streaming,
        subscription: Subscription::names(["t0"]),
        assignor: None,
        timeouts: Timeouts::default(),
        policy: DeadLetterPolicy::default(),
        reads_committed: false,
    }
}

pub(crate) fn named(instance: &str) -> MemberMeta {
    MemberMeta {
        instance_id: Some(instance.into()),
        ..meta()
    }
}

impl Bench {
    /// One topic, `t0`; targets are computed at once.
    pub fn new(partitions: usize) -> Self {
        let settings = Settings {
            assignment_interval_ms: 0,
            ..Settings::default()
        };
        Self {
            group: Group::new(settings),
            now: Now::default(),
            topics: topics(&[partitions]),
            log: Vec::new(),
            views: BTreeMap::new(),
            removed: Vec::new(),
        }
    }

    /// A committed step.
    pub fn send(&mut self, event: Event) -> Result<Answer, Refusal> {
        let step = self.group.step(self.now, &self.topics, event);
        self.log.extend(step.records);
        for effect in step.effects {
            match effect {
                Effect::Tell(view) => drop(self.views.insert(view.member, view)),
                Effect::Removed { member, why } => {
                    self.views.remove(&member);
                    self.removed.push((member, why));
                }
            }
        }
        if let Ok(Answer::View(view)) = &step.answer {
            self.views.insert(view.member, view.clone());
        }
        assert_eq!(self.group.check(), Ok(()));
        let replayed = GroupState::load(self.log.clone()).unwrap();
        assert_eq!(replayed, *self.group.state());
        step.answer
    }

    pub fn join_as(&mut self, n: u8, meta: MemberMeta) -> Result<Caller, Refusal> {
        self.claim(n, None, meta)
    }

    pub fn claim(&mut self, n: u8, claim: Option<u8>, meta: MemberMeta) -> Result<Caller, Refusal> {
        let join = Join {
            new_id: id(n),
            claim: claim.map(id),
            meta,
        };
        match self.send(Event::Join(join))? {
            Answer::View(view) => Ok(Caller {
                member: view.member,
                epoch: view.epoch,
            }),
            other => panic!("{other:?}"),
        }
    }

    pub fn join(&mut self, n: u8) -> Caller {
        self.join_as(n, meta()).unwrap()
    }

    /// As the member would present itself after its last view.
    pub fn caller(&self, n: u8) -> Caller {
        Caller {
            member: id(n),
            epoch: self.views[&id(n)].epoch,
        }
    }

    pub fn confirm(&mut self, n: u8) {
        let event = self.confirmation(n);
        self.send(event).unwrap();
    }

    pub fn confirmation(&self, n: u8) -> Event {
        Event::Revoked {
            caller: self.caller(n),
            partitions: self.views[&id(n)].revoking.clone(),
        }
    }

    /// Partitions of topic 0 that the member was told it has.
    pub fn has(&self, n: u8) -> Vec<u32> {
        let view = &self.views[&id(n)];
        view.assigned.keys().map(|at| at.partition.0).collect()
    }

    pub fn revoking(&self, n: u8) -> BTreeSet<TopicPartition> {
        self.views[&id(n)].revoking.clone()
    }

    /// Time passes; members in `alive` send heartbeats.
    pub fn pass(&mut self, ms: u64, alive: &[u8]) {
        self.now.monotonic = self.now.monotonic.plus(ms);
        self.now.wall.0 += i64::try_from(ms).unwrap();
        for n in alive {
            let caller = self.caller(*n);
            self.send(Event::Heartbeat(caller)).unwrap();
        }
        self.send(Event::Tick).unwrap();
    }

    pub fn broken(&mut self, n: u8, in_flight: Option<&[u32]>) {
        let in_flight = in_flight.map(|some| some.iter().map(|p| at(*p)).collect());
        let caller = self.caller(n);
        self.send(Event::StreamBroken { caller, in_flight })
            .unwrap();
    }

    pub fn commit_as(
        &mut self,
        by: Committer,
        kind: CommitKind,
        p: u32,
        offset: i64,
    ) -> Result<Committed, Refusal> {
        let item = CommitItem {
            at: at(p),
            offset: Offset(offset),
            leader_epoch: LeaderEpoch(3),
            metadata: String::new(),
            bounds: Bounds::Log {
                log_start: Offset(0),
                high_watermark: Offset(1_000),
            },
        };
        let items = vec![item];
        match self.send(Event::Commit(Commit { by, kind, items }))? {
            Answer::Committed(answers) => answers.into_iter().next().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    pub fn commit(&mut self, caller: Caller, p: u32, offset: i64) -> Result<Committed, Refusal> {
        self.commit_as(Committer::Member(caller), CommitKind::Commit, p, offset)
    }

    pub fn stored(&self, p: u32) -> Option<i64> {
        self.group
            .state()
            .offsets()
            .get(&at(p))
            .map(|stored| stored.offset.0)
    }

    pub fn delivery(&self, n: u8, p: u32) -> Delivery {
        self.views[&id(n)].assigned[&at(p)].delivery
    }

    /// The coordinator moves: a new one loads the log.
    pub fn fail_over(&mut self) {
        let settings = Settings {
            assignment_interval_ms: 0,
            ..Settings::default()
        };
        self.group = Group::load(settings, self.now, self.log.clone()).unwrap();
        self.send(Event::TopicsChanged).unwrap();
    }
}
