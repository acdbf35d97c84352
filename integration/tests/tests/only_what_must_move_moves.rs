//! Members join and leave: the fewest partitions move, and those that stay with their
//! owner are delivered without a gap. Three hundred members form a group in seconds.

mod operator;

use operator::PATIENCE;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use talweg_harness::{
    Load, Member, Stack, eventually,
    member::{Commits, Place, subscription},
    raw::{connect, create_topic},
};
use talweg_proto::v1::Acks;

const PARTITIONS: u32 = 48;
const MEMBERS: usize = 12;
/// Between two records of a partition that does not move: the promise is 200 ms above
/// what a control stretch of the same run shows.
const GAP: Duration = Duration::from_millis(200);
const FORMED: Duration = Duration::from_secs(5);

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

/// The longest time between two records of a place at its owner, from `begun` on.
fn longest_gap(members: &[Member], begun: Instant, places: &BTreeMap<Place, String>) -> Duration {
    let mut longest = Duration::ZERO;
    for member in members {
        let mut last: BTreeMap<Place, Instant> = BTreeMap::new();
        member.look(|heard| {
            for received in heard.records.iter().filter(|received| received.at > begun) {
                let stays = places.get(&received.place) == Some(&member.id().to_owned());
                let last = stays.then(|| last.insert(received.place.clone(), received.at));
                if let Some(before) = last.flatten() {
                    longest = longest.max(received.at - before);
                }
            }
        });
    }
    longest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twelve_members_thirteen_twelve() {
    let stack = Stack::builder().coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", PARTITIONS as i32, &[]).await;
    let load = Load::start(vec![stack.gateway(0)], "t", PARTITIONS, Acks::All).await;
    let mut members = Vec::new();
    for _ in 0..MEMBERS {
        let open = subscription("g", "t");
        members.push(Member::join(&[stack.gateway(0)], open, Commits::Frames).await);
    }
    balanced(&members, PARTITIONS as usize).await;
    let first = owners(&members);
    let control = Instant::now();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let control = longest_gap(&members, control, &first);

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
    let longest = longest_gap(&members, begun, &stayed);
    println!("control {control:?}, while partitions moved {longest:?}");
    assert!(
        longest <= control.max(GAP) + GAP,
        "{longest:?}, control {control:?}"
    );
    load.finish(&stack.gateway(0)).await;
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
    // A development build beside other tests: the figure of the issue is for the soak.
    assert!(formed <= FORMED * 4, "{formed:?}");
}
