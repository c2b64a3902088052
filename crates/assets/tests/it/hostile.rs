//! Files that are damaged, lie or attack: a picture with a warning, or a clear reason, and the decoder_pool goes on.

use image::RgbImage;
use tympan_assets::{
    AssetProcessingRequest, DecoderProcessPool, ProcessingLimits, RenditionEncoding, RenditionError,
};
use tympan_content::BlobContent;

use crate::test_pictures::{
    jpeg, options, photo, png, refusal, render, render_image, request, size,
};

fn web() -> AssetProcessingRequest {
    request(size(1280, 1280), RenditionEncoding::Jpeg(85))
}

#[test]
fn truncated_files_give_a_picture_and_a_warning() {
    let whole = jpeg(&photo(800, 600), 90);
    let half = &whole[..whole.len() / 2];
    let made = render(half, &web()).unwrap();
    assert!(made.warnings[0].contains("damaged"), "{:?}", made.warnings);
    let picture = image::load_from_memory(&made.renditions[0].bytes).unwrap().to_rgb8();
    let sound = render_image(&whole, size(1280, 1280), RenditionEncoding::Jpeg(85)).to_rgb8();
    assert_eq!(picture.dimensions(), (800, 600));
    // The upper part is there; what is missing is one gray.
    assert!(
        picture
            .get_pixel(400, 20)
            .0
            .iter()
            .zip(sound.get_pixel(400, 20).0)
            .all(|(a, b)| a.abs_diff(b) < 8)
    );
    assert!(picture.get_pixel(400, 590).0.iter().all(|color| color.abs_diff(128) < 12));
    // Of a header that is cut off nothing can be drawn.
    assert!(refusal(&whole[..30], &web()).contains("header is truncated"));
    let png = png(photo(300, 300));
    let made = render(&png[..png.len() / 2], &web()).unwrap();
    assert!(made.warnings[0].contains("damaged"), "{:?}", made.warnings);
}

/// A PNG of 60,000 x 60,000 pixels in 60 bytes.
pub(crate) fn bomb() -> Vec<u8> {
    let mut bomb = png(RgbImage::new(1, 1));
    bomb[16..24].copy_from_slice(&[0, 0, 0xea, 0x60, 0, 0, 0xea, 0x60]);
    // The header's checksum, which decoders hold it against.
    let sum = img_parts::png::PngChunk::new(*b"IHDR", bytes::Bytes::copy_from_slice(&bomb[16..29]));
    let mut chunk = Vec::new();
    sum.encoder().write_to(&mut chunk).unwrap();
    bomb[29..33].copy_from_slice(&chunk[chunk.len() - 4..]);
    bomb
}

#[test]
fn headers_that_promise_too_much_are_refused_before_anything_is_allocated() {
    let reason = refusal(&bomb(), &web());
    assert!(reason.contains("60000 x 60000 pixels; at most 200 million"), "{reason}");

    let mut huge = jpeg(&photo(16, 16), 90);
    let at = huge.windows(2).position(|window| window == [0xff, 0xc0]).unwrap() + 5;
    huge[at..at + 4].copy_from_slice(&[0xff; 4]);
    let reason = refusal(&huge, &web());
    assert!(reason.contains("65535 x 65535"), "{reason}");

    let mut gif = b"GIF89a\xff\xff\xff\xff\0\0\0".to_vec();
    gif.extend(b",\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;");
    let reason = refusal(&gif, &web());
    assert!(reason.contains("65535 x 65535"), "{reason}");
}

#[test]
fn memory_is_promised_by_the_header_too() {
    let limits = ProcessingLimits { memory: 1 << 20, ..ProcessingLimits::default() };
    let reason = refusal(&png(photo(1000, 1000)), &AssetProcessingRequest { limits, ..web() });
    assert!(reason.contains("at most 1 MiB"), "{reason}");
    // The same pixels as a JPEG are decoded at a fraction of their size.
    let small = AssetProcessingRequest {
        limits: ProcessingLimits { memory: 1 << 20, ..limits },
        ..request(size(48, 48), RenditionEncoding::Png)
    };
    assert!(render(&jpeg(&photo(1000, 1000), 90), &small).is_ok());
}

#[test]
fn names_prove_nothing() {
    let png = png(photo(50, 40));
    let made = render(&png, &AssetProcessingRequest { declared: "image/jpeg".to_owned(), ..web() })
        .unwrap();
    assert_eq!((&*made.media_type, made.renditions.len()), ("image/png", 1));
    let reason = refusal(
        b"#!/bin/sh\necho",
        &AssetProcessingRequest { declared: "image/jpeg".to_owned(), ..web() },
    );
    assert!(
        reason.contains("is declared as image/jpeg, but its content is not an image"),
        "{reason}"
    );
    let reason =
        refusal(b"", &AssetProcessingRequest { declared: "image/png".to_owned(), ..web() });
    assert!(reason.contains("is not an image"), "{reason}");
    // Not called a picture, and none: there is nothing to draw, and nothing wrong.
    let made = render(
        b"some text",
        &AssetProcessingRequest { declared: "text/plain".to_owned(), ..web() },
    )
    .unwrap();
    assert_eq!((made.renditions.len(), &*made.media_type), (0, ""));
}

#[test]
fn noise_behind_a_right_beginning_is_refused() {
    let noise: Vec<u8> =
        (0..5000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for magic in [
        &b"\xff\xd8\xff\xe0"[..],
        b"\x89PNG\r\n\x1a\n",
        b"GIF89a",
        b"RIFF\x10\0\0\0WEBPVP8 ",
        b"II*\0\x08\0\0\0",
        b"BM\0\0\0\0\0\0\0\0",
        b"%PDF-1.4\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'>",
    ] {
        let reason = refusal(&[magic, &noise].concat(), &web());
        assert!(!reason.is_empty(), "{}", String::from_utf8_lossy(magic));
    }
}

#[test]
fn drawings_that_multiply_end() {
    let mut text = "<svg xmlns='http://www.w3.org/2000/svg' width='10' height='10'><g id='a0'><rect width='1' height='1'/></g>".to_owned();
    for level in 1..40 {
        let before = level - 1;
        text.push_str(&format!(
            "<g id='a{level}'><use href='#a{before}'/><use href='#a{before}'/></g>"
        ));
    }
    text.push_str("</svg>");
    let limits = ProcessingLimits { seconds: 4, memory: 256 << 20, ..ProcessingLimits::default() };
    let reason = refusal(text.as_bytes(), &AssetProcessingRequest { limits, ..web() });
    assert!(
        ["rendering it", "rendered it was killed by signal", "not a readable SVG"]
            .iter()
            .any(|expected| reason.contains(expected)),
        "{reason}"
    );
    // The decoder_pool draws the next one.
    assert!(render(&png(photo(10, 10)), &web()).is_ok());
}

#[test]
fn a_process_that_is_killed_is_replaced() {
    let decoder_pool = DecoderProcessPool::new(options());
    let bytes = bytes::Bytes::from(png(photo(30, 30)));
    let open = || Ok(BlobContent::Bytes(bytes.clone()));
    for _ in 0..3 {
        decoder_pool.render_file(&open, &web()).unwrap();
        for process in decoder_pool.idle_process_ids() {
            rustix::process::kill_process(
                rustix::process::Pid::from_raw(process as i32).unwrap(),
                rustix::process::Signal::KILL,
            )
            .unwrap();
        }
    }
}

/// Service managers and terminals end all processes together: what was being drawn is drawn at the next start.
#[test]
fn a_process_that_somebody_ends_is_no_fault_of_the_file() {
    let bytes = bytes::Bytes::from(png(photo(30, 30)));
    for signal in ["HUP", "INT", "TERM", "KILL"] {
        let mut options = options();
        // A test that was started with `nohup` or in the background passes on that signals are ignored.
        options.process_command.program = "/usr/bin/env".into();
        let script = format!("IFS= read -r line; kill -s {signal} $$; sleep 60");
        let shell = ["--default-signal", "/bin/sh", "-c", &script];
        options.process_command.arguments = shell.map(Into::into).into();
        let result = DecoderProcessPool::new(options)
            .render_file(&|| Ok(BlobContent::Bytes(bytes.clone())), &web());
        assert!(matches!(result, Err(RenditionError::Killed)), "{signal}: {result:?}");
    }
}

#[test]
fn a_program_that_cannot_be_started_is_no_fault_of_the_file() {
    let mut options = options();
    options.process_command.program = "/nonexistent/program".into();
    let open = || Ok(BlobContent::Bytes(bytes::Bytes::from_static(b"x")));
    assert!(matches!(
        DecoderProcessPool::new(options).render_file(&open, &web()),
        Err(RenditionError::System { .. })
    ));
}

#[test]
fn processes_are_used_again() {
    let decoder_pool = DecoderProcessPool::new(options());
    let bytes = bytes::Bytes::from(png(photo(30, 30)));
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..5 {
        decoder_pool.render_file(&|| Ok(BlobContent::Bytes(bytes.clone())), &web()).unwrap();
        seen.extend(decoder_pool.idle_process_ids());
    }
    assert_eq!(seen.len(), 1);
}

/// A process that stands still has no processor time: the machine is to blame, or whoever stopped it.
#[test]
fn a_process_that_stands_still_is_no_fault_of_the_file() {
    let bytes = bytes::Bytes::from(png(photo(30, 30)));
    let open = || Ok(BlobContent::Bytes(bytes.clone()));
    let limits = ProcessingLimits { seconds: 2, ..ProcessingLimits::default() };
    let mut options = options();
    options.process_command.program = "/bin/sh".into();
    options.process_command.arguments = ["-c".into(), "kill -s STOP $$".into()].into();
    let result = DecoderProcessPool::new(options)
        .render_file(&open, &AssetProcessingRequest { limits, ..web() });
    assert!(
        matches!(result, Err(RenditionError::CpuStarved { limit: 2, cpu_seconds: 0 })),
        "{result:?}"
    );
}
