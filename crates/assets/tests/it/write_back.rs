//! Metadata that goes back into the file.

use std::time::{Duration, SystemTime};

use tympan_assets::{AssetProcessor, AssetUpdateOutcome, WriteBackOutcome, needs_processing};
use tympan_content::{NodePath, Property, Subtree, Value, ValueType};

use crate::ingest::{assets, path, read, upload};
use crate::test_pictures::{jpeg, photo, png};

pub(crate) fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

pub(crate) fn describe(assets: &AssetProcessor, asset: &NodePath, title: &str) {
    let mut session = assets.repository().session("ann").unwrap();
    let metadata = path(&format!("{asset}/jcr:content/metadata"));
    let subjects = ["one", "two"].map(|subject| Value::String(subject.to_owned()));
    session.set_property(&metadata, "dc:title", Property::text(title)).unwrap();
    session
        .set_property(&metadata, "dc:subject", Property::List(ValueType::String, subjects.into()))
        .unwrap();
    session.set_property(&metadata, "mytitle", Property::text("no namespace")).unwrap();
    session.commit("describe", at(3)).unwrap();
}

pub(crate) fn original(assets: &AssetProcessor, asset: &Subtree) -> Vec<u8> {
    let resource = asset.find_descendant("jcr:content/renditions/original/jcr:content").unwrap();
    let Some(Value::Binary(blob)) = resource.properties["jcr:data"].first() else { panic!() };
    let mut bytes = Vec::new();
    let opened = assets.repository().blobs().open(blob).unwrap().unwrap();
    std::io::Read::read_to_end(&mut opened.into_reader(), &mut bytes).unwrap();
    bytes
}

#[test]
fn metadata_goes_into_the_file_and_comes_out_again() {
    for (name, bytes) in [("a.jpg", jpeg(&photo(60, 40), 90)), ("a.png", png(photo(60, 40)))] {
        let assets = assets();
        let asset = upload(&assets, &format!("/content/dam/{name}"), "", &bytes);
        assets.process_asset(&asset, at(2)).unwrap();
        describe(&assets, &asset, "A <title> & \"more\"");
        let written = assets.write_back(&asset, at(4)).unwrap();
        assert_eq!(
            written,
            WriteBackOutcome::Written(vec!["dc:subject".to_owned(), "dc:title".to_owned()])
        );
        let tree = read(&assets, &asset);
        let new = original(&assets, &tree);
        assert!(!String::from_utf8_lossy(&new).contains("no namespace"));
        // The picture is the same, to the last pixel.
        let pixels = |bytes: &[u8]| image::load_from_memory(bytes).unwrap().into_rgb8();
        assert_eq!(pixels(&new), pixels(&bytes));
        // It makes no new work, neither for renditions nor for another write-back.
        let node = assets.repository().snapshot().unwrap().node(&asset).unwrap().unwrap();
        assert!(!needs_processing(&node).unwrap());
        assert_eq!(assets.write_back(&asset, at(5)).unwrap(), WriteBackOutcome::Unchanged);
        // Elsewhere, the file tells its title.
        let other = upload(&assets, "/content/dam/other", "", &new);
        assert!(matches!(
            assets.process_asset(&other, at(6)).unwrap(),
            AssetUpdateOutcome::Processed { .. }
        ));
        let other = read(&assets, &other);
        let metadata = other.find_descendant("jcr:content/metadata").unwrap();
        assert_eq!(metadata.text("dc:title"), Some("A <title> & \"more\""));
        assert_eq!(metadata.properties["dc:subject"].values().len(), 2);
        assert_eq!(
            metadata.text("dam:sha1"),
            tree.find_descendant("jcr:content/metadata").unwrap().text("dam:sha1")
        );
    }
}

#[test]
fn a_second_write_back_replaces_the_first() {
    let assets = assets();
    let asset = upload(&assets, "/content/dam/a.jpg", "", &jpeg(&photo(60, 40), 90));
    for (turn, title) in ["first", "second"].into_iter().enumerate() {
        describe(&assets, &asset, title);
        assert!(matches!(
            assets.write_back(&asset, at(4 + turn as u64)).unwrap(),
            WriteBackOutcome::Written(_)
        ));
    }
    let bytes = original(&assets, &read(&assets, &asset));
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("second") && !text.contains("first"));
    assert_eq!(text.matches("W5M0MpCehiHzreSzNTczkc9d").count(), 1);
}

/// A TIFF of one pixel row, with a second directory behind, as scanners write them.
fn tiff(is_little: bool) -> Vec<u8> {
    let short = |n: u16| if is_little { n.to_le_bytes() } else { n.to_be_bytes() };
    let long = |n: u32| if is_little { n.to_le_bytes() } else { n.to_be_bytes() };
    let mut out = Vec::from(if is_little { *b"II*\0" } else { *b"MM\0*" });
    out.extend(long(8 + 12));
    out.extend([10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120]);
    let entry = |tag: u16, kind: u16, value: u32| {
        let mut entry = Vec::from(short(tag));
        entry.extend(short(kind));
        entry.extend(long(1));
        if kind == 3 {
            entry.extend(short(u16::try_from(value).unwrap()));
            entry.extend([0, 0]);
        } else {
            entry.extend(long(value));
        }
        entry
    };
    let entries = [
        entry(256, 3, 4),
        entry(257, 3, 3),
        entry(258, 3, 8),
        entry(259, 3, 1),
        entry(262, 3, 1),
        entry(273, 4, 8),
        entry(277, 3, 1),
        entry(278, 3, 3),
        entry(279, 4, 12),
        entry(33432, 4, 0),
    ];
    out.extend(short(entries.len() as u16));
    entries.iter().for_each(|entry| out.extend(entry));
    out.extend(long(0));
    out
}

fn webp(is_lossless: bool) -> Vec<u8> {
    let picture = photo(60, 40);
    let encoder = webp::Encoder::from_rgb(picture.as_raw(), 60, 40);
    if is_lossless { encoder.encode_lossless().to_vec() } else { encoder.encode(90.0).to_vec() }
}

/// Files of all kinds that take metadata, by name.
fn files() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("a.jpg", jpeg(&photo(60, 40), 90)),
        ("exif.jpg", crate::test_pictures::oriented(&photo(60, 40), 1)),
        ("a.png", png(photo(60, 40))),
        ("little.tif", tiff(true)),
        ("big.tif", tiff(false)),
        ("lossy.webp", webp(false)),
        ("lossless.webp", webp(true)),
    ]
}

/// Returns how many bytes two files have in common at their beginnings and ends, at most the shorter one's.
fn common(left: &[u8], right: &[u8]) -> usize {
    let head = left.iter().zip(right).take_while(|(left, right)| left == right).count();
    let (left, right) = (&left[head..], &right[head..]);
    head + left
        .iter()
        .rev()
        .zip(right.iter().rev())
        .take_while(|(left, right)| left == right)
        .count()
}

#[test]
fn every_other_byte_stays() {
    for (name, bytes) in files() {
        let assets = assets();
        let asset = upload(&assets, &format!("/content/dam/{name}"), "", &bytes);
        describe(&assets, &asset, "first");
        assert!(
            matches!(assets.write_back(&asset, at(4)).unwrap(), WriteBackOutcome::Written(_)),
            "{name}"
        );
        let first = original(&assets, &read(&assets, &asset));
        let pixels = |bytes: &[u8]| image::load_from_memory(bytes).unwrap().into_rgb8();
        assert_eq!(pixels(&first), pixels(&bytes), "{name}");
        match name.rsplit('.').next().unwrap() {
            // One part is added, and nothing else differs.
            "jpg" | "png" => assert_eq!(common(&bytes, &first), bytes.len(), "{name}"),
            // Its head tells where the first directory is; all else stands where it stood.
            "tif" => assert_eq!(bytes[8..], first[8..bytes.len()], "{name}"),
            // Its head tells how long it is; the extended header goes before the picture, the packet behind.
            _ => {
                assert!(first.windows(bytes.len() - 12).any(|part| part == &bytes[12..]), "{name}")
            }
        }
        // A packet takes the place of the one before: as soon as it has a part for what changes, it does not grow.
        let mut lengths = Vec::new();
        for title in ["other", "third"] {
            describe(&assets, &asset, title);
            let written = assets.write_back(&asset, at(5)).unwrap();
            assert!(matches!(written, WriteBackOutcome::Written(_)), "{name}");
            let next = original(&assets, &read(&assets, &asset));
            let text = String::from_utf8_lossy(&next).into_owned();
            assert!(text.contains(title) && !text.contains("first"), "{name}");
            assert_eq!(pixels(&next), pixels(&bytes), "{name}");
            lengths.push(next.len());
        }
        assert_eq!(lengths[0], lengths[1], "{name}");
        assert_eq!(
            assets.write_back(&asset, at(6)).unwrap(),
            WriteBackOutcome::Unchanged,
            "{name}"
        );
    }
}

#[test]
fn other_programs_read_what_is_written() {
    let has = |program: &str| std::process::Command::new(program).arg("-ver").output().is_ok();
    if !["exiftool", "vipsheader", "identify"].into_iter().all(has) {
        println!("skipped: `exiftool`, `vipsheader` and `identify` are not all installed");
        return;
    }
    for (name, bytes) in files() {
        let (assets, folder) = (assets(), tempfile::tempdir().unwrap());
        let asset = upload(&assets, &format!("/content/dam/{name}"), "", &bytes);
        describe(&assets, &asset, "A title");
        assets.write_back(&asset, at(4)).unwrap();
        let file = folder.path().join(name);
        std::fs::write(&file, original(&assets, &read(&assets, &asset))).unwrap();
        let run = |program: &str, arguments: &[&str]| {
            let command = std::process::Command::new(program).args(arguments).arg(&file).output();
            let command = command.unwrap();
            let out = String::from_utf8_lossy(&command.stdout).into_owned();
            let err = String::from_utf8_lossy(&command.stderr).into_owned();
            assert!(command.status.success(), "{program} {name}: {out}{err}");
            out
        };
        assert_eq!(run("exiftool", &["-s3", "-XMP-dc:Title"]).trim(), "A title", "{name}");
        // What it warns of is what it warned of before.
        let told = run("exiftool", &["-validate", "-warning", "-a"]);
        std::fs::write(&file, &bytes).unwrap();
        assert_eq!(told, run("exiftool", &["-validate", "-warning", "-a"]), "{name}");
        std::fs::write(&file, original(&assets, &read(&assets, &asset))).unwrap();
        run("vipsheader", &[]);
        run("identify", &[]);
    }
}

#[test]
fn damaged_files_are_refused_or_written_once() {
    for (name, bytes) in files() {
        // Cut anywhere: what is followed to the place of the packet says it then, and the others stay.
        for length in (4..bytes.len().min(600)).step_by(7) {
            let assets = assets();
            let asset = upload(&assets, &format!("/content/dam/{name}"), "", &bytes[..length]);
            describe(&assets, &asset, "title");
            match assets.write_back(&asset, at(4)).unwrap() {
                WriteBackOutcome::Written(_) => {
                    let again = assets.write_back(&asset, at(5)).unwrap();
                    assert_eq!(again, WriteBackOutcome::Unchanged, "{name} {length}");
                }
                WriteBackOutcome::Skipped(_) => {
                    assert_eq!(original(&assets, &read(&assets, &asset)), &bytes[..length]);
                }
                WriteBackOutcome::Unchanged => panic!("{name} {length}"),
            }
        }
    }
}

#[test]
fn folders_mounts_and_parts_are_exempt() {
    let assets = assets();
    let bytes = jpeg(&photo(60, 40), 90);
    let switch = |folder: &str, is_on: bool| {
        let mut session = assets.repository().session("ann").unwrap();
        let value = Value::Boolean(is_on).into();
        session.set_property(&path(folder), "dam:xmpWriteBack", value).unwrap();
        session.commit("switch", at(1)).unwrap();
    };
    let write = |asset: &NodePath| {
        describe(&assets, asset, "title");
        assets.write_back(asset, at(4)).unwrap()
    };
    let skipped = |written: WriteBackOutcome, expected: &str| match written {
        WriteBackOutcome::Skipped(reason) => assert!(reason.contains(expected), "{reason}"),
        other => panic!("{other:?}"),
    };
    let mut session = assets.repository().session("ann").unwrap();
    for folder in ["/content/dam/off", "/content/dam/off/on", "/content/dam/subassets"] {
        session.add_node(&path(folder), "sling:Folder").unwrap();
    }
    session.commit("folders", at(0)).unwrap();
    let asset = upload(&assets, "/content/dam/off/a.jpg", "", &bytes);
    switch("/content/dam/off", false);
    skipped(write(&asset), "write-back is disabled for its folder");
    let asset = upload(&assets, "/content/dam/off/on/a.jpg", "", &bytes);
    switch("/content/dam/off/on", true);
    assert!(matches!(write(&asset), WriteBackOutcome::Written(_)));
    let mounted = upload(&assets, "/content/dam/mounted.jpg", "", &bytes);
    let mut session = assets.repository().session("ann").unwrap();
    let content = path(&format!("{mounted}/jcr:content"));
    session.set_property(&content, "dam:mount", Property::text("press")).unwrap();
    session.commit("mount", at(1)).unwrap();
    skipped(write(&mounted), "mounted from");
    let part = upload(&assets, "/content/dam/subassets/a.jpg", "", &bytes);
    skipped(write(&part), "part of another");
}

#[test]
fn formats_without_a_place_for_it_are_left_alone() {
    let assets = assets();
    let asset = upload(&assets, "/content/dam/a.gif", "", b"GIF89a\x01\0\x01\0\0\0\0;");
    describe(&assets, &asset, "title");
    let root = assets.repository().head_root().unwrap();
    let WriteBackOutcome::Skipped(reason) = assets.write_back(&asset, at(4)).unwrap() else {
        panic!()
    };
    assert!(reason.contains("only into JPEG, PNG, TIFF, WebP and PDF"), "{reason}");
    assert_eq!(assets.repository().head_root().unwrap(), root);
    let gone = assets.write_back(&path("/content/dam"), at(5)).unwrap();
    assert!(matches!(gone, WriteBackOutcome::Skipped(_)));
}
