//! Images of texts: titles and entries of a navigation rendered as PNG.
//!
//! Input: a text, its height in pixels and its colors. Output: an image as wide as the text.
//!
//! The font is DejaVu Sans, which is part of the program and covers Latin, Greek, Cyrillic, Hebrew, Arabic and more;
//! missing characters, such as Chinese, are taken from the system fonts. A system font may be requested.
//!
//! Invariant: the cost of any text is bounded by an image of `MAX_PICTURE_WIDTH` times `MAX_PICTURE_HEIGHT` pixels.

use std::sync::{Arc, LazyLock};

use resvg::tiny_skia::{Color, Pixmap, Transform};
use resvg::usvg::fontdb::Database;
use resvg::usvg::{Options, Tree};

use tympan_notation::escape_html;

/// The built-in font.
const DEFAULT_FONT: &[u8] = include_bytes!("../fonts/DejaVuSans.ttf");
const DEFAULT_FONT_FAMILY: &str = "DejaVu Sans";

/// The minimum and the maximum height of an image, in pixels.
const MIN_PICTURE_HEIGHT: usize = 8;
const MAX_PICTURE_HEIGHT: usize = 256;
/// The maximum width of an image, in pixels; a longer text is scaled down.
const MAX_PICTURE_WIDTH: f32 = 4096.0;
/// Maximum number of characters; a longer text is truncated.
const MAX_TEXT_LETTERS: usize = 300;

/// All fonts, loaded when the first text is rendered.
static FONT_DATABASE: LazyLock<Arc<Database>> = LazyLock::new(|| {
    let mut fonts = Database::new();
    fonts.load_font_data(DEFAULT_FONT.to_vec());
    fonts.load_system_fonts();
    fonts.set_sans_serif_family(DEFAULT_FONT_FAMILY);
    Arc::new(fonts)
});

/// A text to be rendered as an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextPicture {
    text: String,
    height: u32,
    color: String,
    background: Option<String>,
    font: Option<String>,
    is_bold: bool,
}

impl TextPicture {
    /// Creates an image of a text in black on a transparent background.
    ///
    /// # Errors
    /// A message, if it cannot have this height.
    pub(crate) fn new(text: &str, height: usize) -> Result<Self, String> {
        if !(MIN_PICTURE_HEIGHT..=MAX_PICTURE_HEIGHT).contains(&height) {
            return Err(format!(
                "`height` is {height}; it must be {MIN_PICTURE_HEIGHT} to {MAX_PICTURE_HEIGHT}"
            ));
        }
        // Control characters have no glyph, and XML cannot contain them.
        let letters =
            text.chars().map(|character| if character.is_control() { ' ' } else { character });
        Ok(Self {
            text: letters.take(MAX_TEXT_LETTERS).collect(),
            height: u32::try_from(height).unwrap_or_default(),
            color: "#000000".to_owned(),
            background: None,
            font: None,
            is_bold: false,
        })
    }

    /// Sets the given colors.
    ///
    /// # Errors
    /// A message, if a color is invalid.
    pub(crate) fn with_colors(
        mut self,
        color: Option<&str>,
        background: Option<&str>,
    ) -> Result<Self, String> {
        for color_text in [color, background].into_iter().flatten() {
            let digits = color_text.strip_prefix('#').unwrap_or_default();
            let is_number = matches!(digits.len(), 3 | 6)
                && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            if !is_number {
                return Err(format!("`{color_text}` is not a color; write it as `#a63a1b`"));
            }
        }
        self.color = color.unwrap_or(&self.color).to_owned();
        self.background = background.map(str::to_owned);
        Ok(self)
    }

    /// Sets the font.
    pub(crate) fn with_font(self, font: Option<&str>, is_bold: bool) -> Self {
        // A name with a quote or a comma is invalid.
        let is_name = |name: &&str| {
            name.chars().all(|character| character.is_alphanumeric() || character == ' ')
        };
        let font = font.filter(is_name).map(str::to_owned);
        Self { font, is_bold, ..self }
    }

    /// Renders the text as PNG.
    ///
    /// # Errors
    /// A message, if the libraries fail.
    pub(crate) fn render_png(&self) -> Result<Vec<u8>, String> {
        #[expect(clippy::cast_precision_loss, reason = "the height is at most 256")]
        let height = self.height as f32;
        let options = Options {
            fontdb: Arc::clone(&FONT_DATABASE),
            font_family: DEFAULT_FONT_FAMILY.to_owned(),
            ..Options::default()
        };
        let tree =
            Tree::from_str(&self.to_svg(height), &options).map_err(|error| error.to_string())?;
        let bounds = tree.root().abs_bounding_box();
        let margin = (height / 16.0).ceil();
        let wide = (bounds.width() + 2.0 * margin).max(1.0);
        let scale = (MAX_PICTURE_WIDTH / wide).min(1.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 1 and MAX_WIDTH"
        )]
        let width = (wide * scale).ceil() as u32;
        let mut canvas = Pixmap::new(width.max(1), self.height).ok_or("it has no size")?;
        if let Some(background) = self.background.as_deref().and_then(parse_color) {
            canvas.fill(background);
        }
        let left = if bounds.width() > 0.0 { margin - bounds.x() } else { 0.0 };
        let transform = Transform::from_translate(left, 0.0).post_scale(scale, scale);
        // A smaller text stays on its original baseline.
        let transform = transform.post_translate(0.0, (1.0 - scale) * height / 2.0);
        resvg::render(&tree, transform, &mut canvas.as_mut());
        canvas.encode_png().map_err(|error| error.to_string())
    }

    /// Formats the text as an SVG document.
    fn to_svg(&self, height: f32) -> String {
        let (size, line) = (height * 0.72, height * 0.76);
        let font = match &self.font {
            Some(font) => format!("'{font}', '{DEFAULT_FONT_FAMILY}'"),
            None => format!("'{DEFAULT_FONT_FAMILY}'"),
        };
        let bold = match self.is_bold {
            true => format!(
                " stroke=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\"",
                self.color,
                size / 22.0
            ),
            false => String::new(),
        };
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{MAX_PICTURE_WIDTH}\" height=\"{height}\">\
             <text x=\"0\" y=\"{line}\" font-family=\"{font}\" font-size=\"{size}\" fill=\"{}\"{bold}>{}</text></svg>",
            self.color,
            escape_html(&self.text),
        )
    }
}

/// Parses `#abc` or `#aabbcc`.
fn parse_color(text: &str) -> Option<Color> {
    let digits = text.strip_prefix('#')?;
    let part = |at: usize| match digits.len() {
        3 => u8::from_str_radix(digits.get(at..=at)?, 16).ok().map(|value| value * 17),
        _ => u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok(),
    };
    Some(Color::from_rgba8(part(0)?, part(1)?, part(2)?, 255))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of(text: &str, height: usize) -> (u32, u32) {
        let picture = TextPicture::new(text, height).unwrap().render_png().unwrap();
        let canvas = Pixmap::decode_png(&picture).unwrap();
        (canvas.width(), canvas.height())
    }

    /// Returns the amount of ink in an image.
    fn ink(picture: &TextPicture) -> usize {
        let canvas = Pixmap::decode_png(&picture.render_png().unwrap()).unwrap();
        canvas.pixels().iter().filter(|pixel| pixel.alpha() > 128).count()
    }

    #[test]
    fn pictures_are_as_wide_as_their_texts() {
        let (short, height) = size_of("Lisbon", 48);
        assert_eq!(height, 48);
        assert!((100..200).contains(&short), "{short}");
        let (long, _) = size_of("Lisbon and Porto", 48);
        assert!(long > 2 * short, "{long}");
        let (small, _) = size_of("Lisbon", 24);
        assert!(small < short * 6 / 10, "{small}");
        assert_eq!(size_of("", 48).1, 48);
        assert!(size_of(&"W".repeat(5000), 256).0 <= 4096);
    }

    #[test]
    fn letters_of_many_scripts_have_pictures() {
        let blank = ink(&TextPicture::new(" ", 48).unwrap());
        for text in ["Zürich", "Αθήνα", "Москва", "ירושלים", "القاهرة", "<&\"'>\u{1}"]
        {
            let picture = TextPicture::new(text, 48).unwrap();
            assert!(ink(&picture) > blank + 100, "{text}");
            assert!(ink(&picture.clone().with_font(None, true)) > ink(&picture), "{text}");
        }
    }

    #[test]
    fn colors_are_numbers() {
        let picture = || TextPicture::new("x", 20).unwrap();
        for wrong in ["red", "#12", "#12345g", "url(#x)", "#000\" onload=\"x", ""] {
            assert!(picture().with_colors(Some(wrong), None).is_err(), "{wrong}");
        }
        let filled =
            picture().with_colors(Some("#fff"), Some("#a63a1b")).unwrap().render_png().unwrap();
        let corner = Pixmap::decode_png(&filled).unwrap().pixel(0, 0).unwrap().demultiply();
        assert_eq!((corner.red(), corner.green(), corner.blue()), (0xa6, 0x3a, 0x1b));
        assert!(TextPicture::new("x", 7).is_err() && TextPicture::new("x", 257).is_err());
    }
}
