//! The open frame of a Produce stream.

use crate::token;
use talweg_kit::errors::Refusal;
use talweg_proto::v1::{self, ProduceOpen};
use talweg_types::{Acks, Compression, limits};

/// Text that names a client.
const CLIENT_ID_BYTES_MAX: usize = 128;
const LINGER_MS_MAX: u32 = 1_000;

/// What a stream was opened with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opening {
    pub client_id: String,
    /// `None`: each topic's default.
    pub acks: Option<Acks>,
    pub delivery_timeout_ms: u64,
    /// `None`: each topic's.
    pub compression: Option<Compression>,
    pub linger_ms: u64,
}

impl Default for Opening {
    fn default() -> Self {
        Self {
            client_id: String::new(),
            acks: None,
            delivery_timeout_ms: limits::DELIVERY_TIMEOUT_MS_DEFAULT,
            compression: None,
            linger_ms: limits::PACK_LINGER_MS,
        }
    }
}

impl Opening {
    /// INVALID_ARGUMENT with the field, NOT_BUILT, INVALID_RESUME_TOKEN.
    pub fn check(open: ProduceOpen, cluster_id: &[u8]) -> Result<Self, Refusal> {
        check_client_id(&open.client_id)?;
        let acks = match v1::Acks::try_from(open.acks) {
            Ok(v1::Acks::Unspecified) => None,
            Ok(v1::Acks::None) => Some(Acks::Zero),
            Ok(v1::Acks::Leader) => Some(Acks::One),
            Ok(v1::Acks::All) => Some(Acks::All),
            Err(_) => {
                return Err(Refusal::invalid(
                    "open.acks",
                    format!("{} is unknown", open.acks),
                ));
            }
        };
        let (low, high) = limits::DELIVERY_TIMEOUT_MS_RANGE;
        let delivery_timeout_ms = match u64::from(open.delivery_timeout_ms) {
            0 => limits::DELIVERY_TIMEOUT_MS_DEFAULT,
            ms if (low..=high).contains(&ms) => ms,
            ms => {
                let reason = format!("{ms} is outside [{low}, {high}]");
                return Err(Refusal::invalid("open.delivery_timeout_ms", reason));
            }
        };
        let linger_ms = match open.linger_ms {
            None => limits::PACK_LINGER_MS,
            Some(ms) if ms <= LINGER_MS_MAX => ms.into(),
            Some(ms) => {
                return Err(Refusal::invalid(
                    "open.linger_ms",
                    format!("{ms} is above {LINGER_MS_MAX}"),
                ));
            }
        };
        if !open.transactional_id.is_empty() {
            return Err(Refusal::not_built(
                "Transactions are not built in this version.",
            ));
        }
        token::check_produce(&open.resume_token, cluster_id)?;
        Ok(Self {
            client_id: open.client_id,
            acks,
            delivery_timeout_ms,
            compression: codec(open.compression)?,
            linger_ms,
        })
    }
}

fn codec(field: i32) -> Result<Option<Compression>, Refusal> {
    Ok(match v1::Compression::try_from(field) {
        Ok(v1::Compression::Unspecified) => None,
        Ok(v1::Compression::None) => Some(Compression::None),
        Ok(v1::Compression::Gzip) => Some(Compression::Gzip),
        Ok(v1::Compression::Snappy) => Some(Compression::Snappy),
        Ok(v1::Compression::Lz4) => Some(Compression::Lz4),
        Ok(v1::Compression::Zstd) => Some(Compression::Zstd),
        Err(_) => {
            return Err(Refusal::invalid(
                "open.compression",
                format!("{field} is unknown"),
            ));
        }
    })
}

/// At most 128 bytes.
pub fn check_client_id(client_id: &str) -> Result<(), Refusal> {
    if client_id.len() > CLIENT_ID_BYTES_MAX {
        let reason = format!(
            "has {} bytes, at most {CLIENT_ID_BYTES_MAX} are allowed",
            client_id.len()
        );
        return Err(Refusal::invalid("open.client_id", reason));
    }
    Ok(())
}
