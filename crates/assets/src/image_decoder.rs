//! Decodes files to pixels: selects the decoder, reads the header, and checks the limits.
//!
//! Invariants
//! * The header's dimensions are checked against the limits before pixel memory is allocated.
//! * Decoding runs in the rendition process (`decoder_process`), so that a decoder that crashes or never ends affects
//!   nothing else.

use std::io::Cursor;

use image::codecs::bmp::BmpDecoder;
use image::codecs::gif::GifDecoder;
use image::codecs::ico::IcoDecoder;
use image::codecs::png::PngDecoder;
use image::codecs::tga::TgaDecoder;
use image::codecs::tiff::TiffDecoder;
use image::codecs::webp::WebPDecoder;
use image::{ColorType, DynamicImage, ImageDecoder, ImageResult};

use crate::asset_file_error::AssetFileError;
use crate::decoded_image::{DecodedImage, ImageHeader};
use crate::file_format::FileFormat;
use crate::image_size::ImageSize;
use crate::jpeg::{self, JpegSegments};
use crate::metadata::EmbeddedMetadata;
use crate::processing_request::ProcessingLimits;
use crate::raster_image::{PixelLayout, RasterImage};
use crate::svg;

/// Maximum size of a textual chunk or profile that a decoder stores, in bytes.
const MAX_METADATA_BYTES: usize = 16 << 20;

/// Returns true if pictures of this format are decoded here.
pub(crate) fn is_decodable_image(format: FileFormat) -> bool {
    use FileFormat::{Bmp, Gif, Icon, Jpeg, Png, Svg, Targa, Tiff, WebP};
    matches!(format, Jpeg | Png | Gif | WebP | Tiff | Bmp | Icon | Targa | Svg)
}

/// Reads the header, and checks it against the limits. `target_size_of` returns the size of the largest rendition for a picture
/// of a given size.
///
/// # Errors
/// If the header cannot be read, or exceeds the limits.
pub(crate) fn read_image_header(
    bytes: &[u8],
    format: FileFormat,
    limits: &ProcessingLimits,
    target_size_of: impl Fn(ImageSize) -> ImageSize,
) -> Result<ImageHeader, AssetFileError> {
    let mut header = match format {
        FileFormat::Jpeg => read_jpeg_header(bytes, &target_size_of)?,
        FileFormat::Svg => read_svg_header(bytes, &target_size_of)?,
        _ => read_raster_header(bytes, format, limits)?,
    };
    header.orientation = match header.embedded_metadata.orientation() {
        Some(orientation) if (1..=8).contains(&orientation) => orientation,
        _ => header.orientation.max(1),
    };
    check_limits(&header, limits, format)?;
    Ok(header)
}

fn check_limits(
    header: &ImageHeader,
    limits: &ProcessingLimits,
    format: FileFormat,
) -> Result<(), AssetFileError> {
    let ImageSize { width, height } = header.stored_size;
    if width == 0 || height == 0 {
        return Err(AssetFileError::new("its header has no width or no height"));
    }
    // An SVG has no pixels, so its size does not determine its cost.
    if format != FileFormat::Svg && header.stored_size.pixel_count() > limits.pixels {
        return Err(too_many_pixels_error(header.stored_size, limits));
    }
    if header.memory_bytes > limits.memory {
        return Err(AssetFileError::new(format!(
            "rendering its {width} x {height} pixels takes {} MiB of memory; at most {} MiB are allowed",
            header.memory_bytes >> 20,
            limits.memory >> 20
        )));
    }
    Ok(())
}

/// Returns the error for a picture that exceeds the pixel limit.
pub(crate) fn too_many_pixels_error(
    ImageSize { width, height }: ImageSize,
    limits: &ProcessingLimits,
) -> AssetFileError {
    AssetFileError::new(format!(
        "its header declares {width} x {height} pixels; at most {} million are allowed",
        limits.pixels / 1_000_000
    ))
}

fn read_jpeg_header(
    bytes: &[u8],
    target_size_of: &impl Fn(ImageSize) -> ImageSize,
) -> Result<ImageHeader, AssetFileError> {
    let segments: JpegSegments = jpeg::read_jpeg_segments(bytes);
    let stored = segments.size.ok_or_else(|| {
        AssetFileError::new("it begins like a JPEG, but its header is truncated or damaged")
    })?;
    let memory = jpeg::estimate_decode_memory(&segments, stored, target_size_of(stored))
        + bytes.len() as u64;
    Ok(ImageHeader {
        stored_size: stored,
        orientation: 1,
        bits_per_pixel: 8 * u32::from(segments.component_count),
        is_progressive: segments.is_progressive,
        is_inverted: segments.is_adobe,
        density: segments.density,
        comments: segments.comment_count,
        memory_bytes: memory,
        embedded_metadata: segments.embedded_metadata,
    })
}

fn read_svg_header(
    bytes: &[u8],
    target_size_of: &impl Fn(ImageSize) -> ImageSize,
) -> Result<ImageHeader, AssetFileError> {
    let stored = svg::svg_size(bytes)?;
    Ok(ImageHeader {
        stored_size: stored,
        orientation: 1,
        bits_per_pixel: 32,
        memory_bytes: target_size_of(stored).pixel_count() * 12 + bytes.len() as u64 * 16,
        ..ImageHeader::default()
    })
}

fn read_raster_header(
    bytes: &[u8],
    format: FileFormat,
    limits: &ProcessingLimits,
) -> Result<ImageHeader, AssetFileError> {
    let mut decoder = open_decoder(bytes, format, limits)?;
    let (width, height) = decoder.dimensions();
    let orientation = decoder.orientation().map_or(1, image::metadata::Orientation::to_exif);
    let bounded_data = |data: ImageResult<Option<Vec<u8>>>| {
        data.ok().flatten().filter(|data| data.len() <= MAX_METADATA_BYTES)
    };
    let embedded = EmbeddedMetadata {
        exif: bounded_data(decoder.exif_metadata()),
        xmp: bounded_data(decoder.xmp_metadata()),
        iptc: bounded_data(decoder.iptc_metadata()),
        icc: bounded_data(decoder.icc_profile()),
        ..EmbeddedMetadata::default()
    };
    let bits_per_pixel = u32::from(decoder.original_color_type().bits_per_pixel());
    // The decoder's pixels, plus a copy with 8 bits per channel.
    let memory = decoder.total_bytes().saturating_mul(2).saturating_add(bytes.len() as u64);
    Ok(ImageHeader {
        stored_size: ImageSize { width, height },
        orientation,
        bits_per_pixel,
        memory_bytes: memory,
        embedded_metadata: embedded,
        ..ImageHeader::default()
    })
}

/// Returns the largest picture of an icon, if it is a PNG. The icon decoder accepts only PNGs with transparency.
fn extract_icon_png(bytes: &[u8]) -> Option<&[u8]> {
    let count = usize::from(u16::from_le_bytes(bytes.get(4..6)?.try_into().ok()?));
    let entries = bytes.get(6..)?.chunks_exact(16).take(count);
    let number = |entry: &[u8], at: usize| {
        let four = entry.get(at..at + 4)?;
        usize::try_from(u32::from_le_bytes(four.try_into().ok()?)).ok()
    };
    // A side of 256 is stored as 0.
    let side = |byte: Option<&u8>| byte.map_or(0, |byte| u32::from(byte.wrapping_sub(1)) + 1);
    let largest = entries.max_by_key(|entry| side(entry.first()) * side(entry.get(1)))?;
    let start = number(largest, 12)?;
    let picture = bytes.get(start..start.checked_add(number(largest, 8)?)?)?;
    picture.starts_with(b"\x89PNG\r\n\x1a\n").then_some(picture)
}

/// Returns true if a decoder supports the kind of picture in the header.
pub(crate) fn has_supported_header(
    bytes: &[u8],
    format: FileFormat,
    limits: &ProcessingLimits,
) -> bool {
    open_decoder(bytes, format, limits).is_ok()
}

/// Opens a decoder, which reads only the header.
fn open_decoder<'a>(
    bytes: &'a [u8],
    format: FileFormat,
    limits: &ProcessingLimits,
) -> Result<Box<dyn ImageDecoder + 'a>, AssetFileError> {
    let format_name = format.dam_format_name().unwrap_or("picture");
    let failed = |error: image::ImageError| {
        AssetFileError::new(format!("it is not a readable {format_name}: {error}"))
    };
    let source = Cursor::new(bytes);
    let mut bounds = image::Limits::default();
    bounds.max_alloc = Some(limits.memory);
    let mut decoder: Box<dyn ImageDecoder + 'a> = match format {
        FileFormat::Png => {
            Box::new(PngDecoder::with_limits(source, bounds.clone()).map_err(failed)?)
        }
        FileFormat::Gif => Box::new(GifDecoder::new(source).map_err(failed)?),
        FileFormat::WebP => Box::new(WebPDecoder::new(source).map_err(failed)?),
        FileFormat::Tiff => Box::new(TiffDecoder::new(source).map_err(failed)?),
        FileFormat::Bmp => Box::new(BmpDecoder::new(source).map_err(failed)?),
        FileFormat::Targa => Box::new(TgaDecoder::new(source).map_err(failed)?),
        FileFormat::Icon => match extract_icon_png(bytes) {
            Some(png) => {
                Box::new(PngDecoder::with_limits(Cursor::new(png), bounds.clone()).map_err(failed)?)
            }
            None => Box::new(IcoDecoder::new(source).map_err(failed)?),
        },
        _ => return Err(AssetFileError::new("no decoder supports it")),
    };
    decoder.set_limits(bounds).map_err(failed)?;
    Ok(decoder)
}

/// Decodes a picture so that it covers `target_size` if it is large enough; of an animation, the first frame.
///
/// # Errors
/// If the file is too damaged for the decoder.
pub(crate) fn decode_image(
    bytes: &[u8],
    format: FileFormat,
    header: &ImageHeader,
    target_size: ImageSize,
    limits: &ProcessingLimits,
) -> Result<DecodedImage, AssetFileError> {
    match format {
        FileFormat::Jpeg => jpeg::decode_jpeg(bytes, header, target_size),
        FileFormat::Svg => svg::rasterize_svg(bytes, target_size),
        _ => decode_raster(bytes, format, limits),
    }
}

fn decode_raster(
    bytes: &[u8],
    format: FileFormat,
    limits: &ProcessingLimits,
) -> Result<DecodedImage, AssetFileError> {
    let decoder = open_decoder(bytes, format, limits)?;
    let (width, height) = decoder.dimensions();
    let size = ImageSize { width, height };
    let layout = match decoder.color_type() {
        ColorType::L8 => Some(PixelLayout::Gray),
        ColorType::La8 => Some(PixelLayout::GrayAlpha),
        ColorType::Rgb8 => Some(PixelLayout::Rgb),
        ColorType::Rgba8 => Some(PixelLayout::Rgba),
        _ => None,
    };
    let no_pixels = || AssetFileError::new("it has no pixels");
    if let Some(layout) = layout {
        // The picture is read in place, so that the available part of a truncated file is retained.
        let total = usize::try_from(decoder.total_bytes()).map_err(|_| no_pixels())?;
        let mut pixels = vec![0; total];
        let mut warnings = Vec::new();
        if let Err(error) = decoder.read_image_boxed(&mut pixels) {
            if !has_written_pixels(&pixels) {
                return Err(undecodable_error(format, &error));
            }
            warnings.push(format!("the file is damaged: {error}"));
        }
        let image = RasterImage::new(size, layout, pixels).ok_or_else(no_pixels)?;
        return Ok(DecodedImage { image, warnings });
    }
    let picture =
        DynamicImage::from_decoder(decoder).map_err(|error| undecodable_error(format, &error))?;
    let (layout, pixels) = match (picture.color().has_color(), picture.color().has_alpha()) {
        (false, false) => (PixelLayout::Gray, picture.into_luma8().into_raw()),
        (false, true) => (PixelLayout::GrayAlpha, picture.into_luma_alpha8().into_raw()),
        (true, false) => (PixelLayout::Rgb, picture.into_rgb8().into_raw()),
        (true, true) => (PixelLayout::Rgba, picture.into_rgba8().into_raw()),
    };
    let image = RasterImage::new(size, layout, pixels).ok_or_else(no_pixels)?;
    Ok(DecodedImage { image, warnings: Vec::new() })
}

/// Returns true if a decoder wrote any pixel.
fn has_written_pixels(pixels: &[u8]) -> bool {
    pixels.iter().any(|byte| *byte != 0)
}

fn undecodable_error(format: FileFormat, error: &image::ImageError) -> AssetFileError {
    AssetFileError::new(format!(
        "it is not a readable {}: {error}",
        format.dam_format_name().unwrap_or("picture")
    ))
}
