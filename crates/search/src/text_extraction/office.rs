//! Text extraction from office documents: Office Open XML and OpenDocument, which are ZIP containers of XML.
//!
//! Only the parts that contain text are opened. Each part and their sum are bounded in bytes, so that a small file that
//! unpacks to gigabytes costs no more than these limits. XML entities other than the predefined ones are not expanded.

use std::io::{BufReader, Cursor, Read, Seek};

use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::Event;
use quick_xml::reader::Reader;
use tympan_content::BlobContent;
use zip::ZipArchive;

use super::text_limit::MAX_EXTRACTED_BYTES;

/// The maximum number of parts in a container.
const MAX_CONTAINER_PARTS: usize = 20_000;
/// The maximum number of bytes of XML that are unpacked from one document.
const MAX_XML_BYTES: u64 = 64 << 20;
/// The maximum length of one tag or one piece of text, in bytes.
const MAX_XML_EVENT_BYTES: usize = 16 << 20;

/// Reads the text of a document.
pub(super) fn extract_office_text(blob: BlobContent) -> Result<String, String> {
    match blob {
        BlobContent::Bytes(bytes) => read_container(Cursor::new(bytes)),
        BlobContent::File { file, .. } => read_container(BufReader::new(file)),
    }
}

fn read_container(source: impl Read + Seek) -> Result<String, String> {
    let unreadable =
        |error: &dyn std::error::Error| format!("it is not a readable document: {error}");
    let mut zip = ZipArchive::new(source).map_err(|error| unreadable(&error))?;
    if zip.len() > MAX_CONTAINER_PARTS {
        return Err(format!("it has {} parts; at most {MAX_CONTAINER_PARTS} are read", zip.len()));
    }
    let mut text = String::new();
    let mut left = MAX_XML_BYTES;
    for index in 0..zip.len() {
        let mut part = zip.by_index(index).map_err(|error| unreadable(&error))?;
        if !is_text_part(&String::from_utf8_lossy(part.name_raw())) {
            continue;
        }
        let mut bounded = (&mut part).take(left);
        let read = read_xml(&mut bounded, &mut text);
        left = bounded.limit();
        if left == 0 {
            return Err(format!("it unpacks to more than {MAX_XML_BYTES} bytes"));
        }
        read?;
        if text.len() >= MAX_EXTRACTED_BYTES {
            break;
        }
    }
    Ok(text)
}

/// Returns true if a part contains text.
fn is_text_part(name: &str) -> bool {
    if !name.ends_with(".xml") {
        return false;
    }
    let is_numbered = |prefix: &str| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
    };
    matches!(name, "content.xml" | "docProps/core.xml" | "xl/sharedStrings.xml")
        || ["word/document", "word/header", "word/footer", "word/footnotes", "word/endnotes"]
            .into_iter()
            .any(is_numbered)
        || ["xl/worksheets/sheet", "ppt/slides/slide", "ppt/notesSlides/notesSlide"]
            .into_iter()
            .any(is_numbered)
}

/// Appends the text of an XML part.
fn read_xml(source: &mut impl Read, text: &mut String) -> Result<(), String> {
    let malformed = |error: &dyn std::error::Error| format!("its XML is malformed: {error}");
    let mut reader = Reader::from_reader(BufReader::new(source));
    let mut buffer = Vec::new();
    let mut is_value = false;
    while text.len() < MAX_EXTRACTED_BYTES {
        buffer.clear();
        match reader.read_event_into(&mut buffer).map_err(|error| malformed(&error))? {
            Event::Eof => break,
            // In spreadsheets, `<v>` is a number or the index of a shared string.
            Event::Start(tag) => is_value = tag.name().as_ref() == "v",
            Event::End(tag) => {
                is_value = false;
                if is_word_separator(tag.local_name().as_ref()) {
                    end_word(text);
                }
            }
            Event::Empty(_) => end_word(text),
            Event::Text(piece) if !is_value => {
                text.push_str(&piece);
            }
            Event::GeneralRef(name) => {
                text.push_str(resolve_predefined_entity(&name).unwrap_or(" "));
            }
            _ => {}
        }
        if buffer.len() > MAX_XML_EVENT_BYTES {
            return Err("an element of its XML is too long".to_owned());
        }
    }
    text.push(' ');
    Ok(())
}

/// Ends the current word.
fn end_word(text: &mut String) {
    if !text.ends_with(' ') {
        text.push(' ');
    }
}

/// Returns true if an element ends a word: paragraphs, cells, lines and ODF headings.
fn is_word_separator(name: &str) -> bool {
    matches!(
        name,
        "p" | "h"
            | "tab"
            | "br"
            | "tr"
            | "tc"
            | "si"
            | "is"
            | "c"
            | "title"
            | "subject"
            | "description"
            | "keywords"
            | "creator"
    )
}
