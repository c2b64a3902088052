//! Loss of power at any moment: all calls to a vault are recorded, and every state that a disk may be left in is opened.
//!
//! A call that has returned is on the disk. Of those under way, any may be, in any combination. A snapshot that is there has all
//! that it needs.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use parking_lot::Mutex;
use tympan_backup::{
    BackendWrapper, BackupProgress, CheckDepth, LocalBackend, Vault, VaultBackend, VaultFileKind,
    VaultObjectId, check_vault, find_path,
};

use crate::vault_bench::{Bench, PASSWORD, describe, noise, plant, prune_vault, save};

/// Of so many calls under way at once, all combinations are tried.
const TOGETHER: usize = 6;

pub(crate) type Files = BTreeMap<(u8, VaultObjectId), Vec<u8>>;

pub(crate) const KINDS: [VaultFileKind; 6] = [
    VaultFileKind::Config,
    VaultFileKind::Key,
    VaultFileKind::Lock,
    VaultFileKind::Snapshot,
    VaultFileKind::Index,
    VaultFileKind::Pack,
];

pub(crate) fn number(kind: VaultFileKind) -> u8 {
    KINDS.iter().position(|one| *one == kind).unwrap() as u8
}

/// What a call changes.
#[derive(Clone, Debug)]
struct Change {
    name: (u8, VaultObjectId),
    /// The bytes of a new file; nothing for one that is removed.
    bytes: Option<Vec<u8>>,
}

impl Change {
    fn apply(&self, files: &mut Files) {
        match &self.bytes {
            Some(bytes) => files.insert(self.name, bytes.clone()),
            None => files.remove(&self.name),
        };
    }
}

#[derive(Clone, Debug)]
enum Event {
    Begins(usize, Change),
    Ends(usize),
}

/// A backend that records what it is asked for, and when it has returned.
#[derive(Debug)]
struct Recorder {
    inner: LocalBackend,
    /// Whether each call counts as a round trip: then files are brought at once, and named one after another.
    is_far: bool,
    events: Mutex<(usize, Vec<Event>)>,
}

impl Recorder {
    fn record(&self, change: Change, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let call = {
            let mut events = self.events.lock();
            events.0 += 1;
            let call = events.0;
            events.1.push(Event::Begins(call, change));
            call
        };
        let done = work();
        self.events.lock().1.push(Event::Ends(call));
        done
    }
}

impl BackendWrapper for Recorder {
    fn inner(&self) -> &dyn VaultBackend {
        &self.inner
    }

    fn is_remote(&self) -> bool {
        self.is_far
    }

    fn write(&self, kind: VaultFileKind, id: &VaultObjectId, bytes: &[u8]) -> io::Result<()> {
        let change = Change { name: (number(kind), *id), bytes: Some(bytes.to_vec()) };
        self.record(change, || self.inner.write(kind, id, bytes))
    }

    fn remove(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<()> {
        let change = Change { name: (number(kind), *id), bytes: None };
        self.record(change, || self.inner.remove(kind, id))
    }
}

/// What a disk was left with.
#[derive(Debug)]
pub(crate) struct Left(pub(crate) Mutex<Files>);

impl VaultBackend for Left {
    fn location(&self) -> String {
        "what was left".to_owned()
    }

    fn create(&self) -> io::Result<()> {
        Err(ErrorKind::AlreadyExists.into())
    }

    fn list(&self, kind: VaultFileKind) -> io::Result<Vec<(VaultObjectId, u64)>> {
        let files = self.0.lock();
        let of_kind = files.iter().filter(|((one, _), _)| *one == number(kind));
        Ok(of_kind.map(|((_, id), bytes)| (*id, bytes.len() as u64)).collect())
    }

    fn read(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<Vec<u8>> {
        let found = self.0.lock().get(&(number(kind), *id)).cloned();
        found.ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn read_range(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        start: u64,
        length: usize,
    ) -> io::Result<Vec<u8>> {
        let bytes = self.read(kind, id)?;
        let start = usize::try_from(start).unwrap();
        let part = bytes.get(start..start + length);
        part.map(<[u8]>::to_vec).ok_or_else(|| ErrorKind::UnexpectedEof.into())
    }

    fn write(&self, kind: VaultFileKind, id: &VaultObjectId, bytes: &[u8]) -> io::Result<()> {
        self.0.lock().insert((number(kind), *id), bytes.to_vec());
        Ok(())
    }

    fn remove(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<()> {
        self.0.lock().remove(&(number(kind), *id));
        Ok(())
    }
}

/// Returns all states that the disk may be in at a moment, given what was there and what has happened by then.
fn states(before: &Files, events: &[Event]) -> Vec<Files> {
    let mut done = before.clone();
    let mut under_way: BTreeMap<usize, &Change> = BTreeMap::new();
    for event in events {
        match event {
            Event::Begins(call, change) => drop(under_way.insert(*call, change)),
            Event::Ends(call) => under_way.remove(call).unwrap().apply(&mut done),
        }
    }
    assert!(under_way.len() <= TOGETHER, "{} calls at once", under_way.len());
    let subsets = 0..1_u32 << under_way.len();
    let state = |subset: u32| {
        let mut files = done.clone();
        for (at, change) in under_way.values().enumerate() {
            if subset & 1 << at != 0 {
                change.apply(&mut files);
            }
        }
        files
    };
    subsets.map(state).collect()
}

#[test]
fn whatever_a_disk_is_left_with_is_a_whole_vault() {
    whatever_is_left_is_whole(false);
}

#[test]
fn whatever_a_far_disk_is_left_with_is_a_whole_vault() {
    whatever_is_left_is_whole(true);
}

fn whatever_is_left_is_whole(is_far: bool) {
    let bench = Bench::new();
    plant(&bench.source());
    let read_all = || {
        let mut files = Files::new();
        let backend = LocalBackend::new(bench.path("vault"));
        for kind in KINDS {
            for (id, _) in backend.list(kind).unwrap() {
                files.insert((number(kind), id), backend.read(kind, &id).unwrap());
            }
        }
        files
    };
    let before = read_all();
    let inner = LocalBackend::new(bench.path("vault"));
    let recorder = Arc::new(Recorder { inner, is_far, events: Mutex::default() });
    let vault = bench.open_through(recorder.clone());
    let first = save(&vault, &[bench.source()]).unwrap();
    std::fs::remove_file(bench.source().join("deep/er/est/b.bin")).unwrap();
    // Enough for several packs, whose writes overlap.
    std::fs::write(bench.source().join("large"), noise(40 << 20, 21)).unwrap();
    save(&vault, &[bench.source()]).unwrap();
    std::fs::remove_file(bench.source().join("large")).unwrap();
    std::fs::write(bench.source().join("last"), noise(1 << 20, 22)).unwrap();
    let last = save(&vault, &[bench.source()]).unwrap();
    vault.remove_snapshot(&first.snapshot.id).unwrap();
    prune_vault(&vault).unwrap();
    drop(vault);

    let events = std::mem::take(&mut recorder.events.lock().1);
    let mut seen = std::collections::HashSet::new();
    let (mut opened, mut snapshots) = (0, std::collections::BTreeSet::new());
    for moment in 0..=events.len() {
        for files in states(&before, &events[..moment]) {
            // The same files are the same state, however they came about.
            if !seen.insert(files.keys().copied().collect::<Vec<_>>()) {
                continue;
            }
            let left = Arc::new(Left(Mutex::new(files)));
            let vault = Arc::new(Vault::open(left, PASSWORD.as_bytes()).unwrap());
            let report =
                check_vault(&vault, CheckDepth::Structure, &BackupProgress::default()).unwrap();
            assert!(report.faults.is_empty(), "at {moment}: {:?}", report.faults);
            snapshots.insert(report.snapshots);
            opened += 1;
        }
    }
    assert!(opened > 25 && snapshots.len() == 4, "{opened} states with {snapshots:?} snapshots");
    println!("{opened} states of {} calls were opened", events.len() / 2);

    // The end is the vault itself, and restores.
    let end = states(&before, &events).pop().unwrap();
    assert_eq!(end, read_all());
    let path = bench.source().display().to_string();
    let node = find_path(&bench.vault, &bench.index(), &last.snapshot, &path).unwrap();
    bench.restore_node(&node, "out");
    assert_eq!(describe(&bench.path("out")), describe(&bench.source()));
}

/// The control: a vault that writes the snapshot before what it needs is told.
#[test]
fn an_order_that_loses_something_is_detected() {
    let bench = Bench::new();
    plant(&bench.source());
    let inner = LocalBackend::new(bench.path("vault"));
    let recorder = Arc::new(Recorder { inner, is_far: false, events: Mutex::default() });
    save(&bench.open_through(recorder.clone()), &[bench.source()]).unwrap();
    let mut files = Files::new();
    for event in recorder.events.lock().1.iter() {
        if let Event::Begins(_, change) = event {
            change.apply(&mut files);
        }
    }
    let backend = LocalBackend::new(bench.path("vault"));
    for kind in [VaultFileKind::Config, VaultFileKind::Key] {
        for (id, _) in backend.list(kind).unwrap() {
            files.insert((number(kind), id), backend.read(kind, &id).unwrap());
        }
    }
    for kind in [VaultFileKind::Pack, VaultFileKind::Index] {
        let mut files = files.clone();
        let lost = files.keys().find(|(one, _)| *one == number(kind)).copied().unwrap();
        files.remove(&lost);
        let vault = Vault::open(Arc::new(Left(Mutex::new(files))), PASSWORD.as_bytes()).unwrap();
        let report =
            check_vault(&Arc::new(vault), CheckDepth::Structure, &BackupProgress::default())
                .unwrap();
        assert!(!report.faults.is_empty(), "{kind}");
    }
}
