//! Selects the renditions of an asset.

use crate::image_size::ImageSize;
use crate::processing_request::{RenditionEncoding, RenditionSpec, ResizeMode};

/// Prefixes of the names of generated renditions; other renditions are left unchanged.
const GENERATED_NAME_PREFIXES: [&str; 3] = ["cq5dam.thumbnail.", "cq5dam.web.", "cq5dam.width."];
/// AEM's quality of the web rendition.
const DEFAULT_WEB_QUALITY: u8 = 90;

/// The renditions that every picture receives.
#[derive(Debug, Clone, PartialEq)]
pub struct RenditionProfile {
    /// Boxes of the thumbnails, which are PNG.
    pub thumbnail_boxes: Vec<ImageSize>,
    /// The box of the web rendition: JPEG, or PNG for a PNG original, as in AEM.
    pub web_box: Option<ImageSize>,
    /// The quality of the web rendition as JPEG.
    pub web_quality: u8,
    /// Widths for responsive pages, as WebP; also as AVIF if `avif` is set.
    pub responsive_widths: Vec<u32>,
    /// True if the widths are also encoded as AVIF, which takes seconds per picture and needs `avifenc`.
    pub makes_avif: bool,
}

impl Default for RenditionProfile {
    fn default() -> Self {
        let size = |width, height| ImageSize { width, height };
        Self {
            thumbnail_boxes: vec![size(48, 48), size(140, 100), size(319, 319)],
            web_box: Some(size(1280, 1280)),
            web_quality: DEFAULT_WEB_QUALITY,
            responsive_widths: Vec::new(),
            makes_avif: false,
        }
    }
}

impl RenditionProfile {
    /// Returns the renditions for a file of a media type.
    pub(crate) fn renditions_for(&self, media_type: &str) -> Vec<RenditionSpec> {
        let spec = |kind: &str, within: ImageSize, encoding: RenditionEncoding| RenditionSpec {
            name: format!(
                "cq5dam.{kind}.{}.{}.{}",
                within.width,
                within.height,
                encoding.extension()
            ),
            within,
            fit: ResizeMode::Inside,
            encoding,
        };
        let thumbnails = self
            .thumbnail_boxes
            .iter()
            .map(|size| spec("thumbnail", *size, RenditionEncoding::Png));
        let web = match media_type {
            "image/png" => RenditionEncoding::Png,
            _ => RenditionEncoding::Jpeg(self.web_quality),
        };
        let web = self.web_box.iter().map(|size| spec("web", *size, web));
        let widths = self.responsive_widths.iter().flat_map(|width| {
            let encodings = [
                Some(RenditionEncoding::WebP(82)),
                self.makes_avif.then_some(RenditionEncoding::Avif(60)),
            ];
            encodings.into_iter().flatten().map(move |encoding| RenditionSpec {
                name: format!("cq5dam.width.{width}.{}", encoding.extension()),
                // A tall picture is limited by its width only.
                within: ImageSize { width: *width, height: 16_000 },
                fit: ResizeMode::Inside,
                encoding,
            })
        });
        thumbnails.chain(web).chain(widths).collect()
    }
}

/// Returns true if a rendition of this name is generated here.
pub(crate) fn is_generated_rendition(name: &str) -> bool {
    GENERATED_NAME_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Guesses the media type from a file name; pictures only.
pub(crate) fn guess_image_media_type(name: &str) -> Option<&'static str> {
    let (_, extension) = name.rsplit_once('.')?;
    Some(match &*extension.to_ascii_lowercase() {
        "jpg" | "jpeg" | "jpe" => "image/jpeg",
        "png" => "image/png",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "tif" | "tiff" => "image/tiff",
        "bmp" => "image/bmp",
        "svg" => "image/svg+xml",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_aem() {
        let names = |profile: &RenditionProfile, media_type: &str| -> Vec<String> {
            profile.renditions_for(media_type).into_iter().map(|spec| spec.name).collect()
        };
        let thumbnails = [
            "cq5dam.thumbnail.48.48.png",
            "cq5dam.thumbnail.140.100.png",
            "cq5dam.thumbnail.319.319.png",
        ];
        let profile = RenditionProfile::default();
        let expected = [&thumbnails[..], &["cq5dam.web.1280.1280.jpeg"]].concat();
        assert_eq!(names(&profile, "image/jpeg"), expected);
        let expected = [&thumbnails[..], &["cq5dam.web.1280.1280.png"]].concat();
        assert_eq!(names(&profile, "image/png"), expected);
        let profile = RenditionProfile {
            responsive_widths: vec![640],
            makes_avif: true,
            thumbnail_boxes: Vec::new(),
            web_box: None,
            ..profile
        };
        assert_eq!(names(&profile, ""), ["cq5dam.width.640.webp", "cq5dam.width.640.avif"]);
        assert!(names(&profile, "").iter().all(|name| is_generated_rendition(name)));
        assert!(!is_generated_rendition("original") && !is_generated_rendition("my.png"));
    }
}
