//! Mistakes that the property test plants to prove that its oracles see them.
//! Outside of tests nothing is ever planted and the question costs nothing.

/// One rule that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
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
}

#[cfg(not(test))]
pub(crate) const fn planted(_: Fault) -> bool {
    false
}

#[cfg(test)]
pub(crate) use planting::{plant, planted};

#[cfg(test)]
mod planting {
    use super::Fault;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    pub(crate) fn planted(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }

    /// For this thread, until the next call.
    pub(crate) fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }
}
