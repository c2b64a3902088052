//! A composite over another instance by HTTP: the suite of OAK-7083, as `blobs` runs it over folders.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::sync::Arc;

use tympan_blobs::{BlobFolder, ListedBlob, ReadBlobs};
use tympan_replicate::{RemoteStore, RemoteStoreCredentials};
use tympan_testkit::composite_conformance::{
    CompositeFixture, ReadOnlyFixture, check_conformance, read_content,
};
use tympan_testkit::origin_server::{OriginRequest, OriginResponse, OriginServer};

/// Answers as `server` does.
fn serve(folder: &dyn ReadBlobs, seen: &OriginRequest) -> OriginResponse {
    let id = seen.target.strip_prefix("/bin/store/blob/").unwrap().replace('/', "#");
    assert!(matches!(seen.method.as_str(), "GET" | "HEAD"), "{}", seen.method);
    match folder.open(&id.parse().unwrap()).unwrap() {
        Some(content) => OriginResponse::with_status(200).with_body(read_content(content)),
        None => OriginResponse::with_status(404),
    }
}

#[test]
fn file_and_http() {
    check_conformance("file + HTTP", || {
        let dir = tempfile::tempdir().unwrap();
        let theirs = Arc::new(BlobFolder::open(&dir.path().join("production")).unwrap());
        let served = theirs.clone();
        let origin = OriginServer::start(move |seen| serve(&*served, seen));
        let credentials = RemoteStoreCredentials::Token("secret".to_owned());
        let url = format!("http://{}", origin.addr());
        let spool = dir.path().join("spool");
        let remote = RemoteStore::new(&url, &credentials, None, &spool).unwrap();
        let (fill, look) = (theirs.clone(), theirs);
        let shelf = ReadOnlyFixture {
            store: Arc::new(remote),
            fill: Box::new(move |bytes| put(&fill, bytes)),
            fingerprint: Box::new(move || trace(&look)),
            is_listable: false,
        };
        let own = Arc::new(BlobFolder::open(&dir.path().join("own")).unwrap());
        CompositeFixture {
            writable: vec![own],
            read_only: vec![shelf],
            resources: Box::new((dir, origin)),
        }
    });
}

fn put(folder: &BlobFolder, bytes: &[u8]) -> tympan_blobs::BlobId {
    tympan_blobs::WriteBlobs::put(folder, &mut &*bytes).unwrap()
}

fn trace(folder: &BlobFolder) -> String {
    let mut all = String::new();
    let mut show = |one: ListedBlob| {
        writeln!(all, "{} {:?}", one.id, one.modified).unwrap();
        ControlFlow::Continue(())
    };
    folder.list(&mut show).unwrap();
    all
}
