//! State that follows from the log alone: sessions, keys, epochs. Serving,
//! restarting and truncating apply the same changes batch by batch.

use crate::{
    epochs::Epochs,
    fault::{Fault, planted},
    fence::{Fence, apply_fence, fence_in},
    idempotency::{IdempotencyKeys, keys_of},
    sessions::Sessions,
    sidecar::sessions::SessionsFile,
};
use bytes::Bytes;
use talweg_batch::{BatchHeader, decode_records};
use talweg_types::{TimestampMs, limits};

#[derive(Clone, Default)]
pub(crate) struct Replayed {
    pub sessions: Sessions,
    pub keys: IdempotencyKeys,
    pub epochs: Epochs,
    pub fence: Option<Fence>,
}

impl Replayed {
    pub(crate) fn load(&mut self, file: &SessionsFile) {
        self.sessions = Sessions::load(&file.sessions);
        self.keys = IdempotencyKeys::load(&file.keys);
        self.fence = file.fence;
    }

    /// A batch that is in the log; its bytes fit their checksum.
    pub(crate) fn apply(&mut self, header: &BatchHeader, batch: &[u8], append_time: TimestampMs) {
        self.epochs.observe(header.leader_epoch, header.base_offset);
        if header.is_control() {
            let fence = fence_in(header, &Bytes::copy_from_slice(batch));
            if let Some(epoch) = fence.filter(|_| !planted(Fault::FenceNotReplayed)) {
                let sessions = &mut self.sessions;
                apply_fence(&mut self.fence, sessions, epoch, header.base_offset);
            }
            return;
        }
        if !planted(Fault::SessionsNotReplayed) {
            self.sessions.apply(header, append_time);
        }
        let bytes = Bytes::copy_from_slice(batch);
        match decode_records(&bytes, limits::UNPACKED_BATCH_BYTES_MAX as usize) {
            Ok(records) => self.keys.apply(header, keys_of(&records), append_time),
            // It was checked when it was appended; keys of it are forgotten.
            Err(error) => {
                tracing::warn!(offset = %header.base_offset, %error, "batch not decoded in replay")
            }
        }
    }
}
