//! Full is not failed: a write without room is cut back and refused, and works
//! again later. A failed flush or an input/output error is for good.

use crate::common::*;
use talweg_log::{
    AppendError, Boot, FolderOptions, LogError, LogFolder, PartitionLog,
    fs::{LogFs, power_loss::OpKind},
    kv::MemKv,
};
use talweg_types::{Incarnation, LeaderEpoch, Offset};

#[test]
fn a_write_without_room_is_cut_back_and_refused_and_appends_resume_when_space_returns() {
    let node = Node::new(1);
    let mut log = node.log(config());
    for sequence in 0..3 {
        append(&mut log, numbered(1, 0, sequence, &[sized(1, 300)]), NOW);
    }
    commit(&mut log);
    let before = read_all(&log.reader(), 0);
    for room in [0, 1, 61, 300, 500] {
        node.fs.limit_free_bytes(Some(room));
        let batches = [
            numbered(1, 0, 3, &[sized(1, 300)]),
            numbered(1, 0, 4, &[sized(2, 300)]),
            keyed(&["k"]),
        ];
        let results = log.append(&batches, NOW);
        log.check().expect("invariants after a refused write");
        assert!(
            results
                .iter()
                .all(|result| *result == Err(AppendError::DiskFull)),
            "room {room}: {results:?}"
        );
        assert!(node.folder.is_full());
        let refused = try_append(&mut log, batch(&[rec("x")]), NOW).expect_err("refused at once");
        assert_eq!(refused, AppendError::DiskFull);
        assert_eq!(
            read_all(&log.reader(), 0),
            before,
            "nothing of it is in the log"
        );
        node.fs.limit_free_bytes(None);
        node.folder.refresh_space();
        assert!(!node.folder.is_full());
    }
    assert_eq!(node.folder.failed(), None);
    // Nothing was remembered of what was refused.
    assert_eq!(
        append(&mut log, numbered(1, 0, 3, &[sized(1, 300)]), NOW).base_offset,
        Offset(3)
    );
    assert!(!append(&mut log, keyed(&["k"]), NOW).duplicate);
    commit(&mut log);
    drop(log);
    let node = node.power_lost();
    assert_eq!(read_all(&node.log(config()).reader(), 0).len(), 5);
}

#[test]
fn the_first_batch_of_a_new_segment_without_room_leaves_no_trace() {
    let node = Node::new(2);
    let mut log = node.log(config());
    fill(&mut log, 3, 1200, NOW);
    node.fs.limit_free_bytes(Some(100));
    let refused = try_append(&mut log, batch(&[sized(4, 1200)]), NOW).expect_err("no room");
    assert_eq!(refused, AppendError::DiskFull);
    node.fs.limit_free_bytes(None);
    node.folder.refresh_space();
    assert_eq!(
        append(&mut log, batch(&[sized(4, 1200)]), NOW).base_offset,
        Offset(3)
    );
    commit(&mut log);
    assert_eq!(read_all(&log.reader(), 0).len(), 4);
}

#[test]
fn without_room_for_sidecars_data_is_still_flushed_and_they_follow_later() {
    let node = Node::new(3);
    let mut log = node.log(config());
    fill(&mut log, 2, 1200, NOW);
    for n in 2..20 {
        append(&mut log, batch(&[sized(n, 1200)]), NOW);
    }
    node.fs.limit_free_bytes(Some(0));
    let ticket = log.flush_ticket().expect("work");
    let result = ticket.run();
    assert_eq!(
        log.flush_done(ticket, result).expect("the data is flushed"),
        Offset(20)
    );
    log.check().expect("invariants");
    log.set_high_watermark(Offset(20));
    assert!(!node.file_names().iter().any(|name| name.ends_with(".seal")));
    // Such a moment survives a power loss.
    let full = node.fs.clone();
    full.limit_free_bytes(None);
    commit(&mut log);
    assert!(
        node.file_names().iter().any(|name| name.ends_with(".seal")),
        "they follow"
    );
    drop(log);
    let node = node.power_lost();
    assert_eq!(read_all(&node.log(config()).reader(), 0).len(), 20);
}

#[test]
fn what_was_flushed_without_room_for_sidecars_survives_a_power_loss() {
    let node = Node::new(4);
    let mut log = node.log(config());
    fill(&mut log, 2, 1200, NOW);
    for n in 2..20 {
        append(&mut log, batch(&[sized(n, 1200)]), NOW);
    }
    node.fs.limit_free_bytes(Some(0));
    let ticket = log.flush_ticket().expect("work");
    let result = ticket.run();
    log.flush_done(ticket, result).expect("the data is flushed");
    drop(log);
    node.fs.limit_free_bytes(None);
    let node = node.power_lost();
    let (mut log, report) = node.recover(config());
    assert_eq!(report.kept_to, Offset(20));
    assert_eq!(read_all(&log.reader(), 0).len(), 20);
    commit(&mut log);
    assert_eq!(
        node.file_names()
            .iter()
            .filter(|name| name.ends_with(".seal"))
            .count(),
        node.segments().len() - 1
    );
}

#[test]
fn the_first_flush_of_an_epoch_promises_nothing_until_the_epoch_is_recorded() {
    // A batch's epoch lies outside its checksum; recovery believes recorded ones only.
    let node = Node::new(15);
    let mut log = node.log(config());
    fill(&mut log, 2, 100, NOW);
    log.begin_epoch(LeaderEpoch(2)).expect("epoch");
    append(&mut log, batch(&[rec("x")]), NOW);
    node.fs.limit_free_bytes(Some(0));
    let ticket = log.flush_ticket().expect("work");
    let result = ticket.run();
    assert_eq!(
        log.flush_done(ticket, result).expect("not a failure"),
        Offset(2)
    );
    assert!(log.tick(NOW, true).wants_flush, "tried again");
    node.fs.limit_free_bytes(None);
    assert_eq!(flush(&mut log), Offset(3));
    drop(log);
    let node = Node { epoch: 5, ..node }.power_lost();
    assert_eq!(node.log(config()).bounds().log_end, Offset(3));
}

#[test]
fn deleting_records_without_room_is_refused_and_changes_nothing() {
    let node = Node::new(5);
    let mut log = node.log(config());
    fill(&mut log, 10, 100, NOW);
    node.fs.limit_free_bytes(Some(0));
    assert!(matches!(
        log.delete_before(Offset(5), NOW),
        Err(LogError::DiskFull)
    ));
    assert_eq!(log.bounds().log_start, Offset(0));
    node.fs.limit_free_bytes(None);
    assert_eq!(
        log.delete_before(Offset(5), NOW).expect("deleted"),
        Offset(5)
    );
}

#[test]
fn below_the_reserve_produce_is_refused_before_the_disk_is_full() {
    let fs = talweg_log::fs::PowerLossFs::in_memory(6);
    let options = FolderOptions {
        reserve_bytes: Some(1 << 20),
        ..FolderOptions::default()
    };
    let (folder, _) = LogFolder::open_with(
        std::sync::Arc::new(fs.clone()),
        ROOT.into(),
        std::sync::Arc::new(MemKv::new()),
        options,
    )
    .expect("opened");
    folder.mark_running(Incarnation(1)).expect("marked");
    let mut log = PartitionLog::create(&folder, tp(), config());
    log.begin_epoch(LeaderEpoch(1)).expect("epoch");
    fs.limit_free_bytes(Some((1 << 20) - 1));
    folder.refresh_space();
    assert_eq!(
        try_append(&mut log, batch(&[rec("x")]), NOW),
        Err(AppendError::DiskFull)
    );
    fs.limit_free_bytes(Some(1 << 21));
    folder.refresh_space();
    append(&mut log, batch(&[rec("x")]), NOW);
}

#[test]
fn a_failed_flush_fails_the_folder_for_good_and_is_never_retried() {
    let mut flushes = 0;
    loop {
        let node = Node::new(7);
        let mut log = node.log(config());
        fill(&mut log, 2, 100, NOW);
        let flushed = log.bounds().flushed_end;
        for n in 0..6 {
            append(&mut log, batch(&[sized(n, 1200)]), NOW);
        }
        node.fs.fail_flush_after(flushes);
        let ticket = log.flush_ticket().expect("work");
        let result = ticket.run();
        let Err(error) = log.flush_done(ticket, result) else {
            break;
        };
        assert!(matches!(error, LogError::FolderFailed(_)), "{error}");
        assert_eq!(
            log.bounds().flushed_end,
            flushed,
            "nothing more is promised"
        );
        assert!(node.folder.failed().is_some());
        assert!(log.flush_ticket().is_none(), "never retried");
        assert!(matches!(
            try_append(&mut log, batch(&[rec("x")]), NOW),
            Err(AppendError::FolderFailed(_))
        ));
        assert!(matches!(
            log.reader().read(Offset(0), Offset(1), 1),
            Err(talweg_log::ReadError::FolderFailed(_))
        ));
        assert!(
            node.folder.mark_clean().is_err(),
            "a failed folder is never marked clean"
        );
        log.check().expect("invariants");
        drop(log);
        // The machine is the same, and what its page cache says of this disk is
        // nothing to go by.
        let node = node.killed();
        assert_eq!(node.folder.boot(), talweg_log::Boot::Unclean);
        // A restart believes only what was promised before.
        let node = node.power_lost();
        let (log, _) = node.recover(config());
        assert!(log.bounds().log_end >= flushed);
        flushes += 1;
    }
    assert!(
        flushes > 4,
        "every flush of a round was made to fail: {flushes}"
    );
}

#[test]
fn an_idle_folder_keeps_few_files_open() {
    let fs = talweg_log::fs::PowerLossFs::in_memory(8);
    let options = FolderOptions {
        reserve_bytes: Some(0),
        open_files: 16,
        ..FolderOptions::default()
    };
    let (folder, _) = LogFolder::open_with(
        std::sync::Arc::new(fs.clone()),
        ROOT.into(),
        std::sync::Arc::new(MemKv::new()),
        options,
    )
    .expect("opened");
    folder.mark_running(Incarnation(1)).expect("marked");
    let mut logs: Vec<PartitionLog> = (0..200)
        .map(|n| {
            let tp = talweg_types::TopicPartition {
                partition: talweg_types::PartitionIndex(n),
                ..tp()
            };
            let mut log = PartitionLog::create(&folder, tp, config());
            log.begin_epoch(LeaderEpoch(1)).expect("epoch");
            log
        })
        .collect();
    for round in 0..5 {
        for log in &mut logs {
            fill(log, 3, 700, at(round));
            assert_eq!(
                read_all(&log.reader(), 0).len() as i64,
                log.bounds().log_end.0
            );
        }
        assert!(
            folder.open_files() <= 16,
            "{} files open",
            folder.open_files()
        );
    }
}

#[test]
fn many_partitions_flushed_together_are_as_durable_as_one_by_one() {
    let node = Node::new(9);
    let config = config();
    let open = |folder: &std::sync::Arc<LogFolder>, epoch: i32| -> Vec<PartitionLog> {
        (0..30)
            .map(|n| {
                let tp = talweg_types::TopicPartition {
                    partition: talweg_types::PartitionIndex(n),
                    ..tp()
                };
                let mut log = PartitionLog::recover(folder, tp, config.clone(), NOW)
                    .expect("recovered")
                    .0;
                log.begin_epoch(LeaderEpoch(epoch)).expect("epoch");
                log
            })
            .collect()
    };
    let mut logs = open(&node.folder, 1);
    for round in 0..4 {
        for log in &mut logs {
            for n in 0..6 {
                append(
                    log,
                    numbered(1, 0, round * 6 + n, &[sized(n as usize, 900)]),
                    NOW,
                );
            }
        }
        let tickets: Vec<_> = logs
            .iter_mut()
            .map(|log| log.flush_ticket().expect("work"))
            .collect();
        talweg_log::run_together(&node.folder, &tickets).expect("flushed");
        for (log, ticket) in logs.iter_mut().zip(tickets) {
            log.flush_done(ticket, Ok(())).expect("done");
            log.check().expect("invariants");
            assert_eq!(log.bounds().flushed_end, log.bounds().log_end);
        }
    }
    drop(logs);
    let node = node.power_lost();
    for mut log in open(&node.folder, 2) {
        assert_eq!(read_all(&log.reader(), 0).len(), 24);
        assert!(append(&mut log, numbered(1, 0, 23, &[sized(5, 900)]), NOW).duplicate);
    }
    // And a clean stop of all.
    let mut logs = open(&node.folder, 3);
    for log in &mut logs {
        append(log, batch(&[rec("last")]), NOW);
    }
    let tickets: Vec<_> = logs
        .iter_mut()
        .filter_map(PartitionLog::close_ticket)
        .collect();
    assert_eq!(tickets.len(), 30);
    talweg_log::run_together(&node.folder, &tickets).expect("flushed");
    for (log, ticket) in logs.iter_mut().zip(tickets) {
        log.flush_done(ticket, Ok(())).expect("done");
        assert!(log.close_ticket().is_none(), "nothing is left to do");
    }
    let node = node.restarted();
    for n in 0..30 {
        let tp = talweg_types::TopicPartition {
            partition: talweg_types::PartitionIndex(n),
            ..tp()
        };
        let (log, report) =
            PartitionLog::recover(&node.folder, tp, config.clone(), NOW).expect("recovered");
        assert_eq!(report.scanned_bytes, 0);
        assert_eq!(
            log.bounds().log_end.0,
            if report.kept_to.0 == 25 { 25 } else { 26 }
        );
    }
    let _ = node.fs.list(&node.dir());
}

/// Story: a flush fails, and Linux calls the pages clean that it could not write.
/// The next process of this boot reads them, flushes, and must not believe that:
/// it counts as after another boot, and writes what it keeps once more.
#[test]
fn what_a_failed_flush_left_in_the_page_cache_is_written_again_before_it_is_promised() {
    let node = Node::new(31);
    let mut log = node.log(config());
    fill(&mut log, 5, 100, NOW);
    for n in 5..9 {
        append(&mut log, batch(&[sized(n, 100)]), NOW);
    }
    node.fs.fail_flush_after(0);
    let ticket = log.flush_ticket().expect("unflushed");
    let result = ticket.run();
    assert!(result.is_err());
    log.flush_done(ticket, result).expect_err("failed");
    drop(log);
    let node = node.killed();
    assert_eq!(node.folder.boot(), Boot::Unclean);
    let (log, report) = node.recover(config());
    assert_eq!(report.kept_to, Offset(9));
    assert_eq!(log.bounds().flushed_end, Offset(9));
    drop(log);
    let node = node.power_lost();
    let (log, report) = node.recover(config());
    assert_eq!(report.kept_to, Offset(9), "promised and on the disk");
    drop(log);
    assert_eq!(node.killed().folder.boot(), Boot::SameBoot, "it is over");
}

/// Story: a follower has to cut its log while the disk is full. Nothing happens,
/// nothing has failed, and it works when space returns.
#[test]
fn a_truncation_without_room_changes_nothing_and_works_when_space_returns() {
    let node = Node::new(32);
    let mut log = node.log(config());
    for n in 0..30 {
        append(&mut log, batch(&[sized(n, 300)]), NOW);
    }
    flush(&mut log);
    node.fs.limit_free_bytes(Some(0));
    let refused = log.truncate_to(Offset(12));
    assert!(matches!(refused, Err(LogError::DiskFull)), "{refused:?}");
    log.check().expect("invariants");
    assert_eq!(log.bounds().log_end, Offset(30));
    assert!(node.folder.failed().is_none());
    node.fs.limit_free_bytes(None);
    node.folder.refresh_space();
    let cut = log.truncate_to(Offset(12)).expect("cut");
    assert_eq!(cut.log_end, Offset(12));
    log.check().expect("invariants");
}

/// Story: there is no room for the second of two batches, and the file cannot be cut
/// back. The first is whole in the file: it comes back when the folder is opened, so
/// nobody may have been told that it was not done.
#[test]
fn a_write_that_cannot_be_cut_back_is_unknown_for_it_may_come_back() {
    let node = Node::new(3);
    let mut log = node.log(config());
    append(&mut log, numbered(1, 0, 0, &[sized(1, 300)]), NOW);
    commit(&mut log);
    node.fs.limit_free_bytes(Some(600));
    node.fs.set_hook(Some(std::sync::Arc::new(|operation| {
        match operation.kind {
            OpKind::SetLen => Err(std::io::Error::other("no cut")),
            _ => Ok(()),
        }
    })));
    let batches = [
        numbered(1, 0, 1, &[sized(1, 300)]),
        numbered(1, 0, 2, &[sized(2, 300)]),
    ];
    let results = log.append(&batches, NOW);
    assert!(
        results
            .iter()
            .all(|result| matches!(result, Err(AppendError::WriteUnknown(_)))),
        "{results:?}"
    );
    assert!(node.folder.failed().is_some());
    assert!(matches!(
        try_append(&mut log, batch(&[rec("x")]), NOW),
        Err(AppendError::FolderFailed(_))
    ));
    node.fs.set_hook(None);
    node.fs.limit_free_bytes(None);
    drop(log);
    let node = node.killed();
    let (mut log, _) = node.recover(config());
    assert_eq!(read_all(&log.reader(), 0).len(), 2, "the first came back");
    // Its own bytes again are a repeat.
    let again = append(&mut log, numbered(1, 0, 1, &[sized(1, 300)]), NOW);
    assert!(again.duplicate);
}
