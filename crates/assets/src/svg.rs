//! Renders SVG to pixels, so the rendition contains none of its scripts or links.
//!
//! Invariant: nothing outside the file is read, neither local files nor network addresses.

use std::sync::{Arc, OnceLock};

use resvg::usvg::fontdb::Database;
use resvg::usvg::{ImageHrefResolver, Options, Tree};
use resvg::{tiny_skia, usvg};

use crate::asset_file_error::AssetFileError;
use crate::decoded_image::DecodedImage;
use crate::file_format::decode_plain_text;
use crate::image_size::ImageSize;
use crate::raster_image::{PixelLayout, RasterImage};

/// Maximum size of an SVG, in bytes.
const MAX_SVG_BYTES: usize = 16 << 20;
/// Maximum side of an SVG's own size, in pixels.
const MAX_SIDE_PIXELS: f32 = 16_384.0;

/// Returns the system fonts, which are loaded once per process.
fn load_system_fonts() -> Arc<Database> {
    static FONTS: OnceLock<Arc<Database>> = OnceLock::new();
    let load = || {
        let mut fonts = Database::new();
        fonts.load_system_fonts();
        Arc::new(fonts)
    };
    Arc::clone(FONTS.get_or_init(load))
}

fn parse_svg(bytes: &[u8], fontdb: Arc<Database>) -> Result<Tree, AssetFileError> {
    if bytes.len() > MAX_SVG_BYTES {
        let most = MAX_SVG_BYTES >> 20;
        return Err(AssetFileError::new(format!("it is an SVG of more than {most} MiB")));
    }
    let nothing = ImageHrefResolver::default_data_resolver();
    let options = Options {
        fontdb,
        image_href_resolver: ImageHrefResolver {
            resolve_data: nothing,
            resolve_string: Box::new(|_, _| None),
        },
        ..Options::default()
    };
    let text = decode_plain_text(bytes, MAX_SVG_BYTES + 1);
    if text.len() > MAX_SVG_BYTES {
        let most = MAX_SVG_BYTES >> 20;
        return Err(AssetFileError::new(format!("it is a compressed SVG of more than {most} MiB")));
    }
    Tree::from_data(&text, &options)
        .map_err(|error| AssetFileError::new(format!("it is not a readable SVG: {error}")))
}

/// Returns the SVG's own size in pixels.
pub(crate) fn svg_size(bytes: &[u8]) -> Result<ImageSize, AssetFileError> {
    // Without fonts, texts have no extent, but the size of the drawing does not depend on them.
    let size = parse_svg(bytes, Arc::default())?.size();
    let side = |side: f32| side.clamp(1.0, MAX_SIDE_PIXELS).round() as u32;
    Ok(ImageSize { width: side(size.width()), height: side(size.height()) })
}

/// Renders an SVG at the largest size that fits the given one.
pub(crate) fn rasterize_svg(
    bytes: &[u8],
    target_size: ImageSize,
) -> Result<DecodedImage, AssetFileError> {
    let has_text = contains_text_element(&decode_plain_text(bytes, MAX_SVG_BYTES));
    let tree = parse_svg(bytes, if has_text { load_system_fonts() } else { Arc::default() })?;
    let own: usvg::Size = tree.size();
    let scale =
        (target_size.width as f32 / own.width()).min(target_size.height as f32 / own.height());
    let side = |own: f32, most: u32| ((own * scale).round() as u32).clamp(1, most.max(1));
    let size = ImageSize {
        width: side(own.width(), target_size.width),
        height: side(own.height(), target_size.height),
    };
    let too_large = || AssetFileError::new("it is too large to render");
    let mut canvas = tiny_skia::Pixmap::new(size.width, size.height).ok_or_else(too_large)?;
    let scaled = tiny_skia::Transform::from_scale(
        size.width as f32 / own.width(),
        size.height as f32 / own.height(),
    );
    resvg::render(&tree, scaled, &mut canvas.as_mut());
    let pixels = canvas.take_demultiplied();
    let image = RasterImage::new(size, PixelLayout::Rgba, pixels).ok_or_else(too_large)?;
    Ok(DecodedImage { image, warnings: Vec::new() })
}

fn contains_text_element(bytes: &[u8]) -> bool {
    bytes.windows(5).any(|window| window == b"text>" || window == b"<text")
}
