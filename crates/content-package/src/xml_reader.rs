//! A small pull reader for the XML files of a package: elements with their attributes, and the line of each.
//!
//! DTDs are not read, and custom entities are not expanded: only character references and the five entities that XML
//! predefines are known. Documents are UTF-8.
//!
//! On failure: [`crate::Error::InvalidPackage`] with the file and the line, and the value is not used.

use quick_xml::XmlVersion;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesDecl, BytesRef, BytesStart, Event};
use quick_xml::reader::Reader;

use crate::archive::PackageFileName;
use crate::{Error, Result};

/// The next item of a document.
#[derive(Debug)]
pub(crate) enum XmlItem {
    /// The start of an element.
    StartElement(XmlElement),
    /// The end of the innermost open element.
    EndElement,
    /// Character data inside an element, with entities resolved.
    Text(String),
    /// The end of the document.
    EndDocument,
}

/// The start tag of an element.
#[derive(Debug)]
pub(crate) struct XmlElement {
    /// The qualified name, as written.
    pub(crate) name: String,
    /// The attributes in their order; names may repeat.
    pub(crate) attributes: Vec<XmlAttribute>,
    /// The line of the element's `<`.
    pub(crate) line: u32,
}

impl XmlElement {
    /// Finds an attribute's value by its qualified name.
    pub(crate) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes
            .iter()
            .find(|candidate| candidate.name == name)
            .map(|candidate| candidate.value.as_str())
    }
}

/// An attribute of an element.
#[derive(Debug)]
pub(crate) struct XmlAttribute {
    /// The qualified name, as written.
    pub(crate) name: String,
    /// The value, normalized as XML requires: line ends and tabs become spaces, references are resolved.
    pub(crate) value: String,
    /// The line of the attribute's name.
    pub(crate) line: u32,
}

/// A read position in a document.
pub(crate) struct XmlReader<'a> {
    file_name: &'a PackageFileName,
    text: &'a str,
    reader: Reader<&'a [u8]>,
    /// Number of open elements.
    open_elements: usize,
    has_root: bool,
    /// Number of bytes of `text` whose line ends are counted in `line`.
    counted_bytes: usize,
    line: u32,
}

impl<'a> XmlReader<'a> {
    /// Begins to read a document.
    ///
    /// # Errors
    /// If the bytes are not UTF-8.
    pub(crate) fn new(file: &'a PackageFileName, bytes: &'a [u8]) -> Result<Self> {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let before = bytes.get(..error.valid_up_to()).unwrap_or_default();
            file.to_error(line_after(before), "the file is not UTF-8; save it as UTF-8")
        })?;
        let mut reader = Reader::from_str(text);
        reader.config_mut().expand_empty_elements = true;
        Ok(Self {
            file_name: file,
            text,
            reader,
            open_elements: 0,
            has_root: false,
            counted_bytes: 0,
            line: 1,
        })
    }

    /// Returns the next item; comments, instructions and the document type are skipped.
    ///
    /// # Errors
    /// At the first position where the document is not well-formed.
    pub(crate) fn next_item(&mut self) -> Result<XmlItem> {
        loop {
            let at = self.reader.buffer_position();
            let event = self.reader.read_event().map_err(|error| {
                let line = self.line_at(self.reader.error_position());
                self.malformed_error(line, &error)
            })?;
            let line = self.line_at(at);
            match event {
                Event::Start(start) => {
                    return self.read_start_element(&start, line).map(XmlItem::StartElement);
                }
                Event::End(_) => {
                    self.open_elements = self.open_elements.saturating_sub(1);
                    return Ok(XmlItem::EndElement);
                }
                Event::Text(text) if self.open_elements > 0 => {
                    return Ok(XmlItem::Text(text.xml10_content().into_owned()));
                }
                Event::Text(text) if !text.trim().is_empty() => {
                    return Err(self
                        .file_name
                        .to_error(line, "there is text outside the root element"));
                }
                Event::CData(data) => return Ok(XmlItem::Text(data.into_inner().into_owned())),
                Event::GeneralRef(reference) => {
                    return self.resolve_reference(&reference, line).map(XmlItem::Text);
                }
                Event::Decl(declaration) => self.check_encoding(&declaration, line)?,
                Event::Eof => return self.finish_document(line),
                Event::Empty(_)
                | Event::Text(_)
                | Event::Comment(_)
                | Event::PI(_)
                | Event::DocType(_) => {}
            }
        }
    }

    fn read_start_element(&mut self, start: &BytesStart<'a>, line: u32) -> Result<XmlElement> {
        if self.open_elements == 0 && self.has_root {
            return Err(self.file_name.to_error(line, "there is a second root element"));
        }
        self.open_elements += 1;
        self.has_root = true;
        let tag: &str = start;
        let mut attributes = Vec::new();
        let (mut counted, mut attribute_line) = (0, line);
        for attribute in start.attributes().with_checks(false) {
            let attribute = attribute.map_err(|error| self.malformed_error(line, &error.into()))?;
            let name = attribute.key.into_inner();
            // The name is a slice of the tag, so the pointer distance is its offset.
            let offset = (name.as_ptr() as usize).saturating_sub(tag.as_ptr() as usize);
            let between = tag.as_bytes().get(counted..offset).unwrap_or_default();
            attribute_line = attribute_line.saturating_add(line_after(between) - 1);
            counted = offset;
            let line = attribute_line;
            if attribute.value.contains('<') {
                return Err(self
                    .file_name
                    .to_error(line, format!("`{name}` contains a `<`; write `&lt;`")));
            }
            let value = attribute
                .normalized_value(XmlVersion::Implicit1_0)
                .map_err(|error| self.malformed_error(line, &error))?
                .into_owned();
            attributes.push(XmlAttribute { name: name.to_owned(), value, line });
        }
        Ok(XmlElement { name: start.name().into_inner().to_owned(), attributes, line })
    }

    fn resolve_reference(&self, reference: &BytesRef<'_>, line: u32) -> Result<String> {
        let character =
            reference.resolve_char_ref().map_err(|error| self.malformed_error(line, &error))?;
        let name: &str = reference;
        match (character, resolve_predefined_entity(name)) {
            (Some(character), _) => Ok(character.to_string()),
            (None, Some(text)) => Ok(text.to_owned()),
            (None, None) => {
                Err(self.file_name.to_error(line, format!("the entity `&{name};` is not defined")))
            }
        }
    }

    fn check_encoding(&self, declaration: &BytesDecl<'_>, line: u32) -> Result<()> {
        let Some(Ok(encoding)) = declaration.encoding() else {
            return Ok(());
        };
        if encoding.eq_ignore_ascii_case("utf-8") || self.text.is_ascii() {
            return Ok(());
        }
        Err(self.file_name.to_error(
            line,
            format!("the encoding `{encoding}` is not supported; save the file as UTF-8"),
        ))
    }

    fn finish_document(&self, line: u32) -> Result<XmlItem> {
        match (self.open_elements, self.has_root) {
            (0, true) => Ok(XmlItem::EndDocument),
            (0, false) => Err(self.file_name.to_error(line, "the file contains no XML element")),
            (open, _) => Err(self
                .file_name
                .to_error(line, format!("the file ends before {open} open elements are closed"))),
        }
    }

    fn malformed_error(&self, line: u32, error: &quick_xml::Error) -> Error {
        self.file_name.to_error(line, format!("not well-formed XML: {error}"))
    }

    /// Returns the line of a byte offset; cheap for ascending offsets.
    fn line_at(&mut self, offset: u64) -> u32 {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX).min(self.text.len());
        let bytes = self.text.as_bytes();
        if let Some(between) = bytes.get(self.counted_bytes..offset) {
            self.line = self.line.saturating_add(line_after(between) - 1);
            self.counted_bytes = offset;
            return self.line;
        }
        line_after(bytes.get(..offset).unwrap_or_default())
    }
}

/// Returns the line, counted from 1, on which the text after `before` begins.
fn line_after(before: &[u8]) -> u32 {
    let ends = before.iter().filter(|byte| **byte == b'\n').count();
    u32::try_from(ends).unwrap_or(u32::MAX - 1) + 1
}

/// Escapes text for a double-quoted attribute.
pub(crate) fn push_escaped_attribute(out: &mut String, value: &str) {
    for character in value.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\t' => out.push_str("&#x9;"),
            '\n' => out.push_str("&#xa;"),
            '\r' => out.push_str("&#xd;"),
            code_point => out.push(code_point),
        }
    }
}

/// Returns true if XML 1.0 allows the character in a document.
pub(crate) fn is_xml_character(character: char) -> bool {
    matches!(character, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}
