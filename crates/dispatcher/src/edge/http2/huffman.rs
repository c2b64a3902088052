//! The Huffman code of RFC 7541, appendix B.
//!
//! The code is canonical: symbols of one length have consecutive codes in order of length. The lengths therefore define
//! it completely.

use std::sync::LazyLock;

/// The code length of each byte in bits; the end-of-string symbol, which is never sent, would be the last code of 30
/// bits.
const CODE_LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

/// The lengths of the shortest and the longest code.
const MIN_CODE_LENGTH: u8 = 5;
const MAX_CODE_LENGTH: u8 = 30;

static HUFFMAN_CODE: LazyLock<HuffmanCode> = LazyLock::new(HuffmanCode::new);

#[derive(Debug)]
struct HuffmanCode {
    /// The code of each byte.
    codes: Vec<u32>,
    /// For each value of the next eight bits, the byte whose code they begin with, and its length; the length is 0 if
    /// the code is longer.
    short_codes: Vec<(u8, u8)>,
    /// The codes longer than eight bits.
    long_codes: Vec<HuffmanLengthGroup>,
}

/// The codes of one length.
#[derive(Debug)]
struct HuffmanLengthGroup {
    bits: u8,
    first_code: u32,
    /// The bytes with this code length, in the order of the codes.
    symbols: Vec<u8>,
}

impl HuffmanCode {
    fn new() -> Self {
        let mut codes = vec![0; CODE_LENGTHS.len()];
        let mut short = vec![(0, 0); 256];
        let mut long = Vec::new();
        let mut next = 0_u32;
        for bits in MIN_CODE_LENGTH..=MAX_CODE_LENGTH {
            let of_length = (0..=u8::MAX).zip(CODE_LENGTHS).filter(|(_, length)| *length == bits);
            let bytes: Vec<u8> = of_length.map(|(byte, _)| byte).collect();
            let first = next;
            for (byte, slot) in bytes.iter().zip(first..) {
                if let Some(code) = codes.get_mut(usize::from(*byte)) {
                    *code = slot;
                }
                if bits <= 8 {
                    let begin = (slot << (8 - bits)) as usize;
                    let entries = short.get_mut(begin..begin + (1 << (8 - bits)));
                    entries.unwrap_or_default().fill((*byte, bits));
                }
                next = slot + 1;
            }
            if bits > 8 && !bytes.is_empty() {
                long.push(HuffmanLengthGroup { bits, first_code: first, symbols: bytes });
            }
            next <<= 1;
        }
        Self { codes, short_codes: short, long_codes: long }
    }
}

/// Returns the encoded length of `text` in bytes.
pub(super) fn huffman_encoded_length(text: &[u8]) -> usize {
    let bits =
        |byte: &u8| CODE_LENGTHS.get(usize::from(*byte)).map_or(0, |bits| usize::from(*bits));
    text.iter().map(bits).sum::<usize>().div_ceil(8)
}

/// Appends the encoded `text` to `out`.
pub(super) fn huffman_encode(text: &[u8], out: &mut Vec<u8>) {
    let (mut bit_buffer, mut count) = (0_u64, 0_u32);
    for byte in text {
        let index = usize::from(*byte);
        let (Some(code), Some(bits)) = (HUFFMAN_CODE.codes.get(index), CODE_LENGTHS.get(index))
        else {
            continue;
        };
        bit_buffer = bit_buffer << bits | u64::from(*code);
        count += u32::from(*bits);
        while count >= 8 {
            count -= 8;
            out.push((bit_buffer >> count & 0xff) as u8);
        }
    }
    if count > 0 {
        // The rest of the last byte is the beginning of the end-of-string code, which is all ones.
        out.push((bit_buffer << (8 - count) & 0xff) as u8 | 0xff >> count);
    }
}

/// Appends the decoded text to `out`; `None` if the code is invalid.
pub(super) fn huffman_decode(code: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let table = &*HUFFMAN_CODE;
    let mut rest = code.iter();
    // The next bits are the most significant ones.
    let (mut bit_buffer, mut count) = (0_u64, 0_u32);
    loop {
        while count <= 56 {
            let Some(byte) = rest.next() else { break };
            bit_buffer |= u64::from(*byte) << (56 - count);
            count += 8;
        }
        let (byte, bits) = *table.short_codes.get((bit_buffer >> 56) as usize)?;
        let (byte, bits) = match bits {
            0 => match find_long_code(table, bit_buffer) {
                Some(symbol) => symbol,
                None => return is_valid_padding(bit_buffer, count).then_some(()),
            },
            bits => (byte, bits),
        };
        if u32::from(bits) > count {
            return is_valid_padding(bit_buffer, count).then_some(());
        }
        out.push(byte);
        bit_buffer <<= bits;
        count -= u32::from(bits);
    }
}

fn find_long_code(table: &HuffmanCode, bit_buffer: u64) -> Option<(u8, u8)> {
    table.long_codes.iter().find_map(|length| {
        let code = (bit_buffer >> (64 - u32::from(length.bits))) as u32;
        let index = code.checked_sub(length.first_code)?;
        Some((*length.symbols.get(index as usize)?, length.bits))
    })
}

/// Returns true if the last bits are ones and fewer than eight.
fn is_valid_padding(bit_buffer: u64, count: u32) -> bool {
    count < 8 && (count == 0 || bit_buffer >> (64 - count) == (1 << count) - 1)
}

#[cfg(test)]
mod tests {
    use super::{huffman_decode, huffman_encode, huffman_encoded_length};
    use proptest::prelude::*;

    fn decoded(code: &[u8]) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        huffman_decode(code, &mut text).map(|()| text)
    }

    #[test]
    fn texts_of_the_specification() {
        let custom = [0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf];
        for (text, code) in [
            ("www.example.com", &b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"[..]),
            ("no-cache", b"\xa8\xeb\x10\x64\x9c\xbf"),
            ("custom-value", &custom),
            ("302", b"\x64\x02"),
            ("private", b"\xae\xc3\x77\x1a\x4b"),
        ] {
            let mut encoded = Vec::new();
            huffman_encode(text.as_bytes(), &mut encoded);
            assert_eq!(encoded, code, "{text}");
            assert_eq!(decoded(code).as_deref(), Some(text.as_bytes()));
        }
    }

    #[test]
    fn what_ends_wrongly_is_no_text() {
        // The code of `0` is five zeros.
        assert_eq!(decoded(&[0x07]), Some(b"0".to_vec()));
        assert_eq!(decoded(&[0x06]), None, "padded with something else");
        assert_eq!(decoded(&[0x07, 0xff]), None, "a byte of padding");
        assert_eq!(decoded(&[0xff; 4]), None, "the end of a string");
        assert_eq!(decoded(&[0xff]), None);
        assert_eq!(decoded(&[]), Some(Vec::new()));
    }

    proptest! {
        #[test]
        fn every_text_comes_back(text in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut code = Vec::new();
            huffman_encode(&text, &mut code);
            prop_assert_eq!(code.len(), huffman_encoded_length(&text));
            prop_assert_eq!(decoded(&code), Some(text));
        }

        #[test]
        fn what_is_a_code_is_the_code_of_its_text(code in proptest::collection::vec(any::<u8>(), 0..16)) {
            if let Some(text) = decoded(&code) {
                let mut again = Vec::new();
                huffman_encode(&text, &mut again);
                prop_assert_eq!(again, code);
            }
        }
    }
}
