//! Where the XMP packet of a file is, and files with another packet.
//!
//! In: a file's bytes. Out: the same bytes with another packet among them.
//!
//! Invariants
//! * Not one byte but those of the packet, and of what says where and how long it is, differs from the file's.
//! * A second packet replaces the first: a file does not grow with each.
//!
//! On failure: a file whose structure is not followed to the place of the packet is refused, with the reason.

use std::ops::Range;

use super::format::Format;

/// What begins the packet's segment in a JPEG.
const JPEG_XMP: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";
/// What begins the packet's chunk in a PNG: its keyword; then flags, and language and translation, which are empty.
const PNG_KEYWORD: &[u8] = b"XML:com.adobe.xmp\0";
const PNG_PLAIN: &[u8] = b"\0\0\0\0";
/// The longest content of a JPEG's segment: its length has 16 bits and counts itself.
const MAX_SEGMENT: usize = 65_533;
/// TIFF's tag of the packet.
const TIFF_XMP: u16 = 700;
/// The bit of a WebP's header that tells of a packet, and that of transparency.
const WEBP_XMP: u8 = 0b0000_0100;
const WEBP_ALPHA: u8 = 0b0001_0000;

/// Returns the packet of a file, if there is one.
///
/// # Errors
/// If the file takes none, or cannot be followed.
pub(crate) fn packet(bytes: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let found = match Format::of(bytes) {
        Some(Format::Jpeg) => jpeg(bytes)?.packets.first().map(|found| found.packet.clone()),
        Some(Format::Png) => png(bytes)?.map(|(_, packet)| packet),
        Some(Format::WebP) => webp(bytes)?.packet.map(|(_, packet)| packet),
        Some(Format::Tiff) => tiff(bytes)?.packet,
        _ => return Err(NO_PLACE.to_owned()),
    };
    found.map(|range| bytes.get(range).map(<[u8]>::to_vec).ok_or_else(damaged)).transpose()
}

const NO_PLACE: &str =
    "files of this format take no metadata here; JPEG, PNG, TIFF, WebP and PDF do";

fn damaged() -> String {
    "the original is damaged: it ends within a part".to_owned()
}

/// Returns a file with this packet.
///
/// # Errors
/// If the file takes none, or not one that long, or cannot be followed.
pub(crate) fn with_packet(bytes: &[u8], packet: &[u8]) -> Result<Vec<u8>, String> {
    match Format::of(bytes) {
        Some(Format::Jpeg) => jpeg_with(bytes, packet),
        Some(Format::Png) => png_with(bytes, packet),
        Some(Format::WebP) => webp_with(bytes, packet),
        Some(Format::Tiff) => tiff_with(bytes, packet),
        _ => Err(NO_PLACE.to_owned()),
    }
}

/// Puts parts in the place of others; the ranges are in order and apart.
fn spliced(bytes: &[u8], parts: &[(Range<usize>, &[u8])]) -> Vec<u8> {
    let added: usize = parts.iter().map(|(_, part)| part.len()).sum();
    let mut out = Vec::with_capacity(bytes.len() + added);
    let mut from = 0;
    for (range, part) in parts {
        out.extend_from_slice(bytes.get(from..range.start).unwrap_or_default());
        out.extend_from_slice(part);
        from = range.end;
    }
    out.extend_from_slice(bytes.get(from..).unwrap_or_default());
    out
}

/// A part of a file, and the packet in it.
#[derive(Debug, Clone)]
struct Part {
    whole: Range<usize>,
    packet: Range<usize>,
}

struct JpegParts {
    packets: Vec<Part>,
    /// Where a first packet goes: behind the segments of JFIF and EXIF, which want to be first.
    place: usize,
}

fn jpeg(bytes: &[u8]) -> Result<JpegParts, String> {
    let mut found = JpegParts { packets: Vec::new(), place: 2 };
    let (mut at, mut is_head) = (2, true);
    loop {
        let begin = at;
        if bytes.get(at) != Some(&0xff) {
            return Err("the original is damaged: its segments do not follow each other".to_owned());
        }
        while bytes.get(at) == Some(&0xff) {
            at += 1;
        }
        let marker = *bytes.get(at).ok_or_else(damaged)?;
        at += 1;
        // The picture itself, or the end.
        if matches!(marker, 0xda | 0xd9) {
            return Ok(found);
        }
        if matches!(marker, 0x01 | 0xd0..=0xd8) {
            continue;
        }
        let length = number(bytes, at, 2, false)?;
        let end = at + length.max(2);
        let content = bytes.get(at + 2..end).ok_or_else(damaged)?;
        if marker == 0xe1 && content.starts_with(JPEG_XMP) {
            let packet = at + 2 + JPEG_XMP.len()..end;
            found.packets.push(Part { whole: begin..end, packet });
        }
        is_head &= matches!(marker, 0xe0 | 0xe1);
        if is_head {
            found.place = end;
        }
        at = end;
    }
}

fn jpeg_with(bytes: &[u8], packet: &[u8]) -> Result<Vec<u8>, String> {
    let found = jpeg(bytes)?;
    let content = [JPEG_XMP, packet].concat();
    let length = u16::try_from(content.len() + 2).ok().filter(|_| content.len() <= MAX_SEGMENT);
    let length = length.ok_or("its metadata is too long for a JPEG's packet")?;
    let segment = [&[0xff, 0xe1], &length.to_be_bytes()[..], &content].concat();
    let mut parts: Vec<(Range<usize>, &[u8])> = Vec::new();
    match found.packets.split_first() {
        Some((first, others)) => {
            parts.push((first.whole.clone(), &segment));
            parts.extend(others.iter().map(|other| (other.whole.clone(), &[][..])));
        }
        None => parts.push((found.place..found.place, &segment)),
    }
    Ok(spliced(bytes, &parts))
}

/// Where a chunk of a picture lies, and the packet in it.
type Chunk = (Range<usize>, Range<usize>);

/// Finds the packet's chunk.
fn png(bytes: &[u8]) -> Result<Option<Chunk>, String> {
    let mut at = 8;
    loop {
        let length = number(bytes, at, 4, false)?;
        let kind = bytes.get(at + 4..at + 8).ok_or_else(damaged)?;
        let end = at + 12 + length;
        let content = bytes.get(at + 8..end - 4).ok_or_else(damaged)?;
        if kind == b"iTXt"
            && let Some(rest) = content.strip_prefix(PNG_KEYWORD)
        {
            if !rest.starts_with(PNG_PLAIN) {
                return Err("its packet is compressed or has a language".to_owned());
            }
            let packet = at + 8 + PNG_KEYWORD.len() + PNG_PLAIN.len()..end - 4;
            return Ok(Some((at..end, packet)));
        }
        if kind == b"IEND" {
            return Ok(None);
        }
        at = end;
    }
}

fn png_with(bytes: &[u8], packet: &[u8]) -> Result<Vec<u8>, String> {
    let found = png(bytes)?;
    // The first chunk is the header.
    let place = 8 + 12 + number(bytes, 8, 4, false)?;
    let content = [b"iTXt", PNG_KEYWORD, PNG_PLAIN, packet].concat();
    let length = u32::try_from(content.len() - 4).map_err(|_| "its metadata is too long")?;
    let mut sum = flate2::Crc::new();
    sum.update(&content);
    let chunk = [&length.to_be_bytes()[..], &content, &sum.sum().to_be_bytes()].concat();
    let range = found.map_or(place..place, |(whole, _)| whole);
    Ok(spliced(bytes, &[(range, &chunk)]))
}

#[derive(Default)]
struct WebPParts {
    /// Where the chunks end.
    end: usize,
    /// The byte of flags, if there is an extended header.
    flags: Option<usize>,
    packet: Option<(Range<usize>, Range<usize>)>,
    /// Width and height less one, and whether there is transparency, of a file without an extended header.
    size: Option<(u32, u32, bool)>,
}

fn webp(bytes: &[u8]) -> Result<WebPParts, String> {
    let mut found = WebPParts { end: 8 + number(bytes, 4, 4, true)?, ..WebPParts::default() };
    if found.end > bytes.len() {
        return Err(damaged());
    }
    let mut at = 12;
    while at + 8 <= found.end {
        let kind = bytes.get(at..at + 4).ok_or_else(damaged)?;
        let length = number(bytes, at + 4, 4, true)?;
        let content = at + 8..at + 8 + length;
        let inner = bytes.get(content.clone()).ok_or_else(damaged)?;
        match kind {
            b"VP8X" => found.flags = Some(content.start),
            b"VP8 " if found.size.is_none() => {
                let (width, height) = (number(inner, 6, 2, true)?, number(inner, 8, 2, true)?);
                let less =
                    |side: usize| u32::try_from(side & 0x3fff).unwrap_or(1).saturating_sub(1);
                found.size = Some((less(width), less(height), false));
            }
            b"VP8L" if found.size.is_none() => {
                let bits = u32::try_from(number(inner, 1, 4, true)?).unwrap_or_default();
                found.size = Some((bits & 0x3fff, bits >> 14 & 0x3fff, bits >> 28 & 1 == 1));
            }
            b"XMP " => {
                let whole = at..(content.end + length % 2).min(found.end);
                found.packet = Some((whole, content.clone()));
            }
            _ => {}
        }
        at = content.end + length % 2;
    }
    Ok(found)
}

fn webp_with(bytes: &[u8], packet: &[u8]) -> Result<Vec<u8>, String> {
    let found = webp(bytes)?;
    let length = u32::try_from(packet.len()).map_err(|_| "its metadata is too long")?;
    let mut chunk = [b"XMP ", &length.to_le_bytes()[..], packet].concat();
    chunk.resize(chunk.len() + packet.len() % 2, 0);
    let range = found.packet.map_or(found.end..found.end, |(whole, _)| whole);
    let mut header = Vec::new();
    let flags = found.flags.and_then(|at| bytes.get(at)).map(|flags| [flags | WEBP_XMP]);
    let mut parts: Vec<(Range<usize>, &[u8])> = Vec::new();
    match (found.flags, &flags, found.size) {
        (Some(at), Some(flags), _) => parts.push((at..at + 1, flags)),
        (_, _, Some((width, height, has_alpha))) => {
            // Only the extended form has other chunks than the picture.
            let flags = WEBP_XMP | if has_alpha { WEBP_ALPHA } else { 0 };
            header.extend_from_slice(b"VP8X\x0a\0\0\0");
            header.extend_from_slice(&[flags, 0, 0, 0]);
            for side in [width, height] {
                header.extend(side.to_le_bytes().iter().take(3));
            }
            parts.push((12..12, &header));
        }
        _ => return Err("the original is damaged: it holds no picture".to_owned()),
    }
    parts.push((range, &chunk));
    let mut out = spliced(bytes, &parts);
    let grown = out.len() + found.end - bytes.len() - 8;
    let grown = u32::try_from(grown).map_err(|_| "the file would be too long")?;
    if let Some(place) = out.get_mut(4..8) {
        place.copy_from_slice(&grown.to_le_bytes());
    }
    Ok(out)
}

struct TiffParts {
    is_little: bool,
    /// The first directory: its entries, with the place of what follows them.
    entries: Range<usize>,
    /// The entry of the packet.
    entry: Option<usize>,
    packet: Option<Range<usize>>,
}

fn tiff(bytes: &[u8]) -> Result<TiffParts, String> {
    let is_little = bytes.starts_with(b"II");
    let at = number(bytes, 4, 4, is_little)?;
    let count = number(bytes, at, 2, is_little)?;
    let entries = at + 2..at + 2 + count * 12;
    bytes.get(entries.start..entries.end + 4).ok_or_else(damaged)?;
    let (mut entry, mut packet) = (None, None);
    for at in entries.clone().step_by(12) {
        if number(bytes, at, 2, is_little)? == usize::from(TIFF_XMP) {
            let length = number(bytes, at + 4, 4, is_little)?;
            let place = number(bytes, at + 8, 4, is_little)?;
            entry = Some(at);
            packet = Some(place..place.checked_add(length).ok_or_else(damaged)?)
                .filter(|range| length > 4 && range.end <= bytes.len());
        }
    }
    Ok(TiffParts { is_little, entries, entry, packet })
}

fn tiff_with(bytes: &[u8], packet: &[u8]) -> Result<Vec<u8>, String> {
    let found = tiff(bytes)?;
    let long = |number: usize| -> Result<[u8; 4], String> {
        let number = u32::try_from(number).map_err(|_| "the file would be too long")?;
        Ok(if found.is_little { number.to_le_bytes() } else { number.to_be_bytes() })
    };
    let short =
        |number: u16| if found.is_little { number.to_le_bytes() } else { number.to_be_bytes() };
    let mut out = bytes.to_vec();
    // A packet at the end was written here before.
    if let Some(range) = found
        .packet
        .filter(|range| range.end == bytes.len() && range.start >= found.entries.end + 4)
    {
        out.truncate(range.start);
    }
    out.resize(out.len() + out.len() % 2, 0);
    let place = out.len();
    let mut entry = Vec::from(short(TIFF_XMP));
    entry.extend(short(1));
    entry.extend(long(packet.len())?);
    entry.extend(long(place)?);
    out.extend_from_slice(packet);
    if let Some(at) = found.entry {
        if let Some(old) = out.get_mut(at..at + 12) {
            old.copy_from_slice(&entry);
        }
        return Ok(out);
    }
    // The directory has no room: a copy with one more entry takes its place.
    let mut entries: Vec<&[u8]> =
        bytes.get(found.entries.clone()).unwrap_or_default().chunks(12).collect();
    let at = found.entries.clone().step_by(12).take_while(|at| {
        number(bytes, *at, 2, found.is_little).is_ok_and(|tag| tag < usize::from(TIFF_XMP))
    });
    let at = at.count().min(entries.len());
    entries.insert(at, &entry);
    let count = u16::try_from(entries.len()).map_err(|_| "its directory is full")?;
    let next = bytes.get(found.entries.end..found.entries.end + 4).ok_or_else(damaged)?;
    // The packet stays last, so that the next one replaces it.
    out.truncate(place);
    let directory_bytes = 2 + entries.len() * 12 + 4;
    let moved = long(place + directory_bytes)?;
    let mut directory = Vec::from(short(count));
    for (number, one) in entries.iter().enumerate() {
        directory.extend_from_slice(one);
        if number == at {
            let from = directory.len() - 4;
            directory.truncate(from);
            directory.extend(moved);
        }
    }
    directory.extend_from_slice(next);
    out.extend(directory);
    out.extend_from_slice(packet);
    if let Some(first) = out.get_mut(4..8) {
        first.copy_from_slice(&long(place)?);
    }
    Ok(out)
}

/// Reads a number of `width` bytes.
fn number(bytes: &[u8], at: usize, width: usize, is_little: bool) -> Result<usize, String> {
    let end = at.checked_add(width).ok_or_else(damaged)?;
    let digits = bytes.get(at..end).ok_or_else(damaged)?;
    let add = |sum: usize, byte: &u8| sum << 8 | usize::from(*byte);
    Ok(if is_little { digits.iter().rev().fold(0, add) } else { digits.iter().fold(0, add) })
}
