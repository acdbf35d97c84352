//! Every process is restarted, one after the other, under many subscribers: none
//! sees an error, no record is missed, and none comes twice within a session. A gateway
//! that is killed costs no rebalance: its members come back elsewhere with what they had.
//!
//! `TALWEG_SUBSCRIBERS`: how many (40; the soak takes 200 and 500).

mod operator;

use operator::PATIENCE;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};
use talweg_harness::{
    Load, Member, Process, Stack, eventually,
    member::{Commits, Heard, Place, subscription},
    raw::{bounds, connect, create_topic},
};
use talweg_proto::v1::Acks;

const PARTITIONS: u32 = 48;

fn subscribers() -> usize {
    std::env::var("TALWEG_SUBSCRIBERS").map_or(40, |text| text.parse().expect("a number"))
}

/// Members in groups of twenty, each group reading all.
async fn join(gateways: &[String], count: usize) -> Vec<Member> {
    let mut members = Vec::new();
    for n in 0..count {
        let group = format!("group-{}", n / 20);
        // Each begins at a gateway of its own and knows the others.
        let mut own = gateways.to_vec();
        own.rotate_left(n % gateways.len());
        members.push(Member::join(&own, subscription(&group, "t"), Commits::Frames).await);
    }
    members
}

async fn shares(members: &[Member]) {
    eventually("everybody has a share", PATIENCE * 2, || async {
        for (n, group) in members.chunks(20).enumerate() {
            let owned: Vec<_> = group.iter().map(|member| member.owned().len()).collect();
            let even = owned.iter().max() <= owned.iter().min().map(|low| low + 1).as_ref();
            if owned.iter().sum::<usize>() != PARTITIONS as usize || !even {
                return Err(format!("group {n} has {owned:?}"));
            }
        }
        Ok(())
    })
    .await;
}

async fn restart(process: &mut Process) {
    tokio::task::block_in_place(|| {
        process.stop(PATIENCE);
        process.start(PATIENCE);
    });
}

fn seen(group: &[Heard]) -> BTreeSet<(u32, i64)> {
    let records = group.iter().flat_map(|heard| &heard.records);
    records
        .map(|received| (received.place.1, received.record.offset))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_notices_a_rolling_restart() {
    let mut stack = Stack::builder()
        .storages(3)
        .gateways(2)
        .coordinators(2)
        .controllers_on_etcd(2)
        .start();
    let gateways = [stack.gateway(0), stack.gateway(1)];
    let channel = connect(&gateways[0]).await;
    create_topic(&channel, "t", PARTITIONS as i32, &[]).await;
    let members = join(&gateways, subscribers()).await;
    shares(&members).await;
    let load = Load::start(gateways.to_vec(), "t", 12, Acks::All).await;
    load.advance(0, 100, PATIENCE).await;
    for n in 0..2 {
        restart(&mut stack.coordinators[n]).await;
        load.advance(load.acknowledged(), 50, PATIENCE).await;
    }
    for n in 0..3 {
        restart(&mut stack.storages[n]).await;
        load.advance(load.acknowledged(), 50, PATIENCE).await;
    }
    for n in 0..2 {
        restart(&mut stack.gateways[n]).await;
        load.advance(load.acknowledged(), 50, PATIENCE).await;
    }
    for n in 0..2 {
        let controller = stack.controller_at(n);
        tokio::task::block_in_place(|| controller.stop(PATIENCE));
        stack.restart_controller(n);
        load.advance(load.acknowledged(), 50, PATIENCE).await;
    }
    load.finish(&gateways[0]).await;
    let mut all = BTreeSet::new();
    for partition in 0..PARTITIONS {
        let end = bounds(&channel, "t", partition)
            .await
            .expect("bounds")
            .high_watermark;
        all.extend((0..end).map(|offset| (partition, offset)));
    }
    for group in members.chunks(20) {
        eventually("every record", PATIENCE * 2, || async {
            let heard: Vec<_> = group.iter().map(Member::heard).collect();
            let missing = all.difference(&seen(&heard)).count();
            match missing {
                0 => Ok(()),
                _ => Err(format!("{missing} of {} are missing", all.len())),
            }
        })
        .await;
    }
    for member in &members {
        let heard = member.heard();
        assert_eq!(
            (heard.ended, heard.partition_errors, heard.gaps),
            (None, vec![], vec![])
        );
        assert_eq!(heard.commits_refused, vec![]);
        // The session outlives its streams: a resume is no excuse.
        let mut seen = BTreeMap::new();
        for received in &heard.records {
            let place = (received.place.1, received.record.offset);
            if let Some(before) = seen.insert(place, received.at) {
                let stored = heard.committed.iter().zip(&heard.committed_at);
                let stored =
                    stored.filter(|((at, _), when)| at.1 == place.0 && **when < received.at);
                let stored = stored
                    .last()
                    .map(|((_, offset), when)| (offset, *when - before));
                panic!(
                    "{place:?} came twice within a session, again after {:?}; \
                     {stored:?} was stored before; {} resumes, given {:?}",
                    received.at - before,
                    heard.resumes,
                    heard
                        .assigned
                        .iter()
                        .filter(|(at, _)| at.1 == place.0)
                        .collect::<Vec<_>>()
                );
            }
        }
    }
    stack.shards_agree().await;
    assert_eq!(stack.alarms(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_costs_no_rebalance() {
    let mut stack = Stack::builder().gateways(2).coordinators(1).start();
    let gateways = [stack.gateway(0), stack.gateway(1)];
    let channel = connect(&gateways[1]).await;
    create_topic(&channel, "t", PARTITIONS as i32, &[]).await;
    let members = join(&gateways, subscribers()).await;
    shares(&members).await;
    let asked_back = |member: &Member| member.look(|heard| heard.revoked.len());
    let revoked: Vec<_> = members.iter().map(asked_back).collect();
    let before: Vec<BTreeSet<Place>> = members.iter().map(Member::owned).collect();
    let resumes = |members: &[Member]| {
        members
            .iter()
            .filter(|member| member.look(|heard| heard.resumes > 0))
            .count()
    };
    stack.gateways[0].kill9();
    let killed = Instant::now();
    let half = members.len() / 2;
    eventually("those of the dead one are back", PATIENCE, || async {
        match resumes(&members) {
            back if back == half => Ok(()),
            back => {
                let ended = members
                    .iter()
                    .filter_map(|member| member.look(|heard| heard.ended.clone()));
                Err(format!(
                    "{back} of {half}, ended: {:?}",
                    ended.collect::<Vec<_>>()
                ))
            }
        }
    })
    .await;
    shares(&members).await;
    println!("{half} members resumed after {:?}", killed.elapsed());
    assert!(killed.elapsed() < Duration::from_secs(20));
    for (member, had) in members.iter().zip(before) {
        assert_eq!(member.owned(), had, "the same partitions");
    }
    let after: Vec<_> = members.iter().map(asked_back).collect();
    assert_eq!(after, revoked, "nothing was asked back");
    stack.shards_agree().await;
}
