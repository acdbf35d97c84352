//! Follows what a step did to a node's logs, and checks it.

use crate::{Checked, Happened, oracle::read_from, session::SESSION_MS, world::World};
use talweg_types::TopicPartition;

/// What the step before left, as cheap to compare as possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    first: i64,
    end: i64,
    flushed: i64,
    watermark: i64,
    leads: Option<i32>,
    segments: usize,
}

impl World {
    pub fn observe(&mut self, node: usize) -> Checked {
        if let Some(why) = self.oracle.broken.take() {
            return Err(why);
        }
        let Some(process) = self.nodes[node].process.as_ref() else {
            return Ok(());
        };
        let mut changed = Vec::new();
        for (tp, handle) in &process.handles {
            let bounds = handle.reader.bounds();
            let seen = Seen {
                first: handle.reader.first_offset().0,
                end: bounds.log_end.0,
                flushed: bounds.flushed_end.0,
                watermark: bounds.high_watermark.0,
                leads: handle.leads().map(|epoch| epoch.0),
                segments: process
                    .replicas
                    .get(tp)
                    .map_or(0, |replica| replica.log.segment_count()),
            };
            let Some(truth) = self.oracle.truths.get_mut(tp) else {
                continue;
            };
            if seen.leads.is_some() {
                truth.log_start = truth.log_start.max(bounds.log_start.0);
            }
            let shadow = &truth.shadows[node];
            let known = Seen {
                first: shadow.base,
                end: shadow.end(),
                flushed: shadow.flushed,
                watermark: shadow.watermark,
                leads: shadow.leads,
                segments: shadow.segments,
            };
            if shadow.open && seen != known {
                bounds
                    .check()
                    .map_err(|error| format!("node {} {tp}: {error}: {bounds:?}", node + 1))?;
                changed.push((*tp, seen));
            }
        }
        for (tp, seen) in changed {
            self.observe_one(node, tp, seen)
                .map_err(|why| format!("{tp}: {why}"))?;
        }
        Ok(())
    }

    fn observe_one(&mut self, node: usize, tp: TopicPartition, seen: Seen) -> Checked {
        for number in [seen.end, seen.flushed, seen.watermark] {
            self.mix(number.unsigned_abs());
        }
        let was = {
            let shadow = &self.oracle.truth(tp).shadows[node];
            (shadow.leads, shadow.watermark, shadow.flushed)
        };
        let cut = self.observe_cut(node, tp, seen)?;
        self.observe_lead(node, tp, seen)?;
        self.observe_records(node, tp, seen)?;
        self.observe_flushed(node, tp, seen, was.2);
        // One that led when the step began may have stopped within it.
        let led = Seen {
            leads: seen.leads.or(was.0),
            ..seen
        };
        self.observe_watermark(node, tp, led, was.1)?;
        let published = seen.leads.is_some() && seen.watermark > was.1;
        self.note_told(node, tp);
        if cut || published {
            self.members_hold(tp)?;
        }
        Ok(())
    }

    fn note_told(&mut self, node: usize, tp: TopicPartition) {
        let handle = self.nodes[node]
            .process
            .as_ref()
            .and_then(|process| process.handles.get(&tp));
        let told = handle.map(|handle| {
            (
                handle.reader.last_epoch().0,
                handle.reader.bounds().log_end.0,
            )
        });
        if let Some(told) = told {
            self.oracle.truth(tp).shadows[node].told = told;
        }
    }

    /// True if something was dropped.
    fn observe_cut(&mut self, node: usize, tp: TopicPartition, seen: Seen) -> Result<bool, String> {
        let truth = self.oracle.truth(tp);
        let recovered = truth.recovered;
        let shadow = &mut truth.shadows[node];
        let cut = seen.end < shadow.end();
        let anew = seen.first > shadow.end();
        let rolled = cut && seen.segments < shadow.segments;
        if cut && seen.first == shadow.base {
            if seen.end < shadow.watermark && shadow.last_epoch() >= recovered {
                return Err(format!(
                    "node {} cut to {} below its watermark {}",
                    node + 1,
                    seen.end,
                    shadow.watermark
                ));
            }
            shadow.cut(seen.end);
        }
        if seen.first != shadow.base {
            shadow.begin(seen.first);
            shadow.cut(seen.end.max(seen.first));
        }
        shadow.segments = seen.segments;
        if cut || anew {
            self.say(|| format!("node {} cuts {tp}: {seen:?}", node + 1));
        }
        if cut {
            self.coverage.note(Happened::Truncation);
        }
        if rolled {
            self.coverage.note(Happened::TruncationBelowRoll);
        }
        if anew {
            self.coverage.note(Happened::BegunAnew);
        }
        Ok(cut || anew)
    }

    fn observe_lead(&mut self, node: usize, tp: TopicPartition, seen: Seen) -> Checked {
        let life = self.nodes[node].life;
        let truth = self.oracle.truth(tp);
        if truth.shadows[node].leads == seen.leads {
            return Ok(());
        }
        truth.shadows[node].leads = seen.leads;
        let Some(epoch) = seen.leads else {
            return Ok(());
        };
        let lost = truth.lost.len();
        truth.on_lead(node, life, epoch)?;
        let lost = truth.lost.len() - lost;
        self.coverage.add(Happened::Lost, lost as u64);
        self.say(|| {
            format!(
                "node {} leads {tp} in epoch {epoch}: {}..{} watermark {}",
                node + 1,
                seen.first,
                seen.end,
                seen.watermark
            )
        });
        Ok(())
    }

    fn observe_records(&mut self, node: usize, tp: TopicPartition, seen: Seen) -> Checked {
        let from = self.oracle.truth(tp).shadows[node].end();
        if from >= seen.end {
            return Ok(());
        }
        let life = self.nodes[node].life;
        if seen.leads.is_some() {
            self.was_heard(node, tp)?;
        }
        let found = {
            let process = self.nodes[node].process.as_ref().ok_or("no process")?;
            let handle = process.handles.get(&tp).ok_or("no handle")?;
            // A folder that has failed cannot be asked any more.
            if process.folder.failed().is_some() {
                return Ok(());
            }
            read_from(&handle.reader, from)?
        };
        for (offset, record) in found {
            self.oracle.may_exist(record.value)?;
            let truth = self.oracle.truth(tp);
            truth.on_record(node, life, offset, record)?;
            truth.shadows[node].records.push(record);
            self.oracle.on_held(node, record.value, false);
        }
        Ok(())
    }

    /// A leader that hears nobody for a session time-out takes nothing, where it
    /// needs others. Its clock may be slow, and what it heard was on its way.
    fn was_heard(&self, node: usize, tp: TopicPartition) -> Checked {
        let silent = self.now.saturating_sub(self.nodes[node].heard);
        if self.topic_of(&tp).min_insync >= 2 && silent > SESSION_MS + SESSION_MS / 5 {
            return Err(format!(
                "node {} appends, and has heard nobody for {silent} ms",
                node + 1
            ));
        }
        Ok(())
    }

    fn observe_flushed(&mut self, node: usize, tp: TopicPartition, seen: Seen, was: i64) {
        let shadow = &mut self.oracle.truth(tp).shadows[node];
        shadow.flushed = seen.flushed;
        let newly: Vec<_> = (was.min(seen.flushed)..seen.flushed)
            .filter_map(|offset| shadow.get(offset))
            .collect();
        newly
            .iter()
            .for_each(|record| self.oracle.on_held(node, record.value, true));
    }

    fn observe_watermark(
        &mut self,
        node: usize,
        tp: TopicPartition,
        seen: Seen,
        was: i64,
    ) -> Checked {
        let truth = self.oracle.truth(tp);
        truth.shadows[node].watermark = seen.watermark;
        if seen.watermark < was && truth.recovered < 0 {
            return Err(format!(
                "the watermark of node {} fell from {was} to {}",
                node + 1,
                seen.watermark
            ));
        }
        if seen.watermark <= was {
            return Ok(());
        }
        match seen.leads {
            Some(epoch) => truth.on_leader_watermark(node, epoch, was, seen.watermark),
            None => truth.on_follower_watermark(node, was, seen.watermark),
        }
    }
}
