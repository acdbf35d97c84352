//! Records inside an (unpacked) batch.
//!
//! ```text
//! varint length │ i8 attributes = 0 │ varlong timestamp delta │ varint offset delta
//!               │ varint key length (-1: null), key │ varint value length (-1: null), value
//!               │ varint header count │ per header: varint name length, name,
//!               │                       varint value length (-1: null), value
//! ```
//!
//! [`Walker`] is the only parser of these bytes. It borrows, allocates nothing
//! and holds each record to its stated length exactly.

use crate::codec;
use crate::error::{BatchError, RecordFault};
use crate::header::{BatchHeader, HEADER_BYTES, parse_whole};
use crate::varint::{take_i32, take_i64};
use bytes::Bytes;
use talweg_types::{Compression, TimestampMs};

/// A record header: its name (UTF-8) and its value; null and empty differ.
pub type HeaderRef<'a> = (&'a [u8], Option<&'a [u8]>);

/// One record. `None` is null, which is not the same as empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Offset minus the batch's base offset.
    pub offset_delta: i32,
    pub timestamp: TimestampMs,
    pub key: Option<Bytes>,
    pub value: Option<Bytes>,
    /// Names are UTF-8 and may repeat; order is kept.
    pub headers: Vec<(Bytes, Option<Bytes>)>,
}

impl Record {
    /// The headers, borrowed.
    pub fn header_refs(&self) -> impl Iterator<Item = HeaderRef<'_>> + Clone {
        self.headers
            .iter()
            .map(|(name, value)| (&name[..], value.as_deref()))
    }
}

/// What `max.record.bytes` counts: key, value, header names and header values.
pub fn record_bytes<'a>(
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: impl IntoIterator<Item = HeaderRef<'a>>,
) -> usize {
    let fields = key.map_or(0, <[u8]>::len) + value.map_or(0, <[u8]>::len);
    headers
        .into_iter()
        .fold(fields, |sum, header| sum + header_bytes(header))
}

pub(crate) fn header_bytes((name, value): HeaderRef<'_>) -> usize {
    name.len() + value.map_or(0, <[u8]>::len)
}

/// Decodes the records of exactly one whole batch, after its CRC was checked:
/// of any origin, also control batches and what compaction left (gaps between
/// offsets). Unpacks at most `max_unpacked` bytes.
///
/// Decoded records can take tens of times the unpacked bytes (a header of two
/// bytes becomes 64); where that matters, take them one by one from
/// [`Records`].
pub fn decode_records(batch: &Bytes, max_unpacked: usize) -> Result<Vec<Record>, BatchError> {
    Records::new(batch, max_unpacked)?.collect()
}

/// The records of one batch, decoded as they are asked for. Ends after its
/// first error.
///
/// Keys, values and headers share the batch's memory when it is uncompressed,
/// otherwise one buffer of the unpacked size.
#[derive(Clone, Debug)]
pub struct Records {
    header: BatchHeader,
    payload: Bytes,
    /// Bytes of `payload` already walked.
    walked: usize,
    /// Records given out.
    index: usize,
    /// The least offset delta that is still free.
    due: i32,
    ended: bool,
}

impl Records {
    /// Takes exactly one whole batch, after its CRC was checked, and unpacks
    /// it; see [`decode_records`].
    pub fn new(batch: &Bytes, max_unpacked: usize) -> Result<Self, BatchError> {
        let header = parse_whole(batch)?;
        let body = batch.slice(HEADER_BYTES..);
        let payload = match header.compression()? {
            Compression::None if body.len() > max_unpacked => {
                return Err(BatchError::UnpacksTooLarge {
                    limit: max_unpacked,
                });
            }
            Compression::None => body,
            codec => Bytes::from(codec::unpack(codec, &body, max_unpacked)?),
        };
        Ok(Self {
            header,
            payload,
            walked: 0,
            index: 0,
            due: 0,
            ended: false,
        })
    }

    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    fn try_next(&mut self) -> Result<Option<Record>, BatchError> {
        let mut walker = Walker::new(self.payload.get(self.walked..).unwrap_or_default());
        let stated = self.header.record_count;
        match (
            self.index < usize::try_from(stated).unwrap_or(0),
            walker.left(),
        ) {
            (true, 0) => Err(BatchError::RecordsMissing {
                stated,
                found: self.index,
            }),
            (true, _) => {
                let record = walker
                    .next_record()
                    .and_then(|raw| self.own(raw))
                    .map_err(|fault| fault.at(self.index))?;
                self.walked = self.payload.len() - walker.left();
                self.index += 1;
                self.due = record.offset_delta.saturating_add(1);
                Ok(Some(record))
            }
            (false, 0) => Ok(None),
            (false, bytes) => Err(BatchError::TrailingBytes { bytes }),
        }
    }

    fn own(&self, raw: RawRecord<'_>) -> Result<Record, RecordFault> {
        if raw.offset_delta < self.due || raw.offset_delta > self.header.last_offset_delta {
            let (expected, actual) = (self.due, raw.offset_delta);
            return Err(RecordFault::OffsetDelta { expected, actual });
        }
        let share = |slice: &[u8]| self.payload.slice_ref(slice);
        let mut headers = Vec::new();
        raw.headers.walk(|(name, value)| {
            headers.push((share(name), value.map(share)));
            Ok(())
        })?;
        Ok(Record {
            offset_delta: raw.offset_delta,
            timestamp: match self.header.is_log_append_time() {
                true => self.header.max_timestamp,
                false => raw.timestamp(self.header.first_timestamp)?,
            },
            key: raw.key.map(share),
            value: raw.value.map(share),
            headers,
        })
    }
}

impl Iterator for Records {
    type Item = Result<Record, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.try_next();
        self.ended = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}

/// A record as it lies in the payload.
#[derive(Clone, Copy)]
pub(crate) struct RawRecord<'a> {
    pub timestamp_delta: i64,
    pub offset_delta: i32,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub headers: RawHeaders<'a>,
}

impl RawRecord<'_> {
    #[inline]
    pub fn timestamp(&self, first: TimestampMs) -> Result<TimestampMs, RecordFault> {
        match first.0.checked_add(self.timestamp_delta) {
            Some(timestamp) => Ok(TimestampMs(timestamp)),
            None => Err(RecordFault::TimestampOverflow {
                delta: self.timestamp_delta,
            }),
        }
    }

    #[inline]
    pub fn key_value_bytes(&self) -> usize {
        self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len)
    }
}

/// The headers of one record: `count` of them must fill `bytes` exactly.
#[derive(Clone, Copy)]
pub(crate) struct RawHeaders<'a> {
    pub count: u32,
    bytes: &'a [u8],
}

impl<'a> RawHeaders<'a> {
    /// Shows every header to `visit` and checks them on the way.
    #[inline]
    pub fn walk(
        self,
        mut visit: impl FnMut(HeaderRef<'a>) -> Result<(), RecordFault>,
    ) -> Result<(), RecordFault> {
        let mut rest = self.bytes;
        for _ in 0..self.count {
            visit(take_header(&mut rest).map_err(within_record)?)?;
        }
        match rest.len() {
            0 => Ok(()),
            bytes => Err(RecordFault::Unaccounted(bytes)),
        }
    }
}

/// Walks the records of an unpacked payload.
pub(crate) struct Walker<'a> {
    rest: &'a [u8],
}

impl<'a> Walker<'a> {
    pub fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload }
    }

    /// Bytes not yet walked.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// The next record; its headers are checked by [`RawHeaders::walk`] only.
    #[inline]
    pub fn next_record(&mut self) -> Result<RawRecord<'a>, RecordFault> {
        let length = take_i32(&mut self.rest)?;
        let bytes = usize::try_from(length).map_err(|_| RecordFault::NegativeLength(length))?;
        let Some((mut body, after)) = self.rest.split_at_checked(bytes) else {
            return Err(RecordFault::BeyondBatch {
                length,
                left: self.rest.len(),
            });
        };
        self.rest = after;
        read_body(&mut body).map_err(within_record)
    }
}

/// Within a record a cut varint means that its length is too small.
fn within_record(fault: RecordFault) -> RecordFault {
    match fault {
        RecordFault::VarintCut => RecordFault::FieldsMissing,
        other => other,
    }
}

#[inline]
fn read_body<'a>(rest: &mut &'a [u8]) -> Result<RawRecord<'a>, RecordFault> {
    let (attributes, after) = rest.split_first().ok_or(RecordFault::FieldsMissing)?;
    if *attributes != 0 {
        return Err(RecordFault::Attributes(*attributes));
    }
    *rest = after;
    Ok(RawRecord {
        timestamp_delta: take_i64(rest)?,
        offset_delta: take_i32(rest)?,
        key: take_nullable(rest, |length, left| RecordFault::KeyLength { length, left })?,
        value: take_nullable(rest, |length, left| RecordFault::ValueLength {
            length,
            left,
        })?,
        headers: read_headers(rest)?,
    })
}

#[inline]
fn read_headers<'a>(rest: &mut &'a [u8]) -> Result<RawHeaders<'a>, RecordFault> {
    let count = take_i32(rest)?;
    let refused = RecordFault::HeaderCount {
        count,
        left: rest.len(),
    };
    let headers = u32::try_from(count).map_err(|_| refused)?;
    // A header takes at least two bytes, its two lengths.
    if headers as usize > rest.len() / 2 {
        return Err(refused);
    }
    if headers == 0 && !rest.is_empty() {
        return Err(RecordFault::Unaccounted(rest.len()));
    }
    Ok(RawHeaders {
        count: headers,
        bytes: rest,
    })
}

fn take_header<'a>(rest: &mut &'a [u8]) -> Result<HeaderRef<'a>, RecordFault> {
    let name = take_nullable(rest, |length, left| RecordFault::HeaderNameLength {
        length,
        left,
    })?
    .ok_or(RecordFault::HeaderNameNull)?;
    if std::str::from_utf8(name).is_err() {
        return Err(RecordFault::HeaderNameNotUtf8);
    }
    let value = take_nullable(rest, |length, left| RecordFault::HeaderValueLength {
        length,
        left,
    })?;
    Ok((name, value))
}

/// A length and that many bytes; -1 is null, any other negative is refused.
#[inline]
fn take_nullable<'a>(
    rest: &mut &'a [u8],
    refused: impl Fn(i32, usize) -> RecordFault,
) -> Result<Option<&'a [u8]>, RecordFault> {
    let length = take_i32(rest)?;
    if length == -1 {
        return Ok(None);
    }
    let bytes = usize::try_from(length).map_err(|_| refused(length, rest.len()))?;
    let Some((field, after)) = rest.split_at_checked(bytes) else {
        return Err(refused(length, rest.len()));
    };
    *rest = after;
    Ok(Some(field))
}
