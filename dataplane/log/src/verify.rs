//! Finding out which bytes of a segment cannot be believed.
//!
//! A sealed segment has a checksum per 64 KiB over all its bytes; a reader
//! checks each block once per opening of the file. Where there is no seal yet,
//! the checksum of each batch is used, and continuity for the header bytes
//! outside it. When anything does not fit, the segment is walked once from its
//! start with every check, and what cannot be believed is listed in the view,
//! batch by batch; everything else serves.

use crate::{
    epochs::Epochs,
    fd_cache::OpenSegment,
    fs::LogFile,
    reader::LogReader,
    segment::SegmentView,
    sidecar::seal::{BLOCK_BYTES, SealFile, SealedDamage},
    walk::{DATA_CHUNK, Step, Walker},
};
use std::{io, sync::Arc, sync::atomic::Ordering};
use talweg_types::{LeaderEpoch, Offset};

impl LogReader {
    /// The seal of a sealed segment, read once per opening of the file.
    pub(crate) fn seal_of(&self, view: &SegmentView, open: &OpenSegment) -> Option<Arc<SealFile>> {
        if !view.is_sealed() {
            return None;
        }
        open.seal
            .get_or_init(|| {
                let seal = view.read_seal(&*self.folder.fs)?;
                self.note_damage(view, &seal.damage);
                view.note_cleaned(seal.cleaned);
                Some(seal)
            })
            .clone()
    }

    /// Walks the whole segment with every check and lists what is damaged.
    pub(crate) fn assess(&self, view: &SegmentView, open: &OpenSegment) -> io::Result<()> {
        let generation = self.generation.load(Ordering::Acquire);
        let end = view.end();
        let size = view.size();
        let seal = self.seal_of(view, open);
        let bad_blocks = match &seal {
            Some(seal) => bad_blocks(&*open.file, seal)?,
            None => Vec::new(),
        };
        let epochs = self.epochs.read().clone();
        let known = view.damage.read().ranges.clone();
        let found = assess_file(
            &*open.file,
            size,
            view.base,
            end,
            &bad_blocks,
            &epochs,
            known,
        )?;
        if self.generation.load(Ordering::Acquire) != generation {
            // The log was cut meanwhile; the next read looks again.
            return Ok(());
        }
        if !found.is_empty() {
            tracing::error!(partition = %self.tp, segment = %view.base, ranges = ?found, "damaged records on disk");
        }
        self.note_damage(view, &found);
        view.damage.write().bad_blocks = bad_blocks;
        Ok(())
    }
}

/// The blocks whose checksum does not fit.
pub(crate) fn bad_blocks(file: &dyn LogFile, seal: &SealFile) -> io::Result<Vec<usize>> {
    let mut bad = Vec::new();
    let mut buffer = vec![0; BLOCK_BYTES as usize];
    for (index, sum) in seal.blocks.iter().enumerate() {
        let position = index as u64 * BLOCK_BYTES;
        let want = usize::try_from((seal.bytes - position).min(BLOCK_BYTES)).unwrap_or(0);
        let read = file.read_at(&mut buffer[..want], position)?;
        if read < want || crc32c::crc32c(&buffer[..want]) != *sum {
            bad.push(index);
        }
    }
    Ok(bad)
}

/// Damage of a segment file of `size` bytes that must hold `base..end`.
pub(crate) fn assess_file(
    file: &dyn LogFile,
    size: u64,
    base: Offset,
    end: Offset,
    bad_blocks: &[usize],
    epochs: &Epochs,
    known: Vec<SealedDamage>,
) -> io::Result<Vec<SealedDamage>> {
    let mut walk = Walker::new(file, 0, size, base, DATA_CHUNK).stepping_over(known.clone());
    let mut found = Vec::new();
    // Batches that touch a bad block although each looks right by itself.
    let mut suspects: Vec<(usize, SealedDamage)> = Vec::new();
    loop {
        let before = walk.expected;
        let (bad, header) = match walk.step()? {
            Step::End => break,
            Step::Bad(position) => (Some(position), None),
            Step::Batch(header, position) => {
                let right = header.next_offset() <= end && walk.crc_fits(&header, position)?;
                (
                    if right { None } else { Some(position) },
                    Some((header, position)),
                )
            }
        };
        let block = header.and_then(|(header, position)| {
            touches(bad_blocks, position, header.total_bytes() as u64)
        });
        match (bad, header, block) {
            (None, Some((header, position)), Some(block)) => {
                let range = SealedDamage {
                    start_position: position,
                    end_position: walk.position,
                    start: before,
                    end: header.next_offset(),
                };
                // The epoch lies outside the batch's checksum; history knows it.
                if epochs
                    .at(before)
                    .is_some_and(|epoch| epoch != header.leader_epoch)
                {
                    walk.epoch = epochs.at(before).unwrap_or(header.leader_epoch);
                    found.push(range);
                } else {
                    suspects.push((block, range));
                }
            }
            (Some(position), _, _) => {
                let start = before;
                walk.jump(position, start);
                let next = walk.resync(position, end)?;
                let (end_position, next_good) = next.map_or((size, end), |(header, position)| {
                    (position, header.base_offset)
                });
                found.push(SealedDamage {
                    start_position: position,
                    end_position,
                    start,
                    end: next_good,
                });
                if let Some((header, position)) = next {
                    walk.jump(position, header.base_offset);
                }
                if next.is_none() {
                    walk.jump(size, end);
                }
                // Which of two neighbours has the wrong epoch is not known here.
                walk.epoch = LeaderEpoch::NONE;
            }
            (None, _, _) => {}
        }
    }
    if walk.expected < end {
        found.push(SealedDamage {
            start_position: size,
            end_position: size,
            start: walk.expected,
            end,
        });
    }
    blame_suspects(bad_blocks, suspects, &known, &mut found);
    Ok(found)
}

/// A block that does not fit and in which no batch was found guilty: all
/// batches that touch it are.
fn blame_suspects(
    bad_blocks: &[usize],
    suspects: Vec<(usize, SealedDamage)>,
    known: &[SealedDamage],
    found: &mut Vec<SealedDamage>,
) {
    let explained = |block: usize, found: &[SealedDamage]| {
        let (start, end) = (block as u64 * BLOCK_BYTES, (block as u64 + 1) * BLOCK_BYTES);
        let guilty = known.iter().chain(found);
        guilty
            .into_iter()
            .any(|range| range.start_position < end && start < range.end_position)
    };
    let unexplained: Vec<usize> = bad_blocks
        .iter()
        .copied()
        .filter(|block| !explained(*block, found))
        .collect();
    for (_, range) in suspects {
        if touches(
            &unexplained,
            range.start_position,
            range.end_position - range.start_position,
        )
        .is_some()
        {
            found.push(range);
        }
    }
    found.sort_unstable_by_key(|range| (range.start_position, range.start));
}

/// The first of the blocks that the bytes touch.
fn touches(blocks: &[usize], position: u64, bytes: u64) -> Option<usize> {
    let first = usize::try_from(position / BLOCK_BYTES).unwrap_or(usize::MAX);
    let last = usize::try_from((position + bytes.max(1) - 1) / BLOCK_BYTES).unwrap_or(usize::MAX);
    blocks
        .iter()
        .copied()
        .find(|block| (first..=last).contains(block))
}
