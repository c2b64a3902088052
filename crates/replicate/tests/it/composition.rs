//! A composite over another instance by HTTP: the suite of OAK-7083, as `blobs` runs it over folders.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::sync::Arc;

use tympan_blobs::{Folder, Listed, ReadBlobs};
use tympan_replicate::{Credentials, RemoteStore};
use tympan_testkit::composition::{Composition, Shelf, bytes_of, conform};
use tympan_testkit::origin::{Answer, Origin, Seen};

/// Answers as `server` does.
fn serve(folder: &dyn ReadBlobs, seen: &Seen) -> Answer {
    let id = seen.target.strip_prefix("/bin/store/blob/").unwrap().replace('/', "#");
    assert!(matches!(seen.method.as_str(), "GET" | "HEAD"), "{}", seen.method);
    match folder.open(&id.parse().unwrap()).unwrap() {
        Some(content) => Answer::status(200).body(bytes_of(content)),
        None => Answer::status(404),
    }
}

#[test]
fn file_and_http() {
    conform("file + HTTP", || {
        let dir = tempfile::tempdir().unwrap();
        let theirs = Arc::new(Folder::open(&dir.path().join("production")).unwrap());
        let served = theirs.clone();
        let origin = Origin::start(move |seen| serve(&*served, seen));
        let credentials = Credentials::Token("secret".to_owned());
        let url = format!("http://{}", origin.addr());
        let spool = dir.path().join("spool");
        let remote = RemoteStore::new(&url, &credentials, None, &spool).unwrap();
        let (fill, look) = (theirs.clone(), theirs);
        let shelf = Shelf {
            place: Arc::new(remote),
            fill: Box::new(move |bytes| put(&fill, bytes)),
            trace: Box::new(move || trace(&look)),
            is_listed: false,
        };
        let own = Arc::new(Folder::open(&dir.path().join("own")).unwrap());
        Composition { writable: vec![own], read_only: vec![shelf], keep: Box::new((dir, origin)) }
    });
}

fn put(folder: &Folder, bytes: &[u8]) -> tympan_blobs::BlobId {
    tympan_blobs::WriteBlobs::put(folder, &mut &*bytes).unwrap()
}

fn trace(folder: &Folder) -> String {
    let mut all = String::new();
    let mut show = |one: Listed| {
        writeln!(all, "{} {:?}", one.id, one.modified).unwrap();
        ControlFlow::Continue(())
    };
    folder.list(&mut show).unwrap();
    all
}
