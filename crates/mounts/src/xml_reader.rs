//! Reads XML responses element by element, because a listing may be of any length.

use std::io::{BufReader, Read};

use quick_xml::Reader;
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::{BytesStart, Event};

use crate::mount_source::MountSourceError;

/// Maximum length of the text of one element, in bytes.
const MAX_ELEMENT_TEXT_BYTES: usize = 64 * 1024;
/// Maximum length of one response, in bytes.
const MAX_XML_BYTES: u64 = 1 << 30;
/// Maximum nesting depth.
const MAX_XML_DEPTH: usize = 64;

/// An XML event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum XmlEvent {
    /// The start of an element: its name without prefix, and its attributes.
    Start(String, XmlAttributes),
    /// The end of an element: its name, and the text directly in it.
    End(String, String),
}

/// The attributes of an element, by their names without prefix.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct XmlAttributes(Vec<(String, String)>);

impl XmlAttributes {
    /// Returns the value of an attribute; empty if there is none.
    pub(crate) fn get(&self, name: &str) -> String {
        let attribute = self.0.iter().find(|(key, _)| key == name);
        attribute.map(|(_, value)| value.clone()).unwrap_or_default()
    }

    /// Reads the attributes of an element. A malformed attribute counts as absent.
    fn from_start_tag(start: &BytesStart<'_>) -> Self {
        let all = start.attributes().filter_map(Result::ok).filter_map(|attribute| {
            let value = quick_xml::escape::unescape(&attribute.value).ok()?.into_owned();
            Some((local_name(attribute.key.local_name().as_ref()), value))
        });
        Self(all.collect())
    }
}

/// Calls `with` for each start and end of an element.
pub(crate) fn read_xml_events(
    source: impl Read,
    location: &str,
    mut with: impl FnMut(XmlEvent) -> Result<(), MountSourceError>,
) -> Result<(), MountSourceError> {
    let malformed =
        |reason: String| MountSourceError::Malformed { location: location.to_owned(), reason };
    let mut reader = Reader::from_reader(BufReader::new(source.take(MAX_XML_BYTES)));
    let mut buffer = Vec::new();
    let mut texts: Vec<String> = Vec::new();
    let mut is_whole = false;
    loop {
        buffer.clear();
        let event = reader.read_event_into(&mut buffer).map_err(|error| match error {
            quick_xml::Error::Io(error) => MountSourceError::Unreachable {
                location: location.to_owned(),
                reason: error.to_string(),
            },
            syntax_error => malformed(syntax_error.to_string()),
        })?;
        match event {
            Event::Start(start) => {
                if texts.len() >= MAX_XML_DEPTH {
                    return Err(malformed(format!(
                        "it is nested deeper than {MAX_XML_DEPTH} elements"
                    )));
                }
                texts.push(String::new());
                let attributes = XmlAttributes::from_start_tag(&start);
                with(XmlEvent::Start(local_name(start.local_name().as_ref()), attributes))?;
            }
            Event::Empty(start) => {
                let name = local_name(start.local_name().as_ref());
                with(XmlEvent::Start(name.clone(), XmlAttributes::from_start_tag(&start)))?;
                with(XmlEvent::End(name, String::new()))?;
            }
            Event::End(end) => {
                let text = texts.pop().unwrap_or_default();
                is_whole = texts.is_empty();
                with(XmlEvent::End(local_name(end.local_name().as_ref()), text.trim().to_owned()))?;
            }
            Event::Text(text) => append_text(&mut texts, &text).map_err(malformed)?,
            Event::CData(text) => append_text(&mut texts, &text).map_err(malformed)?,
            Event::GeneralRef(reference) => {
                let letter = reference.resolve_char_ref().ok().flatten().map(String::from);
                let named = letter.or_else(|| resolve_xml_entity(&reference).map(str::to_owned));
                let named =
                    named.ok_or_else(|| malformed("it has an unknown entity".to_owned()))?;
                append_text(&mut texts, &named).map_err(malformed)?;
            }
            Event::Eof if is_whole => return Ok(()),
            Event::Eof => return Err(malformed("it ends unexpectedly".to_owned())),
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
        }
    }
}

fn append_text(texts: &mut [String], more: &str) -> Result<(), String> {
    let Some(text) = texts.last_mut() else { return Ok(()) };
    if text.len() + more.len() > MAX_ELEMENT_TEXT_BYTES {
        return Err(format!("it has a text of more than {MAX_ELEMENT_TEXT_BYTES} bytes"));
    }
    text.push_str(more);
    Ok(())
}

fn local_name(bytes: impl AsRef<[u8]>) -> String {
    String::from_utf8_lossy(bytes.as_ref()).into_owned()
}
