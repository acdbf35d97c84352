//! All batches of the files in order, and what is wrong between them.

use super::{DumpError, LogFiles, SegmentFile};
use crate::{
    epochs::Epochs,
    fs::LogFile,
    sidecar::seal::SealFile,
    verify::{assess_file, bad_blocks},
    walk::{DATA_CHUNK, HEADER_CHUNK, Step, Walker},
};
use bytes::Bytes;
use std::{fs::File, io, os::unix::fs::FileExt, sync::Arc};
use talweg_batch::{BatchHeader, Record, decode_records};
use talweg_types::{Offset, limits};

/// A batch as it lies in a segment.
pub struct BatchView<'a> {
    pub segment: &'a SegmentFile,
    /// Byte position in the segment.
    pub position: u64,
    pub header: BatchHeader,
    /// The whole batch.
    pub bytes: Bytes,
}

/// What a walk meets.
pub enum Event<'a> {
    Batch(BatchView<'a>),
    /// These offsets cannot be believed, or are missing.
    Damage {
        segment: &'a SegmentFile,
        position: u64,
        from: Offset,
        next_good: Offset,
    },
    /// Behind the last good batch of the last segment: a write under way, or a torn tail.
    Tail {
        segment: &'a SegmentFile,
        position: u64,
        bytes: u64,
    },
}

impl BatchView<'_> {
    /// The records, unpacked.
    pub fn records(&self) -> Result<Vec<Record>, DumpError> {
        decode_records(&self.bytes, limits::UNPACKED_BATCH_BYTES_MAX as usize).map_err(|error| {
            DumpError::Undecodable {
                offset: self.header.base_offset,
                reason: error.to_string(),
            }
        })
    }
}

/// A file that is only read.
pub(super) struct ReadOnly(pub File);

impl ReadOnly {
    pub(super) fn open(segment: &SegmentFile) -> Result<Self, DumpError> {
        File::open(&segment.path)
            .map(Self)
            .map_err(|e| DumpError::io(&segment.path, e))
    }
}

impl LogFile for ReadOnly {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        let mut read = 0;
        while read < buf.len() {
            match self.0.read_at(&mut buf[read..], position + read as u64) {
                Ok(0) => break,
                Ok(n) => read += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    fn try_read_at(&self, buf: &mut [u8], position: u64) -> io::Result<Option<usize>> {
        self.read_at(buf, position).map(Some)
    }

    fn write_at(&self, _: &[io::IoSlice<'_>], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&self) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn modified_ms(&self) -> io::Result<i64> {
        let since = self
            .0
            .metadata()?
            .modified()?
            .duration_since(std::time::UNIX_EPOCH);
        Ok(since.map_or(0, |age| i64::try_from(age.as_millis()).unwrap_or(i64::MAX)))
    }
}

impl LogFiles {
    /// Every batch in order, and every gap. With `verify`, checksums of batches
    /// and of sealed blocks are checked; else only that headers follow one
    /// another. `visit` returns whether to go on.
    pub fn for_each(
        &self,
        verify: bool,
        visit: &mut dyn FnMut(Event<'_>) -> Result<bool, DumpError>,
    ) -> Result<(), DumpError> {
        let epochs = self
            .record()
            .map_or_else(Epochs::default, |record| Epochs::new(record.epochs.clone()));
        let mut expected = None;
        for (index, segment) in self.segments.iter().enumerate() {
            if let Some(from) = expected.filter(|from| *from < segment.base) {
                let next_good = segment.base;
                if !visit(Event::Damage {
                    segment,
                    position: 0,
                    from,
                    next_good,
                })? {
                    return Ok(());
                }
            }
            let next_base = self.segments.get(index + 1).map(|next| next.base);
            match self.one(segment, next_base, verify, &epochs, visit)? {
                Some(end) => expected = Some(end),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// One segment; its end, or `None` when the visitor had enough.
    fn one(
        &self,
        segment: &SegmentFile,
        next_base: Option<Offset>,
        verify: bool,
        epochs: &Epochs,
        visit: &mut dyn FnMut(Event<'_>) -> Result<bool, DumpError>,
    ) -> Result<Option<Offset>, DumpError> {
        let io = |e| DumpError::io(&segment.path, e);
        let file = ReadOnly::open(segment)?;
        let seal = self.seal(segment.base);
        let end = seal.map(|seal| seal.end).or(next_base);
        let mut known = seal.map_or_else(Vec::new, |seal| seal.damage.clone());
        if verify && let Some(end) = end {
            let blocks = seal
                .map_or(Ok(Vec::new()), |seal: &SealFile| bad_blocks(&file, seal))
                .map_err(io)?;
            let found = assess_file(
                &file,
                segment.bytes,
                segment.base,
                end,
                &blocks,
                epochs,
                known.clone(),
            )
            .map_err(io)?;
            known.extend(found);
            known.sort_unstable_by_key(|range| (range.start_position, range.start));
        }
        let chunk = if verify { DATA_CHUNK } else { HEADER_CHUNK };
        let mut walk = Walker::new(&file, 0, segment.bytes, segment.base, chunk);
        loop {
            let here = known
                .iter()
                .find(|range| range.begins_at(walk.position, walk.expected));
            if let Some(range) = here {
                let event = Event::Damage {
                    segment,
                    position: range.start_position,
                    from: range.start,
                    next_good: range.end,
                };
                if range.start < range.end && !visit(event)? {
                    return Ok(None);
                }
                walk.jump(range.end_position, range.end);
                continue;
            }
            let step = walk.step().map_err(io)?;
            let bad = match step {
                Step::End => return Ok(Some(walk.expected)),
                Step::Bad(position) => position,
                Step::Batch(header, position) => {
                    if !verify || walk.crc_fits(&header, position).map_err(io)? {
                        let bytes = Bytes::copy_from_slice(
                            walk.bytes(position, header.total_bytes()).map_err(io)?,
                        );
                        if !visit(Event::Batch(BatchView {
                            segment,
                            position,
                            header,
                            bytes,
                        }))? {
                            return Ok(None);
                        }
                        continue;
                    }
                    walk.jump(position, header.base_offset);
                    position
                }
            };
            let from = walk.expected;
            let Some((header, next)) = walk.resync(bad, Offset::MAX).map_err(io)? else {
                let tail = Event::Tail {
                    segment,
                    position: bad,
                    bytes: segment.bytes - bad,
                };
                return Ok(visit(tail)?.then_some(from));
            };
            if !visit(Event::Damage {
                segment,
                position: bad,
                from,
                next_good: header.base_offset,
            })? {
                return Ok(None);
            }
            walk.jump(next, header.base_offset);
        }
    }

    /// The file of a segment, for look-ups.
    pub(super) fn file(&self, segment: &SegmentFile) -> Result<Arc<ReadOnly>, DumpError> {
        ReadOnly::open(segment).map(Arc::new)
    }
}
