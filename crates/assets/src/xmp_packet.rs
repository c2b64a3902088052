//! Locates and replaces the XMP packet of a file.
//!
//! In: a file's bytes. Out: the same bytes with another packet.
//!
//! Invariants
//! * Only the bytes of the packet, and those that give its position and length, differ from the file's.
//! * A second packet replaces the first: a file does not grow with each.
//!
//! On failure: a file whose structure cannot be parsed up to the packet is rejected, with the reason.

use std::ops::Range;

use crate::file_format::FileFormat;

/// Signature at the start of the packet's segment in a JPEG.
const JPEG_XMP_SIGNATURE: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";
/// The start of the packet's chunk in a PNG: its keyword, followed by flags, and an empty language and translation.
const PNG_XMP_KEYWORD: &[u8] = b"XML:com.adobe.xmp\0";
const PNG_UNCOMPRESSED_FIELDS: &[u8] = b"\0\0\0\0";
/// Maximum content of a JPEG segment: its length has 16 bits and includes itself.
const MAX_JPEG_SEGMENT_BYTES: usize = 65_533;
/// The TIFF tag of the packet.
const TIFF_XMP_TAG: u16 = 700;
/// The bit of a WebP header that indicates a packet; the next one indicates transparency.
const WEBP_XMP_FLAG: u8 = 0b0000_0100;
const WEBP_ALPHA_FLAG: u8 = 0b0001_0000;

/// Returns the packet of a file, if there is one.
///
/// # Errors
/// If the format cannot hold a packet, or the file cannot be parsed.
pub(crate) fn read_packet(bytes: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let packet_range = match FileFormat::detect(bytes) {
        Some(FileFormat::Jpeg) => {
            locate_jpeg_packets(bytes)?.packets.first().map(|entry| entry.packet.clone())
        }
        Some(FileFormat::Png) => locate_png_packet(bytes)?.map(|(_, packet)| packet),
        Some(FileFormat::WebP) => locate_webp_packet(bytes)?.packet.map(|(_, packet)| packet),
        Some(FileFormat::Tiff) => locate_tiff_packet(bytes)?.packet,
        _ => return Err(UNSUPPORTED_FORMAT_MESSAGE.to_owned()),
    };
    packet_range
        .map(|range| bytes.get(range).map(<[u8]>::to_vec).ok_or_else(damaged_file_message))
        .transpose()
}

const UNSUPPORTED_FORMAT_MESSAGE: &str =
    "metadata cannot be written into files of this format, only into JPEG, PNG, TIFF, WebP and PDF";

fn damaged_file_message() -> String {
    "the original is damaged: it is truncated".to_owned()
}

/// Returns a file with this packet.
///
/// # Errors
/// If the format cannot hold a packet, or not one that long, or the file cannot be parsed.
pub(crate) fn replace_packet(bytes: &[u8], packet: &[u8]) -> Result<Vec<u8>, String> {
    match FileFormat::detect(bytes) {
        Some(FileFormat::Jpeg) => replace_jpeg_packet(bytes, packet),
        Some(FileFormat::Png) => replace_png_packet(bytes, packet),
        Some(FileFormat::WebP) => replace_webp_packet(bytes, packet),
        Some(FileFormat::Tiff) => replace_tiff_packet(bytes, packet),
        _ => Err(UNSUPPORTED_FORMAT_MESSAGE.to_owned()),
    }
}

/// Replaces ranges of bytes; the ranges are sorted and do not overlap.
fn splice_parts(bytes: &[u8], parts: &[(Range<usize>, &[u8])]) -> Vec<u8> {
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

/// The range of a file's segment, and that of the packet in it.
#[derive(Debug, Clone)]
struct PacketSegment {
    segment: Range<usize>,
    packet: Range<usize>,
}

struct JpegPacketLayout {
    packets: Vec<PacketSegment>,
    /// Offset at which a first packet is inserted: after the segments of JFIF and EXIF, which must come first.
    insert_offset: usize,
}

fn locate_jpeg_packets(bytes: &[u8]) -> Result<JpegPacketLayout, String> {
    let mut layout = JpegPacketLayout { packets: Vec::new(), insert_offset: 2 };
    let (mut at, mut is_head) = (2, true);
    loop {
        let begin = at;
        if bytes.get(at) != Some(&0xff) {
            return Err("the original is damaged: its segments are not contiguous".to_owned());
        }
        while bytes.get(at) == Some(&0xff) {
            at += 1;
        }
        let marker = *bytes.get(at).ok_or_else(damaged_file_message)?;
        at += 1;
        // The picture's data, or the end.
        if matches!(marker, 0xda | 0xd9) {
            return Ok(layout);
        }
        if matches!(marker, 0x01 | 0xd0..=0xd8) {
            continue;
        }
        let length = read_number(bytes, at, 2, false)?;
        let end = at + length.max(2);
        let content = bytes.get(at + 2..end).ok_or_else(damaged_file_message)?;
        if marker == 0xe1 && content.starts_with(JPEG_XMP_SIGNATURE) {
            let packet = at + 2 + JPEG_XMP_SIGNATURE.len()..end;
            layout.packets.push(PacketSegment { segment: begin..end, packet });
        }
        is_head &= matches!(marker, 0xe0 | 0xe1);
        if is_head {
            layout.insert_offset = end;
        }
        at = end;
    }
}

fn replace_jpeg_packet(bytes: &[u8], packet: &[u8]) -> Result<Vec<u8>, String> {
    let layout = locate_jpeg_packets(bytes)?;
    let content = [JPEG_XMP_SIGNATURE, packet].concat();
    let length =
        u16::try_from(content.len() + 2).ok().filter(|_| content.len() <= MAX_JPEG_SEGMENT_BYTES);
    let length = length.ok_or("its metadata is too long for a JPEG segment")?;
    let segment = [&[0xff, 0xe1], &length.to_be_bytes()[..], &content].concat();
    let mut parts: Vec<(Range<usize>, &[u8])> = Vec::new();
    match layout.packets.split_first() {
        Some((first, others)) => {
            parts.push((first.segment.clone(), &segment));
            parts.extend(others.iter().map(|entry| (entry.segment.clone(), &[][..])));
        }
        None => parts.push((layout.insert_offset..layout.insert_offset, &segment)),
    }
    Ok(splice_parts(bytes, &parts))
}

/// The range of a chunk, and that of the packet in it.
type PngPacketRange = (Range<usize>, Range<usize>);

/// Locates the packet's chunk.
fn locate_png_packet(bytes: &[u8]) -> Result<Option<PngPacketRange>, String> {
    let mut at = 8;
    loop {
        let length = read_number(bytes, at, 4, false)?;
        let kind = bytes.get(at + 4..at + 8).ok_or_else(damaged_file_message)?;
        let end = at + 12 + length;
        let content = bytes.get(at + 8..end - 4).ok_or_else(damaged_file_message)?;
        if kind == b"iTXt"
            && let Some(rest) = content.strip_prefix(PNG_XMP_KEYWORD)
        {
            if !rest.starts_with(PNG_UNCOMPRESSED_FIELDS) {
                return Err("its XMP packet is compressed or has a language tag".to_owned());
            }
            let packet = at + 8 + PNG_XMP_KEYWORD.len() + PNG_UNCOMPRESSED_FIELDS.len()..end - 4;
            return Ok(Some((at..end, packet)));
        }
        if kind == b"IEND" {
            return Ok(None);
        }
        at = end;
    }
}

fn replace_png_packet(bytes: &[u8], packet: &[u8]) -> Result<Vec<u8>, String> {
    let location = locate_png_packet(bytes)?;
    // The first chunk is the header.
    let offset = 8 + 12 + read_number(bytes, 8, 4, false)?;
    let content = [b"iTXt", PNG_XMP_KEYWORD, PNG_UNCOMPRESSED_FIELDS, packet].concat();
    let length = u32::try_from(content.len() - 4).map_err(|_| "its metadata is too long")?;
    let mut sum = flate2::Crc::new();
    sum.update(&content);
    let chunk = [&length.to_be_bytes()[..], &content, &sum.sum().to_be_bytes()].concat();
    let range = location.map_or(offset..offset, |(whole, _)| whole);
    Ok(splice_parts(bytes, &[(range, &chunk)]))
}

#[derive(Default)]
struct WebPPacketLayout {
    /// Offset of the end of the chunks.
    chunks_end: usize,
    /// Offset of the flags byte, if there is an extended header.
    flags_offset: Option<usize>,
    packet: Option<(Range<usize>, Range<usize>)>,
    /// Width and height minus one, and true for transparency, of a file without an extended header.
    canvas: Option<(u32, u32, bool)>,
}

fn locate_webp_packet(bytes: &[u8]) -> Result<WebPPacketLayout, String> {
    let mut layout = WebPPacketLayout {
        chunks_end: 8 + read_number(bytes, 4, 4, true)?,
        ..WebPPacketLayout::default()
    };
    if layout.chunks_end > bytes.len() {
        return Err(damaged_file_message());
    }
    let mut at = 12;
    while at + 8 <= layout.chunks_end {
        let kind = bytes.get(at..at + 4).ok_or_else(damaged_file_message)?;
        let length = read_number(bytes, at + 4, 4, true)?;
        let content = at + 8..at + 8 + length;
        let inner = bytes.get(content.clone()).ok_or_else(damaged_file_message)?;
        match kind {
            b"VP8X" => layout.flags_offset = Some(content.start),
            b"VP8 " if layout.canvas.is_none() => {
                let (width, height) =
                    (read_number(inner, 6, 2, true)?, read_number(inner, 8, 2, true)?);
                let less =
                    |side: usize| u32::try_from(side & 0x3fff).unwrap_or(1).saturating_sub(1);
                layout.canvas = Some((less(width), less(height), false));
            }
            b"VP8L" if layout.canvas.is_none() => {
                let bits = u32::try_from(read_number(inner, 1, 4, true)?).unwrap_or_default();
                layout.canvas = Some((bits & 0x3fff, bits >> 14 & 0x3fff, bits >> 28 & 1 == 1));
            }
            b"XMP " => {
                let whole = at..(content.end + length % 2).min(layout.chunks_end);
                layout.packet = Some((whole, content.clone()));
            }
            _ => {}
        }
        at = content.end + length % 2;
    }
    Ok(layout)
}

fn replace_webp_packet(bytes: &[u8], packet: &[u8]) -> Result<Vec<u8>, String> {
    let layout = locate_webp_packet(bytes)?;
    let length = u32::try_from(packet.len()).map_err(|_| "its metadata is too long")?;
    let mut chunk = [b"XMP ", &length.to_le_bytes()[..], packet].concat();
    chunk.resize(chunk.len() + packet.len() % 2, 0);
    let range = layout.packet.map_or(layout.chunks_end..layout.chunks_end, |(whole, _)| whole);
    let mut header = Vec::new();
    let flags =
        layout.flags_offset.and_then(|at| bytes.get(at)).map(|flags| [flags | WEBP_XMP_FLAG]);
    let mut parts: Vec<(Range<usize>, &[u8])> = Vec::new();
    match (layout.flags_offset, &flags, layout.canvas) {
        (Some(at), Some(flags), _) => parts.push((at..at + 1, flags)),
        (_, _, Some((width, height, has_alpha))) => {
            // Only the extended format allows other chunks than the picture.
            let flags = WEBP_XMP_FLAG | if has_alpha { WEBP_ALPHA_FLAG } else { 0 };
            header.extend_from_slice(b"VP8X\x0a\0\0\0");
            header.extend_from_slice(&[flags, 0, 0, 0]);
            for side in [width, height] {
                header.extend(side.to_le_bytes().iter().take(3));
            }
            parts.push((12..12, &header));
        }
        _ => return Err("the original is damaged: it contains no image".to_owned()),
    }
    parts.push((range, &chunk));
    let mut out = splice_parts(bytes, &parts);
    let grown = out.len() + layout.chunks_end - bytes.len() - 8;
    let grown = u32::try_from(grown).map_err(|_| "the file would be too long")?;
    if let Some(length_field) = out.get_mut(4..8) {
        length_field.copy_from_slice(&grown.to_le_bytes());
    }
    Ok(out)
}

struct TiffPacketLayout {
    is_little_endian: bool,
    /// The entries of the first directory, including the offset of the next directory.
    directory_entries: Range<usize>,
    /// Offset of the packet's entry.
    packet_entry: Option<usize>,
    packet: Option<Range<usize>>,
}

fn locate_tiff_packet(bytes: &[u8]) -> Result<TiffPacketLayout, String> {
    let is_little = bytes.starts_with(b"II");
    let at = read_number(bytes, 4, 4, is_little)?;
    let count = read_number(bytes, at, 2, is_little)?;
    let entries = at + 2..at + 2 + count * 12;
    bytes.get(entries.start..entries.end + 4).ok_or_else(damaged_file_message)?;
    let (mut entry, mut packet) = (None, None);
    for at in entries.clone().step_by(12) {
        if read_number(bytes, at, 2, is_little)? == usize::from(TIFF_XMP_TAG) {
            let length = read_number(bytes, at + 4, 4, is_little)?;
            let offset = read_number(bytes, at + 8, 4, is_little)?;
            entry = Some(at);
            packet = Some(offset..offset.checked_add(length).ok_or_else(damaged_file_message)?)
                .filter(|range| length > 4 && range.end <= bytes.len());
        }
    }
    Ok(TiffPacketLayout {
        is_little_endian: is_little,
        directory_entries: entries,
        packet_entry: entry,
        packet,
    })
}

fn replace_tiff_packet(bytes: &[u8], packet: &[u8]) -> Result<Vec<u8>, String> {
    let layout = locate_tiff_packet(bytes)?;
    let long = |number: usize| -> Result<[u8; 4], String> {
        let number = u32::try_from(number).map_err(|_| "the file would be too long")?;
        Ok(if layout.is_little_endian { number.to_le_bytes() } else { number.to_be_bytes() })
    };
    let short = |number: u16| {
        if layout.is_little_endian { number.to_le_bytes() } else { number.to_be_bytes() }
    };
    let mut out = bytes.to_vec();
    // A packet at the end was written here before.
    if let Some(range) = layout
        .packet
        .filter(|range| range.end == bytes.len() && range.start >= layout.directory_entries.end + 4)
    {
        out.truncate(range.start);
    }
    out.resize(out.len() + out.len() % 2, 0);
    let offset = out.len();
    let mut entry = Vec::from(short(TIFF_XMP_TAG));
    entry.extend(short(1));
    entry.extend(long(packet.len())?);
    entry.extend(long(offset)?);
    out.extend_from_slice(packet);
    if let Some(at) = layout.packet_entry {
        if let Some(old) = out.get_mut(at..at + 12) {
            old.copy_from_slice(&entry);
        }
        return Ok(out);
    }
    // The directory cannot grow in place, so a copy with one more entry replaces it.
    let mut entries: Vec<&[u8]> =
        bytes.get(layout.directory_entries.clone()).unwrap_or_default().chunks(12).collect();
    let at = layout.directory_entries.clone().step_by(12).take_while(|at| {
        read_number(bytes, *at, 2, layout.is_little_endian)
            .is_ok_and(|tag| tag < usize::from(TIFF_XMP_TAG))
    });
    let at = at.count().min(entries.len());
    entries.insert(at, &entry);
    let count = u16::try_from(entries.len()).map_err(|_| "its directory is full")?;
    let next = bytes
        .get(layout.directory_entries.end..layout.directory_entries.end + 4)
        .ok_or_else(damaged_file_message)?;
    // The packet stays last, so that the next one replaces it.
    out.truncate(offset);
    let directory_bytes = 2 + entries.len() * 12 + 4;
    let moved = long(offset + directory_bytes)?;
    let mut directory = Vec::from(short(count));
    for (number, entry_bytes) in entries.iter().enumerate() {
        directory.extend_from_slice(entry_bytes);
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
        first.copy_from_slice(&long(offset)?);
    }
    Ok(out)
}

/// Reads a number of `width` bytes.
fn read_number(bytes: &[u8], at: usize, width: usize, is_little: bool) -> Result<usize, String> {
    let end = at.checked_add(width).ok_or_else(damaged_file_message)?;
    let digits = bytes.get(at..end).ok_or_else(damaged_file_message)?;
    let add = |sum: usize, byte: &u8| sum << 8 | usize::from(*byte);
    Ok(if is_little { digits.iter().rev().fold(0, add) } else { digits.iter().fold(0, add) })
}
