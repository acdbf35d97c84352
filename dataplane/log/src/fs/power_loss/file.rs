//! An open file of the model.

use std::{
    io::{self, IoSlice},
    path::PathBuf,
    sync::Arc,
};

use super::{Admitted, OpKind, Shared, tree::NodeId};
use crate::fs::LogFile;

pub(super) struct PowerLossFile {
    pub(super) shared: Arc<Shared>,
    pub(super) id: NodeId,
    pub(super) path: PathBuf,
    /// Crashes before it was opened.
    pub(super) crashes: u64,
}

impl PowerLossFile {
    fn admit(&self, kind: OpKind) -> io::Result<Admitted<'_>> {
        self.shared
            .admit(kind, &self.path, None, Some(self.crashes))
    }
}

impl LogFile for PowerLossFile {
    fn len(&self) -> io::Result<u64> {
        let mut call = self.admit(OpKind::Len)?;
        Ok(call.state.tree.content_mut(self.id)?.len())
    }

    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        let mut call = self.admit(OpKind::Read)?;
        call.state.tree.content_mut(self.id)?.read(buf, position)
    }

    fn try_read_at(&self, buf: &mut [u8], position: u64) -> io::Result<Option<usize>> {
        let mut call = self.admit(OpKind::TryRead)?;
        match call.state.faults.cold {
            true => Ok(None),
            false => call
                .state
                .tree
                .content_mut(self.id)?
                .read(buf, position)
                .map(Some),
        }
    }

    fn write_at(&self, slices: &[IoSlice<'_>], position: u64) -> io::Result<()> {
        let mut call = self.admit(OpKind::Write)?;
        call.state.write(self.id, slices, position, call.pass)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut call = self.admit(OpKind::SetLen)?;
        call.state.set_len(self.id, len, call.pass)
    }

    fn flush(&self) -> io::Result<()> {
        let mut call = self.admit(OpKind::Flush)?;
        call.state.flush(self.id, call.pass)
    }

    fn modified_ms(&self) -> io::Result<i64> {
        let mut call = self.admit(OpKind::Modified)?;
        Ok(call.state.tree.content_mut(self.id)?.modified_ms)
    }
}

impl Drop for PowerLossFile {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        if state.crashes != self.crashes {
            return;
        }
        if let Ok(node) = state.tree.node_mut(self.id) {
            node.handles = node.handles.saturating_sub(1);
            state.tree.release(self.id);
        }
    }
}
