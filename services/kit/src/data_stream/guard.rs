//! A bound on what a frame may unpack to in memory.
//!
//! An empty record is two bytes on the wire and some two hundred in memory, so
//! four megabytes of them would take most of a gigabyte. Before a frame is
//! decoded, its repeated messages are counted along the paths in its [`Shape`].

use bytes::Buf;

/// Repeated messages (records, headers, partitions) in one frame. A frame of
/// 1 MiB with the smallest useful records has fewer.
pub(super) const MESSAGES_MAX: usize = 256 * 1024;

/// Frames below this cannot unpack to much and are not counted.
pub(super) const SMALL_BYTES: usize = 64 * 1024;

/// A field that holds messages, and those of their fields that do.
#[derive(Debug)]
pub struct Shape {
    /// Field number.
    pub tag: u32,
    /// Fields of the message, as far as they are of interest.
    pub inner: &'static [Shape],
}

/// Counts the messages in the next `length` bytes. `None`: more than
/// [`MESSAGES_MAX`]. Bytes that are not protobuf end the count early; decoding
/// says what is wrong with them.
pub(super) fn count(buf: &mut impl Buf, length: usize, shapes: &[Shape]) -> Option<usize> {
    let mut seen = 0;
    let end = buf.remaining().saturating_sub(length);
    // The only way to leave early without an answer is malformed input.
    let _malformed = walk(buf, end, shapes, &mut seen);
    (seen <= MESSAGES_MAX).then_some(seen)
}

/// `end` is what remains in `buf` behind the message. `None` stops the walk.
fn walk(buf: &mut impl Buf, end: usize, shapes: &[Shape], seen: &mut usize) -> Option<()> {
    while buf.remaining() > end {
        let key = varint(buf)?;
        match key & 7 {
            0 => drop(varint(buf)?),
            1 => skip(buf, 8, end)?,
            5 => skip(buf, 4, end)?,
            2 => {
                let length = usize::try_from(varint(buf)?).ok()?;
                let after = buf.remaining().checked_sub(length)?;
                if after < end {
                    return None;
                }
                match shapes.iter().find(|it| u64::from(it.tag) == key >> 3) {
                    None => buf.advance(length),
                    Some(shape) => {
                        *seen += 1;
                        if *seen > MESSAGES_MAX {
                            return None;
                        }
                        if shape.inner.is_empty() {
                            buf.advance(length);
                        } else {
                            walk(buf, after, shape.inner, seen)?;
                        }
                    }
                }
            }
            _ => return None,
        }
    }
    Some(())
}

fn skip(buf: &mut impl Buf, count: usize, end: usize) -> Option<()> {
    if buf.remaining().checked_sub(count)? < end {
        return None;
    }
    buf.advance(count);
    Some(())
}

fn varint(buf: &mut impl Buf) -> Option<u64> {
    prost::encoding::decode_varint(buf).ok()
}
