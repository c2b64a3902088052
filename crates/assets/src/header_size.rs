//! Reads the dimensions of a picture or video from its header, for formats that are not decoded here.
//!
//! Pure. Truncated or invalid data has no size. Nothing is allocated based on the header's claims.

use crate::file_format::FileFormat;
use crate::image_size::ImageSize;

/// Maximum number of TIFF directory entries that are read.
const MAX_TIFF_ENTRIES: usize = 4096;
/// Maximum number of boxes that are read per level.
const MAX_BOXES_PER_LEVEL: usize = 4096;

/// Returns the size of a picture as displayed.
pub(crate) fn read_header_size(bytes: &[u8], format: FileFormat) -> Option<ImageSize> {
    let size = match format {
        FileFormat::Photoshop => {
            ImageSize { width: read_u32_be(bytes, 18)?, height: read_u32_be(bytes, 14)? }
        }
        FileFormat::Heif | FileFormat::Avif => image_item_size(bytes)?,
        FileFormat::Jpeg2000 => {
            let header = find_box(find_box(bytes, *b"jp2h")?, *b"ihdr")?;
            ImageSize { width: read_u32_be(header, 4)?, height: read_u32_be(header, 0)? }
        }
        FileFormat::Tiff => tiff_size(bytes)?,
        FileFormat::Matroska | FileFormat::WebM => matroska_size(bytes)?,
        _ => return None,
    };
    (size.width > 0 && size.height > 0).then_some(size)
}

fn read_u32_be(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes(four.try_into().ok()?))
}

/// Splits off the first box: its type, its content, and the bytes that follow.
fn split_first_box(bytes: &[u8]) -> Option<([u8; 4], &[u8], &[u8])> {
    let kind: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
    let (begin, end) = match read_u32_be(bytes, 0)? {
        0 => (8, bytes.len()),
        1 => {
            let length = u64::from_be_bytes(bytes.get(8..16)?.try_into().ok()?);
            (16, usize::try_from(length).ok()?)
        }
        length => (8, usize::try_from(length).ok()?),
    };
    // A truncated box may still contain the requested data.
    let end = end.min(bytes.len());
    Some((kind, bytes.get(begin..end)?, bytes.get(end..)?))
}

/// Returns the boxes of a level.
fn iter_boxes(bytes: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    let mut rest = bytes;
    let next = move || {
        let (kind, content, behind) = split_first_box(rest)?;
        rest = behind;
        Some((kind, content))
    };
    std::iter::from_fn(next).take(MAX_BOXES_PER_LEVEL)
}

fn find_box(bytes: &[u8], box_kind: [u8; 4]) -> Option<&[u8]> {
    iter_boxes(bytes).find(|(kind, _)| *kind == box_kind).map(|(_, content)| content)
}

/// Returns the size of the largest picture in an image file, to which thumbnails and tiles belong.
fn image_item_size(bytes: &[u8]) -> Option<ImageSize> {
    // Version and flags precede the boxes.
    let meta = find_box(bytes, *b"meta")?.get(4..)?;
    let properties = find_box(find_box(meta, *b"iprp")?, *b"ipco")?;
    let extents = iter_boxes(properties).filter(|(kind, _)| kind == b"ispe");
    let sizes = extents.filter_map(|(_, extent)| {
        Some(ImageSize { width: read_u32_be(extent, 4)?, height: read_u32_be(extent, 8)? })
    });
    let size = sizes.max_by_key(|size| size.pixel_count())?;
    let quarters = find_box(properties, *b"irot").and_then(|turn| turn.first().copied());
    Some(if quarters.is_some_and(|quarters| quarters & 1 == 1) { size.transposed() } else { size })
}

/// Splits off the first EBML element (RFC 8794): its ID including the length marker, its content, and the bytes that
/// follow.
fn split_first_element(bytes: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let number_length = bytes.first()?.leading_zeros() as usize + 1;
    if number_length > 4 {
        return None;
    }
    let number =
        bytes.get(..number_length)?.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
    let rest = bytes.get(number_length..)?;
    let first = *rest.first()?;
    let length_bytes = first.leading_zeros() as usize + 1;
    if length_bytes > 8 {
        return None;
    }
    let mask = u64::MAX >> (64 - 7 * length_bytes);
    let length = rest.get(..length_bytes)?.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let length = length & mask;
    let rest = rest.get(length_bytes..)?;
    // A length with all bits set extends to the end. A truncated element may still contain the requested data.
    let end = match length == mask {
        true => rest.len(),
        false => usize::try_from(length).ok()?.min(rest.len()),
    };
    Some((number, rest.get(..end)?, rest.get(end..)?))
}

/// Returns the elements of a level.
fn iter_elements(bytes: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    let mut rest = bytes;
    let next = move || {
        let (number, content, behind) = split_first_element(rest)?;
        rest = behind;
        Some((number, content))
    };
    std::iter::from_fn(next).take(MAX_BOXES_PER_LEVEL)
}

/// Returns the size of the first video track of Matroska and WebM (RFC 9559).
fn matroska_size(bytes: &[u8]) -> Option<ImageSize> {
    const SEGMENT: u32 = 0x1853_8067;
    const TRACKS: u32 = 0x1654_AE6B;
    const TRACK: u32 = 0xAE;
    const VIDEO: u32 = 0xE0;
    const WIDTH: u32 = 0xB0;
    const HEIGHT: u32 = 0xBA;
    let within = |bytes, element_id| iter_elements(bytes).find(|(number, _)| *number == element_id);
    let (_, segment) = within(bytes, SEGMENT)?;
    let (_, tracks) = within(segment, TRACKS)?;
    let mut tracks = iter_elements(tracks).filter(|(number, _)| *number == TRACK);
    let video = tracks.find_map(|(_, track)| within(track, VIDEO))?.1;
    let pixels = |element_id| {
        let digits = within(video, element_id)?.1;
        (digits.len() <= 4).then(|| digits.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
    };
    Some(ImageSize { width: pixels(WIDTH)?, height: pixels(HEIGHT)? })
}

/// Reads the first directory of a TIFF.
fn tiff_size(bytes: &[u8]) -> Option<ImageSize> {
    let is_little = bytes.starts_with(b"II");
    let number = |at: usize, length: usize| {
        let digits = bytes.get(at..at.checked_add(length)?)?.iter();
        let add = |sum: u32, digit: &u8| (sum << 8) | u32::from(*digit);
        Some(if is_little { digits.rev().fold(0, add) } else { digits.fold(0, add) })
    };
    let directory = usize::try_from(number(4, 4)?).ok()?;
    let count = usize::try_from(number(directory, 2)?).ok()?.min(MAX_TIFF_ENTRIES);
    let (mut width, mut height, mut orientation) = (None, None, 1);
    for entry in 0..count {
        let at = directory.checked_add(2 + 12 * entry)?;
        // A short occupies the first half of a long's field.
        let length = if number(at + 2, 2)? == 3 { 2 } else { 4 };
        let value = number(at + 8, length)?;
        match number(at, 2)? {
            256 => width = Some(value),
            257 => height = Some(value),
            274 => orientation = value,
            _ => {}
        }
    }
    let size = ImageSize { width: width?, height: height? };
    Some(if (5..=8).contains(&orientation) { size.transposed() } else { size })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], format: FileFormat, expected: Option<(u32, u32)>) {
        let size = read_header_size(bytes, format).map(|size| (size.width, size.height));
        assert_eq!(size, expected);
        // No prefix causes a panic.
        for end in 0..bytes.len() {
            read_header_size(&bytes[..end], format);
        }
    }

    fn boxed(kind: &[u8; 4], content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(8 + content.len()).unwrap();
        [&length.to_be_bytes()[..], kind, content].concat()
    }

    fn heif(properties: &[u8]) -> Vec<u8> {
        let properties = boxed(b"iprp", &boxed(b"ipco", properties));
        let meta = [&[0; 4][..], &boxed(b"hdlr", b"pict"), &properties].concat();
        [boxed(b"ftyp", b"heic\0\0\0\0mif1"), boxed(b"meta", &meta)].concat()
    }

    fn extent(width: u32, height: u32) -> Vec<u8> {
        let sides = [width.to_be_bytes(), height.to_be_bytes()].concat();
        boxed(b"ispe", &[&[0; 4][..], &sides].concat())
    }

    #[test]
    fn headers_tell_sizes() {
        let photoshop = b"8BPS\0\x01\0\0\0\0\0\0\0\x03\0\0\0\x50\0\0\0\x78\0\x08\0\x03";
        check(photoshop, FileFormat::Photoshop, Some((0x78, 0x50)));
        check(&heif(&extent(120, 80)), FileFormat::Heif, Some((120, 80)));
        let turned = [extent(512, 512), extent(4032, 3024), boxed(b"irot", &[3])].concat();
        check(&heif(&turned), FileFormat::Heif, Some((3024, 4032)));
        check(&heif(&extent(0, 80)), FileFormat::Avif, None);
        check(&heif(b""), FileFormat::Heif, None);
        let header = boxed(b"ihdr", &[0, 0, 0, 100, 0, 0, 1, 0, 0, 3, 7, 7, 0, 0]);
        let signature = boxed(b"jP  ", b"\r\n\x87\n");
        let picture = [signature, boxed(b"jp2h", &header)].concat();
        check(&picture, FileFormat::Jpeg2000, Some((256, 100)));
        let directory = b"\x03\0\0\x01\x03\0\x01\0\0\0\x40\x01\0\0\x01\x01\x04\0\x01\0\0\0\xc8\0\0\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
        let tiff = [&b"II*\0\x08\0\0\0"[..], directory].concat();
        check(&tiff, FileFormat::Tiff, Some((200, 320)));
        let directory =
            b"\0\x02\x01\0\0\x03\0\0\0\x01\x01\x40\0\0\x01\x01\0\x04\0\0\0\x01\0\0\0\xc8";
        let tiff = [&b"MM\0*\0\0\0\x08"[..], directory].concat();
        check(&tiff, FileFormat::Tiff, Some((320, 200)));
        check(b"plain", FileFormat::Png, None);
    }

    fn element(number: &[u8], content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len()).unwrap() | 0x1000_0000;
        [number, &length.to_be_bytes(), content].concat()
    }

    #[test]
    fn films_tell_their_size() {
        let head = element(b"\x1a\x45\xdf\xa3", &element(b"\x42\x82", b"webm"));
        let sound = element(b"\xae", &element(b"\xe1", b""));
        let sides = [element(b"\xb0", &[0x02, 0x80]), element(b"\xba", &[0x01, 0x68])].concat();
        let film = element(b"\xae", &[element(b"\xd7", &[2]), element(b"\xe0", &sides)].concat());
        let tracks = element(b"\x16\x54\xae\x6b", &[sound.clone(), film].concat());
        let info = element(b"\x15\x49\xa9\x66", &element(b"\x44\x89", &1500_f32.to_be_bytes()));
        let inner = [info, tracks].concat();
        let whole = [head.clone(), element(b"\x18\x53\x80\x67", &inner)].concat();
        check(&whole, FileFormat::WebM, Some((640, 360)));
        // In a live stream the length of the segment is unknown.
        let live =
            [&head[..], b"\x18\x53\x80\x67\x01\xff\xff\xff\xff\xff\xff\xff", &inner].concat();
        check(&live, FileFormat::Matroska, Some((640, 360)));
        let audio_tracks = element(b"\x16\x54\xae\x6b", &sound);
        let audio_file = [head, element(b"\x18\x53\x80\x67", &audio_tracks)].concat();
        check(&audio_file, FileFormat::WebM, None);
    }
}
