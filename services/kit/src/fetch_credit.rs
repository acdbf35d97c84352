//! What a Fetch stream may send, at gateways and storage nodes alike. No IO, no clock.
//!
//! ```text
//! left = first grant + later grants − sent;   outstanding = first grant − left
//! ```
//! A frame may go if it fits what is left, or if nothing is outstanding, so that
//! a batch larger than the whole grant does not stop the stream for ever.

use crate::errors::{ErrorCode, Refusal};
use talweg_proto::v1::Credit;
use talweg_types::limits;

/// A fetch stream's budget.
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
        let (bytes, records) = (
            self.left.0.saturating_add(credit.bytes),
            self.left.1.saturating_add(credit.records),
        );
        check_total("credit", bytes, records)?;
        self.left = (bytes, records);
        Ok(())
    }

    /// What the client may still be sent; below zero after a frame larger than what was left.
    pub fn left(&self) -> Credit {
        Credit {
            bytes: self.left.0,
            records: self.left.1,
        }
    }

    fn nothing_outstanding(&self) -> bool {
        self.left.0 >= self.first.0 && self.left.1 >= self.first.1
    }

    /// Whether it is worth looking for something to send.
    pub fn has_room(&self) -> bool {
        self.left.0 > 0 && self.left.1 > 0
    }

    /// How much payload to look for.
    pub fn read_bytes(&self) -> usize {
        usize::try_from(self.left.0)
            .unwrap_or(0)
            .min(limits::FRAME_PAYLOAD_BYTES as usize)
    }

    /// Records that a frame of several batches may have.
    pub fn records(&self) -> u64 {
        u64::try_from(self.left.1).unwrap_or(0)
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

    /// A frame of this payload may go: it fits, or nothing is outstanding.
    pub fn fits(&self, bytes: usize, records: u64) -> bool {
        let within = i64::try_from(bytes).is_ok_and(|bytes| bytes <= self.left.0)
            && i64::try_from(records).is_ok_and(|records| records <= self.left.1);
        within || self.nothing_outstanding()
    }

    /// A frame of this payload has gone.
    pub fn spend(&mut self, bytes: usize, records: u64) {
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        self.left.0 = self.left.0.saturating_sub(number(bytes as u64));
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
    fn the_first_grant_is_checked() {
        let max = limits::FETCH_CREDIT_BYTES_MAX as i64;
        for (bytes, records, code) in [
            (0, 1, ErrorCode::InvalidCredit),
            (1_000, 0, ErrorCode::InvalidCredit),
            (-1, 10, ErrorCode::InvalidCredit),
            (i64::MIN, 10, ErrorCode::InvalidCredit),
            (1_000, -1, ErrorCode::InvalidCredit),
            (max + 1, 10, ErrorCode::InvalidCredit),
            (1_000, i64::MAX, ErrorCode::InvalidCredit),
            (999, 10, ErrorCode::CreditTooSmall),
        ] {
            let refusal =
                FetchCredit::open(Some(&credit(bytes, records)), 1_000).expect_err("refused");
            assert_eq!(refusal.code, code, "{bytes} {records}");
        }
        assert_eq!(
            FetchCredit::open(None, 0).expect_err("refused").code,
            ErrorCode::InvalidCredit
        );
        assert!(FetchCredit::open(Some(&credit(max, 1)), 1_000).is_ok());
    }

    /// Story: a batch larger than the grant passes when nothing is outstanding,
    /// and only then; what it overdrew must be granted again first.
    #[test]
    fn a_frame_fits_or_is_alone() {
        let mut left = FetchCredit::open(Some(&credit(1_000, 10)), 1_000).expect("open");
        assert!(left.fits(5_000, 3));
        left.spend(400, 3);
        assert!(left.fits(600, 7) && !left.fits(601, 1) && !left.fits(1, 8));
        left.spend(600, 2);
        assert!(!left.has_room() && !left.fits(1, 1));
        left.grant(credit(999, 0)).expect("grant");
        assert!(!left.fits(1_000, 1), "one byte is outstanding");
        left.grant(credit(1, 5)).expect("grant");
        assert!(left.fits(5_000, 50));
        left.spend(5_000, 1);
        assert_eq!(left.left(), credit(-4_000, 9));
        left.grant(credit(4_500, 0)).expect("grant");
        assert_eq!(left.read_bytes(), 500);
    }

    #[test]
    fn later_grants_are_checked_and_change_nothing_when_refused() {
        let mut left = FetchCredit::open(Some(&credit(1_000, 10)), 0).expect("open");
        for bad in [
            credit(-1, 0),
            credit(0, -1),
            credit(i64::MAX, 0),
            credit(0, i64::MAX),
        ] {
            assert_eq!(
                left.grant(bad).expect_err("refused").code,
                ErrorCode::InvalidCredit
            );
            assert_eq!(left.left(), credit(1_000, 10));
        }
        left.grant(credit(0, 0)).expect("nothing is allowed");
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
