//! The end of a round's work on a segment: its files get their names, the index
//! its entries, or both files go.

use super::{
    Rewrite, RewriteError,
    output::{self, Written},
    swap,
};
use crate::segment::SegmentView;
use std::{
    io,
    sync::{Arc, atomic::Ordering},
};
use talweg_types::Offset;

impl Rewrite {
    /// Names and index. From the decision on an error fails the folder: only the
    /// next start can say what is there.
    pub(crate) fn put_in_place(
        &self,
        group: &[Arc<SegmentView>],
        written: &Written,
    ) -> Result<Arc<SegmentView>, RewriteError> {
        let shared = &self.shared;
        let (fs, dir) = (&*shared.folder.fs, &shared.dir);
        let base = written.seal.base;
        let io = |error| RewriteError::Io {
            what: format!("replacing segment {base} of {}", shared.tp),
            source: error,
        };
        // No rebuild may go on at a position in a file that goes.
        let mut rebuild = shared.index.rebuild.lock();
        for view in group {
            let open = match view.open(&shared.folder) {
                // A file that is lost has no readers.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened.map_err(io)?,
            };
            // Its own seal, before the name leads to another.
            shared.seal_of(view, &open);
            view.set_replaced(open);
        }
        if let Err(error) = fs.flush_dir(dir) {
            shared.folder.fail_on_io(&error);
            return Err(io(error));
        }
        if let Err(error) = swap::decide(fs, dir, base) {
            shared
                .folder
                .fail(&format!("rewriting a segment of {}: {error}", shared.tp));
            return Err(io(error));
        }
        let others = group.iter().skip(1).map(|view| view.base);
        let placed = swap::replace(fs, dir, base, others);
        *rebuild = None;
        self.replace_index(written);
        let done = placed.and_then(|()| swap::finish(fs, dir, base));
        if let Err(error) = done {
            shared
                .folder
                .fail(&format!("rewriting a segment of {}: {error}", shared.tp));
            return Err(io(error));
        }
        Ok(Arc::new(SegmentView::sealed_as(dir, &written.seal)))
    }

    fn replace_index(&self, written: &Written) {
        let index = &self.shared.index;
        let (base, end) = (written.seal.base, written.seal.end);
        let kv = &*self.shared.folder.index;
        if let Err(error) = index.replace_range(kv, base, end, &written.entries) {
            tracing::warn!(partition = %self.shared.tp, %error, "index entries of a rewritten segment not written; the index is rebuilt");
            index.distrusted.store(true, Ordering::Release);
        }
    }

    /// What was written of a segment that did not get in its place. After an error
    /// that fails the folder it is left to the next start.
    pub(crate) fn clean_up(&self, base: Offset, error: &RewriteError) {
        let folder = &self.shared.folder;
        if folder.failed().is_some() {
            return;
        }
        let (segment, seal) = output::paths(&self.shared.dir, base);
        for path in [segment, seal] {
            match folder.fs.remove_file(&path) {
                Err(left) if left.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), %left, %error, "left-over of a rewrite stays until the next start");
                }
                _ => {}
            }
        }
    }
}
