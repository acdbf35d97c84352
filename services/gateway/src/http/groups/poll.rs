//! A poll: what the member holds, records from where it stands, and where it
//! stands then.

use super::{
    alive::alive_while,
    member::{Member, Said, token},
    query::PollQuery,
    reading::{Found, Gap, starts},
};
use crate::{
    groups::{check_group, id_bytes},
    http::{HttpState, body::Params, reply::Failure},
    node::Node,
};
use axum::extract::{Path, State};
use serde_json::{Value, json};
use std::time::Duration;
use talweg_client::Refusal;
use talweg_proto::coordinator::v1::{
    Caller, JoinEvent, MemberProfile, MemberView, PartitionOffset, PollEvent, ReturnedEvent,
    converse_request::Event, converse_response::What,
};
use talweg_types::limits;
use tokio::time::{Instant, sleep};

/// A new member is given partitions within this, even if the caller does not wait.
const ASSIGNING: Duration = Duration::from_secs(2);
const ASK_AGAIN: Duration = Duration::from_millis(60);
/// A member that waits says so often that it lives: its session is not over when the
/// wait is.
const SIGN_OF_LIFE: Duration =
    Duration::from_millis(limits::MEMBER_SESSION_MS_DEFAULT_HTTP as u64 / 3);

/// `GET /v1/topics/{topic}/consume`
pub async fn consume(
    State(state): State<HttpState>,
    Path(topic): Path<String>,
    said: Said,
    Params(pairs): Params<Vec<(String, String)>>,
) -> Result<axum::Json<Value>, Failure> {
    let mut query = PollQuery::parse(pairs)?;
    if !query.topics.is_empty() {
        return Err(Failure::invalid("topic", "is in the path"));
    }
    let group = query.group.take();
    let group = group.ok_or_else(|| Failure::invalid("group", "must be given"))?;
    query.topics.push(topic);
    poll(&state, &group, &said, query).await
}

/// `GET /v1/groups/{group}/records`
pub async fn records(
    State(state): State<HttpState>,
    Path(group): Path<String>,
    said: Said,
    Params(pairs): Params<Vec<(String, String)>>,
) -> Result<axum::Json<Value>, Failure> {
    let query = PollQuery::parse(pairs)?;
    if query.group.is_some() {
        return Err(Failure::invalid("group", "is in the path"));
    }
    if query.topics.is_empty() {
        return Err(Failure::invalid("topic", "must be given, once or more"));
    }
    poll(&state, &group, &said, query).await
}

async fn poll(
    state: &HttpState,
    group: &str,
    said: &Said,
    query: PollQuery,
) -> Result<axum::Json<Value>, Failure> {
    check_group(group)?;
    for topic in &query.topics {
        state.view.get().resolve(topic, &[])?;
    }
    let member = said.member();
    let asked = Instant::now();
    let view = held(state, group, said, &member, &query, asked).await?;
    let (starts, held_back) = starts(state, &view, &query);
    let mut found = Found::new(starts, held_back);
    let sign = || sign_of_life(state, group, &member, &view);
    alive_while(SIGN_OF_LIFE, sign, found.read(state, &query, asked)).await?;
    returned(state, group, &member, &view, &found).await?;
    let positions: Vec<Value> = found
        .parts
        .values()
        .filter_map(|part| {
            let offset = part.next?;
            Some(json!({"topic": part.topic, "partition": part.partition, "offset": offset}))
        })
        .collect();
    for gap in &found.gaps {
        state.node.metrics.gap_told(gap.records_lost());
    }
    Ok(axum::Json(json!({
        "records": found.records,
        "positions": positions,
        "gaps": found.gaps.iter().map(Gap::shown).collect::<Vec<_>>(),
        "errors": found.errors,
        "member": token(&member.id, view.member_epoch, &query.topics),
    })))
}

async fn ask(state: &HttpState, group: &str, event: Event) -> Result<What, Refusal> {
    let coordinators = &state.node.coordinators;
    coordinators
        .request(group, event, Node::GROUP_PATIENCE)
        .await
}

fn view_of(what: What) -> Result<MemberView, Refusal> {
    match what {
        What::View(view) => Ok(view),
        _ => Err(Refusal::internal(
            "the coordinator did not say what the member holds",
        )),
    }
}

fn profile(member: &Member, query: &PollQuery) -> MemberProfile {
    MemberProfile {
        kind: member.kind.into(),
        topics: query.topics.clone(),
        client_id: "http".into(),
        session_timeout_ms: limits::MEMBER_SESSION_MS_DEFAULT_HTTP,
        // Nobody here copies dead letters; the partition pauses instead.
        no_dead_letters: true,
        ..Default::default()
    }
}

/// Where the member's next poll would go on.
fn stands(view: &MemberView) -> Vec<PartitionOffset> {
    let assigned = view.assigned.iter().filter_map(|given| {
        Some(PartitionOffset {
            topic_id: given.topic_id.clone(),
            partition: given.partition,
            offset: given.next_offset?,
        })
    });
    // Those that differ come later and win.
    assigned.chain(view.positions.iter().cloned()).collect()
}

/// The member joins again with other topics. What it keeps goes on after what was
/// last returned, which the coordinator forgets with a join.
async fn with_other_topics(
    state: &HttpState,
    group: &str,
    member: &Member,
    query: &PollQuery,
) -> Result<(MemberView, Vec<PartitionOffset>), Refusal> {
    let poll = Event::Poll(PollEvent {
        member_id: member.id.clone(),
        member_epoch: member.epoch,
    });
    let before = view_of(ask(state, group, poll).await?)?;
    let join = Event::Join(JoinEvent {
        new_member_id: member.id.clone(),
        claim: member.id.clone(),
        profile: Some(profile(member, query)),
    });
    let now = view_of(ask(state, group, join).await?)?;
    Ok((now, stands(&before)))
}

/// What the member holds now; a new one waits a moment for its share.
async fn held(
    state: &HttpState,
    group: &str,
    said: &Said,
    member: &Member,
    query: &PollQuery,
    asked: Instant,
) -> Result<MemberView, Refusal> {
    let own = matches!(said, Said::Token { .. }) && member.epoch.is_some();
    let mut kept = Vec::new();
    let mut view = if own && !is_shared(member) {
        if said.has_others_than(&query.topics) {
            let (now, positions) = with_other_topics(state, group, member, query).await?;
            kept = positions;
            Some(now)
        } else {
            None
        }
    } else {
        let join = Event::Join(JoinEvent {
            new_member_id: member.id.clone(),
            claim: Default::default(),
            profile: Some(profile(member, query)),
        });
        Some(view_of(ask(state, group, join).await?)?)
    };
    let until = asked + query.wait.max(ASSIGNING);
    loop {
        let epoch = match &view {
            Some(view) if !is_shared(member) => Some(view.member_epoch),
            _ => member.epoch,
        };
        let poll = Event::Poll(PollEvent {
            member_id: member.id.clone(),
            member_epoch: epoch,
        });
        let mut now = view_of(ask(state, group, poll).await?)?;
        // Before: what the coordinator knows comes later and wins.
        now.positions.splice(..0, kept.iter().cloned());
        let fresh = view.is_some();
        if !now.assigned.is_empty() || !fresh || Instant::now() + ASK_AGAIN >= until {
            return Ok(now);
        }
        view = Some(now);
        sleep(ASK_AGAIN).await;
    }
}

fn is_shared(member: &Member) -> bool {
    member.kind == talweg_proto::coordinator::v1::MemberKind::HttpShared
}

/// Not a poll: that would give up what the member is asked back while it still reads it.
async fn sign_of_life(
    state: &HttpState,
    group: &str,
    member: &Member,
    view: &MemberView,
) -> Result<(), Refusal> {
    let caller = Caller {
        member_id: member.id.clone(),
        member_epoch: view.member_epoch,
    };
    ask(state, group, Event::Heartbeat(caller)).await.map(drop)
}

/// Tells the coordinator where the member stands, for its next poll anywhere.
async fn returned(
    state: &HttpState,
    group: &str,
    member: &Member,
    view: &MemberView,
    found: &Found,
) -> Result<(), Refusal> {
    let next: Vec<PartitionOffset> = found
        .parts
        .iter()
        .filter_map(|(at, part)| {
            Some(PartitionOffset {
                topic_id: id_bytes(at.topic_id),
                partition: at.partition.0,
                offset: part.next?,
            })
        })
        .collect();
    if next.is_empty() {
        return Ok(());
    }
    let event = Event::Returned(ReturnedEvent {
        member_id: member.id.clone(),
        member_epoch: (!is_shared(member)).then_some(view.member_epoch),
        next,
    });
    ask(state, group, event).await.map(drop)
}
