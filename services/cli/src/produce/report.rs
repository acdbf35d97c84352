//! What became of each line, as it is told: acknowledged ones on standard
//! output (as JSON only), all others on standard error, and a summary.

use super::source::LineInfo;
use serde_json::json;
use std::{
    io::{self, Write},
    time::Duration,
};
use talweg_client::Outcome;
use talweg_kit::errors::Refusal;
use talweg_types::TimestampMs;

/// As text, errors beyond these are only counted.
const TEXT_ERRORS_MAX: u64 = 20;

/// Counts, and writes lines as outcomes come in.
pub struct Report<O, E> {
    json: bool,
    out: Option<O>,
    err: E,
    /// How many lines ended how.
    pub tally: Tally,
}

/// How many lines ended how.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Done, with an offset.
    pub acknowledged: u64,
    /// Sent with acks 0 and not refused.
    pub sent: u64,
    /// Certainly not in the log.
    pub failed: u64,
    /// Perhaps in the log.
    pub unknown: u64,
    /// Key, value and header bytes of acknowledged and sent records.
    pub bytes: u64,
}

impl Tally {
    /// Exit code 0 or 1.
    pub fn is_success(&self) -> bool {
        self.failed == 0 && self.unknown == 0
    }
}

impl<O: Write, E: Write> Report<O, E> {
    /// Nothing has happened yet.
    pub fn new(json: bool, out: O, err: E) -> Self {
        Self {
            json,
            out: Some(out),
            err,
            tally: Tally::default(),
        }
    }

    /// Tells one line's outcome.
    pub fn outcome(&mut self, info: LineInfo, outcome: Outcome) -> io::Result<()> {
        match outcome {
            // Without a time nobody has answered: acks 0.
            Outcome::Done(done) if done.timestamp == TimestampMs::NONE => {
                self.tally.sent += 1;
                self.tally.bytes += info.bytes;
                Ok(())
            }
            Outcome::Done(done) => {
                self.tally.acknowledged += 1;
                self.tally.bytes += info.bytes;
                if !self.json {
                    return Ok(());
                }
                // Null: a repeat too old for its offset to be remembered.
                let line = json!({
                    "line": info.line,
                    "partition": done.partition.0,
                    "offset": done.offset.map(|offset| offset.0),
                    "timestamp": done.timestamp.0,
                });
                self.write_out(&line.to_string())
            }
            Outcome::Refused(refusal) => self.refused(info.line, &refusal),
            Outcome::Unknown(refusal) => {
                self.tally.unknown += 1;
                self.error(info.line, "unknown", &refusal)
            }
        }
    }

    /// Tells that a line is certainly not in the log.
    pub fn refused(&mut self, line: u64, refusal: &Refusal) -> io::Result<()> {
        self.tally.failed += 1;
        self.error(line, "failed", refusal)
    }

    fn error(&mut self, line: u64, outcome: &str, refusal: &Refusal) -> io::Result<()> {
        if self.json {
            let value = json!({ "error": refusal.json(), "line": line, "outcome": outcome });
            return writeln!(self.err, "{value}");
        }
        let told = self.tally.failed + self.tally.unknown;
        if told > TEXT_ERRORS_MAX {
            return Ok(());
        }
        let message = refusal.message.replace(['\n', '\r'], " ");
        writeln!(
            self.err,
            "line {line} {outcome}: {message} [{}]",
            refusal.name()
        )?;
        if told == TEXT_ERRORS_MAX {
            writeln!(
                self.err,
                "further errors are only counted; --json lists all"
            )?;
        }
        Ok(())
    }

    /// A reader of our output that has gone stops the telling, not the sending.
    fn write_out(&mut self, line: &str) -> io::Result<()> {
        let Some(out) = &mut self.out else {
            return Ok(());
        };
        match writeln!(out, "{line}") {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.out = None;
                Ok(())
            }
            other => other,
        }
    }

    /// Brings out what is buffered.
    pub fn flush(&mut self) -> io::Result<()> {
        match self.out.as_mut().map_or(Ok(()), Write::flush) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.out = None;
                Ok(())
            }
            other => other,
        }
    }

    /// The last line.
    pub fn summary(&mut self, elapsed: Duration) -> io::Result<()> {
        let tally = self.tally;
        let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let line = if self.json {
            json!({ "summary": {
                "acknowledged": tally.acknowledged,
                "sent": tally.sent,
                "failed": tally.failed,
                "unknown": tally.unknown,
                "bytes": tally.bytes,
                "elapsed_ms": elapsed_ms,
            }})
            .to_string()
        } else {
            let sent = if tally.sent > 0 {
                format!("{} sent, ", tally.sent)
            } else {
                String::new()
            };
            format!(
                "{sent}{} acknowledged, {} failed, {} unknown, {} bytes in {elapsed_ms} ms",
                tally.acknowledged, tally.failed, tally.unknown, tally.bytes
            )
        };
        self.write_out(&line)?;
        self.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use talweg_client::Delivered;
    use talweg_kit::errors::ErrorCode;
    use talweg_types::{Offset, PartitionIndex};

    fn done(offset: Option<i64>) -> Outcome {
        at(TimestampMs(77), offset)
    }

    fn at(timestamp: TimestampMs, offset: Option<i64>) -> Outcome {
        Outcome::Done(Delivered {
            partition: PartitionIndex(3),
            offset: offset.map(Offset),
            timestamp,
            durability: Default::default(),
            duplicate: false,
        })
    }

    fn info(line: u64) -> LineInfo {
        LineInfo { line, bytes: 10 }
    }

    fn lines(bytes: &[u8]) -> Vec<Value> {
        let text = std::str::from_utf8(bytes).expect("UTF-8");
        text.lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    }

    #[test]
    fn each_acknowledged_line_and_a_summary_stand_on_standard_output() {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut report = Report::new(true, &mut out, &mut err);
        report.outcome(info(1), done(Some(5))).expect("memory");
        report
            .outcome(info(2), Outcome::Refused(Refusal::unavailable("no")))
            .expect("memory");
        let unknown = Refusal::new(ErrorCode::OutcomeUnknown, "broke");
        report
            .outcome(info(3), Outcome::Unknown(unknown))
            .expect("memory");
        report.outcome(info(4), done(None)).expect("memory");
        report.summary(Duration::from_millis(9)).expect("memory");
        assert!(!report.tally.is_success());
        assert_eq!(
            lines(&out),
            [
                json!({"line": 1, "partition": 3, "offset": 5, "timestamp": 77}),
                json!({"line": 4, "partition": 3, "offset": null, "timestamp": 77}),
                json!({"summary": {"acknowledged": 2, "sent": 0, "failed": 1, "unknown": 1, "bytes": 20, "elapsed_ms": 9}}),
            ]
        );
        let errors = lines(&err);
        assert_eq!(
            (&errors[0]["line"], &errors[0]["outcome"]),
            (&json!(2), &json!("failed"))
        );
        assert_eq!(errors[0]["error"]["code"], "UNAVAILABLE");
        assert_eq!(
            (&errors[1]["line"], &errors[1]["outcome"]),
            (&json!(3), &json!("unknown"))
        );
    }

    #[test]
    fn one_unknown_record_is_enough_for_a_failure() {
        for (tally, success) in [
            (Tally::default(), true),
            (
                Tally {
                    acknowledged: 5,
                    sent: 2,
                    ..Tally::default()
                },
                true,
            ),
            (
                Tally {
                    acknowledged: 5,
                    failed: 1,
                    ..Tally::default()
                },
                false,
            ),
            (
                Tally {
                    acknowledged: 5,
                    unknown: 1,
                    ..Tally::default()
                },
                false,
            ),
        ] {
            assert_eq!(tally.is_success(), success, "{tally:?}");
        }
    }

    #[test]
    fn with_acks_0_records_are_sent_and_not_acknowledged() {
        let mut report = Report::new(true, Vec::new(), Vec::new());
        report
            .outcome(info(1), at(TimestampMs::NONE, None))
            .expect("memory");
        assert_eq!(
            report.tally,
            Tally {
                sent: 1,
                bytes: 10,
                ..Tally::default()
            }
        );
        assert_eq!(
            report.out.as_deref(),
            Some(&[][..]),
            "no line claims an offset"
        );
    }

    #[test]
    fn a_closed_pipe_ends_the_telling_and_not_the_counting() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut report = Report::new(true, Closed, Vec::new());
        for line in 1..=3 {
            report
                .outcome(info(line), done(Some(0)))
                .expect("a closed pipe is no error");
        }
        report
            .summary(Duration::ZERO)
            .expect("a closed pipe is no error");
        assert_eq!(report.tally.acknowledged, 3);
    }

    #[test]
    fn as_text_many_errors_are_cut_and_counted() {
        let mut report = Report::new(false, Vec::new(), Vec::new());
        for line in 1..=100 {
            report
                .refused(line, &Refusal::unavailable("two\nlines"))
                .expect("memory");
        }
        assert_eq!(report.tally.failed, 100);
        let text = String::from_utf8(report.err).expect("UTF-8");
        assert_eq!(text.lines().count() as u64, TEXT_ERRORS_MAX + 1);
    }
}
