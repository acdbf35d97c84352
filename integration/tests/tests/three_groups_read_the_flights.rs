//! Real flights, read by three groups of 1, 3 and 12 members at once, while members
//! join, leave, are killed and sleep past their sessions: every record at least once
//! in each group, in order within an assignment, committed offsets never step back,
//! nobody is given a position below what was committed before, and a record comes twice
//! only where one of those who got it was killed or slept.
//!
//! `TALWEG_FLIGHTS`: how many events (60,000; the soak takes all).

mod operator;

use operator::{PATIENCE, talweg};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use talweg_harness::{
    Member, Stack, eventually,
    member::{Commits, Heard, Place, subscription},
    raw::{bounds, connect, create_topic},
    seed,
};
use talweg_proto::v1;

const PARTITIONS: i32 = 12;
const SESSION: Duration = Duration::from_secs(3);
/// So that each group has each kind of trouble at least once.
const TROUBLES: usize = 15;
/// Joins, is killed, sleeps past its session, leaves.
const KINDS: usize = 4;

/// The first events as lines `carrier<tab>event`.
fn flights(count: usize) -> String {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("run by cargo"));
    let file = here.join("../data/flights.csv.gz");
    let mut gunzip = Command::new("gunzip")
        .arg("-c")
        .arg(file)
        .stdout(Stdio::piped())
        .spawn()
        .expect("gunzip");
    let lines = BufReader::new(gunzip.stdout.take().expect("its output")).lines();
    let events = lines.skip(1).take(count).map(|line| {
        let line = line.expect("text");
        let key: String = line.split(',').skip(9).take(2).collect();
        format!("{key}\t{line}\n")
    });
    let all = events.collect();
    gunzip.kill().expect("ended");
    gunzip.wait().expect("ended");
    all
}

fn open(group: &str) -> v1::SubscribeOpen {
    v1::SubscribeOpen {
        session_timeout_ms: SESSION.as_millis() as u32,
        rebalance_timeout_ms: 5_000,
        ..subscription(group, "flights")
    }
}

/// What one member heard, and whether it died.
struct Past {
    heard: Heard,
    killed: bool,
}

impl Past {
    /// What it had not committed comes again, to others.
    fn excuses(&self) -> bool {
        self.killed || self.heard.slept
    }
}

/// A group, those who are in it and what those heard who are not any more.
struct Group {
    name: &'static str,
    members: Vec<Member>,
    past: Vec<Past>,
    /// Which kind of trouble is next.
    next: usize,
    fenced: usize,
}

impl Group {
    async fn join(&mut self, gateways: &[String]) {
        let member = Member::join(gateways, open(self.name), Commits::Frames).await;
        self.members.push(member);
    }

    /// Replaces who was fenced; only those are who slept.
    async fn bury(&mut self, gateways: &[String]) {
        for i in (0..self.members.len()).rev() {
            if self.members[i].look(|heard| heard.ended.is_some()) {
                let heard = self.members.swap_remove(i).kill();
                assert!(heard.slept, "{}: {:?}", self.name, heard.ended);
                self.fenced += 1;
                self.keep(heard, false);
                self.join(gateways).await;
            }
        }
    }

    fn keep(&mut self, heard: Heard, killed: bool) {
        self.past.push(Past { heard, killed });
    }

    async fn trouble(&mut self, gateways: &[String], random: &mut SmallRng) {
        let kind = self.next % KINDS;
        self.next += 1;
        let awake = |i: &usize| self.members[*i].look(|heard| !heard.slept);
        let awake: Vec<usize> = (0..self.members.len()).filter(awake).collect();
        let one = match awake.len() {
            0 => return self.join(gateways).await,
            some => awake[random.random_range(0..some)],
        };
        match kind {
            0 => self.join(gateways).await,
            1 => {
                let heard = self.members.swap_remove(one).kill();
                self.keep(heard, true);
                self.join(gateways).await;
            }
            2 => self.members[one].sleep(SESSION * 2),
            _ if self.members.len() > 1 => {
                let heard = self.members.swap_remove(one).leave(PATIENCE).await;
                self.keep(heard, false);
            }
            _ => {}
        }
    }

    fn heard(&self) -> Vec<Past> {
        let present = self.members.iter().map(Member::heard);
        let present = present.map(|heard| Past {
            heard,
            killed: false,
        });
        let past = self.past.iter().map(|past| Past {
            heard: past.heard.clone(),
            killed: past.killed,
        });
        present.chain(past).collect()
    }

    /// Waits until everybody who slept has been told that it is out. Commits that it had
    /// sent before are signs of life while they wait for their turn; with nothing more to
    /// read none are left.
    async fn wakes(&mut self, gateways: &[String]) {
        let late = Instant::now() + PATIENCE;
        for sleeper in self
            .members
            .iter()
            .filter(|it| it.look(|heard| heard.slept))
        {
            sleeper.sleep(SESSION * 2);
        }
        while self.members.iter().any(|it| it.look(|heard| heard.slept)) {
            self.bury(gateways).await;
            assert!(Instant::now() < late, "{}: a sleeper goes on", self.name);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(self.fenced > 0, "{}: nobody slept", self.name);
    }

    fn seen(&self) -> BTreeSet<(u32, i64)> {
        let mut seen = BTreeSet::new();
        let mut add = |heard: &Heard| {
            let places = heard.records.iter();
            seen.extend(places.map(|received| (received.place.1, received.record.offset)));
        };
        self.members.iter().for_each(|member| member.look(&mut add));
        self.past.iter().for_each(|past| add(&past.heard));
        seen
    }

    fn check(&self) {
        let all = self.heard();
        let heard: Vec<&Heard> = all.iter().map(|past| &past.heard).collect();
        for one in &heard {
            self.in_order(one);
            assert_eq!(
                (one.gaps.len(), one.partition_errors.len()),
                (0, 0),
                "{one:?}"
            );
        }
        for one in heard.iter().filter(|one| !one.slept) {
            assert_eq!(one.commits_refused, vec![], "{}", self.name);
        }
        self.never_below_a_commit(&heard);
        self.twice_only_with_an_excuse(&all);
    }

    fn in_order(&self, one: &Heard) {
        let mut last: BTreeMap<usize, i64> = BTreeMap::new();
        for received in &one.records {
            let given = one.assigned.get(received.assignment);
            let (_, from) = given.expect("records of what was given");
            let before = last.insert(received.assignment, received.record.offset);
            let floor = before.map_or(*from, |before| before + 1);
            assert!(
                received.record.offset >= floor,
                "{}: {received:?} after {floor}",
                self.name
            );
        }
    }

    fn never_below_a_commit(&self, heard: &[&Heard]) {
        let mut committed: Vec<(Instant, &Place, i64)> = Vec::new();
        for one in heard {
            let stored = one.committed.iter().zip(&one.committed_at);
            committed.extend(stored.map(|((place, offset), at)| (*at, place, *offset)));
        }
        for one in heard.iter().filter(|one| !one.slept) {
            for ((place, from), at) in one.assigned.iter().zip(&one.assigned_at) {
                let before = committed
                    .iter()
                    .filter(|(when, whose, _)| when < at && *whose == place);
                let highest = before.map(|(_, _, offset)| *offset).max().unwrap_or(-1);
                assert!(
                    *from >= highest,
                    "{}: {place:?} given at {from}, {highest} was committed",
                    self.name
                );
            }
        }
    }

    /// Of those who neither died nor slept one at most has got each record, once.
    fn twice_only_with_an_excuse(&self, all: &[Past]) {
        let mut sound: BTreeSet<(u32, i64)> = BTreeSet::new();
        let (mut deliveries, mut distinct) = (0, BTreeSet::new());
        for past in all {
            for received in &past.heard.records {
                let place = (received.place.1, received.record.offset);
                deliveries += 1;
                distinct.insert(place);
                assert!(
                    past.excuses() || sound.insert(place),
                    "{}: {place:?} came twice, and nobody who got it had died or slept",
                    self.name
                );
            }
        }
        println!(
            "{}: {} of {} came again",
            self.name,
            deliveries - distinct.len(),
            distinct.len()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_group_reads_every_event_whatever_happens_to_its_members() {
    let count =
        std::env::var("TALWEG_FLIGHTS").map_or(60_000, |text| text.parse().expect("a number"));
    let mut random = SmallRng::seed_from_u64(seed());
    let stack = Stack::builder().gateways(2).coordinators(2).start();
    let gateways = [stack.gateway(0), stack.gateway(1)];
    let channel = connect(&gateways[0]).await;
    create_topic(&channel, "flights", PARTITIONS, &[]).await;
    let events = stack.folder().join("flights.tsv");
    std::fs::write(&events, flights(count)).expect("written");
    let mut producing = Command::new(talweg_harness::binary("talweg"))
        .args([
            "-b",
            &gateways[0],
            "produce",
            "flights",
            "--key-separator",
            "\t",
            "--file",
        ])
        .arg(&events)
        .stdout(Stdio::null())
        .spawn()
        .expect("talweg produce");

    let mut groups = [("one", 1), ("three", 3), ("twelve", 12)].map(|(name, members)| {
        (
            Group {
                name,
                members: Vec::new(),
                past: Vec::new(),
                next: random.random_range(0..KINDS),
                fenced: 0,
            },
            members,
        )
    });
    for (group, members) in &mut groups {
        for _ in 0..*members {
            group.join(&gateways).await;
        }
    }
    let mut stored: BTreeMap<(&str, u64), i64> = BTreeMap::new();
    for n in 0..TROUBLES {
        let (group, _) = &mut groups[n % 3];
        group.trouble(&gateways, &mut random).await;
        group.bury(&gateways).await;
        for (group, _) in &groups {
            let described = talweg(&stack, &format!("group describe {}", group.name));
            for offset in described["offsets"].as_array().expect("offsets") {
                let (partition, now) = (
                    offset["partition"].as_u64().expect("a number"),
                    offset["committed_offset"].as_i64().expect("an offset"),
                );
                let before = stored.insert((group.name, partition), now);
                assert!(
                    before.is_none_or(|before| before <= now),
                    "{} {partition}: {before:?} to {now}",
                    group.name
                );
            }
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(100..700))).await;
    }
    assert!(
        tokio::task::block_in_place(|| producing.wait())
            .expect("produced")
            .success()
    );
    let mut all = BTreeSet::new();
    for partition in 0..PARTITIONS as u32 {
        let end = bounds(&channel, "flights", partition)
            .await
            .expect("bounds")
            .high_watermark;
        all.extend((0..end).map(|offset| (partition, offset)));
    }
    assert_eq!(all.len(), count);
    for (group, _) in &mut groups {
        let late = Instant::now() + PATIENCE * 3;
        while group.seen() != all {
            group.bury(&gateways).await;
            assert!(
                Instant::now() < late,
                "{} has {} of {}",
                group.name,
                group.seen().len(),
                all.len()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        group.wakes(&gateways).await;
        group.check();
        let line = format!("group lag {}", group.name);
        eventually("nothing is left", PATIENCE, || async {
            let lag = operator::try_talweg(&stack, &line)?;
            let left = operator::list(&lag["lags"])
                .iter()
                .map(|one| one["lag_records"].as_i64());
            match left.sum::<Option<i64>>() {
                Some(0) => Ok(()),
                left => Err(format!("{left:?}")),
            }
        })
        .await;
    }
    stack.shards_agree().await;
    assert_eq!(stack.alarms(), Vec::<String>::new());
}
