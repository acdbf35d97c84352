//! Lag as coordinators answer and show it, over real sockets, on a log in memory.

mod support;

use support::{
    PATIENCE, eventually,
    gateway::{Gateway, commit, join, offset},
    world::{HIGH_WATERMARK, LAST_STABLE, World, at, client, folder},
};
use talweg_proto::{
    coordinator::v1::{
        AskRequest, ask_request::Question, ask_response::Answer, converse_request::Event,
        converse_response::What,
    },
    v1::GetLagRequest,
};

/// Story: lag is shown while the shard is here, and ends when it moves.
#[tokio::test(flavor = "multi_thread")]
async fn lag_is_a_metric_of_whoever_holds_the_shard() {
    let (world, one, two) = (World::start().await, folder(), folder());
    let old = world.with_all_shards(one.path()).await;
    let new = world.coordinator(two.path()).await;
    let mut gateway = Gateway::open(&old, 1).await;
    gateway
        .commit("g", commit(None, vec![offset(at(3), 400, false)]))
        .await;
    let shows = |text: String, lag: i64| {
        text.lines().any(|line| {
            line.starts_with("talweg_group_lag_records{")
                && [r#"group="g""#, r#"partition="3""#, r#"topic="t""#]
                    .iter()
                    .all(|it| line.contains(it))
                && line.ends_with(&format!(" {lag}"))
        })
    };
    eventually("the lag is shown", || async {
        shows(metrics(&old).await, 600).then_some(())
    })
    .await;
    let text = metrics(&old).await;
    assert!(text.contains("talweg_group_lag_bytes{") && text.contains("talweg_group_lag_seconds{"));
    for name in [
        "seconds_to_loss",
        "lag_approximate",
        "arrival_records_per_second",
        "last_progress_timestamp_seconds",
    ] {
        assert!(text.contains(&format!("talweg_group_{name}{{")), "{text}");
    }
    let early = "talweg_group_processing_records_per_second{";
    assert!(!text.contains(early), "one commit says no pace: {text}");
    // A second commit says a pace, and with it when the rest is done.
    gateway
        .commit("g", commit(None, vec![offset(at(3), 600, false)]))
        .await;
    eventually("the pace of the group is shown", || async {
        let text = metrics(&old).await;
        let drains = text.contains("talweg_group_seconds_to_drain{");
        (text.contains(early) && drains && shows(text, 400)).then_some(())
    })
    .await;
    world.give_all(&new).await;
    eventually("the old one's series end", || async {
        (!shows(metrics(&old).await, 400)).then_some(())
    })
    .await;
    eventually("the new one shows it", || async {
        shows(metrics(&new).await, 400).then_some(())
    })
    .await;
}

async fn metrics(of: &talweg_coordinator::Handle) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(of.http_addr())
        .await
        .expect("connected");
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut text = String::new();
    tokio::time::timeout(PATIENCE, stream.read_to_string(&mut text))
        .await
        .expect("in time")
        .expect("read");
    text
}

/// The ends that the lag of a group is measured to, by partition.
async fn ends(of: &talweg_coordinator::Handle, group: &str) -> Vec<i64> {
    let question = Question::GetLag(GetLagRequest {
        group: group.into(),
        topic: "t".into(),
    });
    let request = AskRequest {
        question: Some(question),
    };
    let answer = client(of).ask(request).await.expect("answered");
    match answer.into_inner().answer {
        Some(Answer::GetLag(lag)) => lag.lags.iter().map(|it| it.log_end_offset).collect(),
        other => panic!("{other:?}"),
    }
}

/// Story: a member that reads committed records only is at the end where nothing that
/// is committed is left, whatever lies open behind it; after a failover too.
#[tokio::test(flavor = "multi_thread")]
async fn the_lag_of_a_committed_reader_ends_at_the_last_stable_offset() {
    let (world, one, two) = (World::start().await, folder(), folder());
    let old = world.with_all_shards(one.path()).await;
    let mut gateway = Gateway::open(&old, 1).await;
    gateway.join("all", 1).await;
    let Event::Join(mut careful) = join(2, "") else {
        panic!("a join")
    };
    careful.profile.as_mut().expect("a profile").reads_committed = true;
    let joined = gateway.ask("careful", Event::Join(careful)).await;
    assert!(matches!(joined, What::View(_)), "{joined:?}");
    assert_eq!(ends(&old, "all").await, [HIGH_WATERMARK; 4]);
    assert_eq!(ends(&old, "careful").await, [LAST_STABLE; 4]);
    let new = world.coordinator(two.path()).await;
    world.give_all(&new).await;
    assert_eq!(ends(&new, "careful").await, [LAST_STABLE; 4]);
}
