//! Each mistake, planted, must be seen: an oracle that nothing can fail proves
//! nothing. `cargo test -p talweg-sim --features planted-faults --test planted`

use std::fmt::Debug;
use talweg_controller::core::fault::{self as controller, Fault as Controller};
use talweg_log::fault::{self as log, Fault as Log};
use talweg_replication::fault::{self as replication, Fault as Replication};
use talweg_sim::run;

/// The first of so many seeds that sees the mistake.
fn seen_within<F: Copy + Debug>(
    plant: impl Fn(Option<F>),
    fault: F,
    seeds: u64,
) -> Result<String, String> {
    plant(Some(fault));
    let seen = (0..seeds).find_map(|seed| run(seed).err());
    plant(None);
    match seen {
        Some(failure) => Ok(format!(
            "{:>4} of {seeds:>4}  {fault:?}: {failure}",
            failure.seed + 1
        )),
        None => Err(format!("{fault:?} was not seen in {seeds} seeds")),
    }
}

fn all_seen<F: Copy + Debug>(plant: impl Fn(Option<F>), faults: &[(F, u64)]) {
    std::panic::set_hook(Box::new(|_| {}));
    let found: Vec<_> = faults
        .iter()
        .map(|(fault, seeds)| seen_within(&plant, *fault, *seeds))
        .collect();
    drop(std::panic::take_hook());
    for one in &found {
        println!("{}", one.as_ref().unwrap_or_else(|missed| missed));
    }
    let missed: Vec<_> = found.into_iter().filter_map(Result::err).collect();
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn mistakes_of_the_replication_cores_are_seen() {
    use Replication::*;
    all_seen(
        replication::plant,
        &[
            (WatermarkWithoutInSync, 300),
            (WatermarkBelowMinimum, 300),
            (TruncatesToWatermark, 300),
            (ReportEpochIgnored, 300),
            (GrowthTooEarly, 300),
            (OldSessionApplied, 300),
            (OldIncarnationAccepted, 300),
            (ProposalDoesNotHold, 300),
            (MinimumIgnoredAtAppend, 300),
            (WatermarkShownEarly, 300),
            (WaitersOutliveEpoch, 300),
            (ContactIgnored, 300),
            (DivergenceNotFound, 300),
            (CutsBelowWatermark, 300),
            (SuccessorHeardAtOnce, 300),
        ],
    );
}

#[test]
fn mistakes_of_the_controller_core_are_seen() {
    use Controller::*;
    all_seen(
        controller::plant,
        &[
            (EpochKeptByElection, 300),
            (NewProcessContinues, 300),
            (StaleReplicaElected, 300),
            (EligibleKeptOnUncleanBoot, 300),
            (UncleanBootIgnored, 300),
            (EmptyFolderIgnored, 300),
            (RecoveredNotRecorded, 300),
            (ShortestRecovered, 300),
            (RecoversWithoutAll, 300),
            (StaleMemberAdmitted, 300),
            (PartitionEpochNotCompared, 300),
            (LeaderNotCompared, 300),
            (DeadStaysInSync, 300),
            (EligibleNotEmptied, 300),
            (LastInSyncBelowMinimum, 300),
        ],
    );
}

#[test]
fn mistakes_of_the_log_are_seen() {
    use Log::*;
    all_seen(
        log::plant,
        &[
            (FlushAcknowledgedEarly, 300),
            (FlushSkipsData, 300),
            (IndexAheadBelieved, 300),
            (SuspectIgnored, 300),
            (StartAboveFlushed, 300),
            (SessionsOutliveCut, 300),
            (RecoveryDoesNotFlush, 300),
            (TailNotChecked, 300),
            (SessionsNotReplayed, 300),
        ],
    );
}
