//! The open frame of a Subscribe stream.

use super::{
    core::{CoreConfig, Wanted},
    derived,
};
use crate::{fetch::reading::ReadingConfig, groups, produce::check_client_id, token};
use regex::bytes::{Regex, RegexBuilder};
use std::collections::BTreeSet;
use talweg_client::view::{TopicView, View};
use talweg_kit::{
    errors::{ErrorCode, Refusal},
    fetch_credit::FetchCredit,
};
use talweg_proto::{
    coordinator::v1::{MemberKind, MemberProfile},
    v1::{self, Form, Isolation, ResetPolicy, SubscribeOpen},
};
use talweg_types::{MemberId, limits};

const ASSIGNORS: [&str; 4] = ["", "sticky", "range", "round-robin"];

/// What a member was opened with.
#[derive(Clone, Debug)]
pub struct MemberOptions {
    pub group: String,
    topics: BTreeSet<String>,
    pattern: Option<(String, Option<Regex>)>,
    profile: MemberProfile,
    pub core: CoreConfig,
    pub reading: ReadingConfig,
    pub claim: Option<Claim>,
}

/// The member that the stream is to go on as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    pub member: MemberId,
    /// By its id, not by a resume token: it and no other. Who has a token may join anew
    /// where the group does not know it any more.
    pub strict: bool,
}

impl MemberOptions {
    /// INVALID_ARGUMENT, INVALID_NAME, LIMIT_EXCEEDED, INVALID_CREDIT,
    /// CREDIT_TOO_SMALL, NAME_CONFLICT, INVALID_RESUME_TOKEN, NOT_BUILT.
    pub fn check(open: SubscribeOpen, view: &View) -> Result<(Self, FetchCredit), Refusal> {
        groups::check_group(&open.group)?;
        check_client_id(&open.client_id)?;
        check_text("open.instance_id", &open.instance_id)?;
        check_text("open.rack", &open.rack)?;
        if !open.topic_order.is_empty() {
            return Err(Refusal::not_built(
                "An order of topics is not built in this version.",
            ));
        }
        if !ASSIGNORS.contains(&&*open.assignor) {
            let why = format!("{:?} is none of sticky, range, round-robin", open.assignor);
            return Err(Refusal::invalid("open.assignor", why));
        }
        let topics = check_topics(&open)?;
        let core = core_config(&open)?;
        let named = || topics.iter().filter_map(|name| view.by_name(name));
        // Nothing is derived from what is derived itself.
        for topic in named().filter(|topic| !derived::is_derived(topic)) {
            derived::check_names(view, topic, &open.group, core.backoff_ms.len())?;
        }
        let largest = named().map(|topic| topic.config.max_message_bytes).max();
        let credit = FetchCredit::open(open.credit.as_ref(), largest.unwrap_or(0))?;
        let claim = claim(&open, view)?;
        let reading = ReadingConfig {
            client_id: open.client_id.clone(),
            thin: is_thin(open.form)?,
            isolation: Isolation::try_from(open.isolation).map_err(|_| {
                Refusal::invalid("open.isolation", format!("{} is unknown", open.isolation))
            })?,
            rack: open.rack.clone(),
        };
        let policy = open.dead_letter_policy.clone().unwrap_or_default();
        let profile = MemberProfile {
            kind: MemberKind::Streaming.into(),
            topics: topics.iter().cloned().collect(),
            pattern: open.pattern.clone(),
            instance_id: open.instance_id,
            client_id: open.client_id,
            rack: open.rack,
            assignor: open.assignor,
            session_timeout_ms: open.session_timeout_ms,
            rebalance_timeout_ms: open.rebalance_timeout_ms,
            processing_timeout_ms: open.processing_timeout_ms,
            max_attempts: policy.max_attempts,
            no_dead_letters: policy.no_dead_letters,
            reads_committed: reading.isolation == Isolation::ReadCommitted,
        };
        let pattern = (!open.pattern.is_empty()).then(|| {
            let compiled = compile(&open.pattern);
            (open.pattern, compiled)
        });
        let options = Self {
            group: open.group,
            topics,
            pattern,
            profile,
            core,
            reading,
            claim,
        };
        Ok((options, credit))
    }

    fn wants(&self, topic: &TopicView) -> bool {
        let name = &topic.topic.name;
        let matches = |it: &Regex| it.is_match(name.as_bytes());
        let pattern = self.pattern.as_ref().and_then(|(_, it)| it.as_ref());
        // As in the group: a pattern passes derived topics by.
        let by_pattern = !derived::is_derived(topic) && pattern.is_some_and(matches);
        self.topics.contains(name) || by_pattern
    }

    /// The member's topics with the group's retry topics of them, as they are now.
    pub fn topics(&self, view: &View) -> Wanted {
        let mut names = self.profile.topics.clone();
        let mut retries = derived::retry_topics(view, &self.group, |topic| self.wants(topic));
        retries.retain(|name| !self.topics.contains(name));
        let room = limits::SUBSCRIBED_TOPICS_MAX.saturating_sub(names.len());
        let left_out = retries.len().saturating_sub(room);
        names.extend(retries.into_iter().take(room));
        Wanted { names, left_out }
    }

    /// What the coordinator is told of a member with these topics.
    pub fn profile(&self, topics: Vec<String>) -> MemberProfile {
        MemberProfile {
            topics,
            ..self.profile.clone()
        }
    }
}

/// By token, by member id, or none.
fn claim(open: &SubscribeOpen, view: &View) -> Result<Option<Claim>, Refusal> {
    let by_token = token::read_subscribe(&open.resume_token, &view.cluster_id, &open.group)?;
    let named = match open.member_id.as_str() {
        "" => None,
        text => Some(member_id(text, &open.instance_id)?),
    };
    match (by_token, named) {
        (Some(token), Some(named)) if token != named => Err(Refusal::invalid(
            "open.member_id",
            "is not the member of the resume token",
        )),
        (None, Some(member)) => Ok(Some(Claim {
            member,
            strict: true,
        })),
        (Some(member), _) => Ok(Some(Claim {
            member,
            strict: false,
        })),
        (None, None) => Ok(None),
    }
}

/// It proves nothing alone, for anyone may read it in the group's description: it goes
/// with the instance id whose holder it is.
fn member_id(text: &str, instance_id: &str) -> Result<MemberId, Refusal> {
    let field = "open.member_id";
    if instance_id.is_empty() {
        let why =
            "goes with open.instance_id, whose holder it names; without one use the resume token";
        return Err(Refusal::invalid(field, why));
    }
    text.parse()
        .map_err(|_| Refusal::invalid(field, "is not an id that `opened` gave"))
}

fn check_text(field: &str, text: &str) -> Result<(), Refusal> {
    let max = limits::MEMBER_TEXT_BYTES_MAX;
    if text.len() <= max {
        return Ok(());
    }
    let message = format!(
        "{field} has {} bytes, at most {max} are allowed",
        text.len()
    );
    Err(Refusal::new(ErrorCode::LimitExceeded, message).with_limit(
        field,
        max as u64,
        text.len() as u64,
        "bytes",
    ))
}

fn check_topics(open: &SubscribeOpen) -> Result<BTreeSet<String>, Refusal> {
    if open.topics.is_empty() && open.pattern.is_empty() {
        return Err(Refusal::invalid(
            "open.topics",
            "name a topic or give a pattern",
        ));
    }
    let (count, max) = (open.topics.len(), limits::SUBSCRIBED_TOPICS_MAX);
    if count > max {
        let message = format!("open.topics has {count} names, at most {max} are allowed");
        return Err(Refusal::new(ErrorCode::LimitExceeded, message).with_limit(
            "open.topics",
            max as u64,
            count as u64,
            "topics",
        ));
    }
    let (bytes, max) = (open.pattern.len(), limits::TOPIC_PATTERN_BYTES_MAX);
    if bytes > max {
        let message = format!("open.pattern has {bytes} bytes, at most {max} are allowed");
        return Err(Refusal::new(ErrorCode::LimitExceeded, message).with_limit(
            "open.pattern",
            max as u64,
            bytes as u64,
            "bytes",
        ));
    }
    for name in &open.topics {
        talweg_types::check_name(name).map_err(|error| {
            let reason = error.to_string();
            Refusal::new(ErrorCode::InvalidName, format!("open.topics: {reason}"))
                .with_field("open.topics", reason)
        })?;
    }
    Ok(open.topics.iter().cloned().collect())
}

/// In RE2's syntax, over ASCII, for the whole name, as the coordinator reads it;
/// one that does not compile is refused there.
fn compile(pattern: &str) -> Option<Regex> {
    RegexBuilder::new(&format!(r"\A(?:{pattern})\z"))
        .unicode(false)
        .size_limit(limits::TOPIC_PATTERN_COMPILED_BYTES_MAX)
        .dfa_size_limit(limits::TOPIC_PATTERN_COMPILED_BYTES_MAX)
        .nest_limit(50)
        .build()
        .ok()
}

fn is_thin(form: i32) -> Result<bool, Refusal> {
    match Form::try_from(form) {
        Ok(Form::Unspecified | Form::Records) => Ok(true),
        Ok(Form::Batches) => Ok(false),
        Err(_) => Err(Refusal::invalid("open.form", format!("{form} is unknown"))),
    }
}

fn core_config(open: &SubscribeOpen) -> Result<CoreConfig, Refusal> {
    let policy = ResetPolicy::try_from(open.reset_policy).map_err(|_| {
        let why = format!("{} is unknown", open.reset_policy);
        Refusal::invalid("open.reset_policy", why)
    })?;
    let session = in_range(
        "open.session_timeout_ms",
        open.session_timeout_ms,
        limits::MEMBER_SESSION_MS_DEFAULT,
        limits::MEMBER_SESSION_MS_RANGE,
    )?;
    in_range(
        "open.rebalance_timeout_ms",
        open.rebalance_timeout_ms,
        limits::REBALANCE_MS_DEFAULT,
        limits::REBALANCE_MS_RANGE,
    )?;
    let processing = in_range(
        "open.processing_timeout_ms",
        open.processing_timeout_ms,
        limits::PROCESSING_MS_DEFAULT,
        limits::PROCESSING_MS_RANGE,
    )?;
    let letters = open.dead_letter_policy.clone().unwrap_or_default();
    let max_attempts = in_range(
        "open.dead_letter_policy.max_attempts",
        letters.max_attempts,
        limits::ATTEMPTS_DEFAULT,
        limits::ATTEMPTS_RANGE,
    )?;
    Ok(CoreConfig {
        policy,
        commit_on_ack: open.commit_on_ack,
        session_ms: session.into(),
        processing_ms: processing.into(),
        max_attempts,
        backoff_ms: backoffs(&letters)?,
        block: letters.block,
        no_dead_letters: letters.no_dead_letters,
    })
}

fn backoffs(letters: &v1::DeadLetterPolicy) -> Result<Vec<u32>, Refusal> {
    let field = "open.dead_letter_policy.backoff_ms";
    let (count, max) = (letters.backoff_ms.len(), limits::RETRY_BACKOFFS_MAX);
    if count > max {
        let message = format!("{field} has {count} values, at most {max} are allowed");
        return Err(Refusal::new(ErrorCode::LimitExceeded, message).with_limit(
            field,
            max as u64,
            count as u64,
            "values",
        ));
    }
    let longest = limits::RETRY_BACKOFF_MS_MAX;
    if let Some(long) = letters.backoff_ms.iter().find(|ms| **ms > longest) {
        let why = format!("{long} is above {longest}");
        return Err(Refusal::invalid(field, why));
    }
    Ok(match count {
        0 => limits::RETRY_BACKOFF_MS_DEFAULT.to_vec(),
        _ => letters.backoff_ms.clone(),
    })
}

/// Zero is the default.
fn in_range(
    field: &str,
    value: u32,
    default: u32,
    (low, high): (u32, u32),
) -> Result<u32, Refusal> {
    match value {
        0 => Ok(default),
        value if (low..=high).contains(&value) => Ok(value),
        value => Err(Refusal::invalid(
            field,
            format!("{value} is not between {low} and {high}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> SubscribeOpen {
        SubscribeOpen {
            group: "g".into(),
            topics: vec!["t".into()],
            credit: Some(v1::Credit {
                bytes: 1 << 20,
                records: 100,
            }),
            ..Default::default()
        }
    }

    #[test]
    fn what_may_not_be_is_refused_by_name() {
        type Change = fn(&mut SubscribeOpen);
        let cases: [(ErrorCode, Change); 18] = [
            (ErrorCode::InvalidName, |it| it.group = "a b".into()),
            (ErrorCode::InvalidName, |it| it.group.clear()),
            (ErrorCode::InvalidName, |it| it.topics = vec!["a/b".into()]),
            (ErrorCode::InvalidArgument, |it| it.topics.clear()),
            (ErrorCode::LimitExceeded, |it| {
                it.topics = vec!["t".into(); limits::SUBSCRIBED_TOPICS_MAX + 1];
            }),
            (ErrorCode::LimitExceeded, |it| {
                it.pattern = "a".repeat(limits::TOPIC_PATTERN_BYTES_MAX + 1);
            }),
            (ErrorCode::LimitExceeded, |it| {
                it.instance_id = "i".repeat(limits::MEMBER_TEXT_BYTES_MAX + 1);
            }),
            (ErrorCode::InvalidArgument, |it| it.assignor = "best".into()),
            (ErrorCode::InvalidArgument, |it| it.reset_policy = 9),
            (ErrorCode::InvalidArgument, |it| it.form = 9),
            (ErrorCode::InvalidArgument, |it| it.isolation = 9),
            (ErrorCode::InvalidArgument, |it| it.session_timeout_ms = 1),
            (ErrorCode::InvalidCredit, |it| it.credit = None),
            (ErrorCode::NotBuilt, |it| it.topic_order = vec!["t".into()]),
            (ErrorCode::InvalidResumeToken, |it| {
                it.resume_token = vec![1, 2, 3].into();
            }),
            (ErrorCode::InvalidArgument, |it| {
                it.member_id = MemberId::NIL.to_string();
            }),
            (ErrorCode::InvalidArgument, |it| {
                (it.instance_id, it.member_id) = ("i".into(), "mine".into());
            }),
            (ErrorCode::InvalidArgument, |it| {
                it.dead_letter_policy = Some(v1::DeadLetterPolicy {
                    max_attempts: 1_000,
                    ..Default::default()
                });
            }),
        ];
        for (at, (code, change)) in cases.into_iter().enumerate() {
            let mut open = open();
            change(&mut open);
            let refusal = MemberOptions::check(open, &View::default()).expect_err("refused");
            assert_eq!(refusal.code, code, "case {at}: {refusal}");
        }
        let (options, _) = MemberOptions::check(open(), &View::default()).expect("opens");
        assert_eq!(options.core.backoff_ms, [60_000, 600_000]);
        assert_eq!(options.core.session_ms, 45_000);
    }

    /// Story: a process comes back with what it kept of its earlier life: its resume token,
    /// its member id, or both.
    #[test]
    fn a_member_is_claimed_by_token_or_by_id() {
        let mut view = View::default();
        view.cluster_id = vec![1; 16].into();
        let (me, other) = (
            MemberId::from_slice(&[7; 16]),
            MemberId::from_slice(&[8; 16]),
        );
        let (me, other) = (me.expect("16 bytes"), other.expect("16 bytes"));
        let claimed = |token: Option<MemberId>, id: Option<MemberId>| {
            let token = token.map(|it| token::subscribe(&view.cluster_id, it, "g"));
            let open = SubscribeOpen {
                instance_id: "i".into(),
                resume_token: token.unwrap_or_default(),
                member_id: id.map(|it| it.to_string()).unwrap_or_default(),
                ..open()
            };
            let (options, _) = MemberOptions::check(open, &view)?;
            Ok::<_, Refusal>(options.claim.map(|it| (it.member, it.strict)))
        };
        assert_eq!(claimed(None, None), Ok(None));
        assert_eq!(claimed(Some(me), None), Ok(Some((me, false))));
        assert_eq!(claimed(None, Some(me)), Ok(Some((me, true))));
        assert_eq!(claimed(Some(me), Some(me)), Ok(Some((me, false))));
        let refusal = claimed(Some(me), Some(other)).expect_err("two members");
        assert_eq!(refusal.code, ErrorCode::InvalidArgument);
    }

    /// Story: a topic named like the dead letters exists before the group; the
    /// member hears of it at once and not with the first failed record.
    #[test]
    fn names_of_derived_topics_are_checked_at_open() {
        let mut view = View::default();
        view.cluster_id = vec![1; 16].into();
        let topic = |name: &str, id: u8| v1::Topic {
            name: name.into(),
            topic_id: vec![id; 16].into(),
            partitions: 1,
            ..Default::default()
        };
        view.set_topic(topic("t", 1));
        view.set_topic(topic("t.g.dlq", 2));
        let refusal = MemberOptions::check(open(), &view).expect_err("refused");
        assert_eq!(refusal.code, ErrorCode::NameConflict);
        view.set_topic(v1::Topic {
            derived_from_topic_id: vec![1; 16].into(),
            derived_for_group: "g".into(),
            ..topic("t.g.dlq", 2)
        });
        assert!(
            MemberOptions::check(open(), &view).is_ok(),
            "the pair's own"
        );
        let mut long = open();
        long.group = "g".repeat(limits::NAME_BYTES_MAX - 2);
        let refusal = MemberOptions::check(long, &view).expect_err("refused");
        assert_eq!(refusal.code, ErrorCode::NameConflict);
    }

    /// Story: a member by pattern gets the retry topics of what the pattern
    /// matches, of its own group only. They are named: the coordinator's pattern passes
    /// derived topics by.
    #[test]
    fn retry_topics_of_the_group_are_joined() {
        let mut view = View::default();
        let mut set = |name: &str, id: u8, source: u8, group: &str| {
            let derived = if source > 0 { vec![source; 16] } else { vec![] };
            view.set_topic(v1::Topic {
                name: name.into(),
                topic_id: vec![id; 16].into(),
                partitions: 1,
                derived_from_topic_id: derived.into(),
                derived_for_group: group.into(),
                ..Default::default()
            });
        };
        set("orders", 1, 0, "");
        set("other", 2, 0, "");
        set("orders.g.retry.1", 3, 1, "g");
        set("orders.g.dlq", 4, 1, "g");
        set("orders.h.retry.1", 5, 1, "h");
        set("other.g.retry.1", 6, 2, "g");
        let mut open = open();
        open.topics.clear();
        open.pattern = "ord.*".into();
        let (options, _) = MemberOptions::check(open, &view).expect("opens");
        assert_eq!(options.topics(&view).names, ["orders.g.retry.1"]);
    }

    /// Story: a member of as many topics as it may have; one of them has a retry topic
    /// too. It is not forgotten silently.
    #[test]
    fn retry_topics_without_room_are_counted() {
        let mut view = View::default();
        let mut set = |name: String, id: u8, source: u8, group: &str| {
            let derived = if source > 0 { vec![source; 16] } else { vec![] };
            view.set_topic(v1::Topic {
                name,
                topic_id: vec![id; 16].into(),
                partitions: 1,
                derived_from_topic_id: derived.into(),
                derived_for_group: group.into(),
                ..Default::default()
            });
        };
        set("t0".into(), 1, 0, "");
        set("t0.g.retry.1".into(), 2, 1, "g");
        let mut open = open();
        open.topics = (0..limits::SUBSCRIBED_TOPICS_MAX)
            .map(|n| format!("t{n}"))
            .collect();
        let (options, _) = MemberOptions::check(open.clone(), &view).expect("opens");
        let wanted = options.topics(&view);
        let most = limits::SUBSCRIBED_TOPICS_MAX;
        assert_eq!((wanted.names.len(), wanted.left_out), (most, 1));
        open.topics.pop();
        let (options, _) = MemberOptions::check(open, &view).expect("opens");
        let wanted = options.topics(&view);
        assert_eq!((wanted.names.len(), wanted.left_out), (most, 0));
    }
}
