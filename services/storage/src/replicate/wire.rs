//! From the cores' words to the frames of the Replicate stream and back.

use super::outbox::Word;
use bytes::Bytes;
use talweg_kit::errors::Refusal;
use talweg_proto::storage::v1::{
    AppendTime, ReplicaBelowStart, ReplicaDiverged, ReplicaPosition, ReplicaUpdate,
    replica_update::Trouble,
};
use talweg_replication::{Bounds, Report, SessionTag};
use talweg_types::{
    Incarnation, LeaderEpoch, NodeId, Offset, PartitionIndex, TimestampMs, TopicId, TopicPartition,
};

pub fn id(tp: &TopicPartition) -> Bytes {
    Bytes::copy_from_slice(tp.topic_id.as_bytes())
}

/// The partition that a frame names; `None` if its id has not 16 bytes.
pub fn partition(topic_id: &[u8], partition: u32) -> Option<TopicPartition> {
    Some(TopicPartition {
        topic_id: TopicId::from_slice(topic_id)?,
        partition: PartitionIndex(partition),
    })
}

pub fn position(tp: &TopicPartition, word: &Word) -> ReplicaPosition {
    let named = ReplicaPosition {
        topic_id: id(tp),
        partition: tp.partition.0,
        ..Default::default()
    };
    match word {
        Word::Fetch {
            fetch,
            flushed_end,
            log_start,
            high_watermark,
        } => ReplicaPosition {
            leader_epoch: fetch.epoch.0,
            last_epoch: fetch.last_epoch.0,
            log_end_offset: fetch.next.0,
            flushed_end_offset: flushed_end.0,
            log_start_offset: log_start.0,
            high_watermark: high_watermark.0,
            seek: true,
            session: fetch.session.0,
            ..named
        },
        Word::Report(report) => ReplicaPosition {
            leader_epoch: report.epoch.0,
            last_epoch: LeaderEpoch::NONE.0,
            log_end_offset: report.ends.log_end.0,
            flushed_end_offset: report.ends.flushed_end.0,
            session: report.session.0,
            ..named
        },
        Word::Stop => ReplicaPosition {
            stop: true,
            ..named
        },
    }
}

/// A report from a peer, in whose name it is taken.
pub fn report(node: NodeId, incarnation: Incarnation, position: &ReplicaPosition) -> Report {
    Report {
        node,
        epoch: LeaderEpoch(position.leader_epoch),
        incarnation,
        session: SessionTag(position.session),
        ends: talweg_replication::ReplicaEnds {
            log_end: Offset(position.log_end_offset.max(0)),
            flushed_end: Offset(
                position
                    .flushed_end_offset
                    .clamp(0, position.log_end_offset.max(0)),
            ),
        },
    }
}

/// How a partition stands at its leader, without trouble.
pub fn update(
    tp: &TopicPartition,
    epoch: LeaderEpoch,
    session: SessionTag,
    bounds: Bounds,
    log_end: Offset,
) -> ReplicaUpdate {
    ReplicaUpdate {
        topic_id: id(tp),
        partition: tp.partition.0,
        leader_epoch: epoch.0,
        session: session.0,
        high_watermark: bounds.high_watermark.map_or(-1, |offset| offset.0),
        log_start_offset: bounds.log_start.0,
        log_end_offset: log_end.0,
        trouble: None,
    }
}

/// When batches were appended, by the offset from which on.
pub fn append_times(marks: &[(Offset, TimestampMs)]) -> Vec<AppendTime> {
    let wire = |(offset, time): &(Offset, TimestampMs)| AppendTime {
        base_offset: offset.0,
        append_time_ms: time.0,
    };
    marks.iter().map(wire).collect()
}

/// The time of the last of them.
pub fn last_time(marks: &[(Offset, TimestampMs)]) -> i64 {
    marks.last().map_or(TimestampMs::NONE, |mark| mark.1).0
}

/// The same from the wire; `of_all` counts where nothing more is known. In offset order,
/// and no time falls; one that no clock shows is none.
pub fn marks(times: &[AppendTime], of_all: i64) -> Vec<(Offset, TimestampMs)> {
    let mark = |time: &AppendTime| (Offset(time.base_offset), TimestampMs(time.append_time_ms));
    let mut marks: Vec<_> = times.iter().map(mark).collect();
    if marks.is_empty() {
        marks.push((Offset::ZERO, TimestampMs(of_all)));
    }
    marks.retain(|mark| mark.1.0 > 0);
    marks.sort_by_key(|mark| mark.0);
    let mut latest = TimestampMs(0);
    for mark in &mut marks {
        latest = latest.max(mark.1);
        mark.1 = latest;
    }
    marks
}

/// An answer that ends the session that a position asked for.
pub fn trouble(position: &ReplicaPosition, trouble: Trouble) -> ReplicaUpdate {
    ReplicaUpdate {
        topic_id: position.topic_id.clone(),
        partition: position.partition,
        leader_epoch: position.leader_epoch,
        session: position.session,
        high_watermark: -1,
        log_start_offset: match &trouble {
            Trouble::BelowStart(below) => below.log_start_offset,
            _ => 0,
        },
        log_end_offset: 0,
        trouble: Some(trouble),
    }
}

pub fn diverged(epoch: LeaderEpoch, end: Offset) -> Trouble {
    Trouble::Diverged(ReplicaDiverged {
        epoch: epoch.0,
        end_offset: end.0,
    })
}

pub fn below_start(start: Offset, sessions: Bytes) -> Trouble {
    Trouble::BelowStart(ReplicaBelowStart {
        log_start_offset: start.0,
        sessions,
    })
}

pub fn refused(refusal: &Refusal) -> Trouble {
    Trouble::Refused(refusal.detail())
}
