//! Cutting files into pieces where their content says so, as restic does: a Rabin fingerprint over 64 bytes.
//!
//! In: bytes, and the polynomial of the vault. Out: the length of the first piece.
//!
//! Invariant: the cuts are those of restic with the same polynomial, so that both share pieces.

use crate::error::Result;
use crate::seal::fill_random;

const WINDOW: usize = 64;
/// No piece is shorter, but the last of a file.
pub(crate) const MIN_PIECE: usize = 512 * 1024;
/// No piece is longer.
pub(crate) const MAX_PIECE: usize = 8 * 1024 * 1024;
/// A piece ends where these bits of the fingerprint are zero: every 1 MiB in the mean.
const MASK: u64 = (1 << 20) - 1;
const DEGREE: u32 = 53;

/// Cuts by one polynomial.
#[derive(Clone)]
pub(crate) struct Cutter {
    out: [u64; 256],
    modulo: [u64; 256],
    shift: u32,
}

impl std::fmt::Debug for Cutter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cutter").finish_non_exhaustive()
    }
}

impl Cutter {
    /// Prepares the tables of a polynomial; nothing if its degree is below 8.
    pub(crate) fn new(polynomial: u64) -> Option<Self> {
        let degree = degree(polynomial)?;
        let shift = degree.checked_sub(8)?;
        let (mut out, mut modulo) = ([0; 256], [0; 256]);
        for (byte, (out, modulo)) in (0..).zip(out.iter_mut().zip(modulo.iter_mut())) {
            let mut hash = reduce(u128::from(byte as u64), polynomial);
            for _ in 1..WINDOW {
                hash = reduce(u128::from(hash) << 8, polynomial);
            }
            *out = hash;
            let high = (byte as u128) << degree;
            *modulo = reduce(high, polynomial) | (high as u64);
        }
        Some(Self { out, modulo, shift })
    }

    /// Returns the length of the first piece of `bytes`, which are all that is left of a file or at least
    /// [`MAX_PIECE`] of them.
    pub(crate) fn first(&self, bytes: &[u8]) -> usize {
        if bytes.len() <= MIN_PIECE {
            return bytes.len();
        }
        let bytes = bytes.get(..MAX_PIECE).unwrap_or(bytes);
        let (head, tail) = bytes.split_at(MIN_PIECE);
        let mut hash = 0;
        for byte in head.iter().skip(MIN_PIECE - WINDOW) {
            hash = self.append(hash, *byte);
        }
        let leaving = bytes.iter().skip(MIN_PIECE - WINDOW);
        let mut length = MIN_PIECE;
        for (byte, gone) in tail.iter().zip(leaving) {
            if hash & MASK == 0 {
                return length;
            }
            hash ^= self.out.get(usize::from(*gone)).copied().unwrap_or(0);
            hash = self.append(hash, *byte);
            length += 1;
        }
        length
    }

    fn append(&self, hash: u64, byte: u8) -> u64 {
        let index = (hash >> self.shift) as u8;
        (hash << 8 | u64::from(byte)) ^ self.modulo.get(usize::from(index)).copied().unwrap_or(0)
    }
}

/// Returns a random irreducible polynomial of degree 53, for a new vault.
pub(crate) fn random_polynomial() -> Result<u64> {
    loop {
        let mut bytes = [0; 8];
        fill_random(&mut bytes)?;
        let low = u64::from_le_bytes(bytes) & ((1 << DEGREE) - 1);
        let polynomial = 1 << DEGREE | low | 1;
        if is_irreducible(polynomial) {
            return Ok(polynomial);
        }
    }
}

/// Tells whether a polynomial of degree 53 has no factors: 53 is prime, so it must have no roots and divide
/// x^(2^53) - x.
fn is_irreducible(polynomial: u64) -> bool {
    if polynomial & 1 == 0 || polynomial.count_ones().is_multiple_of(2) {
        return false;
    }
    let mut power = 2;
    for _ in 0..DEGREE {
        power = reduce(multiply(power, power), polynomial);
    }
    power == 2
}

fn multiply(left: u64, right: u64) -> u128 {
    (0..64)
        .filter(|bit| right >> bit & 1 == 1)
        .fold(0, |product, bit| product ^ u128::from(left) << bit)
}

fn degree(polynomial: u64) -> Option<u32> {
    63_u32.checked_sub(polynomial.leading_zeros())
}

fn reduce(mut value: u128, polynomial: u64) -> u64 {
    let Some(degree) = degree(polynomial) else { return 0 };
    while let Some(high) = 127_u32.checked_sub(value.leading_zeros()).filter(|high| *high >= degree)
    {
        value ^= u128::from(polynomial) << (high - degree);
    }
    value as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_irreducible_polynomials() {
        assert!(is_irreducible(0x003d_a335_8b4d_c173));
        assert!(!is_irreducible(0x003d_a335_8b4d_c171));
        let made = random_polynomial().unwrap();
        assert_eq!(degree(made), Some(53));
    }

    #[test]
    fn pieces_keep_their_bounds_and_follow_content() {
        let cutter = Cutter::new(0x003d_a335_8b4d_c173).unwrap();
        let mut state = 1_u64;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .take(6 << 20)
        .collect();
        let cut = |mut rest: &[u8]| {
            let mut ends = Vec::new();
            while !rest.is_empty() {
                let length = cutter.first(rest);
                assert!(length <= MAX_PIECE && (length >= MIN_PIECE || length == rest.len()));
                rest = &rest[length..];
                ends.push(rest.len());
            }
            ends
        };
        let whole = cut(&bytes);
        assert!(whole.len() > 2);
        // An insertion at the start moves at most the first cuts.
        let mut shifted = vec![7; 1000];
        shifted.extend_from_slice(&bytes);
        assert!(cut(&shifted).iter().any(|end| whole.contains(end) && *end > 0));
    }
}
