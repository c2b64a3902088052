//! The request for one file and its result, which the server and the rendition process exchange.

use serde::{Deserialize, Serialize};

use crate::image_size::ImageSize;

/// The focal point of a picture, as shares of width and height from the upper left corner.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FocalPoint {
    /// From the left, 0 to 1.
    pub x: f64,
    /// From the top, 0 to 1.
    pub y: f64,
}

impl Default for FocalPoint {
    fn default() -> Self {
        Self { x: 0.5, y: 0.5 }
    }
}

/// The way in which a picture is fitted to a box.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum ResizeMode {
    /// Scaled down to fit, in its own aspect ratio.
    Inside,
    /// Cropped to the box's aspect ratio around a point.
    Cover(FocalPoint),
}

/// The encoding of a rendition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenditionEncoding {
    /// PNG, with alpha.
    Png,
    /// JPEG of a quality from 1 to 100; transparency becomes white.
    Jpeg(u8),
    /// WebP of a quality from 1 to 100, with alpha.
    WebP(u8),
    /// AVIF of a quality from 1 to 100, with alpha; encoded by `avifenc`, if that is installed.
    Avif(u8),
}

impl RenditionEncoding {
    /// Returns the media type.
    #[must_use]
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg(_) => "image/jpeg",
            Self::WebP(_) => "image/webp",
            Self::Avif(_) => "image/avif",
        }
    }

    /// Returns the file extension that AEM uses for such renditions.
    #[must_use]
    pub fn extension(self) -> &'static str {
        match self {
            Self::Png => "png",
            Self::Jpeg(_) => "jpeg",
            Self::WebP(_) => "webp",
            Self::Avif(_) => "avif",
        }
    }
}

/// A requested rendition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RenditionSpec {
    /// The rendition's name.
    pub name: String,
    /// The box into which the picture is fitted; it is never enlarged.
    pub within: ImageSize,
    /// The way of fitting.
    pub fit: ResizeMode,
    /// The encoding.
    pub encoding: RenditionEncoding,
}

/// Resource limits for one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessingLimits {
    /// Maximum number of pixels of a picture, by its header.
    pub pixels: u64,
    /// Maximum memory for decoding, in bytes, by the header's numbers.
    pub memory: u64,
    /// Maximum size of the file, in bytes.
    pub file: u64,
    /// Time limit in seconds.
    pub seconds: u64,
}

impl Default for ProcessingLimits {
    fn default() -> Self {
        Self { pixels: 200_000_000, memory: 1 << 30, file: 512 << 20, seconds: 120 }
    }
}

/// A request for one file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AssetProcessingRequest {
    /// The renditions.
    pub renditions: Vec<RenditionSpec>,
    /// True if the metadata is requested.
    pub metadata: bool,
    /// The media type that the sender declares; used only if the bytes do not determine it.
    pub declared: String,
    /// Resource limits.
    pub limits: ProcessingLimits,
}

/// A value of metadata.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum MetadataValue {
    /// Text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// A whole number.
    Long(i64),
    /// A number.
    Double(f64),
    /// A date, as ISO 8601 with an offset.
    Date(String),
}

/// A generated rendition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EncodedRendition {
    /// Its name.
    pub name: String,
    /// Its media type.
    pub media_type: String,
    /// Its size.
    pub size: ImageSize,
    /// Its bytes.
    #[serde(skip)]
    pub bytes: Vec<u8>,
}

/// The result of processing a file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct AssetProcessingResult {
    /// The media type of the file's bytes; empty if unknown.
    pub media_type: String,
    /// SHA-1 of the file in hexadecimal, as AEM writes it.
    pub sha1: String,
    /// The size of the picture as displayed, with its orientation applied. `None` if the file is not a picture.
    pub size: Option<ImageSize>,
    /// The renditions, in the order of the request.
    pub renditions: Vec<EncodedRendition>,
    /// The metadata by repository property name.
    pub metadata: Vec<(String, MetadataValue)>,
    /// Faults of the file that did not prevent processing.
    pub warnings: Vec<String>,
}
