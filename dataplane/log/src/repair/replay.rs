//! What follows from the log is known again once what it follows from is repaired.

use crate::{
    names,
    partition::PartitionLog,
    replay::Replayed,
    segment::SegmentView,
    sidecar::{self, sessions::SessionsFile},
    walk::{DATA_CHUNK, Step, Walker},
};
use std::{io, sync::Arc};
use talweg_types::Offset;

impl PartitionLog {
    /// Producer state and the newest fence once more, from what is repaired now. Waits
    /// for the disk, as the replay at a start does.
    pub(crate) fn replay_repaired(&mut self) {
        let Some(from) = self.holes_from.filter(|_| !self.shared.settle_damage()) else {
            return;
        };
        match self.replay_from(from) {
            Ok(state) => {
                self.sessions = state.sessions;
                self.keys = state.keys;
                self.fence = state.fence;
                self.holes_from = None;
            }
            Err(error) => {
                tracing::warn!(partition = %self.tp, %error, "producer state not rebuilt after a repair; the next start does it");
            }
        }
    }

    /// As of the log end, from the newest `sessions` file at or below `hole`.
    fn replay_from(&self, hole: Offset) -> io::Result<Replayed> {
        let (fs, dir) = (&*self.folder.fs, &self.shared.dir);
        let mut files: Vec<_> = fs
            .list(dir)?
            .iter()
            .filter_map(|entry| names::parse(&entry.name, names::SESSIONS))
            .filter(|offset| *offset <= hole)
            .collect();
        files.sort_unstable();
        let mut state = Replayed::default();
        let read =
            |offset| sidecar::read::<SessionsFile>(fs, &names::path(dir, offset, names::SESSIONS));
        let saved = files
            .into_iter()
            .rev()
            .find_map(|offset| read(offset).ok()?);
        let from = saved.as_ref().map_or(Offset::ZERO, |saved| saved.offset);
        if let Some(saved) = &saved {
            state.load(saved);
        }
        let later = |view: &Arc<SegmentView>| view.end() > from;
        for view in self.shared.segments().into_iter().filter(later) {
            let times = view.times(fs)?;
            let open = view.open(&self.folder)?;
            let mut walk = Walker::new(&*open.file, 0, view.size(), view.base, DATA_CHUNK);
            while let Step::Batch(header, position) = walk.step()? {
                if header.base_offset >= from {
                    let bytes = walk.bytes(position, header.total_bytes())?;
                    state.apply(&header, bytes, times.last_append);
                }
            }
            if walk.expected != view.end() {
                return Err(io::Error::other(format!("unreadable at {}", walk.expected)));
            }
        }
        Ok(state)
    }
}
