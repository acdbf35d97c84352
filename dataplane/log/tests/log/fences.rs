//! Fences: after a committed fence of a shard epoch nothing of a lower one follows,
//! through restarts, power losses, truncations and changes of leader.

use crate::common::*;
use proptest::prelude::*;
use talweg_log::{
    AppendError, Fence, PartitionLog,
    sidecar::{
        Sidecar,
        sessions::{SegmentState, SessionsFile},
    },
};
use talweg_types::{LeaderEpoch, Offset, ShardEpoch, TimestampMs};

fn epoch(log: &PartitionLog) -> i32 {
    log.fence().map_or(0, |fence| fence.epoch.0)
}

fn fence(log: &mut PartitionLog, epoch: i32) -> Result<i64, AppendError> {
    let appended = log.append_fence(ShardEpoch(epoch), NOW)?;
    log.check().expect("sound after a fence");
    Ok(appended.base_offset.0)
}

fn write(
    log: &mut PartitionLog,
    epoch: i32,
    producer: i64,
    sequence: i32,
) -> Result<bool, AppendError> {
    let batch = numbered(producer, 0, sequence, &[rec("x")]);
    let appended = log.append_in_shard(&batch, ShardEpoch(epoch), NOW)?;
    log.check().expect("sound after an append");
    Ok(appended.duplicate)
}

fn fenced(asked: i32, current: i32) -> AppendError {
    AppendError::ShardFenced {
        asked: ShardEpoch(asked),
        current: ShardEpoch(current),
    }
}

#[test]
fn only_the_newest_fences_epoch_appends() {
    let node = Node::new(1);
    let mut log = node.log(config());
    let missing = AppendError::FenceMissing {
        asked: ShardEpoch(1),
        current: ShardEpoch(0),
    };
    assert_eq!(
        write(&mut log, 1, 7, 0),
        Err(missing),
        "the fence comes first"
    );
    assert_eq!(fence(&mut log, 1), Ok(0));
    assert_eq!(write(&mut log, 1, 7, 0), Ok(false));
    assert_eq!(write(&mut log, 1, 7, 0), Ok(true), "the same bytes again");
    // A client's batch names nobody.
    assert_eq!(
        try_append(&mut log, batch(&[rec("client")]), NOW),
        Err(fenced(0, 1))
    );
    assert_eq!(fence(&mut log, 3), Ok(2));
    assert_eq!(write(&mut log, 1, 7, 1), Err(fenced(1, 3)));
    assert_eq!(write(&mut log, 1, 7, 0), Err(fenced(1, 3)), "a repeat too");
    assert_eq!(fence(&mut log, 2), Err(fenced(2, 3)));
    assert!(matches!(fence(&mut log, 0), Err(AppendError::Invalid(_))));
    assert_eq!(fence(&mut log, 3), Ok(3), "the same epoch once more");
    assert_eq!(
        write(&mut log, 3, 7, 1),
        Err(AppendError::UnknownProducer),
        "a fence ends the sessions before it"
    );
    assert_eq!(write(&mut log, 3, 8, 0), Ok(false));
    assert_eq!(fence(&mut log, 3), Ok(5));
    assert_eq!(write(&mut log, 3, 8, 0), Ok(true), "but not its own");
}

/// Story: the node is killed, or the power fails, right after a fence was flushed.
#[test]
fn a_fence_holds_after_a_restart_from_the_log_and_from_a_sessions_file() {
    for rolls in [false, true] {
        for power in [false, true] {
            let mut node = Node::new(3);
            let mut log = node.log(config());
            fence(&mut log, 5).expect("fenced");
            for sequence in 0..if rolls { 40 } else { 2 } {
                let batch = numbered(9, 0, sequence, &[sized(1, 300)]);
                log.append_in_shard(&batch, ShardEpoch(5), NOW)
                    .expect("appended");
            }
            commit(&mut log);
            assert_eq!(log.segment_count() > 2, rolls);
            drop(log);
            node = if power {
                node.power_lost()
            } else {
                node.killed()
            };
            let mut log = node.log(config());
            assert_eq!(
                log.fence(),
                Some(Fence {
                    epoch: ShardEpoch(5),
                    offset: Offset(0)
                })
            );
            assert_eq!(write(&mut log, 4, 9, 0), Err(fenced(4, 5)));
        }
    }
}

/// Story: a leader's fence was never committed; its successor does not have it, and
/// the old leader, now a follower, cuts it off.
#[test]
fn a_fence_that_is_cut_off_fences_nobody() {
    let node = Node::new(4);
    let mut log = node.log(config());
    fence(&mut log, 1).expect("fenced");
    write(&mut log, 1, 7, 0).expect("appended");
    commit(&mut log);
    fence(&mut log, 2).expect("fenced");
    log.follow(LeaderEpoch(9)).expect("follows");
    log.truncate_to(Offset(2)).expect("cut");
    log.check().expect("sound");
    assert_eq!(epoch(&log), 1);
    log.begin_epoch(LeaderEpoch(10)).expect("leads");
    assert_eq!(write(&mut log, 1, 7, 1), Ok(false), "its session came back");
}

/// Story: a follower that copied the log leads; one that begins in the middle gets
/// the fence with the producer state.
#[test]
fn a_follower_fences_as_its_leader_did() {
    let one = Node::new(5);
    let mut leader = one.log(config());
    fence(&mut leader, 4).expect("fenced");
    for sequence in 0..40 {
        let batch = numbered(9, 0, sequence, &[sized(1, 300)]);
        leader
            .append_in_shard(&batch, ShardEpoch(4), NOW)
            .expect("appended");
    }
    commit(&mut leader);
    for middle in [false, true] {
        let two = Node::new(6);
        let mut copy = two.log(config());
        copy.follow(LeaderEpoch(5)).expect("follows");
        if middle {
            let sessions = SessionsFile {
                offset: Offset(20),
                fence: leader.fence(),
                ..SessionsFile::decode(&v1_sessions()).expect("reads")
            };
            copy.restart_at(Offset(20), &sessions.encode(), false)
                .expect("restarted");
            copy.follow(LeaderEpoch(5)).expect("follows");
        }
        while copy_once(&leader.reader(), &mut copy, 1_500) {}
        copy.set_high_watermark(leader.bounds().high_watermark);
        copy.begin_epoch(LeaderEpoch(6)).expect("leads");
        assert_eq!(write(&mut copy, 3, 9, 40), Err(fenced(3, 4)));
        assert_eq!(write(&mut copy, 4, 9, 40), Ok(false));
    }
}

fn v1_sessions() -> Vec<u8> {
    SessionsFile {
        offset: Offset(20),
        segment: SegmentState {
            base: Offset(20),
            position: 0,
            first_append: TimestampMs::NONE,
            last_append: TimestampMs::NONE,
            max_timestamp: TimestampMs::NONE,
            blocks: Vec::new(),
        },
        sessions: Vec::new(),
        keys: Vec::new(),
        fence: None,
    }
    .encode()
}

/// A log without fences is written as before, so that an older program reads it;
/// with one it has version 2.
#[test]
fn the_file_of_a_fenced_log_has_version_2() {
    let plain = v1_sessions();
    assert_eq!(plain[5], 1);
    let mut file = SessionsFile::decode(&plain).expect("reads");
    file.fence = Some(Fence {
        epoch: ShardEpoch(7),
        offset: Offset(19),
    });
    let bytes = file.encode();
    assert_eq!(bytes[5], 2);
    assert_eq!(SessionsFile::decode(&bytes), Ok(file.clone()));
    let fixture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v2");
    if std::env::var_os("TALWEG_WRITE_FIXTURES").is_some() {
        std::fs::create_dir_all(&fixture).expect("made");
        std::fs::write(fixture.join("sessions"), &bytes).expect("written");
    }
    let kept = std::fs::read(fixture.join("sessions")).expect("fixture");
    assert_eq!(kept, bytes, "a new layout is a new version");
    file.fence = Some(Fence {
        epoch: ShardEpoch(7),
        offset: Offset(20),
    });
    assert!(SessionsFile::decode(&file.encode()).is_err(), "from above");
}

/// Story: the write of a fence fails for want of room; nothing of it is left.
#[test]
fn a_fence_that_was_not_written_is_taken_back() {
    let node = Node::new(8);
    let mut log = node.log(config());
    fence(&mut log, 1).expect("fenced");
    write(&mut log, 1, 7, 0).expect("appended");
    node.fs.limit_free_bytes(Some(20));
    assert_eq!(fence(&mut log, 2), Err(AppendError::DiskFull));
    assert_eq!(epoch(&log), 1);
    node.fs.limit_free_bytes(None);
    node.folder.refresh_space();
    assert_eq!(
        write(&mut log, 1, 7, 0),
        Ok(true),
        "the session is still there"
    );
}

#[derive(Clone, Debug)]
enum Step {
    Fence(i32),
    Write(i32),
    Commit,
    Kill,
    PowerLoss,
    /// Everything above the watermark goes, as at a new leader.
    Cut,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..6i32).prop_map(Step::Fence),
        8 => (1..6i32).prop_map(Step::Write),
        2 => Just(Step::Commit),
        1 => Just(Step::Kill),
        1 => Just(Step::PowerLoss),
        1 => Just(Step::Cut),
    ]
}

/// (shard epoch, whether it is a fence) of each offset, as the model has it.
type Model = Vec<(i32, bool)>;

fn newest_fence(model: &Model) -> i32 {
    let fences = model.iter().rev().find(|(_, fence)| *fence);
    fences.map_or(0, |(epoch, _)| *epoch)
}

/// The promise: after a fence nothing of a lower epoch follows.
fn holds(model: &Model) {
    let mut newest = 0;
    for (epoch, fence) in model {
        assert!(*epoch >= newest, "{epoch} follows a fence of {newest}");
        if *fence {
            newest = *epoch;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_lower_epoch_follows_a_fence(steps in proptest::collection::vec(step(), 1..60), seed in 0u64..1000) {
        run(&steps, seed);
    }
}

fn run(steps: &[Step], seed: u64) {
    let mut node = Node::new(seed);
    let mut log = node.log(config());
    let mut model: Model = Vec::new();
    let mut next = std::collections::BTreeMap::new();
    for step in steps {
        match step {
            Step::Fence(epoch) => {
                let newest = newest_fence(&model);
                let done = fence(&mut log, *epoch);
                assert_eq!(done.is_ok(), *epoch >= newest, "{done:?}");
                if let Ok(offset) = done {
                    assert_eq!(usize::try_from(offset).expect("small"), model.len());
                    model.push((*epoch, true));
                    if *epoch > newest {
                        next.clear();
                    }
                }
            }
            Step::Write(epoch) => {
                let sequence = next.entry(*epoch).or_insert(0);
                let batch = numbered(i64::from(*epoch), 0, *sequence, &[sized(1, 200)]);
                let done = log.append_in_shard(&batch, ShardEpoch(*epoch), NOW);
                let newest = newest_fence(&model);
                assert_eq!(done.is_ok(), *epoch == newest && newest > 0, "{done:?}");
                if done.is_ok() {
                    *sequence += 1;
                    model.push((*epoch, false));
                }
            }
            Step::Commit => commit(&mut log),
            Step::Kill | Step::PowerLoss => {
                drop(log);
                node = match step {
                    Step::Kill => node.killed(),
                    _ => node.power_lost(),
                };
                log = node.log(config());
                let end = usize::try_from(log.bounds().log_end.0).expect("small");
                model.truncate(end);
                recount(&model, &mut next);
            }
            Step::Cut => {
                let to = log.bounds().high_watermark;
                flush(&mut log);
                log.truncate_to(to).expect("cut");
                model.truncate(usize::try_from(log.bounds().log_end.0).expect("small"));
                recount(&model, &mut next);
            }
        }
        log.check().expect("sound");
        assert_eq!(epoch(&log), newest_fence(&model), "after {step:?}");
        assert_eq!(
            log.bounds().log_end,
            Offset(i64::try_from(model.len()).expect("small"))
        );
    }
    holds(&model);
}

/// The sequences that the batches since the newest rise of the fence have used.
fn recount(model: &Model, next: &mut std::collections::BTreeMap<i32, i32>) {
    next.clear();
    let newest = newest_fence(model);
    let used = model
        .iter()
        .filter(|(epoch, fence)| *epoch == newest && !fence);
    next.insert(newest, i32::try_from(used.count()).expect("small"));
}

/// The guard is what keeps the promise: without it the property fails.
#[cfg(feature = "planted-faults")]
mod planted {
    use super::*;
    use talweg_log::fault::{Fault, plant};

    fn seen(fault: Fault, steps: &[Step]) {
        plant(Some(fault));
        let failed = std::panic::catch_unwind(|| run(steps, 1)).is_err();
        plant(None);
        assert!(failed, "{fault:?} was not seen");
        run(steps, 1);
    }

    #[test]
    fn a_missing_guard_is_seen() {
        let steps = [Step::Fence(2), Step::Write(2), Step::Write(1)];
        seen(Fault::FenceNotChecked, &steps);
    }

    #[test]
    fn a_fence_that_is_not_replayed_is_seen() {
        let steps = [Step::Fence(2), Step::Write(2), Step::Commit, Step::Kill];
        seen(Fault::FenceNotReplayed, &steps);
    }
}
