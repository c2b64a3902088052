//! From an upload to a finished asset in content.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use tympan_assets::{
    AssetProcessor, AssetUpdateOutcome, ProcessingLimits, RenditionProfile, needs_processing,
};
use tympan_content::{NodePath, Property, Repository, Subtree, Value};

use crate::test_pictures::{ExifValue, decoder_pool, exif, jpeg, photo, png, with_segment};

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

pub(crate) fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

pub(crate) fn assets() -> AssetProcessor {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("admin").unwrap();
    session.put_node(&path("/content"), Subtree::new("", "sling:Folder")).unwrap();
    session.put_node(&path("/content/dam"), Subtree::new("", "sling:Folder")).unwrap();
    session.commit("folders", at(0)).unwrap();
    AssetProcessor::new(
        repository,
        decoder_pool(),
        RenditionProfile::default(),
        ProcessingLimits::default(),
    )
}

/// Uploads as the server does.
pub(crate) fn upload(
    assets: &AssetProcessor,
    place: &str,
    media_type: &str,
    bytes: &[u8],
) -> NodePath {
    let mut session = assets.repository().session("ann").unwrap();
    let blob = session.put_blob(&mut &*bytes).unwrap();
    let resource = Subtree::new("jcr:content", "nt:resource")
        .with_property("jcr:data", Value::Binary(blob))
        .with_property("jcr:mimeType", Property::text(media_type));
    let original = Subtree::new("original", "nt:file").with_child(resource);
    let content = Subtree::new("jcr:content", "dam:AssetContent")
        .with_child(Subtree::new("metadata", "nt:unstructured"))
        .with_child(Subtree::new("renditions", "nt:folder").with_child(original));
    let path = path(place);
    session.put_node(&path, Subtree::new("", "dam:Asset").with_child(content)).unwrap();
    session.commit("upload", at(1)).unwrap();
    path
}

pub(crate) fn read(assets: &AssetProcessor, path: &NodePath) -> Subtree {
    assets.repository().snapshot().unwrap().read_subtree(path).unwrap().unwrap()
}

fn renditions(asset: &Subtree) -> BTreeSet<&str> {
    asset
        .find_descendant("jcr:content/renditions")
        .unwrap()
        .children
        .iter()
        .map(|child| &*child.name)
        .collect()
}

fn text<'a>(asset: &'a Subtree, property: &str) -> Option<&'a str> {
    let (place, name) = property.rsplit_once('/').unwrap();
    asset.find_descendant(place)?.text(name)
}

fn is_due(assets: &AssetProcessor, path: &NodePath) -> bool {
    let node = assets.repository().snapshot().unwrap().node(path).unwrap().unwrap();
    needs_processing(&node).unwrap()
}

const STATE: &str = "jcr:content/dam:assetState";

#[test]
fn a_photo_gets_its_renditions_and_metadata() {
    let assets = assets();
    let tags = exif(&[
        (0x010e, ExifValue::Text("a caption")),
        (0x010f, ExifValue::Text("Maker")),
        (0x011a, ExifValue::Ratio(300, 1)),
        (0x011b, ExifValue::Ratio(300, 1)),
    ]);
    let bytes = with_segment(&jpeg(&photo(1500, 1000), 90), 0xe1, &tags);
    let asset = upload(&assets, "/content/dam/a.jpg", "image/jpeg", &bytes);
    assert!(is_due(&assets, &asset));
    let done = assets.process_asset(&asset, at(2)).unwrap();
    assert_eq!(done, AssetUpdateOutcome::Processed { renditions: 4, warnings: Vec::new() });
    assert!(!is_due(&assets, &asset));
    let tree = read(&assets, &asset);
    let expected = [
        "cq5dam.thumbnail.140.100.png",
        "cq5dam.thumbnail.319.319.png",
        "cq5dam.thumbnail.48.48.png",
        "cq5dam.web.1280.1280.jpeg",
        "original",
    ];
    assert_eq!(renditions(&tree), expected.into());
    assert_eq!(text(&tree, STATE), Some("processed"));
    let metadata = |name: &str| {
        let metadata = tree.find_descendant("jcr:content/metadata").unwrap();
        metadata.properties.get(name).map(|value| value.first().unwrap().to_text().into_owned())
    };
    for (name, expected) in [
        ("dc:format", "image/jpeg"),
        ("dc:description", "a caption"),
        ("tiff:Make", "Maker"),
        ("tiff:XResolution", "300/1"),
        ("tiff:ImageWidth", "1500"),
        ("tiff:ImageLength", "1000"),
        ("dam:Physicalwidthindpi", "300"),
        ("dam:Physicalwidthininches", "5.0"),
        ("dam:Bitsperpixel", "24"),
        ("dam:Fileformat", "JPEG"),
        ("dam:MIMEtype", "image/jpeg"),
        ("dam:Progressive", "no"),
        ("dam:size", &bytes.len().to_string()),
    ] {
        assert_eq!(metadata(name).as_deref(), Some(expected), "{name}");
    }
    assert_eq!(metadata("dam:sha1").unwrap().len(), 40);
}

#[test]
fn a_second_time_changes_nothing() {
    let assets = assets();
    for (name, bytes) in [
        ("a.jpg", jpeg(&photo(300, 200), 90)),
        ("b.jpg", png(photo(20, 20))),
        ("c.jpg", b"no".to_vec()),
    ] {
        let asset = upload(&assets, &format!("/content/dam/{name}"), "image/jpeg", &bytes);
        let first = assets.process_asset(&asset, at(2)).unwrap();
        let root = assets.repository().head_root().unwrap();
        assert_eq!(assets.process_asset(&asset, at(500)).unwrap(), first);
        assert_eq!(assets.repository().head_root().unwrap(), root, "{name}");
    }
}

#[test]
fn what_cannot_be_drawn_has_a_state_and_a_reason() {
    let assets = assets();
    let asset = upload(&assets, "/content/dam/a.jpg", "image/jpeg", b"not a picture");
    let AssetUpdateOutcome::Failed(reason) = assets.process_asset(&asset, at(2)).unwrap() else {
        panic!()
    };
    let tree = read(&assets, &asset);
    assert_eq!(text(&tree, STATE), Some("failed"));
    assert_eq!(text(&tree, "jcr:content/dam:failureReason"), Some(&*reason));
    assert_eq!(renditions(&tree), ["original"].into());
    assert!(!is_due(&assets, &asset));
    // A sound file in its place heals it.
    let mut session = assets.repository().session("ann").unwrap();
    let blob = session.put_blob(&mut &*png(photo(30, 30))).unwrap();
    let resource = path("/content/dam/a.jpg/jcr:content/renditions/original/jcr:content");
    session.set_property(&resource, "jcr:data", Value::Binary(blob).into()).unwrap();
    session.commit("replace", at(3)).unwrap();
    assert!(is_due(&assets, &asset));
    assert!(matches!(
        assets.process_asset(&asset, at(4)).unwrap(),
        AssetUpdateOutcome::Processed { .. }
    ));
    let tree = read(&assets, &asset);
    assert_eq!(
        (text(&tree, STATE), text(&tree, "jcr:content/dam:failureReason")),
        (Some("processed"), None)
    );
    // The bytes say what it is, whatever it is called.
    assert_eq!(text(&tree, "jcr:content/metadata/dc:format"), Some("image/png"));
    assert_eq!(
        text(&tree, "jcr:content/renditions/original/jcr:content/jcr:mimeType"),
        Some("image/png")
    );
    // And back: no rendition of the former original is left.
    let mut session = assets.repository().session("ann").unwrap();
    let blob = session.put_blob(&mut &b"noise"[..]).unwrap();
    session.set_property(&resource, "jcr:data", Value::Binary(blob).into()).unwrap();
    session.commit("replace", at(5)).unwrap();
    assert!(matches!(assets.process_asset(&asset, at(6)).unwrap(), AssetUpdateOutcome::Failed(_)));
    assert_eq!(renditions(&read(&assets, &asset)), ["original"].into());
}

#[test]
fn what_people_wrote_stays() {
    let assets = assets();
    let tags = exif(&[(0x010e, ExifValue::Text("from the camera"))]);
    let bytes = with_segment(&jpeg(&photo(30, 20), 90), 0xe1, &tags);
    let asset = upload(&assets, "/content/dam/a.jpg", "image/jpeg", &bytes);
    let mut session = assets.repository().session("ann").unwrap();
    let metadata = path("/content/dam/a.jpg/jcr:content/metadata");
    session.set_property(&metadata, "dc:description", Property::text("by Ann")).unwrap();
    session.set_property(&metadata, "tiff:ImageWidth", Value::Long(7).into()).unwrap();
    let own = Subtree::new("", "nt:file").with_child(
        Subtree::new("jcr:content", "nt:resource")
            .with_property("jcr:data", Value::Binary(session.put_blob(&mut &b"x"[..]).unwrap())),
    );
    session.put_node(&path("/content/dam/a.jpg/jcr:content/renditions/print.pdf"), own).unwrap();
    session.commit("describe", at(2)).unwrap();
    assets.process_asset(&asset, at(3)).unwrap();
    let tree = read(&assets, &asset);
    assert_eq!(text(&tree, "jcr:content/metadata/dc:description"), Some("by Ann"));
    assert_eq!(
        tree.find_descendant("jcr:content/metadata").unwrap().properties["tiff:ImageWidth"],
        Value::Long(30).into()
    );
    assert!(renditions(&tree).contains("print.pdf"));
}

#[test]
fn assets_that_came_with_renditions_are_taken_as_they_are() {
    let assets = assets();
    let asset = upload(&assets, "/content/dam/a.jpg", "image/jpeg", &jpeg(&photo(30, 20), 90));
    let mut session = assets.repository().session("ann").unwrap();
    let blob = session.put_blob(&mut &b"x"[..]).unwrap();
    let file = Subtree::new("", "nt:file").with_child(
        Subtree::new("jcr:content", "nt:resource").with_property("jcr:data", Value::Binary(blob)),
    );
    session
        .put_node(
            &path("/content/dam/a.jpg/jcr:content/renditions/cq5dam.thumbnail.48.48.png"),
            file,
        )
        .unwrap();
    session.commit("as from a package", at(2)).unwrap();
    assert!(!is_due(&assets, &asset));
}

#[test]
fn what_is_no_asset_is_passed_over() {
    let assets = assets();
    for place in ["/content/dam", "/content/nothing"] {
        assert_eq!(assets.process_asset(&path(place), at(2)).unwrap(), AssetUpdateOutcome::Gone);
    }
}

#[test]
fn other_files_are_assets_without_renditions() {
    let assets = assets();
    let asset = upload(&assets, "/content/dam/a.txt", "text/plain", b"hello");
    assert_eq!(
        assets.process_asset(&asset, at(2)).unwrap(),
        AssetUpdateOutcome::Processed { renditions: 0, warnings: Vec::new() }
    );
    let tree = read(&assets, &asset);
    assert_eq!(text(&tree, STATE), Some("processed"));
    assert_eq!(text(&tree, "jcr:content/metadata/dc:format"), Some("text/plain"));
}
