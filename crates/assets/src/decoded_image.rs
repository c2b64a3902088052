//! The header of a picture, and the decoded picture.

use crate::image_size::ImageSize;
use crate::metadata::EmbeddedMetadata;
use crate::raster_image::RasterImage;

/// Properties of a picture that are known before decoding.
#[derive(Debug, Default)]
pub(crate) struct ImageHeader {
    /// The size of the stored pixels.
    pub(crate) stored_size: ImageSize,
    /// EXIF orientation, 1 to 8.
    pub(crate) orientation: u8,
    /// Bits per pixel.
    pub(crate) bits_per_pixel: u32,
    /// True if the picture is stored in passes.
    pub(crate) is_progressive: bool,
    /// True if CMYK is stored inverted.
    pub(crate) is_inverted: bool,
    /// Horizontal and vertical density in pixels per inch.
    pub(crate) density: Option<(u32, u32)>,
    /// Number of comments in the file.
    pub(crate) comments: u32,
    /// Memory needed for decoding, in bytes.
    pub(crate) memory_bytes: u64,
    /// Metadata as stored in the file.
    pub(crate) embedded_metadata: EmbeddedMetadata,
}

impl ImageHeader {
    /// Returns the size as displayed.
    pub(crate) fn display_size(&self) -> ImageSize {
        if self.orientation >= 5 { self.stored_size.transposed() } else { self.stored_size }
    }
}

/// A decoded picture.
#[derive(Debug)]
pub(crate) struct DecodedImage {
    pub(crate) image: RasterImage,
    pub(crate) warnings: Vec<String>,
}
