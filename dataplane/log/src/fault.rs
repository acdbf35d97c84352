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
}

#[cfg(not(feature = "planted-faults"))]
pub(crate) const fn planted(_: Fault) -> bool {
    false
}

#[cfg(feature = "planted-faults")]
pub use planting::plant;
#[cfg(feature = "planted-faults")]
pub(crate) use planting::planted;

#[cfg(feature = "planted-faults")]
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
    pub fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }
}
