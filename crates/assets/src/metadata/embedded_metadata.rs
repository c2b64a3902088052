//! Metadata as stored in a file, undecoded.

use super::exif;

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
