//! Reads EXIF metadata, which the camera writes.

use exif::{Context, Exif, Field, In, Rational, Reader, Tag};

use super::metadata_properties::{MetadataProperties, parse_date_value};
use crate::processing_request::MetadataValue;

fn parse_exif(tags: &[u8]) -> Option<Exif> {
    let mut reader = Reader::new();
    reader.continue_on_error(true);
    match reader.read_raw(tags.to_vec()) {
        Ok(exif) => Some(exif),
        Err(error) => error.distill_partial_result(|_| {}).ok(),
    }
}

fn read_number(exif: &Exif, tag: Tag) -> Option<u32> {
    exif.get_field(tag, In::PRIMARY)?.value.get_uint(0)
}

/// Returns the EXIF orientation.
pub(super) fn exif_orientation(tags: &[u8]) -> Option<u8> {
    u8::try_from(read_number(&parse_exif(tags)?, Tag::Orientation)?).ok()
}

/// Returns the horizontal and vertical density in pixels per inch.
pub(super) fn exif_density(tags: &[u8]) -> Option<(u32, u32)> {
    let exif = parse_exif(tags)?;
    // 2 means inches, 3 centimeters.
    let factor = match read_number(&exif, Tag::ResolutionUnit).unwrap_or(2) {
        2 => 1.0,
        3 => 2.54,
        _ => return None,
    };
    let side = |tag| {
        let ratio = read_rational(exif.get_field(tag, In::PRIMARY)?)?;
        let density = (ratio.to_f64() * factor).round();
        (1.0..1e6).contains(&density).then_some(density as u32)
    };
    Some((side(Tag::XResolution)?, side(Tag::YResolution)?))
}

fn read_rational(field: &Field) -> Option<Rational> {
    match &field.value {
        exif::Value::Rational(ratios) => ratios.first().copied().filter(|ratio| ratio.denom != 0),
        _ => None,
    }
}

/// The tags that are read, and their property names.
const EXIF_TEXT_TAGS: &[(Tag, &str)] = &[
    (Tag::Make, "tiff:Make"),
    (Tag::Model, "tiff:Model"),
    (Tag::Software, "tiff:Software"),
    (Tag::ImageDescription, "dc:description"),
    (Tag::Copyright, "dc:rights"),
    (Tag::LensModel, "aux:Lens"),
    (Tag::BodySerialNumber, "aux:SerialNumber"),
];
const EXIF_NUMBER_TAGS: &[(Tag, &str)] = &[
    (Tag::Orientation, "tiff:Orientation"),
    (Tag::ResolutionUnit, "tiff:ResolutionUnit"),
    (Tag::PhotographicSensitivity, "exif:ISOSpeedRatings"),
    (Tag::ColorSpace, "exif:ColorSpace"),
    (Tag::ExposureProgram, "exif:ExposureProgram"),
    (Tag::MeteringMode, "exif:MeteringMode"),
    (Tag::LightSource, "exif:LightSource"),
    (Tag::WhiteBalance, "exif:WhiteBalance"),
    (Tag::ExposureMode, "exif:ExposureMode"),
    (Tag::SceneCaptureType, "exif:SceneCaptureType"),
    (Tag::FocalLengthIn35mmFilm, "exif:FocalLengthIn35mmFilm"),
    (Tag::PixelXDimension, "exif:PixelXDimension"),
    (Tag::PixelYDimension, "exif:PixelYDimension"),
];
const EXIF_RATIO_TAGS: &[(Tag, &str)] = &[
    (Tag::XResolution, "tiff:XResolution"),
    (Tag::YResolution, "tiff:YResolution"),
    (Tag::ExposureTime, "exif:ExposureTime"),
    (Tag::FNumber, "exif:FNumber"),
    (Tag::FocalLength, "exif:FocalLength"),
    (Tag::ApertureValue, "exif:ApertureValue"),
    (Tag::MaxApertureValue, "exif:MaxApertureValue"),
    (Tag::GPSAltitude, "exif:GPSAltitude"),
];
const EXIF_DATE_TAGS: &[(Tag, Tag, &str)] = &[
    (Tag::DateTimeOriginal, Tag::OffsetTimeOriginal, "exif:DateTimeOriginal"),
    (Tag::DateTimeDigitized, Tag::OffsetTimeDigitized, "xmp:CreateDate"),
    (Tag::DateTime, Tag::OffsetTime, "xmp:ModifyDate"),
];

/// Adds the properties of the tags.
pub(super) fn read_exif(tags: &[u8], properties: &mut MetadataProperties) {
    let Some(exif) = parse_exif(tags) else { return };
    let field = |tag| exif.get_field(tag, In::PRIMARY);
    for (tag, name) in EXIF_TEXT_TAGS {
        if let Some(text) = field(*tag).and_then(decode_exif_text) {
            properties.add_text_if_absent(*name, &text);
        }
    }
    if let Some(artist) = field(Tag::Artist).and_then(decode_exif_text) {
        properties.add_if_absent("dc:creator", MetadataValue::Texts(vec![artist]));
    }
    for (tag, name) in EXIF_NUMBER_TAGS {
        if let Some(number) = read_number(&exif, *tag) {
            properties.add_if_absent(*name, MetadataValue::Long(number.into()));
        }
    }
    for (tag, name) in EXIF_RATIO_TAGS {
        if let Some(Rational { num, denom }) = field(*tag).and_then(read_rational) {
            properties.add_text_if_absent(*name, &format!("{num}/{denom}"));
        }
    }
    for (tag, offset, name) in EXIF_DATE_TAGS {
        let Some(text) = field(*tag).and_then(decode_exif_text) else { continue };
        let offset = field(*offset).and_then(self::decode_exif_text).unwrap_or_default();
        if let Some(date) = parse_date_value(&format!("{text}{}", offset.trim()))
            .or_else(|| parse_date_value(&text))
        {
            properties.add_if_absent(*name, date);
        }
    }
    for (tag, reference, name) in [
        (Tag::GPSLatitude, Tag::GPSLatitudeRef, "exif:GPSLatitude"),
        (Tag::GPSLongitude, Tag::GPSLongitudeRef, "exif:GPSLongitude"),
    ] {
        let coordinate = field(tag)
            .zip(field(reference))
            .and_then(|(position, side)| format_coordinate(position, side));
        if let Some(coordinate) = coordinate {
            properties.add_text_if_absent(name, &coordinate);
        }
    }
}

/// Returns a text, decoded as UTF-8 if valid, otherwise as Latin-1.
fn decode_exif_text(field: &Field) -> Option<String> {
    let exif::Value::Ascii(parts) = &field.value else { return None };
    if field.tag.context() == Context::Interop {
        return None;
    }
    let bytes = parts.first()?;
    Some(match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().copied().map(char::from).collect(),
    })
}

/// Formats degrees, minutes and seconds as XMP does: `51,30.500000N`.
fn format_coordinate(position: &Field, side: &Field) -> Option<String> {
    let exif::Value::Rational(parts) = &position.value else { return None };
    let part =
        |at: usize| parts.get(at).filter(|ratio| ratio.denom != 0).map_or(0.0, Rational::to_f64);
    let minutes = part(0) * 60.0 + part(1) + part(2) / 60.0;
    let side = decode_exif_text(side)?.chars().next().filter(|side| "NSEW".contains(*side))?;
    (minutes.is_finite() && (0.0..=180.0 * 60.0).contains(&minutes))
        .then(|| format!("{},{:.6}{side}", (minutes / 60.0).floor(), minutes % 60.0))
}
