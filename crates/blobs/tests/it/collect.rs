//! Garbage collection of a real folder.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use tympan_blobs::garbage_collection::{
    BlobIdSorter, CompareAndSwapNote, GuestNotes, HomeIdentity, IdentityStatus, MarkWriter,
    RepositoryIdentity, SharedBlobStorage, StorageMember, SweepClock, SweepMode, SweepOptions,
    SweepReport, count_blobs, find_missing_blobs, is_guest, list_members, register_member,
    sweep_storage, unregister_member,
};
use tympan_blobs::{BlobFolder, BlobId, Error, ReadBlobs, ReadOnlyBlobFolder, WriteBlobs};

const DAY: Duration = Duration::from_hours(24);

struct Shared {
    dir: tempfile::TempDir,
    place: BlobFolder,
    now: SystemTime,
}

impl Shared {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let place = BlobFolder::open(&dir.path().join("blobs")).unwrap();
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

    fn mark(&self, member: &StorageMember, turn: &str, ids: &[BlobId]) {
        register_member(&self.place, member, self.now).unwrap();
        let mut marks = MarkWriter::begin(self.now, self.dir.path());
        ids.iter().for_each(|id| marks.add(id).unwrap());
        marks.publish(&self.place, member, turn).unwrap();
    }

    fn options(&self) -> SweepOptions {
        SweepOptions::with_defaults(self.now, self.dir.path().to_owned())
    }

    fn sweep(&self) -> SweepReport {
        sweep_storage(&self.place, &self.options(), &mut || ControlFlow::Continue(())).unwrap()
    }
}

fn bytes(seed: u8) -> Vec<u8> {
    vec![seed; 20_000 + usize::from(seed)]
}

fn member(id: &str) -> StorageMember {
    StorageMember { id: id.to_owned(), name: format!("home {id}") }
}

#[test]
fn what_nobody_marked_goes_to_the_trash_and_later_for_good() {
    let mut shared = Shared::new();
    let ids: Vec<BlobId> = (1..=4).map(|seed| shared.put(seed)).collect();
    ids.iter().take(3).for_each(|id| shared.set_age(&shared.file(id), 3));
    let (a, b) = (member("a"), member("b"));
    shared.mark(&a, "1", &ids[..1]);
    register_member(&shared.place, &b, shared.now).unwrap();
    // One that never marked may need everything.
    let waiting = shared.sweep();
    assert_eq!(
        (waiting.unmarked_members, waiting.discarded.blob_count),
        (vec!["home b".to_owned()], 0)
    );
    shared.mark(&b, "1", &ids[1..2]);

    let dry = SweepOptions { mode: SweepMode::DryRun, ..shared.options() };
    let dry = sweep_storage(&shared.place, &dry, &mut || ControlFlow::Continue(())).unwrap();
    assert_eq!((dry.discarded.blob_count, dry.discarded.bytes), (1, 20_003));
    assert!(shared.file(&ids[2]).exists(), "a dry run moves nothing");

    let swept = shared.sweep();
    assert_eq!(
        (swept.live.blob_count, swept.discarded.blob_count, swept.too_young.blob_count),
        (2, 1, 1)
    );
    assert!(!shared.file(&ids[2]).exists());
    assert!(shared.place.open(&ids[2]).unwrap().is_some(), "it is read from the trash");
    assert_eq!(count_blobs(&shared.place).unwrap().trash.blob_count, 1);
    assert_eq!(shared.sweep().remaining_trash.blob_count, 1);

    // Somebody needs it again.
    shared.mark(&a, "2", &[ids[0], ids[2]]);
    assert_eq!(shared.sweep().restored.blob_count, 1);
    assert!(shared.file(&ids[2]).exists());

    // And no more: into the trash, and a week later away.
    shared.set_age(&shared.file(&ids[2]), 3);
    shared.mark(&a, "3", &ids[..1]);
    assert_eq!(shared.sweep().discarded.blob_count, 1);
    shared.now += DAY * 9;
    assert_eq!(shared.sweep().purged.blob_count, 0, "nobody has marked since it went there");
    shared.mark(&a, "4", &ids[..1]);
    shared.mark(&b, "2", &ids[1..2]);
    assert_eq!(shared.sweep().purged.blob_count, 1);
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
    assert_eq!(shared.sweep().live.blob_count, 1);
    assert!(unregister_member(&shared.place, "gone").unwrap());
    assert!(!unregister_member(&shared.place, "gone").unwrap());
    assert_eq!(list_members(&shared.place).unwrap().len(), 1);
    assert_eq!(shared.sweep().discarded.blob_count, 1);
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
        let error =
            sweep_storage(&shared.place, &shared.options(), &mut || ControlFlow::Continue(()));
        assert!(matches!(error, Err(Error::MalformedNote { .. })), "{error:?}");
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
    assert_eq!(shared.sweep().live.blob_count, 1);
}

#[test]
fn marks_of_many_parts_come_back_whole() {
    let shared = Shared::new();
    let ids: Vec<BlobId> = (0..150_000_u32).map(|n| BlobId::hash_of(&n.to_le_bytes())).collect();
    shared.mark(&member("a"), "1", &ids);
    let marked = list_members(&shared.place).unwrap().remove(0).last_marks.unwrap();
    assert_eq!(marked.blob_count, 150_000);
    assert_eq!(shared.place.list_notes("marks-a.").unwrap().len(), 3);
    // Those of the next turn replace them all.
    shared.mark(&member("a"), "2", &ids[..10]);
    assert_eq!(shared.place.list_notes("marks-a.").unwrap().len(), 1);
    assert_eq!(shared.sweep().live.blob_count, 0);
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
    assert_eq!(shared.sweep().discarded.blob_count, 0);
    assert!(shared.file(&id).exists());
}

#[test]
fn missing_blobs_are_named_once() {
    let shared = Shared::new();
    let here = shared.put(1);
    let (mut needed, mut present) =
        (BlobIdSorter::new(shared.dir.path()), BlobIdSorter::new(shared.dir.path()));
    let gone: Vec<BlobId> = (2..6).map(|seed| BlobId::hash_of(&bytes(seed))).collect();
    for id in gone.iter().chain(&gone).chain([&here]) {
        needed.add_id(id).unwrap();
    }
    present.add_id(&BlobId::hash_of(b"another one")).unwrap();
    let (found, count) =
        find_missing_blobs(&mut |id| shared.place.contains(id), needed, present, 3).unwrap();
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
    let open = |home: &Path, fresh: &str| HomeIdentity::open(home, "machine", fresh).unwrap();
    let first = open(&home, "one");
    assert_eq!((first.id.as_str(), first.status), ("one", IdentityStatus::New));
    assert_eq!(
        (open(&home, "two").id.as_str(), open(&home, "two").status),
        ("one", IdentityStatus::Existing)
    );
    let copied = dir.path().join("copy");
    copy(&home, &copied);
    let copy = open(&copied, "three");
    assert_eq!((copy.id.as_str(), copy.status), ("three", IdentityStatus::Copy));
    assert_eq!(open(&copied, "four").id, "three");
    assert_eq!(open(&home, "five").id, "one");
    // A folder that moves stays what it is; on another machine it is not.
    let moved = dir.path().join("moved");
    std::fs::rename(&home, &moved).unwrap();
    assert_eq!(open(&moved, "six").id, "one");
    assert_eq!(HomeIdentity::open(&moved, "other", "seven").unwrap().id, "seven");
    // A name that is half-written is none.
    std::fs::write(moved.join("blobs.id"), "{\"id\":").unwrap();
    assert_eq!(open(&moved, "eight").id, "eight");
}

#[test]
fn a_copy_of_the_whole_machine_is_found_out_when_it_marks() {
    let shared = Shared::new();
    let home = shared.dir.path().join("home");
    std::fs::create_dir(&home).unwrap();
    let mut original = HomeIdentity::open(&home, "machine", "one").unwrap();
    original.begin_mark_round(&shared.place, ("machine", "never"), "t1").unwrap();
    shared.mark(&member("one"), "t1", &[]);
    // The same in every respect, down to the numbers of its files.
    let mut twin = original.clone();
    original.begin_mark_round(&shared.place, ("machine", "never"), "t2").unwrap();
    shared.mark(&member("one"), "t2", &[]);
    twin.begin_mark_round(&shared.place, ("machine", "two"), "t3").unwrap();
    assert_eq!((twin.id.as_str(), twin.status), ("two", IdentityStatus::Copy));
}

#[test]
fn a_turn_that_was_not_finished_makes_no_stranger() {
    let shared = Shared::new();
    let home = shared.dir.path().join("home");
    std::fs::create_dir(&home).unwrap();
    HomeIdentity::open(&home, "machine", "one").unwrap();
    for (turn, is_finished) in
        [("t1", true), ("t2", false), ("t3", false), ("t4", true), ("t5", true)]
    {
        let mut identity = HomeIdentity::open(&home, "machine", "never").unwrap();
        identity.begin_mark_round(&shared.place, ("machine", "never"), turn).unwrap();
        assert_eq!(identity.id, "one", "{turn}");
        if is_finished {
            shared.mark(&member("one"), turn, &[]);
        }
    }
}

#[test]
fn any_number_of_turns_that_fail_makes_no_stranger() {
    let shared = Shared::new();
    let home = shared.dir.path().join("home");
    std::fs::create_dir(&home).unwrap();
    let other = BlobFolder::open(&shared.dir.path().join("other")).unwrap();
    let begin = |turn: &str| {
        let mut identity = HomeIdentity::open(&home, "machine", "one").unwrap();
        identity.begin_mark_round(&shared.place, ("machine", "stranger"), turn).unwrap();
        identity.begin_mark_round(&other, ("machine", "stranger"), turn).unwrap();
        assert_eq!((identity.id.as_str(), turn), ("one", turn));
    };
    begin("t0");
    shared.mark(&member("one"), "t0", &[]);
    for failed in 1..100 {
        begin(&format!("t{failed}"));
    }
    let turns = std::fs::read_to_string(home.join("blobs.turn")).unwrap();
    assert!(turns.lines().count() <= 4, "{turns}");
    shared.mark(&member("one"), "t99", &[]);
    begin("t100");
    // A place that was moved has another name, and the same marks.
    let moved = shared.dir.path().join("moved");
    std::fs::rename(shared.place.dir(), &moved).unwrap();
    let mut identity = HomeIdentity::open(&home, "machine", "one").unwrap();
    let moved = BlobFolder::open(&moved).unwrap();
    identity.begin_mark_round(&moved, ("machine", "stranger"), "t101").unwrap();
    assert_eq!(identity.id, "one");
}

#[test]
fn turns_of_the_former_format_are_known() {
    let shared = Shared::new();
    let home = shared.dir.path().join("home");
    std::fs::create_dir(&home).unwrap();
    HomeIdentity::open(&home, "machine", "one").unwrap();
    std::fs::write(home.join("blobs.turn"), "t1\nt2\nt3").unwrap();
    shared.mark(&member("one"), "t2", &[]);
    let mut identity = HomeIdentity::open(&home, "machine", "never").unwrap();
    identity.begin_mark_round(&shared.place, ("machine", "never"), "t4").unwrap();
    assert_eq!(identity.id, "one");
}

#[test]
fn who_stores_is_registered_before() {
    let shared = Shared::new();
    let place = Arc::new(BlobFolder::open(shared.place.dir()).unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let joined = SharedBlobStorage::new(place, move || {
        // The first time its name cannot be read.
        match counted.fetch_add(1, Ordering::SeqCst) {
            0 => Err(Error::InvalidNoteName { name: String::new() }),
            _ => Ok(member("a")),
        }
    });
    assert!(joined.contains(&BlobId::hash_of(b"absent")).is_ok_and(|is_there| !is_there));
    assert!(list_members(&shared.place).unwrap().is_empty(), "who only looks needs nothing");
    assert!(joined.put(&mut &bytes(1)[..]).is_err());
    let mut count = 0;
    let mut see = |_| {
        count += 1;
        ControlFlow::Continue(())
    };
    shared.place.list(&mut see).unwrap();
    assert_eq!(count, 0, "nothing is stored by a stranger");
    let id = joined.put(&mut &bytes(1)[..]).unwrap();
    assert_eq!(list_members(&shared.place).unwrap()[0].member, member("a"));
    assert!(joined.touch(&id).unwrap());
    assert_eq!(asked.load(Ordering::SeqCst), 2, "and is registered once");
    // A blob of a repository that has not marked stays, whatever the others say.
    shared.set_age(&shared.file(&id), 30);
    shared.mark(&member("b"), "1", &[]);
    assert_eq!(shared.sweep().unmarked_members, ["home a"]);
}

#[test]
fn an_upload_for_later_does_not_wait_for_a_place_that_is_away() {
    let shared = Shared::new();
    let memory = shared.dir.path().join("registered");
    let gone = shared.dir.path().join("gone");
    let open = || {
        let place = Arc::new(BlobFolder::open(&gone).unwrap());
        let asked = SharedBlobStorage::new(place, || Ok(member("a")));
        asked.with_registration_file(memory.clone())
    };
    open().put(&mut &bytes(1)[..]).unwrap();
    unregister_member(&BlobFolder::open(&gone).unwrap(), "a").unwrap();
    let joined = open();
    joined.put(&mut &bytes(2)[..]).unwrap();
    assert!(
        list_members(&BlobFolder::open(&gone).unwrap()).unwrap().is_empty(),
        "it was not asked"
    );
    joined.register().unwrap();
    assert_eq!(list_members(&BlobFolder::open(&gone).unwrap()).unwrap().len(), 1);
}

#[test]
fn one_sweeps_at_a_time() {
    let shared = Shared::new();
    let id = shared.put(1);
    shared.set_age(&shared.file(&id), 3);
    shared.mark(&member("a"), "1", &[]);
    let minutes = Arc::new(AtomicUsize::new(0));
    let (clock, begun) = (Arc::clone(&minutes), shared.now);
    let clock = SweepClock::new(move || {
        let minutes = u32::try_from(clock.load(Ordering::SeqCst)).unwrap();
        begun + Duration::from_mins(1) * minutes
    });
    let options = |sweeper: Option<&str>| SweepOptions {
        sweeper_name: sweeper.map(str::to_owned),
        clock: clock.clone(),
        ..shared.options()
    };
    let go_on = &mut || ControlFlow::Continue(());
    // A process that dies in the middle leaves its turn.
    shared.place.write_note("sweep-7", &turn_until(Some("a"), shared.now, 10)).unwrap();
    for sweeper in [Some("b"), None] {
        let swept = sweep_storage(&shared.place, &options(sweeper), go_on).unwrap();
        assert_eq!(swept.discarded.blob_count, 0);
        assert_eq!(swept.occupied_until, Some(micros(shared.now + Duration::from_mins(10))));
    }
    let dry = SweepOptions { mode: SweepMode::DryRun, ..options(None) };
    assert_eq!(sweep_storage(&shared.place, &dry, go_on).unwrap().discarded.blob_count, 1);
    // The clocks of machines differ.
    minutes.store(14, Ordering::SeqCst);
    assert!(sweep_storage(&shared.place, &options(None), go_on).unwrap().occupied_until.is_some());
    minutes.store(16, Ordering::SeqCst);
    let swept = sweep_storage(&shared.place, &options(None), go_on).unwrap();
    assert_eq!((swept.discarded.blob_count, swept.occupied_until), (1, None));
    // Its own is taken up at once, and a turn that ended is free.
    shared.place.write_note("sweep-9", &turn_until(Some("a"), shared.now, 100)).unwrap();
    assert_eq!(
        sweep_storage(&shared.place, &options(Some("a")), go_on).unwrap().occupied_until,
        None
    );
    assert_eq!(
        sweep_storage(&shared.place, &options(Some("b")), go_on).unwrap().occupied_until,
        None
    );
    let notes = shared.place.list_notes("sweep-").unwrap();
    assert_eq!(notes.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["sweep-11"]);
}

#[test]
fn who_lost_the_turn_moves_nothing_more() {
    let shared = Shared::new();
    let ids: Vec<BlobId> = (1..=4).map(|seed| shared.put(seed)).collect();
    ids.iter().for_each(|id| shared.set_age(&shared.file(id), 3));
    shared.mark(&member("a"), "1", &[]);
    let minutes = Arc::new(AtomicUsize::new(0));
    let (clock, begun) = (Arc::clone(&minutes), shared.now);
    let clock = SweepClock::new(move || {
        begun + Duration::from_mins(1) * u32::try_from(clock.load(Ordering::SeqCst)).unwrap()
    });
    let options = SweepOptions { clock, ..shared.options() };
    let mut moved = 0;
    let swept = sweep_storage(&shared.place, &options, &mut || {
        moved += 1;
        if moved == 2 {
            // It stands still for an hour, and somebody else begins.
            minutes.store(60, Ordering::SeqCst);
            let others = turn_until(None, begun + Duration::from_hours(1), 10);
            assert!(shared.place.create_note("sweep-2", &others).unwrap());
        }
        ControlFlow::Continue(())
    });
    let swept = swept.unwrap();
    assert!(swept.is_stopped && swept.occupied_until.is_some());
    assert_eq!(
        (swept.discarded.blob_count, count_blobs(&shared.place).unwrap().live.blob_count),
        (2, 2)
    );
    assert!(shared.place.open_note("sweep-2").unwrap().is_some(), "the others go on");
}

/// Returns the note of a turn that ends so many minutes after a time.
fn turn_until(sweeper: Option<&str>, begun: SystemTime, minutes: u64) -> Vec<u8> {
    let until = begun + Duration::from_mins(minutes);
    let until = until.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
    let sweeper = sweeper.map_or_else(|| "null".to_owned(), |name| format!("{name:?}"));
    format!("{{\"sweeper\":{sweeper},\"until\":{until}}}").into_bytes()
}

/// Returns a time as notes hold it.
fn micros(at: SystemTime) -> SystemTime {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
    SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(since).unwrap())
}

#[test]
fn what_a_guest_marks_elsewhere_stays() {
    let shared = Shared::new();
    let ids: Vec<BlobId> = (1..=3).map(|seed| shared.put(seed)).collect();
    ids.iter().for_each(|id| shared.set_age(&shared.file(id), 3));
    shared.mark(&member("owner"), "1", &ids[..1]);
    let folder = shared.dir.path().join("guests");
    let notes = BlobFolder::open(&folder).unwrap();
    register_member(&notes, &member("guest"), shared.now).unwrap();
    let options = SweepOptions {
        guest_storages: vec![Arc::new(ReadOnlyBlobFolder::new(&folder))],
        ..shared.options()
    };
    let go_on = &mut || ControlFlow::Continue(());
    let waiting = sweep_storage(&shared.place, &options, go_on).unwrap();
    assert_eq!(
        (waiting.unmarked_members, waiting.discarded.blob_count),
        (vec!["home guest".to_owned()], 0)
    );
    let mut marks = MarkWriter::begin(shared.now, shared.dir.path());
    marks.add(&ids[1]).unwrap();
    marks.publish(&notes, &member("guest"), "1").unwrap();
    let swept = sweep_storage(&shared.place, &options, go_on).unwrap();
    assert_eq!((swept.live.blob_count, swept.discarded.blob_count), (2, 1));
    // What the guest says cannot be seen: its disk is not mounted, or nobody looks there any more.
    std::fs::remove_dir_all(&folder).unwrap();
    shared.set_age(&shared.file(&ids[1]), 3);
    for options in [&options, &shared.options()] {
        let waiting = sweep_storage(&shared.place, options, go_on).unwrap();
        assert_eq!(waiting.unmarked_members, ["home guest"]);
        assert_eq!(waiting.discarded.blob_count, 0);
    }
    assert!(unregister_member(&shared.place, "guest").unwrap());
    assert_eq!(shared.sweep().discarded.blob_count, 1);
}

/// Returns the notes of a guest that needs some blobs, in the order in which they are written.
fn notes_of(guest: &StorageMember, turn: &str, ids: &[BlobId]) -> Vec<(String, Vec<u8>)> {
    let dir = tempfile::tempdir().unwrap();
    let notes = BlobFolder::open(&dir.path().join("notes")).unwrap();
    register_member(&notes, guest, SystemTime::now()).unwrap();
    let mut marks = MarkWriter::begin(SystemTime::now(), dir.path());
    ids.iter().for_each(|id| marks.add(id).unwrap());
    marks.publish(&notes, guest, turn).unwrap();
    let mut names: Vec<String> =
        notes.list_notes("").unwrap().into_iter().map(|(name, _)| name).collect();
    // The repository first, then the parts, then what lets them count.
    names.sort_by_key(|name| (!name.starts_with("repository-"), !name.contains('.')));
    let bytes = |name: &String| {
        let mut bytes = Vec::new();
        let note = notes.open_note(name).unwrap().unwrap();
        std::io::Read::read_to_end(&mut note.into_reader(), &mut bytes).unwrap();
        bytes
    };
    names.iter().map(|name| (name.clone(), bytes(name))).collect()
}

#[test]
fn what_a_guest_from_elsewhere_marks_stays() {
    let shared = Shared::new();
    let ids: Vec<BlobId> = (1..=3).map(|seed| shared.put(seed)).collect();
    ids.iter().for_each(|id| shared.set_age(&shared.file(id), 3));
    shared.mark(&member("owner"), "1", &ids[..1]);
    let other = BlobFolder::open(&shared.dir.path().join("other")).unwrap();
    let first = BlobFolder::open(shared.place.dir()).unwrap();
    let guests = GuestNotes::new(vec![Arc::new(first), Arc::new(other)]);
    let notes = notes_of(&member("far"), "1", &ids[1..2]);
    let (names, counts): (Vec<&str>, Vec<usize>) =
        notes.iter().map(|(name, bytes)| (name.as_str(), bytes.len())).unzip();
    assert_eq!(names, ["repository-far", "marks-far.1.0", "marks-far"]);
    assert_eq!(counts[1], 40);
    assert!(guests.write("marks-far.1.0", &notes[1].1).is_err(), "nobody knows it yet");
    guests.write(names[0], &notes[0].1).unwrap();
    assert!(is_guest(&shared.place, "far").unwrap() && !is_guest(&shared.place, "owner").unwrap());
    assert_eq!(shared.sweep().unmarked_members, ["home far"]);
    notes.iter().for_each(|(name, bytes)| guests.write(name, bytes).unwrap());
    let swept = shared.sweep();
    assert_eq!((swept.live.blob_count, swept.discarded.blob_count), (2, 1));
    let listed = guests.list("marks-far.").unwrap();
    assert_eq!(listed.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["marks-far.1.0"]);
    assert_eq!(guests.read("marks-far").unwrap().unwrap(), notes[2].1);
    // New marks, and the parts of the former ones are taken away.
    for (name, bytes) in notes_of(&member("far"), "2", &ids[..1]) {
        guests.write(&name, &bytes).unwrap();
    }
    assert!(guests.remove("marks-far.1.0").unwrap() && !guests.remove("marks-far.1.0").unwrap());
    assert_eq!(shared.sweep().discarded.blob_count, 1);
    let other = BlobFolder::open(&shared.dir.path().join("other")).unwrap();
    assert_eq!(list_members(&other).unwrap().len(), 1, "every place knows");
    assert!(
        unregister_member(&shared.place, "far").unwrap()
            && !is_guest(&shared.place, "far").unwrap()
    );
}

#[test]
fn a_guest_from_elsewhere_touches_nothing_but_its_own_notes() {
    let shared = Shared::new();
    shared.mark(&member("owner"), "1", &[]);
    let before: Vec<String> =
        shared.place.list_notes("").unwrap().into_iter().map(|(name, _)| name).collect();
    let guests = GuestNotes::new(vec![Arc::new(BlobFolder::open(shared.place.dir()).unwrap())]);
    let refused = |done: Result<(), Error>| {
        let error = done.unwrap_err();
        assert!(
            matches!(error, Error::RefusedNote { .. } | Error::InvalidNoteName { .. }),
            "{error}"
        );
    };
    for (name, bytes) in notes_of(&member("owner"), "2", &[]) {
        refused(guests.write(&name, &bytes));
    }
    let own = notes_of(&member("far"), "1", &[]);
    for name in [
        "guest-far",
        "sweep-1",
        "sweep-99",
        "repository-",
        "marks-",
        "marks-far.",
        "marks-far.1",
        "marks-far.1.x",
        "marks-far.1.0.0",
        "../marks-far",
        "marks-f/../x",
        "tmp",
        "reference.key",
    ] {
        refused(guests.write(name, &own[0].1));
        refused(guests.remove(name).map(drop));
        refused(guests.read(name).map(drop));
    }
    for prefix in ["", "marks", "marks-", "marks-far", "repository-", "sweep-", "guest-"] {
        refused(guests.list(prefix).map(drop));
    }
    refused(guests.remove("marks-owner.1.0").map(drop));
    refused(guests.remove("repository-owner").map(drop));
    refused(guests.write("repository-far", b"{}"));
    refused(guests.write("repository-far", &notes_of(&member("near"), "1", &[])[0].1));
    let after: Vec<String> =
        shared.place.list_notes("").unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(before, after);
    guests.write(&own[0].0, &own[0].1).unwrap();
    refused(guests.write("marks-far", b"no marks"));
    refused(guests.write("marks-far.1.0", b"no ids"));
    refused(guests.remove("repository-far").map(drop));
    // A note of its own does not make the owner's its own.
    refused(guests.write("marks-owner", &own[1].1));
}

/// A note in memory, as several processes have it.
#[derive(Default)]
struct OneNote(Mutex<Option<Vec<u8>>>);

impl CompareAndSwapNote for OneNote {
    fn read(&self) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.0.lock().unwrap().clone())
    }

    fn compare_and_swap(&self, expected: Option<&[u8]>, new: &[u8]) -> Result<bool, Error> {
        let mut stored = self.0.lock().unwrap();
        let is_expected = stored.as_deref() == expected;
        if is_expected {
            *stored = Some(new.to_vec());
        }
        Ok(is_expected)
    }
}

#[test]
fn all_processes_on_a_database_have_one_name() {
    let note = Arc::new(OneNote::default());
    let threads: Vec<_> = (0..8)
        .map(|number| {
            let identity = RepositoryIdentity::new(note.clone(), "cluster/1/site".to_owned());
            std::thread::spawn(move || identity.open(&format!("fresh{number}")).unwrap())
        })
        .collect();
    let names: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let new: Vec<_> = names.iter().filter(|(_, kinship)| *kinship == IdentityStatus::New).collect();
    assert_eq!(new.len(), 1, "one of them made it: {names:?}");
    assert!(names.iter().all(|(id, _)| *id == new[0].0), "{names:?}");
}

#[test]
fn a_copy_of_a_database_is_found_out() {
    let shared = Shared::new();
    let note = Arc::new(OneNote::default());
    let original = RepositoryIdentity::new(note.clone(), "cluster/1/site".to_owned());
    assert_eq!(original.open("one").unwrap(), ("one".to_owned(), IdentityStatus::New));
    // Two processes take turns; each sees the place under a name of its own.
    let elsewhere = shared.dir.path().join("link");
    std::os::unix::fs::symlink(shared.place.dir(), &elsewhere).unwrap();
    let elsewhere = BlobFolder::open(&elsewhere).unwrap();
    for turn in 0..6 {
        let place = if turn % 2 == 0 { &shared.place } else { &elsewhere };
        let begun = original.begin_mark_round(place, "never", &format!("t{turn}")).unwrap();
        assert_eq!(begun, ("one".to_owned(), IdentityStatus::Existing), "{turn}");
        shared.mark(&member("one"), &format!("t{turn}"), &[]);
    }
    // Dumped and restored elsewhere.
    let copied = OneNote(Mutex::new(note.read().unwrap()));
    let restored = OneNote(Mutex::new(note.read().unwrap()));
    let restored = RepositoryIdentity::new(Arc::new(restored), "other/7/site".to_owned());
    assert_eq!(restored.open("two").unwrap(), ("two".to_owned(), IdentityStatus::Copy));
    // The files of the whole cluster were copied: the same in every respect.
    let twin = RepositoryIdentity::new(Arc::new(copied), "cluster/1/site".to_owned());
    assert_eq!(twin.open("three").unwrap(), ("one".to_owned(), IdentityStatus::Existing));
    twin.begin_mark_round(&shared.place, "three", "t6").unwrap();
    shared.mark(&member("one"), "t6", &[]);
    let original = RepositoryIdentity::new(
        Arc::new(OneNote(Mutex::new(Some(
            br#"{"id":"one","at":"cluster/1/site","turns":[{"turn":"t5","place":""}]}"#.to_vec(),
        )))),
        "cluster/1/site".to_owned(),
    );
    let begun = original.begin_mark_round(&shared.place, "four", "t7").unwrap();
    assert_eq!(begun, ("four".to_owned(), IdentityStatus::Copy));
}

/// As many blobs as `TYMPAN_BLOBS` says; prints how much memory the process has used at its peak, and the times.
#[test]
fn many_blobs_are_marked_swept_and_counted() {
    let count: u32 =
        std::env::var("TYMPAN_BLOBS").ok().and_then(|count| count.parse().ok()).unwrap_or(3_000);
    let shared = Shared::new();
    let old = shared.now - DAY * 3;
    let id = |number: u32| {
        let digest = *BlobId::hash_of(&number.to_le_bytes()).digest();
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
        register_member(&shared.place, &member(name), shared.now).unwrap();
        let mut marks = MarkWriter::begin(shared.now, shared.dir.path());
        // Each needs all but a few, and many of them twice.
        for number in (0..count).chain(0..count / 2).filter(|number| number % 1_000 != 7) {
            marks.add(&id(number)).unwrap();
        }
        marks.publish(&shared.place, &member(name), "1").unwrap();
    }
    let begun = Instant::now();
    let swept = shared.sweep();
    let sweeping = begun.elapsed();
    let garbage = u64::from(count / 1_000);
    assert_eq!(swept.discarded.blob_count, garbage);
    assert_eq!(swept.live.blob_count, u64::from(count) - garbage);
    let begun = Instant::now();
    let census = count_blobs(&shared.place).unwrap();
    assert_eq!((census.live.blob_count, census.trash.blob_count), (swept.live.blob_count, garbage));
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    eprintln!("{count} blobs: sweep {sweeping:.1?}, count {:.1?}, {peak}", begun.elapsed());
}
