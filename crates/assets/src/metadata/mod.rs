//! Reads the metadata of a file, with AEM's property names.
//!
//! Invariant: if several sources provide the same property, XMP takes precedence over IPTC, and IPTC over EXIF, as the
//! Metadata Working Group specifies; properties of the pixels themselves (their number) take precedence over all.

mod embedded_metadata;
mod exif;
mod iptc;
mod metadata_properties;
pub(crate) mod pdf;
pub(crate) mod xmp;

pub(crate) use embedded_metadata::EmbeddedMetadata;
pub(crate) use metadata_properties::MetadataProperties;

use crate::decoded_image::ImageHeader;
use crate::file_format::FileFormat;
use crate::image_size::ImageSize;
use crate::processing_request::MetadataValue;

/// Density of a picture that declares none.
const DEFAULT_DENSITY: u32 = 72;

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
