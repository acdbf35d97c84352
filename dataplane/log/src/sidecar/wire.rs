//! Big-endian reading and writing with bounds, for sidecar bodies.

use super::SidecarError;

/// Takes values from the front of a body.
pub(crate) struct Input<'a>(pub &'a [u8]);

macro_rules! number {
    ($($name:ident: $kind:ty),+) => {
        $(pub(crate) fn $name(&mut self) -> Result<$kind, SidecarError> {
            const N: usize = size_of::<$kind>();
            let (head, rest) = self.0.split_first_chunk::<N>().ok_or(SidecarError::Malformed("ends early"))?;
            self.0 = rest;
            Ok(<$kind>::from_be_bytes(*head))
        })+
    };
}

impl<'a> Input<'a> {
    number!(u8: u8, u32: u32, u64: u64, i16: i16, i32: i32, i64: i64);

    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], SidecarError> {
        if self.0.len() < count {
            return Err(SidecarError::Malformed("ends early"));
        }
        let (head, rest) = self.0.split_at(count);
        self.0 = rest;
        Ok(head)
    }

    /// A count of items of at least `item_bytes` each: never more than can
    /// follow, so that nothing is allocated on a lie.
    pub(crate) fn count(&mut self, item_bytes: usize) -> Result<usize, SidecarError> {
        let count = usize::try_from(self.u32()?).map_err(|_| SidecarError::Malformed("count"))?;
        if count.saturating_mul(item_bytes) > self.0.len() {
            return Err(SidecarError::Malformed("count is more than what follows"));
        }
        Ok(count)
    }

    pub(crate) fn end(&self) -> Result<(), SidecarError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(SidecarError::Malformed("trailing bytes"))
        }
    }
}

/// Appends values in the same form.
pub(crate) trait Output {
    fn put(&mut self, bytes: &[u8]);

    fn put_count(&mut self, count: usize) {
        self.put(&u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes());
    }
    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_be_bytes());
    }
    fn put_u64(&mut self, value: u64) {
        self.put(&value.to_be_bytes());
    }
    fn put_i32(&mut self, value: i32) {
        self.put(&value.to_be_bytes());
    }
    fn put_i64(&mut self, value: i64) {
        self.put(&value.to_be_bytes());
    }
}

impl Output for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
