//! All renditions of one file out of one decode.
//!
//! In: the bytes of a file and an [`Order`]. Out: what was drawn and found.
//!
//! The picture is decoded at the smallest fraction of its size that covers the largest rendition. Each rendition is then
//! made of the smallest one before it that still covers it, so that all but the first cost next to nothing.
//!
//! Not here: limits on time and memory of the process (`child`), formats that other programs read (`tool`).

use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{ExtendedColorType, ImageEncoder};
use sha1::{Digest, Sha1};

use super::decode::{self, Fault, Header};
use super::format::Format;
use super::frame::{Frame, Layout, Size};
use super::header_size::header_size;
use super::order::{Drawn, Encoding, Fit, Order, Rendition, RenditionOrder};
use super::{color, jpeg, metadata};

/// Draws what an order wants. `reserve` is told how many bytes of memory decoding takes, and returns when they are free.
///
/// # Errors
/// If the file is no picture, a damaged one, or one beyond the limits.
pub(crate) fn draw(
    bytes: &[u8],
    order: &Order,
    reserve: impl FnOnce(u64) -> Result<(), Fault>,
) -> Result<Drawn, Fault> {
    if bytes.len() as u64 > order.limits.file {
        let most = order.limits.file >> 20;
        return Err(Fault::new(format!(
            "it has {} bytes; at most {most} MiB are read",
            bytes.len()
        )));
    }
    let format = Format::of(bytes);
    let mut drawn = Drawn { sha1: hex(&Sha1::digest(bytes)), ..Drawn::default() };
    if let Some(media_type) = format.and_then(Format::media_type) {
        media_type.clone_into(&mut drawn.media_type);
    }
    match format {
        Some(format) if decode::is_picture(format) => {
            let by_header = drawn.clone();
            picture(bytes, format, order, reserve, drawn).or_else(|fault| {
                // Another program may draw it: then its header is told here.
                let is_told = order.renditions.is_empty()
                    && format == Format::Tiff
                    && !decode::is_readable(bytes, format, &order.limits);
                let told = is_told.then(|| told_by_header(bytes, format, order, by_header));
                told.and_then(Result::ok).filter(|drawn| drawn.size.is_some()).ok_or(fault)
            })
        }
        Some(format) if format.is_still() => told_by_header(bytes, format, order, drawn),
        Some(format @ (Format::Matroska | Format::WebM)) => {
            drawn.size = header_size(bytes, format);
            if let Some(size) = drawn.size.filter(|_| order.metadata) {
                drawn.metadata = metadata::of_header(format, size);
            }
            Ok(drawn)
        }
        Some(Format::Pdf) if order.metadata => {
            drawn.metadata = metadata::pdf::read(bytes)?;
            Ok(drawn)
        }
        None if order.declared.starts_with("image/") => Err(Fault::new(format!(
            "it is called {}, but its bytes are no picture of a known kind",
            order.declared
        ))),
        _ => Ok(drawn),
    }
}

/// Tells of a picture that is not decoded here what its header says.
fn told_by_header(
    bytes: &[u8],
    format: Format,
    order: &Order,
    mut drawn: Drawn,
) -> Result<Drawn, Fault> {
    let Some(size) = header_size(bytes, format) else { return Ok(drawn) };
    if size.pixels() > order.limits.pixels {
        return Err(decode::too_many_pixels(size, &order.limits));
    }
    if order.metadata {
        drawn.metadata = metadata::of_header(format, size);
    }
    drawn.size = Some(size);
    Ok(drawn)
}

/// Writes bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a text cannot fail.
        write!(text, "{byte:02x}").ok();
    }
    text
}

fn picture(
    bytes: &[u8],
    format: Format,
    order: &Order,
    reserve: impl FnOnce(u64) -> Result<(), Fault>,
    mut drawn: Drawn,
) -> Result<Drawn, Fault> {
    let wanted_of = |size: Size| largest(&order.renditions, size, format == Format::Svg);
    let header = decode::read_header(bytes, format, &order.limits, wanted_of)?;
    if order.metadata {
        drawn.metadata = metadata::of_picture(format, &header);
    }
    drawn.size = Some(header.seen());
    if order.renditions.is_empty() {
        return Ok(drawn);
    }
    reserve(header.memory)?;
    let wanted = wanted_of(header.seen());
    let stored_wanted = if header.orientation >= 5 { wanted.turned() } else { wanted };
    let decoded = decode::decode(bytes, format, &header, stored_wanted, &order.limits)?;
    drawn.warnings = decoded.warnings;
    let first = prepared(decoded.frame, &header, stored_wanted, &mut drawn.warnings)?;
    drawn.renditions = cascade(first, &order.renditions).map_err(Fault)?;
    Ok(drawn)
}

/// Returns the smallest size that covers all renditions of a picture. A drawing has no pixels that could run out.
fn largest(renditions: &[RenditionOrder], size: Size, is_drawing: bool) -> Size {
    let sizes = renditions.iter().map(|rendition| match rendition.fit {
        Fit::Inside if is_drawing => Size {
            width: rendition.within.width.min(size.width),
            height: rendition.within.height.min(size.height),
        },
        Fit::Inside => size.inside(rendition.within),
        Fit::Cover(_) => {
            let scale = |within: u32, side: u32| f64::from(within) / f64::from(side.max(1));
            let scale = scale(rendition.within.width, size.width)
                .max(scale(rendition.within.height, size.height))
                .min(1.0);
            let scaled =
                |side: u32| ((f64::from(side) * scale).ceil() as u32).clamp(1, side.max(1));
            Size { width: scaled(size.width), height: scaled(size.height) }
        }
    });
    sizes.fold(Size { width: 1, height: 1 }, |most, size| Size {
        width: most.width.max(size.width),
        height: most.height.max(size.height),
    })
}

/// Brings a decoded picture to the largest wanted size, to sRGB and upright.
fn prepared(
    frame: Frame,
    header: &Header,
    wanted: Size,
    warnings: &mut Vec<String>,
) -> Result<Frame, Fault> {
    // Colors and turning cost by the pixel, so they come after the first step down.
    let frame =
        if wanted.covers(frame.size) { frame } else { frame.resized(wanted).map_err(Fault)? };
    let frame = color::to_srgb(frame, header.embedded.icc.as_deref(), warnings);
    Ok(frame.oriented(header.orientation))
}

/// Makes the renditions, the largest first, each of the smallest frame before it that covers it.
fn cascade(first: Frame, orders: &[RenditionOrder]) -> Result<Vec<Rendition>, String> {
    let mut by_size: Vec<(usize, &RenditionOrder)> = orders.iter().enumerate().collect();
    by_size.sort_by_key(|(_, order)| std::cmp::Reverse(order.within.pixels()));
    let mut frames = vec![first];
    let mut made: Vec<(usize, Rendition)> = Vec::new();
    for (place, order) in by_size {
        let whole = frames.first().ok_or("there is no picture")?;
        let (source, frame) = match order.fit {
            Fit::Cover(_) => (None, whole.fitted(order.within, order.fit)?),
            Fit::Inside => {
                let target = whole.size.inside(order.within);
                let source = frames.iter().rev().find(|frame| frame.size.covers(target));
                let source = source.unwrap_or(whole);
                (Some(target), source.resized(target)?)
            }
        };
        let bytes = encode(&frame, order.encoding)?;
        made.push((
            place,
            Rendition {
                name: order.name.clone(),
                media_type: order.encoding.media_type().to_owned(),
                size: frame.size,
                bytes,
            },
        ));
        if source.is_some() {
            frames.push(frame);
        }
    }
    made.sort_by_key(|(place, _)| *place);
    Ok(made.into_iter().map(|(_, rendition)| rendition).collect())
}

fn encode(frame: &Frame, encoding: Encoding) -> Result<Vec<u8>, String> {
    match encoding {
        Encoding::Jpeg(quality) => jpeg::encode(frame, quality),
        // `avifenc` makes AVIF of a PNG afterwards.
        Encoding::Png | Encoding::Avif(_) => encode_png(frame),
        Encoding::WebP(quality) => encode_webp(frame, quality),
    }
}

fn encode_png(frame: &Frame) -> Result<Vec<u8>, String> {
    let opaque;
    let frame = if frame.layout.has_alpha() && !frame.is_transparent() {
        opaque = frame.flattened();
        &*opaque
    } else {
        frame
    };
    let color = match frame.layout {
        Layout::Gray => ExtendedColorType::L8,
        Layout::GrayAlpha => ExtendedColorType::La8,
        Layout::Rgb => ExtendedColorType::Rgb8,
        Layout::Rgba => ExtendedColorType::Rgba8,
        Layout::Cmyk => return Err("PNG holds no ink".to_owned()),
    };
    let mut bytes = Vec::new();
    PngEncoder::new_with_quality(&mut bytes, CompressionType::Fast, FilterType::Adaptive)
        .write_image(&frame.bytes, frame.size.width, frame.size.height, color)
        .map_err(|error| format!("it cannot be encoded as PNG: {error}"))?;
    Ok(bytes)
}

fn encode_webp(frame: &Frame, quality: u8) -> Result<Vec<u8>, String> {
    /// A side of WebP has 14 bits.
    const MAX_SIDE: u32 = 16_383;
    let frame = frame.colored();
    let Size { width, height } = frame.size;
    if width > MAX_SIDE || height > MAX_SIDE {
        return Err(format!("WebP holds at most {MAX_SIDE} pixels a side"));
    }
    let encoder = match frame.layout {
        Layout::Rgba => webp::Encoder::from_rgba(&frame.bytes, width, height),
        Layout::Rgb => webp::Encoder::from_rgb(&frame.bytes, width, height),
        Layout::Gray | Layout::GrayAlpha | Layout::Cmyk => {
            return Err("WebP holds colors".to_owned());
        }
    };
    let encoded = encoder.encode_simple(false, f32::from(quality.clamp(1, 100)));
    encoded
        .map(|bytes| bytes.to_vec())
        .map_err(|error| format!("it cannot be encoded as WebP: {error:?}"))
}
