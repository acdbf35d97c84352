//! Each mistake, planted, must be seen: an oracle that nothing can fail proves
//! nothing. `cargo test -p talweg-sim --features planted-faults --test planted`
//!
//! A row names the seeds among which one must see it. Those that need rare
//! company begin where it is found. The seed that sees it is clean without it: what
//! was seen is the mistake. What two guards keep apart is planted in the crates' own
//! tests: an epoch that is over, at the log, behind the replication core
//! (`talweg-log`, following); a shard's fence, at the log and at the controller.

use std::{fmt::Debug, ops::Range};
use talweg_controller::core::fault::{self as controller, Fault as Controller};
use talweg_log::fault::{self as log, Fault as Log};
use talweg_replication::fault::{self as replication, Fault as Replication};
use talweg_sim::run;

fn seen<F: Copy + Debug>(
    plant: impl Fn(Option<F>),
    fault: F,
    mut seeds: Range<u64>,
) -> Result<String, String> {
    let asked = seeds.clone();
    plant(Some(fault));
    let failure = seeds.find_map(|seed| run(seed).err());
    plant(None);
    let Some(failure) = failure else {
        return Err(format!("{fault:?} was not seen in seeds {asked:?}"));
    };
    if let Err(without) = run(failure.seed) {
        return Err(format!("{fault:?}: without it too: {without}"));
    }
    Ok(format!(
        "{fault:?}: after {} of {} seeds: {failure}",
        failure.seed + 1 - asked.start,
        asked.end - asked.start
    ))
}

fn all_seen<F: Copy + Debug>(plant: impl Fn(Option<F>), faults: &[(F, Range<u64>)]) {
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for (fault, seeds) in faults {
        match seen(&plant, *fault, seeds.clone()) {
            Ok(found) => println!("{found}"),
            Err(why) => missed.push(why),
        }
    }
    drop(std::panic::take_hook());
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn mistakes_of_the_replication_cores_are_seen() {
    use Replication::*;
    all_seen(
        replication::plant,
        &[
            (WatermarkWithoutInSync, 0..10),
            (WatermarkBelowMinimum, 0..30),
            (TruncatesToWatermark, 0..10),
            (GrowthTooEarly, 0..30),
            (OldSessionApplied, 0..100),
            (ProposalDoesNotHold, 0..40),
            (MinimumIgnoredAtAppend, 0..20),
            (WatermarkShownEarly, 0..20),
            (WaitersOutliveEpoch, 0..10),
            (ContactIgnored, 0..60),
            (DivergenceNotFound, 0..20),
            (SuccessorHeardAtOnce, 200..300),
        ],
    );
}

#[test]
fn mistakes_of_the_controller_core_are_seen() {
    use Controller::*;
    all_seen(
        controller::plant,
        &[
            (EpochKeptByElection, 0..10),
            (NewProcessContinues, 0..20),
            (StaleReplicaElected, 0..20),
            (EligibleKeptOnUncleanBoot, 0..40),
            (UncleanBootIgnored, 0..30),
            (EmptyFolderIgnored, 0..40),
            (RecoveredNotRecorded, 0..30),
            (RecoveredFromTooHigh, 0..30),
            (ShortestRecovered, 0..30),
            (RecoversWithoutAll, 0..30),
            (StaleMemberAdmitted, 0..40),
            (LeaderNotCompared, 0..40),
            (EligibleNotEmptied, 0..20),
        ],
    );
}

#[test]
fn mistakes_of_the_log_are_seen() {
    use Log::*;
    all_seen(
        log::plant,
        &[
            (FlushAcknowledgedEarly, 0..30),
            (FlushSkipsData, 0..10),
            (IndexAheadBelieved, 0..60),
            (SuspectIgnored, 1_280..1_340),
            (StartAboveFlushed, 200..400),
            (SessionsOutliveCut, 0..60),
            (RecoveryDoesNotFlush, 0..30),
            (TailNotChecked, 0..60),
            (SessionsNotReplayed, 0..30),
        ],
    );
}
