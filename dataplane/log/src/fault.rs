//! Mistakes that the simulation plants to prove that its oracles see them.
//! Elsewhere nothing is ever planted and the question costs nothing.

/// One rule that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// What is written counts as flushed.
    FlushAcknowledgedEarly,
    /// A flush writes its sidecars and not the data.
    FlushSkipsData,
    /// An index that is ahead of the log is believed.
    IndexAheadBelieved,
    /// A log not recovered since a power loss is taken for whole.
    SuspectIgnored,
    /// A log start becomes durable above what is.
    StartAboveFlushed,
    /// A truncation leaves producer sessions as they were.
    SessionsOutliveCut,
    /// What recovery keeps is not flushed.
    RecoveryDoesNotFlush,
    /// Recovery keeps the end of a log without looking at its checksums.
    TailNotChecked,
    /// Producer sessions are those of the file, without what came since.
    SessionsNotReplayed,
    /// An epoch that is over is led or followed, and its batches are taken.
    EpochNotChecked,
    /// An append is not compared with the newest fence.
    FenceNotChecked,
    /// The fence is that of the file, without what came since.
    FenceNotReplayed,
}

talweg_types::planting!(Fault where feature = "planted-faults");
