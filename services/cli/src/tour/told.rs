//! Telling a story while it is played: a step says first what is done, then
//! what was seen. With `--json` each step is one line.

use crate::{failure::Failure, out};
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    time::Instant,
};

/// The steps so far.
pub struct Told {
    json: bool,
    story: &'static str,
    begun: Instant,
    step: u32,
    doing: String,
}

impl Told {
    pub fn new(json: bool, story: &'static str, dir: &Path) -> Self {
        if !json {
            // Who does not read it misses nothing but the words.
            let _ = out::write(format!("tour: {story} (data in {})\n\n", dir.display()).as_bytes());
        }
        Self {
            json,
            story,
            begun: Instant::now(),
            step: 0,
            doing: String::new(),
        }
    }

    /// Begins a step.
    pub fn doing(&mut self, what: &str) -> Result<(), Failure> {
        self.step += 1;
        self.doing = what.to_owned();
        if self.json {
            return Ok(());
        }
        out::write(format!("{}. {what}\n", self.step).as_bytes())
    }

    /// Ends it: `text` for people, `value` with `--json`.
    pub fn seen(&mut self, text: &str, value: &Value) -> Result<(), Failure> {
        let line = json!({
            "step": self.step,
            "does": self.doing,
            "seen": value,
            "at_ms": u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        });
        out::print(self.json, &line, || format!("   → {text}\n"))
    }

    /// The number of the step that is being played.
    pub fn step(&self) -> u32 {
        self.step
    }

    /// The last line.
    pub fn end(&self, ok: bool, kept: Option<PathBuf>) -> Result<(), Failure> {
        let kept = kept.map(|path| path.display().to_string());
        let took = self.begun.elapsed();
        let line = json!({
            "tour": self.story,
            "ok": ok,
            "steps": self.step,
            "took_ms": u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            "kept": kept,
        });
        out::print(self.json, &line, || {
            let end = if ok { "done" } else { "not as promised" };
            let kept = kept.map_or_else(String::new, |path| format!("; data and logs: {path}"));
            format!("\n{end} in {:.1} s{kept}\n", took.as_secs_f64())
        })
    }
}
