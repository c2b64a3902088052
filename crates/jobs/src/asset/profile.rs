//! Which renditions an asset gets.

use super::frame::Size;
use super::order::{Encoding, Fit, RenditionOrder};

/// Beginnings of the names of renditions that are made here; others are left alone.
const GENERATED: [&str; 3] = ["cq5dam.thumbnail.", "cq5dam.web.", "cq5dam.width."];
/// AEM's quality of the rendition for the web.
const WEB_QUALITY: u8 = 90;

/// The renditions that every picture gets.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Boxes of the thumbnails, which are PNG.
    pub thumbnails: Vec<Size>,
    /// The box of the rendition for the web: JPEG, but PNG for what was PNG, as AEM has it.
    pub web: Option<Size>,
    /// The quality of that JPEG.
    pub web_quality: u8,
    /// Widths for pages that choose by the size of the screen, as WebP; as AVIF too if `avif`.
    pub widths: Vec<u32>,
    /// Whether the widths are made as AVIF, too, which takes seconds a picture and needs `avifenc`.
    pub avif: bool,
}

impl Default for Profile {
    fn default() -> Self {
        let size = |width, height| Size { width, height };
        Self {
            thumbnails: vec![size(48, 48), size(140, 100), size(319, 319)],
            web: Some(size(1280, 1280)),
            web_quality: WEB_QUALITY,
            widths: Vec::new(),
            avif: false,
        }
    }
}

impl Profile {
    /// Returns what is wanted of a file of a media type.
    pub(crate) fn renditions_of(&self, media_type: &str) -> Vec<RenditionOrder> {
        let order = |kind: &str, within: Size, encoding: Encoding| RenditionOrder {
            name: format!(
                "cq5dam.{kind}.{}.{}.{}",
                within.width,
                within.height,
                encoding.extension()
            ),
            within,
            fit: Fit::Inside,
            encoding,
        };
        let thumbnails =
            self.thumbnails.iter().map(|size| order("thumbnail", *size, Encoding::Png));
        let web = match media_type {
            "image/png" => Encoding::Png,
            _ => Encoding::Jpeg(self.web_quality),
        };
        let web = self.web.iter().map(|size| order("web", *size, web));
        let widths = self.widths.iter().flat_map(|width| {
            let encodings = [Some(Encoding::WebP(82)), self.avif.then_some(Encoding::Avif(60))];
            encodings.into_iter().flatten().map(move |encoding| RenditionOrder {
                name: format!("cq5dam.width.{width}.{}", encoding.extension()),
                // A column may be long.
                within: Size { width: *width, height: 16_000 },
                fit: Fit::Inside,
                encoding,
            })
        });
        thumbnails.chain(web).chain(widths).collect()
    }
}

/// Tells whether a rendition of this name is made here.
pub(crate) fn is_generated(name: &str) -> bool {
    GENERATED.iter().any(|prefix| name.starts_with(prefix))
}

/// Guesses from a name what its owner thinks the file is; pictures only.
pub(crate) fn media_type_of_name(name: &str) -> Option<&'static str> {
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
        let names = |profile: &Profile, media_type: &str| -> Vec<String> {
            profile.renditions_of(media_type).into_iter().map(|order| order.name).collect()
        };
        let thumbnails = [
            "cq5dam.thumbnail.48.48.png",
            "cq5dam.thumbnail.140.100.png",
            "cq5dam.thumbnail.319.319.png",
        ];
        let profile = Profile::default();
        let expected = [&thumbnails[..], &["cq5dam.web.1280.1280.jpeg"]].concat();
        assert_eq!(names(&profile, "image/jpeg"), expected);
        let expected = [&thumbnails[..], &["cq5dam.web.1280.1280.png"]].concat();
        assert_eq!(names(&profile, "image/png"), expected);
        let profile =
            Profile { widths: vec![640], avif: true, thumbnails: Vec::new(), web: None, ..profile };
        assert_eq!(names(&profile, ""), ["cq5dam.width.640.webp", "cq5dam.width.640.avif"]);
        assert!(names(&profile, "").iter().all(|name| is_generated(name)));
        assert!(!is_generated("original") && !is_generated("my.png"));
    }
}
