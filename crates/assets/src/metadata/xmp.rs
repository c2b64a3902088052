//! Reads and writes XMP: the metadata packet that many programs write into files, as RDF in XML.
//!
//! In: a packet. Out: its simple values and lists under the usual prefixes; structures are left out.
//!
//! Writing changes only the text of the changed properties. The rest of the packet is unchanged, including structures
//! and unknown namespaces.

use std::ops::Range;

use roxmltree::{Document, Node};
use tympan_notation::escape_xml;

use super::metadata_properties::{MetadataProperties, parse_date_value};
use crate::processing_request::MetadataValue;

const RDF_NAMESPACE: &str = "http://www.w3.org/1999/02/22-rdf-syntax-ns#";
const XML_NAMESPACE: &str = "http://www.w3.org/XML/1998/namespace";

/// The supported namespaces, with their prefixes in the repository.
const XMP_NAMESPACES: &[(&str, &str)] = &[
    ("dc", "http://purl.org/dc/elements/1.1/"),
    ("xmp", "http://ns.adobe.com/xap/1.0/"),
    ("xmpMM", "http://ns.adobe.com/xap/1.0/mm/"),
    ("xmpRights", "http://ns.adobe.com/xap/1.0/rights/"),
    ("xmpTPg", "http://ns.adobe.com/xap/1.0/t/pg/"),
    ("photoshop", "http://ns.adobe.com/photoshop/1.0/"),
    ("tiff", "http://ns.adobe.com/tiff/1.0/"),
    ("exif", "http://ns.adobe.com/exif/1.0/"),
    ("aux", "http://ns.adobe.com/exif/1.0/aux/"),
    ("pdf", "http://ns.adobe.com/pdf/1.3/"),
    ("lr", "http://ns.adobe.com/lightroom/1.0/"),
    ("plus", "http://ns.useplus.org/ldf/xmp/1.0/"),
    ("Iptc4xmpCore", "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/"),
    ("Iptc4xmpExt", "http://iptc.org/std/Iptc4xmpExt/2008-02-29/"),
    ("prism", "http://prismstandard.org/namespaces/basic/2.0/"),
];

/// Properties that are defined as lists, regardless of their form in a file.
const LIST_PROPERTIES: &[&str] =
    &["dc:creator", "dc:subject", "dc:contributor", "dc:publisher", "dc:language"];
/// Properties that are defined as texts in several languages.
const LANGUAGE_PROPERTIES: &[&str] =
    &["dc:title", "dc:description", "dc:rights", "xmpRights:UsageTerms"];
const ORDERED_PROPERTIES: &[&str] = &["dc:creator"];

/// Properties that are whole numbers.
const NUMBER_PROPERTIES: &[&str] = &[
    "tiff:ImageWidth",
    "tiff:ImageLength",
    "tiff:Orientation",
    "tiff:ResolutionUnit",
    "tiff:SamplesPerPixel",
    "tiff:Compression",
    "tiff:PhotometricInterpretation",
    "exif:ColorSpace",
    "exif:PixelXDimension",
    "exif:PixelYDimension",
    "exif:ExposureProgram",
    "exif:MeteringMode",
    "exif:LightSource",
    "exif:WhiteBalance",
    "exif:ExposureMode",
    "exif:SceneCaptureType",
    "exif:FocalLengthIn35mmFilm",
    "exif:ISOSpeedRatings",
    "photoshop:ColorMode",
    "photoshop:Urgency",
    "xmpTPg:NPages",
];

/// Adds the properties of a packet.
pub(crate) fn read_xmp(packet: &[u8], properties: &mut MetadataProperties) {
    let text = String::from_utf8_lossy(packet);
    let text = text.trim_matches(|c: char| c == '\0' || c == '\u{feff}' || c.is_whitespace());
    let Ok(document) = Document::parse(text) else { return };
    for description in iter_descriptions(&document) {
        for attribute in description.attributes() {
            if let Some(name) = prefixed_name(attribute.namespace(), attribute.name()) {
                let value = typed_value(&name, vec![attribute.value().to_owned()], false);
                properties.add_if_absent(name, value);
            }
        }
        for element in description.children().filter(Node::is_element) {
            let tag = element.tag_name();
            let Some(name) = prefixed_name(tag.namespace(), tag.name()) else { continue };
            if let Some((texts, is_list)) = property_texts(element) {
                let value = typed_value(&name, texts, is_list);
                properties.add_if_absent(name, value);
            }
        }
    }
}

fn iter_descriptions<'a, 'b>(document: &'a Document<'b>) -> impl Iterator<Item = Node<'a, 'b>> {
    let all = document.descendants().filter(|node| node.has_tag_name((RDF_NAMESPACE, "RDF")));
    all.flat_map(|rdf| {
        rdf.children().filter(|node| node.has_tag_name((RDF_NAMESPACE, "Description")))
    })
}

/// Returns the name in the repository; `None` for namespaces without a prefix.
fn prefixed_name(namespace: Option<&str>, name: &str) -> Option<String> {
    let namespace = namespace?;
    let (prefix, _) = XMP_NAMESPACES.iter().find(|(_, uri)| *uri == namespace)?;
    Some(format!("{prefix}:{name}"))
}

/// Returns the texts of a property, and true if it is a list; `None` for a structure.
fn property_texts(element: Node<'_, '_>) -> Option<(Vec<String>, bool)> {
    let mut children = element.children().filter(Node::is_element);
    let Some(child) = children.next() else {
        return Some((vec![element.text().unwrap_or_default().to_owned()], false));
    };
    let items = || child.children().filter(|item| item.has_tag_name((RDF_NAMESPACE, "li")));
    let is_simple = |item: &Node<'_, '_>| !item.children().any(|node| node.is_element());
    let is = |name| child.has_tag_name((RDF_NAMESPACE, name));
    if is("Alt") {
        let default =
            items().find(|item| item.attribute((XML_NAMESPACE, "lang")) == Some("x-default"));
        let text = default.or_else(|| items().next()).filter(is_simple)?.text().unwrap_or_default();
        return Some((vec![text.to_owned()], false));
    }
    if !is("Bag") && !is("Seq") {
        return None;
    }
    let texts = items().filter(is_simple).map(|item| item.text().unwrap_or_default().to_owned());
    Some((texts.collect(), true))
}

fn typed_value(name: &str, mut texts: Vec<String>, is_list: bool) -> MetadataValue {
    if LIST_PROPERTIES.contains(&name) {
        return MetadataValue::Texts(texts);
    }
    if NUMBER_PROPERTIES.contains(&name)
        && let Some(Ok(number)) = texts.first().map(|text| text.trim().parse())
    {
        return MetadataValue::Long(number);
    }
    if is_list {
        return MetadataValue::Texts(texts);
    }
    let text = texts.pop().unwrap_or_default();
    let is_date =
        name.ends_with("Date") || name.contains("DateTime") || name.ends_with("DateCreated");
    match parse_date_value(&text).filter(|_| is_date) {
        Some(date) => date,
        None => MetadataValue::Text(text),
    }
}

/// Returns true if a property can be written into a file, that is, if its namespace is registered.
pub(crate) fn is_writable_property(name: &str) -> bool {
    let Some((prefix, local)) = name.split_once(':') else { return false };
    let is_name = local.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && local.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
    is_name && XMP_NAMESPACES.iter().any(|(known_prefix, _)| *known_prefix == prefix)
}

/// Returns the packet with the given properties set; a value of `None` removes the property. Everything else is
/// unchanged.
///
/// # Errors
/// If a packet exists but cannot be parsed. It is not discarded in this case.
pub(crate) fn update_xmp_packet(
    packet: Option<&[u8]>,
    changes: &[(String, Option<MetadataValue>)],
) -> Result<Vec<u8>, String> {
    let inner = match packet {
        Some(packet) => {
            let text = std::str::from_utf8(packet).map_err(|_| "its XMP packet is not UTF-8")?;
            remove_properties(text, changes)?
        }
        None => format!(
            "<x:xmpmeta xmlns:x=\"adobe:ns:meta/\"><rdf:RDF xmlns:rdf=\"{RDF_NAMESPACE}\"></rdf:RDF></x:xmpmeta>"
        ),
    };
    let added = write_description(changes);
    let document = Document::parse(&inner)
        .map_err(|error| format!("its XMP packet cannot be read: {error}"))?;
    let rdf = document.descendants().find(|node| node.has_tag_name((RDF_NAMESPACE, "RDF")));
    let rdf = rdf.ok_or("its XMP packet contains no RDF")?.range();
    let whole = inner.get(rdf.clone()).unwrap_or_default();
    let written = match whole.rfind("</") {
        Some(end) => insert_text(&inner, rdf.start + end, &added),
        // An empty element is opened, and closed after the added text.
        None => {
            let name: String = whole
                .trim_start_matches('<')
                .chars()
                .take_while(|c| !c.is_whitespace() && *c != '/')
                .collect();
            let open = rdf.start + whole.rfind("/>").ok_or("its XMP packet cannot be read")?;
            let head = inner.get(..open).unwrap_or_default();
            let tail = inner.get(open + 2..).unwrap_or_default();
            format!("{head}>{added}</{name}>{tail}")
        }
    };
    Ok(match written.contains("<?xpacket") {
        true => written.into_bytes(),
        false => format!(
            "<?xpacket begin=\"\u{feff}\" id=\"W5M0MpCehiHzreSzNTczkc9d\"?>{written}<?xpacket end=\"w\"?>"
        )
        .into_bytes(),
    })
}

fn insert_text(text: &str, at: usize, added: &str) -> String {
    let (head, tail) = text.split_at(at);
    format!("{head}{added}{tail}")
}

/// Returns the packet without the changed properties.
fn remove_properties(
    text: &str,
    changes: &[(String, Option<MetadataValue>)],
) -> Result<String, String> {
    let text = text.trim_matches(|c: char| c == '\0' || c == '\u{feff}' || c.is_whitespace());
    let document =
        Document::parse(text).map_err(|error| format!("its XMP packet cannot be read: {error}"))?;
    let changes_name = |namespace: Option<&str>, name: &str| {
        prefixed_name(namespace, name)
            .is_some_and(|name| changes.iter().any(|(changed, _)| *changed == name))
    };
    let mut cuts: Vec<Range<usize>> = Vec::new();
    for description in iter_descriptions(&document) {
        let changes_attribute = |attribute: &roxmltree::Attribute<'_, '_>| {
            changes_name(attribute.namespace(), attribute.name())
        };
        let changes_element = |element: &Node<'_, '_>| {
            changes_name(element.tag_name().namespace(), element.tag_name().name())
        };
        let elements = || description.children().filter(Node::is_element);
        // A description that becomes empty is removed entirely, so that a packet does not grow with each change.
        let is_about =
            |attribute: &roxmltree::Attribute<'_, '_>| attribute.namespace() == Some(RDF_NAMESPACE);
        let is_empty = elements().all(|element| changes_element(&element))
            && description
                .attributes()
                .all(|xml_attribute| is_about(&xml_attribute) || changes_attribute(&xml_attribute));
        if is_empty {
            cuts.push(description.range());
            continue;
        }
        cuts.extend(
            description
                .attributes()
                .filter(changes_attribute)
                .map(|xml_attribute| xml_attribute.range()),
        );
        cuts.extend(elements().filter(changes_element).map(|element| element.range()));
    }
    cuts.sort_by_key(|cut| cut.start);
    let mut remaining = String::with_capacity(text.len());
    let mut from = 0;
    for cut in cuts {
        remaining.push_str(text.get(from..cut.start).unwrap_or_default());
        from = cut.end;
    }
    remaining.push_str(text.get(from..).unwrap_or_default());
    Ok(remaining)
}

/// Returns the values as one RDF description.
fn write_description(changes: &[(String, Option<MetadataValue>)]) -> String {
    let mut body = String::new();
    let mut prefixes: Vec<&str> = Vec::new();
    for (name, value) in changes {
        let (Some((prefix, _)), Some(value)) = (name.split_once(':'), value) else { continue };
        if !prefixes.contains(&prefix) {
            prefixes.push(prefix);
        }
        body.push_str(&format!("<{name}>{}</{name}>", write_property_content(name, value)));
    }
    if body.is_empty() {
        return body;
    }
    let namespaces: String = XMP_NAMESPACES
        .iter()
        .filter(|(prefix, _)| prefixes.contains(prefix))
        .map(|(prefix, uri)| format!(" xmlns:{prefix}=\"{uri}\""))
        .collect();
    format!(
        "<rdf:Description xmlns:rdf=\"{RDF_NAMESPACE}\" rdf:about=\"\"{namespaces}>{body}</rdf:Description>"
    )
}

fn write_property_content(name: &str, value: &MetadataValue) -> String {
    let text = |value: &MetadataValue| match value {
        MetadataValue::Text(text) | MetadataValue::Date(text) => escape_xml(text),
        MetadataValue::Texts(texts) => escape_xml(&texts.join(", ")),
        MetadataValue::Long(number) => number.to_string(),
        MetadataValue::Double(number) => number.to_string(),
    };
    if LANGUAGE_PROPERTIES.contains(&name) {
        return format!(
            "<rdf:Alt><rdf:li xml:lang=\"x-default\">{}</rdf:li></rdf:Alt>",
            text(value)
        );
    }
    let texts = match value {
        MetadataValue::Texts(texts) => texts.clone(),
        MetadataValue::Text(text) if LIST_PROPERTIES.contains(&name) => vec![text.clone()],
        _ => return text(value),
    };
    let kind = if ORDERED_PROPERTIES.contains(&name) { "Seq" } else { "Bag" };
    let items: String =
        texts.iter().map(|text| format!("<rdf:li>{}</rdf:li>", escape_xml(text))).collect();
    format!("<rdf:{kind}>{items}</rdf:{kind}>")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: &str = "<?xpacket begin='\u{feff}' id='W5M0MpCehiHzreSzNTczkc9d'?>\
        <x:xmpmeta xmlns:x='adobe:ns:meta/'><rdf:RDF xmlns:rdf='http://www.w3.org/1999/02/22-rdf-syntax-ns#'>\
        <rdf:Description rdf:about='' xmlns:e='http://purl.org/dc/elements/1.1/' xmlns:own='urn:own' \
        xmlns:p='http://ns.adobe.com/photoshop/1.0/' p:City='Bern &amp; Basel' own:keep='1'>\
        <e:title><rdf:Alt><rdf:li xml:lang='de'>Eins</rdf:li><rdf:li xml:lang='x-default'>One</rdf:li></rdf:Alt></e:title>\
        <e:subject><rdf:Bag><rdf:li>a</rdf:li><rdf:li>b</rdf:li></rdf:Bag></e:subject>\
        <xmp:CreateDate xmlns:xmp='http://ns.adobe.com/xap/1.0/'>2019-03-01T10:20:30+01:00</xmp:CreateDate>\
        <own:thing rdf:parseType='Resource'><own:deep>x</own:deep></own:thing>\
        </rdf:Description></rdf:RDF></x:xmpmeta><?xpacket end='w'?>";

    fn properties(packet: &[u8]) -> Vec<(String, MetadataValue)> {
        let mut properties = MetadataProperties::default();
        read_xmp(packet, &mut properties);
        properties.into_sorted_list()
    }

    fn text(text: &str) -> MetadataValue {
        MetadataValue::Text(text.to_owned())
    }

    fn texts(texts: &[&str]) -> MetadataValue {
        MetadataValue::Texts(texts.iter().map(|text| (*text).to_owned()).collect())
    }

    #[test]
    fn reads_whatever_prefixes_a_file_uses() {
        assert_eq!(
            properties(PACKET.as_bytes()),
            [
                ("dc:subject".to_owned(), texts(&["a", "b"])),
                ("dc:title".to_owned(), text("One")),
                ("photoshop:City".to_owned(), text("Bern & Basel")),
                (
                    "xmp:CreateDate".to_owned(),
                    MetadataValue::Date("2019-03-01T10:20:30.000+01:00".to_owned())
                ),
            ]
        );
    }

    #[test]
    fn writing_changes_what_is_asked_and_nothing_else() {
        let changes = [
            ("dc:title".to_owned(), Some(text("A <new> \"title\" & more"))),
            ("dc:creator".to_owned(), Some(texts(&["Ann", "Bob"]))),
            ("photoshop:City".to_owned(), None),
        ];
        let written = update_xmp_packet(Some(PACKET.as_bytes()), &changes).unwrap();
        let packet_text = String::from_utf8(written.clone()).unwrap();
        assert!(
            packet_text.contains("own:keep='1'") && packet_text.contains("<own:deep>x</own:deep>"),
            "{packet_text}"
        );
        assert_eq!(
            properties(&written),
            [
                ("dc:creator".to_owned(), texts(&["Ann", "Bob"])),
                ("dc:subject".to_owned(), texts(&["a", "b"])),
                ("dc:title".to_owned(), text("A <new> \"title\" & more")),
                (
                    "xmp:CreateDate".to_owned(),
                    MetadataValue::Date("2019-03-01T10:20:30.000+01:00".to_owned())
                ),
            ]
        );
        // A second update yields the same text.
        assert_eq!(
            properties(&update_xmp_packet(Some(&written), &changes).unwrap()),
            properties(&written)
        );
    }

    #[test]
    fn writes_where_nothing_is() {
        let changes = [("dc:title".to_owned(), Some(text("T")))];
        let empty = "<x:xmpmeta xmlns:x='adobe:ns:meta/'><r:RDF xmlns:r='http://www.w3.org/1999/02/22-rdf-syntax-ns#'/></x:xmpmeta>";
        for packet in [None, Some(empty.as_bytes())] {
            let written = update_xmp_packet(packet, &changes).unwrap();
            assert_eq!(properties(&written), [("dc:title".to_owned(), text("T"))]);
        }
        assert!(update_xmp_packet(Some(b"<broken"), &changes).is_err());
    }

    #[test]
    fn only_registered_namespaces_are_written() {
        assert!(is_writable_property("dc:title") && is_writable_property("photoshop:City"));
        for name in ["mytitle", "jcr:title", "dam:size", "dc:", "dc:a b", "dc:a>b"] {
            assert!(!is_writable_property(name), "{name}");
        }
    }

    #[test]
    fn noise_says_nothing() {
        let bomb = "<!DOCTYPE x [<!ENTITY a '&b;&b;'><!ENTITY b 'x'>]><x>&a;</x>";
        for noise in ["", "<x", "<x/>", bomb] {
            assert!(properties(noise.as_bytes()).is_empty());
        }
    }
}
