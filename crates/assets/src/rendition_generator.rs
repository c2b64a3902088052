//! Generates all renditions of one file from one decode.
//!
//! In: the bytes of a file and an [`AssetProcessingRequest`]. Out: the renditions and metadata.
//!
//! The image is decoded at the smallest fraction of its size that covers the largest rendition. The renditions are then
//! made in descending order of their boxes, each from the last uncropped one that still covers it, so all but the first
//! cost little.
//!
//! Not here: limits on time and memory of the process (`decoder_process`), formats that external programs read
//! (`external_tool`).

use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{ExtendedColorType, ImageEncoder};
use sha1::{Digest, Sha1};

use crate::asset_file_error::AssetFileError;
use crate::decoded_image::ImageHeader;
use crate::file_format::FileFormat;
use crate::header_size::read_header_size;
use crate::image_decoder;
use crate::image_size::ImageSize;
use crate::processing_request::{
    AssetProcessingRequest, AssetProcessingResult, EncodedRendition, RenditionEncoding,
    RenditionSpec, ResizeMode,
};
use crate::raster_image::{PixelLayout, RasterImage};
use crate::{color_conversion, jpeg, metadata};

/// Processes a request. `reserve` is called with the memory that decoding takes, in bytes, and returns when it is
/// available.
///
/// # Errors
/// If the file is not a picture, is damaged, or exceeds the limits.
pub(crate) fn render_asset_file(
    bytes: &[u8],
    request: &AssetProcessingRequest,
    reserve: impl FnOnce(u64) -> Result<(), AssetFileError>,
) -> Result<AssetProcessingResult, AssetFileError> {
    if bytes.len() as u64 > request.limits.file {
        let most = request.limits.file >> 20;
        return Err(AssetFileError::new(format!(
            "it has {} bytes; at most {most} MiB are allowed",
            bytes.len()
        )));
    }
    let format = FileFormat::detect(bytes);
    let mut result = AssetProcessingResult {
        sha1: hex::encode(Sha1::digest(bytes)),
        ..AssetProcessingResult::default()
    };
    if let Some(media_type) = format.and_then(FileFormat::media_type) {
        media_type.clone_into(&mut result.media_type);
    }
    match format {
        Some(format) if image_decoder::is_decodable_image(format) => {
            let by_header = result.clone();
            render_image(bytes, format, request, reserve, result).or_else(|fault| {
                // An external program may decode it; then only the header is reported here.
                let is_told = request.renditions.is_empty()
                    && format == FileFormat::Tiff
                    && !image_decoder::has_supported_header(bytes, format, &request.limits);
                let header_result =
                    is_told.then(|| apply_header_metadata(bytes, format, request, by_header));
                header_result
                    .and_then(Result::ok)
                    .filter(|result| result.size.is_some())
                    .ok_or(fault)
            })
        }
        Some(format) if format.is_still_image() => {
            apply_header_metadata(bytes, format, request, result)
        }
        Some(format @ (FileFormat::Matroska | FileFormat::WebM)) => {
            result.size = read_header_size(bytes, format);
            if let Some(size) = result.size.filter(|_| request.metadata) {
                result.metadata = metadata::header_properties(format, size);
            }
            Ok(result)
        }
        Some(FileFormat::Pdf) if request.metadata => {
            result.metadata = metadata::pdf::read_pdf_metadata(bytes)?;
            Ok(result)
        }
        None if request.declared.starts_with("image/") => Err(AssetFileError::new(format!(
            "it is declared as {}, but its content is not an image of a known format",
            request.declared
        ))),
        _ => Ok(result),
    }
}

/// Sets the properties from the header of a picture that is not decoded here.
fn apply_header_metadata(
    bytes: &[u8],
    format: FileFormat,
    request: &AssetProcessingRequest,
    mut result: AssetProcessingResult,
) -> Result<AssetProcessingResult, AssetFileError> {
    let Some(size) = read_header_size(bytes, format) else { return Ok(result) };
    if size.pixel_count() > request.limits.pixels {
        return Err(image_decoder::too_many_pixels_error(size, &request.limits));
    }
    if request.metadata {
        result.metadata = metadata::header_properties(format, size);
    }
    result.size = Some(size);
    Ok(result)
}

fn render_image(
    bytes: &[u8],
    format: FileFormat,
    request: &AssetProcessingRequest,
    reserve: impl FnOnce(u64) -> Result<(), AssetFileError>,
    mut result: AssetProcessingResult,
) -> Result<AssetProcessingResult, AssetFileError> {
    let wanted_of = |size: ImageSize| {
        largest_rendition_size(&request.renditions, size, format == FileFormat::Svg)
    };
    let header = image_decoder::read_image_header(bytes, format, &request.limits, wanted_of)?;
    if request.metadata {
        result.metadata = metadata::image_properties(format, &header);
    }
    result.size = Some(header.display_size());
    if request.renditions.is_empty() {
        return Ok(result);
    }
    reserve(header.memory_bytes)?;
    let target_size = wanted_of(header.display_size());
    let stored_wanted =
        if header.orientation >= 5 { target_size.transposed() } else { target_size };
    let decoded =
        image_decoder::decode_image(bytes, format, &header, stored_wanted, &request.limits)?;
    result.warnings = decoded.warnings;
    let first = prepare_image(decoded.image, &header, stored_wanted, &mut result.warnings)?;
    result.renditions = make_renditions(first, &request.renditions).map_err(AssetFileError)?;
    Ok(result)
}

/// Returns the smallest size that covers all renditions of a picture. An SVG can be rendered at any size.
fn largest_rendition_size(
    renditions: &[RenditionSpec],
    size: ImageSize,
    is_drawing: bool,
) -> ImageSize {
    let sizes = renditions.iter().map(|rendition| match rendition.fit {
        ResizeMode::Inside if is_drawing => ImageSize {
            width: rendition.within.width.min(size.width),
            height: rendition.within.height.min(size.height),
        },
        ResizeMode::Inside => size.fit_within(rendition.within),
        ResizeMode::Cover(_) => {
            let scale = |within: u32, side: u32| f64::from(within) / f64::from(side.max(1));
            let scale = scale(rendition.within.width, size.width)
                .max(scale(rendition.within.height, size.height))
                .min(1.0);
            let scaled =
                |side: u32| ((f64::from(side) * scale).ceil() as u32).clamp(1, side.max(1));
            ImageSize { width: scaled(size.width), height: scaled(size.height) }
        }
    });
    sizes.fold(ImageSize { width: 1, height: 1 }, |most, size| ImageSize {
        width: most.width.max(size.width),
        height: most.height.max(size.height),
    })
}

/// Scales a decoded picture to the largest requested size, converts it to sRGB, and rotates it upright.
fn prepare_image(
    image: RasterImage,
    header: &ImageHeader,
    target_size: ImageSize,
    warnings: &mut Vec<String>,
) -> Result<RasterImage, AssetFileError> {
    // Color conversion and rotation cost time per pixel, so they follow the first reduction.
    let image = if target_size.covers(image.size) {
        image
    } else {
        image.resize(target_size).map_err(AssetFileError)?
    };
    let image =
        color_conversion::convert_to_srgb(image, header.embedded_metadata.icc.as_deref(), warnings);
    Ok(image.apply_orientation(header.orientation))
}

/// Makes the renditions in descending order of their boxes, each from the last reusable image that covers it. A cropped
/// one is made from the full image, and no other is made from it.
fn make_renditions(
    first: RasterImage,
    specs: &[RenditionSpec],
) -> Result<Vec<EncodedRendition>, String> {
    let mut by_size: Vec<(usize, &RenditionSpec)> = specs.iter().enumerate().collect();
    by_size.sort_by_key(|(_, spec)| std::cmp::Reverse(spec.within.pixel_count()));
    let mut images = vec![first];
    let mut renditions: Vec<(usize, EncodedRendition)> = Vec::new();
    for (index, spec) in by_size {
        let full_image = images.first().ok_or("there is no image")?;
        let (is_reusable, image) = match spec.fit {
            ResizeMode::Cover(_) => (false, full_image.fit_to_box(spec.within, spec.fit)?),
            ResizeMode::Inside => {
                let target = full_image.size.fit_within(spec.within);
                let source = images.iter().rev().find(|image| image.size.covers(target));
                let source = source.unwrap_or(full_image);
                (true, source.resize(target)?)
            }
        };
        let bytes = encode_rendition(&image, spec.encoding)?;
        renditions.push((
            index,
            EncodedRendition {
                name: spec.name.clone(),
                media_type: spec.encoding.media_type().to_owned(),
                size: image.size,
                bytes,
            },
        ));
        if is_reusable {
            images.push(image);
        }
    }
    renditions.sort_by_key(|(index, _)| *index);
    Ok(renditions.into_iter().map(|(_, rendition)| rendition).collect())
}

fn encode_rendition(image: &RasterImage, encoding: RenditionEncoding) -> Result<Vec<u8>, String> {
    match encoding {
        RenditionEncoding::Jpeg(quality) => jpeg::encode_jpeg(image, quality),
        // `avifenc` converts the PNG to AVIF afterwards.
        RenditionEncoding::Png | RenditionEncoding::Avif(_) => encode_png(image),
        RenditionEncoding::WebP(quality) => encode_webp(image, quality),
    }
}

fn encode_png(image: &RasterImage) -> Result<Vec<u8>, String> {
    let opaque;
    let image = if image.layout.has_alpha() && !image.is_transparent() {
        opaque = image.flatten_alpha();
        &*opaque
    } else {
        image
    };
    let color = match image.layout {
        PixelLayout::Gray => ExtendedColorType::L8,
        PixelLayout::GrayAlpha => ExtendedColorType::La8,
        PixelLayout::Rgb => ExtendedColorType::Rgb8,
        PixelLayout::Rgba => ExtendedColorType::Rgba8,
        PixelLayout::Cmyk => return Err("PNG does not support CMYK".to_owned()),
    };
    let mut bytes = Vec::new();
    PngEncoder::new_with_quality(&mut bytes, CompressionType::Fast, FilterType::Adaptive)
        .write_image(&image.bytes, image.size.width, image.size.height, color)
        .map_err(|error| format!("it cannot be encoded as PNG: {error}"))?;
    Ok(bytes)
}

fn encode_webp(image: &RasterImage, quality: u8) -> Result<Vec<u8>, String> {
    /// Maximum side of a WebP picture, which is stored in 14 bits.
    const MAX_SIDE: u32 = 16_383;
    let image = image.to_color();
    let ImageSize { width, height } = image.size;
    if width > MAX_SIDE || height > MAX_SIDE {
        return Err(format!("WebP supports at most {MAX_SIDE} pixels per side"));
    }
    let encoder = match image.layout {
        PixelLayout::Rgba => webp::Encoder::from_rgba(&image.bytes, width, height),
        PixelLayout::Rgb => webp::Encoder::from_rgb(&image.bytes, width, height),
        PixelLayout::Gray | PixelLayout::GrayAlpha | PixelLayout::Cmyk => {
            return Err("WebP supports only RGB and RGBA".to_owned());
        }
    };
    let encoded = encoder.encode_simple(false, f32::from(quality.clamp(1, 100)));
    encoded
        .map(|bytes| bytes.to_vec())
        .map_err(|error| format!("it cannot be encoded as WebP: {error:?}"))
}
