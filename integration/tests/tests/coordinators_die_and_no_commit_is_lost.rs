//! The coordinator of a group is killed again and again while its members commit:
//! no acknowledged commit is lost, members go on within a second, and what they are
//! being sent does not pause. Groups that nobody reads for are committed just before each
//! kill and have exactly that after it: no later commit hides a lost one.
//!
//! `TALWEG_KILLS`: how often (4; the soak takes 50).

mod operator;

use futures::future::join_all;
use operator::{PATIENCE, list, talweg, try_talweg};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use talweg_harness::{
    Load, Member, Stack, eventually,
    member::{Commits, Heard, Place, subscription},
    raw::{self, connect, create_topic},
};
use talweg_proto::v1::{self, Acks};
use tonic::transport::Channel;

const PARTITIONS: u32 = 6;
const MEMBERS: usize = 3;
/// From the kill to the next commit that is acknowledged.
const GOES_ON: Duration = Duration::from_secs(1);
/// Between two records that a member gets, with a producer that never stops.
const PAUSE: Duration = Duration::from_millis(500);

fn kills() -> usize {
    std::env::var("TALWEG_KILLS").map_or(4, |text| text.parse().expect("a number"))
}

/// Enough that the coordinator that dies has some of them.
const STILL: usize = 12;

/// Every one of them commits at once, and is acknowledged.
async fn commit_still(channel: &Channel, offset: i64) {
    let commits = (0..STILL).map(|n| async move {
        let group = format!("still-{n}");
        eventually("a commit", PATIENCE, || async {
            let done = raw::commit(channel, &group, ("t", 0), offset).await;
            done.map_err(|code| format!("{code:?}"))
        })
        .await;
    });
    join_all(commits).await;
}

/// Whoever has them now has exactly what was acknowledged.
async fn still_there(channel: &Channel, offset: i64) {
    for n in 0..STILL {
        let group = format!("still-{n}");
        let answer = || raw::stored(channel, &group, "t");
        let stored = eventually("an answer", PATIENCE, answer).await;
        assert_eq!(stored, BTreeMap::from([(0, offset)]), "{group}");
    }
}

fn open() -> v1::SubscribeOpen {
    subscription("g", "t")
}

/// The place of the coordinator that the group has, as `cluster describe` knows it.
fn holder(stack: &Stack) -> Result<usize, String> {
    let group = try_talweg(stack, "group describe g")?;
    let cluster = try_talweg(stack, "cluster describe")?;
    let id = &group["coordinator"];
    let node = list(&cluster["nodes"])
        .iter()
        .find(|node| node["node_id"] == *id);
    let node = node.ok_or_else(|| format!("{id} in {cluster}"))?;
    let at = |place: &usize| node["grpc"] == stack.coordinator(*place);
    let found = (0..stack.coordinators.len()).find(at);
    found.ok_or_else(|| format!("{node} is none of ours"))
}

fn newest_commit(heard: &Heard) -> Option<Instant> {
    heard.committed_at.last().copied()
}

/// The highest acknowledged commit of each partition.
fn acknowledged(members: &[Member]) -> BTreeMap<Place, i64> {
    let mut highest = BTreeMap::new();
    for member in members {
        for (place, offset) in member.heard().committed {
            let known = highest.entry(place).or_insert(offset);
            *known = offset.max(*known);
        }
    }
    highest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_go_on_and_no_acknowledged_commit_is_lost() {
    let mut stack = Stack::builder().coordinators(2).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", PARTITIONS as i32, &[]).await;
    let load = Load::start(vec![stack.gateway(0)], "t", PARTITIONS, Acks::All).await;
    let mut members = Vec::new();
    for _ in 0..MEMBERS {
        members.push(Member::join(&[stack.gateway(0)], open(), Commits::Frames).await);
    }
    for member in &members {
        member
            .until("its share", PATIENCE, |heard| {
                heard.owned.len() == PARTITIONS as usize / MEMBERS
            })
            .await;
        member
            .until("a commit", PATIENCE, |heard| !heard.committed.is_empty())
            .await;
    }
    let given: usize = members
        .iter()
        .map(|member| member.look(|heard| heard.assigned.len()))
        .sum();
    let begun = Instant::now();
    let mut slowest = Duration::ZERO;
    for kill in 1..=kills() {
        let place = eventually("the group has a coordinator", PATIENCE, || async {
            holder(&stack)
        })
        .await;
        let before = acknowledged(&members);
        let offset = i64::try_from(kill).expect("few");
        commit_still(&channel, offset).await;
        stack.coordinators[place].kill9();
        let killed = Instant::now();
        for member in &members {
            member
                .until("its next commit", PATIENCE, |heard| {
                    newest_commit(heard) > Some(killed)
                })
                .await;
        }
        slowest = slowest.max(killed.elapsed());
        still_there(&channel, offset).await;
        tokio::task::block_in_place(|| stack.coordinators[place].start(PATIENCE));
        let stored = eventually("offsets", PATIENCE, || async {
            try_talweg(&stack, "group describe g")
        })
        .await;
        for ((topic, partition), offset) in before {
            let kept = list(&stored["offsets"])
                .iter()
                .find(|one| one["partition"] == partition);
            let kept = kept.and_then(|one| one["committed_offset"].as_i64());
            assert!(
                kept >= Some(offset),
                "{topic}:{partition}: {offset} was acknowledged, {kept:?} is stored"
            );
        }
    }
    println!("slowest member went on after {slowest:?}");
    assert!(slowest <= GOES_ON, "{slowest:?}");
    load.finish(&stack.gateway(0)).await;
    for member in &members {
        let heard = member.heard();
        assert_eq!((heard.ended, heard.gaps.len()), (None, 0));
        let since = heard
            .records
            .iter()
            .map(|received| received.at)
            .filter(|at| *at > begun);
        let times: Vec<_> = since.collect();
        let pauses = times.windows(2).map(|pair| pair[1] - pair[0]);
        let longest = pauses.max().unwrap_or_default();
        println!("longest pause {longest:?}");
        assert!(longest <= PAUSE, "{longest:?}");
    }
    let after: usize = members
        .iter()
        .map(|member| member.look(|heard| heard.assigned.len()))
        .sum();
    assert_eq!(given, after, "nothing was given anew");
    for member in members {
        member.leave(PATIENCE).await;
    }
    stack.shards_agree().await;
    assert_eq!(talweg(&stack, "group describe g")["state"], "empty");
}
