//! The rules of a correct rendition, one picture each.

use image::{DynamicImage, GrayImage, ImageBuffer, ImageFormat, Rgb, RgbImage, Rgba, RgbaImage};
use img_parts::png::PngChunk;
use tympan_assets::{FocalPoint, RenditionEncoding, ResizeMode};

use crate::test_pictures::{
    assert_near, jpeg, oriented, photo, png, render, render_image, request, size, with_segment,
};

const RED: [u8; 3] = [220, 20, 20];
const GREEN: [u8; 3] = [20, 200, 20];
const BLUE: [u8; 3] = [20, 20, 220];
const YELLOW: [u8; 3] = [220, 220, 20];

/// Red and green above, blue and yellow below.
fn quadrants(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        Rgb(match (x < width / 2, y < height / 2) {
            (true, true) => RED,
            (false, true) => GREEN,
            (true, false) => BLUE,
            (false, false) => YELLOW,
        })
    })
}

/// The colors of the four quadrants, by rows.
fn corners(picture: &DynamicImage) -> [[u8; 3]; 4] {
    let picture = picture.to_rgb8();
    let (right, low) = (picture.width() * 3 / 4, picture.height() * 3 / 4);
    let (left, high) = (picture.width() / 4, picture.height() / 4);
    [(left, high), (right, high), (left, low), (right, low)].map(|(x, y)| picture.get_pixel(x, y).0)
}

#[track_caller]
fn assert_corners(picture: &DynamicImage, expected: [[u8; 3]; 4]) {
    for (result, expected) in corners(picture).into_iter().zip(expected) {
        assert_near(result, expected, 12);
    }
}

#[test]
fn pictures_are_turned_upright() {
    // What a viewer shows of the quadrants for each number.
    for (orientation, expected) in [
        (1, [RED, GREEN, BLUE, YELLOW]),
        (2, [GREEN, RED, YELLOW, BLUE]),
        (3, [YELLOW, BLUE, GREEN, RED]),
        (4, [BLUE, YELLOW, RED, GREEN]),
        (5, [RED, BLUE, GREEN, YELLOW]),
        (6, [BLUE, RED, YELLOW, GREEN]),
        (7, [YELLOW, GREEN, BLUE, RED]),
        (8, [GREEN, YELLOW, RED, BLUE]),
    ] {
        let bytes = oriented(&quadrants(640, 320), orientation);
        let result = render(&bytes, &request(size(100, 100), RenditionEncoding::Png)).unwrap();
        let turned = if orientation >= 5 { size(320, 640) } else { size(640, 320) };
        assert_eq!(result.size, Some(turned), "{orientation}");
        let picture = image::load_from_memory(&result.renditions[0].bytes).unwrap();
        let expected_size = if orientation >= 5 { (50, 100) } else { (100, 50) };
        assert_eq!((picture.width(), picture.height()), expected_size, "{orientation}");
        assert_corners(&picture, expected);
    }
}

#[test]
fn never_enlarged_and_never_empty() {
    for (from, within, expected) in [
        (size(100, 60), size(1280, 1280), (100, 60)),
        (size(1, 3000), size(48, 48), (1, 48)),
        (size(20_000, 2), size(319, 319), (319, 1)),
        (size(1, 1), size(48, 48), (1, 1)),
    ] {
        let picture = photo(from.width, from.height);
        for bytes in [png(picture.clone()), jpeg(&picture, 90)] {
            let result = render_image(&bytes, within, RenditionEncoding::Png);
            assert_eq!((result.width(), result.height()), expected, "{from:?}");
        }
    }
}

/// A JPEG in ink: cyan on the left, half black with all of two inks on the right.
pub(crate) fn ink() -> Vec<u8> {
    // Adobe stores CMYK as its opposite, and the encoder writes Adobe's marker: 255 is no ink.
    let pixels: Vec<u8> = (0..64 * 64)
        .flat_map(|at| if at % 64 < 32 { [0, 255, 255, 255] } else { [255, 0, 0, 128] })
        .collect();
    let image = turbojpeg::Image {
        pixels: &*pixels,
        width: 64,
        pitch: 256,
        height: 64,
        format: turbojpeg::PixelFormat::CMYK,
    };
    let mut encoder = turbojpeg::Compressor::new().unwrap();
    encoder.set_quality(95).unwrap();
    encoder.set_subsamp(turbojpeg::Subsamp::None).unwrap();
    encoder.compress_to_vec(image).unwrap()
}

#[test]
fn ink_becomes_light() {
    let bytes = ink();
    assert!(bytes.windows(5).any(|window| window == b"Adobe"));
    let result = render_image(&bytes, size(64, 64), RenditionEncoding::Png).to_rgb8();
    assert_near(result.get_pixel(10, 32).0, [0, 255, 255], 6);
    assert_near(result.get_pixel(50, 32).0, [128, 0, 0], 6);
}

#[test]
fn grays_stay_grays() {
    let gray = GrayImage::from_fn(40, 40, |x, _| image::Luma([(x * 6) as u8]));
    let image = turbojpeg::Image {
        pixels: gray.as_raw().as_slice(),
        width: 40,
        pitch: 40,
        height: 40,
        format: turbojpeg::PixelFormat::GRAY,
    };
    let encoded = turbojpeg::compress(image, 95, turbojpeg::Subsamp::Gray).unwrap().to_vec();
    for bytes in [png(gray.clone()), encoded] {
        for encoding in
            [RenditionEncoding::Png, RenditionEncoding::Jpeg(90), RenditionEncoding::WebP(90)]
        {
            let result = render_image(&bytes, size(40, 40), encoding).to_rgb8();
            assert_near(result.get_pixel(20, 20).0, [120; 3], 5);
        }
    }
}

#[test]
fn sixteen_bits_become_eight() {
    let picture: ImageBuffer<Rgb<u16>, Vec<u16>> =
        ImageBuffer::from_fn(8, 8, |_, _| Rgb([65535, 257 * 100, 0]));
    let result = render_image(&png(picture), size(8, 8), RenditionEncoding::Png).to_rgb8();
    assert_eq!(result.get_pixel(3, 3).0, [255, 100, 0]);
}

#[test]
fn transparency_is_kept_or_becomes_white() {
    let picture = RgbaImage::from_fn(64, 64, |x, _| {
        if x < 32 { Rgba([0, 0, 0, 0]) } else { Rgba([200, 0, 0, 255]) }
    });
    let bytes = png(picture);
    for encoding in [RenditionEncoding::Png, RenditionEncoding::WebP(95)] {
        let result = render_image(&bytes, size(32, 32), encoding).to_rgba8();
        assert_eq!((result.get_pixel(4, 16).0[3], result.get_pixel(28, 16).0[3]), (0, 255));
        // What is transparent has no color that could bleed into the edge.
        assert!(result.get_pixel(20, 16).0[0] >= 190, "{:?}", result.get_pixel(20, 16));
    }
    let result = render_image(&bytes, size(32, 32), RenditionEncoding::Jpeg(95)).to_rgb8();
    assert_near(result.get_pixel(4, 16).0, [255; 3], 3);
    assert_near(result.get_pixel(28, 16).0, [200, 0, 0], 6);
}

/// Makes a PNG out of a header and the rows with their filter bytes.
fn raw_png(header: [u8; 13], more: &[([u8; 4], &[u8])], rows: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut packed, rows).unwrap();
    let chunk =
        |kind: [u8; 4], body: &[u8]| PngChunk::new(kind, bytes::Bytes::copy_from_slice(body));
    let mut bytes = b"\x89PNG\r\n\x1a\n".to_vec();
    chunk(*b"IHDR", &header).encoder().write_to(&mut bytes).unwrap();
    for (kind, body) in more {
        chunk(*kind, body).encoder().write_to(&mut bytes).unwrap();
    }
    chunk(*b"IDAT", &packed.finish().unwrap()).encoder().write_to(&mut bytes).unwrap();
    chunk(*b"IEND", b"").encoder().write_to(&mut bytes).unwrap();
    bytes
}

#[test]
fn palettes_and_their_transparency() {
    let palette: &[u8] = &[220, 20, 20, 20, 20, 220];
    let header = [0, 0, 0, 2, 0, 0, 0, 1, 8, 3, 0, 0, 0];
    let bytes = raw_png(header, &[(*b"PLTE", palette), (*b"tRNS", &[255, 0])], &[0, 0, 1]);
    let result = render_image(&bytes, size(8, 8), RenditionEncoding::Png).to_rgba8();
    assert_eq!((result.get_pixel(0, 0).0, result.get_pixel(1, 0).0[3]), ([220, 20, 20, 255], 0));
}

#[test]
fn interlaced_pictures() {
    // Adam7 of 2 x 2: the corner comes in the first pass, its neighbor in the sixth, the lower row in the seventh.
    let header = [0, 0, 0, 2, 0, 0, 0, 2, 8, 0, 0, 0, 1];
    let bytes = raw_png(header, &[], &[0, 10, 0, 20, 0, 30, 40]);
    let made = render_image(&bytes, size(8, 8), RenditionEncoding::Png).to_luma8();
    assert_eq!(made.as_raw().as_slice(), [10, 20, 30, 40]);
    let mut encoder = turbojpeg::Compressor::new().unwrap();
    encoder.set_progressive(true).unwrap();
    let picture = quadrants(320, 160);
    let image = turbojpeg::Image {
        pixels: picture.as_raw().as_slice(),
        width: 320,
        pitch: 960,
        height: 160,
        format: turbojpeg::PixelFormat::RGB,
    };
    let bytes = encoder.compress_to_vec(image).unwrap();
    let result = render(&bytes, &request(size(80, 80), RenditionEncoding::Png)).unwrap();
    assert!(result.metadata.contains(&(
        "dam:Progressive".to_owned(),
        tympan_assets::MetadataValue::Text("yes".to_owned())
    )));
    assert_corners(
        &image::load_from_memory(&result.renditions[0].bytes).unwrap(),
        [RED, GREEN, BLUE, YELLOW],
    );
}

/// A GIF of three frames: red, green, blue.
pub(crate) fn animation() -> Vec<u8> {
    let frame = |color: [u8; 3]| {
        image::Frame::new(RgbaImage::from_pixel(20, 10, Rgba([color[0], color[1], color[2], 255])))
    };
    let mut bytes = Vec::new();
    let mut encoder = image::codecs::gif::GifEncoder::new(&mut bytes);
    encoder.encode_frames([frame(RED), frame(GREEN), frame(BLUE)]).unwrap();
    drop(encoder);
    bytes
}

#[test]
fn of_an_animation_the_first_frame_counts() {
    let result = render_image(&animation(), size(48, 48), RenditionEncoding::Png).to_rgb8();
    assert_eq!((result.width(), result.height()), (20, 10));
    assert_near(result.get_pixel(10, 5).0, RED, 8);
}

#[test]
fn profiles_become_srgb() {
    let profile = moxcms::ColorProfile::new_display_p3().encode().unwrap();
    let picture = RgbImage::from_pixel(32, 32, Rgb([128, 64, 64]));
    let mut of_png = Vec::new();
    let mut encoder = image::codecs::png::PngEncoder::new(&mut of_png);
    image::ImageEncoder::set_icc_profile(&mut encoder, profile.clone()).unwrap();
    image::ImageEncoder::write_image(encoder, &picture, 32, 32, image::ExtendedColorType::Rgb8)
        .unwrap();
    let body = [b"ICC_PROFILE\0\x01\x01".to_vec(), profile].concat();
    let of_jpeg = with_segment(&jpeg(&picture, 98), 0xe2, &body);
    for bytes in [of_png, of_jpeg] {
        let result = render_image(&bytes, size(32, 32), RenditionEncoding::Png).to_rgb8();
        assert_near(result.get_pixel(16, 16).0, [138, 59, 62], 3);
    }
    // One that makes no sense is told and left aside.
    let broken = with_segment(&jpeg(&picture, 98), 0xe2, b"ICC_PROFILE\0\x01\x01noise");
    let result = render(&broken, &request(size(32, 32), RenditionEncoding::Png)).unwrap();
    assert!(result.warnings[0].contains("color profile"), "{:?}", result.warnings);
}

#[test]
fn other_formats() {
    let picture = DynamicImage::from(quadrants(200, 100));
    for format in [image::ImageFormat::Tiff, image::ImageFormat::Bmp, image::ImageFormat::WebP] {
        let mut bytes = Vec::new();
        picture.write_to(&mut std::io::Cursor::new(&mut bytes), format).unwrap();
        let result = render(&bytes, &request(size(50, 50), RenditionEncoding::Png)).unwrap();
        assert_eq!(result.media_type, format.to_mime_type());
        assert_corners(
            &image::load_from_memory(&result.renditions[0].bytes).unwrap(),
            [RED, GREEN, BLUE, YELLOW],
        );
    }
}

#[test]
fn drawings_are_drawn_without_what_they_link_to() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret.png");
    std::fs::write(&secret, png(RgbImage::from_pixel(50, 50, Rgb(GREEN)))).unwrap();
    let text = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' xmlns:xlink='http://www.w3.org/1999/xlink' width='400' height='200'>\
         <script>alert(1)</script><rect width='400' height='200' fill='rgb(20,20,220)'/>\
         <image xlink:href='{0}' width='400' height='200'/><image href='file://{0}' width='400' height='200'/></svg>",
        secret.display()
    );
    let result = render_image(text.as_bytes(), size(100, 100), RenditionEncoding::Png).to_rgba8();
    assert_eq!((result.width(), result.height()), (100, 50));
    assert_eq!(result.get_pixel(50, 25).0, [20, 20, 220, 255]);
}

#[test]
fn drawings_in_utf_16_and_packed_ones_are_drawn() {
    let text = "<?xml version='1.0' encoding='UTF-16'?><svg xmlns='http://www.w3.org/2000/svg' width='40' height='20'>\
                <rect width='40' height='20' fill='rgb(20,20,220)'/></svg>";
    let utf16: Vec<u8> =
        std::iter::once(0xfeff).chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, text.replace("UTF-16", "UTF-8").as_bytes()).unwrap();
    for bytes in [utf16, packed.finish().unwrap()] {
        let result = render_image(&bytes, size(100, 100), RenditionEncoding::Png).to_rgba8();
        assert_eq!((result.width(), result.height()), (40, 20));
        assert_eq!(result.get_pixel(20, 10).0, [20, 20, 220, 255]);
    }
}

#[test]
fn icons_are_drawn() {
    let picture = png(RgbImage::from_pixel(32, 24, Rgb(GREEN)));
    let mut icon = vec![0, 0, 1, 0, 1, 0, 32, 24, 0, 0, 1, 0, 24, 0];
    icon.extend(u32::try_from(picture.len()).unwrap().to_le_bytes());
    icon.extend(22_u32.to_le_bytes());
    icon.extend(picture);
    let result = render(&icon, &request(size(100, 100), RenditionEncoding::Png)).unwrap();
    assert_eq!((&*result.media_type, result.size), ("image/x-icon", Some(size(32, 24))));
    let made = image::load_from_memory(&result.renditions[0].bytes).unwrap().to_rgb8();
    assert_eq!(made.get_pixel(5, 5).0, GREEN);
}

#[test]
fn targa_pictures_are_drawn() {
    let picture = RgbImage::from_pixel(32, 24, Rgb(GREEN));
    let mut compressed = std::io::Cursor::new(Vec::new());
    DynamicImage::ImageRgb8(picture).write_to(&mut compressed, ImageFormat::Tga).unwrap();
    // The same picture without compression, from the bottom to the top.
    let mut plain = vec![0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 24, 0, 24, 0];
    let [red, green, blue] = GREEN;
    plain.extend([blue, green, red].repeat(32 * 24));
    for bytes in [compressed.into_inner(), plain] {
        let result = render(&bytes, &request(size(100, 100), RenditionEncoding::Png)).unwrap();
        assert_eq!((&*result.media_type, result.size), ("image/x-tga", Some(size(32, 24))));
        let made = image::load_from_memory(&result.renditions[0].bytes).unwrap().to_rgb8();
        assert_eq!(made.get_pixel(5, 5).0, GREEN);
    }
}

#[test]
fn smart_crop_keeps_the_focus() {
    let bytes = jpeg(&quadrants(800, 400), 95);
    let mut wanted = request(size(100, 100), RenditionEncoding::Png);
    wanted.renditions[0].fit = ResizeMode::Cover(FocalPoint { x: 0.95, y: 0.5 });
    let result = render(&bytes, &wanted).unwrap();
    let picture = image::load_from_memory(&result.renditions[0].bytes).unwrap();
    assert_eq!((picture.width(), picture.height()), (100, 100));
    assert_corners(&picture, [GREEN, GREEN, YELLOW, YELLOW]);
}
