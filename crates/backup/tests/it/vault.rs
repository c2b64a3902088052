//! Vaults: keys, damage, what is refused.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use tympan_backup::{
    ClientFilter, Error, IndexedVault, LocalBackend, Vault, VaultFileKind, VaultUser, find_path,
};

use crate::vault_bench::{Bench, COST, PASSWORD, describe, now, plant, some_file};

#[test]
fn keys_open_until_they_are_removed() {
    let bench = Bench::new();
    let place = bench.path("vault");
    let open =
        |password: &str| Vault::open(Arc::new(LocalBackend::new(&place)), password.as_bytes());
    let who = VaultUser::this_process();
    let second = bench.vault.add_key(b"second", COST, (&who, now())).unwrap();
    assert_eq!(bench.vault.keys().unwrap().len(), 2);
    assert!(matches!(open("wrong"), Err(Error::WrongPassword)));
    let mut opened = open("second").unwrap();
    assert!(opened.remove_key(&second.short()).is_err(), "the key in use stays");
    opened.change_password(b"third", COST, (&who, now())).unwrap();
    assert!(matches!(open("second"), Err(Error::WrongPassword)));
    assert!(open("third").is_ok() && open(PASSWORD).is_ok());
    let used = opened.keys().unwrap().into_iter().find(|key| !key.is_used).unwrap();
    opened.remove_key(&used.id.short()).unwrap();
    assert!(matches!(open(PASSWORD), Err(Error::WrongPassword)));
    assert!(open("third").is_ok());
}

#[test]
fn places_that_hold_no_vault_or_something_else_are_refused() {
    let bench = Bench::new();
    let by = (&VaultUser::this_process(), now());
    let again = Arc::new(LocalBackend::new(bench.path("vault")));
    assert!(matches!(Vault::init(again, b"x", COST, by), Err(Error::VaultExists { .. })));
    let nowhere = Arc::new(LocalBackend::new(bench.path("nowhere")));
    assert!(matches!(Vault::open(nowhere, b"x"), Err(Error::NoVault { .. })));
    assert!(!bench.path("nowhere").exists());
}

/// Damages a file of each kind in several ways; a check must tell, and reading must not bring wrong bytes.
#[test]
fn damage_is_reported_and_never_restored() {
    let bench = Bench::new();
    plant(&bench.source());
    let saved = bench.save();
    let path = bench.source().display().to_string();
    for kind in [VaultFileKind::Pack, VaultFileKind::Index, VaultFileKind::Snapshot] {
        let file = some_file(&bench.vault, &bench, kind);
        let whole = fs::read(&file).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 1;
        let mut header = whole.clone();
        header[whole.len() - 3] ^= 0x80;
        let cut = whole[..whole.len() / 2].to_vec();
        for damaged in [flipped, header, cut, vec![0; whole.len()], Vec::new()] {
            fs::write(&file, damaged).unwrap();
            let report = bench.check();
            assert!(!report.faults.is_empty(), "{kind}");
            let vault = bench.open_through(Arc::new(LocalBackend::new(bench.path("vault"))));
            let Ok(index) = tympan_backup::VaultIndex::load(&vault) else { continue };
            let Ok(node) = find_path(&vault, &index, &saved.snapshot, &path) else { continue };
            let restored = bench.restore_node(&node, "out");
            let out = describe(&bench.path("out"));
            let lost = describe(&bench.source()).iter().filter(|line| !out.contains(line)).count();
            assert_eq!(restored.faults.is_empty(), lost == 0, "{:?}", restored.faults);
            fs::remove_dir_all(bench.path("out")).unwrap();
        }
        fs::write(&file, &whole).unwrap();
        fs::remove_file(&file).unwrap();
        if kind != VaultFileKind::Snapshot {
            assert!(!bench.check().faults.is_empty(), "{kind} removed");
            assert!(bench.prune().is_err(), "a damaged vault is not pruned");
        }
        fs::write(&file, &whole).unwrap();
    }
    assert!(bench.check().faults.is_empty());
}

/// The files without which nothing opens, and locks: what is wrong is told by its name, and another key opens.
#[test]
fn damaged_keys_configs_and_locks_are_reported() {
    let bench = Bench::new();
    plant(&bench.source());
    bench.save();
    let open = |password: &str| {
        Vault::open(Arc::new(LocalBackend::new(bench.path("vault"))), password.as_bytes())
    };
    let by = VaultUser::this_process();
    let mut damaged = 0;
    let mut each = |file: &std::path::Path, expect: &dyn Fn(Result<Vault, Error>, bool)| {
        let whole = fs::read(file).unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 1;
        for bytes in [flipped, whole[..whole.len() / 2].to_vec(), vec![0; whole.len()], Vec::new()]
        {
            fs::write(file, bytes).unwrap();
            expect(open(PASSWORD), true);
            damaged += 1;
        }
        fs::remove_file(file).unwrap();
        expect(open(PASSWORD), false);
        fs::write(file, whole).unwrap();
        assert!(open(PASSWORD).is_ok());
    };
    each(&bench.path("vault/config"), &|opened, is_there| {
        let error = opened.map(|_| ()).unwrap_err();
        match is_there {
            true => assert!(error.to_string().contains("config"), "{error}"),
            false => assert!(matches!(error, Error::NoVault { .. }), "{error}"),
        }
    });
    let key = some_file(&bench.vault, &bench, VaultFileKind::Key);
    let name = key.file_name().unwrap().to_string_lossy().into_owned();
    each(&key, &|opened, is_there| {
        let error = opened.map(|_| ()).unwrap_err();
        match is_there {
            true => assert!(error.to_string().contains(&name), "{error}"),
            false => assert!(matches!(error, Error::WrongPassword), "{error}"),
        }
    });
    // With a second key, damage to the first keeps nobody out.
    bench.vault.add_key(b"second", COST, (&by, now())).unwrap();
    let whole = fs::read(&key).unwrap();
    fs::write(&key, "nothing that was a key").unwrap();
    assert!(open("second").is_ok());
    assert!(open(PASSWORD).is_err());
    fs::write(&key, whole).unwrap();

    // A lock that nobody can read keeps everybody out until it is removed by hand.
    let lock =
        bench.path("vault/locks").join(tympan_backup::VaultObjectId::of(b"lock").to_string());
    for bytes in [&b"nothing that was sealed"[..], b""] {
        fs::write(&lock, bytes).unwrap();
        let refused = crate::vault_bench::save(&bench.vault, &[bench.source()]);
        assert!(matches!(refused, Err(Error::Damaged { kind: VaultFileKind::Lock, .. })));
        assert_eq!(bench.vault.unlock(&by, tympan_backup::UnlockScope::All).unwrap(), 1);
        bench.save();
        damaged += 1;
    }
    assert!(bench.check().faults.is_empty());
    println!("{damaged} damaged files of keys, config and locks: each was told");
}

#[test]
fn pruning_frees_what_no_snapshot_needs() {
    let bench = Bench::new();
    plant(&bench.source());
    let first = bench.save();
    fs::remove_file(bench.source().join("deep/er/est/b.bin")).unwrap();
    let second = bench.save();
    assert_eq!(bench.prune().unwrap().removed_packs, 0);
    bench.vault.remove_snapshot(&first.snapshot.id).unwrap();
    let pruned = bench.prune().unwrap();
    assert!(pruned.freed_bytes > 2 << 20, "{pruned:?}");
    let report = bench.check();
    assert!(report.faults.is_empty() && report.unindexed_packs == 0, "{report:?}");
    bench.restore(&second.snapshot, "out");
    assert_eq!(describe(&bench.path("out")), describe(&bench.source()));
    bench.vault.remove_snapshot(&second.snapshot.id).unwrap();
    bench.prune().unwrap();
    assert_eq!(bench.check().packs, 0);
}

#[test]
fn what_a_vault_holds_is_counted() {
    let bench = Bench::new();
    plant(&bench.source());
    let first = bench.save();
    let second = bench.save();
    let index = bench.index();
    let count = |snapshots: &[tympan_backup::VaultSnapshot]| {
        tympan_backup::compute_vault_stats(IndexedVault::new(&bench.vault, &index), snapshots)
            .unwrap()
    };
    let one = count(std::slice::from_ref(&first.snapshot));
    let both = count(&[first.snapshot.clone(), second.snapshot]);
    assert_eq!((one.snapshots, both.snapshots), (1, 2));
    assert_eq!((both.items, both.restored_bytes), (2 * one.items, 2 * one.restored_bytes));
    // Two names of one file count both; what is above the source has no bytes.
    let files: u64 = 9 + 3 + 7 + (3 << 20) + 2 * 700_000 + (6 << 20);
    let lengths = describe(&bench.source()).len() as u64;
    assert!(one.items >= lengths, "{one:?}");
    assert_eq!(one.restored_bytes, files);
    assert_eq!((one.pieces, one.stored_bytes), (both.pieces, both.stored_bytes));
    assert_eq!(one.pieces, first.written.pieces);
    assert!(one.pack_bytes > one.stored_bytes && one.compression_ratio() > 1.0, "{one:?}");
}

/// One snapshot that cannot be read keeps nobody from the others, and is forgotten by its name.
#[test]
fn a_damaged_snapshot_leaves_the_others() {
    let bench = Bench::new();
    plant(&bench.source());
    let whole = bench.save().snapshot;
    let damaged = bench.save().snapshot;
    let file = bench.path("vault/snapshots").join(damaged.id.to_string());
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&file, "nothing that was sealed").unwrap();
    assert_eq!(bench.vault.find_snapshot("latest", &ClientFilter::All).unwrap().id, whole.id);
    assert_eq!(
        bench.vault.find_snapshot(&whole.id.short(), &ClientFilter::All).unwrap().tree,
        whole.tree
    );
    let (readable, faults) = bench.vault.read_readable_snapshots().unwrap();
    assert_eq!((readable.len(), faults.len()), (1, 1));
    let refused = bench.vault.find_snapshot(&damaged.id.to_string(), &ClientFilter::All);
    assert!(matches!(refused, Err(Error::Damaged { .. })), "{refused:?}");
    // What it needs cannot be told, so that nothing is removed.
    assert!(matches!(bench.prune(), Err(Error::DamagedVault { .. })));
    let next = bench.save();
    assert_eq!(next.snapshot.parent, Some(whole.id));

    let id = bench.vault.find_snapshot_id(&damaged.id.short(), &ClientFilter::All).unwrap();
    bench.vault.remove_snapshot(&id).unwrap();
    bench.prune().unwrap();
    assert!(bench.check().faults.is_empty());
}

/// A wrong password opens nothing and writes nothing, with one key as with many, and costs a look at each key; the right one is
/// found wherever it stands, until it is removed.
#[test]
fn a_wrong_password_is_refused_with_one_key_and_with_twenty() {
    let bench = Bench::new();
    let place = bench.path("vault");
    let open =
        |password: &str| Vault::open(Arc::new(LocalBackend::new(&place)), password.as_bytes());
    let who = VaultUser::this_process();
    let all = || {
        let mut names = crate::vault_bench::describe(&place);
        names.retain(|line| !line.contains("tmp"));
        names
    };
    let mut added = Vec::new();
    for count in 1..=20 {
        let before = all();
        for wrong in ["", "wrong", "correct hors", "correct horse ", "password 20"] {
            assert!(matches!(open(wrong), Err(Error::WrongPassword)), "{count} keys: `{wrong}`");
        }
        assert_eq!(all(), before, "{count} keys");
        let password = format!("password {count}");
        if count < 20 {
            added.push((
                bench.vault.add_key(password.as_bytes(), COST, (&who, now())).unwrap(),
                password,
            ));
        }
    }
    assert_eq!(bench.vault.keys().unwrap().len(), 20);
    for (id, password) in &added {
        assert!(open(password).is_ok(), "{password}");
        bench.vault.remove_key(&id.to_string()).unwrap();
        assert!(matches!(open(password), Err(Error::WrongPassword)), "{password}");
        assert!(open(PASSWORD).is_ok());
    }
}
