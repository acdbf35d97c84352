//! Mistakes that tests plant to prove that they see them. Elsewhere nothing is ever
//! planted and the question costs nothing.

/// One rule that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A commit beyond what was sent is stored.
    UnsentStored,
    /// A commit may go back without a seek.
    StepsBack,
    /// A failed record counts as passed before its copy is acknowledged.
    PassedBeforeCopied,
    /// A partition that is asked back goes on being sent.
    SentWhileRevoked,
    /// A partition is given up before what was passed of it is stored.
    GivenUpUnstored,
    /// What retention took is passed over without a word.
    GapUntold,
    /// Records go out before the place where the policy begins is stored.
    BeginsUnstored,
    /// A seek counts as delivered before a leader has begun there.
    SoughtIsDelivered,
    /// What is of before a seek is taken for what is of after it.
    GenerationKept,
    /// A view of an earlier coordinator is taken for the newest.
    OldViewTaken,
    /// A second request goes while one is unanswered.
    RequestsOvertake,
    /// Records of a partition whose readers died go as fast as credit allows.
    DeadlySentTogether,
    /// Topics count as joined when they are asked for.
    JoinTakenForDone,
    /// A claim about the last epoch is made wherever the position is.
    EpochAlwaysClaimed,
}

talweg_types::planting!(Fault where all(test, feature = "planted-faults"));
