//! Zigzag varints, in the one shortest form only.
//!
//! Kafka's decoders also take longer forms of the same value. Refusing them
//! makes the encoding of a record unique, so that decoding and encoding again
//! gives the same bytes.

use crate::error::RecordFault;

/// Takes an `i32` off the front of `rest`.
#[inline]
pub(crate) fn take_i32(rest: &mut &[u8]) -> Result<i32, RecordFault> {
    let raw = match **rest {
        [first, ..] if first < 0x80 => {
            *rest = &rest[1..];
            u64::from(first)
        }
        _ => take_long(rest, 5)?,
    };
    let raw = u32::try_from(raw).map_err(|_| RecordFault::VarintOverlong)?;
    Ok((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
}

/// Takes an `i64` off the front of `rest`.
#[inline]
pub(crate) fn take_i64(rest: &mut &[u8]) -> Result<i64, RecordFault> {
    let raw = match **rest {
        [first, ..] if first < 0x80 => {
            *rest = &rest[1..];
            u64::from(first)
        }
        _ => take_long(rest, 10)?,
    };
    Ok((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
}

fn take_long(rest: &mut &[u8], longest: usize) -> Result<u64, RecordFault> {
    let mut raw = 0_u64;
    for (at, byte) in rest.iter().copied().enumerate().take(longest) {
        // The tenth byte has room for bit 63 alone.
        if at == 9 && byte > 1 {
            return Err(RecordFault::VarintOverlong);
        }
        raw |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            if byte == 0 && at > 0 {
                return Err(RecordFault::VarintOverlong);
            }
            *rest = &rest[at + 1..];
            return Ok(raw);
        }
    }
    Err(if rest.len() < longest {
        RecordFault::VarintCut
    } else {
        RecordFault::VarintOverlong
    })
}

pub(crate) fn put_i32(out: &mut Vec<u8>, value: i32) {
    put_i64(out, value.into());
}

/// An `i32` has the same zigzag form as the equal `i64`.
pub(crate) fn put_i64(out: &mut Vec<u8>, value: i64) {
    let mut raw = zigzag(value);
    while raw >= 0x80 {
        out.push((raw & 0x7f) as u8 | 0x80);
        raw >>= 7;
    }
    out.push(raw as u8);
}

/// Bytes that [`put_i64`] writes.
pub(crate) fn size_i64(value: i64) -> usize {
    let bits = 64 - (zigzag(value) | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_values_have_their_known_bytes() {
        let table: &[(i64, &[u8])] = &[
            (0, &[0]),
            (-1, &[1]),
            (1, &[2]),
            (63, &[0x7e]),
            (-64, &[0x7f]),
            (64, &[0x80, 1]),
            (-65, &[0x81, 1]),
            (i64::from(i32::MAX), &[0xfe, 0xff, 0xff, 0xff, 0x0f]),
            (i64::from(i32::MIN), &[0xff, 0xff, 0xff, 0xff, 0x0f]),
            (
                i64::MIN,
                &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            ),
        ];
        for (value, bytes) in table {
            let mut out = Vec::new();
            put_i64(&mut out, *value);
            assert_eq!(out, *bytes, "{value}");
            assert_eq!(size_i64(*value), bytes.len(), "{value}");
        }
    }

    #[test]
    fn a_cut_varint_is_told_from_an_overlong_one() {
        use RecordFault::{VarintCut, VarintOverlong};
        let table: &[(&[u8], RecordFault)] = &[
            (&[], VarintCut),
            (&[0x80], VarintCut),
            (&[0xff, 0xff, 0xff, 0xff], VarintCut),
            (&[0x80, 0], VarintOverlong),
            (&[0xff, 0xff, 0xff, 0xff, 0x10], VarintOverlong),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0x01], VarintOverlong),
        ];
        for (bytes, fault) in table {
            assert_eq!(take_i32(&mut &**bytes), Err(*fault), "{bytes:?}");
        }
        assert_eq!(take_i64(&mut &[0xff; 9][..]), Err(VarintCut));
        assert_eq!(take_i64(&mut &[0xff; 10][..]), Err(VarintOverlong));
        let mut above_64_bits = [0xff; 10];
        above_64_bits[9] = 2;
        assert_eq!(take_i64(&mut &above_64_bits[..]), Err(VarintOverlong));
    }

    proptest! {
        #[test]
        fn every_value_comes_back_and_what_follows_stays(value: i64, small: i32, tail: Vec<u8>) {
            let mut bytes = Vec::new();
            put_i64(&mut bytes, value);
            prop_assert_eq!(bytes.len(), size_i64(value));
            put_i32(&mut bytes, small);
            bytes.extend(&tail);
            let mut rest = &bytes[..];
            prop_assert_eq!(take_i64(&mut rest), Ok(value));
            prop_assert_eq!(take_i32(&mut rest), Ok(small));
            prop_assert_eq!(rest, &tail[..]);
        }

        #[test]
        fn what_decodes_encodes_to_the_same_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            let mut rest = &bytes[..];
            if let Ok(value) = take_i64(&mut rest) {
                let mut again = Vec::new();
                put_i64(&mut again, value);
                prop_assert_eq!(&again[..], &bytes[..bytes.len() - rest.len()]);
            }
        }
    }
}
