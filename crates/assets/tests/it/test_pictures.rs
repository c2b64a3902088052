//! A decoder_pool for tests, pictures made by code, and a look at what came out.

use std::sync::{Arc, OnceLock};

use image::{DynamicImage, RgbImage};
use tympan_assets::{
    AssetProcessingRequest, AssetProcessingResult, DecoderPoolOptions, DecoderProcessPool,
    ImageSize, ProcessingLimits, ProgramCommand, RenditionEncoding, RenditionError, RenditionSpec,
    ResizeMode,
};
use tympan_content::BlobContent;

#[test]
fn the_process_that_draws() {
    // Whoever starts it takes the environment of the tests away.
    if std::env::var_os("PATH").is_none() {
        tympan_assets::run_decoder_process().unwrap();
    }
}

/// Starts this test program again for the test above.
pub(crate) fn options() -> DecoderPoolOptions {
    let arguments =
        ["--exact", "test_pictures::the_process_that_draws", "--nocapture", "--test-threads=1"];
    DecoderPoolOptions {
        process_command: ProgramCommand {
            program: std::env::current_exe().unwrap(),
            arguments: arguments.map(Into::into).into(),
        },
        // The bounds are the program's own matter; here the tool runs without.
        tool_command: ProgramCommand {
            program: "/bin/sh".into(),
            arguments: ["-c", "shift 3; exec \"$@\"", "sh"].map(Into::into).into(),
        },
        tool_search_path: std::env::var_os("PATH"),
        memory_bytes: 1 << 30,
        max_idle_processes: 2,
        niceness: 0,
    }
}

/// The decoder_pool of all tests.
pub(crate) fn decoder_pool() -> Arc<DecoderProcessPool> {
    static DECODER_POOL: OnceLock<Arc<DecoderProcessPool>> = OnceLock::new();
    Arc::clone(DECODER_POOL.get_or_init(|| Arc::new(DecoderProcessPool::new(options()))))
}

pub(crate) fn size(width: u32, height: u32) -> ImageSize {
    ImageSize { width, height }
}

/// One rendition in a box.
pub(crate) fn request(within: ImageSize, encoding: RenditionEncoding) -> AssetProcessingRequest {
    let name = "one".to_owned();
    AssetProcessingRequest {
        renditions: vec![RenditionSpec { name, within, fit: ResizeMode::Inside, encoding }],
        metadata: true,
        declared: String::new(),
        limits: ProcessingLimits::default(),
    }
}

pub(crate) fn render(
    bytes: &[u8],
    request: &AssetProcessingRequest,
) -> Result<AssetProcessingResult, RenditionError> {
    let bytes = bytes::Bytes::copy_from_slice(bytes);
    decoder_pool().render_file(&|| Ok(BlobContent::Bytes(bytes.clone())), request)
}

/// Draws one rendition and decodes it.
#[track_caller]
pub(crate) fn render_image(
    bytes: &[u8],
    within: ImageSize,
    encoding: RenditionEncoding,
) -> DynamicImage {
    let result = render(bytes, &request(within, encoding)).unwrap();
    image::load_from_memory(&result.renditions[0].bytes).unwrap()
}

/// Returns why a file is not drawn.
#[track_caller]
pub(crate) fn refusal(bytes: &[u8], request: &AssetProcessingRequest) -> String {
    match render(bytes, request) {
        Err(RenditionError::File(reason)) => reason,
        // On a machine with too much to do the time may be over first.
        Err(error @ RenditionError::CpuStarved { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// A picture of soft colors with some edges.
pub(crate) fn photo(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        let (u, v) = (f64::from(x) / f64::from(width), f64::from(y) / f64::from(height));
        let wave =
            |a: f64, b: f64| (((a * u * 19.0).sin() + (b * v * 23.0).cos()) * 60.0 + 128.0) as u8;
        let edge = if ((u * 12.0) as u32 + (v * 8.0) as u32).is_multiple_of(5) { 40 } else { 0 };
        image::Rgb([
            wave(1.0, 0.7).saturating_add(edge),
            wave(0.4, 1.3),
            wave(2.1, 0.2).saturating_sub(edge),
        ])
    })
}

pub(crate) fn jpeg(picture: &RgbImage, quality: i32) -> Vec<u8> {
    let image = turbojpeg::Image {
        pixels: picture.as_raw().as_slice(),
        width: picture.width() as usize,
        pitch: picture.width() as usize * 3,
        height: picture.height() as usize,
        format: turbojpeg::PixelFormat::RGB,
    };
    turbojpeg::compress(image, quality, turbojpeg::Subsamp::Sub2x2).unwrap().to_vec()
}

pub(crate) fn png(picture: impl Into<DynamicImage>) -> Vec<u8> {
    let mut bytes = Vec::new();
    picture
        .into()
        .write_to(&mut std::io::Cursor::new(&mut bytes), image::ImageFormat::Png)
        .unwrap();
    bytes
}

/// Puts a segment behind the first marker of a JPEG.
pub(crate) fn with_segment(jpeg: &[u8], marker: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u16 + 2).to_be_bytes();
    [&jpeg[..2], &[0xff, marker], &length, body, &jpeg[2..]].concat()
}

/// A little TIFF structure with some ASCII and short tags of the first directory.
pub(crate) fn exif(tags: &[(u16, ExifValue<'_>)]) -> Vec<u8> {
    let mut head = b"Exif\0\0II*\0\x08\0\0\0".to_vec();
    head.extend((tags.len() as u16).to_le_bytes());
    let mut data_at = 8 + 2 + tags.len() as u32 * 12 + 4;
    let mut data = Vec::new();
    for (tag, value) in tags {
        head.extend(tag.to_le_bytes());
        let (kind, count, bytes) = match value {
            ExifValue::Short(number) => (3_u16, 1, vec![*number as u8, (*number >> 8) as u8, 0, 0]),
            ExifValue::Text(text) => (2, text.len() as u32 + 1, [text.as_bytes(), b"\0"].concat()),
            ExifValue::Ratio(num, denom) => {
                (5, 1, [num.to_le_bytes(), denom.to_le_bytes()].concat())
            }
        };
        head.extend(kind.to_le_bytes());
        head.extend(u32::to_le_bytes(count));
        if bytes.len() <= 4 {
            head.extend(bytes.iter().copied().chain([0; 4]).take(4));
        } else {
            head.extend(data_at.to_le_bytes());
            data_at += bytes.len() as u32;
            data.extend(bytes);
        }
    }
    head.extend([0; 4]);
    head.extend(data);
    head
}

pub(crate) enum ExifValue<'a> {
    Short(u16),
    Text(&'a str),
    Ratio(u32, u32),
}

/// A JPEG that a viewer turns.
pub(crate) fn oriented(picture: &RgbImage, orientation: u16) -> Vec<u8> {
    with_segment(&jpeg(picture, 95), 0xe1, &exif(&[(0x0112, ExifValue::Short(orientation))]))
}

#[track_caller]
pub(crate) fn assert_near(actual: [u8; 3], expected: [u8; 3], tolerance: u8) {
    let is_near = actual
        .iter()
        .zip(expected)
        .all(|(actual, expected)| actual.abs_diff(expected) <= tolerance);
    assert!(is_near, "{actual:?} is not near {expected:?}");
}
