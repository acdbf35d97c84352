//! Members join and leave: the fewest partitions move, and those that stay with their
//! owner are delivered without a gap. Three hundred members form a group in seconds.

mod operator;

use operator::PATIENCE;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use talweg_harness::{
    Member, Stack, eventually,
    member::{Commits, Place, subscription},
    raw::{RawProduce, connect, create_topic},
};
use talweg_proto::v1::{self, Acks, produce_response::Frame as Answer};
use tonic::transport::Channel;

const PARTITIONS: u32 = 48;
const MEMBERS: usize = 12;
/// Between two records of a partition that does not move.
const GAP: Duration = Duration::from_millis(200);
/// Where a group that nobody joins or leaves waited as well in the same moment, the
/// machine or the producer paused: so much above that is no fault of the moves.
const SLACK: Duration = Duration::from_millis(50);
/// Between two records of a partition at their producer.
const PACE: Duration = Duration::from_millis(80);
const FORMED: Duration = Duration::from_secs(5);

/// A record to each partition at a fixed pace, until it is aborted.
async fn produce(channel: Channel) {
    let mut stream = RawProduce::open(&channel, Acks::All).await;
    let mut pace = tokio::time::interval(PACE);
    loop {
        pace.tick().await;
        let record = |partition| v1::Record {
            partition: Some(partition),
            value: Some("v".into()),
            ..Default::default()
        };
        let records = (0..PARTITIONS).map(record).collect();
        stream.send_records("t", records).await;
        let mut waiting = PARTITIONS as usize;
        while waiting > 0 {
            match stream.next().await {
                Ok(Some(Answer::RecordsAck(ack))) => waiting -= ack.sequences.len(),
                other => panic!("{other:?}"),
            }
        }
    }
}

fn owners(members: &[Member]) -> BTreeMap<Place, String> {
    let of = |member: &Member| {
        let id = member.id().to_owned();
        member
            .owned()
            .into_iter()
            .map(move |place| (place, id.clone()))
            .collect::<Vec<_>>()
    };
    members.iter().flat_map(of).collect()
}

async fn balanced(members: &[Member], partitions: usize) {
    eventually("an even share each", PATIENCE, || async {
        let shares: Vec<_> = members.iter().map(|member| member.owned().len()).collect();
        let (low, high) = (shares.iter().min(), shares.iter().max());
        match shares.iter().sum::<usize>() == partitions && high <= low.map(|low| low + 1).as_ref()
        {
            true => Ok(()),
            false => Err(format!("{shares:?}")),
        }
    })
    .await;
}

type Times = BTreeMap<Place, Vec<Instant>>;

/// When the records of each place came to a member.
fn arrivals(member: &Member, begun: Instant) -> Times {
    let mut times = Times::new();
    member.look(|heard| {
        for received in heard.records.iter().filter(|received| received.at > begun) {
            let of_place = times.entry(received.place.clone()).or_default();
            of_place.push(received.at);
        }
    });
    times
}

fn gaps(times: &[Instant]) -> impl Iterator<Item = (Instant, Instant)> {
    times.windows(2).map(|pair| (pair[0], pair[1]))
}

/// The longest gap of `times` that has a moment in common with this one.
fn meanwhile(times: &[Instant], (from, to): (Instant, Instant)) -> Duration {
    let common = gaps(times).filter(|gap| gap.0 < to && gap.1 > from);
    common.map(|gap| gap.1 - gap.0).max().unwrap_or_default()
}

/// No partition that stays with its owner waits longer than it may; the longest waits, of
/// these and of the control.
fn no_gaps(
    members: &[Member],
    begun: Instant,
    stayed: &BTreeMap<Place, String>,
    control: &Times,
) -> (Duration, Duration) {
    let (mut longest, mut longest_control) = (Duration::ZERO, Duration::ZERO);
    let mut seen = 0;
    for member in members {
        for (place, times) in arrivals(member, begun) {
            if stayed.get(&place).map(String::as_str) != Some(member.id()) {
                continue;
            }
            seen += 1;
            for gap in gaps(&times) {
                let (waited, others) = (gap.1 - gap.0, meanwhile(&control[&place], gap));
                longest = longest.max(waited);
                longest_control = longest_control.max(others);
                assert!(
                    waited <= GAP.max(others + SLACK),
                    "{place:?} waited {waited:?}, the control group {others:?}"
                );
            }
        }
    }
    assert_eq!(seen, stayed.len(), "records of each");
    (longest, longest_control)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twelve_members_thirteen_twelve() {
    let stack = Stack::builder().coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    // No flush of a disk between two records.
    let config = [("durability", "replicated")];
    create_topic(&channel, "t", PARTITIONS as i32, &config).await;
    let producing = tokio::spawn(produce(channel.clone()));
    let open = subscription("control", "t");
    let control = Member::join(&[stack.gateway(0)], open, Commits::Asked).await;
    control
        .until("all of them", PATIENCE, |heard| {
            heard.owned.len() == PARTITIONS as usize
        })
        .await;
    let mut members = Vec::new();
    for _ in 0..MEMBERS {
        let open = subscription("g", "t");
        members.push(Member::join(&[stack.gateway(0)], open, Commits::Frames).await);
    }
    balanced(&members, PARTITIONS as usize).await;
    let first = owners(&members);
    let begun = Instant::now();
    members.push(Member::join(&[stack.gateway(0)], subscription("g", "t"), Commits::Frames).await);
    balanced(&members, PARTITIONS as usize).await;
    let second = owners(&members);
    let moved = |before: &BTreeMap<Place, String>, after: &BTreeMap<Place, String>| {
        before
            .iter()
            .filter(|(place, owner)| after.get(*place) != Some(owner))
            .count()
    };
    // 48 over 13: nine members with 4 and four with 3; the new one has 3.
    assert_eq!(moved(&first, &second), 3);

    let last = members.pop().expect("the thirteenth");
    last.leave(PATIENCE).await;
    balanced(&members, PARTITIONS as usize).await;
    let third = owners(&members);
    assert_eq!(moved(&second, &third), 3);

    let stayed: BTreeMap<_, _> = first
        .iter()
        .filter(|(place, owner)| {
            second.get(*place) == Some(owner) && third.get(*place) == Some(owner)
        })
        .map(|(place, owner)| (place.clone(), owner.clone()))
        .collect();
    assert!(!producing.is_finished(), "the producer goes on");
    producing.abort();
    let control = arrivals(&control, begun);
    let (longest, others) = no_gaps(&members, begun, &stayed, &control);
    println!("unmoved partitions waited {longest:?} at most, the control group {others:?}");
    stack.shards_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_hundred_members_form_a_group() {
    let stack = Stack::builder().gateways(2).coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", 300, &[]).await;
    let gateways = [stack.gateway(0), stack.gateway(1)];
    let begun = Instant::now();
    let joining = (0..300).map(|n| {
        let gateway = [gateways[n % 2].clone()];
        async move { Member::join(&gateway, subscription("g", "t"), Commits::Asked).await }
    });
    let members = futures::future::join_all(joining).await;
    eventually("one partition each", PATIENCE, || async {
        let waiting = members
            .iter()
            .filter(|member| member.owned().len() != 1)
            .count();
        match waiting {
            0 => Ok(()),
            _ => Err(format!("{waiting} wait")),
        }
    })
    .await;
    let formed = begun.elapsed();
    println!("formed after {formed:?}");
    assert!(formed <= FORMED, "{formed:?}");
    stack.shards_agree().await;
}
