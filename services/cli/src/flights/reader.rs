//! The flights file: a header line, then one flight a line.
//!
//! Every row is checked as it is read, so that a changed or cut file is
//! refused here and never becomes a proof of something else.

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};
use thiserror::Error;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Rows of the file, header apart.
pub const ROWS: u64 = 336_776;
const HEADER: &str = "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,\
    flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour";
const FIELDS: usize = 19;
const TAILNUM: usize = 11;
const TIME_HOUR: usize = 18;
/// The longest row has under 120 bytes.
const ROW_BYTES_MAX: u64 = 4096;

/// One flight as a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flight {
    /// The tail number; null where the file says `NA`.
    pub key: Option<Bytes>,
    /// The line without its line feed.
    pub value: Bytes,
    /// `time_hour`, milliseconds since 1970.
    pub timestamp_ms: i64,
}

/// Why the file cannot be used.
#[derive(Debug, Error)]
pub enum FlightsError {
    /// It cannot be read or unpacked.
    #[error("the flights file cannot be read: {0}")]
    Io(#[from] io::Error),
    /// Its first line is not the one expected.
    #[error("the flights file begins with another header: {0:?}")]
    Header(String),
    /// A row is not a flight; lines count from 1, the header included.
    #[error("line {line} of the flights file: {reason}")]
    Row {
        /// Its number.
        line: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// Iterates over the rows.
pub struct Flights<R> {
    input: BufReader<R>,
    line: u64,
}

impl Flights<MultiGzDecoder<File>> {
    /// Opens the gzip file and checks its header line.
    pub fn open(path: &Path) -> Result<Self, FlightsError> {
        Self::new(MultiGzDecoder::new(File::open(path)?))
    }
}

impl<R: Read> Flights<R> {
    /// Reads unpacked CSV and checks its header line.
    pub fn new(input: R) -> Result<Self, FlightsError> {
        let mut flights = Self {
            input: BufReader::with_capacity(256 * 1024, input),
            line: 0,
        };
        let header = flights.read_line()?.unwrap_or_default();
        if header != HEADER.as_bytes() {
            return Err(FlightsError::Header(
                String::from_utf8_lossy(&header).into_owned(),
            ));
        }
        Ok(flights)
    }

    fn read_line(&mut self) -> Result<Option<Vec<u8>>, FlightsError> {
        let mut line = Vec::with_capacity(128);
        let read = (&mut self.input)
            .take(ROW_BYTES_MAX)
            .read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(None);
        }
        self.line += 1;
        if line.pop() != Some(b'\n') {
            return Err(self.bad("it has no line feed or is too long"));
        }
        Ok(Some(line))
    }

    fn bad(&self, reason: &'static str) -> FlightsError {
        FlightsError::Row {
            line: self.line,
            reason,
        }
    }

    fn flight(&self, line: Vec<u8>) -> Result<Flight, FlightsError> {
        let value = Bytes::from(line);
        let fields: Vec<&[u8]> = value.split(|byte| *byte == b',').collect();
        if fields.len() != FIELDS {
            return Err(self.bad("it has not 19 fields"));
        }
        let time = std::str::from_utf8(fields[TIME_HOUR])
            .ok()
            .and_then(|text| OffsetDateTime::parse(text, &Rfc3339).ok())
            .ok_or_else(|| self.bad("time_hour is not RFC 3339"))?;
        let key = match fields[TAILNUM] {
            b"NA" => None,
            b"" => return Err(self.bad("tailnum is empty")),
            tail => Some(value.slice_ref(tail)),
        };
        Ok(Flight {
            key,
            timestamp_ms: time.unix_timestamp() * 1000,
            value,
        })
    }
}

impl<R: Read> Iterator for Flights<R> {
    type Item = Result<Flight, FlightsError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.read_line() {
            Ok(None) => None,
            Ok(Some(line)) => Some(self.flight(line)),
            Err(error) => Some(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str =
        "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z";

    fn read(csv: String) -> Result<Vec<Flight>, FlightsError> {
        Flights::new(csv.as_bytes())?.collect()
    }

    #[test]
    fn a_row_becomes_a_record() {
        let na = ROW.replace("N14228", "NA");
        let flights = read(format!("{HEADER}\n{ROW}\n{na}\n")).expect("good rows");
        assert_eq!(flights[0].key.as_deref(), Some(&b"N14228"[..]));
        assert_eq!(flights[0].value, ROW.as_bytes());
        assert_eq!(flights[0].timestamp_ms, 1_357_034_400_000);
        assert_eq!(
            flights[1].key, None,
            "NA is no key, not a key of two letters"
        );
    }

    #[test]
    fn a_file_that_is_not_the_flights_is_refused() {
        for (csv, names) in [
            (String::new(), "header"),
            ("a,b\n".into(), "header"),
            (format!("{HEADER}\n{ROW}"), "line 2"),
            (format!("{HEADER}\n{ROW}\n{ROW},x\n"), "line 3"),
            (
                format!(
                    "{HEADER}\n{}\n",
                    ROW.replace("2013-01-01T10:00:00Z", "today")
                ),
                "time_hour",
            ),
            (
                format!("{HEADER}\n{}\n", ROW.replace("N14228", "")),
                "tailnum",
            ),
            (format!("{HEADER}\n{}\n", "x".repeat(10_000)), "too long"),
        ] {
            let error = read(csv).expect_err(names).to_string();
            assert!(error.contains(names), "{error}");
        }
    }

    #[test]
    fn the_file_in_the_repository_is_whole() {
        // Asked at run time: clones share the build cache.
        let here = std::env::var_os("CARGO_MANIFEST_DIR").expect("run by cargo");
        let path = Path::new(&here).join("../../integration/data/flights.csv.gz");
        let (mut rows, mut unkeyed) = (0u64, 0u64);
        for flight in Flights::open(&path).expect("the file lies in the repository") {
            rows += 1;
            unkeyed += u64::from(flight.expect("good row").key.is_none());
        }
        assert_eq!((rows, unkeyed), (ROWS, 2_512));
    }
}
