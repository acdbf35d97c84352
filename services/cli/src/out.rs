//! Standard output. Every write may find that nobody reads any more; that is
//! a quiet end, not a panic (which is what `println!` makes of it).

use crate::failure::Failure;
use serde_json::Value;
use std::io::{self, Write};

/// Prints one JSON value as one line, or the text if JSON is not wanted.
pub fn print(json: bool, value: &Value, text: impl FnOnce() -> String) -> Result<(), Failure> {
    let mut text = if json { value.to_string() } else { text() };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    write(text.as_bytes())
}

/// Writes and flushes.
pub fn write(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .map_err(|error| Failure::output(&error))
}
