//! Disks that are full to some level when a save begins, and to the last byte when a prune does.
//!
//! `TYMPAN_FILL_LEVELS` sets how many levels are tried; `make torture` asks for more.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use tympan_backup::{BackupProgress, CheckDepth, LocalBackend, Vault, VaultUser, check_vault};

use crate::full_disk::Disk;
use crate::vault_bench::{Bench, COST, PASSWORD, describe, noise, now, prune_vault, save};

const MIB: u64 = 1 << 20;
/// What is set aside on the disk, as the guide advises: removed, it gives a prune room to work.
const RESERVE: u64 = MIB;

fn levels() -> u64 {
    std::env::var("TYMPAN_FILL_LEVELS").ok().and_then(|count| count.parse().ok()).unwrap_or(3)
}

/// A small generator: the same seeds give the same levels.
fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

fn free(disk: &Path) -> u64 {
    let facts = rustix::fs::statvfs(disk).unwrap();
    facts.f_bavail * facts.f_frsize
}

/// Fills the disk until so many bytes are left.
fn fill(disk: &Path, name: &str, left: u64) {
    let mut file = File::create(disk.join(name)).unwrap();
    let block = vec![7; 4096];
    while free(disk) > left {
        // The last block may not fit.
        if file.write_all(&block).is_err() {
            return;
        }
    }
}

/// Tells whether an error is about room, to whoever reads it.
fn is_about_room(error: &tympan_backup::Error) -> bool {
    let said = format!("{error}: {:?}", std::error::Error::source(error));
    said.contains("StorageFull") || said.contains("os error 28")
}

#[test]
fn a_vault_is_whole_at_any_fill_level() {
    let dir = tempfile::tempdir().unwrap();
    let mut seed = 0x5eed_f111_u64;
    let (mut refused_saves, mut refused_prunes) = (0, 0);
    for level in 0..levels() {
        let Some(disk) = Disk::mount(&dir.path().join(format!("disk{level}")), "14m") else {
            return;
        };
        let at = dir.path().join(format!("disk{level}"));
        let source = dir.path().join(format!("source{level}"));
        fs::create_dir_all(&source).unwrap();
        let backend = Arc::new(LocalBackend::new(at.join("vault")));
        let by = (&VaultUser::this_process(), now());
        let vault = Arc::new(Vault::init(backend, PASSWORD.as_bytes(), COST, by).unwrap());
        fill(&at, "reserve", free(&at) - RESERVE);

        let bytes =
            |mib: u64, seed: u64| noise((mib * MIB) as usize, 0xf111_0000 + 8 * level + seed);
        // One snapshot that stays, and one that goes.
        fs::write(source.join("kept"), bytes(2, 1)).unwrap();
        let kept = save(&vault, std::slice::from_ref(&source)).unwrap();
        let before = describe(&source);
        fs::write(source.join("passing"), bytes(3, 2)).unwrap();
        let passing = save(&vault, std::slice::from_ref(&source)).unwrap();
        fs::remove_file(source.join("passing")).unwrap();
        vault.remove_snapshot(&passing.snapshot.id).unwrap();

        // More to save than there is room for, wherever that ends.
        let left = next(&mut seed) % (4 * MIB);
        fill(&at, "others", left);
        fs::write(source.join("big"), bytes(5, 3)).unwrap();
        let refused = save(&vault, std::slice::from_ref(&source)).unwrap_err();
        assert!(is_about_room(&refused), "with {left} bytes: {refused}");
        refused_saves += 1;
        let is_whole = || {
            let found = check_vault(&vault, CheckDepth::Data, &BackupProgress::default()).unwrap();
            assert!(found.faults.is_empty(), "with {left} bytes: {:?}", found.faults);
            found.snapshots
        };
        assert_eq!(is_whole(), 1);

        // To the last byte: a prune works, or says what it lacks and harms nothing.
        fill(&at, "more", 0);
        assert!(free(&at) < 4096);
        if let Err(error) = prune_vault(&vault) {
            assert!(is_about_room(&error), "with {left} bytes: {error}");
            refused_prunes += 1;
        }
        assert_eq!(is_whole(), 1);
        // With the reserve, it makes the room that a save needs.
        fs::remove_file(at.join("reserve")).unwrap();
        prune_vault(&vault).unwrap();
        let room = free(&at);
        assert!(room > RESERVE + 2 * MIB, "with {left} bytes before: {room} bytes after a prune");
        fs::remove_file(source.join("big")).unwrap();
        fs::write(source.join("later"), bytes(1, 4)).unwrap();
        let after = describe(&source);
        let saved = save(&vault, std::slice::from_ref(&source)).unwrap();
        assert_eq!(is_whole(), 2);

        let bench = Bench { dir: tempfile::tempdir().unwrap(), vault };
        for (snapshot, expected, to) in
            [(&kept.snapshot, &before, "first"), (&saved.snapshot, &after, "second")]
        {
            let path = source.display().to_string();
            let node =
                tympan_backup::find_path(&bench.vault, &bench.index(), snapshot, &path).unwrap();
            bench.restore_node(&node, to);
            assert_eq!(&describe(&bench.path(to)), expected);
        }
        drop(disk);
    }
    println!(
        "{} fill levels: {refused_saves} saves refused, {refused_prunes} prunes without any room refused, {} prunes with \
         a reserve of 1 MiB done; nothing lost",
        levels(),
        levels()
    );
}
