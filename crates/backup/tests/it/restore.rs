//! Restores that are killed, and such that run at the same time: what they leave, and who takes it away.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use tympan_backup::{
    BackupProgress, ClientFilter, ExcludeRules, ExistingFilePolicy, IndexedVault, LocalBackend,
    RestoreOptions, RestoreReport, RestoreSelection, Vault, VaultIndex, find_path,
    restore_snapshot,
};

use crate::vault_bench::{Bench, Far, PASSWORD, describe, noise, plant};

/// The variable that makes a run of this test the process that is killed: the test's folder.
const FOLDER: &str = "TYMPAN_TEST_RESTORE";
const UNFINISHED: &str = ".tympan-restore-";

/// What fits is restored with the folders above it, what does not fit is left out, and a mirror removes the rest.
#[test]
fn a_part_is_restored_and_a_mirror_removes_the_rest() {
    let bench = Bench::new();
    for path in ["a/keep.txt", "a/leave.bin", "b/deep/keep.txt", "c/other.bin"] {
        let file = bench.source().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, path).unwrap();
    }
    let saved = bench.save();
    let path = bench.source();
    let index = bench.index();
    let node =
        find_path(&bench.vault, &index, &saved.snapshot, &path.display().to_string()).unwrap();
    let restore_as = |out: &str, existing: ExistingFilePolicy, selection: RestoreSelection| {
        let options = RestoreOptions { existing, selection, path: path.clone() };
        let progress = BackupProgress::default();
        let at = IndexedVault::new(&bench.vault, &index);
        let restored = restore_snapshot(at, &node, &bench.path(out), &options, &progress).unwrap();
        assert!(restored.faults.is_empty(), "{:?}", restored.faults);
        restored.removed_items
    };
    let list = |out: &str| list_of(&bench.path(out));
    let patterns = |text: &str| ExcludeRules::new(vec![text.to_owned()]).unwrap();
    restore_as("only", ExistingFilePolicy::Refuse, RestoreSelection::Matching(patterns("*.txt")));
    assert_eq!(list("only"), ["a", "a/keep.txt", "b", "b/deep", "b/deep/keep.txt"]);
    restore_as(
        "all but",
        ExistingFilePolicy::Refuse,
        RestoreSelection::NotMatching(patterns("*.bin")),
    );
    let expected = ["a", "a/keep.txt", "b", "b/deep", "b/deep/keep.txt", "c"];
    assert_eq!(list("all but"), expected);
    let absolute = format!("{}/b", path.display());
    restore_as(
        "by path",
        ExistingFilePolicy::Refuse,
        RestoreSelection::Matching(patterns(&absolute)),
    );
    assert_eq!(list("by path"), ["b", "b/deep", "b/deep/keep.txt"]);

    // What is not in the snapshot goes, but for what is left out; a link goes, not what is behind it.
    let out = bench.path("all but");
    fs::create_dir_all(out.join("new/below")).unwrap();
    fs::write(out.join("new/below/x.bin"), "left out").unwrap();
    fs::write(out.join("new/below/x.txt"), "goes").unwrap();
    fs::create_dir(bench.path("outside")).unwrap();
    fs::write(bench.path("outside/file"), "stays").unwrap();
    std::os::unix::fs::symlink(bench.path("outside"), out.join("a/link")).unwrap();
    let removed = restore_as(
        "all but",
        ExistingFilePolicy::Mirror,
        RestoreSelection::NotMatching(patterns("*.bin")),
    );
    assert_eq!(removed, 2);
    let mut expected = expected.to_vec();
    expected.extend(["new", "new/below", "new/below/x.bin"]);
    assert_eq!(list("all but"), expected);
    assert_eq!(fs::read(bench.path("outside/file")).unwrap(), b"stays");
    assert_eq!(restore_as("all but", ExistingFilePolicy::Mirror, RestoreSelection::Everything), 3);
    assert_eq!(list("all but"), list_of(&bench.source()));
}

/// Lists what is below a folder.
fn list_of(root: &Path) -> Vec<String> {
    let mut names = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            names.push(path.strip_prefix(root).unwrap().display().to_string());
            if path.is_dir() {
                open.push(path);
            }
        }
    }
    names.sort();
    names
}

fn restore_in_place(dir: &Path) -> RestoreReport {
    let backend = Arc::new(LocalBackend::new(dir.join("vault")));
    let vault = Arc::new(Vault::open(backend, PASSWORD.as_bytes()).unwrap());
    let index = VaultIndex::load(&vault).unwrap();
    let latest = vault.find_snapshot("latest", &ClientFilter::All).unwrap();
    let source = dir.join("source").display().to_string();
    let node = find_path(&vault, &index, &latest, &source).unwrap();
    let options =
        RestoreOptions { existing: ExistingFilePolicy::Replace, ..RestoreOptions::default() };
    restore_snapshot(
        IndexedVault::new(&vault, &index),
        &node,
        &dir.join("out"),
        &options,
        &BackupProgress::default(),
    )
    .unwrap()
}

/// What the killed process runs; without the variable it is no test.
#[test]
fn a_process_that_restores() {
    let Some(dir) = std::env::var_os(FOLDER) else { return };
    restore_in_place(Path::new(&dir));
}

/// What a user who is not root runs, twice; without the variable it is no test. The second time, nothing is written anew.
#[test]
fn a_user_that_restores() {
    let Some(dir) = std::env::var_os(FOLDER) else { return };
    let out = Path::new(&dir).join("out");
    let numbers = || ["note", "closed", "closed/note"].map(|name| number_of(&out.join(name)));
    let is_new = !out.join("note").exists();
    let before = (!is_new).then(numbers);
    for turn in 0..2 {
        let restored = restore_in_place(Path::new(&dir));
        assert_eq!(restored.faults, []);
        assert_eq!(restored.written_bytes > 0, is_new && turn == 0, "{restored:?}");
    }
    if let Some(before) = before {
        assert_eq!(numbers(), before);
    }
}

fn number_of(path: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap())
}

/// Sets an attribute; nothing, said aloud, where the file system has none.
fn set_attribute(path: &Path, name: &str, value: &[u8]) -> Option<()> {
    let set = rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty());
    if set == Err(rustix::io::Errno::OPNOTSUPP) {
        println!("skipped: the file system for temporary files has no attributes");
        return None;
    }
    set.unwrap();
    Some(())
}

fn attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 64];
    let length = rustix::fs::lgetxattr(path, name, value.as_mut_slice()).ok()?;
    value.truncate(length);
    Some(value)
}

/// Files and folders that their owner may not write have attributes, too. What is there keeps none that was not saved.
#[test]
fn any_user_restores_attributes_of_what_is_read_only() {
    use std::os::unix::fs::{PermissionsExt, lchown};
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65_534;
    let is_root = rustix::process::geteuid().is_root();
    let bench = Bench::new();
    let all = ["closed/note", "closed", "note"];
    fs::create_dir_all(bench.source().join("closed")).unwrap();
    for name in ["closed/note", "note"] {
        fs::write(bench.source().join(name), "bytes").unwrap();
    }
    for name in all {
        if set_attribute(&bench.source().join(name), "user.note", name.as_bytes()).is_none() {
            return;
        }
    }
    let set_modes = |root: &Path| {
        for (name, mode) in all.iter().zip([0o444, 0o555, 0o400]) {
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    set_modes(&bench.source());
    if is_root {
        for name in all {
            lchown(bench.source().join(name), Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }
    bench.save();
    if is_root {
        let mut owned = Command::new("chown");
        owned.args(["-R", "65534:65534"]).arg(bench.dir.path());
        assert!(owned.status().unwrap().success());
    }
    let restore = || {
        // Whoever may not come to this program by its path may run it all the same.
        let mut user = Command::new("/proc/self/exe");
        user.args(["restore::a_user_that_restores", "--exact", "--nocapture"]);
        user.env(FOLDER, bench.dir.path());
        if is_root {
            user.uid(NOBODY).gid(NOBODY);
        }
        let output = user.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    };
    restore();
    let out = bench.path("out");
    let come_back = || {
        for (name, mode) in all.iter().zip([0o444, 0o555, 0o400]) {
            let path = out.join(name);
            assert_eq!(attribute(&path, "user.note").as_deref(), Some(name.as_bytes()), "{name}");
            assert_eq!(attribute(&path, "user.other"), None, "{name}");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode, "{name}");
        }
    };
    come_back();

    // Somebody changes one, and adds another.
    for name in all {
        let path = out.join(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        set_attribute(&path, "user.note", b"changed").unwrap();
        set_attribute(&path, "user.other", b"added").unwrap();
    }
    set_modes(&out);
    restore();
    come_back();
}

fn start(bench: &Bench) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["restore::a_process_that_restores", "--exact", "--nocapture"])
        .env(FOLDER, bench.dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Returns the files below a folder that are not whole.
fn unfinished(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !path.is_symlink() {
            found.extend(unfinished(&path));
        } else if name.starts_with(UNFINISHED) {
            found.push(path);
        }
    }
    found
}

/// Tells whether a restore holds a file. One that was stopped before it could lock its new file begins with another one.
fn is_locked(file: &Path) -> bool {
    let Ok(file) = fs::File::open(file) else { return false };
    flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
}

/// Runs restores until one is in the middle of a file, and stops it there. What was restored so far is thrown away if it
/// came too far.
fn stopped_within_a_file(bench: &Bench) -> Child {
    loop {
        let mut child = start(bench);
        loop {
            if !unfinished(&bench.path("out")).is_empty() {
                kill_process(pid_of(&child), Signal::STOP).unwrap();
                // It is stopped when all of its threads are; until then they go on.
                while !is_stopped(&child) {
                    std::thread::yield_now();
                }
                let files = unfinished(&bench.path("out"));
                if !files.is_empty() && files.iter().all(|file| is_locked(file)) {
                    return child;
                }
                kill_process(pid_of(&child), Signal::CONT).unwrap();
            }
            if child.try_wait().unwrap().is_some() {
                break;
            }
        }
        fs::remove_dir_all(bench.path("out")).unwrap();
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Tells whether the system has stopped all threads of a process.
fn is_stopped(child: &Child) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    // One that has ended meanwhile has no state.
    let states =
        threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok());
    let mut states = states.filter_map(|stat| stat.rsplit_once(") ")?.1.chars().next());
    states.all(|state| matches!(state, 'T' | 't' | 'Z' | 'X'))
}

fn planted() -> Bench {
    let bench = Bench::new();
    plant(&bench.source());
    for number in 0..4 {
        let folder = bench.source().join(format!("folder {number}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("large"), noise(6 << 20, 31 + number)).unwrap();
    }
    bench.save();
    bench
}

#[test]
fn what_a_killed_restore_left_goes_with_the_next_one() {
    let bench = planted();
    let out = bench.path("out");
    for _ in 0..3 {
        let mut child = stopped_within_a_file(&bench);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!unfinished(&out).is_empty(), "the kill left nothing");
        let restored = restore_in_place(bench.dir.path());
        assert_eq!(restored.faults, []);
        assert_eq!(unfinished(&out), Vec::<PathBuf>::new());
        assert_eq!(describe(&out), describe(&bench.source()));
        // From nothing again.
        fs::remove_dir_all(&out).unwrap();
    }
}

/// Another restore into the same folder is no reason to lose what a living one is writing.
#[test]
fn what_a_living_restore_writes_is_left_alone() {
    let bench = planted();
    let out = bench.path("out");
    let mut child = stopped_within_a_file(&bench);
    let writing = unfinished(&out);
    let restored = restore_in_place(bench.dir.path());
    assert_eq!(restored.faults, []);
    assert_eq!(unfinished(&out), writing);
    kill_process(pid_of(&child), Signal::CONT).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(unfinished(&out), Vec::<PathBuf>::new());
    assert_eq!(describe(&out), describe(&bench.source()));
}

/// Only plain files with a name as restores make it are anybody's leftovers.
#[test]
fn other_things_of_such_names_stay() {
    let bench = Bench::new();
    fs::create_dir_all(bench.source()).unwrap();
    fs::write(bench.source().join("file"), "bytes").unwrap();
    bench.save();
    let out = bench.path("out");
    fs::create_dir_all(out.join(format!("{UNFINISHED}1-2"))).unwrap();
    fs::write(bench.path("outside"), "outside").unwrap();
    std::os::unix::fs::symlink("../outside", out.join(format!("{UNFINISHED}3-4"))).unwrap();
    let stay = ["1-2", "3-4", "5", "6-", "-7", "8-9x", "x-1"];
    for end in &stay[2..] {
        fs::write(out.join(format!("{UNFINISHED}{end}")), "mine").unwrap();
    }
    // A process of the same number writes it on another machine: its name is taken no second time.
    let taken = format!("{}-0", std::process::id());
    let other = fs::File::create(out.join(format!("{UNFINISHED}{taken}"))).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let restored = restore_in_place(bench.dir.path());
    assert_eq!(restored.faults, []);
    let mut left: Vec<String> = fs::read_dir(&out)
        .unwrap()
        .map(|one| one.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    let mut expected: Vec<String> = stay.iter().map(|end| format!("{UNFINISHED}{end}")).collect();
    expected.extend([format!("{UNFINISHED}{taken}"), "file".to_owned()]);
    expected.sort();
    assert_eq!(left, expected);
    assert_eq!(fs::read_to_string(bench.path("outside")).unwrap(), "outside");
}

/// A repository's documents have no times, and a disk that goes bad leaves them alone: bytes are compared, not looks.
#[test]
fn what_looks_the_same_and_is_not_is_replaced() {
    use std::os::unix::fs::MetadataExt;
    let bench = Bench::new();
    fs::create_dir_all(bench.source()).unwrap();
    let long = noise(9 << 20, 3);
    let files: [(&str, &[u8]); 4] =
        [("text", b"as it was saved"), ("other", b"stays"), ("empty", b""), ("long", &long)];
    for (name, bytes) in files {
        let file = fs::File::create(bench.source().join(name)).unwrap();
        std::io::Write::write_all(&mut &file, bytes).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    }
    bench.save();
    assert_eq!(restore_in_place(bench.dir.path()).faults, []);
    let number = |name: &str| fs::metadata(bench.path("out").join(name)).unwrap().ino();
    let (other, empty) = (number("other"), number("empty"));
    let spoil = |name: &str, at: usize| {
        let path = bench.path("out").join(name);
        let mut bytes = fs::read(&path).unwrap();
        bytes[at] ^= 1;
        fs::write(&path, bytes).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    };
    spoil("text", 3);
    spoil("long", long.len() - 1);
    let restored = restore_in_place(bench.dir.path());
    assert_eq!(restored.faults, []);
    assert_eq!(describe(&bench.path("out")), describe(&bench.source()));
    for (name, bytes) in files {
        assert!(fs::read(bench.path("out").join(name)).unwrap() == bytes, "{name}");
    }
    assert_eq!((number("other"), number("empty")), (other, empty), "what is right is left alone");
}

fn restore_from_afar(bench: &Bench, far: &Arc<Far>, to: &str) {
    let vault = bench.open_through(far.clone());
    let index = VaultIndex::load(&vault).unwrap();
    let latest = vault.find_snapshot("latest", &ClientFilter::All).unwrap();
    let node = find_path(&vault, &index, &latest, &bench.source().display().to_string()).unwrap();
    let options =
        RestoreOptions { existing: ExistingFilePolicy::Replace, ..RestoreOptions::default() };
    let (to, progress) = (bench.path(to), BackupProgress::default());
    far.calls.store(0, Ordering::Relaxed);
    let restored =
        restore_snapshot(IndexedVault::new(&vault, &index), &node, &to, &options, &progress)
            .unwrap();
    assert_eq!(restored.faults, []);
    assert_eq!(describe(&to), describe(&bench.source()));
}

/// A folder of small files does not cost a round trip for each of them; one that is there already costs none for files.
#[test]
fn small_files_come_from_afar_together() {
    let bench = Bench::new();
    for (folder, seed) in [("a", 1000), ("b/c", 2000)] {
        fs::create_dir_all(bench.source().join(folder)).unwrap();
        for number in 0..100 {
            let path = bench.source().join(folder).join(format!("file {number}"));
            fs::write(path, noise(200, seed + number)).unwrap();
        }
    }
    fs::write(bench.source().join("empty"), "").unwrap();
    bench.save();
    let far = Far::new(&bench, 0);
    restore_from_afar(&bench, &far, "out");
    let calls = far.calls.load(Ordering::Relaxed);
    assert!(calls <= 12, "{calls} calls for 200 files in 3 folders");
    restore_from_afar(&bench, &far, "out");
    let again = far.calls.load(Ordering::Relaxed);
    assert!(again <= 6, "{again} calls for 3 folders");
    // What is damaged is told as ever: the first piece in the pack of pieces, which is the largest.
    let mut find = Command::new("find");
    let found = find.arg(bench.path("vault/data")).args(["-type", "f"]).output().unwrap();
    let packs = String::from_utf8(found.stdout).unwrap();
    let pack = packs.lines().max_by_key(|pack| fs::metadata(pack).unwrap().len()).unwrap();
    let mut bytes = fs::read(pack).unwrap();
    bytes[40] ^= 1;
    fs::write(pack, bytes).unwrap();
    let vault = bench.open_through(far);
    let index = VaultIndex::load(&vault).unwrap();
    let latest = vault.find_snapshot("latest", &ClientFilter::All).unwrap();
    let node = find_path(&vault, &index, &latest, &bench.source().display().to_string()).unwrap();
    let (options, progress) = (RestoreOptions::default(), BackupProgress::default());
    let to = bench.path("damaged");
    let restored =
        restore_snapshot(IndexedVault::new(&vault, &index), &node, &to, &options, &progress)
            .unwrap();
    assert_eq!((restored.faults.len(), restored.items), (1, 203), "{:?}", restored.faults);
}

/// There are more calls on their way than the machine has processors.
#[test]
fn large_files_come_from_afar_at_once() {
    let bench = Bench::new();
    fs::create_dir_all(bench.source()).unwrap();
    for number in 0..32 {
        let path = bench.source().join(format!("file {number}"));
        fs::write(path, noise(300_000, 7 + number)).unwrap();
    }
    bench.save();
    let processors = std::thread::available_parallelism().unwrap().get();
    let far = Far::new(&bench, (processors + 1).min(16));
    restore_from_afar(&bench, &far, "out");
}
