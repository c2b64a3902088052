//! Primitives of the stored form of documents: variable-length numbers and length-prefixed bytes.
//!
//! Reading never panics: every function returns `None` if bytes are missing or invalid.

/// Appends a number with 7 bits per byte, low bits first.
pub(crate) fn write_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends a signed number, encoded so that small numbers of either sign are short.
pub(crate) fn write_signed_varint(out: &mut Vec<u8>, number: i64) {
    write_varint(out, ((number << 1) ^ (number >> 63)).cast_unsigned());
}

/// Appends the length of the bytes, then the bytes.
pub(crate) fn write_length_prefixed(out: &mut Vec<u8>, bytes: &[u8]) {
    write_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A read position in stored bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ByteCursor<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> ByteCursor<'a> {
    /// Creates a cursor at offset `at`.
    #[inline]
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, offset: at }
    }

    /// Returns the offset from the start of the bytes.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// Returns true if no bytes remain.
    pub(crate) fn is_at_end(&self) -> bool {
        self.offset >= self.bytes.len()
    }

    /// Reads a byte.
    #[inline]
    pub(crate) fn read_byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.offset)?;
        self.offset += 1;
        Some(byte)
    }

    /// Reads a number.
    #[inline]
    pub(crate) fn read_varint(&mut self) -> Option<u64> {
        // Fast path: nearly every number fits one byte.
        if let Some(byte) = self.bytes.get(self.offset).filter(|byte| **byte < 0x80) {
            self.offset += 1;
            return Some(u64::from(*byte));
        }
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.read_byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// Reads a number that is a count or a length in memory.
    #[inline]
    pub(crate) fn read_length(&mut self) -> Option<usize> {
        self.read_varint()?.try_into().ok()
    }

    /// Reads a signed number.
    pub(crate) fn read_signed_varint(&mut self) -> Option<i64> {
        let number = self.read_varint()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    /// Reads `length` bytes.
    #[inline]
    pub(crate) fn read_exact_bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let end = self.offset.checked_add(length)?;
        let bytes = self.bytes.get(self.offset..end)?;
        self.offset = end;
        Some(bytes)
    }

    /// Reads length-prefixed bytes.
    #[inline]
    pub(crate) fn read_prefixed_bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.read_length()?;
        self.read_exact_bytes(length)
    }

    /// Reads a length-prefixed text.
    #[inline]
    pub(crate) fn read_prefixed_text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.read_prefixed_bytes()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_back() {
        let mut out = Vec::new();
        let numbers = [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX];
        let signed = [0, -1, 1, i64::MIN, i64::MAX, -300];
        numbers.iter().for_each(|number| write_varint(&mut out, *number));
        signed.iter().for_each(|number| write_signed_varint(&mut out, *number));
        let mut cursor = ByteCursor::new(&out, 0);
        numbers.iter().for_each(|number| assert_eq!(cursor.read_varint(), Some(*number)));
        signed.iter().for_each(|number| assert_eq!(cursor.read_signed_varint(), Some(*number)));
        assert!(cursor.is_at_end() && cursor.read_varint().is_none());
        assert_eq!(ByteCursor::new(&[0xff; 11], 0).read_varint(), None);
        assert_eq!(ByteCursor::new(&[5, 1], 0).read_prefixed_bytes(), None);
    }
}
