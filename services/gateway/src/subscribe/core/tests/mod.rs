//! A member under random histories against an oracle, and single rules.

mod commits;
mod failures;
mod moves;
#[cfg(feature = "planted-faults")]
mod planted;
mod starts;
mod world;

use super::*;
use talweg_proto::coordinator::v1::{AssignedPartition, PartitionRef};
use talweg_types::{PartitionIndex, TopicId};

fn at(partition: u32) -> TopicPartition {
    TopicPartition {
        topic_id: TopicId::from_slice(&[5; 16]).expect("16 bytes"),
        partition: PartitionIndex(partition),
    }
}

fn config() -> CoreConfig {
    CoreConfig {
        policy: v1::ResetPolicy::Earliest,
        commit_on_ack: false,
        session_ms: 10_000,
        processing_ms: 60_000,
        max_attempts: 3,
        backoff_ms: vec![1_000, 2_000],
        block: false,
        no_dead_letters: false,
    }
}

fn core(config: CoreConfig) -> Core {
    Core::new(config, vec!["t".into()], Arc::new(|_| "t".into()), 0)
}

fn given(partition: u32, epoch: i32, next: Option<i64>) -> AssignedPartition {
    AssignedPartition {
        topic_id: vec![5; 16].into(),
        partition,
        given_epoch: epoch,
        next_offset: next,
        leader_epoch: -1,
        delivery: DeliveryMode::Normal.into(),
        ..Default::default()
    }
}

fn view(sequence: u64, epoch: i32, assigned: Vec<AssignedPartition>, revoking: &[u32]) -> Event {
    let reference = |partition: &u32| PartitionRef {
        topic_id: vec![5; 16].into(),
        partition: *partition,
    };
    Event::View(MemberView {
        member_epoch: epoch,
        assigned,
        revoking: revoking.iter().map(reference).collect(),
        revoke_within_ms: 5_000,
        shard_epoch: 1,
        sequence,
        ..Default::default()
    })
}

fn position(partition: u32, offset: i64) -> v1::SubscribePosition {
    v1::SubscribePosition {
        topic_id: vec![5; 16].into(),
        partition,
        offset,
        ..Default::default()
    }
}

fn ack(partition: u32, offset: i64) -> Event {
    let next = vec![position(partition, offset)];
    Event::Client(Ask::Ack(v1::SubscribeAck { next }))
}

fn commit(id: u64, partition: u32, offset: i64) -> Event {
    Event::Client(Ask::Commit(v1::SubscribeCommit {
        commit_id: id,
        next: vec![position(partition, offset)],
    }))
}

fn nack(partition: u32, offset: i64) -> Event {
    Event::Client(Ask::Nack(v1::SubscribeNack {
        record: Some(position(partition, offset)),
        reason: "bad".into(),
        poison: false,
    }))
}

fn seek(partition: u32, offset: i64) -> Event {
    let next = vec![position(partition, offset)];
    Event::Client(Ask::Seek(v1::SubscribeSeek { next }))
}

fn sent(partition: u32, from: i64, to: i64) -> Event {
    sent_runs(partition, std::slice::from_ref(&(from..to)), to)
}

fn sent_runs(partition: u32, runs: &[Run], to: i64) -> Event {
    Event::Sent {
        at: at(partition),
        runs: runs.to_vec(),
        to,
        epoch: 1,
    }
}

fn stored(count: usize) -> Event {
    Event::Answered(Ok(Answer::Committed(vec![CommitResult::default(); count])))
}

fn requests(effects: &[Effect]) -> Vec<&Request> {
    effects
        .iter()
        .filter_map(|it| match it {
            Effect::Request(request) => Some(request),
            _ => None,
        })
        .collect()
}

fn tells(effects: &[Effect]) -> Vec<&Frame> {
    effects
        .iter()
        .filter_map(|it| match it {
            Effect::Tell(frame) => Some(frame),
            _ => None,
        })
        .collect()
}
