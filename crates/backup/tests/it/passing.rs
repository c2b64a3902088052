//! Failures that pass, and such that do not: what is out of reach is tried again, and never taken for lost.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use tympan_backup::{
    BackendWrapper, BackupProgress, CheckDepth, Error, ExistingFilePolicy, IndexedVault,
    LocalBackend, RestoreOptions, RestoreReport, Result, SaveSummary, Vault, VaultBackend,
    VaultFileKind, VaultObjectId, check_vault, find_path, repair_vault, restore_snapshot,
};
use tympan_backup::{VaultLock, VaultLockMode, VaultUser};
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

use crate::vault_bench::{Bench, describe, now, plant};

/// A backend of which some reads of packs fail.
#[derive(Debug)]
struct Flaky {
    inner: LocalBackend,
    /// Of this pack alone, if one is named.
    only: Option<VaultObjectId>,
    failure: fn() -> io::Error,
    /// So many are left.
    failures: AtomicUsize,
    failed: AtomicUsize,
}

impl Flaky {
    fn new(bench: &Bench, failures: usize, failure: fn() -> io::Error) -> Self {
        let inner = LocalBackend::new(bench.path("vault"));
        let (failures, failed) = (AtomicUsize::new(failures), AtomicUsize::new(0));
        Self { inner, only: None, failure, failures, failed }
    }

    fn reach(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<()> {
        if kind != VaultFileKind::Pack || self.only.is_some_and(|only| only != *id) {
            return Ok(());
        }
        let take = |left: usize| left.checked_sub(1);
        if self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
            return Ok(());
        }
        self.failed.fetch_add(1, Ordering::SeqCst);
        Err((self.failure)())
    }
}

impl BackendWrapper for Flaky {
    fn inner(&self) -> &dyn VaultBackend {
        &self.inner
    }

    fn read(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<Vec<u8>> {
        self.reach(kind, id)?;
        self.inner.read(kind, id)
    }

    fn read_range(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        start: u64,
        length: usize,
    ) -> io::Result<Vec<u8>> {
        self.reach(kind, id)?;
        self.inner.read_range(kind, id, start, length)
    }
}

/// Restores what was the source through a vault of the test's own.
fn restore_through(
    bench: &Bench,
    vault: &Arc<Vault>,
    saved: &SaveSummary,
    to: &str,
) -> Result<RestoreReport> {
    let path = bench.source().display().to_string();
    // The way to it is read without failures.
    let node = find_path(&bench.vault, &bench.index(), &saved.snapshot, &path).unwrap();
    let options =
        RestoreOptions { existing: ExistingFilePolicy::Refuse, ..RestoreOptions::default() };
    restore_snapshot(
        IndexedVault::new(vault, &bench.index()),
        &node,
        &bench.path(to),
        &options,
        &BackupProgress::default(),
    )
}

#[test]
fn a_read_that_fails_for_a_moment_is_tried_again() {
    let bench = Bench::new();
    plant(&bench.source());
    let saved = bench.save();
    let flaky = Arc::new(Flaky::new(&bench, 3, || ErrorKind::TimedOut.into()));
    let vault = bench.open_through(flaky.clone());
    let restored = restore_through(&bench, &vault, &saved, "out").unwrap();
    assert_eq!(restored.faults, []);
    assert_eq!(flaky.failed.load(Ordering::SeqCst), 3);
    assert_eq!(describe(&bench.path("out")), describe(&bench.source()));
}

/// What a restore, a check and a repair say of a place that cannot be read: neither that files are lost nor that packs are
/// damaged.
#[test]
fn a_place_out_of_reach_ends_the_run_and_nothing_passes_for_lost() {
    let bench = Bench::new();
    plant(&bench.source());
    let saved = bench.save();
    let kinds: [fn() -> io::Error; 5] = [
        || ErrorKind::TimedOut.into(),
        || ErrorKind::ConnectionReset.into(),
        || ErrorKind::ResourceBusy.into(),
        || Errno::STALE.into(),
        || ErrorKind::PermissionDenied.into(),
    ];
    for (number, failure) in kinds.into_iter().enumerate() {
        let vault = bench.open_through(Arc::new(Flaky::new(&bench, usize::MAX, failure)));
        let to = format!("out {number}");
        let ended = restore_through(&bench, &vault, &saved, &to).unwrap_err();
        let is_of_place = matches!(&ended, Error::Backend { action: "read", .. });
        assert!(is_of_place, "{ended:?}");
        // Whoever may not read will not by trying again.
        assert_eq!(ended.is_transient(), failure().kind() != ErrorKind::PermissionDenied);
        for depth in [CheckDepth::Structure, CheckDepth::Data] {
            let ended = check_vault(&vault, depth, &BackupProgress::default()).unwrap_err();
            assert!(matches!(ended, Error::Backend { .. }), "{ended:?}");
        }
        let who = VaultUser::this_process();
        let lock =
            VaultLock::acquire(&vault, &who, VaultLockMode::Exclusive, std::time::Duration::ZERO);
        let lock = lock.unwrap();
        let ended =
            repair_vault(&vault, &lock, (CheckDepth::Data, now()), &BackupProgress::default())
                .unwrap_err();
        assert!(matches!(ended, Error::Backend { .. }), "{ended:?}");
    }
    let report = bench.check();
    assert!(report.faults.is_empty() && report.marked_packs == 0, "{report:?}");
}

/// A pack that is gone, too short, or on a bad place of the disk costs what is in it, and no more; nobody waits for it.
#[test]
fn what_is_lost_is_reported_and_the_rest_is_restored() {
    let bench = Bench::new();
    plant(&bench.source());
    let saved = bench.save();
    let packs = LocalBackend::new(bench.path("vault")).list(VaultFileKind::Pack).unwrap();
    // The one with the files' bytes; the other holds folders.
    let (data, _) = packs.into_iter().max_by_key(|(_, length)| *length).unwrap();
    let kinds: [fn() -> io::Error; 4] = [
        || ErrorKind::NotFound.into(),
        || ErrorKind::UnexpectedEof.into(),
        || Errno::IO.into(),
        || Errno::BADMSG.into(),
    ];
    for (number, failure) in kinds.into_iter().enumerate() {
        let flaky = Flaky { only: Some(data), ..Flaky::new(&bench, usize::MAX, failure) };
        let flaky = Arc::new(flaky);
        let vault = bench.open_through(flaky.clone());
        let to = format!("out {number}");
        let restored = restore_through(&bench, &vault, &saved, &to).unwrap();
        let out = describe(&bench.path(&to));
        let lost = describe(&bench.source()).iter().filter(|line| !out.contains(line)).count();
        // One for each name of a file with bytes, and folders whose times tell that something lacks.
        assert!(restored.faults.len() >= 6 && lost >= restored.faults.len(), "{lost} {restored:?}");
        assert!(bench.path(&to).join("deep/er/est").is_dir());
        assert!(bench.path(&to).join("nothing").is_file(), "it has no bytes");
        // Each was asked for once.
        assert_eq!(flaky.failed.load(Ordering::SeqCst), restored.faults.len());
        assert!(
            !check_vault(&vault, CheckDepth::Data, &BackupProgress::default())
                .unwrap()
                .faults
                .is_empty()
        );
    }
}

/// A server that fails within is asked again, and what it says in the end is no word about the file.
#[test]
fn a_server_that_keeps_failing_is_reported_as_that() {
    for status in [429, 500, 503] {
        let origin = OriginServer::start(move |_| OriginResponse::with_status(status));
        let address = format!("rest:http://{}/", origin.addr());
        let address = tympan_backup::RestAddress::parse(&address).unwrap().unwrap();
        let backend = tympan_backup::RestBackend::new(address, None, (None, 2)).unwrap();
        let failed = backend
            .read_range(VaultFileKind::Pack, &VaultObjectId::of(b"pack"), 0, 10)
            .unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::ResourceBusy);
        assert!(failed.to_string().contains(&status.to_string()), "{failed}");
        assert_eq!(origin.request_count(), 5);
    }
}
