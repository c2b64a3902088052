//! Pixels of one picture, 8 bits per channel, and operations on them: resize, crop, rotate, flatten.
//!
//! Invariant: `bytes` holds exactly `width * height * channels` bytes, rows from the top, without padding.

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{PixelType, ResizeOptions, Resizer};

use crate::image_size::ImageSize;
use crate::processing_request::{FocalPoint, ResizeMode};

/// The channels of a pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PixelLayout {
    Gray,
    GrayAlpha,
    Rgb,
    Rgba,
    /// CMYK; 0 means no ink.
    Cmyk,
}

impl PixelLayout {
    pub(crate) fn channel_count(self) -> usize {
        match self {
            Self::Gray => 1,
            Self::GrayAlpha => 2,
            Self::Rgb => 3,
            Self::Rgba | Self::Cmyk => 4,
        }
    }

    pub(crate) fn has_alpha(self) -> bool {
        matches!(self, Self::GrayAlpha | Self::Rgba)
    }

    fn pixel_type(self) -> PixelType {
        match self {
            Self::Gray => PixelType::U8,
            Self::GrayAlpha => PixelType::U8x2,
            Self::Rgb => PixelType::U8x3,
            Self::Rgba | Self::Cmyk => PixelType::U8x4,
        }
    }
}

/// A picture in memory.
#[derive(Debug, Clone)]
pub(crate) struct RasterImage {
    pub(crate) size: ImageSize,
    pub(crate) layout: PixelLayout,
    pub(crate) bytes: Vec<u8>,
}

/// A rectangle of a picture, in pixels.
#[derive(Debug, Clone, Copy)]
struct CropRegion {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

impl RasterImage {
    /// Creates a picture; `None` if the number of bytes does not match.
    pub(crate) fn new(size: ImageSize, layout: PixelLayout, bytes: Vec<u8>) -> Option<Self> {
        let expected_length = size.pixel_count().checked_mul(layout.channel_count() as u64)?;
        (bytes.len() as u64 == expected_length && expected_length > 0).then_some(Self {
            size,
            layout,
            bytes,
        })
    }

    /// Returns the picture fitted to a box.
    pub(crate) fn fit_to_box(&self, within: ImageSize, fit: ResizeMode) -> Result<Self, String> {
        match fit {
            ResizeMode::Inside => self.resize(self.size.fit_within(within)),
            ResizeMode::Cover(focus) => {
                let (part, size) = self.cover_region(within, focus);
                self.resize_region(part, size)
            }
        }
    }

    /// Returns the picture resized.
    pub(crate) fn resize(&self, size: ImageSize) -> Result<Self, String> {
        if size == self.size {
            return Ok(self.clone());
        }
        let whole = CropRegion {
            left: 0.0,
            top: 0.0,
            width: f64::from(self.size.width),
            height: f64::from(self.size.height),
        };
        self.resize_region(whole, size)
    }

    fn resize_region(&self, part: CropRegion, size: ImageSize) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| format!("it cannot be resized: {error}");
        let pixel_type = self.layout.pixel_type();
        let source = ImageRef::new(self.size.width, self.size.height, &self.bytes, pixel_type)
            .map_err(|error| failed(&error))?;
        let mut target = Image::new(size.width, size.height, pixel_type);
        let options = ResizeOptions::new()
            .crop(part.left, part.top, part.width, part.height)
            .use_alpha(self.layout.has_alpha());
        Resizer::new()
            .resize(&source, &mut target, Some(&options))
            .map_err(|error| failed(&error))?;
        Ok(Self { size, layout: self.layout, bytes: target.into_vec() })
    }

    /// Returns the region that fills a box around the focal point, and its target size, which is never enlarged.
    fn cover_region(&self, within: ImageSize, focus: FocalPoint) -> (CropRegion, ImageSize) {
        let (width, height) = (f64::from(self.size.width), f64::from(self.size.height));
        let (wanted_width, wanted_height) =
            (f64::from(within.width.max(1)), f64::from(within.height.max(1)));
        let scale = (width / wanted_width).min(height / wanted_height);
        let part_width = (wanted_width * scale).min(width);
        let part_height = (wanted_height * scale).min(height);
        let offset_of = |focus: f64, part: f64, whole: f64| {
            (focus.clamp(0.0, 1.0) * whole - part / 2.0).clamp(0.0, (whole - part).max(0.0))
        };
        let part = CropRegion {
            left: offset_of(focus.x, part_width, width),
            top: offset_of(focus.y, part_height, height),
            width: part_width,
            height: part_height,
        };
        let side = |part: f64, limit: u32| (part.round() as u32).clamp(1, limit.max(1));
        (
            part,
            ImageSize {
                width: side(part_width, within.width),
                height: side(part_height, within.height),
            },
        )
    }

    /// Returns the picture rotated and mirrored by its EXIF orientation (1 to 8); other values change nothing.
    pub(crate) fn apply_orientation(self, orientation: u8) -> Self {
        if !(2..=8).contains(&orientation) {
            return self;
        }
        let from = self.size;
        let is_turned = orientation >= 5;
        let to = if is_turned { from.transposed() } else { from };
        let (width, height) = (from.width as usize, from.height as usize);
        let channels = self.layout.channel_count();
        let mut bytes = Vec::with_capacity(self.bytes.len());
        for y in 0..to.height as usize {
            for x in 0..to.width as usize {
                let (from_x, from_y) = match orientation {
                    2 => (width - 1 - x, y),
                    3 => (width - 1 - x, height - 1 - y),
                    4 => (x, height - 1 - y),
                    5 => (y, x),
                    6 => (y, height - 1 - x),
                    7 => (width - 1 - y, height - 1 - x),
                    _ => (width - 1 - y, x),
                };
                let at = (from_y * width + from_x) * channels;
                bytes.extend_from_slice(self.bytes.get(at..at + channels).unwrap_or_default());
            }
        }
        Self { size: to, layout: self.layout, bytes }
    }

    /// Returns true if any pixel is not opaque.
    pub(crate) fn is_transparent(&self) -> bool {
        let channels = self.layout.channel_count();
        self.layout.has_alpha()
            && self.bytes.chunks_exact(channels).any(|pixel| pixel.last() != Some(&255))
    }

    /// Returns the picture without alpha, composed over white.
    pub(crate) fn flatten_alpha(&self) -> std::borrow::Cow<'_, Self> {
        let layout = match self.layout {
            PixelLayout::GrayAlpha => PixelLayout::Gray,
            PixelLayout::Rgba => PixelLayout::Rgb,
            PixelLayout::Gray | PixelLayout::Rgb | PixelLayout::Cmyk => {
                return std::borrow::Cow::Borrowed(self);
            }
        };
        let mut bytes = Vec::with_capacity(self.bytes.len());
        for pixel in self.bytes.chunks_exact(self.layout.channel_count()) {
            if let Some((alpha, colors)) = pixel.split_last() {
                let alpha = u32::from(*alpha);
                bytes.extend(colors.iter().map(|color| {
                    ((u32::from(*color) * alpha + 255 * (255 - alpha) + 127) / 255) as u8
                }));
            }
        }
        std::borrow::Cow::Owned(Self { size: self.size, layout, bytes })
    }

    /// Returns the picture with three or four channels; gray is converted to red, green and blue.
    pub(crate) fn to_color(&self) -> std::borrow::Cow<'_, Self> {
        let layout = match self.layout {
            PixelLayout::Gray => PixelLayout::Rgb,
            PixelLayout::GrayAlpha => PixelLayout::Rgba,
            PixelLayout::Rgb | PixelLayout::Rgba | PixelLayout::Cmyk => {
                return std::borrow::Cow::Borrowed(self);
            }
        };
        let mut bytes =
            Vec::with_capacity(self.size.pixel_count() as usize * layout.channel_count());
        for pixel in self.bytes.chunks_exact(self.layout.channel_count()) {
            if let Some((gray, alpha)) = pixel.split_first() {
                bytes.extend([*gray; 3]);
                bytes.extend(alpha);
            }
        }
        std::borrow::Cow::Owned(Self { size: self.size, layout, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(width: u32, height: u32) -> ImageSize {
        ImageSize { width, height }
    }

    #[test]
    fn sizes_inside_a_box() {
        for (from, within, expected) in [
            (size(6000, 4000), size(1280, 1280), size(1280, 853)),
            (size(100, 50), size(1280, 1280), size(100, 50)),
            (size(20_000, 1), size(319, 319), size(319, 1)),
            (size(1, 20_000), size(140, 100), size(1, 100)),
            (size(301, 128), size(140, 100), size(140, 60)),
        ] {
            assert_eq!(from.fit_within(within), expected, "{from:?}");
        }
    }

    /// Checks each orientation of a picture with numbered pixels: rows as displayed.
    #[test]
    fn orientations() {
        let image =
            RasterImage::new(size(3, 2), PixelLayout::Gray, vec![1, 2, 3, 4, 5, 6]).unwrap();
        for (orientation, width, expected) in [
            (1, 3, [1, 2, 3, 4, 5, 6]),
            (2, 3, [3, 2, 1, 6, 5, 4]),
            (3, 3, [6, 5, 4, 3, 2, 1]),
            (4, 3, [4, 5, 6, 1, 2, 3]),
            (5, 2, [1, 4, 2, 5, 3, 6]),
            (6, 2, [4, 1, 5, 2, 6, 3]),
            (7, 2, [6, 3, 5, 2, 4, 1]),
            (8, 2, [3, 6, 2, 5, 1, 4]),
        ] {
            let turned = image.clone().apply_orientation(orientation);
            assert_eq!(
                (turned.size.width, &*turned.bytes),
                (width, &expected[..]),
                "{orientation}"
            );
        }
    }

    #[test]
    fn flattens_on_white() {
        let bytes = vec![0, 0, 0, 0, 10, 20, 30, 255, 0, 0, 0, 128];
        let image = RasterImage::new(size(3, 1), PixelLayout::Rgba, bytes).unwrap();
        assert_eq!(image.flatten_alpha().bytes, [255, 255, 255, 10, 20, 30, 127, 127, 127]);
        assert!(image.is_transparent());
    }

    #[test]
    fn covers_around_the_focus() {
        // 8 columns numbered by position; a square of 2 around the right edge and around the middle.
        let bytes: Vec<u8> = (0..4).flat_map(|_| (0..8).map(|x| x * 30)).collect();
        let image = RasterImage::new(size(8, 4), PixelLayout::Gray, bytes).unwrap();
        let right =
            image.fit_to_box(size(4, 4), ResizeMode::Cover(FocalPoint { x: 1.0, y: 0.5 })).unwrap();
        assert_eq!(right.bytes.get(..4), Some(&[120, 150, 180, 210][..]));
        let middle =
            image.fit_to_box(size(4, 4), ResizeMode::Cover(FocalPoint::default())).unwrap();
        assert_eq!(middle.bytes.get(..4), Some(&[60, 90, 120, 150][..]));
        // The picture is not enlarged: it has the requested aspect ratio at its own size.
        let large =
            image.fit_to_box(size(100, 100), ResizeMode::Cover(FocalPoint::default())).unwrap();
        assert_eq!(large.size, size(4, 4));
    }

    #[test]
    fn bytes_must_match_the_size() {
        assert!(RasterImage::new(size(2, 2), PixelLayout::Rgb, vec![0; 11]).is_none());
        assert!(RasterImage::new(size(0, 2), PixelLayout::Rgb, Vec::new()).is_none());
    }
}
