//! Metadata that goes back into the file.

use std::time::{Duration, SystemTime};

use tympan_content::{NodePath, Property, Subtree, Value, ValueType};
use tympan_jobs::asset::{Assets, Processed, WrittenBack, needs_processing};

use crate::asset_ingest::{assets, path, read, upload};
use crate::asset_support::{jpeg, photo, png};

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

fn describe(assets: &Assets, asset: &NodePath, title: &str) {
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

fn original(assets: &Assets, asset: &Subtree) -> Vec<u8> {
    let resource = asset.find("jcr:content/renditions/original/jcr:content").unwrap();
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
        assets.process(&asset, at(2)).unwrap();
        describe(&assets, &asset, "A <title> & \"more\"");
        let written = assets.write_back(&asset, at(4)).unwrap();
        assert_eq!(
            written,
            WrittenBack::Written(vec!["dc:subject".to_owned(), "dc:title".to_owned()])
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
        assert_eq!(assets.write_back(&asset, at(5)).unwrap(), WrittenBack::Unchanged);
        // Elsewhere, the file tells its title.
        let other = upload(&assets, "/content/dam/other", "", &new);
        assert!(matches!(assets.process(&other, at(6)).unwrap(), Processed::Done { .. }));
        let other = read(&assets, &other);
        let metadata = other.find("jcr:content/metadata").unwrap();
        assert_eq!(metadata.text("dc:title"), Some("A <title> & \"more\""));
        assert_eq!(metadata.properties["dc:subject"].values().len(), 2);
        assert_eq!(
            metadata.text("dam:sha1"),
            tree.find("jcr:content/metadata").unwrap().text("dam:sha1")
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
            WrittenBack::Written(_)
        ));
    }
    let bytes = original(&assets, &read(&assets, &asset));
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("second") && !text.contains("first"));
    assert_eq!(text.matches("W5M0MpCehiHzreSzNTczkc9d").count(), 1);
}

#[test]
fn formats_without_a_place_for_it_are_left_alone() {
    let assets = assets();
    let asset = upload(&assets, "/content/dam/a.gif", "", b"GIF89a\x01\0\x01\0\0\0\0;");
    describe(&assets, &asset, "title");
    let root = assets.repository().head().unwrap();
    let WrittenBack::Skipped(reason) = assets.write_back(&asset, at(4)).unwrap() else { panic!() };
    assert!(reason.contains("JPEG and PNG do"), "{reason}");
    assert_eq!(assets.repository().head().unwrap(), root);
    let gone = assets.write_back(&path("/content/dam"), at(5)).unwrap();
    assert!(matches!(gone, WrittenBack::Skipped(_)));
}
