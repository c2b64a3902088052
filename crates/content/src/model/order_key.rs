//! Order keys: short byte strings between any two of which another one fits.
//!
//! Children of an ordered container are sorted by their key, so an insertion writes one record whatever the number of
//! siblings. A key is a 4-byte big-endian number, then an optional fraction; keys compare bytewise.

use bytes::Bytes;

/// The position of a node among its ordered siblings; empty if siblings are not ordered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct OrderKey(pub(crate) Bytes);

/// The number of the first child: in the middle of the range, to leave space on both sides.
const FIRST_CHILD_NUMBER: u32 = 1 << 31;

impl OrderKey {
    /// Returns the key of an only child.
    pub(crate) fn first() -> Self {
        Self::from_whole_number(FIRST_CHILD_NUMBER)
    }

    /// Returns a key after `last`.
    pub(crate) fn after(last: &Self) -> Self {
        match last.whole_number().checked_add(1) {
            Some(next) => Self::from_whole_number(next),
            None => Self::between(last, &Self(Bytes::from_static(&[0xff; 40]))),
        }
    }

    /// Returns a key before `first`.
    pub(crate) fn before(first: &Self) -> Self {
        match first.whole_number().checked_sub(1) {
            Some(previous) => Self::from_whole_number(previous),
            None => Self::between(&Self(Bytes::from_static(&[0; 4])), first),
        }
    }

    /// Returns a key strictly between two keys, `low < high`.
    pub(crate) fn between(low: &Self, high: &Self) -> Self {
        let (from, to) = (low.whole_number(), high.whole_number());
        if to.saturating_sub(from) > 1 {
            return Self::from_whole_number(from + (to - from) / 2);
        }
        let mut key = Vec::with_capacity(low.0.len() + 1);
        let digit = |key: &Self, at: usize| key.0.get(at).copied().map(u16::from);
        let mut is_high_bound = true;
        for at in 0.. {
            let below = digit(low, at).unwrap_or(0);
            let above = if is_high_bound { digit(high, at).unwrap_or(0) } else { 256 };
            if above > below + 1 {
                key.push(u8::try_from(below + (above - below) / 2).unwrap_or(u8::MAX));
                break;
            }
            key.push(u8::try_from(below).unwrap_or(u8::MAX));
            is_high_bound &= above == below;
        }
        Self(key.into())
    }

    /// Returns true if the key is so long that its siblings should be renumbered.
    pub(crate) fn needs_renumbering(&self) -> bool {
        self.0.len() > 32
    }

    /// Returns the key as a 48-bit number, whose last 16 bits are the fraction, rounded down.
    pub(crate) fn to_rounded(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes.iter_mut().skip(2).zip(&self.0).for_each(|(byte, of_key)| *byte = *of_key);
        u64::from_be_bytes(bytes)
    }

    /// Returns the key for a 48-bit number.
    pub(crate) fn from_rounded(number: u64) -> Self {
        let [_, _, key @ ..] = number.to_be_bytes();
        let zeros = key.iter().skip(4).rev().take_while(|byte| **byte == 0).count();
        Self(Bytes::copy_from_slice(key.get(..key.len() - zeros).unwrap_or(&key)))
    }

    fn from_whole_number(number: u32) -> Self {
        Self(Bytes::copy_from_slice(&number.to_be_bytes()))
    }

    fn whole_number(&self) -> u32 {
        self.0.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_key_always_fits_between() {
        let mut keys = vec![OrderKey::first()];
        keys.push(OrderKey::after(&keys[0]));
        keys.insert(0, OrderKey::before(&keys[0]));
        let mut seed = 7_u32;
        for _ in 0..2000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let at = (seed >> 8) as usize % (keys.len() - 1);
            let key = OrderKey::between(&keys[at], &keys[at + 1]);
            assert!(
                keys[at] < key && key < keys[at + 1],
                "{:?} {key:?} {:?}",
                keys[at],
                keys[at + 1]
            );
            keys.insert(at + 1, key);
        }
        assert!(keys.is_sorted());
    }

    #[test]
    fn rounding_keeps_the_order() {
        for number in [0, 1, 255, 256, 65_535, 65_536, 0x8000_0000_0000, 0xffff_ffff_fffe] {
            assert_eq!(OrderKey::from_rounded(number).to_rounded(), number);
            assert!(OrderKey::from_rounded(number) < OrderKey::from_rounded(number + 1));
        }
        let between = OrderKey::between(
            &OrderKey::first(),
            &OrderKey::from_rounded(OrderKey::first().to_rounded() + 1),
        );
        assert_eq!(between.to_rounded(), OrderKey::first().to_rounded());
        assert_eq!(OrderKey::from_rounded(OrderKey::first().to_rounded()), OrderKey::first());
    }

    #[test]
    fn always_inserting_at_one_place_grows_slowly() {
        let (low, mut high) = (OrderKey::first(), OrderKey::after(&OrderKey::first()));
        for _ in 0..100 {
            high = OrderKey::between(&low, &high);
            assert!(low < high);
        }
        assert!(high.0.len() <= 20, "{}", high.0.len());
        let mut last = OrderKey::first();
        for _ in 0..100_000 {
            last = OrderKey::after(&last);
        }
        assert_eq!(last.0.len(), 4);
    }
}
