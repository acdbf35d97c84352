//! A progress bar; where there is no terminal, a line for every tenth.

use indicatif::{ProgressBar, ProgressStyle};

/// Counts towards a total.
pub struct Bar {
    bar: ProgressBar,
    name: &'static str,
}

impl Bar {
    /// At zero.
    pub fn new(name: &'static str, total: u64) -> Self {
        let bar = ProgressBar::new(total);
        // A template with a mistake would be a plain bar.
        if let Ok(style) =
            ProgressStyle::with_template("{msg} {wide_bar} {human_pos}/{human_len} {per_sec}")
        {
            bar.set_style(style);
        }
        bar.set_message(name);
        Self { bar, name }
    }

    /// Further on.
    pub fn add(&self, count: u64) {
        let before = self.bar.position();
        self.bar.inc(count);
        let tenth = |position: u64| position * 10 / self.bar.length().unwrap_or(1).max(1);
        if self.bar.is_hidden() && tenth(before + count) > tenth(before) {
            eprintln!("{}: {} %", self.name, tenth(before + count) * 10);
        }
    }

    /// Leaves the terminal to others.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
