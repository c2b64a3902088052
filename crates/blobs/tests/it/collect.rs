//! Garbage collection of a real folder.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, SystemTime};

use tympan_blobs::collect::{
    Identity, Kinship, MarkWriter, Member, Sorter, SweepMode, SweepOptions, Swept, census, forget,
    missing, register, registered, sweep,
};
use tympan_blobs::{BlobId, Error, Folder, ReadBlobs, WriteBlobs};

const DAY: Duration = Duration::from_hours(24);

struct Shared {
    dir: tempfile::TempDir,
    place: Folder,
    now: SystemTime,
}

impl Shared {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let place = Folder::open(&dir.path().join("blobs")).unwrap();
        Self { dir, place, now: SystemTime::now() }
    }

    fn put(&self, seed: u8) -> BlobId {
        self.place.put(&mut &bytes(seed)[..]).unwrap()
    }

    /// Returns the file of a blob that can be read.
    fn file(&self, id: &BlobId) -> std::path::PathBuf {
        let text = id.to_string();
        let folder = self.place.dir().join(&text[..2]).join(&text[2..4]);
        folder.join(&text[..64])
    }

    fn set_age(&self, file: &Path, days: u32) {
        let file = File::options().write(true).open(file).unwrap();
        file.set_modified(self.now - DAY * days).unwrap();
    }

    fn mark(&self, member: &Member, turn: &str, ids: &[BlobId]) {
        register(&self.place, member, self.now).unwrap();
        let mut marks = MarkWriter::begin(self.now, self.dir.path());
        ids.iter().for_each(|id| marks.add(id).unwrap());
        marks.publish(&self.place, member, turn).unwrap();
    }

    fn options(&self) -> SweepOptions {
        SweepOptions::at(self.now, self.dir.path().to_owned())
    }

    fn sweep(&self) -> Swept {
        sweep(&self.place, &self.options(), &mut || ControlFlow::Continue(())).unwrap()
    }
}

fn bytes(seed: u8) -> Vec<u8> {
    vec![seed; 20_000 + usize::from(seed)]
}

fn member(id: &str) -> Member {
    Member { id: id.to_owned(), name: format!("home {id}") }
}

#[test]
fn what_nobody_marked_goes_to_the_trash_and_later_for_good() {
    let mut shared = Shared::new();
    let ids: Vec<BlobId> = (1..=4).map(|seed| shared.put(seed)).collect();
    ids.iter().take(3).for_each(|id| shared.set_age(&shared.file(id), 3));
    let (a, b) = (member("a"), member("b"));
    shared.mark(&a, "1", &ids[..1]);
    register(&shared.place, &b, shared.now).unwrap();
    // One that never marked may need everything.
    let waiting = shared.sweep();
    assert_eq!((waiting.waits_for, waiting.discarded.blobs), (vec!["home b".to_owned()], 0));
    shared.mark(&b, "1", &ids[1..2]);

    let dry = SweepOptions { mode: SweepMode::DryRun, ..shared.options() };
    let dry = sweep(&shared.place, &dry, &mut || ControlFlow::Continue(())).unwrap();
    assert_eq!((dry.discarded.blobs, dry.discarded.bytes), (1, 20_003));
    assert!(shared.file(&ids[2]).exists(), "a dry run moves nothing");

    let swept = shared.sweep();
    assert_eq!((swept.live.blobs, swept.discarded.blobs, swept.young.blobs), (2, 1, 1));
    assert!(!shared.file(&ids[2]).exists());
    assert!(shared.place.open(&ids[2]).unwrap().is_some(), "it is read from the trash");
    assert_eq!(census(&shared.place).unwrap().trash.blobs, 1);
    assert_eq!(shared.sweep().in_trash.blobs, 1);

    // Somebody needs it again.
    shared.mark(&a, "2", &[ids[0], ids[2]]);
    assert_eq!(shared.sweep().restored.blobs, 1);
    assert!(shared.file(&ids[2]).exists());

    // And no more: into the trash, and a week later away.
    shared.set_age(&shared.file(&ids[2]), 3);
    shared.mark(&a, "3", &ids[..1]);
    assert_eq!(shared.sweep().discarded.blobs, 1);
    shared.now += DAY * 9;
    assert_eq!(shared.sweep().purged.blobs, 0, "nobody has marked since it went there");
    shared.mark(&a, "4", &ids[..1]);
    shared.mark(&b, "2", &ids[1..2]);
    assert_eq!(shared.sweep().purged.blobs, 1);
    assert!(shared.place.open(&ids[2]).unwrap().is_none());
    assert!(ids[..2].iter().all(|id| shared.file(id).exists()));
}

#[test]
fn a_repository_that_is_forgotten_needs_nothing() {
    let shared = Shared::new();
    let id = shared.put(1);
    shared.set_age(&shared.file(&id), 3);
    shared.mark(&member("a"), "1", &[]);
    shared.mark(&member("gone"), "1", &[id]);
    assert_eq!(shared.sweep().live.blobs, 1);
    assert!(forget(&shared.place, "gone").unwrap());
    assert!(!forget(&shared.place, "gone").unwrap());
    assert_eq!(registered(&shared.place).unwrap().len(), 1);
    assert_eq!(shared.sweep().discarded.blobs, 1);
    assert_eq!(shared.place.list_notes("marks-gone").unwrap(), []);
}

#[test]
fn marks_that_are_damaged_stop_every_sweep() {
    let shared = Shared::new();
    let id = shared.put(1);
    shared.set_age(&shared.file(&id), 3);
    shared.mark(&member("a"), "1", &[id]);
    let part = shared.place.dir().join("marks-a.1.0");
    let whole = std::fs::read(&part).unwrap();
    let sweep_fails = || {
        let error = sweep(&shared.place, &shared.options(), &mut || ControlFlow::Continue(()));
        assert!(matches!(error, Err(Error::NoteMalformed { .. })), "{error:?}");
        assert!(shared.file(&id).exists());
    };
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        std::fs::write(&part, &damaged).unwrap();
        sweep_fails();
        std::fs::write(&part, &whole[..at]).unwrap();
        sweep_fails();
    }
    std::fs::remove_file(&part).unwrap();
    sweep_fails();
    for (note, text) in [("marks-a", "{"), ("repository-a", "{}"), ("repository-b", "")] {
        let file = shared.place.dir().join(note);
        let before = std::fs::read(&file).ok();
        std::fs::write(&part, &whole).unwrap();
        std::fs::write(&file, text).unwrap();
        sweep_fails();
        match before {
            Some(before) => std::fs::write(&file, before).unwrap(),
            None => std::fs::remove_file(&file).unwrap(),
        }
    }
    assert_eq!(shared.sweep().live.blobs, 1);
}

#[test]
fn marks_of_many_parts_come_back_whole() {
    let shared = Shared::new();
    let ids: Vec<BlobId> = (0..150_000_u32).map(|n| BlobId::of(&n.to_le_bytes())).collect();
    shared.mark(&member("a"), "1", &ids);
    let marked = registered(&shared.place).unwrap().remove(0).marked.unwrap();
    assert_eq!(marked.count, 150_000);
    assert_eq!(shared.place.list_notes("marks-a.").unwrap().len(), 3);
    // Those of the next turn replace them all.
    shared.mark(&member("a"), "2", &ids[..10]);
    assert_eq!(shared.place.list_notes("marks-a.").unwrap().len(), 1);
    assert_eq!(shared.sweep().live.blobs, 0);
}

#[test]
fn a_blob_that_lost_its_end_is_not_garbage() {
    let shared = Shared::new();
    let id = shared.put(1);
    let file = File::options().write(true).open(shared.file(&id)).unwrap();
    file.set_len(5).unwrap();
    drop(file);
    shared.set_age(&shared.file(&id), 3);
    shared.mark(&member("a"), "1", &[id]);
    assert_eq!(shared.sweep().discarded.blobs, 0);
    assert!(shared.file(&id).exists());
}

#[test]
fn missing_blobs_are_named_once() {
    let shared = Shared::new();
    let here = shared.put(1);
    let (mut needed, mut present) =
        (Sorter::new(shared.dir.path()), Sorter::new(shared.dir.path()));
    let gone: Vec<BlobId> = (2..6).map(|seed| BlobId::of(&bytes(seed))).collect();
    for id in gone.iter().chain(&gone).chain([&here]) {
        needed.add_id(id).unwrap();
    }
    present.add_id(&BlobId::of(b"another one")).unwrap();
    let (found, count) = missing(&mut |id| shared.place.contains(id), needed, present, 3).unwrap();
    let mut sorted = gone;
    sorted.sort();
    assert_eq!((found.as_slice(), count), (&sorted[..3], 4));
}

/// Copies a folder with everything that `cp -a` keeps.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn a_copied_home_takes_another_name() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    std::fs::create_dir(&home).unwrap();
    let open = |home: &Path, fresh: &str| Identity::open(home, "machine", fresh).unwrap();
    let first = open(&home, "one");
    assert_eq!((first.id.as_str(), first.kinship), ("one", Kinship::New));
    assert_eq!(
        (open(&home, "two").id.as_str(), open(&home, "two").kinship),
        ("one", Kinship::Known)
    );
    let copied = dir.path().join("copy");
    copy(&home, &copied);
    let copy = open(&copied, "three");
    assert_eq!((copy.id.as_str(), copy.kinship), ("three", Kinship::Copy));
    assert_eq!(open(&copied, "four").id, "three");
    assert_eq!(open(&home, "five").id, "one");
    // A folder that moves stays what it is; on another machine it is not.
    let moved = dir.path().join("moved");
    std::fs::rename(&home, &moved).unwrap();
    assert_eq!(open(&moved, "six").id, "one");
    assert_eq!(Identity::open(&moved, "other", "seven").unwrap().id, "seven");
    // A name that is half-written is none.
    std::fs::write(moved.join("blobs.id"), "{\"id\":").unwrap();
    assert_eq!(open(&moved, "eight").id, "eight");
}

#[test]
fn a_copy_of_the_whole_machine_is_found_out_when_it_marks() {
    let shared = Shared::new();
    let home = shared.dir.path().join("home");
    std::fs::create_dir(&home).unwrap();
    let mut original = Identity::open(&home, "machine", "one").unwrap();
    original.begin_turn(&shared.place, ("machine", "never"), "t1").unwrap();
    shared.mark(&member("one"), "t1", &[]);
    // The same in every respect, down to the numbers of its files.
    let mut twin = original.clone();
    original.begin_turn(&shared.place, ("machine", "never"), "t2").unwrap();
    shared.mark(&member("one"), "t2", &[]);
    twin.begin_turn(&shared.place, ("machine", "two"), "t3").unwrap();
    assert_eq!((twin.id.as_str(), twin.kinship), ("two", Kinship::Copy));
}

#[test]
fn a_turn_that_was_not_finished_makes_no_stranger() {
    let shared = Shared::new();
    let home = shared.dir.path().join("home");
    std::fs::create_dir(&home).unwrap();
    Identity::open(&home, "machine", "one").unwrap();
    for (turn, is_finished) in
        [("t1", true), ("t2", false), ("t3", false), ("t4", true), ("t5", true)]
    {
        let mut identity = Identity::open(&home, "machine", "never").unwrap();
        identity.begin_turn(&shared.place, ("machine", "never"), turn).unwrap();
        assert_eq!(identity.id, "one", "{turn}");
        if is_finished {
            shared.mark(&member("one"), turn, &[]);
        }
    }
}

/// As many blobs as `TYMPAN_BLOBS` says: how much memory the process has used is read from outside.
#[test]
fn many_blobs_are_marked_swept_and_counted() {
    let count: u32 =
        std::env::var("TYMPAN_BLOBS").ok().and_then(|count| count.parse().ok()).unwrap_or(3_000);
    let shared = Shared::new();
    let old = shared.now - DAY * 3;
    let id = |number: u32| {
        let digest = *BlobId::of(&number.to_le_bytes()).digest();
        BlobId::new(digest, 20_000)
    };
    for number in 0..count {
        let path = shared.file(&id(number));
        let file = File::create(&path).or_else(|_| {
            std::fs::create_dir_all(path.parent().unwrap())?;
            File::create(&path)
        });
        let file = file.unwrap();
        file.set_len(20_000).unwrap();
        file.set_modified(old).unwrap();
    }
    for name in ["a", "b", "c"] {
        register(&shared.place, &member(name), shared.now).unwrap();
        let mut marks = MarkWriter::begin(shared.now, shared.dir.path());
        // Each needs all but a few, and many of them twice.
        for number in (0..count).chain(0..count / 2).filter(|number| number % 1_000 != 7) {
            marks.add(&id(number)).unwrap();
        }
        marks.publish(&shared.place, &member(name), "1").unwrap();
    }
    let swept = shared.sweep();
    let garbage = u64::from(count / 1_000);
    assert_eq!(swept.discarded.blobs, garbage);
    assert_eq!(swept.live.blobs, u64::from(count) - garbage);
    let census = census(&shared.place).unwrap();
    assert_eq!((census.live.blobs, census.trash.blobs), (swept.live.blobs, garbage));
}
