//! The same vaults, used by the stock restic: what one writes, the other checks, restores and maintains.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tympan_backup::{
    BackupProgress, ClientFilter, Error, IndexedVault, LocalBackend, SaveSession, TagChange, Vault,
    VaultLock, VaultLockMode, VaultSnapshot, VaultUser, change_tags, copy_snapshot, find_path,
};
use tympan_testkit::condition_wait::wait_until;

use crate::vault_bench::{Bench, PASSWORD, describe, noise, plant, prune_vault, restic, save};

#[test]
fn restic_checks_and_restores_what_was_saved_here() {
    let bench = Bench::new();
    plant(&bench.source());
    bench.save();
    fs::write(bench.source().join("deep/later"), noise(2 << 20, 3)).unwrap();
    let saved = bench.save();
    bench.restic_ok(&["check", "--read-data"]);
    let out = bench.path("out");
    let Some(output) = bench.restic(&["restore", "latest", "--target", out.to_str().unwrap()])
    else {
        return;
    };
    assert!(output.status.success(), "{output:?}");
    let restored = out.join(bench.source().strip_prefix("/").unwrap());
    assert_eq!(describe(&restored), describe(&bench.source()));
    let list = bench.restic(&["snapshots", "--json"]).unwrap();
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert_eq!(list[1]["id"], saved.snapshot.id.to_string());
}

#[test]
fn what_restic_saved_is_restored_here_compressed_or_not() {
    for version in ["1", "2"] {
        let bench = Bench::new();
        plant(&bench.source());
        let place = bench.path("theirs");
        let source = bench.source();
        let source = source.to_str().unwrap();
        let run = |arguments: &[&str]| restic(&place, arguments);
        let Some(made) = run(&["init", "--repository-version", version]) else { return };
        assert!(made.status.success(), "{made:?}");
        assert!(run(&["backup", source]).unwrap().status.success());
        let backend = Arc::new(LocalBackend::new(&place));
        let vault = Arc::new(Vault::open(backend, PASSWORD.as_bytes()).unwrap());
        let theirs = Bench { vault, ..bench };
        let snapshot = theirs.vault.find_snapshot("latest", &ClientFilter::All).unwrap();
        let restored = theirs.restore(&snapshot, "out");
        assert!(restored.faults.is_empty(), "{:?}", restored.faults);
        assert_eq!(describe(&theirs.path("out")), describe(&theirs.source()));
        let report = theirs.check();
        assert!(report.faults.is_empty(), "{:?}", report.faults);

        // A save here shares the pieces that restic cut, and restic goes on with both.
        let saved = theirs.save();
        assert_eq!(saved.written.pieces, 0, "format {version}");
        for arguments in [["check", "--read-data"].as_slice(), &["forget", "latest", "--prune"]] {
            let output = run(arguments).unwrap();
            assert!(output.status.success(), "{arguments:?}: {output:?}");
        }
        let report = theirs.check();
        assert!(report.faults.is_empty(), "{:?}", report.faults);
    }
}

/// What restic tells of what was saved here: files, their bytes, and how two snapshots differ.
#[test]
fn restic_looks_into_what_was_saved_here() {
    let bench = Bench::new();
    plant(&bench.source());
    let first = bench.save().snapshot.id.to_string();
    fs::write(bench.source().join("deep/later"), noise(2 << 20, 3)).unwrap();
    fs::remove_file(bench.source().join("nothing")).unwrap();
    fs::write(bench.source().join("a.txt"), "another text").unwrap();
    let second = bench.save().snapshot.id.to_string();
    let Some(differences) = bench.restic(&["diff", &first, &second]) else { return };
    let said = String::from_utf8(differences.stdout).unwrap();
    let changed = |sign: &str, name: &str| {
        let path = bench.source().join(name);
        let line = |line: &str| {
            line.split_once(' ')
                .is_some_and(|(one, rest)| one == sign && Path::new(rest.trim()) == path)
        };
        assert!(said.lines().any(line), "{sign} {name}: {said}");
    };
    changed("+", "deep/later");
    changed("-", "nothing");
    changed("M", "a.txt");
    for name in ["deep/later", "deep/er/est/b.bin", "schön 🦀"] {
        let path = bench.source().join(name);
        let dumped = bench.restic(&["dump", &second, path.to_str().unwrap()]).unwrap();
        assert!(dumped.status.success() && dumped.stdout == fs::read(&path).unwrap(), "{name}");
    }
    let listed = bench.restic(&["ls", &second]).unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).lines().count();
    let things = describe(&bench.source()).len() + bench.source().components().count() - 1;
    assert!(listed >= things, "{listed} of {things}");
    let found = bench.restic(&["find", "b.bin"]).unwrap();
    assert!(String::from_utf8_lossy(&found.stdout).contains("b.bin"), "{found:?}");
}

/// What restic mounts of a vault that was written here has all names and all bytes.
#[test]
fn restic_mounts_what_was_saved_here() {
    let bench = Bench::new();
    plant(&bench.source());
    bench.save();
    let dir = bench.path("mount");
    fs::create_dir(&dir).unwrap();
    let mut command = Command::new("restic");
    command.args(["--no-cache", "-r"]).arg(bench.path("vault")).arg("mount").arg(&dir);
    command.env("RESTIC_PASSWORD", PASSWORD).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else {
        println!("skipped: this machine has no restic");
        return;
    };
    let latest = dir.join("snapshots/latest");
    wait_until("restic mounts, or ends", || latest.exists() || child.try_wait().unwrap().is_some());
    if !latest.exists() {
        println!("skipped: restic mounts nothing on this machine");
        return;
    }
    let there = latest.join(bench.source().strip_prefix("/").unwrap());
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect::<BTreeSet<_>>()
    };
    for folder in ["", "deep", "deep/er/est"] {
        assert_eq!(names(&there.join(folder)), names(&bench.source().join(folder)), "{folder}");
    }
    for name in ["a.txt", "nothing", "deep/er/est/b.bin", "sch\u{f6}n \u{1f980}"] {
        let is_same =
            fs::read(there.join(name)).unwrap() == fs::read(bench.source().join(name)).unwrap();
        assert!(is_same, "{name}");
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    child.wait().unwrap();
    assert_eq!(names(&dir), BTreeSet::new());
}

/// A password that is added and removed here, or there, opens the vault there, or here.
#[test]
fn keys_are_shared_with_restic() {
    let bench = Bench::new();
    plant(&bench.source());
    bench.save();
    let second = bench.path("second");
    fs::write(&second, "second").unwrap();
    let add = ["key", "add", "--new-password-file", second.to_str().unwrap()];
    let Some(added) = bench.restic(&add) else { return };
    assert!(added.status.success(), "{added:?}");
    let backend = || Arc::new(LocalBackend::new(bench.path("vault")));
    let vault = Vault::open(backend(), b"second").unwrap();
    assert_eq!(vault.keys().unwrap().len(), 2);
    let theirs = vault.keys().unwrap().into_iter().find(|key| key.is_used).unwrap();
    bench.vault.remove_key(&theirs.id.short()).unwrap();
    assert!(matches!(Vault::open(backend(), b"second"), Err(Error::WrongPassword)));
    let who = VaultUser::this_process();
    let by = (&who, crate::vault_bench::now());
    let third = bench.vault.add_key(b"third", crate::vault_bench::COST, by).unwrap();
    let mut restic = std::process::Command::new("restic");
    restic.args(["--no-cache", "-r"]).arg(bench.path("vault")).arg("snapshots");
    let opened = restic.env("RESTIC_PASSWORD", "third").output().unwrap();
    assert!(opened.status.success(), "{opened:?}");
    bench.restic_ok(&["key", "remove", &third.short()]);
    assert!(matches!(Vault::open(backend(), b"third"), Err(Error::WrongPassword)));
}

#[test]
fn restic_prunes_what_was_saved_here_and_the_other_way_round() {
    let bench = Bench::new();
    plant(&bench.source());
    let first = bench.save();
    fs::remove_file(bench.source().join("deep/er/est/b.bin")).unwrap();
    let second = bench.save();
    let id = first.snapshot.id.to_string();
    bench.restic_ok(&["forget", &id, "--prune"]);
    let report = bench.check();
    assert!(report.faults.is_empty(), "{:?}", report.faults);
    fs::write(bench.source().join("x"), noise(1 << 20, 5)).unwrap();
    let third = bench.save();
    bench.vault.remove_snapshot(&second.snapshot.id).unwrap();
    bench.vault.remove_snapshot(&third.snapshot.id).unwrap();
    fs::remove_file(bench.source().join("x")).unwrap();
    let last = bench.save();
    prune_vault(&bench.vault).unwrap();
    bench.restic_ok(&["check", "--read-data"]);
    bench.restore(&last.snapshot, "out");
    assert_eq!(describe(&bench.path("out")), describe(&bench.source()));
}

#[test]
fn locks_are_honored_on_both_sides() {
    let bench = Bench::new();
    plant(&bench.source());
    bench.save();
    let who = VaultUser::this_process();
    let lock =
        VaultLock::acquire(&bench.vault, &who, VaultLockMode::Exclusive, Duration::ZERO).unwrap();
    let source = bench.source();
    let Some(output) = bench.restic(&["backup", source.to_str().unwrap()]) else { return };
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("locked exclusively"), "{text}");
    drop(lock);
    let lock =
        VaultLock::acquire(&bench.vault, &who, VaultLockMode::Shared, Duration::ZERO).unwrap();
    bench.restic_ok(&["backup", source.to_str().unwrap()]);
    assert!(!bench.restic(&["prune"]).unwrap().status.success());
    drop(lock);
    bench.restic_ok(&["prune"]);

    // restic holds a shared lock while it waits for what it shall save.
    let mut running = std::process::Command::new("restic")
        .args(["--no-cache", "-r"])
        .arg(bench.path("vault"))
        .args(["backup", "--stdin"])
        .env("RESTIC_PASSWORD", PASSWORD)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // A lock that is half written has another name.
    let is_lock = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().len() == 64;
    while !fs::read_dir(bench.path("vault/locks")).unwrap().any(is_lock) {
        assert!(running.try_wait().unwrap().is_none(), "restic has ended");
        std::thread::yield_now();
    }
    assert!(matches!(prune_vault(&bench.vault), Err(Error::Locked { exclusive: false, .. })));
    save(&bench.vault, &[bench.source()]).unwrap();
    let mut input = running.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, b"something").unwrap();
    drop(input);
    assert!(running.wait().unwrap().success());
    prune_vault(&bench.vault).unwrap();
    let latest = bench.vault.find_snapshot("latest", &ClientFilter::All).unwrap();
    assert!(find_path(&bench.vault, &bench.index(), &latest, "/").is_ok());
}

/// restic honors a lock that tells more than it knows of, and removes it when its process is gone.
#[test]
fn restic_understands_locks_of_this_program() {
    let bench = Bench::new();
    let who = VaultUser::this_process();
    assert!(!who.pid_scope.is_empty());
    let lock =
        VaultLock::acquire(&bench.vault, &who, VaultLockMode::Exclusive, Duration::ZERO).unwrap();
    let id = fs::read_dir(bench.path("vault/locks")).unwrap().next().unwrap().unwrap().file_name();
    let Some(shown) = bench.restic(&["--no-lock", "cat", "lock", id.to_str().unwrap()]) else {
        return;
    };
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["pid"], who.pid);
    let refused = bench.restic(&["check"]).unwrap();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("already locked"), "{told}");
    drop(lock);
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let dead = VaultUser { pid: child.id(), ..who };
    std::mem::forget(
        VaultLock::acquire(&bench.vault, &dead, VaultLockMode::Exclusive, Duration::ZERO).unwrap(),
    );
    child.wait().unwrap();
    bench.restic_ok(&["unlock"]);
    assert_eq!(fs::read_dir(bench.path("vault/locks")).unwrap().count(), 0);
    bench.restic_ok(&["check"]);
}

/// Snapshots with other tags, and copies in another vault, are what restic makes of them.
#[test]
fn tags_and_copies_are_restics() {
    let bench = Bench::new();
    plant(&bench.source());
    let first = bench.save().snapshot;
    fs::write(bench.source().join("deep/later"), noise(1 << 20, 3)).unwrap();
    let second = bench.save().snapshot;
    let who = VaultUser::this_process();
    let tagged = {
        let lock = VaultLock::acquire(&bench.vault, &who, VaultLockMode::Exclusive, Duration::ZERO)
            .unwrap();
        let add = TagChange::Edit { add: vec!["kept".to_owned()], remove: Vec::new() };
        let id = change_tags(&bench.vault, &lock, &second, &add).unwrap().unwrap();
        assert_eq!(
            change_tags(&bench.vault, &lock, &first, &TagChange::Set(Vec::new())).unwrap(),
            None
        );
        id
    };
    let snapshots = bench.vault.read_snapshots().unwrap();
    assert_eq!(snapshots.iter().map(|one| one.id).collect::<Vec<_>>(), [first.id, tagged]);
    assert_eq!(
        (snapshots[1].tags(), snapshots[1].original),
        (&["kept".to_owned()][..], Some(second.id))
    );

    let other = Bench::new();
    let copy = |snapshot: &VaultSnapshot| {
        let lock =
            VaultLock::acquire(&other.vault, &who, VaultLockMode::Shared, Duration::ZERO).unwrap();
        let (index, progress) = (other.index(), BackupProgress::default());
        let session = SaveSession::new(&other.vault, &index, &lock, &progress);
        copy_snapshot(IndexedVault::new(&bench.vault, &bench.index()), snapshot, &session).unwrap()
    };
    for snapshot in &snapshots {
        assert!(copy(snapshot).is_some());
        assert!(copy(snapshot).is_none(), "once is enough");
    }
    let report = other.check();
    assert!(report.faults.is_empty(), "{:?}", report.faults);
    let latest = other.vault.find_snapshot("latest", &ClientFilter::All).unwrap();
    assert_eq!((latest.tree, latest.tags()), (second.tree, &["kept".to_owned()][..]));
    let path = bench.source().display().to_string();
    let node = find_path(&other.vault, &other.index(), &latest, &path).unwrap();
    other.restore_node(&node, "out");
    assert_eq!(describe(&other.path("out")), describe(&bench.source()));
    other.restic_ok(&["check", "--read-data"]);
    bench.restic_ok(&["check", "--read-data"]);
    if let Some(listed) = other.restic(&["snapshots", "--json", "--tag", "kept"]) {
        let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
        assert_eq!(listed.as_array().unwrap().len(), 1);
    }
}
