//! Mistakes that tests and the simulation plant to prove that their oracles see
//! them. Elsewhere nothing is ever planted and the question costs nothing.

/// One rule that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The leader's own counted end is the watermark.
    WatermarkWithoutInSync,
    /// The watermark moves although the confirmed set is below the minimum.
    WatermarkBelowMinimum,
    /// A follower cuts to its watermark, as before leader epochs were known.
    TruncatesToWatermark,
    /// Reports of any epoch move a follower's position.
    ReportEpochIgnored,
    /// A follower returns however far it has got.
    GrowthTooEarly,
    /// An answer of an earlier session or epoch is taken.
    OldSessionApplied,
    /// The word of a process that is gone moves its successor's position.
    OldIncarnationAccepted,
    /// Only the confirmed set holds the watermark while a change is pending.
    ProposalDoesNotHold,
    /// acks=all is appended although too few are in sync.
    MinimumIgnoredAtAppend,
    /// A new leader shows its watermark before it knows what was published.
    WatermarkShownEarly,
    /// Who waits is not told that the epoch has ended.
    WaitersOutliveEpoch,
    /// Produce is taken although nobody was heard for a session time-out.
    ContactIgnored,
    /// Every position of a fetch is taken for good.
    DivergenceNotFound,
    /// A new process of a member moves the old one's position at once.
    SuccessorHeardAtOnce,
}

talweg_types::planting!(Fault where any(test, feature = "planted-faults"));
