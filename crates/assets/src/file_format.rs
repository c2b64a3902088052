//! Detects the format of a file from its bytes; its name and the declared type are not reliable.

use std::borrow::Cow;
use std::io::Read;

/// A supported file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileFormat {
    Jpeg,
    Png,
    Gif,
    WebP,
    Tiff,
    Bmp,
    Icon,
    Jpeg2000,
    Svg,
    Heif,
    Avif,
    Photoshop,
    Targa,
    Pdf,
    Mp4,
    QuickTime,
    Matroska,
    WebM,
    Avi,
    Mp3,
    Ogg,
    Wav,
    Zip,
    Office,
}

impl FileFormat {
    /// Detects a file's format from its first bytes; a few hundred are enough.
    pub(crate) fn detect(bytes: &[u8]) -> Option<Self> {
        let starts = |magic: &[u8]| bytes.starts_with(magic);
        let at = |offset: usize, magic: &[u8]| {
            bytes.get(offset..).is_some_and(|rest| rest.starts_with(magic))
        };
        Some(match () {
            () if starts(b"\xff\xd8\xff") => Self::Jpeg,
            () if starts(b"\x89PNG\r\n\x1a\n") => Self::Png,
            () if starts(b"GIF87a") || starts(b"GIF89a") => Self::Gif,
            () if starts(b"RIFF") && at(8, b"WEBP") => Self::WebP,
            () if starts(b"RIFF") && at(8, b"AVI ") => Self::Avi,
            () if starts(b"RIFF") && at(8, b"WAVE") => Self::Wav,
            () if starts(b"II*\0") || starts(b"MM\0*") => Self::Tiff,
            () if starts(b"BM") && at(6, b"\0\0\0\0") => Self::Bmp,
            () if starts(b"8BPS\0\x01") => Self::Photoshop,
            () if starts(b"\x1a\x45\xdf\xa3") && is_webm(bytes) => Self::WebM,
            () if starts(b"\x1a\x45\xdf\xa3") => Self::Matroska,
            () if starts(b"\0\0\0\x0cjP  \r\n\x87\n") => Self::Jpeg2000,
            () if starts(b"\0\0\x01\0") && is_icon(bytes) => Self::Icon,
            () if starts(b"OggS") => Self::Ogg,
            () if starts(b"ID3") || starts(b"\xff\xfb") => Self::Mp3,
            () if at(4, b"ftyp") => Self::from_brand(bytes.get(8..12)?),
            () if starts(b"PK\x03\x04") => Self::from_archive(bytes),
            () if is_pdf(bytes) => Self::Pdf,
            () if is_svg(bytes) => Self::Svg,
            () if is_targa(bytes) => Self::Targa,
            () => return None,
        })
    }

    /// Returns the format of an ISO base media file by its brand.
    fn from_brand(brand: &[u8]) -> Self {
        match brand {
            b"avif" | b"avis" => Self::Avif,
            b"heic" | b"heix" | b"heim" | b"heis" | b"hevc" | b"mif1" | b"msf1" => Self::Heif,
            b"qt  " => Self::QuickTime,
            _ => Self::Mp4,
        }
    }

    fn from_archive(bytes: &[u8]) -> Self {
        let head = bytes.get(..4096.min(bytes.len())).unwrap_or_default();
        let names: [&[u8]; 3] =
            [b"[Content_Types].xml", b"mimetypeapplication/vnd.oasis", b"_rels/.rels"];
        if names.iter().any(|name| contains_bytes(head, name)) { Self::Office } else { Self::Zip }
    }

    /// Returns the media type; `None` if the declared type may be more precise.
    pub(crate) fn media_type(self) -> Option<&'static str> {
        Some(match self {
            Self::Jpeg => "image/jpeg",
            Self::Png => "image/png",
            Self::Gif => "image/gif",
            Self::WebP => "image/webp",
            Self::Tiff => "image/tiff",
            Self::Bmp => "image/bmp",
            Self::Icon => "image/x-icon",
            Self::Jpeg2000 => "image/jp2",
            Self::Svg => "image/svg+xml",
            Self::Heif => "image/heif",
            Self::Avif => "image/avif",
            Self::Photoshop => "image/vnd.adobe.photoshop",
            Self::Targa => "image/x-tga",
            Self::Pdf => "application/pdf",
            Self::Mp4 => "video/mp4",
            Self::QuickTime => "video/quicktime",
            Self::Matroska => "video/x-matroska",
            Self::WebM => "video/webm",
            Self::Avi => "video/x-msvideo",
            Self::Mp3 => "audio/mpeg",
            Self::Ogg => "audio/ogg",
            Self::Wav => "audio/wav",
            Self::Zip => "application/zip",
            Self::Office => return None,
        })
    }

    /// Returns the name that AEM writes as `dam:Fileformat`.
    pub(crate) fn dam_format_name(self) -> Option<&'static str> {
        Some(match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::Gif => "GIF",
            Self::WebP => "WEBP",
            Self::Tiff => "TIFF",
            Self::Bmp => "BMP",
            Self::Icon => "ICO",
            Self::Jpeg2000 => "JP2",
            Self::Svg => "SVG",
            Self::Heif => "HEIF",
            Self::Avif => "AVIF",
            Self::Photoshop => "PSD",
            Self::Targa => "TGA",
            Self::Pdf => "PDF",
            _ => return None,
        })
    }
}

/// Returns a text as UTF-8 and decompressed, because an SVG may be stored in UTF-16 and as `.svgz`. Of truncated or
/// damaged compressed data, returns the part before the fault; at most `most` bytes.
pub(crate) fn decode_plain_text(bytes: &[u8], most: usize) -> Cow<'_, [u8]> {
    if bytes.starts_with(b"\x1f\x8b") {
        let mut unpacked = Vec::new();
        let reader = flate2::read::MultiGzDecoder::new(bytes);
        // Bytes that were read before an error are retained.
        reader.take(most as u64).read_to_end(&mut unpacked).ok();
        return Cow::Owned(decode_utf16(&unpacked).into_owned());
    }
    decode_utf16(bytes)
}

fn decode_utf16(bytes: &[u8]) -> Cow<'_, [u8]> {
    let decode = |rest: &[u8], read: fn([u8; 2]) -> u16| {
        let (units, _) = rest.as_chunks();
        let units = units.iter().map(|unit| read(*unit));
        let letters = char::decode_utf16(units);
        let letters = letters.map(|letter| letter.unwrap_or(char::REPLACEMENT_CHARACTER));
        Cow::Owned(letters.collect::<String>().into_bytes())
    };
    match bytes {
        [0xff, 0xfe, rest @ ..] => decode(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => decode(rest, u16::from_be_bytes),
        _ => Cow::Borrowed(bytes),
    }
}

fn contains_bytes(bytes: &[u8], needle: &[u8]) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle)
}

/// Returns true for a PDF, whose header is within the first KiB.
fn is_pdf(bytes: &[u8]) -> bool {
    contains_bytes(bytes.get(..1024.min(bytes.len())).unwrap_or_default(), b"%PDF-")
}

/// Returns true for WebM: Matroska whose header element `DocType` says so, with a length of one byte.
fn is_webm(bytes: &[u8]) -> bool {
    let head = bytes.get(..128.min(bytes.len())).unwrap_or_default();
    contains_bytes(head, b"\x42\x82\x84webm")
}

/// Returns true for an ICO: it has at least one icon, and each entry has a byte that is 0.
fn is_icon(bytes: &[u8]) -> bool {
    matches!(bytes.get(4..10), Some([1..=64, 0, _, _, _, 0]))
}

/// Returns true for a TGA. It begins without a signature, so each field of its header must be plausible.
fn is_targa(bytes: &[u8]) -> bool {
    let Some(header) = bytes.first_chunk::<18>() else { return false };
    let [_, map_type, image_type, m1, m2, m3, m4, m5, _, _, _, _, w1, w2, h1, h2, depth, flags] =
        *header;
    let color_map = [m1, m2, m3, m4, m5];
    // Bit 3 says that the pixels are compressed.
    let is_plausible = match (image_type & !8, map_type) {
        (1, 1) => [m3, m4] != [0, 0] && matches!((m5, depth), (15 | 16 | 24 | 32, 8 | 16)),
        (2, 0) => color_map == [0; 5] && matches!(depth, 15 | 16 | 24 | 32),
        (3, 0) => color_map == [0; 5] && matches!(depth, 8 | 16),
        _ => false,
    };
    is_plausible && [w1, w2] != [0, 0] && [h1, h2] != [0, 0] && flags & 0xc0 == 0
}

/// Returns true for an SVG: XML whose first element is `svg`.
fn is_svg(bytes: &[u8]) -> bool {
    let head = bytes.get(..4096.min(bytes.len())).unwrap_or_default();
    let head = decode_plain_text(head, 4096);
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&head);
    let text = String::from_utf8_lossy(head);
    let mut rest = text.trim_start();
    loop {
        let skipped = if let Some(after) = rest.strip_prefix("<!--") {
            after.split_once("-->").map(|(_, rest)| rest)
        } else if rest.starts_with("<?") {
            rest.split_once("?>").map(|(_, rest)| rest)
        } else if let Some(after) = rest.strip_prefix("<!") {
            // A document type may contain entities in brackets.
            let closing = if after.split_once('>').is_some_and(|(head, _)| head.contains('[')) {
                "]>"
            } else {
                ">"
            };
            after.split_once(closing).map(|(_, rest)| rest)
        } else {
            break;
        };
        match skipped {
            Some(after) => rest = after.trim_start(),
            None => return false,
        }
    }
    let name = rest.strip_prefix('<').unwrap_or_default();
    let name: &str =
        name.split(|c: char| c.is_whitespace() || c == '>' || c == '/').next().unwrap_or("");
    name == "svg" || name.ends_with(":svg")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_bytes() {
        for (bytes, expected) in [
            (&b"\xff\xd8\xff\xe0\0\x10JFIF"[..], Some(FileFormat::Jpeg)),
            (b"\x89PNG\r\n\x1a\n\0\0", Some(FileFormat::Png)),
            (b"GIF89a\x01\0", Some(FileFormat::Gif)),
            (b"RIFF\x10\0\0\0WEBPVP8 ", Some(FileFormat::WebP)),
            (b"RIFF\x10\0\0\0WAVEfmt ", Some(FileFormat::Wav)),
            (b"II*\0\x08\0\0\0", Some(FileFormat::Tiff)),
            (b"BM\x10\0\0\0\0\0\0\0\x36", Some(FileFormat::Bmp)),
            (b"BMW drives", None),
            (b"\0\0\0\x18ftypheic\0\0\0\0", Some(FileFormat::Heif)),
            (b"\0\0\0\x18ftypisom\0\0\0\0", Some(FileFormat::Mp4)),
            (b"\r\n%PDF-1.7\n", Some(FileFormat::Pdf)),
            (b"<svg xmlns='x'/>", Some(FileFormat::Svg)),
            (b"\xef\xbb\xbf<?xml version='1.0'?>\n<!-- a --><!DOCTYPE svg [<!ENTITY a 'b'>]><svg>", Some(FileFormat::Svg)),
            (b"<html><svg>", None),
            (b"<?xml version='1.0'?><s:svg xmlns:s='x'>", Some(FileFormat::Svg)),
            (b"<!-- never ends", None),
            (b"PK\x03\x04\x14\0[Content_Types].xml", Some(FileFormat::Office)),
            (b"PK\x03\x04\x14\0", Some(FileFormat::Zip)),
            (b"\x1a\x45\xdf\xa3\x9f\x42\x86\x81\x01\x42\x82\x84webm\x42\x87\x81\x02", Some(FileFormat::WebM)),
            (b"\x1a\x45\xdf\xa3\xa3\x42\x86\x81\x01\x42\x82\x88matroska", Some(FileFormat::Matroska)),
            (b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\x14ftypjp2 ", Some(FileFormat::Jpeg2000)),
            (b"\0\0\x01\0\x01\0\x20\x18\0\0\0\0\x20\0", Some(FileFormat::Icon)),
            (b"\0\0\x01\0\0\0\x20\x18\0\0", None),
            (b"\xff\xfe<\0?\0x\0m\0l\0?\0>\0<\0s\0v\0g\0>\0", Some(FileFormat::Svg)),
            (b"\xfe\xff\0<\0s\0v\0g\0 \0x\0>", Some(FileFormat::Svg)),
            (b"\xff\xfe<\0h\0t\0m\0l\0>\0", None),
            (b"\0\0\x02\0\0\0\0\0\0\0\0\0\x90\x01\x2c\x01\x18\0pixels", Some(FileFormat::Targa)),
            (b"\0\0\x0b\0\0\0\0\0\0\0\0\0\x10\0\x10\0\x08\x20pixels", Some(FileFormat::Targa)),
            (b"\0\x01\x01\0\0\0\x01\x18\0\0\0\0\x10\0\x10\0\x08\0map", Some(FileFormat::Targa)),
            // A mouse pointer, a table of Lotus, an MPEG stream, and pictures without pixels.
            (b"\0\0\x02\0\x01\0\x20\x20\0\0\x02\0\x01\0\x30\x01\0\0", None),
            (b"\0\0\x02\0\x06\x04\x06\0\x08\0\0\0\0\0\0\0\0\0", None),
            (b"\0\0\x01\xba\x44\0\x04\0\x04\x01\x01\x89\xc3\xf8\0\0\x18\0", None),
            (b"\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\x2c\x01\x18\0", None),
            (&[0; 64], None),
            (b"plain text", None),
            (b"", None),
        ] {
            assert_eq!(FileFormat::detect(bytes), expected, "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn packed_drawings_are_known() {
        let pack = |text: &[u8]| {
            let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            std::io::Write::write_all(&mut packed, text).unwrap();
            packed.finish().unwrap()
        };
        let drawing = [&b"<svg xmlns='x'>"[..], &b"<g></g>".repeat(20_000)].concat();
        let packed = pack(&drawing);
        assert_eq!(FileFormat::detect(&packed), Some(FileFormat::Svg));
        // The head alone is sufficient, and no more than the limit is decompressed.
        assert_eq!(FileFormat::detect(&packed[..100]), Some(FileFormat::Svg));
        assert_eq!(decode_plain_text(&packed, 100).len(), 100);
        assert_eq!(&*decode_plain_text(&packed, 1 << 20), drawing);
        assert_eq!(FileFormat::detect(&pack(b"<html>")), None);
    }
}
