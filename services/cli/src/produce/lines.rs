//! Input lines as keys and values.
//!
//! Lines are bytes: only the line feed is taken off, so a carriage return
//! before it stays part of the value, and bytes that are not UTF-8 pass as
//! they are. Memory is bounded: a line longer than any record may be is
//! counted and skipped, never held.

use crate::args::ProduceArgs;
use bytes::Bytes;
use std::io::{self, BufRead, BufReader, Read};
use talweg_types::limits;

/// No topic takes a longer record, so no longer line is kept.
pub const LINE_BYTES_MAX: usize = limits::MAX_RECORD_BYTES_RANGE.1 as usize;

/// What is read from the input at once.
const BUFFER_BYTES: usize = 64 * 1024;

/// One line of input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Its bytes, without the line feed.
    Whole(Bytes),
    /// It had this many bytes, more than [`LINE_BYTES_MAX`].
    TooLong(u64),
}

/// Lines of a reader, numbered from 1.
pub struct Lines<R> {
    input: BufReader<R>,
    limit: usize,
    number: u64,
}

impl<R: Read> Lines<R> {
    /// Lines of `input` up to [`LINE_BYTES_MAX`].
    pub fn new(input: R) -> Self {
        Self::over(
            BufReader::with_capacity(BUFFER_BYTES, input),
            LINE_BYTES_MAX,
        )
    }

    fn over(input: BufReader<R>, limit: usize) -> Self {
        Self {
            input,
            limit,
            number: 0,
        }
    }

    /// A whole line can be had without waiting for the input.
    pub fn has_line(&self) -> bool {
        self.input.buffer().contains(&b'\n')
    }

    /// The next line with its number, `None` at the end. A last line without a
    /// line feed counts; an empty rest does not.
    pub fn next_line(&mut self) -> io::Result<Option<(u64, Line)>> {
        let mut kept = Vec::new();
        let mut length = 0u64;
        loop {
            let chunk = match self.input.fill_buf() {
                Ok(chunk) => chunk,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if chunk.is_empty() {
                return Ok((length > 0).then(|| self.finish(kept, length)));
            }
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let part = &chunk[..end.unwrap_or(chunk.len())];
            length += part.len() as u64;
            if length <= self.limit as u64 {
                kept.extend_from_slice(part);
            } else {
                kept = Vec::new();
            }
            let used = part.len() + usize::from(end.is_some());
            self.input.consume(used);
            if end.is_some() {
                return Ok(Some(self.finish(kept, length)));
            }
        }
    }

    fn finish(&mut self, kept: Vec<u8>, length: u64) -> (u64, Line) {
        self.number += 1;
        let line = if length > self.limit as u64 {
            Line::TooLong(length)
        } else {
            Line::Whole(kept.into())
        };
        (self.number, line)
    }
}

/// How a line becomes a key and a value.
#[derive(Clone, Debug, Default)]
pub struct LineFormat {
    separator: Option<Bytes>,
    key: Option<Bytes>,
    null_key: Option<Bytes>,
    null_value: Option<Bytes>,
}

impl LineFormat {
    /// As the options say.
    pub fn new(args: &ProduceArgs) -> Self {
        let bytes = |text: &Option<String>| text.clone().map(Bytes::from);
        Self {
            separator: bytes(&args.key_separator),
            key: bytes(&args.key),
            null_key: bytes(&args.null_key),
            null_value: bytes(&args.null_value),
        }
    }

    /// Key and value of a line; `None` is null. Slices of `line`, not copies.
    pub fn split(&self, line: &Bytes) -> (Option<Bytes>, Option<Bytes>) {
        let (key, value) = match self
            .separator
            .as_ref()
            .and_then(|s| Some((find(line, s)?, s.len())))
        {
            Some((at, length)) => (Some(line.slice(..at)), line.slice(at + length..)),
            None => (self.key.clone(), line.clone()),
        };
        (
            key.filter(|k| Some(k) != self.null_key.as_ref()),
            Some(value).filter(|v| Some(v) != self.null_value.as_ref()),
        )
    }
}

fn find(line: &[u8], separator: &[u8]) -> Option<usize> {
    line.windows(separator.len())
        .position(|window| window == separator)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(input: &[u8], limit: usize) -> Vec<(u64, Line)> {
        // A buffer of three bytes: lines cross its edges in every way.
        let mut lines = Lines::over(BufReader::with_capacity(3, input), limit);
        std::iter::from_fn(|| lines.next_line().expect("memory does not fail")).collect()
    }

    fn whole(bytes: &'static [u8]) -> Line {
        Line::Whole(Bytes::from_static(bytes))
    }

    #[test]
    fn only_the_line_feed_is_taken_off() {
        let table: &[(&'static [u8], Vec<Line>)] = &[
            (b"", vec![]),
            (b"\n", vec![whole(b"")]),
            (b"a", vec![whole(b"a")]),
            (b"a\n", vec![whole(b"a")]),
            (b"a\n\nb", vec![whole(b"a"), whole(b""), whole(b"b")]),
            (b"a\r\nb\r\n", vec![whole(b"a\r"), whole(b"b\r")]),
            (b" a \n", vec![whole(b" a ")]),
            (
                b"\xff\xfe\0\n\x80",
                vec![whole(b"\xff\xfe\0"), whole(b"\x80")],
            ),
        ];
        for (input, expected) in table {
            let expected: Vec<_> = (1..).zip(expected.iter().cloned()).collect();
            assert_eq!(lines(input, 100), expected, "{input:?}");
        }
    }

    #[test]
    fn a_line_too_long_is_counted_and_skipped_and_the_next_one_is_whole() {
        assert_eq!(
            lines(b"12345\n123456\nab\n12345678901", 5),
            [
                (1, whole(b"12345")),
                (2, Line::TooLong(6)),
                (3, whole(b"ab")),
                (4, Line::TooLong(11))
            ]
        );
    }

    #[test]
    fn a_read_error_is_an_error_and_not_an_end() {
        // Half a line before a failing disk must not be sent as if it were the whole.
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("broken"))
            }
        }
        let mut lines = Lines::new((&b"half"[..]).chain(Broken));
        assert!(lines.next_line().is_err());
    }

    fn format(separator: &str, key: &str, null_key: &str, null_value: &str) -> LineFormat {
        let some = |text: &str| (text != "-").then(|| Bytes::copy_from_slice(text.as_bytes()));
        LineFormat {
            separator: some(separator),
            key: some(key),
            null_key: some(null_key),
            null_value: some(null_value),
        }
    }

    #[test]
    fn null_and_empty_stay_apart() {
        // (separator, key, null key, null value) and a line; "-" is "not given", None is null.
        type Row = (
            [&'static str; 4],
            &'static [u8],
            Option<&'static [u8]>,
            Option<&'static [u8]>,
        );
        let table: &[Row] = &[
            (["-", "-", "-", "-"], b"k:v", None, Some(b"k:v")),
            ([":", "-", "-", "-"], b"k:v", Some(b"k"), Some(b"v")),
            ([":", "-", "-", "-"], b"k:v:w", Some(b"k"), Some(b"v:w")),
            (
                [":", "-", "-", "-"],
                b"no separator",
                None,
                Some(b"no separator"),
            ),
            ([":", "-", "-", "-"], b":v", Some(b""), Some(b"v")),
            ([":", "-", "-", "-"], b"k:", Some(b"k"), Some(b"")),
            ([":", "-", "-", "-"], b":", Some(b""), Some(b"")),
            ([":", "-", "-", "-"], b"", None, Some(b"")),
            (["::", "-", "-", "-"], b"a:b::c", Some(b"a:b"), Some(b"c")),
            ([":", "-", "N", "V"], b"N:V", None, None),
            ([":", "-", "N", "V"], b"n:v", Some(b"n"), Some(b"v")),
            ([":", "-", "", ""], b":", None, None),
            (["-", "k", "-", "V"], b"V", Some(b"k"), None),
            (["-", "k", "-", "-"], b"k:v", Some(b"k"), Some(b"k:v")),
            (["-", "", "-", "-"], b"v", Some(b""), Some(b"v")),
            (
                [":", "-", "-", "-"],
                b"\xff:\xfe",
                Some(b"\xff"),
                Some(b"\xfe"),
            ),
        ];
        for ([separator, key, null_key, null_value], line, expected_key, expected_value) in table {
            let format = format(separator, key, null_key, null_value);
            let (key, value) = format.split(&Bytes::from_static(line));
            assert_eq!(
                (key.as_deref(), value.as_deref()),
                (*expected_key, *expected_value),
                "{line:?} {format:?}"
            );
        }
    }
}
