//! Renditions beside those of libvips: the same picture to the eye, upright, in the same colors.

use std::path::Path;
use std::process::Command;

use image::{GrayImage, RgbImage};
use tympan_assets::RenditionEncoding;

use crate::test_pictures::{jpeg, oriented, photo, png, render_image, size};

/// The mean structural similarity of two pictures of one size, in windows of 8 by 8.
fn similarity(left: &GrayImage, right: &GrayImage) -> f64 {
    const WINDOW: u32 = 8;
    let (c1, c2) = ((0.01_f64 * 255.0).powi(2), (0.03_f64 * 255.0).powi(2));
    let window = WINDOW.min(left.width()).min(left.height());
    let (mut sum, mut count) = (0.0, 0.0);
    for top in (0..=left.height() - window).step_by(4) {
        for start in (0..=left.width() - window).step_by(4) {
            let at = |picture: &GrayImage, x: u32, y: u32| {
                f64::from(picture.get_pixel(start + x, top + y).0[0])
            };
            let pairs: Vec<(f64, f64)> = (0..window)
                .flat_map(|y| (0..window).map(move |x| (x, y)))
                .map(|(x, y)| (at(left, x, y), at(right, x, y)))
                .collect();
            let number = pairs.len() as f64;
            let mean = |of: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / number;
            let (a, b) = (mean(&|pair| pair.0), mean(&|pair| pair.1));
            let (aa, bb) = (mean(&|pair| (pair.0 - a).powi(2)), mean(&|pair| (pair.1 - b).powi(2)));
            let ab = mean(&|pair| (pair.0 - a) * (pair.1 - b));
            sum += (2.0 * a * b + c1) * (2.0 * ab + c2) / ((a * a + b * b + c1) * (aa + bb + c2));
            count += 1.0;
        }
    }
    sum / count
}

fn mean_color(picture: &RgbImage) -> [f64; 3] {
    let number = f64::from(picture.width() * picture.height());
    let sum =
        |channel: usize| picture.pixels().map(|pixel| f64::from(pixel.0[channel])).sum::<f64>();
    [0, 1, 2].map(|channel| sum(channel) / number)
}

fn by_vips(file: &Path, within: &str) -> Option<RgbImage> {
    let target = file.with_extension("vips.png");
    let arguments = ["-s", within, "-o"];
    let status =
        Command::new("vipsthumbnail").arg(file).args(arguments).arg(&target).status().ok()?;
    assert!(status.success());
    Some(image::open(target).unwrap().into_rgb8())
}

#[test]
fn renditions_look_like_those_of_libvips() {
    let folder = tempfile::tempdir().unwrap();
    let grain = |mut picture: RgbImage| {
        for (at, pixel) in picture.pixels_mut().enumerate() {
            let noise = (at as u32).wrapping_mul(2_654_435_761) >> 28;
            pixel.0.iter_mut().for_each(|color| *color = color.saturating_add(noise as u8));
        }
        picture
    };
    let files = [
        ("large.jpg", jpeg(&photo(3000, 2000), 90)),
        ("grain.jpg", jpeg(&grain(photo(2400, 1600)), 90)),
        ("upright.jpg", oriented(&photo(1600, 900), 6)),
        ("small.jpg", jpeg(&photo(500, 700), 95)),
        ("a.png", png(photo(1500, 1100))),
    ];
    for (name, bytes) in files {
        let file = folder.path().join(name);
        std::fs::write(&file, &bytes).unwrap();
        for side in [1280, 319, 140, 48] {
            let Some(theirs) = by_vips(&file, &format!("{side}x{side}>")) else {
                eprintln!(
                    "SKIPPED: `vipsthumbnail` (libvips-tools) is not installed; renditions are not compared"
                );
                return;
            };
            let ours = render_image(&bytes, size(side, side), RenditionEncoding::Png).into_rgb8();
            assert_eq!(ours.dimensions(), theirs.dimensions(), "{name} {side}");
            let gray = |picture: &RgbImage| image::imageops::grayscale(picture);
            let found = similarity(&gray(&ours), &gray(&theirs));
            assert!(found >= 0.98, "{name} at {side}: {found:.4}");
            for (ours, theirs) in mean_color(&ours).into_iter().zip(mean_color(&theirs)) {
                assert!((ours - theirs).abs() < 2.0, "{name} at {side}: {ours} {theirs}");
            }
        }
    }
}
