//! What is wanted of a file, and what came out: the two things that travel between the server and the process that draws.

use serde::{Deserialize, Serialize};

use super::raster_image::ImageSize;

/// Where the eye goes, as shares of width and height from the upper left corner.
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

/// How a picture is brought into a box.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum ResizeMode {
    /// Whole, in its own shape.
    Inside,
    /// Cut to the box's shape around a point.
    Cover(FocalPoint),
}

/// How a rendition is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenditionEncoding {
    /// PNG, alpha kept.
    Png,
    /// JPEG of a quality from 1 to 100; what is transparent becomes white.
    Jpeg(u8),
    /// WebP of a quality from 1 to 100, alpha kept.
    WebP(u8),
    /// AVIF of a quality from 1 to 100, alpha kept; made by `avifenc`, where that is installed.
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

    /// Returns the ending of names that AEM gives such renditions.
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

/// A wanted rendition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RenditionSpec {
    /// The name it gets.
    pub name: String,
    /// The box it is brought into; never enlarged.
    pub within: ImageSize,
    /// How.
    pub fit: ResizeMode,
    /// How it is encoded.
    pub encoding: RenditionEncoding,
}

/// What one file may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessingLimits {
    /// The most pixels of a picture, by its header.
    pub pixels: u64,
    /// The most memory that drawing may take, by the header's numbers.
    pub memory: u64,
    /// The most bytes of the file.
    pub file: u64,
    /// How long it may take.
    pub seconds: u64,
}

impl Default for ProcessingLimits {
    fn default() -> Self {
        Self { pixels: 200_000_000, memory: 1 << 30, file: 512 << 20, seconds: 120 }
    }
}

/// Everything that is wanted of one file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AssetProcessingRequest {
    /// The renditions.
    pub renditions: Vec<RenditionSpec>,
    /// Whether the metadata is wanted.
    pub metadata: bool,
    /// What the sender says the file is: only believed where its bytes say nothing.
    pub declared: String,
    /// What it may cost.
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

/// A drawn rendition.
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

/// What came out of a file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct AssetProcessingResult {
    /// What the file is, by its bytes; empty if they say nothing.
    pub media_type: String,
    /// SHA-1 of the file in hexadecimal, as AEM notes it.
    pub sha1: String,
    /// The size of the picture as it is seen: turned as its orientation says. Nothing for what is no picture.
    pub size: Option<ImageSize>,
    /// The renditions, in the order of the wish.
    pub renditions: Vec<EncodedRendition>,
    /// The metadata by its names in the repository.
    pub metadata: Vec<(String, MetadataValue)>,
    /// What is wrong with the file although something was drawn.
    pub warnings: Vec<String>,
}
