//! What a Produce stream may have unanswered. No IO, no clock.

use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1;

/// Payload bytes and records.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Amount {
    pub bytes: u64,
    pub records: u64,
}

impl Amount {
    pub fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.records += other.records;
    }

    pub fn to_proto(self) -> v1::Credit {
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        v1::Credit {
            bytes: number(self.bytes),
            records: number(self.records),
        }
    }
}

/// The grant and what is used of it.
#[derive(Clone, Copy, Debug)]
pub struct Credit {
    granted: Amount,
    outstanding: Amount,
}

impl Credit {
    pub fn new(granted: Amount) -> Self {
        Self {
            granted,
            outstanding: Amount::default(),
        }
    }

    pub fn granted(&self) -> Amount {
        self.granted
    }

    /// CREDIT_EXCEEDED, and nothing is used, unless it fits; a frame larger
    /// than the whole grant fits while nothing is outstanding.
    pub fn take(&mut self, amount: Amount) -> Result<(), Refusal> {
        let bytes = self.outstanding.bytes.saturating_add(amount.bytes);
        let records = self.outstanding.records.saturating_add(amount.records);
        let within = bytes <= self.granted.bytes && records <= self.granted.records;
        if within || self.outstanding == Amount::default() {
            self.outstanding = Amount { bytes, records };
            return Ok(());
        }
        let message = format!(
            "{} bytes and {} records are unanswered, {} and {} more do not fit the grant",
            self.outstanding.bytes, self.outstanding.records, amount.bytes, amount.records
        );
        let refusal = Refusal::new(ErrorCode::CreditExceeded, message);
        Err(match bytes > self.granted.bytes {
            true => refusal.with_limit("credit.bytes", self.granted.bytes, bytes, "bytes"),
            false => refusal.with_limit("credit.records", self.granted.records, records, "records"),
        })
    }

    /// Answered.
    pub fn give_back(&mut self, amount: Amount) {
        self.outstanding.bytes = self.outstanding.bytes.saturating_sub(amount.bytes);
        self.outstanding.records = self.outstanding.records.saturating_sub(amount.records);
    }
}
