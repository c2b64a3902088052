//! What every composite of blob stores must do, whatever its delegates are: the tests of OAK-7083 by their names, and
//! its weaknesses that are not to come back.
//!
//! In: a function that makes a composition anew, with a way behind each delegate. Out: a panic that names the
//! composition and the case.

use std::fmt::Debug;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tympan_blobs::{
    BlobContent, BlobId, Composite, Delegate, Error, ReadBlobs, Result, WriteBlobs,
};

/// Puts bytes into a place, as its owner does.
pub type Fill = Box<dyn Fn(&[u8]) -> BlobId>;

/// A delegate that is only read, with the way that its owner has into it.
pub struct Shelf {
    /// As the composite sees it.
    pub place: Arc<dyn ReadBlobs>,
    /// Puts bytes into it as its owner does.
    pub fill: Fill,
    /// Tells everything that a write could change: names, bytes, lengths, times.
    pub trace: Box<dyn Fn() -> String>,
    /// Whether it tells what it holds.
    pub is_listed: bool,
}

/// The delegates of one composite, each kind in its order.
pub struct Composition {
    /// Those that are written to.
    pub writable: Vec<Arc<dyn WriteBlobs>>,
    /// Those that are only read.
    pub read_only: Vec<Shelf>,
    /// Keeps what they stand on.
    pub keep: Box<dyn std::any::Any>,
}

impl Debug for Composition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} writable, {} read-only", self.writable.len(), self.read_only.len())
    }
}

impl Debug for Shelf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.place)
    }
}

impl Composition {
    fn delegates(&self) -> Vec<Delegate> {
        // In the wrong order, which the composite puts right.
        let read_only = self.read_only.iter().enumerate();
        let read_only = read_only
            .map(|(at, shelf)| Delegate::read_only(format!("production{at}"), shelf.place.clone()));
        let writable = self.writable.iter().enumerate();
        let writable =
            writable.map(|(at, place)| Delegate::writable(format!("staging{at}"), place.clone()));
        read_only.chain(writable).collect()
    }

    fn composite(&self) -> Composite {
        Composite::new(self.delegates())
    }

    fn traces(&self) -> Vec<String> {
        self.read_only.iter().map(|shelf| (shelf.trace)()).collect()
    }
}

type Case = (&'static str, fn(&Composition));

/// The cases, under the names that they have in OAK-7083 where they come from there.
const CASES: &[Case] = &[
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

/// Runs every case over a composition made for it.
///
/// # Panics
/// With the name of the composition and the case, if one fails.
pub fn conform(name: &str, make: impl Fn() -> Composition) {
    for (case, check) in CASES {
        let composition = make();
        let run = catch_unwind(AssertUnwindSafe(|| check(&composition)));
        if let Err(fault) = run {
            let said = format!("`{name}` fails `{case}`\n");
            io::Write::write_all(&mut io::stderr(), said.as_bytes()).ok();
            resume_unwind(fault);
        }
    }
}

/// Returns bytes that differ by `seed`; all are large enough for a file.
#[must_use]
pub fn picture(seed: u8) -> Vec<u8> {
    (0..20_000_u32).map(|at| (at.wrapping_mul(31) >> 3) as u8 ^ seed).collect()
}

/// Reads an opened blob.
///
/// # Panics
/// If it cannot be read.
#[must_use]
#[expect(clippy::expect_used, reason = "a test fails by panicking")]
pub fn bytes_of(content: BlobContent) -> Vec<u8> {
    let mut bytes = Vec::new();
    content.into_reader().read_to_end(&mut bytes).expect("the blob can be read");
    bytes
}

#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
fn read(place: &dyn ReadBlobs, id: &BlobId) -> Option<Vec<u8>> {
    place.open(id).unwrap().map(bytes_of)
}

#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
fn put(place: &dyn WriteBlobs, bytes: &[u8]) -> BlobId {
    place.put(&mut &*bytes).unwrap()
}

#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
fn has(place: &dyn ReadBlobs, id: &BlobId) -> bool {
    place.contains(id).unwrap()
}

#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
fn listed(place: &dyn ReadBlobs) -> Vec<BlobId> {
    let mut ids = Vec::new();
    place
        .list(&mut |one| {
            ids.push(one.id);
            ControlFlow::Continue(())
        })
        .unwrap();
    ids.sort();
    ids
}

fn add_goes_to_the_first_writable_delegate(composition: &Composition) {
    let composite = composition.composite();
    let before = composition.traces();
    let id = put(&composite, &picture(1));
    assert_eq!(id, BlobId::of(&picture(1)));
    for (at, place) in composition.writable.iter().enumerate() {
        assert_eq!(has(&**place, &id), at == 0, "delegate {at}");
    }
    assert_eq!(composition.traces(), before);
    assert_eq!(read(&composite, &id), Some(picture(1)));
}

fn add_of_what_is_read_only_is_stored_again(composition: &Composition) {
    let [shelf, ..] = &*composition.read_only else { return };
    let [first, ..] = &*composition.writable else { return };
    let id = (shelf.fill)(&picture(2));
    let composite = composition.composite();
    assert_eq!(put(&composite, &picture(2)), id);
    assert!(has(&**first, &id), "production may drop it one day");
    assert_eq!(
        composite.put_all(&[&picture(2), &picture(3)]).ok(),
        Some(vec![id, BlobId::of(&picture(3))])
    );
    let named = composite.put_named(&id, &mut picture(4).as_slice());
    assert!(matches!(named, Err(Error::Mismatch { .. })), "{named:?}");
    assert!(!has(&composite, &BlobId::of(&picture(4))));
}

/// A stream that ends in a failure.
struct Torn;

impl Read for Torn {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::other("the cable was pulled"))
    }
}

fn add_of_a_failing_stream_stores_nothing(composition: &Composition) {
    let composite = composition.composite();
    let head = vec![7; 40_000];
    let mut torn = head.as_slice().chain(Torn);
    assert!(matches!(composite.put(&mut torn), Err(Error::Source(_))));
    for place in &composition.writable {
        assert_eq!(listed(&**place), []);
    }
}

/// Oak's answer is a warning in the log and no record, which its callers store as if it were one.
fn add_without_a_writable_delegate_is_an_error(composition: &Composition) {
    let only_read = composition.delegates();
    let only_read = only_read.into_iter().filter(|one| one.writer().is_none()).collect();
    let composite = Composite::new(only_read);
    let before = composition.traces();
    let refused = |done: Result<BlobId>| matches!(done, Err(Error::NothingWritable { .. }));
    assert!(refused(composite.put(&mut &*picture(1))));
    assert!(composite.write_note("repository-1", b"").is_err());
    assert!(composite.put_all(&[&picture(1)]).is_err());
    assert_eq!(composition.traces(), before);
}

fn get_finds_in_any_delegate(composition: &Composition) {
    let mut expected = Vec::new();
    for (seed, place) in (10..).zip(&composition.writable) {
        expected.push((put(&**place, &picture(seed)), picture(seed)));
    }
    for (seed, shelf) in (20..).zip(&composition.read_only) {
        expected.push(((shelf.fill)(&picture(seed)), picture(seed)));
    }
    let composite = composition.composite();
    // Twice: not known where, and known.
    for _ in 0..2 {
        for (id, bytes) in &expected {
            assert!(has(&composite, id));
            assert_eq!(read(&composite, id).as_ref(), Some(bytes));
        }
    }
    assert!(composite.counts().hinted > 0);
}

fn get_of_an_unmapped_id_finds_nothing(composition: &Composition) {
    let composite = composition.composite();
    for length in [0, 100, 20_000] {
        let absent = BlobId::new([9; 32], length);
        assert_eq!(read(&composite, &absent), None);
        assert!(!has(&composite, &absent));
        assert_eq!(composite.find(&absent).ok(), Some(None));
    }
}

fn get_follows_a_blob_that_moved(composition: &Composition) {
    let [first, ..] = &*composition.writable else { return };
    let [shelf, ..] = &*composition.read_only else { return };
    let composite = composition.composite();
    let id = put(&**first, &picture(5));
    assert_eq!(read(&composite, &id), Some(picture(5)));
    (shelf.fill)(&picture(5));
    assert_eq!(first.delete(&id).ok(), Some(true));
    assert_eq!(read(&composite, &id), Some(picture(5)), "its origin is out of date");
    assert_eq!(composite.counts().misled, 1);
}

fn equal_references_in_both_repositories(composition: &Composition) {
    for shelf in &composition.read_only {
        let theirs = (shelf.fill)(&picture(6));
        assert_eq!(put(&composition.composite(), &picture(6)).to_string(), theirs.to_string());
    }
}

fn delete_removes_from_all_matching_writables(composition: &Composition) {
    let id = BlobId::of(&picture(7));
    for place in &composition.writable {
        put(&**place, &picture(7));
    }
    let composite = composition.composite();
    assert_eq!(composite.delete(&id).ok(), Some(true));
    for place in &composition.writable {
        assert!(!has(&**place, &id));
    }
    assert_eq!(composite.delete(&id).ok(), Some(false));
}

fn delete_of_what_is_only_read_does_nothing(composition: &Composition) {
    let filled: Vec<BlobId> =
        composition.read_only.iter().map(|shelf| (shelf.fill)(&picture(8))).collect();
    let (composite, before) = (composition.composite(), composition.traces());
    for id in &filled {
        assert_eq!(composite.delete(id).ok(), Some(false));
        assert_eq!(composite.discard(id, in_an_hour()).ok(), Some(false));
        assert_eq!(read(&composite, id), Some(picture(8)));
    }
    assert_eq!(composition.traces(), before);
}

fn in_an_hour() -> SystemTime {
    SystemTime::now() + Duration::from_hours(1)
}

fn delete_all_older_than_leaves_read_only_alone(composition: &Composition) {
    let mut written = 0;
    for (seed, place) in (30..).zip(&composition.writable) {
        put(&**place, &picture(seed));
        written += 1;
    }
    let theirs: Vec<BlobId> =
        composition.read_only.iter().map(|shelf| (shelf.fill)(&picture(9))).collect();
    let (composite, before) = (composition.composite(), composition.traces());
    assert_eq!(composite.delete_unused(SystemTime::UNIX_EPOCH).ok(), Some(0));
    assert_eq!(composite.delete_unused(in_an_hour()).ok(), Some(written));
    assert_eq!(composition.traces(), before);
    assert!(theirs.iter().all(|id| has(&composite, id)));
}

fn min_record_length_ignores_read_only(composition: &Composition) {
    let least = composition.writable.iter().map(|place| place.least_bytes()).min();
    assert_eq!(composition.composite().least_written_bytes(), least.unwrap_or(0));
}

fn delegates_are_asked_in_order(composition: &Composition) {
    let composite = composition.composite();
    let roles: Vec<&str> = composite.delegates().iter().map(Delegate::role).collect();
    let writable = (0..composition.writable.len()).map(|at| format!("staging{at}"));
    let read_only = (0..composition.read_only.len()).map(|at| format!("production{at}"));
    assert_eq!(roles, writable.chain(read_only).collect::<Vec<_>>());
    let named: Vec<&str> = composite.writable().map(|(role, _)| role).collect();
    assert_eq!(named.len(), composition.writable.len());
}

#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
fn metadata_of_all_delegates_is_found(composition: &Composition) {
    let composite = composition.composite();
    composite.write_note("repository-a", b"one").unwrap();
    composite.write_note("references-a", b"two").unwrap();
    composite.write_note("references-a", b"three").unwrap();
    let note = composite.open_note("references-a").unwrap().map(bytes_of);
    assert_eq!(note.as_deref(), Some(&b"three"[..]));
    assert!(composite.open_note("references-b").unwrap().is_none());
    let names = |prefix: &str| {
        let notes = composite.list_notes(prefix).unwrap();
        notes.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(names("repository-a"), ["repository-a"]);
    assert_eq!(names("references-"), ["references-a"]);
    for name in ["", "../up", "a/b", ".hidden", "tmp", "trash", "0begins"] {
        assert!(matches!(composite.write_note(name, b""), Err(Error::NoteName { .. })), "{name}");
        assert!(composite.open_note(name).is_err() && composite.delete_note(name).is_err());
    }
}

fn weakness_metadata_is_written_to_read_only(composition: &Composition) {
    let (composite, before) = (composition.composite(), composition.traces());
    assert!(composite.write_note("repository-1", b"").is_ok());
    assert!(composite.delete_note("repository-1").is_ok());
    assert_eq!(composition.traces(), before);
}

fn weakness_metadata_delete_stops_at_the_first(composition: &Composition) {
    let composite = composition.composite();
    assert!(composite.write_note("repository-1", b"").is_ok());
    for place in &composition.writable {
        assert!(place.open_note("repository-1").is_ok_and(|note| note.is_some()));
    }
    assert_eq!(composite.delete_note("repository-1").ok(), Some(true));
    for place in &composition.writable {
        assert!(place.open_note("repository-1").is_ok_and(|note| note.is_none()));
    }
    assert_eq!(composite.delete_note("repository-1").ok(), Some(false));
}

/// A delegate whose disk or network is gone.
#[derive(Debug)]
struct Gone;

fn gone() -> Error {
    Error::Source(io::Error::other("it is gone"))
}

impl ReadBlobs for Gone {
    fn open(&self, _: &BlobId) -> Result<Option<BlobContent>> {
        Err(gone())
    }

    fn contains(&self, _: &BlobId) -> Result<bool> {
        Err(gone())
    }

    fn least_bytes(&self) -> u64 {
        0
    }
}

fn weakness_a_failing_delegate_passes_for_absence(composition: &Composition) {
    let mut delegates = composition.delegates();
    delegates.insert(0, Delegate::read_only("gone", Arc::new(Gone)));
    let composite = Composite::new(delegates);
    let absent = BlobId::new([9; 32], 20_000);
    let is_named = |error: Error| {
        assert!(error.to_string().contains("`gone`"), "{error}");
        matches!(error, Error::Delegate { role, .. } if role == "gone")
    };
    assert!(composite.open(&absent).is_err_and(is_named));
    assert!(composite.contains(&absent).is_err_and(is_named));
    // What another delegate has is served all the same.
    for (seed, shelf) in (40..).zip(&composition.read_only) {
        let id = (shelf.fill)(&picture(seed));
        assert_eq!(read(&composite, &id), Some(picture(seed)));
    }
    let id = put(&composite, &picture(50));
    assert_eq!(read(&composite, &id), Some(picture(50)));
    assert!(composite.counts().failures >= 2);
}

fn weakness_an_overlapping_id_is_listed_twice(composition: &Composition) {
    if !composition.read_only.iter().all(|shelf| shelf.is_listed) {
        assert!(composition.composite().list(&mut |_| ControlFlow::Continue(())).is_err());
        return;
    }
    let mut expected = listed(&composition.composite());
    expected.push(BlobId::of(&picture(60)));
    for shelf in &composition.read_only {
        (shelf.fill)(&picture(60));
    }
    for (seed, place) in (61..).zip(&composition.writable) {
        put(&**place, &picture(60));
        expected.push(put(&**place, &picture(seed)));
    }
    expected.sort();
    assert_eq!(listed(&composition.composite()), expected);
}

/// Everything that a site does over the blobs of production, and then some.
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
fn nothing_is_written_to_what_is_read_only(composition: &Composition) {
    let theirs: Vec<BlobId> =
        composition.read_only.iter().map(|shelf| (shelf.fill)(&picture(70))).collect();
    let (composite, before) = (composition.composite(), composition.traces());
    for id in &theirs {
        assert_eq!(read(&composite, id), Some(picture(70)));
        composite.touch(id).unwrap();
        composite.put_named(id, &mut &*picture(70)).unwrap();
        composite.undelete(id).unwrap();
        composite.purge(id).unwrap();
        composite.discard(id, in_an_hour()).unwrap();
        composite.undelete(id).unwrap();
        composite.delete(id).unwrap();
        assert_eq!(read(&composite, id), Some(picture(70)));
    }
    put(&composite, &picture(71));
    composite.put_all(&[&picture(72), &picture(70)]).unwrap();
    composite.write_note("references-1", b"all of them").unwrap();
    composite.delete_note("references-1").unwrap();
    composite.delete_unused(in_an_hour()).unwrap();
    assert_eq!(composition.traces(), before);
    // What can be written to at all is held by another type: this would not compile.
    assert!(
        composite.delegates().iter().filter(|one| one.writer().is_none()).count() == theirs.len()
    );
}
