//! New originals are noticed and processed in the background, through stops at any instant.

use std::sync::atomic::Ordering;
use std::time::SystemTime;

use tympan_content::Value;
use tympan_jobs::asset::{AssetService, Follower, Limits, Profile};

use crate::asset_ingest::{assets, path, read, upload};
use crate::asset_support::{jpeg, photo, png};

#[test]
fn a_follower_names_what_is_due_and_nothing_else() {
    let assets = assets();
    let mut follower = Follower::new(assets.repository().clone());
    let first = upload(&assets, "/content/dam/a.png", "", &png(photo(20, 20)));
    // The first time it looks at everything, then only at what changed.
    assert_eq!(follower.due().unwrap(), std::slice::from_ref(&first));
    assert_eq!(follower.due().unwrap(), []);
    assets.process(&first, SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(follower.due().unwrap(), [], "its own work makes no new work");
    let second = upload(&assets, "/content/dam/b.png", "", &png(photo(21, 20)));
    assert_eq!(follower.due().unwrap(), [second]);
    let mut session = assets.repository().session("ann").unwrap();
    session.set_property(&path("/content/dam"), "jcr:title", "Assets".into()).unwrap();
    let metadata = path("/content/dam/a.png/jcr:content/metadata");
    session.set_property(&metadata, "dc:title", "A".into()).unwrap();
    session.commit("describe", SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(follower.due().unwrap(), []);
}

#[test]
fn uploads_are_processed_before_and_after_the_start() {
    let assets = assets();
    let before = upload(&assets, "/content/dam/before.jpg", "", &jpeg(&photo(400, 300), 90));
    let service = AssetService::start(assets.clone(), 2).unwrap();
    let after: Vec<_> = (0..6)
        .map(|number| {
            let place = format!("/content/dam/{number}.png");
            upload(&assets, &place, "", &png(photo(30 + number, 20)))
        })
        .collect();
    let broken = upload(&assets, "/content/dam/broken.jpg", "", b"not a picture");
    service.wait_until_idle();
    for asset in after.iter().chain([&before]) {
        let tree = read(&assets, asset);
        assert_eq!(
            tree.find("jcr:content").unwrap().text("dam:assetState"),
            Some("processed"),
            "{asset}"
        );
        assert_eq!(tree.find("jcr:content/renditions").unwrap().children.len(), 5);
    }
    let state = read(&assets, &broken);
    assert_eq!(state.find("jcr:content").unwrap().text("dam:assetState"), Some("failed"));
    let counters = service.counters();
    assert_eq!(counters.processed.load(Ordering::Relaxed), 7);
    assert_eq!((counters.failed.load(Ordering::Relaxed), service.waiting()), (1, 0));
}

#[test]
fn a_replaced_original_is_processed_again() {
    let assets = assets();
    let asset = upload(&assets, "/content/dam/a.png", "", &png(photo(30, 20)));
    let service = AssetService::start(assets.clone(), 1).unwrap();
    service.wait_until_idle();
    let mut session = assets.repository().session("ann").unwrap();
    let blob = session.put_blob(&mut &*png(photo(50, 20))).unwrap();
    let resource = path("/content/dam/a.png/jcr:content/renditions/original/jcr:content");
    session.set_property(&resource, "jcr:data", Value::Binary(blob).into()).unwrap();
    session.commit("replace", SystemTime::UNIX_EPOCH).unwrap();
    service.wait_until_idle();
    let tree = read(&assets, &asset);
    let metadata = tree.find("jcr:content/metadata").unwrap();
    assert_eq!(metadata.properties["tiff:ImageWidth"], Value::Long(50).into());
}

/// Processing is one commit: at every root there is either nothing of it, or all.
#[test]
fn there_is_never_half_an_asset() {
    let assets = assets();
    let service = AssetService::start(assets.clone(), 2).unwrap();
    let uploaded: Vec<_> = (0..8)
        .map(|number| {
            let place = format!("/content/dam/{number}.png");
            upload(&assets, &place, "", &png(photo(40 + number, 20)))
        })
        .collect();
    let mut states = 0;
    while service.waiting() > 0 || states == 0 {
        let snapshot = assets.repository().snapshot().unwrap();
        for asset in &uploaded {
            let tree = snapshot.read(asset).unwrap().unwrap();
            let renditions = tree.find("jcr:content/renditions").unwrap().children.len();
            let state = tree.find("jcr:content").unwrap().text("dam:assetState");
            assert!(
                matches!((renditions, state), (1, None) | (5, Some("processed"))),
                "{renditions} {state:?}"
            );
            states += 1;
        }
    }
    service.wait_until_idle();
}

#[test]
fn widths_for_pages_are_made_where_they_are_wanted() {
    let plain = assets();
    let profile = Profile { widths: vec![320, 640], ..Profile::default() };
    let assets = tympan_jobs::asset::Assets::new(
        plain.repository().clone(),
        crate::asset_support::studio(),
        profile,
        Limits::default(),
    );
    let asset = upload(&assets, "/content/dam/a.jpg", "", &jpeg(&photo(900, 300), 90));
    assets.process(&asset, SystemTime::UNIX_EPOCH).unwrap();
    let tree = read(&assets, &asset);
    for (name, width) in [("cq5dam.width.320.webp", 320), ("cq5dam.width.640.webp", 640)] {
        let resource = tree.find(&format!("jcr:content/renditions/{name}/jcr:content")).unwrap();
        let Some(Value::Binary(blob)) = resource.properties["jcr:data"].first() else { panic!() };
        let opened = assets.repository().blobs().open(blob).unwrap().unwrap();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut opened.into_reader(), &mut bytes).unwrap();
        assert_eq!(image::load_from_memory(&bytes).unwrap().width(), width);
    }
}
