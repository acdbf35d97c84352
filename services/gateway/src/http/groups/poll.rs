//! A poll: what the member holds, records from where it stands, and where it
//! stands then.

use super::{
    member::{Member, Said, token},
    query::PollQuery,
};
use crate::{
    groups::{check_group, id_bytes, partition_at},
    http::{HttpState, body::Params, record::shown, reply::Failure},
    node::Node,
};
use axum::extract::{Path, State};
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};
use talweg_client::{
    FetchStart, Fetcher, FetcherConfig, Refusal, StartAt,
    fetch::{Data, FetchEvent},
    payload::fetched_record_bytes,
};
use talweg_kit::errors::ErrorCode;
use talweg_proto::{
    coordinator::v1::{
        AssignedPartition, DeliveryMode, JoinEvent, MemberProfile, MemberView, PartitionOffset,
        PollEvent, ReturnedEvent, converse_request::Event, converse_response::What,
    },
    v1::{self, error_detail::Details},
};
use talweg_types::{TopicPartition, limits};
use tokio::time::{Instant, sleep, timeout_at};

/// A new member is given partitions within this, even if the caller does not wait.
const ASSIGNING: Duration = Duration::from_secs(2);
const ASK_AGAIN: Duration = Duration::from_millis(60);
/// Leaders have this long to say where a partition stands.
const PATIENCE: Duration = Duration::from_secs(10);

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
    found.read(state, &query, asked).await?;
    returned(state, group, &member, &view, &found).await?;
    let positions: Vec<Value> = found
        .parts
        .values()
        .filter_map(|part| {
            let offset = part.next?;
            Some(json!({"topic": part.topic, "partition": part.partition, "offset": offset}))
        })
        .collect();
    Ok(axum::Json(json!({
        "records": found.records,
        "positions": positions,
        "gaps": found.gaps,
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

/// One partition of a poll.
struct Part {
    topic: String,
    partition: u32,
    start: StartAt,
    next: Option<i64>,
    end: Option<i64>,
    /// One record and no more.
    one: bool,
    stopped: bool,
}

/// Where to read, and why nothing is read of the others.
fn starts(
    state: &HttpState,
    view: &MemberView,
    query: &PollQuery,
) -> (BTreeMap<TopicPartition, Part>, Vec<Value>) {
    let topics = state.view.get();
    let returned: BTreeMap<TopicPartition, i64> = view
        .positions
        .iter()
        .filter_map(|it| Some((partition_at(&it.topic_id, it.partition)?, it.offset)))
        .collect();
    let (mut parts, mut held_back) = (BTreeMap::new(), Vec::new());
    for given in &view.assigned {
        let Some(at) = partition_at(&given.topic_id, given.partition) else {
            continue;
        };
        let topic = topics.topic(at.topic_id).map(|it| it.topic.name.clone());
        let Some(topic) = topic.filter(|it| query.topics.contains(it)) else {
            continue;
        };
        let mode = DeliveryMode::try_from(given.delivery).unwrap_or(DeliveryMode::Unspecified);
        if matches!(mode, DeliveryMode::DeadLetter | DeliveryMode::Paused) {
            held_back.push(error_of(&topic, given.partition, &paused(given)));
            continue;
        }
        let said = query.positions.get(&(topic.clone(), given.partition));
        let next = said
            .or_else(|| returned.get(&at))
            .copied()
            .or(given.next_offset);
        let part = Part {
            topic,
            partition: given.partition,
            start: next.map_or(StartAt::Earliest, StartAt::Offset),
            next,
            end: None,
            one: mode == DeliveryMode::OneByOne,
            stopped: false,
        };
        parts.insert(at, part);
    }
    (parts, held_back)
}

fn paused(given: &AssignedPartition) -> Refusal {
    let why = format!(
        "members were lost {} times at the next record ({}); nothing is sent until a seek or a reset",
        given.attempts, given.reason
    );
    Refusal::new(ErrorCode::PartitionPaused, why)
}

/// An element of `errors`.
fn error_of(topic: &str, partition: u32, refusal: &Refusal) -> Value {
    let mut error = refusal.json();
    error["topic"] = topic.into();
    error["partition"] = partition.into();
    error
}

/// What a poll found.
struct Found {
    parts: BTreeMap<TopicPartition, Part>,
    records: Vec<Value>,
    gaps: Vec<Value>,
    /// Partitions of which nothing more comes.
    errors: Vec<Value>,
    bytes: usize,
    full: bool,
}

impl Found {
    fn new(parts: BTreeMap<TopicPartition, Part>, errors: Vec<Value>) -> Self {
        Self {
            parts,
            records: Vec::new(),
            gaps: Vec::new(),
            errors,
            bytes: 0,
            full: false,
        }
    }

    /// Reads until there is something and no more at hand, or the wait is over.
    async fn read(
        &mut self,
        state: &HttpState,
        query: &PollQuery,
        asked: Instant,
    ) -> Result<(), Failure> {
        if self.parts.is_empty() {
            return Ok(());
        }
        let credit = query
            .max_bytes
            .max(limits::MAX_MESSAGE_BYTES_RANGE.1 as usize);
        let config = FetcherConfig {
            form: v1::Form::Records,
            credit_bytes: i64::try_from(credit).unwrap_or(i64::MAX),
            patience: PATIENCE,
            ..Default::default()
        };
        let starts = self.parts.values().map(|part| FetchStart {
            topic: part.topic.clone(),
            partition: part.partition,
            start: part.start,
        });
        let mut fetcher = Fetcher::open(&state.client, config, starts.collect()).await?;
        loop {
            let known = self.parts.values().all(|it| it.stopped || it.end.is_some());
            if self.full || (known && self.is_at_end() && !self.records.is_empty()) {
                return Ok(());
            }
            let until = if known && self.is_at_end() {
                asked + query.wait
            } else {
                asked + query.wait + PATIENCE
            };
            let Ok(event) = timeout_at(until, fetcher.next()).await else {
                return Ok(());
            };
            self.on_event(event, query, &mut fetcher).await?;
        }
    }

    fn is_at_end(&self) -> bool {
        self.parts.values().all(|part| {
            let at_end = matches!((part.next, part.end), (Some(next), Some(end)) if next >= end);
            part.stopped || at_end
        })
    }

    async fn on_event(
        &mut self,
        event: FetchEvent,
        query: &PollQuery,
        fetcher: &mut Fetcher,
    ) -> Result<(), Failure> {
        match event {
            FetchEvent::Started(position) | FetchEvent::Position(position) => {
                self.at(&position);
                Ok(())
            }
            FetchEvent::Data(data) => {
                if let Data::Records(records) = data.data {
                    let all = self.take(data.partition, records, query);
                    if all {
                        self.at(&data.position);
                    }
                }
                Ok(())
            }
            FetchEvent::Stopped { partition, refusal } => {
                self.on_stopped(partition, refusal, fetcher).await
            }
        }
    }

    fn at(&mut self, position: &v1::PartitionPosition) {
        let at = partition_at(&position.topic_id, position.partition);
        if let Some(part) = at.and_then(|at| self.parts.get_mut(&at))
            && !part.stopped
        {
            part.next = Some(position.next_offset);
            part.end = Some(position.high_watermark);
        }
    }

    /// Takes records while they fit; the first of all always does. False: not all.
    fn take(
        &mut self,
        at: TopicPartition,
        records: Vec<v1::FetchedRecord>,
        query: &PollQuery,
    ) -> bool {
        let Some(part) = self.parts.get_mut(&at).filter(|part| !part.stopped) else {
            return false;
        };
        for record in records {
            let bytes = fetched_record_bytes(&record);
            let over =
                self.bytes + bytes > query.max_bytes || self.records.len() >= query.max_records;
            if over && !self.records.is_empty() {
                self.full = true;
                return false;
            }
            self.bytes += bytes;
            part.next = Some(record.offset + 1);
            let mut value = shown(&record);
            value["topic"] = part.topic.clone().into();
            value["partition"] = part.partition.into();
            self.records.push(value);
            if part.one {
                part.stopped = true;
                return false;
            }
        }
        true
    }

    /// What retention took is said and passed over; other failures stand beside the
    /// records of other partitions, and are the answer where there is nothing else.
    async fn on_stopped(
        &mut self,
        at: TopicPartition,
        refusal: Refusal,
        fetcher: &mut Fetcher,
    ) -> Result<(), Failure> {
        let Some(part) = self.parts.get_mut(&at) else {
            return Ok(());
        };
        if let Some(Details::Bounds(bounds)) = &refusal.details
            && let Some(from) = part.next.filter(|next| *next < bounds.log_start_offset)
        {
            let to = bounds.log_start_offset;
            self.gaps.push(json!({
                "topic": part.topic, "partition": part.partition,
                "from_offset": from, "to_offset": to, "records_lost": to - from,
            }));
            part.next = Some(to);
            let start = FetchStart {
                topic: part.topic.clone(),
                partition: part.partition,
                start: StartAt::Offset(to),
            };
            return Ok(fetcher.add(vec![start]).await?);
        }
        part.stopped = true;
        let error = error_of(&part.topic, part.partition, &refusal);
        self.errors.push(error);
        let others = self.parts.values().any(|part| !part.stopped);
        if self.records.is_empty() && !others {
            return Err(refusal.into());
        }
        Ok(())
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use talweg_types::{PartitionIndex, TopicId};

    /// Story: of two partitions one cannot be read. The records of the other one do
    /// not hide that; alone, it is the answer.
    #[tokio::test]
    async fn a_stopped_partition_is_said_beside_records() {
        let at = |partition| TopicPartition {
            topic_id: TopicId::NIL,
            partition: PartitionIndex(partition),
        };
        let part = |partition| Part {
            topic: "t".into(),
            partition,
            start: StartAt::Offset(5),
            next: Some(5),
            end: None,
            one: false,
            stopped: false,
        };
        let parts = [(at(0), part(0)), (at(1), part(1))];
        let mut found = Found::new(parts.into(), Vec::new());
        let damaged = || Refusal::new(ErrorCode::DataDamaged, "cannot be read");
        let client = talweg_client::Client::connect(["http://127.0.0.1:1"], Default::default());
        let client = client.expect("an address");
        let config = FetcherConfig::default();
        let mut fetcher = Fetcher::open(&client, config, Vec::new())
            .await
            .expect("opens");
        let stopped = found.on_stopped(at(1), damaged(), &mut fetcher).await;
        assert!(stopped.is_ok(), "the other one goes on");
        let error = &found.errors[0];
        assert_eq!(
            (&error["topic"], &error["partition"], &error["code"]),
            (&json!("t"), &json!(1), &json!("DATA_DAMAGED"))
        );
        let stopped = found.on_stopped(at(0), damaged(), &mut fetcher).await;
        assert!(stopped.is_err(), "nothing is left to answer");
    }
}
