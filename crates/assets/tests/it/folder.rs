//! A folder of hostile and odd files: each becomes the right picture, or has a state and a reason; memory is bounded.

use std::sync::Arc;
use std::time::SystemTime;

use image::{DynamicImage, ImageBuffer, Rgb, RgbImage};
use tympan_assets::{
    AssetProcessor, AssetUpdateOutcome, DecoderProcessPool, ProcessingLimits, RenditionProfile,
};
use tympan_content::{Subtree, Value};

use crate::draw::{animation, ink};
use crate::hostile::bomb;
use crate::ingest::{assets, read, upload};
use crate::test_pictures::{assert_near, jpeg, options, oriented, photo, png};

const RED: [u8; 3] = [220, 30, 30];
/// What one process may take at its peak for all of these files, far under the limit of one picture.
const PEAK_MIB: u64 = 320;

/// What is expected of a file.
enum Expected {
    /// A web rendition of this size, with a color at its middle.
    Picture((u32, u32), Option<[u8; 3]>),
    /// The same with a warning that says this.
    Warned((u32, u32), &'static str),
    /// A failure whose reason says this.
    Failed(&'static str),
}
use Expected::{Failed, Picture, Warned};

fn folder() -> Vec<(&'static str, Vec<u8>, Expected)> {
    let whole = jpeg(&photo(1600, 1200), 90);
    let deep: ImageBuffer<Rgb<u16>, Vec<u16>> =
        ImageBuffer::from_fn(64, 48, |_, _| Rgb([65535, 257 * 100, 0]));
    let flat = |width, height| png(RgbImage::from_pixel(width, height, Rgb(RED)));
    let mut huge = jpeg(&photo(16, 16), 90);
    let at = huge.windows(2).position(|window| window == [0xff, 0xc0]).unwrap() + 5;
    huge[at..at + 4].copy_from_slice(&[0xff; 4]);
    vec![
        ("truncated.jpg", whole[..whole.len() / 2].to_vec(), Warned((1280, 960), "damaged")),
        ("header-only.jpg", whole[..30].to_vec(), Failed("header is truncated")),
        ("truncated.png", flat(300, 200)[..200].to_vec(), Warned((300, 200), "damaged")),
        ("bomb.png", bomb(), Failed("60000 x 60000 pixels; at most 200 million")),
        ("huge.jpg", huge, Failed("65535 x 65535 pixels")),
        ("large.png", flat(6000, 4000), Picture((1280, 853), Some(RED))),
        ("wide.png", flat(20_000, 1), Picture((1280, 1), Some(RED))),
        ("tall.png", flat(1, 20_000), Picture((1, 1280), Some(RED))),
        ("png-inside.jpg", flat(64, 48), Picture((64, 48), Some(RED))),
        ("text.png", b"just a text".to_vec(), Failed("is not an image of a known format")),
        ("empty.jpg", Vec::new(), Failed("is not an image of a known format")),
        ("ink.jpg", ink(), Picture((64, 64), None)),
        ("sixteen-bit.png", png(deep), Picture((64, 48), Some([255, 100, 0]))),
        ("animated.gif", animation(), Picture((20, 10), None)),
        ("turned.jpg", oriented(&photo(400, 200), 6), Picture((200, 400), None)),
    ]
}

/// Returns the rendition for the web.
fn web_of(assets: &AssetProcessor, tree: &Subtree) -> DynamicImage {
    let renditions = &tree.find_descendant("jcr:content/renditions").unwrap().children;
    let web = renditions.iter().find(|child| child.name.starts_with("cq5dam.web.")).unwrap();
    let data = &web.child("jcr:content").unwrap().properties["jcr:data"];
    let Some(Value::Binary(blob)) = data.first() else { panic!() };
    let opened = assets.repository().blobs().open(blob).unwrap().unwrap();
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut opened.into_reader(), &mut bytes).unwrap();
    image::load_from_memory(&bytes).unwrap()
}

/// Returns the most memory that a process has had, in MiB.
fn peak_of(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[test]
fn each_file_is_a_picture_or_says_why_not() {
    let plain = assets();
    let decoder_pool = Arc::new(DecoderProcessPool::new(options()));
    let assets = AssetProcessor::new(
        plain.repository().clone(),
        Arc::clone(&decoder_pool),
        RenditionProfile::default(),
        ProcessingLimits::default(),
    );
    let mut peak = 0;
    for (name, bytes, expected) in folder() {
        let asset = upload(&assets, &format!("/content/dam/{name}"), "", &bytes);
        let processed = assets.process_asset(&asset, SystemTime::UNIX_EPOCH).unwrap();
        let tree = read(&assets, &asset);
        let content = tree.find_descendant("jcr:content").unwrap();
        let state = content.text("dam:assetState");
        match (&expected, &processed) {
            (Failed(reason), AssetUpdateOutcome::Failed(found)) => {
                assert!(found.contains(reason), "{name}: {found}");
                let shown = (state, content.text("dam:failureReason"));
                assert_eq!(shown, (Some("failed"), Some(&**found)), "{name}");
            }
            (Picture(size, color), AssetUpdateOutcome::Processed { renditions: 4, warnings }) => {
                assert!(warnings.is_empty(), "{name}: {warnings:?}");
                assert_eq!(state, Some("processed"), "{name}");
                let web = web_of(&assets, &tree).to_rgb8();
                assert_eq!(web.dimensions(), *size, "{name}");
                if let Some(color) = color {
                    assert_near(web.get_pixel(size.0 / 2, size.1 / 2).0, *color, 4);
                }
            }
            (Warned(size, warning), AssetUpdateOutcome::Processed { renditions: 4, warnings }) => {
                assert!(warnings[0].contains(warning), "{name}: {warnings:?}");
                assert!(content.properties.contains_key("dam:processingWarnings"), "{name}");
                let web = web_of(&assets, &tree).to_rgb8();
                assert_eq!(web.dimensions(), *size, "{name}");
            }
            _ => panic!("{name}: {processed:?}"),
        }
        for process in decoder_pool.idle_process_ids() {
            let of_this = peak_of(process);
            if of_this > peak {
                println!("{name}: {of_this} MiB");
            }
            peak = peak.max(of_this);
        }
    }
    assert!(peak > 0 && peak <= PEAK_MIB, "a process took {peak} MiB");
}
