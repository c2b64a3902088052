//! How large a picture is by its header, for formats that are not decoded here.
//!
//! Pure. What is cut off or makes no sense has no size; nothing is allocated for what a header promises.

use super::format::Format;
use super::frame::Size;

/// Entries of a directory of TIFF that are looked at.
const MAX_ENTRIES: usize = 4096;
/// Boxes of one level that are looked at.
const MAX_BOXES: usize = 4096;

/// Returns the size of a picture as a viewer shows it.
pub(super) fn header_size(bytes: &[u8], format: Format) -> Option<Size> {
    let size = match format {
        Format::Photoshop => Size { width: big_endian(bytes, 18)?, height: big_endian(bytes, 14)? },
        Format::Heif | Format::Avif => item_size(bytes)?,
        Format::Jpeg2000 => {
            let header = boxed(boxed(bytes, *b"jp2h")?, *b"ihdr")?;
            Size { width: big_endian(header, 4)?, height: big_endian(header, 0)? }
        }
        Format::Tiff => tiff_size(bytes)?,
        _ => return None,
    };
    (size.width > 0 && size.height > 0).then_some(size)
}

fn big_endian(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes(four.try_into().ok()?))
}

/// Takes the first box apart: its kind, what is in it, and what follows.
fn first_box(bytes: &[u8]) -> Option<([u8; 4], &[u8], &[u8])> {
    let kind: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
    let (begin, end) = match big_endian(bytes, 0)? {
        0 => (8, bytes.len()),
        1 => {
            let length = u64::from_be_bytes(bytes.get(8..16)?.try_into().ok()?);
            (16, usize::try_from(length).ok()?)
        }
        length => (8, usize::try_from(length).ok()?),
    };
    // What is cut off may hold what is looked for all the same.
    let end = end.min(bytes.len());
    Some((kind, bytes.get(begin..end)?, bytes.get(end..)?))
}

/// Returns the boxes of a level.
fn boxes(bytes: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    let mut rest = bytes;
    let next = move || {
        let (kind, content, behind) = first_box(rest)?;
        rest = behind;
        Some((kind, content))
    };
    std::iter::from_fn(next).take(MAX_BOXES)
}

fn boxed(bytes: &[u8], wanted: [u8; 4]) -> Option<&[u8]> {
    boxes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, content)| content)
}

/// Returns the size of the largest picture of an image file, which is the one that thumbnails and tiles belong to.
fn item_size(bytes: &[u8]) -> Option<Size> {
    // Version and flags come before the boxes.
    let meta = boxed(bytes, *b"meta")?.get(4..)?;
    let properties = boxed(boxed(meta, *b"iprp")?, *b"ipco")?;
    let extents = boxes(properties).filter(|(kind, _)| kind == b"ispe");
    let sizes = extents.filter_map(|(_, extent)| {
        Some(Size { width: big_endian(extent, 4)?, height: big_endian(extent, 8)? })
    });
    let size = sizes.max_by_key(|size| size.pixels())?;
    let quarters = boxed(properties, *b"irot").and_then(|turn| turn.first().copied());
    Some(if quarters.is_some_and(|quarters| quarters & 1 == 1) { size.turned() } else { size })
}

/// Reads the first directory of a TIFF.
fn tiff_size(bytes: &[u8]) -> Option<Size> {
    let is_little = bytes.starts_with(b"II");
    let number = |at: usize, length: usize| {
        let digits = bytes.get(at..at.checked_add(length)?)?.iter();
        let add = |sum: u32, digit: &u8| (sum << 8) | u32::from(*digit);
        Some(if is_little { digits.rev().fold(0, add) } else { digits.fold(0, add) })
    };
    let directory = usize::try_from(number(4, 4)?).ok()?;
    let count = usize::try_from(number(directory, 2)?).ok()?.min(MAX_ENTRIES);
    let (mut width, mut height, mut orientation) = (None, None, 1);
    for entry in 0..count {
        let at = directory.checked_add(2 + 12 * entry)?;
        // A short stands in the first half of the place of a long.
        let length = if number(at + 2, 2)? == 3 { 2 } else { 4 };
        let value = number(at + 8, length)?;
        match number(at, 2)? {
            256 => width = Some(value),
            257 => height = Some(value),
            274 => orientation = value,
            _ => {}
        }
    }
    let size = Size { width: width?, height: height? };
    Some(if (5..=8).contains(&orientation) { size.turned() } else { size })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], format: Format, expected: Option<(u32, u32)>) {
        let size = header_size(bytes, format).map(|size| (size.width, size.height));
        assert_eq!(size, expected);
        // No part of it does any harm.
        for end in 0..bytes.len() {
            header_size(&bytes[..end], format);
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
        check(photoshop, Format::Photoshop, Some((0x78, 0x50)));
        check(&heif(&extent(120, 80)), Format::Heif, Some((120, 80)));
        let turned = [extent(512, 512), extent(4032, 3024), boxed(b"irot", &[3])].concat();
        check(&heif(&turned), Format::Heif, Some((3024, 4032)));
        check(&heif(&extent(0, 80)), Format::Avif, None);
        check(&heif(b""), Format::Heif, None);
        let header = boxed(b"ihdr", &[0, 0, 0, 100, 0, 0, 1, 0, 0, 3, 7, 7, 0, 0]);
        let signature = boxed(b"jP  ", b"\r\n\x87\n");
        let picture = [signature, boxed(b"jp2h", &header)].concat();
        check(&picture, Format::Jpeg2000, Some((256, 100)));
        let directory = b"\x03\0\0\x01\x03\0\x01\0\0\0\x40\x01\0\0\x01\x01\x04\0\x01\0\0\0\xc8\0\0\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
        let tiff = [&b"II*\0\x08\0\0\0"[..], directory].concat();
        check(&tiff, Format::Tiff, Some((200, 320)));
        let directory =
            b"\0\x02\x01\0\0\x03\0\0\0\x01\x01\x40\0\0\x01\x01\0\x04\0\0\0\x01\0\0\0\xc8";
        let tiff = [&b"MM\0*\0\0\0\x08"[..], directory].concat();
        check(&tiff, Format::Tiff, Some((320, 200)));
        check(b"plain", Format::Png, None);
    }
}
