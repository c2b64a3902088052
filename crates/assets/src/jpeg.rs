//! Reads JPEG: the segments before the picture, and the picture at a fraction of its size. Also encodes JPEG.
//!
//! The decoder works on coefficients, so a picture of 24 megapixels of which 1280 columns are needed is decoded at a
//! quarter of its width: a sixteenth of the memory, and most of the time saved.
//!
//! On failure: a truncated or damaged file yields the readable part of the picture, and a warning. If the fast decoder
//! rejects a file, a second one is tried.

use std::collections::BTreeMap;

use image::codecs::jpeg::JpegDecoder;
use image::{DynamicImage, ImageDecoder};
use turbojpeg::{Colorspace, Compressor, Decompressor, Image, PixelFormat, ScalingFactor, Subsamp};

use crate::asset_file_error::AssetFileError;
use crate::decoded_image::{DecodedImage, ImageHeader};
use crate::image_size::ImageSize;
use crate::metadata::EmbeddedMetadata;
use crate::raster_image::{PixelLayout, RasterImage};

const EXIF_SIGNATURE: &[u8] = b"Exif\0\0";
const XMP_SIGNATURE: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";
const EXTENDED_XMP_SIGNATURE: &[u8] = b"http://ns.adobe.com/xmp/extension/\0";
const ICC_SIGNATURE: &[u8] = b"ICC_PROFILE\0";
const PHOTOSHOP_SIGNATURE: &[u8] = b"Photoshop 3.0\0";
/// Maximum total size of metadata that is assembled from several segments, in bytes.
const MAX_METADATA_BYTES: usize = 16 << 20;
/// Maximum number of scans. A progressive picture has about ten; a hostile one has thousands, each as costly as a
/// picture.
const MAX_JPEG_SCANS: u32 = 200;
/// libjpeg-turbo's warnings for faults from which it recovered.
const RECOVERED_WARNINGS: [&str; 5] = [
    "Premature end",
    "Corrupt JPEG data",
    "Inconsistent progression",
    "Invalid SOS parameters",
    "Unknown Adobe color",
];

/// Data from the segments before the picture.
#[derive(Debug, Default)]
pub(crate) struct JpegSegments {
    pub(crate) size: Option<ImageSize>,
    pub(crate) component_count: u8,
    pub(crate) is_progressive: bool,
    /// True if an Adobe program wrote the file; its CMYK is stored inverted.
    pub(crate) is_adobe: bool,
    /// Horizontal and vertical density in pixels per inch.
    pub(crate) density: Option<(u32, u32)>,
    pub(crate) comment_count: u32,
    pub(crate) embedded_metadata: EmbeddedMetadata,
}

/// Reads the segments up to the picture's data; a truncated segment is left out.
pub(crate) fn read_jpeg_segments(bytes: &[u8]) -> JpegSegments {
    let mut segments = JpegSegments::default();
    let mut profile: BTreeMap<u8, &[u8]> = BTreeMap::new();
    let mut extended: BTreeMap<u32, &[u8]> = BTreeMap::new();
    let mut rest = bytes.get(2..).unwrap_or_default();
    while let Some((marker, body, after)) = next_jpeg_segment(rest) {
        rest = after;
        match marker {
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                if let [_, h1, h0, w1, w0, components, ..] = *body {
                    let (height, width) =
                        (u16::from_be_bytes([h1, h0]), u16::from_be_bytes([w1, w0]));
                    segments.size = Some(ImageSize { width: width.into(), height: height.into() });
                    segments.component_count = components;
                    segments.is_progressive = matches!(marker, 0xc2 | 0xc6 | 0xca | 0xce);
                }
            }
            0xe0 => segments.density = segments.density.or(jfif_density(body)),
            0xe1 => {
                if let Some(exif) = body.strip_prefix(EXIF_SIGNATURE) {
                    segments.embedded_metadata.exif.get_or_insert_with(|| exif.to_vec());
                } else if let Some(packet) = body.strip_prefix(XMP_SIGNATURE) {
                    segments.embedded_metadata.xmp.get_or_insert_with(|| packet.to_vec());
                } else if let Some(part) = body.strip_prefix(EXTENDED_XMP_SIGNATURE) {
                    // A digest of 32 characters, the total length, and the offset of this part.
                    if let Some((offset, part)) =
                        part.get(36..).and_then(<[u8]>::split_first_chunk::<4>)
                    {
                        extended.insert(u32::from_be_bytes(*offset), part);
                    }
                }
            }
            0xe2 => {
                if let Some([number, _, part @ ..]) = body.strip_prefix(ICC_SIGNATURE) {
                    profile.insert(*number, part);
                }
            }
            0xed => {
                if let Some(resources) = body.strip_prefix(PHOTOSHOP_SIGNATURE) {
                    segments
                        .embedded_metadata
                        .photoshop
                        .get_or_insert_default()
                        .extend_from_slice(resources);
                }
            }
            0xee => segments.is_adobe |= body.starts_with(b"Adobe"),
            0xfe => segments.comment_count += 1,
            _ => {}
        }
    }
    segments.embedded_metadata.icc = join_parts(profile.into_values());
    segments.embedded_metadata.extended_xmp = join_parts(extended.into_values());
    segments
}

/// Returns the next segment's marker and body, and the bytes that follow; `None` at the picture's data.
fn next_jpeg_segment(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let mut rest = bytes;
    loop {
        match rest {
            [0xff, 0xff, ..] => rest = rest.get(1..)?,
            // The picture's data, the end, or no longer a JPEG.
            [0xff, 0xda | 0xd9, ..] => return None,
            [0xff, 0x01 | 0xd0..=0xd8, after @ ..] => rest = after,
            [0xff, marker, high, low, after @ ..] => {
                let length = usize::from(u16::from_be_bytes([*high, *low])).checked_sub(2)?;
                let (body, after) = after.split_at_checked(length)?;
                return Some((*marker, body, after));
            }
            _ => return None,
        }
    }
}

fn join_parts<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    for part in parts {
        if whole.len() + part.len() > MAX_METADATA_BYTES {
            return None;
        }
        whole.extend_from_slice(part);
    }
    (!whole.is_empty()).then_some(whole)
}

/// Returns the pixels per inch of a JFIF segment.
fn jfif_density(body: &[u8]) -> Option<(u32, u32)> {
    let [unit, x1, x0, y1, y0, ..] = *body.strip_prefix(b"JFIF\0")?.get(2..)? else { return None };
    let (across, down) = (u16::from_be_bytes([x1, x0]), u16::from_be_bytes([y1, y0]));
    let per_inch = |number: u16| match unit {
        1 => Some(u32::from(number)),
        2 => Some((f64::from(number) * 2.54).round() as u32),
        _ => None,
    };
    Some((per_inch(across)?, per_inch(down)?)).filter(|(across, down)| *across > 0 && *down > 0)
}

/// Returns the memory that decoding takes: the decoded pixels, and for progressive pictures all coefficients.
pub(crate) fn estimate_decode_memory(
    segments: &JpegSegments,
    size: ImageSize,
    target_size: ImageSize,
) -> u64 {
    let eighths = u64::from(choose_scale_eighths(size, target_size));
    let channels = u64::from(segments.component_count.clamp(1, 4));
    let decoded = size.pixel_count() * channels * eighths * eighths / 64;
    let coefficients = if segments.is_progressive { size.pixel_count() * 2 * channels } else { 0 };
    decoded * 2 + coefficients
}

/// Returns the scale in eighths at which a picture is decoded so that it exceeds the requested size by `MARGIN`.
fn choose_scale_eighths(size: ImageSize, target_size: ImageSize) -> u8 {
    let enough = |eighths: u8| {
        let scaled = |side: u32| (side * u32::from(eighths)).div_ceil(8);
        scaled(size.width) >= target_size.width && scaled(size.height) >= target_size.height
    };
    // The other scales have no vector instructions and cost more than they save.
    [1, 2, 4].into_iter().find(|eighths| enough(*eighths)).unwrap_or(8)
}

/// Decodes a picture at the smallest fraction of its size that still covers `target_size`.
///
/// # Errors
/// If neither decoder can decode the picture.
pub(crate) fn decode_jpeg(
    bytes: &[u8],
    header: &ImageHeader,
    target_size: ImageSize,
) -> Result<DecodedImage, AssetFileError> {
    match decode_jpeg_scaled(bytes, header, target_size) {
        Ok(decoded) => Ok(decoded),
        Err(first) => decode_jpeg_whole(bytes, header).map_err(|_| first),
    }
}

fn decode_jpeg_scaled(
    bytes: &[u8],
    header: &ImageHeader,
    target_size: ImageSize,
) -> Result<DecodedImage, AssetFileError> {
    let unreadable = |error: &dyn std::fmt::Display| {
        AssetFileError::new(format!("it is not a readable JPEG: {error}"))
    };
    let mut decompressor = Decompressor::new().map_err(|error| unreadable(&error))?;
    decompressor.set_scan_limit(MAX_JPEG_SCANS).map_err(|error| unreadable(&error))?;
    let jpeg_header = decompressor.read_header(bytes).map_err(|error| unreadable(&error))?;
    let factor = match jpeg_header.is_lossless {
        true => ScalingFactor::ONE,
        false => {
            ScalingFactor::new(choose_scale_eighths(header.stored_size, target_size).into(), 8)
        }
    };
    decompressor.set_scaling_factor(factor).map_err(|error| unreadable(&error))?;
    let (format, layout) = match jpeg_header.colorspace {
        Colorspace::Gray => (PixelFormat::GRAY, PixelLayout::Gray),
        Colorspace::CMYK | Colorspace::YCCK => (PixelFormat::CMYK, PixelLayout::Cmyk),
        Colorspace::RGB | Colorspace::YCbCr => (PixelFormat::RGB, PixelLayout::Rgb),
    };
    let (width, height) = (factor.scale(jpeg_header.width), factor.scale(jpeg_header.height));
    let pitch = width * format.size();
    // The missing part of a truncated file is gray.
    let mut pixels = vec![0x80; pitch * height];
    let image = Image { pixels: &mut *pixels, width, pitch, height, format };
    let mut warnings = Vec::new();
    if let Err(error) = decompressor.decompress(bytes, image) {
        let reason = error.to_string();
        let reason = reason.trim_start_matches("TurboJPEG error: ");
        if !RECOVERED_WARNINGS.iter().any(|warning| reason.starts_with(warning)) {
            return Err(unreadable(&error));
        }
        warnings.push(format!("the file is damaged: {reason}"));
    }
    if layout == PixelLayout::Cmyk && header.is_inverted {
        pixels.iter_mut().for_each(|ink| *ink = 255 - *ink);
    }
    let size = ImageSize { width: width as u32, height: height as u32 };
    let frame = RasterImage::new(size, layout, pixels)
        .ok_or_else(|| AssetFileError::new("it has no pixels"))?;
    Ok(DecodedImage { image: frame, warnings })
}

/// Decodes with the second decoder, which accepts some files that the first rejects.
fn decode_jpeg_whole(bytes: &[u8], header: &ImageHeader) -> Result<DecodedImage, AssetFileError> {
    let failed = |error: image::ImageError| {
        AssetFileError::new(format!("it is not a readable JPEG: {error}"))
    };
    let decoder = JpegDecoder::new(std::io::Cursor::new(bytes)).map_err(failed)?;
    let (width, height) = decoder.dimensions();
    if (ImageSize { width, height }) != header.stored_size {
        return Err(AssetFileError::new(
            "it is not a readable JPEG: its headers contradict each other",
        ));
    }
    let pixels = DynamicImage::from_decoder(decoder).map_err(failed)?.into_rgb8();
    let image = RasterImage::new(header.stored_size, PixelLayout::Rgb, pixels.into_raw());
    let image = image.ok_or_else(|| AssetFileError::new("it has no pixels"))?;
    Ok(DecodedImage {
        image,
        warnings: vec!["the file is unusual: it was read by the second decoder".to_owned()],
    })
}

/// Encodes a picture; transparency becomes white.
///
/// # Errors
/// If the encoder rejects the picture: the limit per side is 65,500 pixels.
pub(crate) fn encode_jpeg(image: &RasterImage, quality: u8) -> Result<Vec<u8>, String> {
    let image = image.flatten_alpha();
    let (format, subsampling) = match image.layout {
        PixelLayout::Gray => (PixelFormat::GRAY, Subsamp::Gray),
        PixelLayout::Rgb => (PixelFormat::RGB, Subsamp::Sub2x2),
        PixelLayout::GrayAlpha | PixelLayout::Rgba | PixelLayout::Cmyk => {
            return Err("JPEG can be encoded only from grayscale or RGB".to_owned());
        }
    };
    let failed = |error: turbojpeg::Error| format!("it cannot be encoded as JPEG: {error}");
    let mut compressor = Compressor::new().map_err(failed)?;
    compressor.set_quality(quality.clamp(1, 100).into()).map_err(failed)?;
    compressor.set_subsamp(subsampling).map_err(failed)?;
    compressor.set_optimize(true).map_err(failed)?;
    let (width, height) = (image.size.width as usize, image.size.height as usize);
    let pitch = width * format.size();
    let pixels_view = Image { pixels: &*image.bytes, width, pitch, height, format };
    compressor.compress_to_vec(pixels_view).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_cover_what_is_wanted() {
        let size = |width, height| ImageSize { width, height };
        for (from, target_size, expected) in [
            (size(6000, 4000), size(1280, 853), 2),
            (size(6000, 4000), size(48, 32), 1),
            (size(2000, 2000), size(1280, 1280), 8),
            (size(3000, 2000), size(1280, 853), 4),
            (size(9, 9), size(9, 9), 8),
        ] {
            assert_eq!(
                choose_scale_eighths(from, target_size),
                expected,
                "{from:?} {target_size:?}"
            );
        }
    }

    #[test]
    fn segments_of_noise_are_none() {
        for bytes in
            [&b"\xff\xd8\xff"[..], b"\xff\xd8\xff\xe1\0\x01", b"\xff\xd8\xff\xe1\xff\xffExif", b""]
        {
            assert!(read_jpeg_segments(bytes).size.is_none());
        }
    }
}
