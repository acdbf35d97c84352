//! What the core costs, for a look: `cargo test -p talweg-group figures -- --ignored --nocapture`.

use super::bench::*;
use crate::*;
use std::time::Instant;
use talweg_types::{LeaderEpoch, MemberId, Offset};

fn big_id(n: usize) -> MemberId {
    let mut bytes = [1; 16];
    bytes[8..].copy_from_slice(&u64::try_from(n).unwrap().to_be_bytes());
    MemberId::from_slice(&bytes).unwrap()
}

fn commit(caller: Caller, p: u32, offset: i64) -> Event {
    let item = CommitItem {
        at: at(p),
        offset: Offset(offset),
        leader_epoch: LeaderEpoch(0),
        metadata: String::new(),
        bounds: Bounds::Delivered,
    };
    Event::Commit(Commit {
        by: Committer::Member(caller),
        kind: CommitKind::Commit,
        items: vec![item],
    })
}

#[test]
#[ignore = "figures"]
fn commits_and_loads() {
    let mut bench = Bench::new(10);
    let me = bench.join(1);
    let began = Instant::now();
    for offset in 0..200_000 {
        let step = bench
            .group
            .step(bench.now, &bench.topics, commit(me, 0, offset));
        assert_eq!(step.records.len(), 1);
    }
    println!("200,000 commits of one offset: {:?}", began.elapsed());
    for p in 1..10 {
        let event = commit(me, p, 500);
        let step = bench.group.step(bench.now, &bench.topics, event);
        assert_eq!(step.records.len(), 1);
    }
    assert_eq!(bench.group.state().offsets().len(), 10);
    let records = bench.group.state().snapshot();
    let began = Instant::now();
    let groups: Vec<_> = (0..10_000)
        .map(|_| Group::load(Settings::default(), bench.now, records.clone()).unwrap())
        .collect();
    println!(
        "{} groups of 10 offsets loaded: {:?}",
        groups.len(),
        began.elapsed()
    );
}

#[test]
#[ignore = "figures"]
fn three_hundred_members_form_a_group() {
    let mut group = Group::new(Settings::default());
    let topics = topics(&[300]);
    let mut now = Now::default();
    let (mut records, mut queue) = (0, Vec::new());
    let began = Instant::now();
    for n in 0..300 {
        let join = Join {
            new_id: big_id(n),
            claim: None,
            meta: meta(),
        };
        queue.push(Event::Join(join));
    }
    queue.reverse();
    while group.status() != GroupStatus::Stable || !queue.is_empty() {
        let event = queue.pop().unwrap_or_else(|| {
            now.monotonic = now.monotonic.plus(10);
            Event::Tick
        });
        let step = group.step(now, &topics, event);
        records += step.records.len();
        for effect in step.effects {
            if let Effect::Tell(view) = effect
                && !view.revoking.is_empty()
            {
                let caller = Caller {
                    member: view.member,
                    epoch: view.epoch,
                };
                let partitions = view.revoking;
                queue.insert(0, Event::Revoked { caller, partitions });
            }
        }
    }
    let took = began.elapsed();
    println!(
        "300 members on 300 partitions: {took:?}, {records} records, {:?} of its time",
        now.monotonic
    );
    let began = Instant::now();
    let step = group.step(
        now,
        &topics,
        Event::Leave(Caller {
            member: big_id(7),
            epoch: group.state().current(big_id(7)).unwrap().member_epoch,
        }),
    );
    println!(
        "one leaves: {:?}, {} records",
        began.elapsed(),
        step.records.len()
    );
}
