//! Formats that other programs read and write: with real files, and where the programs are missing.

use std::path::{Path, PathBuf};
use std::process::Command;

use image::DynamicImage;
use tympan_assets::{
    AssetProcessingRequest, AssetProcessingResult, DecoderProcessPool, MetadataValue,
    RenditionEncoding, RenditionError, RenditionSpec, ResizeMode,
};
use tympan_content::BlobContent;

use crate::test_pictures::{
    assert_near, jpeg, options, photo, png, refusal, render, request, size, with_segment,
};

fn web() -> AssetProcessingRequest {
    request(size(300, 300), RenditionEncoding::Png)
}

fn picture_of(result: &AssetProcessingResult) -> DynamicImage {
    assert_eq!(result.renditions.len(), 1, "{:?}", result.warnings);
    image::load_from_memory(&result.renditions[0].bytes).unwrap()
}

/// Draws on a machine that has none of the programs.
fn render_without_tools(
    bytes: &[u8],
    request: &AssetProcessingRequest,
) -> Result<AssetProcessingResult, RenditionError> {
    let decoder_pool = DecoderProcessPool::new(tympan_assets::DecoderPoolOptions {
        tool_search_path: None,
        ..options()
    });
    let bytes = bytes::Bytes::copy_from_slice(bytes);
    decoder_pool.render_file(&|| Ok(BlobContent::Bytes(bytes.clone())), request)
}

/// Tells whether a program is there, aloud if not.
fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !is_there {
        println!("skipped: `{program}` is not installed");
    }
    is_there
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
}

/// Two pages of 200 x 100: the first is red, the second is blue.
pub(crate) fn pdf() -> Vec<u8> {
    let page = |contents: u32| {
        format!("<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 100] /Contents {contents} 0 R >>")
    };
    let fill = |color: &str| {
        let text = format!("{color} rg 0 0 200 100 re f");
        format!("<< /Length {} >>\nstream\n{text}\nendstream", text.len())
    };
    let objects = [
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        "<< /Type /Pages /Kids [3 0 R 4 0 R] /Count 2 >>".to_owned(),
        page(5),
        page(6),
        fill("1 0 0"),
        fill("0 0 1"),
    ];
    let mut text = "%PDF-1.4\n".to_owned();
    let mut places = Vec::new();
    for (number, object) in (1..).zip(&objects) {
        places.push(text.len());
        text.push_str(&format!("{number} 0 obj\n{object}\nendobj\n"));
    }
    let table = text.len();
    text.push_str(&format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1));
    for place in places {
        text.push_str(&format!("{place:010} 00000 n \n"));
    }
    text.push_str(&format!(
        "trailer\n<< /Size {} /Root 1 0 R >>\nstartxref\n{table}\n%%EOF\n",
        objects.len() + 1
    ));
    text.into_bytes()
}

#[test]
fn of_a_document_the_first_page_is_drawn() {
    if !has("pdftoppm") {
        return;
    }
    let result = render(&pdf(), &web()).unwrap();
    assert_eq!((&*result.media_type, result.size), ("application/pdf", None));
    let picture = picture_of(&result).to_rgb8();
    assert_eq!(picture.dimensions(), (300, 150));
    assert_near(picture.get_pixel(150, 75).0, [255, 0, 0], 2);
    // A damaged one is a document without a preview, or not readable at all: in no case a failed process.
    let whole = pdf();
    match render(&whole[..whole.len() / 2], &web()) {
        Ok(result) => assert!(result.renditions.len() == 1 || !result.warnings.is_empty()),
        Err(error) => assert!(matches!(error, RenditionError::File(_)), "{error:?}"),
    }
}

#[test]
fn heif_and_avif_are_read() {
    if !has("vips") || !has("vipsthumbnail") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    let original = photo(240, 160);
    std::fs::write(file("a.png"), png(original.clone())).unwrap();
    for (name, media_type) in [("a.avif", "image/avif"), ("a.heic", "image/heif")] {
        let saved = Command::new("vips").arg("copy").args([file("a.png"), file(name)]).output();
        if !saved.unwrap().status.success() {
            println!("skipped: `vips` here writes no {name}");
            continue;
        }
        let bytes = std::fs::read(file(name)).unwrap();
        let result = render(&bytes, &web()).unwrap();
        assert_eq!(result.media_type, media_type);
        let picture = picture_of(&result).to_rgb8();
        assert_eq!(picture.dimensions(), (240, 160));
        for (x, y) in [(20, 20), (120, 80), (200, 140)] {
            assert_near(picture.get_pixel(x, y).0, original.get_pixel(x, y).0, 40);
        }
        // Of what is no picture behind a right beginning nothing can be drawn.
        let noise = [&bytes[..32], &[0x55; 4000]].concat();
        assert!(refusal(&noise, &web()).contains("vipsthumbnail"), "{name}");
    }
}

/// A picture of one color as Photoshop stores it, without layers.
fn photoshop(width: u32, height: u32, color: [u8; 3]) -> Vec<u8> {
    let mut bytes = b"8BPS\0\x01\0\0\0\0\0\0\0\x03".to_vec();
    bytes.extend([height, width].map(u32::to_be_bytes).concat());
    // 8 bits of red, green and blue; no palette, no resources, no layers; not compressed.
    bytes.extend(*b"\0\x08\0\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    for channel in color {
        bytes.resize(bytes.len() + (width * height) as usize, channel);
    }
    bytes
}

/// A TIFF of one color in CIE L*a*b*.
fn lab_tiff(side: u16, color: [u8; 3]) -> Vec<u8> {
    let pixels = u32::from(side) * u32::from(side) * 3;
    let entries: [(u16, u16, u32); 9] = [
        (256, 3, side.into()),
        (257, 3, side.into()),
        (258, 3, 8),
        (259, 3, 1),
        (262, 3, 8),
        (273, 4, 8),
        (277, 3, 3),
        (278, 3, side.into()),
        (279, 4, pixels),
    ];
    let mut bytes = b"II*\0".to_vec();
    bytes.extend((8 + pixels).to_le_bytes());
    bytes.extend(color.repeat(usize::from(side) * usize::from(side)));
    bytes.extend(9_u16.to_le_bytes());
    for (tag, kind, value) in entries {
        bytes.extend([tag.to_le_bytes(), kind.to_le_bytes()].concat());
        bytes.extend([1, value].map(u32::to_le_bytes).concat());
    }
    bytes.extend([0; 4]);
    bytes
}

#[test]
fn photoshop_and_unusual_tiff_are_read() {
    if !has("vipsthumbnail") {
        return;
    }
    let result = render(&photoshop(240, 160, [200, 40, 40]), &web()).unwrap();
    assert_eq!(result.media_type, "image/vnd.adobe.photoshop");
    assert_eq!(result.size, Some(size(240, 160)));
    let picture = picture_of(&result).to_rgb8();
    assert_eq!(picture.dimensions(), (240, 160));
    assert_near(picture.get_pixel(100, 80).0, [200, 40, 40], 12);
    let result = render(&lab_tiff(120, [128, 0, 0]), &web()).unwrap();
    assert_eq!((&*result.media_type, result.size), ("image/tiff", Some(size(120, 120))));
    let picture = picture_of(&result).to_rgb8();
    assert_eq!(picture.dimensions(), (120, 120));
    assert_near(picture.get_pixel(60, 60).0, [119, 119, 119], 12);
    // What no program reads is refused as before.
    let whole = lab_tiff(120, [128, 0, 0]);
    assert!(refusal(&whole[..200], &web()).contains("not a readable TIFF"));
}

#[test]
fn headers_give_the_size_where_no_program_draws() {
    let result = render_without_tools(&photoshop(2400, 16, [0; 3]), &web()).unwrap();
    assert_eq!(result.size, Some(size(2400, 16)));
    assert!(result.metadata.contains(&("tiff:ImageWidth".to_owned(), MetadataValue::Long(2400))));
    let huge = photoshop(1, 1, [0; 3]);
    let huge = [&huge[..14], &[0, 1, 0, 0, 0, 1, 0, 0], &huge[22..]].concat();
    let refused = render_without_tools(&huge, &web()).unwrap_err().to_string();
    assert!(refused.contains("65536 x 65536"), "{refused}");
}

/// Makes a film of one color, so many tenths of a second long.
fn film(folder: &Path, name: &str, tenths: u32) -> PathBuf {
    let file = folder.join(name);
    let source = format!("color=c=0x2060c0:s=320x180:r=10:d={}", f64::from(tenths) / 10.0);
    let target = file.to_str().unwrap();
    run("ffmpeg", &["-v", "error", "-f", "lavfi", "-i", &source, "-y", target]);
    file
}

#[test]
fn of_a_film_a_moment_is_drawn() {
    if !has("ffmpeg") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, tenths, media_type) in [
        ("a.mp4", 20, "video/mp4"),
        ("short.mp4", 3, "video/mp4"),
        ("a.mov", 20, "video/quicktime"),
        ("a.mkv", 20, "video/x-matroska"),
        ("a.webm", 20, "video/webm"),
        ("a.avi", 20, "video/x-msvideo"),
    ] {
        let bytes = std::fs::read(film(dir.path(), name, tenths)).unwrap();
        let result = render(&bytes, &web()).unwrap();
        assert_eq!(result.media_type, media_type, "{name}");
        let picture = picture_of(&result).to_rgb8();
        assert_eq!(picture.dimensions(), (300, 169), "{name}");
        assert_near(picture.get_pixel(150, 80).0, [0x20, 0x60, 0xc0], 12);
        // One that ends early is still a film, with or without a picture.
        let made = render(&bytes[..bytes.len() / 3], &web()).unwrap();
        assert!(made.renditions.len() == 1 || made.warnings[0].contains("no preview"), "{name}");
    }
}

/// An element of EBML with a length of four bytes.
fn element(number: &[u8], content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap() | 0x1000_0000;
    [number, &length.to_be_bytes(), content].concat()
}

#[test]
fn of_a_webm_its_header_tells_kind_and_size() {
    let head = element(b"\x1a\x45\xdf\xa3", b"\x42\x86\x81\x01\x42\x82\x84webm\x42\x87\x81\x02");
    let sides = [element(b"\xb0", &[0x02, 0x80]), element(b"\xba", &[0x01, 0x68])].concat();
    let track = element(b"\xae", &element(b"\xe0", &sides));
    let segment = element(b"\x18\x53\x80\x67", &element(b"\x16\x54\xae\x6b", &track));
    let film = [head, segment].concat();
    let wanted = AssetProcessingRequest { metadata: true, ..web() };
    let result = render_without_tools(&film, &wanted).unwrap();
    assert_eq!(result.media_type, "video/webm");
    assert_eq!(result.size, Some(size(640, 360)));
    let width = result.metadata.iter().find(|(name, _)| name == "tiff:ImageWidth");
    assert!(width.is_some(), "{:?}", result.metadata);
    assert!(result.renditions.is_empty());
    assert!(result.warnings[0].contains("`ffmpeg` is not installed"), "{result:?}");
    // Without its tracks it is one, too; and what another program makes of it does not matter.
    let cut = render_without_tools(&film[..40], &wanted).unwrap();
    assert_eq!((&*cut.media_type, cut.size), ("video/webm", None));
}

#[test]
fn avif_is_written() {
    let rendition = |name: &str, encoding| RenditionSpec {
        name: name.to_owned(),
        within: size(160, 160),
        fit: ResizeMode::Inside,
        encoding,
    };
    let wanted = AssetProcessingRequest {
        renditions: vec![
            rendition("a.avif", RenditionEncoding::Avif(60)),
            rendition("a.webp", RenditionEncoding::WebP(80)),
        ],
        ..web()
    };
    // Where the program is missing, the others are made, and a warning says why.
    let bytes = jpeg(&photo(320, 200), 90);
    let result = render_without_tools(&bytes, &wanted).unwrap();
    let names: Vec<&str> = result.renditions.iter().map(|rendition| &*rendition.name).collect();
    assert_eq!(names, ["a.webp"]);
    assert!(result.warnings[0].contains("`avifenc` is not installed"), "{result:?}");
    if !has("avifenc") {
        return;
    }
    let result = render(&bytes, &wanted).unwrap();
    assert_eq!((result.renditions.len(), result.warnings.len()), (2, 0));
    let avif = &result.renditions[0];
    assert_eq!((&*avif.media_type, &avif.bytes[4..12]), ("image/avif", &b"ftypavif"[..]));
    assert!(avif.bytes.len() < bytes.len());
}

#[test]
fn a_missing_program_is_said_and_fails_nothing() {
    let brand = |brand: &[u8]| [&b"\0\0\0\x18ftyp"[..], brand, &[0; 40]].concat();
    for (bytes, media_type, program) in [
        (pdf(), "application/pdf", "pdftoppm"),
        (brand(b"isom"), "video/mp4", "ffmpeg"),
        (brand(b"qt  "), "video/quicktime", "ffmpeg"),
        (brand(b"heic"), "image/heif", "vipsthumbnail"),
        (brand(b"avif"), "image/avif", "vipsthumbnail"),
    ] {
        let result = render_without_tools(&bytes, &web()).unwrap();
        assert_eq!((&*result.media_type, result.renditions.len()), (media_type, 0));
        let expected = format!("`{program}` is not installed");
        assert!(result.warnings[0].contains(&expected), "{:?}", result.warnings);
        // Who wants no pictures misses nothing.
        let plain = AssetProcessingRequest { renditions: Vec::new(), ..web() };
        assert!(render_without_tools(&bytes, &plain).unwrap().warnings.is_empty());
    }
    // What is drawn here needs no program.
    let sound = with_segment(&jpeg(&photo(40, 30), 90), 0xfe, b"a comment");
    assert!(render_without_tools(&sound, &web()).unwrap().warnings.is_empty());
}
