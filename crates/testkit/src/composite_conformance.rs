//! Conformance tests for every composite of blob stores, regardless of its delegates: the tests of OAK-7083 by their
//! names, and regression tests for its weaknesses.
//!
//! Input: a function that creates a new composite, with direct access to each delegate. Output: a panic that names the
//! composite and the case.

use std::fmt::Debug;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tympan_blobs::{
    BlobContent, BlobDelegate, BlobId, CompositeBlobStorage, Error, ReadBlobs, Result, WriteBlobs,
};

/// Writes bytes into a store, as its owner does.
pub type DelegateFill = Box<dyn Fn(&[u8]) -> BlobId>;

/// A read-only delegate, with the write access of its owner.
pub struct ReadOnlyFixture {
    /// The store as the composite sees it.
    pub store: Arc<dyn ReadBlobs>,
    /// Writes bytes into it as its owner does.
    pub fill: DelegateFill,
    /// Returns everything that a write could change: names, bytes, lengths, times.
    pub fingerprint: Box<dyn Fn() -> String>,
    /// True if its blobs can be listed.
    pub is_listable: bool,
}

/// The delegates of one composite, each kind in its order.
pub struct CompositeFixture {
    /// The writable delegates.
    pub writable: Vec<Arc<dyn WriteBlobs>>,
    /// The read-only delegates.
    pub read_only: Vec<ReadOnlyFixture>,
    /// Owns the underlying resources.
    pub resources: Box<dyn std::any::Any>,
}

impl Debug for CompositeFixture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} writable, {} read-only", self.writable.len(), self.read_only.len())
    }
}

impl Debug for ReadOnlyFixture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.store)
    }
}

impl CompositeFixture {
    fn delegates(&self) -> Vec<BlobDelegate> {
        // In the wrong order, which the composite corrects.
        let read_only = self.read_only.iter().enumerate();
        let read_only = read_only.map(|(at, delegate)| {
            BlobDelegate::read_only(format!("production{at}"), delegate.store.clone())
        });
        let writable = self.writable.iter().enumerate();
        let writable = writable
            .map(|(at, store)| BlobDelegate::writable(format!("staging{at}"), store.clone()));
        read_only.chain(writable).collect()
    }

    fn open_composite(&self) -> CompositeBlobStorage {
        CompositeBlobStorage::new(self.delegates())
    }

    fn fingerprints(&self) -> Vec<String> {
        self.read_only.iter().map(|delegate| (delegate.fingerprint)()).collect()
    }
}

type CompositeCase = (&'static str, fn(&CompositeFixture));

/// The cases; those from OAK-7083 have their original names.
const COMPOSITE_CASES: &[CompositeCase] = &[
    ("add_goes_to_the_first_writable_delegate", add_goes_to_the_first_writable_delegate),
    ("add_of_what_is_read_only_is_stored_again", add_of_what_is_read_only_is_stored_again),
    ("add_of_a_failing_stream_stores_nothing", add_of_a_failing_stream_stores_nothing),
    ("add_without_a_writable_delegate_is_an_error", add_without_a_writable_delegate_is_an_error),
    ("get_finds_in_any_delegate", get_finds_in_any_delegate),
    ("get_of_an_unmapped_id_finds_nothing", get_of_an_unmapped_id_finds_nothing),
    ("get_follows_a_blob_that_moved", get_follows_a_blob_that_moved),
    ("equal_references_in_both_repositories", equal_references_in_both_repositories),
    ("delete_removes_from_all_matching_writables", delete_removes_from_all_matching_writables),
    ("delete_of_what_is_only_read_does_nothing", delete_of_what_is_only_read_does_nothing),
    ("delete_all_older_than_leaves_read_only_alone", delete_all_older_than_leaves_read_only_alone),
    ("min_record_length_ignores_read_only", min_record_length_ignores_read_only),
    ("delegates_are_asked_in_order", delegates_are_asked_in_order),
    ("metadata_of_all_delegates_is_found", metadata_of_all_delegates_is_found),
    ("weakness_metadata_is_written_to_read_only", weakness_metadata_is_written_to_read_only),
    ("weakness_metadata_delete_stops_at_the_first", weakness_metadata_delete_stops_at_the_first),
    (
        "weakness_a_failing_delegate_passes_for_absence",
        weakness_a_failing_delegate_passes_for_absence,
    ),
    ("weakness_an_overlapping_id_is_listed_twice", weakness_an_overlapping_id_is_listed_twice),
    ("nothing_is_written_to_what_is_read_only", nothing_is_written_to_what_is_read_only),
];

/// Runs every case with a new composite.
///
/// # Panics
/// With the name of the composite and the case, if one fails.
pub fn check_conformance(name: &str, make: impl Fn() -> CompositeFixture) {
    for (case, check) in COMPOSITE_CASES {
        let composition = make();
        let run = catch_unwind(AssertUnwindSafe(|| check(&composition)));
        if let Err(fault) = run {
            let message = format!("`{name}` fails `{case}`\n");
            io::Write::write_all(&mut io::stderr(), message.as_bytes()).ok();
            resume_unwind(fault);
        }
    }
}

/// Returns bytes that depend on `seed`; they are always large enough for a file.
#[must_use]
pub fn sample_blob(seed: u8) -> Vec<u8> {
    (0..20_000_u32).map(|at| (at.wrapping_mul(31) >> 3) as u8 ^ seed).collect()
}

/// Reads an opened blob.
///
/// # Panics
/// If it cannot be read.
#[must_use]
#[expect(clippy::expect_used, reason = "a test fails by panicking")]
pub fn read_content(content: BlobContent) -> Vec<u8> {
    let mut bytes = Vec::new();
    content.into_reader().read_to_end(&mut bytes).expect("the blob can be read");
    bytes
}

#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
fn read_blob(store: &dyn ReadBlobs, id: &BlobId) -> Option<Vec<u8>> {
    store.open(id).unwrap().map(read_content)
}

#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
fn put_blob(store: &dyn WriteBlobs, bytes: &[u8]) -> BlobId {
    store.put(&mut &*bytes).unwrap()
}

#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
fn has_blob(store: &dyn ReadBlobs, id: &BlobId) -> bool {
    store.contains(id).unwrap()
}

#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
fn list_blobs(store: &dyn ReadBlobs) -> Vec<BlobId> {
    let mut ids = Vec::new();
    store
        .list(&mut |blob| {
            ids.push(blob.id);
            ControlFlow::Continue(())
        })
        .unwrap();
    ids.sort();
    ids
}

fn add_goes_to_the_first_writable_delegate(composition: &CompositeFixture) {
    let composite = composition.open_composite();
    let before = composition.fingerprints();
    let id = put_blob(&composite, &sample_blob(1));
    assert_eq!(id, BlobId::hash_of(&sample_blob(1)));
    for (at, store) in composition.writable.iter().enumerate() {
        assert_eq!(has_blob(&**store, &id), at == 0, "delegate {at}");
    }
    assert_eq!(composition.fingerprints(), before);
    assert_eq!(read_blob(&composite, &id), Some(sample_blob(1)));
}

fn add_of_what_is_read_only_is_stored_again(composition: &CompositeFixture) {
    let [delegate, ..] = &*composition.read_only else { return };
    let [first, ..] = &*composition.writable else { return };
    let id = (delegate.fill)(&sample_blob(2));
    let composite = composition.open_composite();
    assert_eq!(put_blob(&composite, &sample_blob(2)), id);
    assert!(has_blob(&**first, &id), "production may drop it one day");
    assert_eq!(
        composite.put_all(&[&sample_blob(2), &sample_blob(3)]).ok(),
        Some(vec![id, BlobId::hash_of(&sample_blob(3))])
    );
    let named = composite.put_named(&id, &mut sample_blob(4).as_slice());
    assert!(matches!(named, Err(Error::IdMismatch { .. })), "{named:?}");
    assert!(!has_blob(&composite, &BlobId::hash_of(&sample_blob(4))));
}

/// A stream that ends with an error.
struct FailingBlobReader;

impl Read for FailingBlobReader {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::other("the cable was pulled"))
    }
}

fn add_of_a_failing_stream_stores_nothing(composition: &CompositeFixture) {
    let composite = composition.open_composite();
    let head = vec![7; 40_000];
    let mut torn = head.as_slice().chain(FailingBlobReader);
    assert!(matches!(composite.put(&mut torn), Err(Error::Source(_))));
    for store in &composition.writable {
        assert_eq!(list_blobs(&**store), []);
    }
}

/// Oak logs a warning and returns no record, which its callers store as if it were one.
fn add_without_a_writable_delegate_is_an_error(composition: &CompositeFixture) {
    let only_read = composition.delegates();
    let only_read = only_read.into_iter().filter(|delegate| delegate.writer().is_none()).collect();
    let composite = CompositeBlobStorage::new(only_read);
    let before = composition.fingerprints();
    let refused = |done: Result<BlobId>| matches!(done, Err(Error::NoWritableDelegate { .. }));
    assert!(refused(composite.put(&mut &*sample_blob(1))));
    assert!(composite.write_note("repository-1", b"").is_err());
    assert!(composite.put_all(&[&sample_blob(1)]).is_err());
    assert_eq!(composition.fingerprints(), before);
}

fn get_finds_in_any_delegate(composition: &CompositeFixture) {
    let mut expected = Vec::new();
    for (seed, store) in (10..).zip(&composition.writable) {
        expected.push((put_blob(&**store, &sample_blob(seed)), sample_blob(seed)));
    }
    for (seed, delegate) in (20..).zip(&composition.read_only) {
        expected.push(((delegate.fill)(&sample_blob(seed)), sample_blob(seed)));
    }
    let composite = composition.open_composite();
    // Twice: with unknown location, and with a known one.
    for _ in 0..2 {
        for (id, bytes) in &expected {
            assert!(has_blob(&composite, id));
            assert_eq!(read_blob(&composite, id).as_ref(), Some(bytes));
        }
    }
    assert!(composite.counts().origin_hits > 0);
}

fn get_of_an_unmapped_id_finds_nothing(composition: &CompositeFixture) {
    let composite = composition.open_composite();
    for length in [0, 100, 20_000] {
        let absent = BlobId::new([9; 32], length);
        assert_eq!(read_blob(&composite, &absent), None);
        assert!(!has_blob(&composite, &absent));
        assert_eq!(composite.find_delegate(&absent).ok(), Some(None));
    }
}

fn get_follows_a_blob_that_moved(composition: &CompositeFixture) {
    let [first, ..] = &*composition.writable else { return };
    let [delegate, ..] = &*composition.read_only else { return };
    let composite = composition.open_composite();
    let id = put_blob(&**first, &sample_blob(5));
    assert_eq!(read_blob(&composite, &id), Some(sample_blob(5)));
    (delegate.fill)(&sample_blob(5));
    assert_eq!(first.delete(&id).ok(), Some(true));
    assert_eq!(read_blob(&composite, &id), Some(sample_blob(5)), "its origin is out of date");
    assert_eq!(composite.counts().stale_origins, 1);
}

fn equal_references_in_both_repositories(composition: &CompositeFixture) {
    for delegate in &composition.read_only {
        let read_only_id = (delegate.fill)(&sample_blob(6));
        assert_eq!(
            put_blob(&composition.open_composite(), &sample_blob(6)).to_string(),
            read_only_id.to_string()
        );
    }
}

fn delete_removes_from_all_matching_writables(composition: &CompositeFixture) {
    let id = BlobId::hash_of(&sample_blob(7));
    for store in &composition.writable {
        put_blob(&**store, &sample_blob(7));
    }
    let composite = composition.open_composite();
    assert_eq!(composite.delete(&id).ok(), Some(true));
    for store in &composition.writable {
        assert!(!has_blob(&**store, &id));
    }
    assert_eq!(composite.delete(&id).ok(), Some(false));
}

fn delete_of_what_is_only_read_does_nothing(composition: &CompositeFixture) {
    let filled: Vec<BlobId> =
        composition.read_only.iter().map(|delegate| (delegate.fill)(&sample_blob(8))).collect();
    let (composite, before) = (composition.open_composite(), composition.fingerprints());
    for id in &filled {
        assert_eq!(composite.delete(id).ok(), Some(false));
        assert_eq!(composite.discard(id, one_hour_from_now()).ok(), Some(false));
        assert_eq!(read_blob(&composite, id), Some(sample_blob(8)));
    }
    assert_eq!(composition.fingerprints(), before);
}

fn one_hour_from_now() -> SystemTime {
    SystemTime::now() + Duration::from_hours(1)
}

fn delete_all_older_than_leaves_read_only_alone(composition: &CompositeFixture) {
    let mut written = 0;
    for (seed, store) in (30..).zip(&composition.writable) {
        put_blob(&**store, &sample_blob(seed));
        written += 1;
    }
    let read_only_ids: Vec<BlobId> =
        composition.read_only.iter().map(|delegate| (delegate.fill)(&sample_blob(9))).collect();
    let (composite, before) = (composition.open_composite(), composition.fingerprints());
    assert_eq!(composite.delete_unused(SystemTime::UNIX_EPOCH).ok(), Some(0));
    assert_eq!(composite.delete_unused(one_hour_from_now()).ok(), Some(written));
    assert_eq!(composition.fingerprints(), before);
    assert!(read_only_ids.iter().all(|id| has_blob(&composite, id)));
}

fn min_record_length_ignores_read_only(composition: &CompositeFixture) {
    let least = composition.writable.iter().map(|store| store.min_blob_bytes()).min();
    assert_eq!(composition.open_composite().min_written_bytes(), least.unwrap_or(0));
}

fn delegates_are_asked_in_order(composition: &CompositeFixture) {
    let composite = composition.open_composite();
    let roles: Vec<&str> = composite.delegates().iter().map(BlobDelegate::role).collect();
    let writable = (0..composition.writable.len()).map(|at| format!("staging{at}"));
    let read_only = (0..composition.read_only.len()).map(|at| format!("production{at}"));
    assert_eq!(roles, writable.chain(read_only).collect::<Vec<_>>());
    let named: Vec<&str> = composite.writable_delegates().map(|(role, _)| role).collect();
    assert_eq!(named.len(), composition.writable.len());
}

#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
fn metadata_of_all_delegates_is_found(composition: &CompositeFixture) {
    let composite = composition.open_composite();
    composite.write_note("repository-a", b"one").unwrap();
    composite.write_note("references-a", b"two").unwrap();
    composite.write_note("references-a", b"three").unwrap();
    let note = composite.open_note("references-a").unwrap().map(read_content);
    assert_eq!(note.as_deref(), Some(&b"three"[..]));
    assert!(composite.open_note("references-b").unwrap().is_none());
    let names = |prefix: &str| {
        let notes = composite.list_notes(prefix).unwrap();
        notes.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(names("repository-a"), ["repository-a"]);
    assert_eq!(names("references-"), ["references-a"]);
    for name in ["", "../up", "a/b", ".hidden", "tmp", "trash", "0begins"] {
        assert!(
            matches!(composite.write_note(name, b""), Err(Error::InvalidNoteName { .. })),
            "{name}"
        );
        assert!(composite.open_note(name).is_err() && composite.delete_note(name).is_err());
    }
}

fn weakness_metadata_is_written_to_read_only(composition: &CompositeFixture) {
    let (composite, before) = (composition.open_composite(), composition.fingerprints());
    assert!(composite.write_note("repository-1", b"").is_ok());
    assert!(composite.delete_note("repository-1").is_ok());
    assert_eq!(composition.fingerprints(), before);
}

fn weakness_metadata_delete_stops_at_the_first(composition: &CompositeFixture) {
    let composite = composition.open_composite();
    assert!(composite.write_note("repository-1", b"").is_ok());
    for store in &composition.writable {
        assert!(store.open_note("repository-1").is_ok_and(|note| note.is_some()));
    }
    assert_eq!(composite.delete_note("repository-1").ok(), Some(true));
    for store in &composition.writable {
        assert!(store.open_note("repository-1").is_ok_and(|note| note.is_none()));
    }
    assert_eq!(composite.delete_note("repository-1").ok(), Some(false));
}

/// A delegate with a failed disk or network.
#[derive(Debug)]
struct UnavailableDelegate;

fn unavailable_error() -> Error {
    Error::Source(io::Error::other("it is gone"))
}

impl ReadBlobs for UnavailableDelegate {
    fn open(&self, _: &BlobId) -> Result<Option<BlobContent>> {
        Err(unavailable_error())
    }

    fn contains(&self, _: &BlobId) -> Result<bool> {
        Err(unavailable_error())
    }

    fn min_blob_bytes(&self) -> u64 {
        0
    }
}

fn weakness_a_failing_delegate_passes_for_absence(composition: &CompositeFixture) {
    let mut delegates = composition.delegates();
    delegates.insert(0, BlobDelegate::read_only("gone", Arc::new(UnavailableDelegate)));
    let composite = CompositeBlobStorage::new(delegates);
    let absent = BlobId::new([9; 32], 20_000);
    let is_named = |error: Error| {
        assert!(error.to_string().contains("`gone`"), "{error}");
        matches!(error, Error::Delegate { role, .. } if role == "gone")
    };
    assert!(composite.open(&absent).is_err_and(is_named));
    assert!(composite.contains(&absent).is_err_and(is_named));
    // Blobs of other delegates are still served.
    for (seed, delegate) in (40..).zip(&composition.read_only) {
        let id = (delegate.fill)(&sample_blob(seed));
        assert_eq!(read_blob(&composite, &id), Some(sample_blob(seed)));
    }
    let id = put_blob(&composite, &sample_blob(50));
    assert_eq!(read_blob(&composite, &id), Some(sample_blob(50)));
    assert!(composite.counts().delegate_failures >= 2);
}

fn weakness_an_overlapping_id_is_listed_twice(composition: &CompositeFixture) {
    if !composition.read_only.iter().all(|delegate| delegate.is_listable) {
        assert!(composition.open_composite().list(&mut |_| ControlFlow::Continue(())).is_err());
        return;
    }
    let mut expected = list_blobs(&composition.open_composite());
    expected.push(BlobId::hash_of(&sample_blob(60)));
    for delegate in &composition.read_only {
        (delegate.fill)(&sample_blob(60));
    }
    for (seed, store) in (61..).zip(&composition.writable) {
        put_blob(&**store, &sample_blob(60));
        expected.push(put_blob(&**store, &sample_blob(seed)));
    }
    expected.sort();
    assert_eq!(list_blobs(&composition.open_composite()), expected);
}

/// Runs all operations of a site that uses the blobs of production, and more.
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
fn nothing_is_written_to_what_is_read_only(composition: &CompositeFixture) {
    let read_only_ids: Vec<BlobId> =
        composition.read_only.iter().map(|delegate| (delegate.fill)(&sample_blob(70))).collect();
    let (composite, before) = (composition.open_composite(), composition.fingerprints());
    for id in &read_only_ids {
        assert_eq!(read_blob(&composite, id), Some(sample_blob(70)));
        composite.touch(id).unwrap();
        composite.put_named(id, &mut &*sample_blob(70)).unwrap();
        composite.undelete(id).unwrap();
        composite.purge(id).unwrap();
        composite.discard(id, one_hour_from_now()).unwrap();
        composite.undelete(id).unwrap();
        composite.delete(id).unwrap();
        assert_eq!(read_blob(&composite, id), Some(sample_blob(70)));
    }
    put_blob(&composite, &sample_blob(71));
    composite.put_all(&[&sample_blob(72), &sample_blob(70)]).unwrap();
    composite.write_note("references-1", b"all of them").unwrap();
    composite.delete_note("references-1").unwrap();
    composite.delete_unused(one_hour_from_now()).unwrap();
    assert_eq!(composition.fingerprints(), before);
    // Writable delegates have another type: this would not compile.
    assert!(
        composite.delegates().iter().filter(|one| one.writer().is_none()).count()
            == read_only_ids.len()
    );
}
