//! Converts colors from an embedded profile, or from CMYK, to sRGB.
//!
//! On failure: an unusable profile is treated as absent; the picture keeps its colors, with a warning.

use moxcms::{ColorProfile, DataColorSpace, Layout as Channels, TransformOptions};

use crate::raster_image::{PixelLayout, RasterImage};

/// Number of pixels that are converted together, which keeps the second copy small.
const PIXELS_PER_BATCH: usize = 1 << 16;

/// Returns the picture in sRGB, or in grayscale if it has no colors.
pub(crate) fn convert_to_srgb(
    image: RasterImage,
    profile: Option<&[u8]>,
    warnings: &mut Vec<String>,
) -> RasterImage {
    if let Some(profile) = profile {
        match convert_by_profile(&image, profile) {
            Ok(Some(converted)) => return converted,
            Ok(None) => {}
            Err(reason) => warnings.push(format!("its color profile is ignored: {reason}")),
        }
    }
    if image.layout == PixelLayout::Cmyk { convert_cmyk_naively(&image) } else { image }
}

/// Converts by the profile; `None` if the profile does not apply to these channels.
fn convert_by_profile(image: &RasterImage, profile: &[u8]) -> Result<Option<RasterImage>, String> {
    let profile = ColorProfile::new_from_slice(profile).map_err(|error| error.to_string())?;
    let (from, to, layout) = match (profile.color_space, image.layout) {
        (DataColorSpace::Rgb, PixelLayout::Rgb) => (Channels::Rgb, Channels::Rgb, PixelLayout::Rgb),
        (DataColorSpace::Rgb, PixelLayout::Rgba) => {
            (Channels::Rgba, Channels::Rgba, PixelLayout::Rgba)
        }
        (DataColorSpace::Gray, PixelLayout::Gray) => {
            (Channels::Gray, Channels::Rgb, PixelLayout::Rgb)
        }
        (DataColorSpace::Gray, PixelLayout::GrayAlpha) => {
            (Channels::GrayAlpha, Channels::Rgba, PixelLayout::Rgba)
        }
        (DataColorSpace::Cmyk, PixelLayout::Cmyk) => {
            (Channels::Rgba, Channels::Rgb, PixelLayout::Rgb)
        }
        // A profile for other channels than the file's is ignored, as in browsers.
        _ => return Ok(None),
    };
    let srgb = ColorProfile::new_srgb();
    let transform = profile
        .create_transform_8bit(from, &srgb, to, TransformOptions::default())
        .map_err(|error| error.to_string())?;
    let (from, to) = (image.layout.channel_count(), layout.channel_count());
    let mut bytes = vec![0; image.size.pixel_count() as usize * to];
    let parts =
        image.bytes.chunks(PIXELS_PER_BATCH * from).zip(bytes.chunks_mut(PIXELS_PER_BATCH * to));
    for (source, target) in parts {
        transform.transform(source, target).map_err(|error| error.to_string())?;
    }
    Ok(RasterImage::new(image.size, layout, bytes))
}

/// Converts CMYK without a profile: each channel is the light not absorbed by its ink and by black.
fn convert_cmyk_naively(image: &RasterImage) -> RasterImage {
    let mut bytes = Vec::with_capacity(image.size.pixel_count() as usize * 3);
    for pixel in image.bytes.chunks_exact(4) {
        if let [cyan, magenta, yellow, black] = *pixel {
            let left = 255 - u32::from(black);
            let light = |ink: u8| (((255 - u32::from(ink)) * left + 127) / 255) as u8;
            bytes.extend([light(cyan), light(magenta), light(yellow)]);
        }
    }
    RasterImage { size: image.size, layout: PixelLayout::Rgb, bytes }
}
