//! Colors: from an embedded profile, or from ink, to sRGB.
//!
//! On failure: a profile that cannot be used is as good as none; the picture is drawn in the colors that it has, with a
//! warning.

use moxcms::{ColorProfile, DataColorSpace, Layout as Channels, TransformOptions};

use super::frame::{Frame, Layout};

/// Rows that are converted together, so that the second copy stays small.
const PIXELS_AT_ONCE: usize = 1 << 16;

/// Returns the picture in sRGB, or in its grays if it has no colors.
pub(crate) fn to_srgb(frame: Frame, profile: Option<&[u8]>, warnings: &mut Vec<String>) -> Frame {
    if let Some(profile) = profile {
        match transformed(&frame, profile) {
            Ok(Some(converted)) => return converted,
            Ok(None) => {}
            Err(reason) => warnings.push(format!("its color profile is not used: {reason}")),
        }
    }
    if frame.layout == Layout::Cmyk { naive(&frame) } else { frame }
}

/// Converts by the profile; nothing if it says nothing about these channels.
fn transformed(frame: &Frame, profile: &[u8]) -> Result<Option<Frame>, String> {
    let profile = ColorProfile::new_from_slice(profile).map_err(|error| error.to_string())?;
    let (from, to, layout) = match (profile.color_space, frame.layout) {
        (DataColorSpace::Rgb, Layout::Rgb) => (Channels::Rgb, Channels::Rgb, Layout::Rgb),
        (DataColorSpace::Rgb, Layout::Rgba) => (Channels::Rgba, Channels::Rgba, Layout::Rgba),
        (DataColorSpace::Gray, Layout::Gray) => (Channels::Gray, Channels::Rgb, Layout::Rgb),
        (DataColorSpace::Gray, Layout::GrayAlpha) => {
            (Channels::GrayAlpha, Channels::Rgba, Layout::Rgba)
        }
        (DataColorSpace::Cmyk, Layout::Cmyk) => (Channels::Rgba, Channels::Rgb, Layout::Rgb),
        // A profile of other channels than the file has: left aside, as browsers do.
        _ => return Ok(None),
    };
    let srgb = ColorProfile::new_srgb();
    let transform = profile
        .create_transform_8bit(from, &srgb, to, TransformOptions::default())
        .map_err(|error| error.to_string())?;
    let (from, to) = (frame.layout.channels(), layout.channels());
    let mut bytes = vec![0; frame.size.pixels() as usize * to];
    let parts =
        frame.bytes.chunks(PIXELS_AT_ONCE * from).zip(bytes.chunks_mut(PIXELS_AT_ONCE * to));
    for (source, target) in parts {
        transform.transform(source, target).map_err(|error| error.to_string())?;
    }
    Ok(Frame::new(frame.size, layout, bytes))
}

/// Converts ink without a profile: what light is left by the color and by black.
fn naive(frame: &Frame) -> Frame {
    let mut bytes = Vec::with_capacity(frame.size.pixels() as usize * 3);
    for pixel in frame.bytes.chunks_exact(4) {
        if let [cyan, magenta, yellow, black] = *pixel {
            let left = 255 - u32::from(black);
            let light = |ink: u8| (((255 - u32::from(ink)) * left + 127) / 255) as u8;
            bytes.extend([light(cyan), light(magenta), light(yellow)]);
        }
    }
    Frame { size: frame.size, layout: Layout::Rgb, bytes }
}
