//! The unique images: PNG files of noise, from 37 to 594 KB in equal steps, with exact sizes.

use std::io::Write as _;

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use tympan_lab_plan::random_number;

/// Number of different files.
pub const UNIQUE_IMAGES: u64 = 400;
/// Size of the smallest file: 37 KB.
pub const MIN_IMAGE_BYTES: u64 = 37 * 1024;
/// Size of the largest file: 594 KB.
pub const MAX_IMAGE_BYTES: u64 = 594 * 1024;

/// Returns the size in bytes of the unique file `number`; the seed selects the assignment of sizes.
pub(super) fn image_size(seed: u64, number: u64) -> u64 {
    // A step width without a common divisor visits every step once.
    let step =
        (number % UNIQUE_IMAGES * 137 + random_number(seed, 0) % UNIQUE_IMAGES) % UNIQUE_IMAGES;
    MIN_IMAGE_BYTES + step * (MAX_IMAGE_BYTES - MIN_IMAGE_BYTES) / (UNIQUE_IMAGES - 1)
}

/// Returns the content of the unique file `number`.
pub(super) fn generate_png(seed: u64, number: u64) -> Vec<u8> {
    let size = usize::try_from(image_size(seed, number)).unwrap_or(0);
    // Reserve space for the file's framing, for the overhead of stored blocks (one per 16 KB or more), and for the
    // padding.
    let pixels = (size - size / 1000 - 400) / 3;
    let width = ((pixels as f64 * 4.0 / 3.0).sqrt() as usize).max(1);
    let height = (size - size / 1000 - 400) / (width * 3 + 1);
    let mut rows = Vec::with_capacity(height * (width * 3 + 1));
    let mut index = 0;
    for _ in 0..height {
        // The filter type of the row: none.
        rows.extend([0]);
        let mut left = width * 3;
        while left > 0 {
            let noise = random_number(seed ^ number.wrapping_mul(0x9E37), index).to_le_bytes();
            let part = left.min(noise.len());
            rows.extend_from_slice(noise.get(..part).unwrap_or_default());
            left -= part;
            index += 1;
        }
    }
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::none());
    // Writing to memory cannot fail.
    packed.write_all(&rows).ok();
    let packed = packed.finish().unwrap_or_default();
    let mut head = Vec::new();
    for length in [width, height] {
        head.extend_from_slice(&u32::try_from(length).unwrap_or(1).to_be_bytes());
    }
    head.extend_from_slice(&[8, 2, 0, 0, 0]);
    let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
    write_png_chunk(&mut out, b"IHDR", &head);
    write_png_chunk(&mut out, b"IDAT", &packed);
    // A comment pads the file to the required size; the framing of a chunk takes 12 bytes, and so does IEND.
    let filling = size.saturating_sub(out.len() + 24);
    let mut comment = b"Comment\0".to_vec();
    comment.resize(filling.max(comment.len()), b'.');
    write_png_chunk(&mut out, b"tEXt", &comment);
    write_png_chunk(&mut out, b"IEND", &[]);
    out
}

fn write_png_chunk(out: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    out.extend_from_slice(&u32::try_from(data.len()).unwrap_or(0).to_be_bytes());
    out.extend_from_slice(kind);
    out.extend_from_slice(data);
    let mut sum = Crc::new();
    sum.update(kind);
    sum.update(data);
    out.extend_from_slice(&sum.sum().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Read as _;

    use super::*;

    #[test]
    fn the_files_are_all_different_and_span_the_sizes() {
        let sizes: BTreeSet<u64> = (0..UNIQUE_IMAGES).map(|number| image_size(7, number)).collect();
        assert_eq!(sizes.len(), 400);
        assert_eq!((sizes.first(), sizes.last()), (Some(&MIN_IMAGE_BYTES), Some(&MAX_IMAGE_BYTES)));
        assert_eq!(image_size(7, 3), image_size(7, 403));
    }

    #[test]
    fn a_file_is_a_png_of_exactly_its_size() {
        for number in [0, 1, 57, 200, 399] {
            let bytes = generate_png(7, number);
            assert_eq!(bytes.len() as u64, image_size(7, number), "{number}");
            let read_u32 =
                |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
            let (width, height) = (read_u32(16), read_u32(20));
            let length = read_u32(33);
            assert_eq!(&bytes[37..41], b"IDAT");
            let mut rows = Vec::new();
            flate2::read::ZlibDecoder::new(&bytes[41..41 + length]).read_to_end(&mut rows).unwrap();
            assert_eq!(rows.len(), height * (width * 3 + 1), "{number}");
            assert_eq!(bytes[bytes.len() - 8..bytes.len() - 4], *b"IEND");
        }
        assert_ne!(generate_png(7, 0), generate_png(7, 1));
        assert_eq!(generate_png(7, 5), generate_png(7, 5));
    }
}
