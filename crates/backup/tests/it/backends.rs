//! What every backend promises, asked of each: folders here, folders of other machines, buckets, and those that guard
//! or slow down another one.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tympan_backup::{
    AppendOnlyBackend, LocalBackend, RateLimit, RateLimitedBackend, SftpBackend, TransferLimits,
    VaultBackend, VaultFileKind, VaultObjectId,
};
use tympan_testkit::rest_server::{RestRules, RestServer};

use crate::remote::{Bucket, Host};
use crate::vault_bench::noise;

const KINDS: [VaultFileKind; 5] = [
    VaultFileKind::Key,
    VaultFileKind::Lock,
    VaultFileKind::Snapshot,
    VaultFileKind::Index,
    VaultFileKind::Pack,
];

fn ids(backend: &dyn VaultBackend, kind: VaultFileKind) -> BTreeSet<(VaultObjectId, u64)> {
    backend.list(kind).unwrap().into_iter().collect()
}

/// Holds a backend over an empty place to what it promises.
fn conforms(backend: &Arc<dyn VaultBackend>) {
    backend.create().unwrap();
    files_of_all_kinds_come_and_go(&**backend);
    lengths_at_the_edges_survive(&**backend);
    parts_are_read_and_what_is_beyond_refused(&**backend);
    the_same_file_may_be_written_again(&**backend);
    nobody_sees_half_a_file(backend);
    assert!(!backend.location().is_empty() && backend.connections() > 0);
    backend.remove_leftovers(std::time::SystemTime::now()).unwrap();
    // A place that holds something is not taken for a new vault.
    backend.write(VaultFileKind::Config, &VaultObjectId::default(), b"config").unwrap();
    assert_eq!(backend.create().unwrap_err().kind(), ErrorKind::AlreadyExists);
}

fn files_of_all_kinds_come_and_go(backend: &dyn VaultBackend) {
    let none = VaultObjectId::default();
    assert_eq!(backend.read(VaultFileKind::Config, &none).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!backend.contains(VaultFileKind::Config, &none).unwrap());
    for kind in KINDS {
        let (one, two) =
            (VaultObjectId::of(b"one"), VaultObjectId::of(format!("{kind} two").as_bytes()));
        for id in [&one, &two] {
            assert_eq!(backend.read(kind, id).unwrap_err().kind(), ErrorKind::NotFound, "{kind}");
            let range = backend.read_range(kind, id, 0, 1);
            assert_eq!(range.unwrap_err().kind(), ErrorKind::NotFound, "{kind}");
            // What is gone is removed.
            backend.remove(kind, id).unwrap();
        }
        assert!(ids(backend, kind).is_empty(), "{kind}");
        backend.write(kind, &one, b"one").unwrap();
        backend.write(kind, &two, b"and two").unwrap();
        assert_eq!(ids(backend, kind), BTreeSet::from([(one, 3), (two, 7)]), "{kind}");
        assert_eq!(backend.read(kind, &two).unwrap(), b"and two");
        assert!(backend.contains(kind, &one).unwrap());
        backend.remove(kind, &one).unwrap();
        assert!(!backend.contains(kind, &one).unwrap());
        assert_eq!(ids(backend, kind), BTreeSet::from([(two, 7)]), "{kind}");
        backend.remove(kind, &two).unwrap();
        assert!(ids(backend, kind).is_empty(), "{kind}");
    }
}

/// Around what one request carries, and far beyond what is on its way at once.
fn lengths_at_the_edges_survive(backend: &dyn VaultBackend) {
    let piece = 32 << 10;
    for length in [0, 1, piece - 1, piece, piece + 1, 3 * piece, (3 << 20) + 17] {
        let bytes = noise(length, 5 + length as u64);
        let id = VaultObjectId::of(&bytes);
        backend.write(VaultFileKind::Pack, &id, &bytes).unwrap();
        assert!(backend.read(VaultFileKind::Pack, &id).unwrap() == bytes, "{length}");
        assert_eq!(ids(backend, VaultFileKind::Pack), BTreeSet::from([(id, length as u64)]));
        backend.remove(VaultFileKind::Pack, &id).unwrap();
    }
}

fn parts_are_read_and_what_is_beyond_refused(backend: &dyn VaultBackend) {
    let bytes = noise(200_000, 3);
    let id = VaultObjectId::of(&bytes);
    backend.write(VaultFileKind::Pack, &id, &bytes).unwrap();
    for (start, length) in
        [(0, 1), (0, 200_000), (32_767, 2), (100_000, 99_999), (199_999, 1), (7, 0)]
    {
        let read = backend.read_range(VaultFileKind::Pack, &id, start as u64, length).unwrap();
        assert!(read == bytes[start..start + length], "{length} bytes from {start}");
    }
    // An index may promise anything.
    for (start, length) in [(0, 200_001), (199_999, 2), (200_000, 1), (1 << 40, 5), (5, 1 << 34)] {
        let refused = backend.read_range(VaultFileKind::Pack, &id, start, length).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::UnexpectedEof, "{length} bytes from {start}");
    }
    backend.remove(VaultFileKind::Pack, &id).unwrap();
}

/// A run that was cut off before it heard the answer writes again.
fn the_same_file_may_be_written_again(backend: &dyn VaultBackend) {
    let bytes = noise(50_000, 11);
    let id = VaultObjectId::of(&bytes);
    for _ in 0..2 {
        backend.write(VaultFileKind::Pack, &id, &bytes).unwrap();
        assert_eq!(backend.read(VaultFileKind::Pack, &id).unwrap(), bytes);
    }
    backend.remove(VaultFileKind::Pack, &id).unwrap();
}

/// Whoever lists while others write finds whole files only.
fn nobody_sees_half_a_file(backend: &Arc<dyn VaultBackend>) {
    let is_over = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..2_u64)
        .map(|seed| {
            let (backend, is_over) = (backend.clone(), is_over.clone());
            std::thread::spawn(move || {
                for round in 0..4 {
                    let bytes = noise(300_000, 1 + seed * 100 + round);
                    backend.write(VaultFileKind::Pack, &VaultObjectId::of(&bytes), &bytes).unwrap();
                }
                is_over.store(true, Ordering::SeqCst);
            })
        })
        .collect();
    loop {
        let last = is_over.load(Ordering::SeqCst);
        for (id, length) in ids(&**backend, VaultFileKind::Pack) {
            assert_eq!(length, 300_000, "{id}");
        }
        if last {
            break;
        }
    }
    for writer in writers {
        writer.join().unwrap();
    }
    let written = ids(&**backend, VaultFileKind::Pack);
    assert_eq!(written.len(), 8);
    for (id, _) in written {
        assert_eq!(VaultObjectId::of(&backend.read(VaultFileKind::Pack, &id).unwrap()), id);
        backend.remove(VaultFileKind::Pack, &id).unwrap();
    }
}

/// Removes all files of a vault, and then its folders: but for what somebody else put there, until that is gone.
fn folders_go_with_what_was_in_them(backend: &dyn VaultBackend, place: &Path) {
    for kind in KINDS {
        for (id, _) in ids(backend, kind) {
            backend.remove(kind, &id).unwrap();
        }
    }
    backend.remove(VaultFileKind::Config, &VaultObjectId::default()).unwrap();
    let others = place.join("data/7f/others");
    for file in [&others, &place.join("tmp/left")] {
        fs::write(file, "text").unwrap();
    }
    backend.remove_folders().unwrap_err();
    let names = |folder: &Path| -> Vec<_> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    assert_eq!(names(place), ["data"]);
    assert_eq!(names(&place.join("data")), ["7f"]);
    fs::remove_file(others).unwrap();
    backend.remove_folders().unwrap();
    assert!(!place.exists() && place.parent().unwrap().exists());
    backend.remove_folders().unwrap();
}

#[test]
fn a_folder_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("a/new/vault");
    let backend: Arc<dyn VaultBackend> = Arc::new(LocalBackend::new(&place));
    conforms(&backend);
    folders_go_with_what_was_in_them(&*backend, &place);
}

#[test]
fn a_folder_at_a_rate_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let inner = Arc::new(LocalBackend::new(dir.path().join("vault")));
    let rate = std::num::NonZeroU64::new(1 << 40).map(RateLimit);
    let limits = TransferLimits { upload: rate, download: rate };
    conforms(&(Arc::new(RateLimitedBackend::new(inner, limits)) as Arc<dyn VaultBackend>));
}

#[test]
fn a_folder_of_another_machine_conforms() {
    for arguments in ["", "-P posix-rename,fsync"] {
        let Some(host) = Host::start(arguments) else { return };
        for place in ["a/new/vault", "vault with spaces/ünd"] {
            let backend: SftpBackend = host.backend(place);
            let backend: Arc<dyn VaultBackend> = Arc::new(backend);
            conforms(&backend);
            folders_go_with_what_was_in_them(&*backend, &host.path(place));
        }
    }
}

#[test]
fn a_bucket_conforms() {
    let Some(bucket) = Bucket::start() else { return };
    for prefix in ["vaults/one", "", "two"] {
        // A bucket without a prefix must be empty for a new vault; those before are not.
        if prefix.is_empty() {
            let refused = bucket.backend("").create();
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::AlreadyExists);
            continue;
        }
        conforms(&(Arc::new(bucket.backend(prefix)) as Arc<dyn VaultBackend>));
    }
}

#[test]
fn what_is_append_only_loses_nothing_but_locks() {
    let dir = tempfile::tempdir().unwrap();
    let inner: Arc<dyn VaultBackend> = Arc::new(LocalBackend::new(dir.path().join("vault")));
    let guarded = AppendOnlyBackend::new(inner.clone());
    guarded.create().unwrap();
    let id = VaultObjectId::of(b"bytes");
    guarded.write(VaultFileKind::Config, &VaultObjectId::default(), b"config").unwrap();
    let again = guarded.write(VaultFileKind::Config, &VaultObjectId::default(), b"other");
    assert_eq!(again.unwrap_err().kind(), ErrorKind::PermissionDenied);
    for kind in KINDS {
        guarded.write(kind, &id, b"bytes").unwrap();
        let removed = guarded.remove(kind, &id);
        assert_eq!(removed.is_ok(), kind == VaultFileKind::Lock, "{kind}");
        assert_eq!(inner.contains(kind, &id).unwrap(), kind != VaultFileKind::Lock, "{kind}");
    }
    assert_eq!(guarded.remove_folders().unwrap_err().kind(), ErrorKind::PermissionDenied);
}

#[test]
fn servers_of_both_versions_conform() {
    for is_old in [false, true] {
        let server = RestServer::start(RestRules { is_version_1: is_old, ..RestRules::default() });
        conforms(&(Arc::new(crate::rest::backend(&server, None)) as Arc<dyn VaultBackend>));
        assert!(server.request_count() > 0);
    }
}
