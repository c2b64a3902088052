//! The section `[assets]` of `tympan.toml`.

use schemars::JsonSchema;
use serde::Deserialize;
use tympan_notation::{ByteSize, DurationText};

use crate::processing_request::ProcessingLimits;
use crate::rendition_profile::RenditionProfile;

/// The default total memory of all processes for pictures.
const DEFAULT_IMAGE_MEMORY_BYTES: u64 = 1 << 30;

/// Asset processing.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AssetsSection {
    /// Memory for pictures of all concurrent processes, separately for assets and for image URLs with sizes; default 1
    /// GiB, which is also the limit of a single picture. Raise it for progressive JPEG of more than 150 million pixels,
    /// or if pictures of many megapixels wait for each other.
    pub memory: Option<ByteSize>,
    /// The maximum number of pixels of a picture, according to its header; default 200 million.
    pub max_pixels: Option<u64>,
    /// The maximum processing time of one file; default 120 s.
    pub timeout: Option<DurationText>,
    /// Quality of the web JPEG rendition, 1 to 100; default 90, as in AEM.
    pub quality: Option<u8>,
    /// Widths in pixels of additional WebP renditions; default none. Set it if pages refer to renditions instead of
    /// URLs with widths, which are rendered on request.
    pub widths: Vec<u32>,
    /// True if renditions of those widths are also created as AVIF; default false. It takes seconds per picture and
    /// requires the program `avifenc`.
    pub avif: bool,
    /// Widths in pixels that URLs may request without a signature; default 160, 320, 480, 640, 768, 1024, 1280, 1600,
    /// 1920 and 2048.
    pub url_widths: Option<Vec<u32>>,
}

impl AssetsSection {
    /// Returns the total memory of all processes for pictures, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.map_or(DEFAULT_IMAGE_MEMORY_BYTES, ByteSize::as_bytes)
    }

    /// Returns the processing limits of one file.
    pub fn processing_limits(&self) -> ProcessingLimits {
        let default = ProcessingLimits::default();
        ProcessingLimits {
            pixels: self.max_pixels.unwrap_or(default.pixels),
            memory: self.memory.map_or(default.memory, ByteSize::as_bytes),
            seconds: self.timeout.map_or(default.seconds, |timeout| timeout.0.as_secs().max(1)),
            file: default.file,
        }
    }

    /// Returns the renditions that are created for an asset.
    pub fn rendition_profile(&self) -> RenditionProfile {
        let default = RenditionProfile::default();
        RenditionProfile {
            web_quality: self.quality.unwrap_or(default.web_quality).clamp(1, 100),
            responsive_widths: self.widths.clone(),
            makes_avif: self.avif,
            ..default
        }
    }
}
