//! `talweg log dump`: everything in order, or only what is wrong, or a digest.

use super::{refused, show};
use crate::{
    args::{DumpArgs, Globals},
    failure::Failure,
    out,
};
use serde_json::{Value, json};
use std::io::{self, BufWriter, StdoutLock, Write};
use talweg_log::dump::{BatchView, DumpError, Event, LogFiles};
use talweg_types::Offset;

/// Of an index that is made by scanning: the server's default.
const INDEX_INTERVAL_BYTES: u32 = 4096;

/// Runs the command.
pub fn run(globals: &Globals, args: &DumpArgs) -> Result<(), Failure> {
    let files = LogFiles::open(&args.path).map_err(|error| refused(&error))?;
    if args.digest {
        let to = args.to.map_or(Offset::MAX, Offset);
        return digest(globals, &files, to, args.newest);
    }
    let mut printer = Printer {
        out: BufWriter::new(io::stdout().lock()),
        json: globals.json,
        quiet: args.verify,
        found: Found::default(),
    };
    let walked = printer.walk(&files, args.verify);
    let flushed = printer.out.flush();
    walked?;
    flushed.map_err(|error| Failure::output(&error))?;
    if args.verify && printer.found.problems > 0 {
        Err(Failure::Reported)
    } else {
        Ok(())
    }
}

fn digest(globals: &Globals, files: &LogFiles, to: Offset, newest: bool) -> Result<(), Failure> {
    let digest = match newest {
        true => files.digest_newest(to),
        false => files.digest(to),
    };
    let digest = digest.map_err(|error| refused(&error))?;
    let value = json!({
        "sha256": digest.sha256,
        "from_offset": digest.from.0,
        "to_offset": digest.to.0,
        "records": digest.records,
    });
    out::print(globals.json, &value, || {
        format!(
            "{}  offsets {} to {}, {} records",
            digest.sha256, digest.from, digest.to, digest.records
        )
    })
}

/// What a walk has met.
#[derive(Default)]
struct Found {
    batches: u64,
    records: u64,
    problems: u64,
    end: Option<i64>,
}

struct Printer<'a> {
    out: BufWriter<StdoutLock<'a>>,
    json: bool,
    /// Only problems and the summary.
    quiet: bool,
    found: Found,
}

/// Ends a walk from inside: either the output or the log has failed.
enum Stop {
    Output(io::Error),
    Log(DumpError),
}

impl From<Stop> for Failure {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Output(error) => Self::output(&error),
            Stop::Log(error) => refused(&error),
        }
    }
}

impl Printer<'_> {
    fn walk(&mut self, files: &LogFiles, verify: bool) -> Result<(), Failure> {
        for found in &files.sidecars {
            let unreadable = found.content.is_err();
            self.found.problems += u64::from(unreadable);
            self.line("sidecar", show::sidecar(found), unreadable)
                .map_err(Stop::Output)?;
        }
        if !self.quiet {
            for start in files.epochs().map_err(Stop::Log)? {
                self.line("epoch", show::epoch(&start), false)
                    .map_err(Stop::Output)?;
            }
        }
        // A walk can only be ended by an error of the log's own: the output's is kept beside.
        let mut output = Ok(());
        let mut segment = None;
        let walked = files.for_each(verify, &mut |event| {
            output = self.event(files, &event, &mut segment);
            match &output {
                Ok(()) => Ok(true),
                Err(Stop::Log(error)) => Err(error.clone()),
                Err(Stop::Output(_)) => Ok(false),
            }
        });
        output?;
        walked.map_err(Stop::Log)?;
        self.summary(files).map_err(Stop::Output)?;
        Ok(())
    }

    fn event(
        &mut self,
        files: &LogFiles,
        event: &Event<'_>,
        last: &mut Option<Offset>,
    ) -> Result<(), Stop> {
        let segment = match event {
            Event::Batch(batch) => batch.segment,
            Event::Damage { segment, .. } | Event::Tail { segment, .. } => segment,
        };
        if *last != Some(segment.base) {
            *last = Some(segment.base);
            self.segment(files, segment)?;
        }
        match event {
            Event::Batch(batch) => self.batch(batch),
            Event::Damage {
                position,
                from,
                next_good,
                ..
            } => {
                self.found.problems += 1;
                let value = json!({
                    "segment": segment.path.display().to_string(),
                    "position": position,
                    "from_offset": from.0,
                    "next_good_offset": next_good.0,
                });
                self.line("damage", value, true).map_err(Stop::Output)
            }
            // A write under way looks the same: told, but no problem.
            Event::Tail {
                position, bytes, ..
            } => {
                let value = json!({ "segment": segment.path.display().to_string(), "position": position, "bytes": bytes });
                self.line("tail", value, true).map_err(Stop::Output)
            }
        }
    }

    fn segment(
        &mut self,
        files: &LogFiles,
        segment: &talweg_log::dump::SegmentFile,
    ) -> Result<(), Stop> {
        if self.quiet {
            return Ok(());
        }
        self.line("segment", show::segment(segment), false)
            .map_err(Stop::Output)?;
        // An empty or damaged beginning has no entries to show.
        let entries = files
            .lookup(segment.base, INDEX_INTERVAL_BYTES, None)
            .map_or_else(|_| Vec::new(), |found| found.entries);
        let entries: Vec<Value> = entries.iter().map(show::entry).collect();
        let value = json!({ "interval_bytes": INDEX_INTERVAL_BYTES, "entries": entries });
        self.line("index", value, false).map_err(Stop::Output)
    }

    fn batch(&mut self, batch: &BatchView<'_>) -> Result<(), Stop> {
        self.found.batches += 1;
        self.found.end = Some(batch.header.next_offset().0);
        let records = match batch.records() {
            Ok(records) => records,
            Err(error) => {
                self.found.problems += 1;
                let mut value = show::batch(&batch.header, batch.position);
                value.insert("undecodable".into(), error.to_string().into());
                return self.line("batch", value.into(), true).map_err(Stop::Output);
            }
        };
        self.found.records += records.len() as u64;
        self.line(
            "batch",
            show::batch(&batch.header, batch.position).into(),
            false,
        )
        .map_err(Stop::Output)?;
        if !self.quiet {
            for record in &records {
                self.line("record", show::record(&batch.header, record), false)
                    .map_err(Stop::Output)?;
            }
        }
        Ok(())
    }

    fn summary(&mut self, files: &LogFiles) -> io::Result<()> {
        let value = json!({
            "segments": files.segments.len(),
            "batches": self.found.batches,
            "records": self.found.records,
            "first_offset": files.segments.first().map(|segment| segment.base.0),
            "end_offset": self.found.end,
            "problems": self.found.problems,
        });
        self.line("summary", value, true)
    }

    /// One line: `{"kind":{…}}`, or the kind and its fields for people.
    fn line(&mut self, kind: &str, value: Value, always: bool) -> io::Result<()> {
        if self.quiet && !always {
            return Ok(());
        }
        if self.json {
            return writeln!(self.out, "{}", json!({ kind: value }));
        }
        write!(self.out, "{kind}")?;
        for (name, field) in value.as_object().into_iter().flatten() {
            write!(self.out, " {name}={field}")?;
        }
        writeln!(self.out)
    }
}
