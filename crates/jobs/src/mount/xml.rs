//! Answers in XML, read element by element: a listing may be of any length.

use std::io::{BufReader, Read};

use quick_xml::Reader;
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::Event;

use super::source::SourceError;

/// The longest text of one element.
const MAX_TEXT: usize = 64 * 1024;
/// The most bytes of one answer.
const MAX_BYTES: u64 = 1 << 30;
/// The deepest nesting.
const MAX_DEPTH: usize = 64;

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// An element begins; its name without prefix.
    Start(String),
    /// An element ends; its name and the text directly in it.
    End(String, String),
}

/// Calls `with` for each beginning and end of an element.
pub(crate) fn read(
    source: impl Read,
    place: &str,
    mut with: impl FnMut(Piece) -> Result<(), SourceError>,
) -> Result<(), SourceError> {
    let malformed = |reason: String| SourceError::Malformed { place: place.to_owned(), reason };
    let mut reader = Reader::from_reader(BufReader::new(source.take(MAX_BYTES)));
    let mut buffer = Vec::new();
    let mut texts: Vec<String> = Vec::new();
    let mut is_whole = false;
    loop {
        buffer.clear();
        let event = reader.read_event_into(&mut buffer).map_err(|error| match error {
            quick_xml::Error::Io(error) => {
                SourceError::Unreachable { place: place.to_owned(), reason: error.to_string() }
            }
            other => malformed(other.to_string()),
        })?;
        match event {
            Event::Start(start) => {
                if texts.len() >= MAX_DEPTH {
                    return Err(malformed(format!(
                        "it is nested deeper than {MAX_DEPTH} elements"
                    )));
                }
                texts.push(String::new());
                with(Piece::Start(name_of(start.local_name().as_ref())))?;
            }
            Event::Empty(start) => {
                let name = name_of(start.local_name().as_ref());
                with(Piece::Start(name.clone()))?;
                with(Piece::End(name, String::new()))?;
            }
            Event::End(end) => {
                let text = texts.pop().unwrap_or_default();
                is_whole = texts.is_empty();
                with(Piece::End(name_of(end.local_name().as_ref()), text.trim().to_owned()))?;
            }
            Event::Text(text) => add(&mut texts, &text).map_err(malformed)?,
            Event::CData(text) => add(&mut texts, &text).map_err(malformed)?,
            Event::GeneralRef(reference) => {
                let letter = reference.resolve_char_ref().ok().flatten().map(String::from);
                let named = letter.or_else(|| resolve_xml_entity(&reference).map(str::to_owned));
                let named =
                    named.ok_or_else(|| malformed("it has an unknown entity".to_owned()))?;
                add(&mut texts, &named).map_err(malformed)?;
            }
            Event::Eof if is_whole => return Ok(()),
            Event::Eof => return Err(malformed("it breaks off".to_owned())),
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
        }
    }
}

fn add(texts: &mut [String], more: &str) -> Result<(), String> {
    let Some(text) = texts.last_mut() else { return Ok(()) };
    if text.len() + more.len() > MAX_TEXT {
        return Err(format!("it has a text of more than {MAX_TEXT} bytes"));
    }
    text.push_str(more);
    Ok(())
}

fn name_of(bytes: impl AsRef<[u8]>) -> String {
    String::from_utf8_lossy(bytes.as_ref()).into_owned()
}
