//! A record that is refused by its consumer comes again after a back-off, in a
//! retry topic, while its partition goes on; after its last attempt, or at once when it
//! is poison, it is a dead letter with its story in headers. A replay puts it back once.
//! A record that kills every consumer costs three deaths, and those after it arrive.

mod operator;

use operator::{PATIENCE, list, talweg, until};
use std::time::{Duration, Instant};
use talweg_harness::{
    Member, Stack,
    member::{Commits, Heard, Received, subscription},
    raw::{RawProduce, connect, create_topic, read_all},
};
use talweg_proto::v1::{self, Acks};
use tonic::transport::Channel;

/// Twice what another record of the partition may take, whichever way the jitter goes.
const BACKOFF_MS: u32 = 5_000;
const DELAYS_NOBODY: Duration = Duration::from_secs(2);

fn open() -> v1::SubscribeOpen {
    v1::SubscribeOpen {
        session_timeout_ms: 2_000,
        dead_letter_policy: Some(v1::DeadLetterPolicy {
            max_attempts: 3,
            backoff_ms: vec![BACKOFF_MS; 2],
            ..Default::default()
        }),
        commit_on_ack: false,
        ..subscription("g", "t")
    }
}

async fn produce(channel: &Channel, values: &[&str]) {
    let mut produce = RawProduce::open(channel, Acks::All).await;
    for value in values {
        let record = v1::Record {
            partition: Some(0),
            key: Some("k".into()),
            value: Some((*value).to_owned().into()),
            headers: vec![v1::Header {
                name: "own".into(),
                value: Some("h".into()),
            }],
            ..Default::default()
        };
        produce.record("t", record).await.expect("appended");
    }
}

fn value(received: &Received) -> String {
    String::from_utf8_lossy(received.record.value.as_deref().unwrap_or_default()).into_owned()
}

fn seen<'a>(heard: &'a Heard, wanted: &str) -> Vec<&'a Received> {
    heard
        .records
        .iter()
        .filter(|received| value(received) == wanted)
        .collect()
}

fn header(record: &v1::FetchedRecord, name: &str) -> Option<String> {
    let found = record.headers.iter().find(|header| header.name == name)?;
    Some(String::from_utf8_lossy(found.value.as_deref()?).into_owned())
}

async fn position_of(stack: &Stack, received: &Received) -> v1::SubscribePosition {
    let topic = talweg(stack, &format!("topic describe {}", received.place.0));
    let id = topic["topic_id"].as_str().expect("an id");
    v1::SubscribePosition {
        topic_id: uuid::Uuid::parse_str(id)
            .expect("a UUID")
            .as_bytes()
            .to_vec()
            .into(),
        partition: received.place.1,
        offset: received.record.offset,
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_record_comes_again_and_ends_as_a_dead_letter() {
    let stack = Stack::builder().coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", 1, &[]).await;
    let member = Member::join(&[stack.gateway(0)], open(), Commits::Asked).await;
    member
        .until("it has the partition", PATIENCE, |heard| {
            heard.owned.len() == 1
        })
        .await;
    produce(&channel, &["bad"]).await;
    for attempt in 1..=3 {
        member
            .until("the record", PATIENCE, |heard| {
                seen(heard, "bad").len() == attempt
            })
            .await;
        let received = member.look(|heard| seen(heard, "bad")[attempt - 1].clone());
        if attempt > 1 {
            assert_eq!(received.place.0, format!("t.g.retry.{}", attempt - 1));
            let before = member.look(|heard| seen(heard, "bad")[attempt - 2].at);
            let waited = received.at - before;
            assert!(
                waited >= Duration::from_millis(u64::from(BACKOFF_MS) * 7 / 10),
                "{waited:?}"
            );
        }
        member.nack(position_of(&stack, &received).await, "no good", false);
        // Passed once its copy is there.
        member.commit();
        // Others pass meanwhile.
        let begun = Instant::now();
        let good = format!("good {attempt}");
        produce(&channel, &[&good]).await;
        member
            .until("the next one", PATIENCE, |heard| {
                seen(heard, &good).len() == 1
            })
            .await;
        let took = begun.elapsed();
        assert!(took < DELAYS_NOBODY, "{took:?}");
    }
    let dead = until(&stack, "dlq list --group g", |listed| {
        list(&listed["dead_letters"])
            .iter()
            .any(|topic| topic["records"] == 1)
    })
    .await;
    assert_eq!(dead["dead_letters"][0]["topic"], "t.g.dlq");
    assert_eq!(dead["dead_letters"][0]["source"], "t");
    let letters = read_all(&channel, "t.g.dlq", 0).await;
    let letter = &letters[0];
    assert_eq!(
        (letter.key.as_deref(), letter.value.as_deref()),
        (Some(&b"k"[..]), Some(&b"bad"[..]))
    );
    for (name, expected) in [
        ("source-topic", "t"),
        ("partition", "0"),
        ("offset", "0"),
        ("attempts", "3"),
        ("reason", "no good"),
        ("group", "g"),
    ] {
        let name = format!("talweg-dlq-{name}");
        assert_eq!(header(letter, &name).as_deref(), Some(expected), "{name}");
    }
    assert!(header(letter, "talweg-dlq-timestamp").is_some());
    assert_eq!(header(letter, "own").as_deref(), Some("h"));

    // Poison is not tried again.
    produce(&channel, &["poison"]).await;
    member
        .until("the poison", PATIENCE, |heard| {
            seen(heard, "poison").len() == 1
        })
        .await;
    let poison = member.look(|heard| seen(heard, "poison")[0].clone());
    member.nack(position_of(&stack, &poison).await, "poison", true);
    member.commit();
    until(&stack, "dlq list", |listed| {
        listed["dead_letters"][0]["records"] == 2
    })
    .await;
    assert_eq!(member.look(|heard| seen(heard, "poison").len()), 1);
    assert_eq!(member.look(|heard| heard.commits_refused.clone()), vec![]);
    member.leave(PATIENCE).await;

    // Back once, however often it is asked.
    assert_eq!(talweg(&stack, "dlq replay t.g.dlq")["replayed"], 2);
    assert_eq!(talweg(&stack, "dlq replay t.g.dlq")["replayed"], 0);
    let records = read_all(&channel, "t", 0).await;
    let back = records
        .iter()
        .filter(|record| record.value.as_deref() == Some(b"bad"))
        .collect::<Vec<_>>();
    assert_eq!(back.len(), 2, "the first one, and the one that came back");
    assert_eq!(header(back[1], "own").as_deref(), Some("h"));
    assert!(
        back[1]
            .headers
            .iter()
            .all(|header| !header.name.starts_with("talweg-dlq-"))
    );
    assert_eq!(talweg(&stack, "dlq purge t.g.dlq --execute")["records"], 2);
    until(&stack, "dlq list", |listed| {
        listed["dead_letters"][0]["records"] == 0
    })
    .await;
    stack.shards_agree().await;
    assert_eq!(stack.alarms(), Vec::<String>::new());
}

/// Whoever reads "death" dies before it commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_kills_costs_three_deaths() {
    let stack = Stack::builder().coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", 1, &[]).await;
    produce(&channel, &["before"]).await;
    let member = Member::join(&[stack.gateway(0)], open(), Commits::Frames).await;
    member
        .until("a commit", PATIENCE, |heard| !heard.committed.is_empty())
        .await;
    member.leave(PATIENCE).await;
    produce(&channel, &["death", "after"]).await;
    let mut deaths = 0;
    loop {
        let member = Member::join(&[stack.gateway(0)], open(), Commits::Asked).await;
        member
            .until("the next record", PATIENCE, |heard| {
                !heard.records.is_empty()
            })
            .await;
        // One at a time once it is suspected: what comes before is committed.
        member
            .until("it dies or is through", PATIENCE, |heard| {
                !seen(heard, "death").is_empty() || !seen(heard, "after").is_empty() || {
                    member.commit();
                    false
                }
            })
            .await;
        if member.look(|heard| !seen(heard, "death").is_empty()) {
            deaths += 1;
            assert!(deaths <= 3, "an endless rebalance");
            member.kill();
            continue;
        }
        member.commit();
        member
            .until("it is committed", PATIENCE, |heard| {
                !heard.committed.is_empty()
            })
            .await;
        member.leave(PATIENCE).await;
        break;
    }
    assert_eq!(deaths, 3);
    let letters = read_all(&channel, "t.g.dlq", 0).await;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].value.as_deref(), Some(&b"death"[..]));
    assert_eq!(
        header(&letters[0], "talweg-dlq-reason").as_deref(),
        Some("crashed")
    );
    let lag = talweg(&stack, "group lag g --topic t");
    assert_eq!(lag["lags"][0]["lag_records"], 0, "{lag}");
    stack.shards_agree().await;
    assert_eq!(stack.alarms(), Vec::<String>::new());
}
