//! Comparing the index store with the recovered log.

use super::{IndexFound, RecoveryReport};
use crate::{
    fault::{Fault, planted},
    index::IndexState,
    partition::PartitionLog,
};
use std::sync::atomic::Ordering;
use talweg_types::Offset;

impl PartitionLog {
    /// `indexed_from`: entries from there on are in memory, made by the scan.
    pub(super) fn recover_index(
        &mut self,
        generation: u64,
        indexed_from: Offset,
        report: &mut RecoveryReport,
    ) {
        let bounds = self.bounds();
        let index = &self.shared.index;
        let (valid_to, found) = match index.read_meta(&*self.folder.index) {
            Err(error) => {
                tracing::warn!(partition = %self.tp, %error, "index not readable");
                (None, IndexFound::Unreadable)
            }
            Ok(None) => (None, IndexFound::Missing),
            Ok(Some((of, valid_to)))
                if (of != generation || valid_to > bounds.log_end)
                    && !planted(Fault::IndexAheadBelieved) =>
            {
                (None, IndexFound::Ahead)
            }
            Ok(Some((_, valid_to))) if valid_to < indexed_from => {
                (Some(valid_to), IndexFound::Behind)
            }
            Ok(Some((_, valid_to))) => (Some(valid_to), IndexFound::Complete),
        };
        report.index = found;
        // With nothing stored and all entries in memory there is no hole.
        let nothing_stored = found == IndexFound::Missing && indexed_from <= bounds.log_start;
        index
            .distrusted
            .store(valid_to.is_none() && !nothing_stored, Ordering::Release);
        *index.rebuild.lock() = None;
        *index.state.lock() = IndexState {
            valid_to: valid_to.unwrap_or(bounds.log_start),
            hole_end: (found == IndexFound::Behind).then_some(indexed_from),
        };
    }
}
