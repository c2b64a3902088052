//! Snapshots as a file system: what is mounted is what was saved. Where the system does not mount, the tests say so.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use tympan_backup::{
    BackupProgress, ClientFilter, Error, MountAccess, SaveOptions, UnmountOutcome, VaultFileKind,
    VaultMount, VaultUser, mount_vault,
};

use crate::vault_bench::{Bench, describe, noise, now, plant, save_with, some_file};

/// Mounts a vault at a folder of the bench; nothing, said aloud, where that is not possible.
fn mounted(bench: &Bench, clients: ClientFilter) -> Option<VaultMount> {
    mounted_for(bench, (clients, MountAccess::Owner))
}

fn mounted_for(bench: &Bench, asked: (ClientFilter, MountAccess)) -> Option<VaultMount> {
    let dir = bench.path("mount");
    fs::create_dir_all(&dir).unwrap();
    match mount_vault(bench.vault.clone(), &dir, asked) {
        Ok(mounted) => Some(mounted),
        Err(Error::Mount { source, .. }) => {
            println!("skipped: this machine does not mount: {source}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Where the source stands in a snapshot that is mounted.
fn source_in(bench: &Bench, snapshot: &str) -> PathBuf {
    bench.path("mount").join(snapshot).join(bench.source().strip_prefix("/").unwrap())
}

#[test]
fn what_is_mounted_is_what_was_saved() {
    let bench = Bench::new();
    plant(&bench.source());
    let first = bench.save().snapshot;
    fs::write(bench.source().join("later"), noise(9 << 20, 11)).unwrap();
    let second = bench.save().snapshot;
    let Some(mounted) = mounted(&bench, ClientFilter::All) else { return };
    let dir = bench.path("mount");
    assert_eq!(names(&dir), ["hosts", "ids", "snapshots", "tags"]);
    assert_eq!(names(&dir.join("snapshots")).len(), 3);
    assert_eq!(names(&dir.join("hosts")), [VaultUser::this_process().host]);
    let mut ids = [first.id.short(), second.id.short()];
    ids.sort();
    assert_eq!(names(&dir.join("ids")), ids);
    assert_eq!(describe(&source_in(&bench, "snapshots/latest")), describe(&bench.source()));
    let before = source_in(&bench, &format!("ids/{}", first.id.short()));
    assert!(!before.join("later").exists() && before.join("deep/twin").exists());

    // From any place of a file, across pieces, and past its end.
    let (whole, file) = (noise(9 << 20, 11), source_in(&bench, "snapshots/latest").join("later"));
    let file = File::open(file).unwrap();
    for (at, length) in [(0, 10), (1_000_001, 3_000_000), (4 << 20, 5 << 20), ((9 << 20) - 5, 5)] {
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, at as u64).unwrap();
        assert!(bytes == whole[at..at + length], "{length} bytes at {at}");
    }
    assert_eq!(file.read_at(&mut [0; 10], 9 << 20).unwrap(), 0);

    let refused = fs::write(dir.join("new"), "x").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    let missing = fs::metadata(before.join("no such thing")).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    drop(file);
    assert_eq!(mounted.unmount().unwrap(), UnmountOutcome::Idle);
    assert_eq!(names(&dir), [""; 0]);
}

#[test]
fn a_mount_shows_the_clients_that_are_asked_for() {
    let bench = Bench::new();
    plant(&bench.source());
    for (host, tag) in [("ann", "one/two"), ("ben", "")] {
        let who = VaultUser { host: host.to_owned(), ..VaultUser::this_process() };
        let mut options = SaveOptions::new(who, now());
        // As a save of a repository has them, too.
        let for_programs = ["layout:2".to_owned(), format!("root:{}", "0a".repeat(32))];
        options.tags = [vec![tag.to_owned()], for_programs.to_vec()].concat();
        save_with(&bench.vault, &[bench.source()], &options, &BackupProgress::default()).unwrap();
    }
    let Some(all) = mounted(&bench, ClientFilter::All) else { return };
    let dir = bench.path("mount");
    assert_eq!(names(&dir.join("hosts")), ["ann", "ben"]);
    assert_eq!(names(&dir.join("tags")), ["_", "one_two"]);
    assert_eq!(names(&dir.join("tags/one_two")).len(), 2);
    all.unmount().unwrap();
    let ben = mounted(&bench, ClientFilter::Named(vec!["ben".to_owned()])).unwrap();
    assert_eq!(names(&dir.join("hosts")), ["ben"]);
    assert_eq!(names(&dir.join("ids")).len(), 1);
    ben.unmount().unwrap();
}

#[test]
fn a_mount_that_is_in_use_ends_all_the_same() {
    let bench = Bench::new();
    plant(&bench.source());
    bench.save();
    let Some(mounted) = mounted(&bench, ClientFilter::All) else { return };
    let file = File::open(source_in(&bench, "snapshots/latest").join("a.txt")).unwrap();
    assert_eq!(mounted.unmount().unwrap(), UnmountOutcome::InUse);
    assert_eq!(names(&bench.path("mount")), [""; 0]);
    drop(file);
}

#[test]
fn what_is_damaged_is_an_error_and_the_rest_is_there() {
    let bench = Bench::new();
    plant(&bench.source());
    fs::remove_file(bench.source().join("deep/er/est/b.bin")).unwrap();
    bench.save();
    let pieces = some_file(&bench.vault, &bench, VaultFileKind::Pack);
    let Some(mounted) = mounted(&bench, ClientFilter::All) else { return };
    let source = source_in(&bench, "snapshots/latest");
    // Whichever pack it is: folders or pieces of files.
    let length = fs::metadata(&pieces).unwrap().len();
    fs::remove_file(&pieces).unwrap();
    fs::write(&pieces, vec![0; usize::try_from(length).unwrap()]).unwrap();
    let read = fs::read_dir(&source).and_then(|_| fs::read(source.join("deep/twin")));
    assert_eq!(read.unwrap_err().raw_os_error(), Some(5));
    assert_eq!(names(&bench.path("mount")).len(), 4);
    mounted.unmount().unwrap();
}

#[test]
fn a_folder_that_holds_something_is_not_mounted_at() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("mount/in the way")).unwrap();
    let refused = mount_vault(
        bench.vault.clone(),
        &bench.path("mount"),
        (ClientFilter::All, MountAccess::Owner),
    );
    assert!(matches!(refused, Err(Error::InvalidRequest(_))), "{refused:?}");
    let missing = mount_vault(
        bench.vault.clone(),
        &bench.path("none"),
        (ClientFilter::All, MountAccess::Owner),
    );
    assert!(matches!(missing, Err(Error::Source { .. })), "{missing:?}");
}

/// An access control list as the system stores it: tag, permissions and id of each entry.
fn access_list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

/// Where all may look, an access control list says who: the bits of the group are no more than its bound.
#[test]
fn a_mount_for_all_shows_a_file_to_those_whom_its_list_names() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can look as another user");
        return;
    }
    let bench = Bench::new();
    let open = fs::Permissions::from_mode(0o755);
    fs::create_dir_all(bench.source()).unwrap();
    fs::set_permissions(bench.dir.path(), open).unwrap();
    let file = bench.source().join("secret");
    fs::write(&file, "secret").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(&file, None, Some(4242)).unwrap();
    let nobody = u32::MAX;
    // The owner writes, user 5001 reads, the group does not, and the bound is reading.
    let list = [(1, 6, nobody), (2, 4, 5001), (4, 0, nobody), (16, 4, nobody), (32, 0, nobody)];
    let flags = rustix::fs::XattrFlags::empty();
    let set = rustix::fs::setxattr(&file, "system.posix_acl_access", &access_list(&list), flags);
    if let Err(error) = set {
        println!("skipped: this file system has no access control lists: {error}");
        return;
    }
    bench.save();
    let Some(mounted) = mounted_for(&bench, (ClientFilter::All, MountAccess::All)) else { return };
    let reads = |place: &Path, user: &str, group: &str| {
        let mut reader = Command::new("setpriv");
        reader.args(["--reuid", user, "--regid", group, "--clear-groups", "cat"]).arg(place);
        reader.output().unwrap().status.success()
    };
    let shown = source_in(&bench, "snapshots/latest").join("secret");
    for place in [&file, &shown] {
        assert!(reads(place, "5001", "5001"), "{}", place.display());
        assert!(!reads(place, "5002", "4242"), "{}", place.display());
        assert!(!reads(place, "5002", "5002"), "{}", place.display());
    }
    drop(mounted);
}
