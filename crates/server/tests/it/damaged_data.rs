//! Damaged files of a home: an answer is the stored bytes or an error that says what helps, never other bytes.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use http::{Method, StatusCode};
use tympan_content::{Property, Repository, Subtree, Value};
use tympan_server::InstanceRole;
use tympan_testkit::store_folder::open_stores;

use crate::support::{Reply, TestInstance, path};

/// Bytes that are large enough for a file of their own, and cannot be compressed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(length).collect()
}

async fn start(home: &Path, role: InstanceRole) -> TestInstance {
    let (chunks, blobs) = open_stores(home);
    TestInstance::start_on(Repository::open(chunks, blobs).unwrap(), role, |_| {}).await
}

fn put_file(instance: &TestInstance, name: &str, bytes: &[u8]) {
    instance.edit(|session| {
        let blob = session.put_blob(&mut std::io::Cursor::new(bytes)).unwrap();
        let content = Subtree::new("jcr:content", "nt:resource")
            .with_property("jcr:mimeType", Property::text("image/png"))
            .with_property("jcr:data", Value::Binary(blob));
        let at = path("/content").child(name).unwrap();
        session.put_node(&at, Subtree::new(name, "nt:file").with_child(content)).unwrap();
    });
}

/// Returns the files below a folder that hold these bytes.
fn files_with(folder: &Path, bytes: &[u8]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        if file.is_dir() {
            found.extend(files_with(&file, bytes));
        } else if fs::read(&file).unwrap().windows(bytes.len()).any(|part| part == bytes) {
            found.push(file);
        }
    }
    found
}

/// Changes one bit in the middle of these bytes, where they are stored.
fn damage(folder: &Path, bytes: &[u8]) {
    let files = files_with(folder, bytes);
    assert!(!files.is_empty());
    for file in files {
        let content = fs::read(&file).unwrap();
        let start = content.windows(bytes.len()).position(|part| part == bytes).unwrap();
        let place = start + bytes.len() / 2;
        let open = fs::File::options().write(true).open(&file).unwrap();
        open.write_all_at(&[content[place] ^ 1], place as u64).unwrap();
    }
}

fn check_refused(reply: &Reply, bytes: &[u8], hint: &str) {
    assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR, "{:?}", reply.headers);
    assert!(reply.text().contains(hint), "{}", reply.text());
    let some = &bytes[..64];
    assert!(!reply.body.windows(some.len()).any(|part| part == some));
    assert!(!reply.headers.contains_key("etag"), "{:?}", reply.headers);
}

#[tokio::test]
async fn a_damaged_blob_is_an_error_with_a_repair_hint() {
    for role in [InstanceRole::Author, InstanceRole::Publish] {
        let home = tempfile::tempdir().unwrap();
        let instance = start(home.path(), role).await;
        let bytes = noise(1, 100_000);
        put_file(&instance, "a.png", &bytes);
        let whole = instance.get("/content/a.png").await;
        assert_eq!((whole.status, &*whole.body), (StatusCode::OK, &*bytes));
        damage(&home.path().join("blobs"), &bytes);
        for target in ["/content/a.png", "/content/a.png/jcr:content"] {
            check_refused(&instance.get(target).await, &bytes, "tympan blobs check");
            let part = instance.as_admin(Method::GET, target).header("range", "bytes=0-99");
            check_refused(&part.send().await, &bytes, "tympan blobs check");
        }
        // A shorter file is damaged as well, and one that is gone.
        let file = files_with(&home.path().join("blobs"), &bytes[..1000]).pop().unwrap();
        fs::write(&file, &bytes[..1000]).unwrap();
        check_refused(&instance.get("/content/a.png").await, &bytes, "tympan blobs check");
        fs::remove_file(&file).unwrap();
        check_refused(&instance.get("/content/a.png").await, &bytes, "tympan blobs check");
        // Uploading the same again heals it.
        put_file(&instance, "b.png", &bytes);
        assert_eq!(&*instance.get("/content/a.png").await.body, &*bytes);
    }
}

#[tokio::test]
async fn a_damaged_blob_is_served_by_no_endpoint_of_the_author() {
    let home = tempfile::tempdir().unwrap();
    let author = start(home.path(), InstanceRole::Author).await;
    let bytes = noise(2, 50_000);
    put_file(&author, "a.png", &bytes);
    damage(&home.path().join("blobs"), &bytes);
    let target = "/api/v1/blob?path=/content/a.png/jcr:content";
    check_refused(&author.get(target).await, &bytes, "tympan blobs check");
}

#[tokio::test]
async fn a_damaged_pack_is_an_error_with_a_repair_hint() {
    let home = tempfile::tempdir().unwrap();
    let author = start(home.path(), InstanceRole::Author).await;
    // Short ones lie in the packs.
    let bytes = noise(3, 4_000);
    put_file(&author, "a.png", &bytes);
    assert_eq!(&*author.get("/content/a.png").await.body, &*bytes);
    damage(&home.path().join("store"), &bytes);
    check_refused(&author.get("/content/a.png").await, &bytes, "tympan blobs check");
}
