//! Content-defined chunking of files into pieces, as restic does it: a Rabin fingerprint over 64 bytes.
//!
//! In: bytes or a stream, and the polynomial of the vault. Out: the length of the first piece, or piece by piece.
//!
//! Invariants
//! * The boundaries are those of restic with the same polynomial, so that both share pieces.
//! * Of a stream, memory holds only the current piece and what was read along with its end.

use std::io::{self, Read};

use crate::error::Result;
use crate::vault_encryption::fill_random;

const RABIN_WINDOW_BYTES: usize = 64;
/// Minimum length of a piece, except the last of a file.
pub(crate) const MIN_PIECE_BYTES: usize = 512 * 1024;
/// Maximum length of a piece.
pub(crate) const MAX_PIECE_BYTES: usize = 8 * 1024 * 1024;
/// A piece ends where these bits of the fingerprint are zero: every 1 MiB on average.
const BOUNDARY_MASK: u64 = (1 << 20) - 1;
const POLYNOMIAL_DEGREE: u32 = 53;
/// Bytes of a stream that are read at a time.
const READ_BUFFER_BYTES: usize = 1 << 20;

/// Splits by one polynomial.
#[derive(Clone)]
pub(crate) struct PieceSplitter {
    removal_table: [u64; 256],
    modulo_table: [u64; 256],
    shift: u32,
}

impl std::fmt::Debug for PieceSplitter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PieceSplitter").finish_non_exhaustive()
    }
}

impl PieceSplitter {
    /// Prepares the tables of a polynomial; `None` if its degree is below 8.
    pub(crate) fn new(polynomial: u64) -> Option<Self> {
        let degree = polynomial_degree(polynomial)?;
        let shift = degree.checked_sub(8)?;
        let (mut out, mut modulo) = ([0; 256], [0; 256]);
        for (byte, (out, modulo)) in (0..).zip(out.iter_mut().zip(modulo.iter_mut())) {
            let mut hash = reduce_polynomial(u128::from(byte as u64), polynomial);
            for _ in 1..RABIN_WINDOW_BYTES {
                hash = reduce_polynomial(u128::from(hash) << 8, polynomial);
            }
            *out = hash;
            let high = (byte as u128) << degree;
            *modulo = reduce_polynomial(high, polynomial) | (high as u64);
        }
        Some(Self { removal_table: out, modulo_table: modulo, shift })
    }

    /// Returns the length of the first piece of `bytes`, which are the rest of a file or at least [`MAX_PIECE_BYTES`]
    /// of it.
    #[cfg(any(fuzzing, test))]
    pub(crate) fn first_piece_length(&self, bytes: &[u8]) -> usize {
        self.find_boundary(bytes, &mut PieceBoundarySearch::default()).unwrap_or(bytes.len())
    }

    /// Searches for the end of the first piece of `bytes`, continuing a search over fewer of them; `None` if more bytes
    /// are needed.
    fn find_boundary(&self, bytes: &[u8], search: &mut PieceBoundarySearch) -> Option<usize> {
        let bytes = bytes.get(..MAX_PIECE_BYTES).unwrap_or(bytes);
        if search.length == 0 {
            let window = bytes.get(MIN_PIECE_BYTES - RABIN_WINDOW_BYTES..MIN_PIECE_BYTES)?;
            search.fingerprint = window.iter().fold(0, |hash, byte| self.append_byte(hash, *byte));
            search.length = MIN_PIECE_BYTES;
        }
        let PieceBoundarySearch { fingerprint: mut hash, mut length } = *search;
        let (entering, leaving) = (bytes.get(length..)?, bytes.get(length - RABIN_WINDOW_BYTES..)?);
        for (byte, leaving_byte) in entering.iter().zip(leaving) {
            if hash & BOUNDARY_MASK == 0 {
                return Some(length);
            }
            hash ^= self.removal_table.get(usize::from(*leaving_byte)).copied().unwrap_or(0);
            hash = self.append_byte(hash, *byte);
            length += 1;
        }
        *search = PieceBoundarySearch { fingerprint: hash, length };
        (length == MAX_PIECE_BYTES).then_some(length)
    }

    fn append_byte(&self, hash: u64, byte: u8) -> u64 {
        let index = (hash >> self.shift) as u8;
        (hash << 8 | u64::from(byte))
            ^ self.modulo_table.get(usize::from(index)).copied().unwrap_or(0)
    }
}

/// State of the search for the end of a piece.
#[derive(Clone, Copy, Debug, Default)]
struct PieceBoundarySearch {
    /// The fingerprint of the preceding bytes.
    fingerprint: u64,
    /// Bytes already in the piece; 0 before it begins.
    length: usize,
}

/// Reads a stream piece by piece.
pub(crate) struct PieceReader<'a, R> {
    source: R,
    /// Without a splitter, each piece has the maximum length.
    splitter: Option<&'a PieceSplitter>,
    /// The last returned piece, and what was read after it.
    buffer: Vec<u8>,
    returned_bytes: usize,
    is_at_end: bool,
}

impl<'a, R: Read> PieceReader<'a, R> {
    /// Creates a reader for a stream with an expected length in bytes.
    pub(crate) fn new(source: R, cutter: Option<&'a PieceSplitter>, expected: u64) -> Self {
        let capacity =
            usize::try_from(expected).unwrap_or(READ_BUFFER_BYTES).min(READ_BUFFER_BYTES);
        // One more byte than expected, so that the end of the stream is detected without growing the buffer.
        let buffer = Vec::with_capacity(capacity + 1);
        Self { source, splitter: cutter, buffer, returned_bytes: 0, is_at_end: false }
    }

    /// Returns the next piece; `has_read` is called with the number of bytes read for it.
    pub(crate) fn next(&mut self, has_read: impl Fn(u64)) -> io::Result<Option<&[u8]>> {
        self.buffer.drain(..self.returned_bytes);
        let mut search = PieceBoundarySearch::default();
        let length = loop {
            let boundary = match self.splitter {
                Some(cutter) => cutter.find_boundary(&self.buffer, &mut search),
                None => Some(MAX_PIECE_BYTES).filter(|length| self.buffer.len() >= *length),
            };
            match boundary {
                Some(length) => break length,
                None if self.is_at_end => break self.buffer.len(),
                None => {}
            }
            let read_length = READ_BUFFER_BYTES.min(MAX_PIECE_BYTES - self.buffer.len());
            let read = (&mut self.source).take(read_length as u64).read_to_end(&mut self.buffer)?;
            self.is_at_end = read < read_length;
            if read > 0 {
                has_read(read as u64);
            }
        };
        self.returned_bytes = length;
        Ok(self.buffer.get(..length).filter(|piece| !piece.is_empty()))
    }
}

/// Returns a random irreducible polynomial of degree 53, for a new vault.
pub(crate) fn random_polynomial() -> Result<u64> {
    loop {
        let mut bytes = [0; 8];
        fill_random(&mut bytes)?;
        let low = u64::from_le_bytes(bytes) & ((1 << POLYNOMIAL_DEGREE) - 1);
        let polynomial = 1 << POLYNOMIAL_DEGREE | low | 1;
        if is_irreducible(polynomial) {
            return Ok(polynomial);
        }
    }
}

/// Returns true if a polynomial of degree 53 is irreducible: 53 is prime, so it must have no roots and divide x^(2^53)
/// - x.
fn is_irreducible(polynomial: u64) -> bool {
    if polynomial & 1 == 0 || polynomial.count_ones().is_multiple_of(2) {
        return false;
    }
    let mut power = 2;
    for _ in 0..POLYNOMIAL_DEGREE {
        power = reduce_polynomial(multiply_polynomials(power, power), polynomial);
    }
    power == 2
}

fn multiply_polynomials(left: u64, right: u64) -> u128 {
    (0..64)
        .filter(|bit| right >> bit & 1 == 1)
        .fold(0, |product, bit| product ^ u128::from(left) << bit)
}

fn polynomial_degree(polynomial: u64) -> Option<u32> {
    63_u32.checked_sub(polynomial.leading_zeros())
}

fn reduce_polynomial(mut value: u128, polynomial: u64) -> u64 {
    let Some(degree) = polynomial_degree(polynomial) else { return 0 };
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
        assert_eq!(polynomial_degree(made), Some(53));
    }

    /// Returns a fixed number of bytes per read.
    struct SteppedReader<'a> {
        bytes: &'a [u8],
        step: usize,
    }

    impl Read for SteppedReader<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let length = out.len().min(self.step).min(self.bytes.len());
            let (now, later) = self.bytes.split_at(length);
            out[..length].copy_from_slice(now);
            self.bytes = later;
            Ok(length)
        }
    }

    #[test]
    fn pieces_keep_their_bounds_and_follow_content() {
        let cutter = PieceSplitter::new(0x003d_a335_8b4d_c173).unwrap();
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
                let length = cutter.first_piece_length(rest);
                assert!(
                    length <= MAX_PIECE_BYTES
                        && (length >= MIN_PIECE_BYTES || length == rest.len())
                );
                rest = &rest[length..];
                ends.push(rest.len());
            }
            ends
        };
        let whole = cut(&bytes);
        assert!(whole.len() > 2);
        // The pieces of a stream do not depend on its read sizes.
        for (length, step) in [
            (bytes.len(), 1 << 30),
            (bytes.len(), 70_001),
            (MIN_PIECE_BYTES, 9_999),
            (READ_BUFFER_BYTES, READ_BUFFER_BYTES),
            (1, 1),
            (0, 1),
        ] {
            let stream = SteppedReader { bytes: &bytes[..length], step };
            let mut pieces = PieceReader::new(stream, Some(&cutter), 7);
            let (mut ends, read) = (Vec::new(), std::cell::Cell::new(0));
            let has_read = |bytes: u64| read.set(read.get() + bytes);
            while let Some(piece) = pieces.next(has_read).unwrap() {
                let begin = length - ends.last().copied().unwrap_or(length);
                assert_eq!(piece, &bytes[begin..begin + piece.len()]);
                ends.push(length - begin - piece.len());
            }
            assert_eq!(ends, cut(&bytes[..length]), "{length} in steps of {step}");
            assert_eq!(read.get(), length as u64);
        }
        // Without a splitter, each piece has the maximum length.
        let long = vec![1; MAX_PIECE_BYTES + 3];
        let mut pieces = PieceReader::new(long.as_slice(), None, 0);
        let mut lengths = Vec::new();
        while let Some(piece) = pieces.next(|_| ()).unwrap() {
            lengths.push(piece.len());
        }
        assert_eq!(lengths, [MAX_PIECE_BYTES, 3]);
        // An insertion at the start moves at most the first boundaries.
        let mut shifted = vec![7; 1000];
        shifted.extend_from_slice(&bytes);
        assert!(cut(&shifted).iter().any(|end| whole.contains(end) && *end > 0));
    }
}
