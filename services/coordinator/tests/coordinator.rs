//! Gateways, members and coordinators over real sockets, on a log in memory.

mod support;

use support::{
    eventually,
    gateway::{Gateway, caller, code, commit, join, offset, revoked},
    world::{SHARDS, World, at, client, folder},
};
use talweg_coordinator::log::{Fault, MemoryLog};
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::{
    coordinator::v1::{
        AskRequest, CheckShardsRequest, CommitResult, ListShardsRequest, MemberView, RemovalReason,
        StreamBrokenEvent, ask_request::Question, ask_response::Answer, converse_request::Event,
        converse_response::What,
    },
    v1::{
        CommitOffsetsRequest, CommittedOffset, DeleteGroupRequest, DeleteOffsetsRequest,
        DescribeGroupRequest, DescribeGroupResponse, FetchOffsetsRequest, GetLagRequest, LagTrend,
        ResetOffsetsRequest, reset_offsets_request::To,
    },
};

async fn ask(of: &talweg_coordinator::Handle, question: Question) -> Result<Answer, Refusal> {
    let request = AskRequest {
        question: Some(question),
    };
    let answer = client(of).ask(request).await;
    let answer = answer.map_err(|status| Refusal::from_status(&status))?;
    Ok(answer.into_inner().answer.expect("an answer"))
}

async fn stored(of: &talweg_coordinator::Handle, group: &str) -> Vec<(u32, i64)> {
    let question = Question::FetchOffsets(FetchOffsetsRequest {
        group: group.into(),
        topic: String::new(),
    });
    match ask(of, question).await.expect("offsets") {
        Answer::FetchOffsets(found) => {
            let found = found.offsets.iter();
            found.map(|it| (it.partition, it.offset)).collect()
        }
        other => panic!("{other:?}"),
    }
}

async fn describe(of: &talweg_coordinator::Handle, group: &str) -> DescribeGroupResponse {
    let group = group.into();
    match ask(of, Question::DescribeGroup(DescribeGroupRequest { group })).await {
        Ok(Answer::DescribeGroup(described)) => described,
        other => panic!("{other:?}"),
    }
}

/// Live, replayed and kept are the same in every shard.
async fn check(of: &talweg_coordinator::Handle) {
    let checked = client(of).check_shards(CheckShardsRequest {}).await;
    let shards = checked.expect("checked").into_inner().shards;
    assert_eq!(shards.len(), SHARDS as usize);
    for shard in shards {
        assert_eq!(shard.live_hash, shard.replayed_hash, "{shard:?}");
        assert_eq!(shard.live_hash, shard.view_hash, "{shard:?}");
    }
}

fn partitions(of: &MemberView) -> Vec<u32> {
    of.assigned.iter().map(|it| it.partition).collect()
}

fn good(result: &CommitResult) -> i64 {
    assert_eq!(result.error, None);
    result.offset
}

/// Story: one member has all, a second comes, half moves when the first gives it up;
/// both commit; the coordinator dies. The next one has loaded everything, knows the
/// streams again by their heartbeats, and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_forms_commits_and_outlives_its_coordinator() {
    let (world, first_folder, second_folder) = (World::start().await, folder(), folder());
    let coordinator = world.with_all_shards(first_folder.path()).await;
    let mut gateway = Gateway::open(&coordinator, 1).await;
    let one = gateway.join("g", 1).await;
    assert_eq!(partitions(&one), [0, 1, 2, 3]);
    let two = gateway.join("g", 2).await;
    assert!(partitions(&two).is_empty());
    let one = gateway
        .told_view(|view| view.member_id == one.member_id && view.revoking.len() == 2)
        .await;
    assert!(one.revoke_within_ms > 0);
    assert!(matches!(
        gateway.ask("g", revoked(&one)).await,
        What::View(_)
    ));
    let two = gateway
        .told_view(|view| view.member_id == two.member_id && view.assigned.len() == 2)
        .await;
    assert!(two.sequence > 0 && two.shard_epoch == 1);
    let mine = at(two.assigned[0].partition);
    let results = gateway
        .commit("g", commit(Some(caller(&two)), vec![offset(mine, 7, true)]))
        .await;
    assert_eq!(good(&results.results[0]), 7);
    check(&coordinator).await;
    drop(gateway);
    coordinator
        .stop(std::time::Duration::from_millis(500))
        .await;
    assert_eq!(world.left(), 1, "the controller heard the good-bye");

    let coordinator = world.with_all_shards(second_folder.path()).await;
    assert_eq!(stored(&coordinator, "g").await, [(mine.partition.0, 7)]);
    let mut gateway = Gateway::open(&coordinator, 1).await;
    let answer = gateway.ask("g", Event::Heartbeat(caller(&two))).await;
    let What::View(again) = answer else {
        panic!("the stream is known again by its view: {answer:?}")
    };
    assert_eq!(again.assigned.len(), 2);
    assert_eq!(again.assigned[0].next_offset, Some(7));
    let answer = gateway.ask("g", Event::Heartbeat(caller(&again))).await;
    assert!(matches!(answer, What::Done(_)), "{answer:?}");
    let results = gateway
        .commit(
            "g",
            commit(Some(caller(&again)), vec![offset(mine, 9, true)]),
        )
        .await;
    assert_eq!(good(&results.results[0]), 9);
    let described = ask(
        &coordinator,
        Question::DescribeGroup(DescribeGroupRequest { group: "g".into() }),
    )
    .await;
    let Ok(Answer::DescribeGroup(described)) = described else {
        panic!("{described:?}")
    };
    assert_eq!(described.group.expect("the group").state, "stable");
    assert_eq!(
        described
            .members
            .iter()
            .filter(|member| member.live)
            .count(),
        1,
        "one was heard"
    );
    check(&coordinator).await;
}

/// Story: a static member's stream breaks and another claims its instance id: refused
/// while the holder may live, let in once the stream is known to be broken.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_stream_gives_its_instance_id_up() {
    let (world, dir) = (World::start().await, folder());
    let coordinator = world.with_all_shards(dir.path()).await;
    let mut first = Gateway::open(&coordinator, 1).await;
    let mut second = Gateway::open(&coordinator, 2).await;
    let What::View(holder) = first.ask("g", join(1, "i")).await else {
        panic!("joined")
    };
    assert_eq!(
        code(second.ask("g", join(2, "i")).await),
        ErrorCode::InstanceInUse
    );
    let broken = StreamBrokenEvent {
        caller: Some(caller(&holder)),
        in_flight_known: true,
        in_flight: Vec::new(),
    };
    assert!(matches!(
        first.ask("g", Event::StreamBroken(broken)).await,
        What::Done(_)
    ));
    let What::View(heir) = second.ask("g", join(2, "i")).await else {
        panic!("let in")
    };
    assert_eq!(
        partitions(&heir),
        [0, 1, 2, 3],
        "it takes over the assignment"
    );
    let late = commit(Some(caller(&holder)), vec![offset(at(0), 5, true)]);
    let refused = first.ask("g", Event::Commit(late)).await;
    assert_eq!(code(refused), ErrorCode::UnknownMember);
}

/// Story: the link between gateway and coordinator breaks; the members' streams live
/// on. They are known again, with their newest view, by the next heartbeats; an
/// earlier stream of the same process is cut.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_link_breaks_no_member() {
    let (world, dir) = (World::start().await, folder());
    let coordinator = world.with_all_shards(dir.path()).await;
    let mut before = Gateway::open(&coordinator, 1).await;
    let What::View(member) = before.ask("g", join(1, "i")).await else {
        panic!("joined")
    };
    let mut after = Gateway::open(&coordinator, 1).await;
    assert!(
        before.hear().await.is_none(),
        "its earlier stream has ended"
    );
    // Until the coordinator has noticed, a heartbeat has nothing to tell.
    let mut again = None;
    for _ in 0..400 {
        match after.ask("g", Event::Heartbeat(caller(&member))).await {
            What::View(view) => {
                again = Some(view);
                break;
            }
            What::Done(_) => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
            other => panic!("{other:?}"),
        }
    }
    let again = again.expect("the view, by and by");
    assert_eq!(partitions(&again), [0, 1, 2, 3]);
    assert_eq!(again.member_epoch, member.member_epoch, "no rebalance");
    assert_eq!(
        code(after.ask("g", join(2, "i")).await),
        ErrorCode::InstanceInUse
    );
}

/// Story: a stream is known again by a heartbeat, whose answer with the member's view
/// falls with an append that fails. The next heartbeat is answered with the view: the
/// member would not read what it was given meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_view_that_was_withheld_comes_with_the_next_heartbeat() {
    let (world, dir) = (World::start().await, folder());
    let coordinator = world.with_all_shards(dir.path()).await;
    let mut before = Gateway::open(&coordinator, 1).await;
    let member = before.join("g", 1).await;
    let mut after = Gateway::open(&coordinator, 1).await;
    assert!(before.hear().await.is_none(), "cut");
    let known = || async {
        let answer = describe(&coordinator, "g").await;
        (!answer.members.iter().any(|it| it.live)).then_some(())
    };
    eventually("the link's end is known", known).await;
    // Long enough on its way for the heartbeat to come behind it.
    let slow = std::iter::repeat_n(Fault::NotDone(ErrorCode::NotLeader), 6);
    world.log.inject(slow);
    world.log.inject([Fault::NotDone(ErrorCode::CorruptBatch)]);
    let event = commit(Some(caller(&member)), vec![offset(at(0), 20, true)]);
    let committed = after.say("g", Event::Commit(event)).await;
    let beat = after.say("g", Event::Heartbeat(caller(&member))).await;
    assert_eq!(code(after.answer(committed).await), ErrorCode::Unavailable);
    assert_eq!(code(after.answer(beat).await), ErrorCode::Unavailable);
    let What::View(view) = after.ask("g", Event::Heartbeat(caller(&member))).await else {
        panic!("a view")
    };
    assert_eq!(partitions(&view), [0, 1, 2, 3]);
}

/// Story: a coordinator's shards are given to another, and the watch by which it would
/// know is late, while its heartbeats are answered. It stops to answer what it has not
/// written, for that may be old; then the watch comes, and it knows who has them.
#[tokio::test(flavor = "multi_thread")]
async fn a_deposed_coordinator_whose_watch_is_late_stops_answering() {
    let (world, one, two) = (World::start().await, folder(), folder());
    let old = world.with_all_shards(one.path()).await;
    let new = world.coordinator(two.path()).await;
    assert_eq!(stored(&old, "g").await, []);
    world.hold_back(true);
    for shard in 0..SHARDS {
        world.give(shard, new.node_id());
    }
    let question = || {
        Question::FetchOffsets(FetchOffsetsRequest {
            group: "g".into(),
            topic: String::new(),
        })
    };
    let refused = eventually("it does not answer any more", || async {
        ask(&old, question()).await.err()
    })
    .await;
    assert_eq!(refused.code, ErrorCode::NotCoordinator);
    // However long it hears the controller without the news.
    let answered = world.beats() + 8;
    while world.beats() < answered {
        let again = ask(&old, question()).await.expect_err("unsure");
        assert_eq!(again.code, ErrorCode::NotCoordinator);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    world.hold_back(false);
    eventually("the new one has them", || async {
        (new.shards().len() == SHARDS as usize).then_some(())
    })
    .await;
    assert_eq!(stored(&new, "g").await, []);
}

/// Story: the controller gives a shard to another coordinator. Gateways are told, the
/// old one refuses and names the new one, and what it acknowledged is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_moves_with_all_that_was_acknowledged() {
    let (world, one, two) = (World::start().await, folder(), folder());
    let old = world.with_all_shards(one.path()).await;
    let new = world.coordinator(two.path()).await;
    let mut gateway = Gateway::open(&old, 1).await;
    let member = gateway.join("g", 1).await;
    let results = gateway
        .commit(
            "g",
            commit(Some(caller(&member)), vec![offset(at(0), 42, true)]),
        )
        .await;
    assert_eq!(good(&results.results[0]), 42);
    world.give_all(&new).await;
    let moved = gateway
        .told(|what| match what {
            What::ShardsMoved(moved) => Some(moved.shards),
            _ => None,
        })
        .await;
    assert_eq!(moved.len(), 1);
    let What::Error(detail) = gateway.ask("g", Event::Heartbeat(caller(&member))).await else {
        panic!("refused")
    };
    let refusal = Refusal::from_detail(detail);
    assert_eq!(refusal.code, ErrorCode::NotCoordinator);
    let hint = format!("{:?}", refusal.details);
    assert!(hint.contains(&new.grpc_addr().to_string()), "{hint}");
    assert_eq!(stored(&new, "g").await, [(0, 42)]);
    let mut gateway = Gateway::open(&new, 1).await;
    let What::View(view) = gateway.ask("g", Event::Heartbeat(caller(&member))).await else {
        panic!("known again")
    };
    assert_eq!(view.shard_epoch, 2);
    check(&new).await;
}

/// Story: clients without a member commit. What lies outside the log is refused, after
/// the leader was asked; what lies within cached bounds costs no question; later
/// requests of the group keep their order behind a commit that waits.
#[tokio::test(flavor = "multi_thread")]
async fn commits_are_checked_against_the_log_in_order() {
    let (world, dir) = (World::start().await, folder());
    let coordinator = world.with_all_shards(dir.path()).await;
    let mut gateway = Gateway::open(&coordinator, 1).await;
    let first = commit(
        None,
        vec![
            offset(at(0), 5, false),
            offset(at(1), 100, false),
            offset(at(0), 1_001, false),
        ],
    );
    let first = gateway.say("g", Event::Commit(first)).await;
    let second = commit(None, vec![offset(at(1), 200, false)]);
    let second = gateway.say("g", Event::Commit(second)).await;
    let What::Committed(results) = gateway.answer(first).await else {
        panic!("decided")
    };
    let codes: Vec<_> = results
        .results
        .iter()
        .map(|result| result.error.clone().map(|it| Refusal::from_detail(it).code))
        .collect();
    let out = Some(ErrorCode::OffsetOutOfRange);
    assert_eq!(codes, [out, None, out]);
    let What::Committed(results) = gateway.answer(second).await else {
        panic!("decided")
    };
    assert_eq!(good(&results.results[0]), 200);
    let asked = world.asked_offsets();
    gateway
        .commit("g", commit(None, vec![offset(at(1), 300, false)]))
        .await;
    assert_eq!(world.asked_offsets(), asked, "within cached bounds");
    let back = gateway
        .commit("g", commit(None, vec![offset(at(1), 250, false)]))
        .await;
    let error = back.results[0].error.clone().expect("refused");
    assert_eq!(Refusal::from_detail(error).code, ErrorCode::BelowCommitted);
    assert_eq!(stored(&coordinator, "g").await, [(1, 300)]);
}

/// Story: an operator looks, resets, deletes.
#[tokio::test(flavor = "multi_thread")]
async fn operators_list_reset_and_delete() {
    let (world, dir) = (World::start().await, folder());
    let coordinator = world.with_all_shards(dir.path()).await;
    let refused = ask(
        &coordinator,
        Question::DescribeGroup(DescribeGroupRequest { group: "g".into() }),
    )
    .await;
    assert_eq!(
        refused.expect_err("nothing there").code,
        ErrorCode::UnknownGroup
    );
    let refused = ask(
        &coordinator,
        Question::DescribeGroup(DescribeGroupRequest {
            group: "a b".into(),
        }),
    )
    .await;
    assert_eq!(refused.expect_err("no name").code, ErrorCode::InvalidName);
    let by_name = |partition, offset| CommittedOffset {
        topic: "t".into(),
        partition,
        offset,
        ..CommittedOffset::default()
    };
    let request = CommitOffsetsRequest {
        group: "g".into(),
        offsets: vec![by_name(0, 20), by_name(9, 20), by_name(1, 5)],
        ..CommitOffsetsRequest::default()
    };
    let Ok(Answer::CommitOffsets(committed)) =
        ask(&coordinator, Question::CommitOffsets(request)).await
    else {
        panic!("answered")
    };
    let codes: Vec<_> = committed.errors.iter().map(|it| it.code()).collect();
    assert_eq!(
        codes,
        [
            ErrorCode::Unspecified,
            ErrorCode::UnknownPartition,
            ErrorCode::OffsetOutOfRange
        ]
    );

    let reset = |to, execute| {
        Question::ResetOffsets(ResetOffsetsRequest {
            group: "g".into(),
            topic: "t".into(),
            to: Some(to),
            execute,
        })
    };
    for (to, after) in [
        (To::Earliest(true), 10),
        (To::Latest(true), 1_000),
        (To::Offset(77), 77),
        (To::Offset(5_000), 1_000),
        (To::TimestampMs(1), 500),
        (To::Shift(3), 23),
        (To::Shift(-3), 17),
    ] {
        let Ok(Answer::ResetOffsets(shown)) = ask(&coordinator, reset(to, false)).await else {
            panic!("answered")
        };
        assert_eq!(
            (shown.before[0].offset, shown.after[0].offset),
            (20, after),
            "{to:?}"
        );
        assert_eq!(shown.before[1].offset, -1);
    }
    assert_eq!(stored(&coordinator, "g").await, [(0, 20)], "only shown");
    ask(&coordinator, reset(To::Latest(true), true))
        .await
        .expect("moved");
    assert_eq!(stored(&coordinator, "g").await.len(), 4);

    let Ok(Answer::GetLag(lag)) = ask(
        &coordinator,
        Question::GetLag(GetLagRequest {
            group: "g".into(),
            topic: "t".into(),
        }),
    )
    .await
    else {
        panic!("answered")
    };
    assert_eq!(
        (lag.lags.len(), lag.lags[0].lag_records, lag.lags[0].trend()),
        (4, 0, LagTrend::Flat)
    );
    let listed = client(&coordinator).list_shards(ListShardsRequest {}).await;
    let listed = listed.expect("listed").into_inner();
    assert_eq!((listed.groups.len(), listed.shards), (1, vec![0, 1, 2]));
    assert_eq!(listed.groups[0].state, "empty");

    let forget = DeleteOffsetsRequest {
        group: "g".into(),
        topic: "t".into(),
        partitions: vec![1, 3],
    };
    let Ok(Answer::DeleteOffsets(deleted)) =
        ask(&coordinator, Question::DeleteOffsets(forget)).await
    else {
        panic!("answered")
    };
    assert_eq!(deleted.deleted.len(), 2);
    assert_eq!(stored(&coordinator, "g").await, [(0, 1_000), (2, 1_000)]);
    let delete = || Question::DeleteGroup(DeleteGroupRequest { group: "g".into() });
    ask(&coordinator, delete()).await.expect("deleted");
    assert_eq!(
        ask(&coordinator, delete()).await.expect_err("gone").code,
        ErrorCode::UnknownGroup
    );
    check(&coordinator).await;

    let mut gateway = Gateway::open(&coordinator, 1).await;
    gateway.join("g", 1).await;
    let refused = ask(&coordinator, reset(To::Latest(true), false)).await;
    assert_eq!(refused.expect_err("in use").code, ErrorCode::GroupNotEmpty);
}

/// Story: answers of the log are lost, sends are lost, appends are refused. What was
/// acknowledged is there after a restart, once; what was not done is not.
#[tokio::test(flavor = "multi_thread")]
async fn faults_of_the_log_lose_nothing_acknowledged() {
    let (world, one, two) = (World::start().await, folder(), folder());
    let coordinator = world.with_all_shards(one.path()).await;
    let mut gateway = Gateway::open(&coordinator, 1).await;
    let member = gateway.join("g", 1).await;
    let faults = [
        Fault::AnswerLost,
        Fault::SendLost,
        Fault::NotDone(ErrorCode::NotLeader),
        Fault::AnswerLost,
        Fault::NotDone(ErrorCode::CorruptBatch),
    ];
    world.log.inject(faults);
    let mut acknowledged = 0;
    for n in 1..=40 {
        let event = commit(Some(caller(&member)), vec![offset(at(0), n, true)]);
        match gateway.ask("g", Event::Commit(event)).await {
            What::Committed(results) => acknowledged = good(&results.results[0]),
            other => panic!("{other:?}"),
        }
    }
    // Refused for good, and nothing may have arrived: not done, and said so.
    world.log.inject([Fault::NotDone(ErrorCode::CorruptBatch)]);
    let event = commit(Some(caller(&member)), vec![offset(at(0), 99, true)]);
    let refused = gateway.ask("g", Event::Commit(event)).await;
    assert_eq!(code(refused), ErrorCode::Unavailable);
    assert_eq!(stored(&coordinator, "g").await, [(0, acknowledged)]);
    check(&coordinator).await;
    let next = world.with_all_shards(two.path()).await;
    assert_eq!(stored(&next, "g").await, [(0, acknowledged)]);
    check(&next).await;
}

/// Story: a coordinator starts again in its folder and reads only what came after its
/// view. In a cluster whose log is another one, the view is ahead and is dropped.
#[tokio::test(flavor = "multi_thread")]
async fn a_load_starts_from_the_kept_view_and_a_view_ahead_is_dropped() {
    let (world, dir) = (World::start().await, folder());
    let coordinator = world.with_all_shards(dir.path()).await;
    let mut gateway = Gateway::open(&coordinator, 1).await;
    for n in 1..=50 {
        gateway
            .commit("g", commit(None, vec![offset(at(0), 100 + n, false)]))
            .await;
    }
    check(&coordinator).await;
    drop(gateway);
    coordinator
        .stop(std::time::Duration::from_millis(300))
        .await;

    world.log.forget_reads();
    let coordinator = world.with_all_shards(dir.path()).await;
    assert_eq!(stored(&coordinator, "g").await, [(0, 150)]);
    let reads = world.log.reads();
    assert!(reads.iter().all(|from| from.0 > 0), "{reads:?}");
    check(&coordinator).await;
    coordinator
        .stop(std::time::Duration::from_millis(300))
        .await;

    let coordinator = world.coordinator_on(dir.path(), MemoryLog::default()).await;
    world.give_all(&coordinator).await;
    assert_eq!(stored(&coordinator, "g").await, []);
    check(&coordinator).await;
}

/// Story: an election costs the log its newest batches, and others are written in
/// their place. The log is as long as the view says, and still the view is dropped: it
/// holds what the log has lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_kept_view_of_another_history_is_dropped() {
    let (world, one, two) = (World::start().await, folder(), folder());
    let coordinator = world.with_all_shards(one.path()).await;
    let mut gateway = Gateway::open(&coordinator, 1).await;
    for n in 101..=150 {
        gateway
            .commit("g", commit(None, vec![offset(at(0), n, false)]))
            .await;
    }
    check(&coordinator).await;
    drop(gateway);
    let soon = std::time::Duration::from_millis(300);
    coordinator.stop(soon).await;

    world.lose(20);
    let coordinator = world.with_all_shards(two.path()).await;
    let kept = stored(&coordinator, "g").await[0].1;
    assert!(kept < 150, "acknowledged offsets are lost: {kept}");
    let mut gateway = Gateway::open(&coordinator, 1).await;
    for n in 201..=250 {
        gateway
            .commit("g", commit(None, vec![offset(at(1), n, false)]))
            .await;
    }
    drop(gateway);
    coordinator.stop(soon).await;

    let coordinator = world.with_all_shards(one.path()).await;
    assert_eq!(stored(&coordinator, "g").await, [(0, kept), (1, 250)]);
    check(&coordinator).await;
}

/// An offset in the usual topic and one in topic `u`.
async fn commit_to_both(gateway: &mut Gateway) {
    let other = talweg_types::TopicPartition {
        topic_id: support::world::id_of("u"),
        ..at(0)
    };
    let both = vec![offset(at(0), 20, false), offset(other, 30, false)];
    gateway.commit("g", commit(None, both)).await;
}

/// Story: a topic is deleted. Its offsets go; those of a topic that is only missing
/// from the view would stay.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_topic_takes_its_offsets_along() {
    let (world, dir) = (World::start().await, folder());
    world.create_topic("u", 1);
    let coordinator = world.with_all_shards(dir.path()).await;
    let mut gateway = Gateway::open(&coordinator, 1).await;
    commit_to_both(&mut gateway).await;
    world.delete_topic("u");
    eventually("its offsets are gone", || async {
        (stored(&coordinator, "g").await == [(0, 20)]).then_some(())
    })
    .await;
    check(&coordinator).await;
}

/// Story: a topic is deleted while no coordinator is there, and its tombstone is gone
/// before one comes. Its offsets go all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_was_deleted_unheard_takes_its_offsets_along() {
    let (world, dir) = (World::start().await, folder());
    world.create_topic("u", 1);
    let coordinator = world.with_all_shards(dir.path()).await;
    let mut gateway = Gateway::open(&coordinator, 1).await;
    commit_to_both(&mut gateway).await;
    drop(gateway);
    coordinator
        .stop(std::time::Duration::from_millis(300))
        .await;
    world.forget_topic("u");
    let coordinator = world.with_all_shards(dir.path()).await;
    eventually("its offsets are gone", || async {
        (stored(&coordinator, "g").await == [(0, 20)]).then_some(())
    })
    .await;
    check(&coordinator).await;
}

/// Story: a member is silent for its session; who is left hears it, and so does its gateway.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_member_is_removed_by_the_clock() {
    let (world, dir) = (World::start().await, folder());
    let coordinator = world.with_all_shards(dir.path()).await;
    let mut gateway = Gateway::open(&coordinator, 1).await;
    let Event::Join(mut silent) = join(1, "") else {
        panic!("a join")
    };
    silent
        .profile
        .as_mut()
        .expect("a profile")
        .session_timeout_ms = 300;
    let What::View(silent) = gateway.ask("g", Event::Join(silent)).await else {
        panic!("joined")
    };
    let other = gateway.join("g", 2).await;
    let removed = gateway
        .told(|what| match what {
            What::Removed(removed) => Some(removed),
            _ => None,
        })
        .await;
    assert_eq!(removed.member_id, silent.member_id);
    assert_eq!(removed.reason(), RemovalReason::SessionExpired);
    let heir = gateway
        .told_view(|view| view.member_id == other.member_id && view.assigned.len() == 4)
        .await;
    assert_eq!(partitions(&heir), [0, 1, 2, 3]);
}

/// Whatever a gateway sends, it hears what is wrong with it.
#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_get_typed_errors() {
    let (world, dir) = (World::start().await, folder());
    let coordinator = world.coordinator(dir.path()).await;
    let mut gateway = Gateway::open(&coordinator, 1).await;
    let heartbeat = |id: usize| {
        Event::Heartbeat(talweg_proto::coordinator::v1::Caller {
            member_id: vec![1; id].into(),
            member_epoch: 1,
        })
    };
    assert_eq!(
        code(gateway.ask("g", heartbeat(16)).await),
        ErrorCode::NotCoordinator
    );
    world.give_all(&coordinator).await;
    assert_eq!(
        code(gateway.ask("g", heartbeat(16)).await),
        ErrorCode::UnknownMember
    );
    assert_eq!(
        code(gateway.ask("g", heartbeat(3)).await),
        ErrorCode::InvalidArgument
    );
    assert_eq!(
        code(gateway.ask("", heartbeat(16)).await),
        ErrorCode::InvalidName
    );
    let open = Event::Open(Default::default());
    assert_eq!(
        code(gateway.ask("g", open).await),
        ErrorCode::InvalidArgument
    );
    let Event::Join(mut odd) = join(1, "") else {
        panic!("a join")
    };
    odd.profile.as_mut().expect("a profile").assignor = "fair".into();
    assert_eq!(
        code(gateway.ask("g", Event::Join(odd.clone())).await),
        ErrorCode::InvalidArgument
    );
    odd.profile = None;
    assert_eq!(
        code(gateway.ask("g", Event::Join(odd)).await),
        ErrorCode::InvalidArgument
    );
    let many = vec![offset(at(0), 1, true); 10_001];
    let refused = gateway.ask("g", Event::Commit(commit(None, many))).await;
    assert_eq!(code(refused), ErrorCode::LimitExceeded);
    let request = AskRequest { question: None };
    let status = client(&coordinator)
        .ask(request)
        .await
        .expect_err("none is set");
    assert_eq!(
        Refusal::from_status(&status).code,
        ErrorCode::InvalidArgument
    );
}
