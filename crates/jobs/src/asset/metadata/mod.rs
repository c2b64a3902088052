//! Reads the metadata of a file, with AEM's property names.
//!
//! Invariant: if several sources provide the same property, XMP takes precedence over IPTC, and IPTC over EXIF, as the
//! Metadata Working Group specifies; properties of the pixels themselves (their number) take precedence over all.

mod exif;
mod iptc;
pub(crate) mod pdf;
pub(crate) mod xmp;

use std::collections::BTreeMap;

use super::file_format::FileFormat;
use super::image_decoder::ImageHeader;
use super::processing_request::MetadataValue;
use super::raster_image::ImageSize;

/// Maximum number of properties of one file, and maximum length of a text.
const MAX_PROPERTIES: usize = 1000;
const MAX_TEXT_BYTES: usize = 64 << 10;
/// Density of a picture that declares none.
const DEFAULT_DENSITY: u32 = 72;

/// Metadata as stored in a file, undecoded.
#[derive(Debug, Default)]
pub(crate) struct EmbeddedMetadata {
    /// A TIFF structure.
    pub(crate) exif: Option<Vec<u8>>,
    /// An XMP packet.
    pub(crate) xmp: Option<Vec<u8>>,
    /// The part that did not fit into the XMP packet.
    pub(crate) extended_xmp: Option<Vec<u8>>,
    /// IPTC-IIM records.
    pub(crate) iptc: Option<Vec<u8>>,
    /// Photoshop's resources, one of which contains IPTC-IIM records.
    pub(crate) photoshop: Option<Vec<u8>>,
    /// A color profile.
    pub(crate) icc: Option<Vec<u8>>,
}

impl EmbeddedMetadata {
    /// Returns the EXIF orientation.
    pub(crate) fn orientation(&self) -> Option<u8> {
        exif::exif_orientation(self.exif.as_deref()?)
    }
}

/// Properties by name; an existing property is not replaced.
#[derive(Debug, Default)]
pub(crate) struct MetadataProperties(BTreeMap<String, MetadataValue>);

impl MetadataProperties {
    /// Adds a property unless the name exists.
    pub(crate) fn add_if_absent(&mut self, name: impl Into<String>, value: MetadataValue) {
        let name = name.into();
        if self.0.len() >= MAX_PROPERTIES || self.0.contains_key(&name) {
            return;
        }
        if let Some(value) = clean_value(value) {
            self.0.insert(name, value);
        }
    }

    /// Adds a text unless it is blank or the name exists.
    pub(crate) fn add_text_if_absent(&mut self, name: impl Into<String>, text: &str) {
        self.add_if_absent(name, MetadataValue::Text(text.to_owned()));
    }

    /// Returns all properties sorted by name.
    pub(crate) fn into_sorted_list(self) -> Vec<(String, MetadataValue)> {
        self.0.into_iter().collect()
    }
}

/// Truncates and trims texts; `None` if a text is blank.
fn clean_value(value: MetadataValue) -> Option<MetadataValue> {
    let clean = |text: String| {
        let clean_text: String =
            text.chars().filter(|c| !c.is_control() || *c == '\n' || *c == '\t').collect();
        let mut clean_text = clean_text.trim().to_owned();
        if clean_text.len() > MAX_TEXT_BYTES {
            let end =
                (0..=MAX_TEXT_BYTES).rev().find(|at| clean_text.is_char_boundary(*at)).unwrap_or(0);
            clean_text.truncate(end);
        }
        Some(clean_text).filter(|clean_text| !clean_text.is_empty())
    };
    match value {
        MetadataValue::Text(text) => clean(text).map(MetadataValue::Text),
        MetadataValue::Texts(texts) => {
            let texts: Vec<String> =
                texts.into_iter().filter_map(clean).take(MAX_PROPERTIES).collect();
            (!texts.is_empty()).then_some(MetadataValue::Texts(texts))
        }
        other => Some(other),
    }
}

/// Returns the metadata of a picture.
pub(crate) fn image_properties(
    format: FileFormat,
    header: &ImageHeader,
) -> Vec<(String, MetadataValue)> {
    let mut properties = MetadataProperties::default();
    let stored = header.stored_size;
    properties.add_if_absent("tiff:ImageWidth", MetadataValue::Long(stored.width.into()));
    properties.add_if_absent("tiff:ImageLength", MetadataValue::Long(stored.height.into()));
    properties.add_if_absent("dam:Bitsperpixel", MetadataValue::Long(header.bits_per_pixel.into()));
    properties.add_if_absent(
        "dam:Progressive",
        MetadataValue::Text(if header.is_progressive { "yes" } else { "no" }.to_owned()),
    );
    properties.add_if_absent("dam:Numberofimages", MetadataValue::Long(1));
    properties
        .add_if_absent("dam:Numberoftextualcomments", MetadataValue::Long(header.comments.into()));
    if let Some(format_name) = format.dam_format_name() {
        properties.add_text_if_absent("dam:Fileformat", format_name);
    }
    let embedded = &header.embedded_metadata;
    let density = embedded.exif.as_deref().and_then(exif::exif_density).or(header.density);
    let (across, down) = density.unwrap_or((DEFAULT_DENSITY, DEFAULT_DENSITY));
    for (side, pixels, density) in
        [("width", stored.width, across), ("height", stored.height, down)]
    {
        properties
            .add_if_absent(format!("dam:Physical{side}indpi"), MetadataValue::Long(density.into()));
        let inches = f64::from(pixels) / f64::from(density.max(1));
        properties
            .add_if_absent(format!("dam:Physical{side}ininches"), MetadataValue::Double(inches));
    }
    for packet in [&embedded.xmp, &embedded.extended_xmp].into_iter().flatten() {
        xmp::read_xmp(packet, &mut properties);
    }
    if let Some(records) = &embedded.iptc {
        iptc::read_iptc(records, &mut properties);
    }
    if let Some(records) = embedded.photoshop.as_deref().and_then(iptc::find_iptc_records) {
        iptc::read_iptc(records, &mut properties);
    }
    if let Some(tags) = &embedded.exif {
        exif::read_exif(tags, &mut properties);
    }
    properties.into_sorted_list()
}

/// Returns the properties of a picture or video that an external program decodes.
pub(crate) fn header_properties(
    format: FileFormat,
    size: ImageSize,
) -> Vec<(String, MetadataValue)> {
    let mut properties = MetadataProperties::default();
    properties.add_if_absent("tiff:ImageWidth", MetadataValue::Long(size.width.into()));
    properties.add_if_absent("tiff:ImageLength", MetadataValue::Long(size.height.into()));
    if let Some(format_name) = format.dam_format_name() {
        properties.add_text_if_absent("dam:Fileformat", format_name);
    }
    properties.into_sorted_list()
}

/// Parses a text as a date with an offset; a time without an offset counts as UTC. Returns `None` if it is not a date.
pub(crate) fn parse_date_value(text: &str) -> Option<MetadataValue> {
    let text = text.trim();
    let (day, time) = text.split_once(['T', ' '])?;
    let mut day = day.splitn(3, ['-', ':']);
    let mut number = |digits: usize| {
        day.next()
            .filter(|part| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let (year, month, day) = (number(4)?, number(2)?, number(2)?);
    let (clock, offset) = match time.find(['Z', '+', '-']) {
        Some(at) => time.split_at(at),
        None => (time, "Z"),
    };
    let mut parts = clock.splitn(3, ':');
    let (hour, minute, second) = (parts.next()?, parts.next()?, parts.next().unwrap_or("00"));
    let (second, fraction) = second.split_once('.').unwrap_or((second, "000"));
    let millis: String = fraction.chars().chain("000".chars()).take(3).collect();
    let offset = if offset == "Z" { "+00:00".to_owned() } else { offset.to_owned() };
    let text = format!("{year}-{month}-{day}T{hour}:{minute}:{second}.{millis}{offset}");
    tympan_content::JcrDate::parse(&text).ok().map(|_| MetadataValue::Date(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(
                parse_date_value(text),
                expected.map(|date| MetadataValue::Date(date.to_owned())),
                "{text}"
            );
        };
        check("2019:03:01 10:20:30", Some("2019-03-01T10:20:30.000+00:00"));
        check("2019-03-01T10:20:30.4+01:00", Some("2019-03-01T10:20:30.400+01:00"));
        check("2019-03-01T10:20Z", Some("2019-03-01T10:20:00.000+00:00"));
        check("2019-03-01", None);
        check("0000:00:00 00:00:00", None);
        check("    :  :     :  :  ", None);
    }

    #[test]
    fn first_value_stays_and_blank_ones_are_none() {
        let mut properties = MetadataProperties::default();
        properties.add_text_if_absent("dc:title", " \0 ");
        properties.add_text_if_absent("dc:title", " a\u{7} ");
        properties.add_text_if_absent("dc:title", "b");
        assert_eq!(
            properties.into_sorted_list(),
            [("dc:title".to_owned(), MetadataValue::Text("a".to_owned()))]
        );
    }
}
