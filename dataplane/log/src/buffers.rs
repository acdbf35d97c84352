//! Buffers for large reads, used again.
//!
//! A fresh mebibyte costs page faults and zeroing, more than the copy from the
//! page cache that goes into it. A buffer comes back when the last reader of
//! its bytes has dropped them.

use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;

/// Reads of this size and a little more, to whole checksum blocks, are the usual ones.
const BUFFER_BYTES: usize = (1 << 20) + (128 << 10);
/// Fewer bytes have an allocation of their own, so that whoever keeps them keeps
/// little more than them.
const WORTH_BYTES: usize = 768 << 10;
/// Buffers kept while nobody reads.
const KEPT_MAX: usize = 16;

/// One for each log folder.
#[derive(Default)]
pub(crate) struct Buffers {
    free: Mutex<Vec<Box<[u8]>>>,
}

/// Bytes to read into. What they hold before is anything.
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    len: usize,
    home: Option<Arc<Buffers>>,
}

impl Buffers {
    /// Room for `len` bytes.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Buffer {
        if !(WORTH_BYTES..=BUFFER_BYTES).contains(&len) {
            return Buffer {
                bytes: vec![0; len].into(),
                len,
                home: None,
            };
        }
        let kept = self.free.lock().pop();
        Buffer {
            bytes: kept.unwrap_or_else(|| vec![0; BUFFER_BYTES].into()),
            len,
            home: Some(Arc::clone(self)),
        }
    }
}

impl Buffer {
    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }

    /// The first `len` bytes, which the caller has read into.
    pub(crate) fn freeze(mut self, len: usize) -> Bytes {
        self.len = self.len.min(len);
        if self.home.is_none() {
            let mut bytes = std::mem::take(&mut self.bytes).into_vec();
            bytes.truncate(self.len);
            return bytes.into();
        }
        if self.len < WORTH_BYTES {
            return Bytes::copy_from_slice(self.as_ref());
        }
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            let mut free = home.free.lock();
            if free.len() < KEPT_MAX {
                free.push(std::mem::take(&mut self.bytes));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(buffers: &Buffers) -> usize {
        buffers.free.lock().len()
    }

    #[test]
    fn a_large_buffer_is_used_again_once_its_last_reader_is_done() {
        let buffers = Arc::new(Buffers::default());
        let mut buffer = buffers.take(1 << 20);
        buffer.as_mut().fill(7);
        let bytes = buffer.freeze(1_000_000);
        assert_eq!(&bytes[..], &[7; 1_000_000]);
        let part = bytes.slice(10..20);
        drop(bytes);
        assert_eq!(free(&buffers), 0, "a slice still reads it");
        drop(part);
        assert_eq!(free(&buffers), 1);
        let mut again = buffers.take(800 << 10);
        assert_eq!((again.as_mut().len(), free(&buffers)), (800 << 10, 0));
        // Few bytes do not hold a large buffer.
        assert_eq!(again.freeze(1000).len(), 1000);
        assert_eq!(free(&buffers), 1);
    }

    #[test]
    fn small_and_huge_ones_are_not_kept_and_few_of_the_others() {
        let buffers = Arc::new(Buffers::default());
        for len in [0, 1, WORTH_BYTES - 1, BUFFER_BYTES + 1] {
            assert_eq!(buffers.take(len).freeze(len).len(), len);
        }
        assert_eq!(free(&buffers), 0);
        let many: Vec<_> = (0..40).map(|_| buffers.take(1 << 20)).collect();
        drop(many);
        assert_eq!(free(&buffers), KEPT_MAX);
    }
}
