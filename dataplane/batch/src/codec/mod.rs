//! Packing and bounded unpacking of a batch's records.
//!
//! Invariant: unpacking holds at most `limit` bytes of output plus one block
//! of the codec, stops as soon as the limit is passed, and reserves memory by
//! what has really come out or by what the input could at most contain, never
//! by a length that the input claims. Input that is cut, followed by anything,
//! or damaged is refused.

mod lz4;
mod snappy;
mod zstd;

use crate::error::BatchError;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use std::io::{self, Read, Write};
use talweg_types::Compression;
use thiserror::Error;

/// Why packed data cannot be unpacked.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum UnpackFault {
    /// The codec's own words.
    #[error("{0}")]
    Codec(String),
    #[error("the data is cut off")]
    Cut,
    #[error("{0} bytes follow the end of the data")]
    Trailing(usize),
    #[error("a block of {packed} bytes cannot hold the {claimed} it claims")]
    Impossible { packed: usize, claimed: usize },
    #[error("{0}")]
    Framing(&'static str),
}

/// How an unpacking ends early.
enum Stop {
    OverLimit,
    Fault(UnpackFault),
}

impl From<UnpackFault> for Stop {
    fn from(fault: UnpackFault) -> Self {
        Self::Fault(fault)
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Fault(match error.kind() {
            io::ErrorKind::UnexpectedEof => UnpackFault::Cut,
            _ => UnpackFault::Codec(error.to_string()),
        })
    }
}

/// Unpacks `packed`, at most `limit` bytes.
pub(crate) fn unpack(
    codec: Compression,
    packed: &[u8],
    limit: usize,
) -> Result<Vec<u8>, BatchError> {
    let unpacked = match codec {
        Compression::None if packed.len() > limit => Err(Stop::OverLimit),
        Compression::None => Ok(packed.to_vec()),
        Compression::Gzip => gunzip(packed, limit),
        Compression::Snappy => snappy::unpack(packed, limit),
        Compression::Lz4 => lz4::unpack(packed, limit),
        Compression::Zstd => zstd::unpack(packed, limit),
    };
    unpacked.map_err(|stop| match stop {
        Stop::OverLimit => BatchError::UnpacksTooLarge { limit },
        Stop::Fault(fault) => BatchError::Unpack { codec, fault },
    })
}

fn gunzip(packed: &[u8], limit: usize) -> Result<Vec<u8>, Stop> {
    let mut out = Vec::with_capacity(packed.len().saturating_mul(4).min(limit));
    // One byte more than allowed tells "too large" from "just fits".
    let most = (limit as u64).saturating_add(1);
    MultiGzDecoder::new(packed)
        .take(most)
        .read_to_end(&mut out)?;
    if out.len() > limit {
        return Err(Stop::OverLimit);
    }
    Ok(out)
}

/// Encoders and their buffers, made when first needed and used again: keep one
/// per thread that packs.
#[derive(Default)]
pub struct Encoders {
    zstd: Option<::zstd::bulk::Compressor<'static>>,
    snappy: Option<snap::raw::Encoder>,
    packed: Vec<u8>,
}

impl Encoders {
    pub fn new() -> Self {
        Self::default()
    }

    /// Packs `plain`; the result is valid until the next call. zstd packs at
    /// level 1, gzip at level 6, both without further checksums, since the
    /// batch's own covers them.
    pub(crate) fn pack<'a>(
        &'a mut self,
        codec: Compression,
        plain: &'a [u8],
    ) -> Result<&'a [u8], BatchError> {
        self.packed.clear();
        let done = match codec {
            Compression::None => return Ok(plain),
            Compression::Gzip => gzip(plain, &mut self.packed),
            Compression::Snappy => snappy::pack(&mut self.snappy, plain, &mut self.packed),
            Compression::Lz4 => lz4::pack(plain, &mut self.packed),
            Compression::Zstd => zstd::pack(&mut self.zstd, plain, &mut self.packed),
        };
        match done {
            Ok(()) => Ok(&self.packed),
            Err(error) => Err(BatchError::Pack {
                codec,
                reason: error.to_string(),
            }),
        }
    }
}

fn gzip(plain: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let mut encoder = GzEncoder::new(out, flate2::Compression::new(6));
    encoder.write_all(plain)?;
    encoder.finish().map(drop)
}
