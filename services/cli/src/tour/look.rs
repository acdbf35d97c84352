//! One look at a partition, and whether it shows what was promised.

use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// What can be seen of a partition from outside.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Look {
    /// Node id; 0 is none.
    pub leader: u32,
    pub leader_epoch: i32,
    pub in_sync: BTreeSet<u32>,
    /// Exclusive; the leader's word, none while it is silent about it.
    pub high_watermark: Option<i64>,
    /// Next offset of each replica that answers, by node id.
    pub log_ends: BTreeMap<u32, i64>,
}

/// What a look must show; what is absent may be anything.
#[derive(Clone, Debug, Default)]
pub struct Want {
    pub leader: Option<u32>,
    pub in_sync: Option<&'static [u32]>,
    pub high_watermark: Option<i64>,
    /// All replicas that answer, no others.
    pub log_ends: Option<&'static [(u32, i64)]>,
}

impl Want {
    /// The first difference, in words.
    pub fn differs(&self, look: &Look) -> Option<String> {
        if let Some(leader) = self.leader.filter(|leader| *leader != look.leader) {
            return Some(format!(
                "leader n{leader} was promised, not n{}",
                look.leader
            ));
        }
        if let Some(in_sync) = self.in_sync {
            let wanted: BTreeSet<u32> = in_sync.iter().copied().collect();
            if wanted != look.in_sync {
                return Some(format!(
                    "in-sync {} was promised, not {}",
                    Nodes(&wanted),
                    Nodes(&look.in_sync)
                ));
            }
        }
        if self.high_watermark.is_some() && self.high_watermark != look.high_watermark {
            return Some(format!(
                "watermark {:?} was promised, not {:?}",
                self.high_watermark, look.high_watermark
            ));
        }
        if let Some(log_ends) = self.log_ends {
            let wanted: BTreeMap<u32, i64> = log_ends.iter().copied().collect();
            if wanted != look.log_ends {
                return Some(format!(
                    "log ends {} were promised, not {}",
                    Ends(&wanted),
                    Ends(&look.log_ends)
                ));
            }
        }
        None
    }
}

struct Nodes<'a>(&'a BTreeSet<u32>);
struct Ends<'a>(&'a BTreeMap<u32, i64>);

impl fmt::Display for Nodes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(|id| format!("n{id}")).collect();
        f.write_str(&names.join(" "))
    }
}

impl fmt::Display for Ends<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ends = self.0.iter().map(|(id, end)| format!("n{id} {end}"));
        f.write_str(&ends.collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Display for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.leader {
            0 => f.write_str("no leader")?,
            leader => write!(f, "n{leader} leads")?,
        }
        write!(f, ", in-sync {}", Nodes(&self.in_sync))?;
        match self.high_watermark {
            Some(offset) => write!(f, ", watermark {offset}")?,
            None => f.write_str(", watermark not known yet")?,
        }
        write!(f, ", log ends {}", Ends(&self.log_ends))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end_of_the_story() -> Look {
        Look {
            leader: 2,
            leader_epoch: 2,
            in_sync: [1, 2].into(),
            high_watermark: Some(4),
            log_ends: [(1, 4), (2, 4), (3, 3)].into(),
        }
    }

    fn want() -> Want {
        Want {
            leader: Some(2),
            in_sync: Some(&[1, 2]),
            high_watermark: Some(4),
            log_ends: Some(&[(1, 4), (2, 4), (3, 3)]),
        }
    }

    /// Every look that is a little off is found out.
    #[test]
    fn doctored_looks_are_found_out() {
        assert_eq!(want().differs(&end_of_the_story()), None);
        assert_eq!(Want::default().differs(&end_of_the_story()), None);
        type Doctor = fn(&mut Look);
        let rows: [(Doctor, &str); 7] = [
            (|look| look.leader = 1, "leader n2 was promised, not n1"),
            (
                |look| {
                    look.in_sync.insert(3);
                },
                "not n1 n2 n3",
            ),
            (
                |look| {
                    look.in_sync.remove(&1);
                },
                "not n2",
            ),
            (|look| look.high_watermark = Some(6), "watermark"),
            (|look| look.high_watermark = None, "watermark"),
            (
                |look| {
                    look.log_ends.insert(1, 6);
                },
                "not n1 6, n2 4, n3 3",
            ),
            (
                |look| {
                    look.log_ends.remove(&3);
                },
                "not n1 4, n2 4",
            ),
        ];
        for (doctor, words) in rows {
            let mut look = end_of_the_story();
            doctor(&mut look);
            let found = want().differs(&look).expect("found out");
            assert!(found.contains(words), "{found}");
        }
    }
}
