//! How often what matters has happened: a run in which something never did says
//! nothing about it.

use std::{collections::BTreeMap, fmt};

macro_rules! happened {
    ($($name:ident: $text:literal, $needed:literal;)*) => {
        /// Something that a run is to go through.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Happened { $($name,)* }

        impl Happened {
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// A run in which it never happened has failed.
            fn is_needed(self) -> bool {
                match self { $(Self::$name => $needed,)* }
            }
        }
    };
}

happened! {
    Election: "election", true;
    Truncation: "truncation", true;
    Shrink: "shrink", true;
    Growth: "growth", true;
    GrowthRefused: "growth refused", true;
    UncleanBoot: "unclean boot", true;
    Recovered: "recovered election", true;
    RestartInSession: "restart inside the session", true;
    EpochEndedWithWaiters: "epoch ended with waiters", true;
    TruncationBelowRoll: "truncation below a roll", true;
    BegunAnew: "log begun anew at the leader's start", true;
    Eligible: "member made eligible", true;
    Failover: "controller failover", true;
    Zombie: "deposed controller refused a write", true;
    UnclearWrite: "metastore write with an unclear outcome", true;
    Stale: "older process refused", false;
    Repeat: "repeat recognised", true;
    LateWord: "word of an old session or epoch repeated", true;
    NotEnough: "refused below min.insync", true;
    NotEnoughAfter: "failed below min.insync after append", true;
    NoContact: "refused without contact", true;
    DiskFull: "refused by a full disk", true;
    FolderFailed: "folder failed", true;
    Wiped: "came back on an empty disk", true;
    Lost: "record missing after a recovered election", true;
    Acknowledged: "batch acknowledged", true;
    Read: "record read", true;
    Paused: "pause", true;
    PowerLoss: "power loss", true;
    HalfDone: "power loss within a change on disk", true;
    IndexBehind: "index older than the log, or gone", true;
    Unclean: "operator's unclean election at the end", false;
}

#[derive(Clone, Default, Debug)]
pub struct Coverage {
    counts: BTreeMap<Happened, u64>,
    pub delivered: u64,
    pub faults: u64,
}

impl Coverage {
    pub fn note(&mut self, what: Happened) {
        self.add(what, 1);
    }

    pub fn add(&mut self, what: Happened, times: u64) {
        *self.counts.entry(what).or_default() += times;
    }

    pub fn of(&self, what: Happened) -> u64 {
        self.counts.get(&what).copied().unwrap_or(0)
    }

    pub fn merge(&mut self, other: &Self) {
        other
            .counts
            .iter()
            .for_each(|(what, times)| self.add(*what, *times));
        self.delivered += other.delivered;
        self.faults += other.faults;
    }

    /// What never happened although it should.
    pub fn missing(&self) -> Vec<&'static str> {
        let never = |what: &&Happened| what.is_needed() && self.of(**what) == 0;
        Happened::ALL
            .iter()
            .filter(never)
            .map(|what| what.text())
            .collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>12}  messages delivered", self.delivered)?;
        writeln!(f, "{:>12}  faults", self.faults)?;
        Happened::ALL
            .iter()
            .try_for_each(|what| writeln!(f, "{:>12}  {}", self.of(*what), what.text()))
    }
}
