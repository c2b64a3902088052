//! What the tests of vaults share: a vault in a folder, a tree of many kinds of files, and the stock restic.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex};
use std::time::Duration;

use tympan_backup::{
    BackendWrapper, BackupProgress, CheckDepth, ExistingFilePolicy, IndexedVault,
    KeyDerivationCost, LocalBackend, PruneOptions, PruneReport, RestoreOptions, RestoreReport,
    Result, SaveOptions, SaveSession, SaveSummary, SnapshotNode, Vault, VaultBackend,
    VaultCheckReport, VaultFileKind, VaultIndex, VaultLock, VaultLockMode, VaultObjectId,
    VaultSnapshot, VaultUser, check_vault, find_path, prune_snapshots, restore_snapshot,
    save_directories,
};

pub(crate) const PASSWORD: &str = "correct horse";
/// Cheap, as tests open many vaults.
pub(crate) const COST: KeyDerivationCost = KeyDerivationCost { log_rounds: 10 };
/// Saves are made tomorrow, so that files which a test has written are older, whatever time it takes.
static CLOCK: LazyLock<AtomicI64> =
    LazyLock::new(|| AtomicI64::new(jiff::Timestamp::now().as_second() + 86_400));

/// A folder for one test: `vault`, `source`, and whatever it makes beside.
pub(crate) struct Bench {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) vault: Arc<Vault>,
}

impl Bench {
    /// Makes a vault.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let backend = Arc::new(LocalBackend::new(dir.path().join("vault")));
        let by = (&VaultUser::this_process(), now());
        let vault = Vault::init(backend, PASSWORD.as_bytes(), COST, by).unwrap();
        Self { dir, vault: Arc::new(vault) }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn source(&self) -> PathBuf {
        self.path("source")
    }

    /// Opens the vault through a backend of the test's own.
    pub(crate) fn open_through(&self, backend: Arc<dyn VaultBackend>) -> Arc<Vault> {
        Arc::new(Vault::open(backend, PASSWORD.as_bytes()).unwrap())
    }

    pub(crate) fn save(&self) -> SaveSummary {
        save(&self.vault, &[self.source()]).unwrap()
    }

    pub(crate) fn index(&self) -> Arc<VaultIndex> {
        Arc::new(VaultIndex::load(&self.vault).unwrap())
    }

    /// Restores what was the source into a new folder.
    pub(crate) fn restore(&self, snapshot: &VaultSnapshot, to: &str) -> RestoreReport {
        let index = self.index();
        let path = self.source().display().to_string();
        let node = find_path(&self.vault, &index, snapshot, &path).unwrap();
        self.restore_node(&node, to)
    }

    pub(crate) fn restore_node(&self, node: &SnapshotNode, to: &str) -> RestoreReport {
        let options =
            RestoreOptions { existing: ExistingFilePolicy::Refuse, ..RestoreOptions::default() };
        let progress = BackupProgress::default();
        restore_snapshot(
            IndexedVault::new(&self.vault, &self.index()),
            node,
            &self.path(to),
            &options,
            &progress,
        )
        .unwrap()
    }

    pub(crate) fn check(&self) -> VaultCheckReport {
        check_vault(&self.vault, CheckDepth::Data, &BackupProgress::default()).unwrap()
    }

    pub(crate) fn prune(&self) -> Result<PruneReport> {
        prune_vault(&self.vault)
    }

    /// Runs the stock restic on the vault; nothing if the machine has none.
    pub(crate) fn restic(&self, arguments: &[&str]) -> Option<Output> {
        restic(&self.path("vault"), arguments)
    }

    /// Runs the stock restic, which must end well.
    pub(crate) fn restic_ok(&self, arguments: &[&str]) {
        let Some(output) = self.restic(arguments) else { return };
        assert!(output.status.success(), "restic {arguments:?}: {output:?}");
    }
}

/// Removes at once what nobody needs.
pub(crate) fn prune_vault(vault: &Arc<Vault>) -> Result<PruneReport> {
    prune_with(vault, Duration::ZERO, now())
}

pub(crate) fn prune_with(
    vault: &Arc<Vault>,
    grace: Duration,
    now: jiff::Timestamp,
) -> Result<PruneReport> {
    let lock = VaultLock::acquire(
        vault,
        &VaultUser::this_process(),
        VaultLockMode::Exclusive,
        Duration::ZERO,
    )?;
    let options = PruneOptions {
        snapshots_to_remove: Vec::new(),
        grace_period: grace,
        now,
        trusted_now: now,
    };
    prune_snapshots(vault, &lock, &options, &BackupProgress::default())
}

/// Each save is a second later than the one before.
pub(crate) fn now() -> jiff::Timestamp {
    jiff::Timestamp::from_second(CLOCK.fetch_add(1, Ordering::Relaxed)).unwrap()
}

pub(crate) fn save(vault: &Arc<Vault>, paths: &[PathBuf]) -> Result<SaveSummary> {
    save_with(
        vault,
        paths,
        &SaveOptions::new(VaultUser::this_process(), now()),
        &BackupProgress::default(),
    )
}

pub(crate) fn save_with(
    vault: &Arc<Vault>,
    paths: &[PathBuf],
    options: &SaveOptions,
    progress: &BackupProgress,
) -> Result<SaveSummary> {
    let lock = VaultLock::acquire(vault, &options.user, VaultLockMode::Shared, Duration::ZERO)?;
    let index = Arc::new(VaultIndex::load(vault)?);
    save_directories(&SaveSession::new(vault, &index, &lock, progress), paths, options)
}

/// Says aloud when restic is not there, so that a skipped test does not pass for one that ran.
pub(crate) fn restic(vault: &Path, arguments: &[&str]) -> Option<Output> {
    let output = Command::new("restic")
        .args(["--no-cache", "-r"])
        .arg(vault)
        .args(arguments)
        .env("RESTIC_PASSWORD", PASSWORD)
        .output();
    match output {
        Ok(output) => Some(output),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            println!("skipped: this machine has no restic");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Makes a tree with all kinds of things that a folder can hold.
pub(crate) fn plant(root: &Path) {
    fs::create_dir_all(root.join("empty")).unwrap();
    fs::create_dir_all(root.join("deep/er/est")).unwrap();
    fs::write(root.join("a.txt"), "some text").unwrap();
    fs::write(root.join("nothing"), "").unwrap();
    fs::write(root.join("deep/er/est/b.bin"), noise(3 << 20, 7)).unwrap();
    fs::write(root.join("deep/twin"), noise(700_000, 9)).unwrap();
    fs::hard_link(root.join("deep/twin"), root.join("other twin")).unwrap();
    symlink("deep/er", root.join("link")).unwrap();
    symlink("nowhere/at all", root.join("dangling")).unwrap();
    let odd = std::ffi::OsString::from_vec(b"not \xff utf-8 \" \\ \n".to_vec());
    fs::write(root.join(odd), "odd").unwrap();
    fs::write(root.join("schön 🦀"), "letters").unwrap();
    let set = |name: &str, mode| {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    set("a.txt", 0o4640);
    set("empty", 0o2711);
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(6 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"end", (6 << 20) - 3).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    let value = rustix::fs::XattrFlags::empty();
    // A file system without attributes tests the rest.
    rustix::fs::lsetxattr(root.join("a.txt"), "user.note", b"\x00\xff", value).ok();
    let old = fs::File::open(root.join("deep")).unwrap();
    let long_ago = std::time::UNIX_EPOCH + Duration::new(86_400, 123_456_789);
    old.set_modified(long_ago).unwrap();
}

/// Returns bytes that do not compress.
pub(crate) fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// Describes all that is in a folder, one line for each thing.
pub(crate) fn describe(root: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let mut lines = Vec::new();
    let mut folders = vec![root.to_owned()];
    let mut inodes = std::collections::HashMap::new();
    while let Some(folder) = folders.pop() {
        let mut entries: Vec<PathBuf> =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            let facts = fs::symlink_metadata(&path).unwrap();
            let content = if facts.is_file() {
                VaultObjectId::of(&fs::read(&path).unwrap()).short()
            } else if facts.is_symlink() {
                format!("{:?}", fs::read_link(&path).unwrap())
            } else {
                String::new()
            };
            let name = path.strip_prefix(root).unwrap().to_owned();
            let first = (facts.nlink() > 1 && facts.is_file())
                .then(|| inodes.entry(facts.ino()).or_insert_with(|| name.clone()).clone());
            let mut note = [0; 16];
            let note = rustix::fs::lgetxattr(&path, "user.note", note.as_mut_slice());
            lines.push(format!(
                "{name:?} {:o} {}:{} {}.{} {content} {first:?} {note:?}",
                facts.mode(),
                facts.uid(),
                facts.gid(),
                facts.mtime(),
                facts.mtime_nsec()
            ));
            if facts.is_dir() {
                folders.push(path);
            }
        }
    }
    lines.sort();
    lines
}

/// A vault on another machine, to which many calls may be on their way; those for much wait until some are.
#[derive(Debug)]
pub(crate) struct Far {
    inner: LocalBackend,
    together: usize,
    inside: Mutex<usize>,
    come: Condvar,
    /// Reads of parts of packs.
    pub(crate) calls: AtomicUsize,
}

impl Far {
    pub(crate) fn new(bench: &Bench, together: usize) -> Arc<Self> {
        let inner = LocalBackend::new(bench.path("vault"));
        let (inside, come, calls) = (Mutex::default(), Condvar::new(), AtomicUsize::new(0));
        Arc::new(Self { inner, together, inside, come, calls })
    }

    /// Waits until enough calls have come.
    fn wait(&self) {
        let mut inside = self.inside.lock().unwrap();
        *inside += 1;
        self.come.notify_all();
        let few = |inside: &mut usize| *inside < self.together;
        let (inside, timeout) =
            self.come.wait_timeout_while(inside, Duration::from_secs(60), few).unwrap();
        assert!(!timeout.timed_out(), "only {} calls are on their way at once", *inside);
    }
}

impl BackendWrapper for Far {
    fn inner(&self) -> &dyn VaultBackend {
        &self.inner
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn connections(&self) -> usize {
        16
    }

    fn read_range(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        start: u64,
        length: usize,
    ) -> std::io::Result<Vec<u8>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        // Folders are read one in another.
        if length > 100_000 {
            self.wait();
        }
        self.inner.read_range(kind, id, start, length)
    }
}

/// Returns how many random cases a test of whole saves has: `PROPTEST_CASES`, or few.
pub(crate) fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(6)
}

/// Returns the only pack, or some pack, of a vault's folder.
pub(crate) fn some_file(vault: &Vault, bench: &Bench, kind: VaultFileKind) -> PathBuf {
    let _ = vault;
    let folder = match kind {
        VaultFileKind::Pack => "data",
        VaultFileKind::Index => "index",
        VaultFileKind::Snapshot => "snapshots",
        VaultFileKind::Key => "keys",
        VaultFileKind::Lock => "locks",
        VaultFileKind::Config => return bench.path("vault/config"),
    };
    let mut folders = vec![bench.path("vault").join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                return path;
            }
        }
    }
    panic!("no {kind} there");
}
