//! Mistakes that the simulation plants to prove that its oracles see them.
//! Elsewhere nothing is ever planted and the question costs nothing.

/// One rule that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Another leader goes on in the epoch of the one before.
    EpochKeptByElection,
    /// A new process leads in the epoch of the old one.
    NewProcessContinues,
    /// Who is in neither set may be elected.
    StaleReplicaElected,
    /// An unclean boot leaves the eligible set as it is.
    EligibleKeptOnUncleanBoot,
    /// An unclean boot is taken for a clean one.
    UncleanBootIgnored,
    /// An empty folder is taken for one that has lost nothing.
    EmptyFolderIgnored,
    /// An election after a loss is not recorded.
    RecoveredNotRecorded,
    /// What may be missing is recorded from one above where it begins.
    RecoveredFromTooHigh,
    /// After a loss the one with the least leads.
    ShortestRecovered,
    /// After a loss an election waits for nobody.
    RecoversWithoutAll,
    /// An in-sync set may name a process that is gone.
    StaleMemberAdmitted,
    /// An in-sync set is taken whatever it was proposed on.
    PartitionEpochNotCompared,
    /// An in-sync set is taken from whoever proposes it.
    LeaderNotCompared,
    /// The eligible set outlives the in-sync set's return to its minimum.
    EligibleNotEmptied,
    /// A shard changes hands in the epoch that it has.
    ShardEpochKept,
    /// A new process of a coordinator goes on with the shards of the old one.
    NewCoordinatorContinues,
}

talweg_types::planting!(Fault where feature = "planted-faults");
