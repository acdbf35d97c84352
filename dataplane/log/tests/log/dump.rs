//! Looking into the files without the server, on a real folder.

use crate::common::*;
use std::{path::PathBuf, sync::Arc};
use talweg_log::{
    FolderOptions, LogConfig, LogFolder, PartitionLog,
    dump::{DumpError, Event, LogFiles, SidecarView},
    fs::RealFs,
    kv::MemKv,
};
use talweg_types::{Incarnation, LeaderEpoch, Offset};

struct Real {
    dir: tempfile::TempDir,
    kv: Arc<MemKv>,
    log: PartitionLog,
}

fn real(config: LogConfig) -> Real {
    let dir = tempfile::tempdir().expect("folder");
    let kv = Arc::new(MemKv::new());
    let options = FolderOptions {
        reserve_bytes: Some(0),
        ..FolderOptions::default()
    };
    let folder = LogFolder::open_with(
        Arc::new(RealFs),
        dir.path().to_owned(),
        Arc::clone(&kv) as _,
        options,
    )
    .expect("opened")
    .0;
    folder.mark_running(Incarnation(1)).expect("marked");
    let mut log = PartitionLog::create(&folder, tp(), config);
    log.begin_epoch(LeaderEpoch(1)).expect("epoch");
    Real { dir, kv, log }
}

impl Real {
    fn path(&self) -> PathBuf {
        self.dir.path().join(tp().to_string())
    }
}

#[test]
fn five_hundred_small_records_in_4_kib_segments_are_found_by_bisection_and_one_short_scan() {
    let config = LogConfig {
        segment_bytes: 4096,
        index_interval_bytes: 512,
        ..config()
    };
    let mut real = real(config);
    for n in 0..500 {
        // 48 bytes a record as it lies in its batch.
        append(&mut real.log, batch(&[sized(n, 41)]), NOW);
    }
    commit(&mut real.log);
    let files = LogFiles::open(&real.path()).expect("opened");
    assert_eq!(files.segments.len(), real.log.segment_count());
    let per_segment = 4096 / 109;
    assert_eq!(files.segments.len(), 500usize.div_ceil(per_segment));
    assert!(files.segments.iter().all(|segment| segment.bytes <= 4096));
    let bisection = (files.segments.len() as f64).log2().ceil() as u32 + 1;
    for offset in 0..500 {
        for store in [None, Some(&*real.kv as &dyn talweg_log::kv::IndexKv)] {
            let found = files.lookup(Offset(offset), 512, store).expect("found");
            assert_eq!(
                found.segment.base.0,
                offset / per_segment as i64 * per_segment as i64
            );
            assert_eq!(found.batch_base, Offset(offset));
            assert!(
                found.segments_compared <= bisection,
                "{} segments compared",
                found.segments_compared
            );
            assert!(
                found.scanned_bytes < 512 + 109,
                "{} bytes scanned",
                found.scanned_bytes
            );
            assert!(
                found.scanned_records <= 6,
                "{} records scanned",
                found.scanned_records
            );
            assert_eq!(
                found.from_store,
                store.is_some() && found.entry.position > 0
            );
        }
    }
    let error = files.lookup(Offset(500), 512, None).expect_err("not there");
    assert!(
        matches!(
            error,
            DumpError::NotThere {
                end: Offset(500),
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_dump_shows_every_batch_record_epoch_and_sidecar_while_the_server_runs() {
    let mut real = real(config());
    fill(&mut real.log, 20, 300, NOW);
    real.log.begin_epoch(LeaderEpoch(3)).expect("epoch");
    fill(&mut real.log, 20, 300, NOW);
    append(&mut real.log, batch(&[rec("unflushed")]), NOW);
    let files = LogFiles::open(&real.path()).expect("opened");
    let (mut batches, mut total) = (0, 0);
    files
        .for_each(true, &mut |event| {
            let Event::Batch(batch) = event else {
                panic!("nothing is damaged")
            };
            batches += 1;
            total += batch.records()?.len();
            Ok(true)
        })
        .expect("walked");
    assert_eq!((batches, total), (41, 41));
    let epochs: Vec<_> = files
        .epochs()
        .expect("epochs")
        .iter()
        .map(|entry| (entry.epoch.0, entry.start.0))
        .collect();
    assert_eq!(epochs, [(1, 0), (3, 20)]);
    assert_eq!(files.record().expect("partition file").tp, tp());
    let seals = files
        .sidecars
        .iter()
        .filter(|found| matches!(found.content, Ok(SidecarView::Seal(_))))
        .count();
    assert_eq!(seals, files.segments.len() - 1);
    // One segment by itself.
    let one = LogFiles::open(&files.segments[1].path).expect("opened");
    assert_eq!(one.segments, files.segments[1..2]);
    assert!(one.seal(one.segments[0].base).is_some());
}

#[test]
fn a_digest_depends_on_the_records_and_not_on_how_they_lie() {
    let digest = |segment_bytes: u32, together: usize, change: bool, epoch: i32| {
        let mut real = real(LogConfig {
            segment_bytes,
            ..config()
        });
        real.log.begin_epoch(LeaderEpoch(epoch)).expect("epoch");
        let records: Vec<Rec> = (0..60)
            .map(|n| sized(if change && n == 33 { 99 } else { n }, 100))
            .collect();
        for chunk in records.chunks(together) {
            append(&mut real.log, batch(chunk), NOW);
        }
        commit(&mut real.log);
        LogFiles::open(&real.path())
            .expect("opened")
            .digest(Offset(50))
            .expect("digest")
    };
    let one = digest(4096, 1, false, 2);
    assert_eq!((one.from, one.to, one.records), (Offset(0), Offset(50), 50));
    assert_eq!(one, digest(1 << 20, 7, false, 2));
    assert_ne!(
        one.sha256,
        digest(4096, 1, true, 2).sha256,
        "one value differs"
    );
    assert_ne!(
        one.sha256,
        digest(4096, 1, false, 3).sha256,
        "the epochs differ"
    );
}

#[test]
fn verify_names_what_is_damaged_and_the_digest_refuses_it() {
    let mut real = real(config());
    fill(&mut real.log, 40, 300, NOW);
    let files = LogFiles::open(&real.path()).expect("opened");
    let victim = &files.segments[1];
    let mut bytes = std::fs::read(&victim.path).expect("read");
    bytes[500] ^= 4;
    std::fs::write(&victim.path, &bytes).expect("written");
    let mut damaged = Vec::new();
    files
        .for_each(true, &mut |event| {
            if let Event::Damage {
                from, next_good, ..
            } = event
            {
                damaged.push((from.0, next_good.0));
            }
            Ok(true)
        })
        .expect("walked");
    assert_eq!(damaged, [(victim.base.0 + 1, victim.base.0 + 2)]);
    let error = files.digest(Offset(40)).expect_err("damaged");
    assert!(matches!(error, DumpError::Damaged { .. }), "{error}");
    assert!(
        files.digest(victim.base).is_ok(),
        "below the damage it works"
    );
    let error = files.lookup(Offset(victim.base.0 + 1), 512, None);
    assert!(error.is_ok(), "a look-up reads headers only");
    let error = LogFiles::open(real.dir.path()).err().expect("no log there");
    assert!(matches!(error, DumpError::NotALog(_)), "{error}");
}

#[test]
fn a_torn_tail_is_shown_as_one() {
    let mut real = real(config());
    fill(&mut real.log, 3, 300, NOW);
    let files = LogFiles::open(&real.path()).expect("opened");
    let path = files.segments[0].path.clone();
    let whole = std::fs::read(&path).expect("read");
    std::fs::write(&path, &whole[..whole.len() - 50]).expect("written");
    let files = LogFiles::open(&real.path()).expect("opened");
    let mut tail = None;
    files
        .for_each(true, &mut |event| {
            if let Event::Tail {
                position, bytes, ..
            } = event
            {
                tail = Some((position, bytes));
            }
            Ok(true)
        })
        .expect("walked");
    let batch = whole.len() as u64 / 3;
    assert_eq!(tail, Some((2 * batch, batch - 50)));
}
