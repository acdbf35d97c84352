//! What a Fetch stream may send. No IO, no clock.
//!
//! ```text
//! left = first grant + later grants − sent;   outstanding = first grant − left
//! ```
//! A frame may go if it fits what is left, or if nothing is outstanding, so that
//! a batch larger than the whole grant does not stop the stream for ever.

use talweg_kit::errors::{ErrorCode, Refusal};
use talweg_proto::v1::Credit;
use talweg_types::limits;

/// A stream's budget over all its partitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FetchCredit {
    first: (i64, i64),
    /// Bytes and records; below zero after a frame larger than what was left.
    left: (i64, i64),
}

impl FetchCredit {
    /// From the open frame. `largest_batch`: largest `max.message.bytes` of the
    /// topics named. INVALID_CREDIT, CREDIT_TOO_SMALL.
    pub fn open(credit: Option<&Credit>, largest_batch: u32) -> Result<Self, Refusal> {
        let credit = credit.copied().unwrap_or_default();
        if credit.bytes < 1 || credit.records < 1 {
            let reason = format!(
                "{} bytes and {} records; both must be above 0",
                credit.bytes, credit.records
            );
            return Err(invalid("open.credit", reason));
        }
        check_total("open.credit", credit.bytes, credit.records)?;
        if credit.bytes < i64::from(largest_batch) {
            let message = format!(
                "the first credit of {} bytes is below the largest batch of the topics named, {largest_batch} bytes",
                credit.bytes
            );
            return Err(Refusal::new(ErrorCode::CreditTooSmall, message).with_limit(
                "max.message.bytes",
                largest_batch,
                credit.bytes,
                "bytes",
            ));
        }
        Ok(Self {
            first: (credit.bytes, credit.records),
            left: (credit.bytes, credit.records),
        })
    }

    /// More from the client. INVALID_CREDIT, and nothing is added.
    pub fn grant(&mut self, credit: Credit) -> Result<(), Refusal> {
        if credit.bytes < 0 || credit.records < 0 {
            let reason = format!(
                "{} bytes and {} records; neither may be negative",
                credit.bytes, credit.records
            );
            return Err(invalid("credit", reason));
        }
        let left = (
            self.left.0.saturating_add(credit.bytes),
            self.left.1.saturating_add(credit.records),
        );
        check_total("credit", left.0, left.1)?;
        self.left = left;
        Ok(())
    }

    pub fn left(&self) -> Credit {
        Credit {
            bytes: self.left.0,
            records: self.left.1,
        }
    }

    fn nothing_outstanding(&self) -> bool {
        self.left.0 >= self.first.0 && self.left.1 >= self.first.1
    }

    /// Payload bytes and records of the next frame: what is left, no more than a
    /// frame holds. `None`: nothing may go but a first batch or record.
    pub fn room(&self) -> Option<(usize, usize)> {
        let bytes = usize::try_from(self.left.0)
            .ok()
            .filter(|bytes| *bytes > 0)?;
        let records = usize::try_from(self.left.1)
            .ok()
            .filter(|records| *records > 0)?;
        Some((bytes.min(limits::FRAME_PAYLOAD_BYTES as usize), records))
    }

    /// One batch or record of any size may go now.
    pub fn allows_any(&self) -> bool {
        self.nothing_outstanding()
    }

    pub fn spend(&mut self, bytes: usize, records: usize) {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.left.0 = self.left.0.saturating_sub(number(bytes));
        self.left.1 = self.left.1.saturating_sub(number(records));
    }
}

fn check_total(field: &str, bytes: i64, records: i64) -> Result<(), Refusal> {
    let max = limits::FETCH_CREDIT_BYTES_MAX as i64;
    if bytes > max {
        return Err(invalid(
            field,
            format!("{bytes} bytes in all, at most {max} may be outstanding"),
        )
        .with_limit("credit.bytes", max, bytes, "bytes"));
    }
    let max = limits::FETCH_CREDIT_RECORDS_MAX as i64;
    if records > max {
        return Err(invalid(
            field,
            format!("{records} records in all, at most {max} may be outstanding"),
        )
        .with_limit("credit.records", max, records, "records"));
    }
    Ok(())
}

fn invalid(field: &str, reason: String) -> Refusal {
    Refusal::new(ErrorCode::InvalidCredit, format!("{field}: {reason}")).with_field(field, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credit(bytes: i64, records: i64) -> Credit {
        Credit { bytes, records }
    }

    #[test]
    fn bad_credit_is_refused_and_changes_nothing() {
        for (bytes, records) in [
            (0, 5),
            (5, 0),
            (-1, 5),
            (5, i64::MIN),
            (1 << 40, 5),
            (5, 1 << 40),
        ] {
            let refusal =
                FetchCredit::open(Some(&credit(bytes, records)), 0).expect_err("bad first credit");
            assert_eq!(refusal.code, ErrorCode::InvalidCredit, "{bytes} {records}");
        }
        let small =
            FetchCredit::open(Some(&credit(1_000, 5)), 1_001).expect_err("below the largest batch");
        assert_eq!(small.code, ErrorCode::CreditTooSmall);
        let mut open = FetchCredit::open(Some(&credit(1_000, 5)), 1_000).expect("enough");
        for (bytes, records) in [(-1, 0), (0, -1), (i64::MAX, 0), (0, i64::MAX)] {
            assert!(open.grant(credit(bytes, records)).is_err());
            assert_eq!(open.left(), credit(1_000, 5));
        }
    }

    #[test]
    fn one_frame_of_any_size_goes_while_nothing_is_outstanding() {
        let mut open = FetchCredit::open(Some(&credit(100, 10)), 0).expect("a credit");
        assert!(open.allows_any());
        open.spend(250, 1);
        assert_eq!(open.left(), credit(-150, 9));
        assert_eq!(open.room(), None);
        assert!(!open.allows_any());
        open.grant(credit(150, 1)).expect("a grant");
        assert_eq!(open.room(), None, "exactly used up");
        open.grant(credit(100, 0)).expect("a grant");
        assert!(open.allows_any() && open.room() == Some((100, 10)));
    }
}
