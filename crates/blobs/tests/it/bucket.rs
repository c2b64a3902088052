//! Buckets of real servers: moto for S3, Azurite for Azure, with faults on the way.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tympan_blobs::{
    BlobBucket, BlobDelegate, BlobId, BucketOptions, CompositeBlobStorage, Error, ReadBlobs,
    WriteBlobs,
};
use tympan_testkit::bucket_server::{BucketServer, ProxyFault, start_faulty_proxy};
use tympan_testkit::composite_conformance::{
    CompositeFixture, ReadOnlyFixture, check_conformance, read_content, sample_blob,
};
use tympan_testkit::origin_server::{OriginRequest, OriginServer, refusing_addr};

/// A folder that tests keep.
pub(crate) fn tools() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    target.parent().unwrap_or(target).to_owned()
}

/// A bucket's client with a cache of its own.
struct Client {
    bucket: BlobBucket,
    dir: TempDir,
}

fn options(server: &BucketServer, dir: &Path, prefix: &str) -> BucketOptions {
    BucketOptions {
        settings: server.client_settings(server.addr()),
        idle_timeout: Duration::from_secs(60),
        retry_interval: Duration::from_millis(50),
        ..BucketOptions::new(server.url(prefix), dir)
    }
}

fn through(server: &BucketServer, proxy: &OriginServer, dir: &Path) -> BucketOptions {
    BucketOptions { settings: server.client_settings(proxy.addr()), ..options(server, dir, "p") }
}

fn open(server: &BucketServer, prefix: &str) -> Client {
    let dir = TempDir::new().unwrap();
    let bucket = BlobBucket::open(options(server, dir.path(), prefix)).unwrap();
    Client { bucket, dir }
}

fn ids(place: &dyn ReadBlobs) -> Vec<BlobId> {
    let mut ids = Vec::new();
    let mut show = |one: tympan_blobs::ListedBlob| {
        ids.push(one.id);
        ControlFlow::Continue(())
    };
    place.list(&mut show).unwrap();
    ids.sort();
    ids
}

/// What a server of buckets must do, whichever it is.
fn check_server(server: &BucketServer) {
    let count = AtomicUsize::new(0);
    let fresh = || format!("case-{}/of", count.fetch_add(1, Ordering::Relaxed));
    check_conformance("bucket + bucket", || {
        let (own, theirs) = (open(server, &fresh()), fresh());
        let (owner, reader) = (open(server, &theirs), open(server, &theirs));
        let (reader, reader_dir) = (Arc::new(reader.bucket), reader.dir);
        let keep = (own.dir, owner.dir, reader_dir);
        let (owner, seen) = (Arc::new(owner.bucket), Arc::new(AtomicUsize::new(0)));
        let (fill, trace) = (owner.clone(), owner);
        let shelf = ReadOnlyFixture {
            store: reader,
            fill: Box::new(move |bytes| {
                seen.fetch_add(1, Ordering::Relaxed);
                fill.put(&mut &*bytes).unwrap()
            }),
            fingerprint: Box::new(move || {
                let mut all = Vec::new();
                let mut show = |one: tympan_blobs::ListedBlob| {
                    all.push(format!("{} {:?}", one.id, one.modified));
                    ControlFlow::Continue(())
                };
                trace.list(&mut show).unwrap();
                trace.list_trash(&mut show).unwrap();
                all.sort();
                format!("{all:?} {:?}", trace.list_notes("").unwrap())
            }),
            is_listable: true,
        };
        CompositeFixture {
            writable: vec![Arc::new(own.bucket)],
            read_only: vec![shelf],
            resources: Box::new(keep),
        }
    });
    check_large(server, &fresh());
    check_trash(server, &fresh());
}

/// Larger than a part, so that it takes several.
fn check_large(server: &BucketServer, prefix: &str) {
    let large: Vec<u8> = (0..20_000_001_u32).map(|at| (at >> 7) as u8 ^ at as u8).collect();
    let client = open(server, prefix);
    let id = client.bucket.put(&mut &*large).unwrap();
    assert!(client.bucket.contains(&id).unwrap());
    let other = open(server, prefix);
    for misses in [1, 1] {
        assert!(read_content(other.bucket.open(&id).unwrap().unwrap()) == large);
        assert_eq!(other.bucket.counts().cache_misses, misses, "the second read is from the disk");
    }
    assert_eq!(other.bucket.counts().cached_bytes, id.length());
}

fn check_trash(server: &BucketServer, prefix: &str) {
    let Client { bucket, dir: _dir } = open(server, prefix);
    let id = bucket.put(&mut &*sample_blob(1)).unwrap();
    assert!(!bucket.discard(&id, SystemTime::now() - Duration::from_secs(3_600)).unwrap());
    let soon = SystemTime::now() + Duration::from_secs(3_600);
    assert!(bucket.discard(&id, soon).unwrap());
    assert!(!bucket.contains(&id).unwrap() && ids(&bucket).is_empty());
    assert!(bucket.undelete(&id).unwrap() && !bucket.undelete(&id).unwrap());
    assert_eq!(ids(&bucket), [id]);
    assert!(bucket.discard(&id, soon).unwrap());
    assert!(bucket.purge(&id).unwrap() && !bucket.purge(&id).unwrap());
    assert!(bucket.open(&id).unwrap().is_none());
}

/// A bucket that takes connections and says nothing is an error after its patience, however many requests an upload has.
#[test]
fn a_silent_bucket_is_an_error_after_its_timeout() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let dir = TempDir::new().unwrap();
    let bucket = BlobBucket::open(BucketOptions {
        settings: vec![
            ("AWS_ACCESS_KEY_ID".to_owned(), "ann".to_owned()),
            ("AWS_SECRET_ACCESS_KEY".to_owned(), "secret".to_owned()),
            ("AWS_ENDPOINT_URL".to_owned(), format!("http://{address}")),
        ],
        request_timeout: Duration::from_millis(300),
        // Longer than a test may take.
        idle_timeout: Duration::from_hours(1),
        ..BucketOptions::new("s3://blobs/p", dir.path())
    });
    let bucket = bucket.unwrap();
    let id = BlobId::hash_of(&sample_blob(1));
    for failed in [
        bucket.open(&id).map(drop),
        bucket.contains(&id).map(drop),
        bucket.touch(&id).map(drop),
        bucket.open_note("marks-a").map(drop),
        bucket.put(&mut &*sample_blob(1)).map(drop),
    ] {
        let error = failed.unwrap_err();
        assert!(error.is_transient(), "{error}");
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("no response within"), "{cause}");
    }
    drop(silent);
}

#[test]
fn s3_conforms() {
    let Some(server) = BucketServer::start_moto(&tools()) else { return };
    check_server(&server);
}

#[test]
fn azure_conforms() {
    let Some(server) = BucketServer::start_azurite(&tools()) else { return };
    check_server(&server);
}

/// Every third request goes wrong, each time in another way. Nothing is lost, nothing is wrong, nothing is missing.
fn mishap(number: usize, _: &OriginRequest) -> ProxyFault {
    match (number % 3, number / 3 % 6) {
        (0, 0) => ProxyFault::Status(500),
        (0, 1) => ProxyFault::RefuseConnection,
        (0, 2) => ProxyFault::DropResponse,
        (0, 3) => ProxyFault::CutAfter(10),
        (0, 4) => ProxyFault::Status(503),
        (0, _) => ProxyFault::StallAfter(5),
        _ => ProxyFault::Forward,
    }
}

fn check_faults(server: &BucketServer) {
    let proxy = start_faulty_proxy(server.addr(), mishap);
    let dir = TempDir::new().unwrap();
    let stall = Duration::from_secs(2);
    let bucket = BlobBucket::open(BucketOptions {
        idle_timeout: stall,
        ..through(server, &proxy, dir.path())
    })
    .unwrap();
    let put: Vec<BlobId> =
        (0..12).map(|seed| bucket.put(&mut &*sample_blob(seed)).unwrap()).collect();
    let honest = open(server, "p");
    for (seed, id) in (0..).zip(&put) {
        assert_eq!(read_content(honest.bucket.open(id).unwrap().unwrap()), sample_blob(seed));
        bucket.touch(id).unwrap();
    }
    drop(bucket);
    let cold = TempDir::new().unwrap();
    let bucket = BlobBucket::open(BucketOptions {
        idle_timeout: stall,
        ..through(server, &proxy, cold.path())
    })
    .unwrap();
    for (seed, id) in (0..).zip(&put) {
        assert!(bucket.contains(id).unwrap());
        assert_eq!(read_content(bucket.open(id).unwrap().unwrap()), sample_blob(seed));
    }
    assert_eq!(ids(&honest.bucket).len(), put.len());
}

#[test]
fn s3_survives_faults_on_the_way() {
    let Some(server) = BucketServer::start_moto(&tools()) else { return };
    check_faults(&server);
}

#[test]
fn azure_survives_faults_on_the_way() {
    let Some(server) = BucketServer::start_azurite(&tools()) else { return };
    check_faults(&server);
}

/// A bucket that is away is an error that may pass, never an absent blob.
#[test]
fn a_bucket_that_is_away_is_an_error() {
    let dir = TempDir::new().unwrap();
    let bucket = BlobBucket::open(BucketOptions {
        settings: vec![
            ("AWS_ACCESS_KEY_ID".to_owned(), "ann".to_owned()),
            ("AWS_SECRET_ACCESS_KEY".to_owned(), "secret".to_owned()),
            ("AWS_ENDPOINT_URL".to_owned(), format!("http://{}", refusing_addr())),
        ],
        request_timeout: Duration::from_millis(300),
        ..BucketOptions::new("s3://blobs/p", dir.path())
    });
    let bucket = Arc::new(bucket.unwrap());
    let id = BlobId::hash_of(&sample_blob(1));
    let composite = CompositeBlobStorage::new(vec![BlobDelegate::writable("far", bucket.clone())]);
    for failed in [
        bucket.open(&id).map(drop),
        bucket.contains(&id).map(drop),
        bucket.put(&mut &*sample_blob(1)).map(drop),
        composite.open(&id).map(drop),
    ] {
        let error = failed.unwrap_err();
        assert!(error.is_transient(), "{error}");
    }
    assert_eq!(std::fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
}

#[test]
fn addresses_that_make_no_sense_are_refused() {
    let dir = TempDir::new().unwrap();
    for url in ["", "blobs", "s3://", "ftp://blobs", "s3:///prefix"] {
        let opened = BlobBucket::open(BucketOptions::new(url, dir.path()));
        assert!(matches!(opened, Err(Error::InvalidAddress { .. })), "{url}");
    }
}

#[test]
fn a_cache_folder_is_for_one_process() {
    let dir = TempDir::new().unwrap();
    let options = || BucketOptions {
        settings: vec![
            ("AWS_ACCESS_KEY_ID".to_owned(), "ann".to_owned()),
            ("AWS_SECRET_ACCESS_KEY".to_owned(), "secret".to_owned()),
        ],
        ..BucketOptions::new("s3://blobs", dir.path())
    };
    let first = BlobBucket::open(options()).unwrap();
    assert!(matches!(BlobBucket::open(options()), Err(Error::CacheLocked { .. })));
    drop(first);
    BlobBucket::open(options()).unwrap();
}

/// What was staged is readable at once, and uploaded as soon as the bucket lets it, by whichever process.
#[test]
fn staged_blobs_are_uploaded_by_and_by() {
    let Some(server) = BucketServer::start_moto(&tools()) else { return };
    let is_open = Arc::new(AtomicBool::new(false));
    let gate = is_open.clone();
    let proxy = start_faulty_proxy(server.addr(), move |_, _| {
        if gate.load(Ordering::SeqCst) { ProxyFault::Forward } else { ProxyFault::Status(403) }
    });
    let dir = TempDir::new().unwrap();
    let staged = || BucketOptions {
        staging_bytes: 50_000,
        request_timeout: Duration::from_secs(30),
        ..through(&server, &proxy, dir.path())
    };
    let bucket = BlobBucket::open(staged()).unwrap();
    let first = bucket.put(&mut &*sample_blob(1)).unwrap();
    let second = bucket.put(&mut &*sample_blob(2)).unwrap();
    assert_eq!(bucket.put(&mut &*sample_blob(2)).unwrap(), second, "once is enough");
    assert!(bucket.contains(&first).unwrap() && bucket.touch(&second).unwrap());
    assert_eq!(read_content(bucket.open(&first).unwrap().unwrap()), sample_blob(1));
    let counts = bucket.counts();
    assert_eq!(
        (counts.pending_uploads, counts.pending_upload_bytes, counts.uploaded),
        (2, 40_000, 0)
    );
    assert!(
        matches!(bucket.wait_for_uploads(), Err(Error::UploadsPending { .. })),
        "the bucket refuses"
    );
    // There is no room for a third: it must be in the bucket before it counts as put, and that refuses.
    assert!(bucket.put(&mut &*sample_blob(3)).is_err());
    assert!(!bucket.discard(&first, SystemTime::now() + Duration::from_secs(99)).unwrap());
    drop(bucket);
    is_open.store(true, Ordering::SeqCst);
    let next = BlobBucket::open(staged()).unwrap();
    next.wait_for_uploads().unwrap();
    let counts = next.counts();
    assert_eq!((counts.pending_uploads, counts.pending_upload_bytes, counts.uploaded), (0, 0, 2));
    let other = open(&server, "p");
    for (seed, id) in [(1, first), (2, second)] {
        assert_eq!(read_content(other.bucket.open(&id).unwrap().unwrap()), sample_blob(seed));
        next.open(&id).unwrap().unwrap();
    }
    assert_eq!(next.counts().cache_misses, 0, "what was staged is cached");
    next.put(&mut &*sample_blob(3)).unwrap();
    next.wait_for_uploads().unwrap();
    assert_eq!(ids(&other.bucket).len(), 3);
}

/// An object that somebody shortened, or that is another's.
#[test]
fn wrong_objects_are_distinguished_and_healed() {
    let Some(server) = BucketServer::start_moto(&tools()) else { return };
    let client = open(&server, "p");
    let id = client.bucket.put(&mut &*sample_blob(1)).unwrap();
    let hex = id.to_string()[..64].to_owned();
    let place = |bytes: &[u8]| {
        let head = format!(
            "PUT /blobs/p/data/{hex} HTTP/1.1\r\nHost: {0}\r\nConnection: close\r\nContent-Length: {1}\r\nAuthorization: \
             AWS4-HMAC-SHA256 Credential=ann/20240101/us-east-1/s3/aws4_request, SignedHeaders=host, \
             Signature=0\r\n\r\n",
            server.addr(),
            bytes.len()
        );
        let request = [head.as_bytes(), bytes].concat();
        let answer = tympan_testkit::origin_server::exchange_bytes(server.addr(), &request);
        assert!(answer.starts_with(b"HTTP/1.1 200"));
    };
    place(b"short");
    let cold = open(&server, "p");
    assert!(matches!(cold.bucket.open(&id), Err(Error::Damaged { length: 5, .. })));
    assert!(!cold.bucket.contains(&id).unwrap());
    cold.bucket.put(&mut &*sample_blob(1)).unwrap();
    assert_eq!(read_content(open(&server, "p").bucket.open(&id).unwrap().unwrap()), sample_blob(1));
    place(&sample_blob(2));
    let cold = open(&server, "p");
    let altered = cold.bucket.open(&id).unwrap_err();
    assert!(matches!(altered, Error::ContentMismatch { .. }), "{altered}");
    assert!(!altered.is_transient());
}
