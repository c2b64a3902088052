//! Reads the document information and the number of pages of a PDF.

use lopdf::{Dictionary, Document, Object};

use super::metadata_properties::{MetadataProperties, parse_date_value};
use super::xmp;
use crate::asset_file_error::AssetFileError;
use crate::processing_request::MetadataValue;

/// Entries of the information dictionary, and their property names.
const PDF_INFO_TEXTS: &[(&[u8], &str)] = &[
    (b"Title", "dc:title"),
    (b"Subject", "dc:description"),
    (b"Keywords", "pdf:Keywords"),
    (b"Producer", "pdf:Producer"),
    (b"Creator", "xmp:CreatorTool"),
];
const PDF_INFO_DATES: &[(&[u8], &str)] =
    &[(b"CreationDate", "xmp:CreateDate"), (b"ModDate", "xmp:ModifyDate")];
/// Maximum size of a metadata stream, in bytes.
const MAX_XMP_STREAM_BYTES: usize = 16 << 20;

/// Returns the metadata of a PDF.
///
/// # Errors
/// If it is not readable as PDF.
pub(crate) fn read_pdf_metadata(
    bytes: &[u8],
) -> Result<Vec<(String, MetadataValue)>, AssetFileError> {
    let document = Document::load_mem(bytes)
        .map_err(|error| AssetFileError::new(format!("it is not a readable PDF: {error}")))?;
    let mut properties = MetadataProperties::default();
    properties.add_text_if_absent("dam:Fileformat", "PDF");
    let pages = i64::try_from(document.get_pages().len()).unwrap_or(i64::MAX);
    properties.add_if_absent("xmpTPg:NPages", MetadataValue::Long(pages));
    if let Some(packet) = find_xmp_packet(&document) {
        xmp::read_xmp(&packet, &mut properties);
    }
    let resolve = |object| document.dereference(object).ok().map(|(_, object)| object);
    let info = document.trailer.get(b"Info").ok().and_then(resolve);
    if let Some(info) = info.and_then(|info| info.as_dict().ok()) {
        let entry = |key: &[u8]| info.get(key).ok().and_then(resolve).and_then(decode_pdf_text);
        for (key, name) in PDF_INFO_TEXTS {
            if let Some(text) = entry(key) {
                properties.add_text_if_absent(*name, &text);
            }
        }
        if let Some(author) = entry(b"Author") {
            properties.add_if_absent("dc:creator", MetadataValue::Texts(vec![author]));
        }
        for (key, name) in PDF_INFO_DATES {
            if let Some(date) = entry(key).as_deref().and_then(parse_pdf_date) {
                properties.add_if_absent(*name, date);
            }
        }
    }
    Ok(properties.into_sorted_list())
}

/// Returns the document's XMP packet.
pub(crate) fn find_xmp_packet(document: &Document) -> Option<Vec<u8>> {
    let catalog: &Dictionary = document.catalog().ok()?;
    let (_, object) = document.dereference(catalog.get(b"Metadata").ok()?).ok()?;
    let stream = object.as_stream().ok()?;
    // The packet is usually stored uncompressed, so that other programs find it.
    if !stream.is_compressed() {
        return Some(stream.content.clone()).filter(|packet| packet.len() <= MAX_XMP_STREAM_BYTES);
    }
    stream.decompressed_content().ok().filter(|packet| packet.len() <= MAX_XMP_STREAM_BYTES)
}

/// Returns a text string: UTF-16 or UTF-8 with a byte order mark, otherwise Latin-1.
fn decode_pdf_text(object: &Object) -> Option<String> {
    let bytes = object.as_str().ok()?;
    if let Some(wide) = bytes.strip_prefix(b"\xfe\xff") {
        let units: Vec<u16> = wide
            .chunks_exact(2)
            .filter_map(|pair| <[u8; 2]>::try_from(pair).ok().map(u16::from_be_bytes))
            .collect();
        return Some(String::from_utf16_lossy(&units));
    }
    if let Some(marked) = bytes.strip_prefix(b"\xef\xbb\xbf") {
        return Some(String::from_utf8_lossy(marked).into_owned());
    }
    Some(bytes.iter().copied().map(char::from).collect())
}

/// Parses `D:20190301102030+01'00'`.
fn parse_pdf_date(text: &str) -> Option<MetadataValue> {
    let text = text.strip_prefix("D:").unwrap_or(text).replace('\'', "");
    let part = |from: usize, to: usize| text.get(from..to);
    let or_zero = |from: usize| {
        part(from, from + 2)
            .filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()))
            .unwrap_or("00")
    };
    let offset = match (part(14, 17), part(17, 19)) {
        (Some(hours), Some(minutes)) if hours.starts_with(['+', '-']) => {
            format!("{hours}:{minutes}")
        }
        _ => "Z".to_owned(),
    };
    let (hour, minute, second) = (or_zero(8), or_zero(10), or_zero(12));
    parse_date_value(&format!(
        "{}-{}-{}T{hour}:{minute}:{second}{offset}",
        part(0, 4)?,
        part(4, 6)?,
        part(6, 8)?
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_pdf() {
        let date = |text: &str| Some(MetadataValue::Date(text.to_owned()));
        assert_eq!(
            parse_pdf_date("D:20190301102030+01'00'"),
            date("2019-03-01T10:20:30.000+01:00")
        );
        assert_eq!(parse_pdf_date("D:20190301102030Z"), date("2019-03-01T10:20:30.000+00:00"));
        assert_eq!(parse_pdf_date("D:20190301"), date("2019-03-01T00:00:00.000+00:00"));
        assert_eq!(parse_pdf_date("yesterday"), None);
    }
}
