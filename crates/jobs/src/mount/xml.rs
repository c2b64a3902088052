//! Answers in XML, read element by element: a listing may be of any length.

use std::io::{BufReader, Read};

use quick_xml::Reader;
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::{BytesStart, Event};

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
    /// An element begins; its name without prefix, and its attributes.
    Start(String, Attributes),
    /// An element ends; its name and the text directly in it.
    End(String, String),
}

/// The attributes of an element, by their names without prefix.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes(Vec<(String, String)>);

impl Attributes {
    /// Returns the value of an attribute; empty if there is none.
    pub(crate) fn get(&self, name: &str) -> String {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    }

    /// Reads those of an element. One that is malformed counts as absent.
    fn of(start: &BytesStart<'_>) -> Self {
        let all = start.attributes().filter_map(Result::ok).filter_map(|attribute| {
            let value = quick_xml::escape::unescape(&attribute.value).ok()?.into_owned();
            Some((name_of(attribute.key.local_name().as_ref()), value))
        });
        Self(all.collect())
    }
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
                let attributes = Attributes::of(&start);
                with(Piece::Start(name_of(start.local_name().as_ref()), attributes))?;
            }
            Event::Empty(start) => {
                let name = name_of(start.local_name().as_ref());
                with(Piece::Start(name.clone(), Attributes::of(&start)))?;
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
