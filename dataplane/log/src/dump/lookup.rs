//! How the log finds an offset: bisect the segments, take the nearest index
//! entry, scan at most one index interval.

use super::{DumpError, LogFiles, SegmentFile};
use crate::{
    index::{Index, IndexBuilder},
    kv::IndexKv,
    walk::{HEADER_CHUNK, Step, Walker},
};
use talweg_types::{Offset, TimestampMs};

/// An entry of the sparse offset index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SparseEntry {
    pub offset: Offset,
    pub position: u64,
}

/// The way to an offset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lookup {
    pub offset: Offset,
    pub segment: SegmentFile,
    /// Segments looked at in the bisection.
    pub segments_compared: u32,
    /// The entry the scan began at; the segment's start when none is below.
    pub entry: SparseEntry,
    /// Entries of the segment; those of an index made by scanning, or none when
    /// the store was asked.
    pub entries: Vec<SparseEntry>,
    /// Whether the entry came from the index store.
    pub from_store: bool,
    /// The batch that holds the offset.
    pub batch_base: Offset,
    pub batch_position: u64,
    pub batch_bytes: u64,
    /// From the entry to the batch: what was read after the bisection.
    pub scanned_bytes: u64,
    pub scanned_batches: u64,
    /// Records from the entry up to the offset, that one included.
    pub scanned_records: u64,
}

impl LogFiles {
    /// Finds `offset`. With a store its entries are used; without, the index is
    /// made by scanning the segment, one entry per `interval_bytes` as the
    /// server does.
    pub fn lookup(
        &self,
        offset: Offset,
        interval_bytes: u32,
        store: Option<&dyn IndexKv>,
    ) -> Result<Lookup, DumpError> {
        let (segment, segments_compared) = self.bisect(offset)?;
        let file = self.file(&segment)?;
        let io = |e| DumpError::io(&segment.path, e);
        let start = SparseEntry {
            offset: segment.base,
            position: 0,
        };
        let stored = store.and_then(|kv| self.stored(kv, &segment, offset));
        let entries = match stored {
            Some(_) => Vec::new(),
            None => sparse_entries(&*file, &segment, u64::from(interval_bytes)).map_err(io)?,
        };
        let below = entries
            .iter()
            .rev()
            .find(|entry| entry.offset <= offset)
            .copied();
        let entry = stored.or(below).unwrap_or(start);
        let mut walk = Walker::new(
            &*file,
            entry.position,
            segment.bytes,
            entry.offset,
            HEADER_CHUNK,
        );
        let mut scanned_batches = 0;
        loop {
            match walk.step().map_err(io)? {
                Step::Batch(header, position) => {
                    scanned_batches += 1;
                    if header.next_offset() <= offset {
                        continue;
                    }
                    return Ok(Lookup {
                        offset,
                        segments_compared,
                        entry,
                        from_store: stored.is_some(),
                        batch_base: header.base_offset,
                        batch_position: position,
                        batch_bytes: header.total_bytes() as u64,
                        scanned_bytes: position - entry.position,
                        scanned_batches,
                        scanned_records: u64::try_from(offset.0 - entry.offset.0 + 1).unwrap_or(0),
                        entries,
                        segment,
                    });
                }
                Step::Bad(position) => {
                    let next = walk.resync(position, Offset::MAX).map_err(io)?;
                    let next_good = next.map_or(walk.expected, |(header, _)| header.base_offset);
                    if offset < next_good || next.is_none() {
                        return Err(DumpError::Damaged { offset, next_good });
                    }
                    if let Some((header, position)) = next {
                        walk.jump(position, header.base_offset);
                    }
                }
                Step::End => {
                    let first = self
                        .segments
                        .first()
                        .map_or(Offset::ZERO, |first| first.base);
                    return Err(DumpError::NotThere {
                        offset,
                        first,
                        end: walk.expected,
                    });
                }
            }
        }
    }

    /// The segment with the greatest base at or below the offset.
    fn bisect(&self, offset: Offset) -> Result<(SegmentFile, u32), DumpError> {
        let mut compared = 0;
        let after = self.segments.partition_point(|segment| {
            compared += 1;
            segment.base <= offset
        });
        let found = after.checked_sub(1).and_then(|at| self.segments.get(at));
        let first = self
            .segments
            .first()
            .map_or(Offset::ZERO, |first| first.base);
        let segment = found.ok_or(DumpError::NotThere {
            offset,
            first,
            end: first,
        })?;
        Ok((segment.clone(), compared))
    }

    fn stored(
        &self,
        kv: &dyn IndexKv,
        segment: &SegmentFile,
        offset: Offset,
    ) -> Option<SparseEntry> {
        let tp = match self.record() {
            Some(record) => record.tp,
            None => segment.path.parent()?.file_name()?.to_str()?.parse().ok()?,
        };
        let floor = Index::new(tp)
            .stored_floor(kv, segment.base, offset)
            .ok()??;
        let cleaned = self.seal(segment.base).and_then(|seal| seal.cleaned);
        if floor.revision != cleaned.map_or(0, |cleaned| cleaned.revision) {
            return None;
        }
        Some(SparseEntry {
            offset: floor.offset,
            position: floor.position,
        })
    }
}

/// The sparse index of a segment, made by scanning its headers.
fn sparse_entries(
    file: &dyn crate::fs::LogFile,
    segment: &SegmentFile,
    interval: u64,
) -> std::io::Result<Vec<SparseEntry>> {
    let mut builder = IndexBuilder::new(segment.base);
    let mut walk = Walker::new(file, 0, segment.bytes, segment.base, HEADER_CHUNK);
    let mut entries = Vec::new();
    while let Step::Batch(header, position) = walk.step()? {
        let entry = builder.observe(&header, position, TimestampMs::NONE, interval);
        entries.extend(entry.map(|entry| SparseEntry {
            offset: entry.offset,
            position: entry.position,
        }));
    }
    Ok(entries)
}
