//! SVG, drawn: the rendition of a drawing is made of pixels, so nothing of its scripts or links is left in it.
//!
//! Invariant: nothing outside of the file is read, neither files of this machine nor addresses.

use std::sync::{Arc, OnceLock};

use resvg::usvg::fontdb::Database;
use resvg::usvg::{ImageHrefResolver, Options, Tree};
use resvg::{tiny_skia, usvg};

use super::decode::{Decoded, Fault};
use super::format::plain_text;
use super::frame::{Frame, Layout, Size};

/// The most bytes of a drawing.
const MAX_BYTES: usize = 16 << 20;
/// The longest side that is taken for a drawing's own size.
const MAX_SIDE: f32 = 16_384.0;

/// The fonts of the machine, looked for once in a process.
fn fonts() -> Arc<Database> {
    static FONTS: OnceLock<Arc<Database>> = OnceLock::new();
    let load = || {
        let mut fonts = Database::new();
        fonts.load_system_fonts();
        Arc::new(fonts)
    };
    Arc::clone(FONTS.get_or_init(load))
}

fn parse(bytes: &[u8], fontdb: Arc<Database>) -> Result<Tree, Fault> {
    if bytes.len() > MAX_BYTES {
        let most = MAX_BYTES >> 20;
        return Err(Fault::new(format!("it is a drawing of more than {most} MiB")));
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
    let text = plain_text(bytes, MAX_BYTES + 1);
    if text.len() > MAX_BYTES {
        let most = MAX_BYTES >> 20;
        return Err(Fault::new(format!("it is a packed drawing of more than {most} MiB")));
    }
    Tree::from_data(&text, &options)
        .map_err(|error| Fault::new(format!("it is no readable SVG: {error}")))
}

/// Returns a drawing's own size in pixels.
pub(crate) fn size_of(bytes: &[u8]) -> Result<Size, Fault> {
    // Without fonts, texts have no extent; the size of the drawing does not depend on them.
    let size = parse(bytes, Arc::default())?.size();
    let side = |side: f32| side.clamp(1.0, MAX_SIDE).round() as u32;
    Ok(Size { width: side(size.width()), height: side(size.height()) })
}

/// Draws at a size, as large as fits.
pub(crate) fn draw(bytes: &[u8], wanted: Size) -> Result<Decoded, Fault> {
    let has_text = contains_text(&plain_text(bytes, MAX_BYTES));
    let tree = parse(bytes, if has_text { fonts() } else { Arc::default() })?;
    let own: usvg::Size = tree.size();
    let scale = (wanted.width as f32 / own.width()).min(wanted.height as f32 / own.height());
    let side = |own: f32, most: u32| ((own * scale).round() as u32).clamp(1, most.max(1));
    let size =
        Size { width: side(own.width(), wanted.width), height: side(own.height(), wanted.height) };
    let too_large = || Fault::new("it is too large to be drawn");
    let mut canvas = tiny_skia::Pixmap::new(size.width, size.height).ok_or_else(too_large)?;
    let scaled = tiny_skia::Transform::from_scale(
        size.width as f32 / own.width(),
        size.height as f32 / own.height(),
    );
    resvg::render(&tree, scaled, &mut canvas.as_mut());
    let pixels = canvas.take_demultiplied();
    let frame = Frame::new(size, Layout::Rgba, pixels).ok_or_else(too_large)?;
    Ok(Decoded { frame, warnings: Vec::new() })
}

fn contains_text(bytes: &[u8]) -> bool {
    bytes.windows(5).any(|window| window == b"text>" || window == b"<text")
}
