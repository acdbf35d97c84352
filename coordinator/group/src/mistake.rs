//! Mistakes that tests plant, to show that the checker sees them. Outside of
//! tests none is ever planted.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mistake {
    /// Gives a partition on while its old owner still holds it.
    GivesBeforeConfirmed,
    /// Takes commits with an epoch from before the partition was given.
    CommitsUnfenced,
    /// Lets a commit lower the stored offset.
    CommitsStepBack,
    /// Leaves a removed member's partitions to nobody.
    ForgetsFreed,
    /// Lets a second holder of an instance id in beside a live one.
    AdmitsTwins,
    /// Takes a repeated confirmation for that of a later revocation.
    TrustsOldConfirmations,
    /// Keeps a failure count when a commit has passed its record.
    KeepsFailures,
    /// Changes the state without a record.
    WritesAside,
    /// Takes commits of self-assigning clients beside streaming members.
    StandaloneBesideStreams,
}

#[cfg(test)]
thread_local! {
    pub(crate) static PLANTED: std::cell::Cell<Option<Mistake>> = const { std::cell::Cell::new(None) };
}

#[cfg(test)]
pub(crate) fn planted(mistake: Mistake) -> bool {
    PLANTED.get() == Some(mistake)
}

#[cfg(not(test))]
pub(crate) const fn planted(_: Mistake) -> bool {
    false
}
