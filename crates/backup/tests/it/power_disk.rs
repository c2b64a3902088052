//! Loss of power, one level below `power`: what a vault's folder has done by its file system is recorded call by call, and
//! every state that the disk may be left in is opened.
//!
//! Bytes are durable when their file was synced; until then they may be gone, cut off, or zeros. A name that is given or
//! taken away is durable when its folder was synced after it; until then it may be as before or as after, each for itself.
//!
//! Promises
//! * A file of the vault has all its bytes under its name.
//! * A snapshot that is there has all that it needs.
//! * A snapshot whose save has returned is there, until it is forgotten.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tympan_backup::{
    BackupProgress, CheckDepth, LocalBackend, NativeFileSystem, Vault, VaultFileKind,
    VaultFileSystem, VaultObjectId, WriterTuning, check_vault,
};

use crate::power::{Files, KINDS, Left, number};
use crate::vault_bench::{Bench, PASSWORD, noise, plant, prune_vault, save};

/// Of so many names at once that are not durable, all combinations are tried; of more, each alone and each left out.
const TOGETHER: usize = 6;

/// What a disk does not do although it says so: the controls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lacks {
    Nothing,
    FileSync,
    FolderSync,
}

#[derive(Clone, Debug)]
enum Event {
    Written(PathBuf, Vec<u8>),
    FileSynced(PathBuf),
    /// A name is given to what has another one, or to a folder, or taken away.
    Begins(usize, Call),
    Ends(usize),
    /// Nothing came of it.
    Fails(usize),
    SyncBegins(usize, PathBuf),
    SyncEnds(usize),
    /// A snapshot is promised from now on.
    Promised(VaultObjectId),
    Withdrawn(VaultObjectId),
}

#[derive(Clone, Debug)]
enum Call {
    Rename(PathBuf, PathBuf),
    MakeFolder(PathBuf),
    Remove(PathBuf),
}

#[derive(Debug, Default)]
struct Log {
    events: Vec<Event>,
    calls: usize,
}

/// The file system, and a record of what was asked of it.
#[derive(Clone, Debug)]
struct Recording {
    root: PathBuf,
    log: Arc<Mutex<Log>>,
    lacks: Lacks,
}

impl Recording {
    fn new(root: PathBuf, lacks: Lacks) -> Self {
        Self { root, log: Arc::default(), lacks }
    }

    fn name(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.root).unwrap().to_owned()
    }

    fn note(&self, event: Event) {
        self.log.lock().events.push(event);
    }

    fn begin(&self, event: impl FnOnce(usize) -> Event) -> usize {
        let mut log = self.log.lock();
        log.calls += 1;
        let call = log.calls;
        log.events.push(event(call));
        call
    }

    fn record(&self, call: Call, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let number = self.begin(|number| Event::Begins(number, call));
        let done = work();
        self.note(if done.is_ok() { Event::Ends(number) } else { Event::Fails(number) });
        done
    }
}

impl VaultFileSystem for Recording {
    fn write_new(&self, path: &Path, bytes: &[u8]) -> io::Result<File> {
        let file = NativeFileSystem.write_new(path, bytes)?;
        self.note(Event::Written(self.name(path), bytes.to_vec()));
        Ok(file)
    }

    fn sync_file(&self, file: &File, path: &Path) -> io::Result<()> {
        if self.lacks == Lacks::FileSync {
            return Ok(());
        }
        NativeFileSystem.sync_file(file, path)?;
        self.note(Event::FileSynced(self.name(path)));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let call = Call::Rename(self.name(from), self.name(to));
        self.record(call, || NativeFileSystem.rename(from, to))
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        let call = Call::MakeFolder(self.name(path));
        self.record(call, || NativeFileSystem.create_folder(path))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let call = Call::Remove(self.name(path));
        self.record(call, || NativeFileSystem.remove_file(path))
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        if self.lacks == Lacks::FolderSync {
            return Ok(());
        }
        let call = self.begin(|number| Event::SyncBegins(number, self.name(path)));
        NativeFileSystem.sync_folder(path)?;
        self.note(Event::SyncEnds(call));
        Ok(())
    }
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Folder,
    /// A file, by its number.
    File(usize),
}

/// A name that was given or taken away, and may be so on the disk.
#[derive(Clone, Debug)]
struct Pending {
    call: usize,
    path: PathBuf,
    entry: Option<Entry>,
    has_ended: bool,
}

/// What is on a disk for certain at a moment, and what may be.
#[derive(Debug, Default)]
struct Model {
    /// Bytes of files, and whether they are durable.
    files: Vec<(Vec<u8>, bool)>,
    /// Files that have no name in the vault yet.
    unnamed: HashMap<PathBuf, usize>,
    names: BTreeMap<PathBuf, Entry>,
    pending: Vec<Pending>,
    /// Syncs under way, and what they make durable.
    syncs: HashMap<usize, Vec<usize>>,
    promised: BTreeSet<VaultObjectId>,
}

impl Model {
    /// Reads what is there before anything is recorded; it is durable.
    fn of(root: &Path) -> Self {
        let mut model = Self::default();
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let entry = if path.is_dir() {
                    folders.push(path.clone());
                    Entry::Folder
                } else {
                    model.files.push((std::fs::read(&path).unwrap(), true));
                    Entry::File(model.files.len() - 1)
                };
                model.names.insert(path.strip_prefix(root).unwrap().to_owned(), entry);
            }
        }
        model
    }

    fn apply(&mut self, event: &Event) {
        match event {
            Event::Written(path, bytes) => {
                self.files.push((bytes.clone(), false));
                self.unnamed.insert(path.clone(), self.files.len() - 1);
            }
            Event::FileSynced(path) => self.files[self.unnamed[path]].1 = true,
            Event::Begins(call, what) => self.begin(*call, what),
            Event::Ends(call) => {
                let ended = self.pending.iter_mut().find(|one| one.call == *call);
                ended.into_iter().for_each(|one| one.has_ended = true);
            }
            Event::Fails(call) => self.pending.retain(|one| one.call != *call),
            // What comes while a sync is under way may be too late for it.
            Event::SyncBegins(sync, folder) => {
                let is_in =
                    |one: &&Pending| one.has_ended && one.path.parent() == Some(folder.as_path());
                let calls = self.pending.iter().filter(is_in).map(|one| one.call).collect();
                self.syncs.insert(*sync, calls);
            }
            Event::SyncEnds(sync) => {
                let calls = self.syncs.remove(sync).unwrap();
                let (durable, pending): (Vec<Pending>, Vec<Pending>) =
                    self.pending.drain(..).partition(|one| calls.contains(&one.call));
                self.pending = pending;
                durable.iter().for_each(|one| set(&mut self.names, one));
            }
            Event::Promised(id) => drop(self.promised.insert(*id)),
            Event::Withdrawn(id) => drop(self.promised.remove(id)),
        }
    }

    fn begin(&mut self, call: usize, what: &Call) {
        let (path, entry) = match what {
            Call::Rename(from, to) => (to, Some(Entry::File(self.unnamed[from]))),
            Call::MakeFolder(path) => (path, Some(Entry::Folder)),
            Call::Remove(path) => (path, None),
        };
        // Nobody reads what is in `tmp`.
        if !path.starts_with("tmp") {
            let path = path.clone();
            self.pending.push(Pending { call, path, entry, has_ended: false });
        }
    }

    /// Returns which of the names that are not durable may be on the disk together.
    fn subsets(&self) -> Vec<Vec<usize>> {
        let count = self.pending.len();
        let all: Vec<usize> = (0..count).collect();
        if count <= TOGETHER {
            let subset = |bits: u32| all.iter().copied().filter(|at| bits & 1 << at != 0).collect();
            return (0..1_u32 << count).map(subset).collect();
        }
        let without = |left: usize| all.iter().copied().filter(|at| *at != left).collect();
        let mut subsets = vec![Vec::new(), all.clone()];
        subsets.extend(all.iter().map(|at| vec![*at]));
        subsets.extend(all.iter().map(|at| without(*at)));
        subsets
    }

    /// Returns the files of the vault with some of these names, and how many lack bytes for certain.
    fn left(&self, subset: &[usize], torn: Torn) -> (Files, usize) {
        let mut names = self.names.clone();
        subset.iter().for_each(|at| set(&mut names, &self.pending[*at]));
        let mut files = Files::new();
        let mut not_synced = 0;
        for (path, entry) in &names {
            let Entry::File(file) = entry else { continue };
            let above = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
            let is_reached = above.into_iter().all(|one| names.get(one) == Some(&Entry::Folder));
            let Some(name) = name_of(path).filter(|_| is_reached) else { continue };
            let (bytes, is_synced) = &self.files[*file];
            not_synced += usize::from(!is_synced);
            files.insert(name, if *is_synced { bytes.clone() } else { torn.of(bytes) });
        }
        (files, not_synced)
    }
}

fn set(names: &mut BTreeMap<PathBuf, Entry>, change: &Pending) {
    match change.entry {
        Some(entry) => names.insert(change.path.clone(), entry),
        None => names.remove(&change.path),
    };
}

/// What is left of bytes that were not synced.
#[derive(Clone, Copy, Debug)]
enum Torn {
    Nothing,
    Half,
    Zeros,
    Whole,
}

impl Torn {
    fn of(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Nothing => Vec::new(),
            Self::Half => bytes[..bytes.len() / 2].to_vec(),
            Self::Zeros => vec![0; bytes.len()],
            Self::Whole => bytes.to_vec(),
        }
    }
}

/// Returns what a file of a vault is called, by its path.
fn name_of(path: &Path) -> Option<(u8, VaultObjectId)> {
    if path == Path::new("config") {
        return Some((number(VaultFileKind::Config), VaultObjectId::default()));
    }
    let kind = match path.components().next()?.as_os_str().to_str()? {
        "data" => VaultFileKind::Pack,
        "index" => VaultFileKind::Index,
        "keys" => VaultFileKind::Key,
        "locks" => VaultFileKind::Lock,
        "snapshots" => VaultFileKind::Snapshot,
        _ => return None,
    };
    Some((number(kind), path.file_name()?.to_str()?.parse().ok()?))
}

/// Opens what was left and looks at all of it; returns how many snapshots there are, or what is wrong.
fn judge(files: Files, promised: &BTreeSet<VaultObjectId>) -> Result<usize, String> {
    let has = |id: &&VaultObjectId| files.contains_key(&(number(VaultFileKind::Snapshot), **id));
    if let Some(id) = promised.iter().find(|id| !has(id)) {
        return Err(format!("the snapshot `{id}` is gone"));
    }
    let left = Arc::new(Left(Mutex::new(files)));
    let vault = Vault::open(left, PASSWORD.as_bytes()).map_err(|error| error.to_string())?;
    let report = check_vault(&vault, CheckDepth::Data, &BackupProgress::default());
    let report = report.map_err(|error| error.to_string())?;
    match report.faults.first() {
        None => Ok(report.snapshots),
        Some(fault) => Err(fault.clone()),
    }
}

/// What was seen of all states.
#[derive(Debug, Default)]
struct Seen {
    states: usize,
    snapshots: BTreeSet<usize>,
    /// States with a file under its name whose bytes were not synced.
    torn: usize,
    faults: Vec<String>,
}

/// Opens every state of every moment, each once.
fn open_all(mut model: Model, events: &[Event]) -> Seen {
    let mut seen = Seen::default();
    let mut known = HashSet::new();
    for (moment, event) in events.iter().enumerate() {
        model.apply(event);
        for subset in model.subsets() {
            for torn in [Torn::Whole, Torn::Nothing, Torn::Half, Torn::Zeros] {
                let (files, not_synced) = model.left(&subset, torn);
                let lengths = |bytes: &Vec<u8>| (bytes.len(), bytes.first().copied());
                let key: Vec<_> =
                    files.iter().map(|(name, bytes)| (*name, lengths(bytes))).collect();
                if !known.insert((key, model.promised.clone())) {
                    continue;
                }
                seen.states += 1;
                seen.torn += usize::from(not_synced > 0);
                match judge(files, &model.promised) {
                    Ok(count) => drop(seen.snapshots.insert(count)),
                    Err(fault) => {
                        seen.faults.push(format!("at {moment} of {}: {fault}", events.len()))
                    }
                }
            }
        }
    }
    seen
}

fn open(bench: &Bench, disk: &Recording) -> Arc<Vault> {
    let backend = LocalBackend::with_file_system(Box::new(disk.clone()), bench.path("vault"));
    let mut vault = Vault::open(Arc::new(backend), PASSWORD.as_bytes()).unwrap();
    // Small packs, so that several are under way at once.
    vault.set_tuning(WriterTuning { queue_bytes: 1 << 20, ..WriterTuning::default() });
    Arc::new(vault)
}

#[test]
fn whatever_was_not_synced_a_vault_is_whole_and_keeps_its_promises() {
    let bench = Bench::new();
    plant(&bench.source());
    // As restic leaves it: folders of packs are made when they are needed.
    for number in 0..=u8::MAX {
        std::fs::remove_dir(bench.path(&format!("vault/data/{number:02x}"))).unwrap();
    }
    let model = Model::of(&bench.path("vault"));
    let disk = Recording::new(bench.path("vault"), Lacks::Nothing);
    let vault = open(&bench, &disk);
    let save = || {
        let saved = save(&vault, &[bench.source()]).unwrap();
        disk.note(Event::Promised(saved.snapshot.id));
        saved.snapshot.id
    };
    let first = save();
    std::fs::remove_file(bench.source().join("deep/er/est/b.bin")).unwrap();
    std::fs::write(bench.source().join("large"), noise(5 << 20, 21)).unwrap();
    save();
    std::fs::remove_file(bench.source().join("large")).unwrap();
    std::fs::write(bench.source().join("last"), noise(1 << 20, 22)).unwrap();
    save();
    disk.note(Event::Withdrawn(first));
    vault.remove_snapshot(&first).unwrap();
    prune_vault(&vault).unwrap();
    drop(vault);

    let events = std::mem::take(&mut disk.log.lock().events);
    let seen = open_all(model, &events);
    assert!(seen.faults.is_empty(), "{:?}", &seen.faults[..seen.faults.len().min(5)]);
    assert_eq!(seen.torn, 0, "a file had its name before its bytes");
    assert!(seen.states > 20 && seen.snapshots.len() == 4, "{seen:?}");
    println!("{} states of {} steps of the file system were opened", seen.states, events.len());

    // The end is the vault itself.
    let mut end = Model::of(&bench.path("vault"));
    end.pending.clear();
    let (files, _) = end.left(&[], Torn::Whole);
    for kind in KINDS {
        let there = files.keys().filter(|(one, _)| *one == number(kind)).count();
        let listed =
            tympan_backup::VaultBackend::list(&LocalBackend::new(bench.path("vault")), kind);
        assert_eq!(there, listed.unwrap().len(), "{kind}");
    }
}

/// The controls: a disk that does not sync what it is asked to sync breaks the promises, and is seen to.
#[test]
fn a_disk_that_syncs_nothing_is_reported() {
    for (lacks, expected) in [(Lacks::FileSync, "damaged"), (Lacks::FolderSync, "is gone")] {
        let bench = Bench::new();
        std::fs::create_dir_all(bench.source()).unwrap();
        std::fs::write(bench.source().join("file"), noise(10_000, 3)).unwrap();
        let model = Model::of(&bench.path("vault"));
        let disk = Recording::new(bench.path("vault"), lacks);
        let vault = open(&bench, &disk);
        let saved = save(&vault, &[bench.source()]).unwrap();
        disk.note(Event::Promised(saved.snapshot.id));
        drop(vault);
        let events = std::mem::take(&mut disk.log.lock().events);
        let seen = open_all(model, &events);
        assert!(seen.faults.iter().any(|fault| fault.contains(expected)), "{lacks:?}: {seen:?}");
        // Snapshots that are there without what they need, too.
        let is_lack = |fault: &&String| fault.contains("index") || fault.contains("pack");
        assert!(seen.faults.iter().any(|fault| is_lack(&fault)), "{lacks:?}: {seen:?}");
        assert_eq!(seen.torn > 0, lacks == Lacks::FileSync);
    }
}
