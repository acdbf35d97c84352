//! What a refusal by a leader means for the batch that was refused.

use super::batch::Numbering;
use talweg_kit::errors::Refusal;
use talweg_proto::v1::{Effect, ErrorCode};

/// What to do with a refused batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It was not appended: send it again, in its place.
    Retry,
    /// It may have been appended: send the same bytes again.
    Repeat,
    /// It was not appended and its number is of no use: number it anew.
    Renumber,
    /// Answer the caller.
    Final,
    /// Answer the caller that the outcome is unknown.
    Unknown,
}

/// What the lane knows about the refused batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Circumstances {
    pub numbering: Numbering,
    /// An earlier send of it may have been appended.
    pub maybe_appended: bool,
    /// A batch of the same session before it waits to be sent again.
    pub behind_a_retry: bool,
    /// Leaders may not have heard yet of a topic that we know.
    pub leaders_may_lag: bool,
    /// Times it was numbered anew.
    pub renumbered: u8,
}

/// A leader that refuses fresh numbers again and again is not to be argued with.
const RENUMBERINGS_MAX: u8 = 3;

pub(super) fn judge(refusal: &Refusal, at: Circumstances) -> Verdict {
    use ErrorCode as Code;
    let ours = at.numbering == Numbering::Ours;
    match refusal.code {
        Code::OutOfOrderSequence | Code::EarlierBatchFailed if at.behind_a_retry => Verdict::Retry,
        // The leader's session says that no send of it is in the log.
        Code::OutOfOrderSequence if ours => renumber(at),
        Code::OutOfOrderSequence => Verdict::Final,
        Code::EarlierBatchFailed if ours && !at.maybe_appended => renumber(at),
        Code::UnknownProducer | Code::ProducerFenced if ours && at.maybe_appended => {
            Verdict::Unknown
        }
        Code::UnknownProducer | Code::ProducerFenced if ours => renumber(at),
        Code::UnknownTopic | Code::UnknownPartition if at.leaders_may_lag => Verdict::Retry,
        // Credit that is in the other's books but not in ours.
        Code::CreditExceeded => Verdict::Retry,
        _ => by_table(refusal, at),
    }
}

fn renumber(at: Circumstances) -> Verdict {
    if at.renumbered < RENUMBERINGS_MAX {
        Verdict::Renumber
    } else {
        Verdict::Final
    }
}

fn by_table(refusal: &Refusal, at: Circumstances) -> Verdict {
    match (refusal.is_retriable(), refusal.effect()) {
        (true, Effect::NotDone) => Verdict::Retry,
        (_, Effect::Unknown) if at.numbering.repeatable() && repeat_helps(refusal.code) => {
            Verdict::Repeat
        }
        // This send of it was not done; an earlier one may have been.
        (_, Effect::NotDone) if at.maybe_appended => Verdict::Unknown,
        _ => Verdict::Final,
    }
}

/// Unknown outcomes that a repeat of the same sequence settles.
fn repeat_helps(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::LeadershipLost
            | ErrorCode::NotEnoughReplicasAfterAppend
            | ErrorCode::TimedOut
            | ErrorCode::OutcomeUnknown
    )
}
