//! Vaults behind servers of restic's REST protocol: what goes wrong on the way, and the stock restic by the same way.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use tympan_backup::{
    BackupProgress, CheckDepth, ClientFilter, ExistingFilePolicy, IndexedVault, RestAddress,
    RestBackend, RestLogin, RestoreOptions, Vault, VaultBackend, VaultFileKind, VaultIndex,
    VaultObjectId, VaultUser, check_vault, find_path, restore_snapshot,
};
use tympan_testkit::origin_server::{OriginResponse, OriginServer};
use tympan_testkit::rest_server::{RestRules, RestServer};

use crate::vault_bench::{Bench, COST, PASSWORD, describe, now, plant, restic, save};

pub(crate) fn backend(server: &RestServer, login: Option<&RestLogin>) -> RestBackend {
    let address = RestAddress::parse(&format!("rest:http://{}/some/where/", server.addr()));
    RestBackend::new(address.unwrap().unwrap(), login, (None, 4)).unwrap()
}

fn made(backend: RestBackend) -> Arc<Vault> {
    let by = (&VaultUser::this_process(), now());
    Arc::new(Vault::init(Arc::new(backend), PASSWORD.as_bytes(), COST, by).unwrap())
}

/// Restores what was the source of the last snapshot, and compares.
fn comes_back_whole(vault: &Arc<Vault>, bench: &Bench, to: &str) {
    let index = VaultIndex::load(vault).unwrap();
    let latest = vault.find_snapshot("latest", &ClientFilter::All).unwrap();
    let node = find_path(vault, &index, &latest, &bench.source().display().to_string()).unwrap();
    let options =
        RestoreOptions { existing: ExistingFilePolicy::Refuse, ..RestoreOptions::default() };
    let progress = BackupProgress::default();
    let restored = restore_snapshot(
        IndexedVault::new(vault, &index),
        &node,
        &bench.path(to),
        &options,
        &progress,
    )
    .unwrap();
    assert!(restored.faults.is_empty(), "{:?}", restored.faults);
    assert_eq!(describe(&bench.path(to)), describe(&bench.source()));
}

#[test]
fn a_save_survives_a_server_that_fails_and_breaks_off() {
    for fails_every in [0, 7] {
        let bench = Bench::new();
        plant(&bench.source());
        let server =
            RestServer::start(RestRules { failure_interval: fails_every, ..RestRules::default() });
        let vault = made(backend(&server, None));
        save(&vault, &[bench.source()]).unwrap();
        let report = check_vault(&vault, CheckDepth::Data, &BackupProgress::default()).unwrap();
        assert!(report.faults.is_empty(), "{:?}", report.faults);
        comes_back_whole(&vault, &bench, "out");
        assert!(!server.file_paths().iter().any(|name| name.starts_with("locks/")));
        // It has refused and broken off at least twice each.
        assert!(
            fails_every == 0 || server.request_count() > 15,
            "{} requests",
            server.request_count()
        );
    }
}

#[test]
fn restic_reads_and_writes_by_the_same_way() {
    let bench = Bench::new();
    plant(&bench.source());
    let server = RestServer::start(RestRules::default());
    let vault = made(backend(&server, None));
    save(&vault, &[bench.source()]).unwrap();
    let place = format!("rest:http://{}/some/where/", server.addr());
    let Some(output) = restic(Path::new(&place), &["check", "--read-data"]) else { return };
    assert!(output.status.success(), "{output:?}");
    let source = bench.source();
    let output = restic(Path::new(&place), &["backup", source.to_str().unwrap()]).unwrap();
    assert!(output.status.success(), "{output:?}");
    comes_back_whole(&vault, &bench, "out");
    assert_eq!(vault.read_snapshots().unwrap().len(), 2);
    let report = check_vault(&vault, CheckDepth::Data, &BackupProgress::default()).unwrap();
    assert!(report.faults.is_empty(), "{:?}", report.faults);
}

/// rclone says "not found" of what it cannot read: that is no vault without snapshots and locks.
#[test]
fn what_rclone_cannot_list_is_not_taken_for_empty() {
    for (server, is_empty) in [("rest-server", true), ("rclone/v1.68.2", false)] {
        let origin = OriginServer::start(move |_| {
            OriginResponse::with_status(404).with_header("Server", server)
        });
        let address = format!("rest:http://{}/", origin.addr());
        let address = RestAddress::parse(&address).unwrap().unwrap();
        let backend = RestBackend::new(address, None, (None, 4)).unwrap();
        assert_eq!(
            backend.list(VaultFileKind::Snapshot).is_ok_and(|found| found.is_empty()),
            is_empty
        );
    }
}

#[test]
fn missing_rights_are_reported() {
    let rules = RestRules { requires_login: true, is_append_only: true, ..RestRules::default() };
    let server = RestServer::start(rules);
    let wrong = RestLogin { user: "ann".to_owned(), password: "s3cret".to_owned() };
    for login in [None, Some(&wrong)] {
        let backend = backend(&server, login);
        let refused = backend.read(VaultFileKind::Config, &VaultObjectId::default()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        let told = format!("{refused} {backend:?} {}", backend.location());
        assert!(told.contains("TYMPAN_REST_USER") && !told.contains("s3cret"), "{told}");
    }
    let right = RestLogin { user: "ann".to_owned(), password: "secret".to_owned() };
    let bench = Bench::new();
    plant(&bench.source());
    let vault = made(backend(&server, Some(&right)));
    let saved = save(&vault, &[bench.source()]).unwrap();
    comes_back_whole(&vault, &bench, "out");
    let refused = vault.remove_snapshot(&saved.snapshot.id).unwrap_err();
    let told = format!("{refused}: {:?}", std::error::Error::source(&refused));
    assert!(told.contains("it may be append-only"), "{told}");
}

/// A server that can do so removes the folders of a vault; never with what somebody has put there.
#[test]
fn the_folders_of_an_empty_vault_are_removed_where_the_server_can() {
    let id = VaultObjectId::of(b"lock");
    for removes_repositories in [true, false] {
        let server = RestServer::start(RestRules {
            allows_repository_removal: removes_repositories,
            ..RestRules::default()
        });
        let backend = backend(&server, None);
        backend.create().unwrap();
        backend.write(VaultFileKind::Lock, &id, b"lock").unwrap();
        backend.remove_folders().unwrap();
        assert_eq!((server.removal_count(), server.file_paths().len()), (0, 1));
        backend.remove(VaultFileKind::Lock, &id).unwrap();
        let before = server.request_count();
        backend.remove_folders().unwrap();
        assert_eq!(server.removal_count(), u64::from(removes_repositories));
        // What a server does not know is asked for once.
        assert_eq!(server.request_count(), before + 7);
    }
}
