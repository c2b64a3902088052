//! Text extraction from blobs: plain text, markup, office documents, PDF.
//!
//! In: a blob, its media type and its name. Out: its text, truncated at [`MAX_EXTRACTED_BYTES`]; nothing for a blob
//! without text.
//!
//! Invariants
//! * No input takes more than bounded time and memory, and none ends the process. Simple formats are read in this
//!   process, bounded in bytes; PDF is read in a separate process (`pdf`).
//!
//! On failure: a message for users; the document is indexed without this text.

mod markup;
mod office;
pub(crate) mod pdf;
mod text_limit;

use std::io::Read;

use tympan_content::BlobContent;

pub(crate) use markup::{looks_like_markup, strip_markup};
pub use pdf::{PdfReader, read_pdf};
use text_limit::MAX_DOCUMENT_BYTES;
pub(crate) use text_limit::{MAX_EXTRACTED_BYTES, truncate_text};

/// The maximum number of bytes read of a text file.
const MAX_PLAIN_TEXT_BYTES: u64 = 4 << 20;
/// The format of a blob for text extraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlobTextKind {
    Plain,
    Markup,
    Office,
    Pdf,
    /// The blob contains no text, or none worth indexing.
    Other,
}

/// Extracts text from blobs.
#[derive(Debug, Clone, Default)]
pub(crate) struct BlobTextExtractor {
    /// The reader for PDF files; `None` to read none of them.
    pub(crate) pdf: Option<PdfReader>,
}

impl BlobTextExtractor {
    /// Returns true if a blob of this media type and name may contain text.
    pub(crate) fn may_have_text(&self, media_type: Option<&str>, name: &str) -> bool {
        match blob_text_kind(media_type, name) {
            BlobTextKind::Other => false,
            BlobTextKind::Pdf => self.pdf.is_some(),
            BlobTextKind::Plain | BlobTextKind::Markup | BlobTextKind::Office => true,
        }
    }

    /// Extracts the text of a blob.
    ///
    /// # Errors
    /// A message that says why it cannot be read.
    pub(crate) fn extract_text(
        &self,
        blob: BlobContent,
        media_type: Option<&str>,
        name: &str,
    ) -> Result<String, String> {
        let length = blob.length();
        let kind = blob_text_kind(media_type, name);
        if matches!(kind, BlobTextKind::Office | BlobTextKind::Pdf) && length > MAX_DOCUMENT_BYTES {
            return Err(format!("it has {length} bytes; at most {MAX_DOCUMENT_BYTES} are read"));
        }
        let mut text = match kind {
            BlobTextKind::Other => String::new(),
            BlobTextKind::Plain => read_plain_text(blob)?,
            BlobTextKind::Markup => strip_markup(&read_plain_text(blob)?),
            BlobTextKind::Office => office::extract_office_text(blob)?,
            BlobTextKind::Pdf => match &self.pdf {
                Some(reader) => reader.extract_pdf_text(blob)?,
                None => String::new(),
            },
        };
        truncate_text(&mut text, MAX_EXTRACTED_BYTES);
        Ok(text)
    }
}

/// Reads a text file: UTF-8, or UTF-16 with a byte order mark.
fn read_plain_text(blob: BlobContent) -> Result<String, String> {
    let mut bytes = Vec::new();
    let read = blob.into_reader().take(MAX_PLAIN_TEXT_BYTES).read_to_end(&mut bytes);
    read.map_err(|error| format!("it cannot be read: {error}"))?;
    let wide = |decode: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = bytes
            .get(2..)
            .unwrap_or_default()
            .chunks_exact(2)
            .map(|pair| {
                decode([pair.first().copied().unwrap_or(0), pair.last().copied().unwrap_or(0)])
            })
            .collect();
        String::from_utf16_lossy(&units)
    };
    Ok(match bytes.get(..2) {
        Some([0xff, 0xfe]) => wide(u16::from_le_bytes),
        Some([0xfe, 0xff]) => wide(u16::from_be_bytes),
        _ => String::from_utf8_lossy(&bytes).into_owned(),
    })
}

/// Returns the format of a blob by its media type, or by its name if the media type is inconclusive.
fn blob_text_kind(media_type: Option<&str>, name: &str) -> BlobTextKind {
    let media_type = media_type.unwrap_or_default();
    let media_type = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match media_type.as_str() {
        "" | "application/octet-stream" => kind_by_name(name),
        "application/pdf" | "application/x-pdf" => BlobTextKind::Pdf,
        "text/css" | "text/javascript" | "text/ecmascript" => BlobTextKind::Other,
        "application/json" | "application/x-ndjson" | "application/yaml" | "application/rtf" => {
            BlobTextKind::Plain
        }
        "application/xml" | "application/xhtml+xml" | "text/html" | "text/xml" => {
            BlobTextKind::Markup
        }
        office if office.starts_with("application/vnd.openxmlformats-officedocument.") => {
            BlobTextKind::Office
        }
        office if office.starts_with("application/vnd.oasis.opendocument.") => BlobTextKind::Office,
        office if office.starts_with("application/vnd.ms-") && office.contains("macroenabled") => {
            BlobTextKind::Office
        }
        text if text.starts_with("text/") => BlobTextKind::Plain,
        // Images may also be XML.
        xml if xml.starts_with("application/") && xml.ends_with("+xml") => BlobTextKind::Markup,
        _ => BlobTextKind::Other,
    }
}

fn kind_by_name(name: &str) -> BlobTextKind {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    match extension.to_ascii_lowercase().as_str() {
        "pdf" => BlobTextKind::Pdf,
        "txt" | "md" | "markdown" | "csv" | "tsv" | "json" | "yaml" | "yml" | "rtf" | "log" => {
            BlobTextKind::Plain
        }
        "html" | "htm" | "xhtml" | "xml" => BlobTextKind::Markup,
        "docx" | "docm" | "dotx" | "xlsx" | "xlsm" | "pptx" | "pptm" | "odt" | "ods" | "odp" => {
            BlobTextKind::Office
        }
        _ => BlobTextKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_kinds() {
        for (media_type, name, kind) in [
            (Some("text/plain; charset=utf-8"), "", BlobTextKind::Plain),
            (Some("text/html"), "", BlobTextKind::Markup),
            (Some("image/svg+xml"), "a.svg", BlobTextKind::Other),
            (Some("application/pdf"), "", BlobTextKind::Pdf),
            (None, "Report.PDF", BlobTextKind::Pdf),
            (Some("application/octet-stream"), "a.docx", BlobTextKind::Office),
            (Some("image/jpeg"), "a.pdf", BlobTextKind::Other),
            (Some("text/css"), "", BlobTextKind::Other),
            (None, "noextension", BlobTextKind::Other),
        ] {
            assert_eq!(blob_text_kind(media_type, name), kind, "{media_type:?} {name}");
        }
    }

    #[test]
    fn reads_wide_text() {
        let bytes = [0xff, 0xfe, b'h', 0, b'i', 0, 0x3d];
        assert_eq!(read_plain_text(BlobContent::Bytes(bytes.to_vec().into())).unwrap(), "hi");
    }

    #[test]
    fn cuts_between_characters() {
        let mut text = "aé".to_owned();
        truncate_text(&mut text, 2);
        assert_eq!(text, "a");
    }
}
