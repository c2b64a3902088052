//! A vault on a disk that fills up.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tympan_backup::{BackupProgress, CheckDepth, LocalBackend, Vault, VaultUser, check_vault};

use crate::vault_bench::{COST, PASSWORD, noise, now, prune_vault, save};

/// A small file system of its own, which goes with it.
pub(crate) struct Disk(PathBuf);

impl Disk {
    /// Says aloud where the machine allows none.
    pub(crate) fn mount(at: &Path, size: &str) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let options = format!("size={size}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at);
        match mount.output() {
            Ok(output) if output.status.success() => Some(Self(at.to_owned())),
            _ => {
                println!("skipped: this machine mounts no small file system");
                None
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}

#[test]
fn a_save_into_a_full_disk_harms_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::mount(&dir.path().join("disk"), "12m") else { return };
    let source = dir.path().join("source");
    fs::create_dir_all(&source).unwrap();
    let by = (&VaultUser::this_process(), now());
    let backend = Arc::new(LocalBackend::new(disk.0.join("vault")));
    let vault = Arc::new(Vault::init(backend, PASSWORD.as_bytes(), COST, by).unwrap());
    let report = || check_vault(&vault, CheckDepth::Data, &BackupProgress::default()).unwrap();

    fs::write(source.join("a"), noise(2 << 20, 1)).unwrap();
    let first = save(&vault, std::slice::from_ref(&source)).unwrap();
    // More than there is room for, at several fill levels.
    for (number, mib) in [14, 11, 12].into_iter().enumerate() {
        let big = source.join("big");
        fs::write(&big, noise(mib << 20, 7 + number as u64)).unwrap();
        let refused = save(&vault, std::slice::from_ref(&source)).unwrap_err();
        let said = format!("{refused}: {:?}", std::error::Error::source(&refused));
        assert!(said.contains("StorageFull") || said.contains("os error 28"), "{said}");
        let found = report();
        assert!(found.faults.is_empty() && found.snapshots == 1, "{:?}", found.faults);
        // What the run left goes by a prune, which itself needs little room.
        prune_vault(&vault).unwrap();
        fs::remove_file(&big).unwrap();
    }
    // With room again, the next save goes on.
    fs::write(source.join("b"), noise(1 << 20, 3)).unwrap();
    let second = save(&vault, &[source]).unwrap();
    assert_eq!(second.snapshot.parent, Some(first.snapshot.id));
    assert!(report().faults.is_empty());
    drop(disk);
}
