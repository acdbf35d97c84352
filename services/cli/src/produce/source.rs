//! The thread that reads lines and makes records of them.
//!
//! Reading may block for ever (a terminal), so it has a thread of its own that
//! is never waited for. Records go out in groups: as many as can be had without
//! waiting, so that a typed line leaves at once and a file in few steps.

use super::lines::{LINE_BYTES_MAX, Line, LineFormat, Lines};
use crate::args::ProduceArgs;
use std::{
    fs::File,
    io::{self, Read},
    thread,
};
use talweg_batch::record_bytes;
use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1;
use tokio::sync::mpsc;

/// Records and bytes of one group.
const GROUP_RECORDS: usize = 1_000;
const GROUP_BYTES: usize = 256 * 1024;
/// Groups that are read ahead.
const GROUPS_AHEAD: usize = 8;

/// Some lines, in order.
#[derive(Default, Debug)]
pub struct Group {
    /// Line number and size of each of `records`.
    pub lines: Vec<LineInfo>,
    /// To be sent.
    pub records: Vec<v1::Record>,
    /// Lines that cannot be records, with why.
    pub refused: Vec<(u64, Refusal)>,
}

/// Where a record came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineInfo {
    /// From 1.
    pub line: u64,
    /// Key, value and headers.
    pub bytes: u64,
}

/// What the thread sends: groups, and at the end nothing or why it stopped.
pub type Groups = mpsc::Receiver<io::Result<Group>>;

/// Standard input, or the file if one is named.
pub fn open(args: &ProduceArgs) -> io::Result<Box<dyn Read + Send>> {
    Ok(match &args.file {
        Some(path) => Box::new(File::open(path)?),
        None => Box::new(io::stdin()),
    })
}

/// Starts reading.
pub fn start(input: impl Read + Send + 'static, args: &ProduceArgs) -> io::Result<Groups> {
    let maker = RecordMaker::new(args);
    let (groups, receiver) = mpsc::channel(GROUPS_AHEAD);
    thread::Builder::new().name("input".into()).spawn(move || {
        let mut lines = Lines::new(input);
        loop {
            let (group, last) = match maker.group(&mut lines) {
                Ok(group) if group.is_empty() => return,
                Ok(group) => (Ok(group), false),
                Err(error) => (Err(error), true),
            };
            // Nobody takes more: the command is ending.
            if groups.blocking_send(group).is_err() || last {
                return;
            }
        }
    })?;
    Ok(receiver)
}

impl Group {
    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.refused.is_empty()
    }
}

/// From lines to records.
struct RecordMaker {
    format: LineFormat,
    headers: Vec<v1::Header>,
    partition: Option<u32>,
}

impl RecordMaker {
    fn new(args: &ProduceArgs) -> Self {
        let header = |pair: &crate::args::Pair| v1::Header {
            name: pair.name.clone(),
            value: Some(pair.value.clone().into()),
        };
        Self {
            format: LineFormat::new(args),
            headers: args.header.iter().map(header).collect(),
            partition: args.partition,
        }
    }

    /// The next lines; empty at the end. Waits for one line, then takes what is there.
    fn group<R: Read>(&self, lines: &mut Lines<R>) -> io::Result<Group> {
        let mut group = Group::default();
        let mut bytes = 0;
        while let Some((number, line)) = lines.next_line()? {
            match line {
                Line::Whole(line) => {
                    bytes += line.len();
                    let record = self.record(&line);
                    let bytes = self.bytes(&record);
                    group.lines.push(LineInfo {
                        line: number,
                        bytes,
                    });
                    group.records.push(record);
                }
                Line::TooLong(length) => group.refused.push((number, too_long(length))),
            }
            if !lines.has_line() || group.lines.len() >= GROUP_RECORDS || bytes >= GROUP_BYTES {
                break;
            }
        }
        Ok(group)
    }

    fn record(&self, line: &bytes::Bytes) -> v1::Record {
        let (key, value) = self.format.split(line);
        v1::Record {
            key,
            value,
            headers: self.headers.clone(),
            partition: self.partition,
            ..v1::Record::default()
        }
    }

    fn bytes(&self, record: &v1::Record) -> u64 {
        let headers = self
            .headers
            .iter()
            .map(|h| (h.name.as_bytes(), h.value.as_deref()));
        record_bytes(record.key.as_deref(), record.value.as_deref(), headers) as u64
    }
}

fn too_long(length: u64) -> Refusal {
    let message =
        format!("the line has {length} bytes; no topic takes a record above {LINE_BYTES_MAX}");
    Refusal::new(ErrorCode::RecordTooLarge, message).with_limit(
        "line",
        LINE_BYTES_MAX,
        length,
        "bytes",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn args(line: &str) -> ProduceArgs {
        let cli = Cli::try_parse_from(line.split(' ')).expect("a good line");
        match cli.command {
            Command::Produce(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_record_has_what_the_options_say() {
        let maker = RecordMaker::new(&args(
            "talweg produce t --key-separator : --partition 4 --header a=1 --header a=",
        ));
        let group = maker
            .group(&mut Lines::new(&b"k:v\nplain\n"[..]))
            .expect("memory");
        let header = |value: &'static [u8]| v1::Header {
            name: "a".into(),
            value: Some(value.into()),
        };
        let keyed = v1::Record {
            key: Some("k".into()),
            value: Some("v".into()),
            headers: vec![header(b"1"), header(b"")],
            partition: Some(4),
            ..v1::Record::default()
        };
        let unkeyed = v1::Record {
            key: None,
            value: Some("plain".into()),
            ..keyed.clone()
        };
        assert_eq!(group.records, [keyed, unkeyed]);
        // Key, value, and two headers of 2 and 1 bytes.
        assert_eq!(
            group.lines,
            [
                LineInfo { line: 1, bytes: 5 },
                LineInfo { line: 2, bytes: 8 }
            ]
        );
    }

    #[test]
    fn lines_keep_their_numbers_over_groups_and_over_lines_too_long() {
        let long = vec![b'x'; LINE_BYTES_MAX + 1];
        let mut input = b"1\n".repeat(GROUP_RECORDS);
        input.extend_from_slice(&long);
        input.extend_from_slice(b"\nlast");
        let (maker, mut lines) = (
            RecordMaker::new(&args("talweg produce t")),
            Lines::new(&input[..]),
        );
        let mut seen = Vec::new();
        let mut refused = Vec::new();
        loop {
            let group = maker.group(&mut lines).expect("memory");
            if group.is_empty() {
                break;
            }
            assert!(group.records.len() <= GROUP_RECORDS);
            seen.extend(group.lines.iter().map(|info| info.line));
            refused.extend(group.refused);
        }
        let expected: Vec<u64> = (1..=1000).chain([1002]).collect();
        assert_eq!(seen, expected);
        assert_eq!(refused.len(), 1);
        assert_eq!(
            (refused[0].0, refused[0].1.code),
            (1001, ErrorCode::RecordTooLarge)
        );
    }
}
