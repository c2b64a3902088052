//! Malicious vaults, written by someone who knows the password: whatever they contain, nothing panics, and a restore
//! stays in its target.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;

use crate::backend::{LocalBackend, VaultFileKind};
use crate::backup_progress::BackupProgress;
use crate::object_id::VaultObjectId;
use crate::restore::{ExistingFilePolicy, RestoreOptions, restore_snapshot};
use crate::vault::index::{StoredIndex, VaultIndex};
use crate::vault::lock::{StoredLock, VaultLock, VaultLockMode};
use crate::vault::node::{SnapshotNode, SnapshotNodeKind, SnapshotTree};
use crate::vault::pack_blob::PackBlobKind;
use crate::vault::pack_writer::{PackWriter, parse_pack_header};
use crate::vault::snapshot::VaultSnapshot;
use crate::vault::{IndexedVault, KeyDerivationCost, Vault, VaultUser};

struct HostileVaultFixture {
    dir: tempfile::TempDir,
    vault: Arc<Vault>,
}

impl HostileVaultFixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let backend = Arc::new(LocalBackend::new(dir.path().join("vault")));
        let by = (&VaultUser::this_process(), Timestamp::UNIX_EPOCH);
        let vault = Vault::init(backend, b"x", KeyDerivationCost { log_rounds: 4 }, by).unwrap();
        Self { dir, vault: Arc::new(vault) }
    }

    /// Writes blobs unmodified and returns the id of the last.
    fn write_blobs(&self, blobs: &[(PackBlobKind, Vec<u8>)]) -> VaultObjectId {
        let user = VaultUser::this_process();
        let lock =
            VaultLock::acquire(&self.vault, &user, VaultLockMode::Shared, Duration::ZERO).unwrap();
        let writer = PackWriter::new(&self.vault, &Arc::default(), &lock);
        let ids: Vec<VaultObjectId> =
            blobs.iter().map(|(kind, bytes)| writer.add_blob(*kind, bytes).unwrap().0).collect();
        writer.finish(&lock).unwrap();
        *ids.last().unwrap()
    }

    /// Restores a folder into a target with existing content.
    fn restore_tree(
        &self,
        tree: VaultObjectId,
        to: &Path,
    ) -> crate::error::Result<crate::restore::RestoreReport> {
        let mut node = SnapshotNode::new("", SnapshotNodeKind::Dir, 0o755);
        node.subtree = Some(tree);
        let index = VaultIndex::load(&self.vault).unwrap();
        let options =
            RestoreOptions { existing: ExistingFilePolicy::Replace, ..RestoreOptions::default() };
        restore_snapshot(
            IndexedVault::new(&self.vault, &index),
            &node,
            to,
            &options,
            &BackupProgress::default(),
        )
    }
}

/// Names that lead outside, and links with files below them, are reported as faults, and nothing appears outside.
#[test]
fn a_restore_stays_in_its_target() {
    let piece = || (PackBlobKind::Data, b"harm".to_vec());
    let id = VaultObjectId::of(b"harm");
    let file = |name: &str| {
        let quoted = serde_json::to_string(name).unwrap();
        format!(
            "{{\"name\":{quoted},\"type\":\"file\",\"mode\":420,\"size\":4,\"content\":[\"{id}\"]}}"
        )
    };
    let names = [
        "..",
        ".",
        "",
        "a/b",
        "../harm",
        "/harm",
        "a/../../harm",
        "\\x00",
        "a\\x2fb",
        "\\x2e\\x2e",
    ];
    for name in names {
        let bench = HostileVaultFixture::new();
        let tree = format!("{{\"nodes\":[{}]}}", file(name)).into_bytes();
        let tree = bench.write_blobs(&[piece(), (PackBlobKind::Tree, tree)]);
        let out = bench.dir.path().join("in/out");
        let restored = bench.restore_tree(tree, &out).unwrap();
        assert_eq!(restored.faults.len(), 1, "{name}");
        assert_eq!(fs::read_dir(&out).unwrap().count(), 0, "{name}");
        assert_eq!(fs::read_dir(bench.dir.path().join("in")).unwrap().count(), 1, "{name}");
    }

    // A folder with the same name as a link: twice in the snapshot, or already in the target.
    let below = format!("{{\"nodes\":[{}]}}", file("harm")).into_bytes();
    let subtree = VaultObjectId::of(&below);
    let folder = format!(
        "{{\"name\":\"way\",\"type\":\"dir\",\"mode\":2147484141,\"subtree\":\"{subtree}\"}}"
    );
    let link =
        "{\"name\":\"way\",\"type\":\"symlink\",\"mode\":134218239,\"linktarget\":\"../outside\"}";
    for nodes in [format!("{link},{folder}"), format!("{folder},{link}"), folder.clone()] {
        let bench = HostileVaultFixture::new();
        let tree = format!("{{\"nodes\":[{nodes}]}}").into_bytes();
        let tree = bench.write_blobs(&[
            piece(),
            (PackBlobKind::Tree, below.clone()),
            (PackBlobKind::Tree, tree),
        ]);
        let (out, outside) = (bench.dir.path().join("in/out"), bench.dir.path().join("in/outside"));
        fs::create_dir_all(&out).unwrap();
        fs::create_dir_all(&outside).unwrap();
        symlink("../outside", out.join("way")).unwrap();
        // Whether it is refused or reported, the link is not followed.
        bench.restore_tree(tree, &out).ok();
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{nodes}");
    }
}

/// A folder that contains itself ends when the names get too long for the system, or is refused; a wrong length is an
/// error.
#[test]
fn lies_about_lengths_are_errors() {
    let bench = HostileVaultFixture::new();
    let id = VaultObjectId::of(b"harm");
    let mut node = SnapshotNode::new("file", SnapshotNodeKind::File, 0o644);
    node.size = u64::MAX;
    node.content = Some(vec![id, VaultObjectId::of(b"missing")]);
    let tree = SnapshotTree::from_nodes([node]).to_bytes();
    let tree =
        bench.write_blobs(&[(PackBlobKind::Data, b"harm".to_vec()), (PackBlobKind::Tree, tree)]);
    let out = bench.dir.path().join("out");
    let restored = bench.restore_tree(tree, &out).unwrap();
    assert_eq!(restored.faults.len(), 1);
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
    // An index that locates a blob beyond the end of its pack.
    let file = format!(
        "{{\"packs\":[{{\"id\":\"{id}\",\"blobs\":[{{\"id\":\"{id}\",\"type\":\"data\",\"offset\":4294967295,\"length\":4294967295,\"uncompressed_length\":4294967295}}]}}]}}"
    );
    let stored: StoredIndex = serde_json::from_str(&file).unwrap();
    let bench = HostileVaultFixture::new();
    bench.vault.files().write_json(VaultFileKind::Index, &stored).unwrap();
    let index = VaultIndex::load(&bench.vault).unwrap();
    assert!(bench.vault.read_blob(&index, PackBlobKind::Data, &id).is_err());
}

/// Two files with the same inode number, because the source's system reused it or the vault lies: each keeps its own
/// bytes.
#[test]
fn files_that_share_a_number_keep_their_bytes() {
    let bench = HostileVaultFixture::new();
    let node = |name: &str, bytes: &[u8]| {
        let mut node = SnapshotNode::new(name, SnapshotNodeKind::File, 0o644);
        (node.inode, node.device_id, node.links, node.size) = (7, 1, 2, bytes.len() as u64);
        node.content = Some(vec![VaultObjectId::of(bytes)]);
        node
    };
    let nodes = [node("a", b"one"), node("b", b"other"), node("c", b"other")];
    let tree = SnapshotTree::from_nodes(nodes).to_bytes();
    let pieces = [(PackBlobKind::Data, b"one".to_vec()), (PackBlobKind::Data, b"other".to_vec())];
    let tree = bench.write_blobs(&[pieces.as_slice(), &[(PackBlobKind::Tree, tree)]].concat());
    let out = bench.dir.path().join("out");
    let restored = bench.restore_tree(tree, &out).unwrap();
    assert_eq!(restored.faults, []);
    let read = |name: &str| fs::read_to_string(out.join(name)).unwrap();
    assert_eq!([read("a"), read("b"), read("c")], ["one", "other", "other"]);
    let number =
        |name: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(out.join(name)).unwrap());
    assert_eq!(number("b"), number("c"));
}

/// Folders that are nested deeper than a path allows: every tree walk returns an error.
#[test]
fn folders_deeper_than_any_path_are_refused() {
    let bench = HostileVaultFixture::new();
    let mut blobs = vec![(PackBlobKind::Tree, SnapshotTree::default().to_bytes())];
    let mut chains = Vec::new();
    for kind in 0..2 {
        for _ in 0..3_000 {
            let mut node = SnapshotNode::new("a", SnapshotNodeKind::Dir, 0o755);
            node.uid = kind;
            node.subtree = blobs.last().map(|(_, bytes)| VaultObjectId::of(bytes));
            blobs.push((PackBlobKind::Tree, SnapshotTree::from_nodes([node]).to_bytes()));
        }
        chains.push(VaultObjectId::of(&blobs.last().unwrap().1));
    }
    bench.write_blobs(&blobs);
    let index = VaultIndex::load(&bench.vault).unwrap();
    let at = IndexedVault::new(&bench.vault, &index);
    let refused = |done: crate::error::Result<()>| {
        let error = done.unwrap_err().to_string();
        assert!(error.contains("deeper than"), "{error}");
    };
    let [first, second] = chains[..] else { panic!("two chains") };
    refused(crate::inspection::walk_tree(at, &first, Path::new("/"), &mut |_, _| Ok(())));
    refused(crate::inspection::diff_trees(at, (&first, &second), "", &mut Vec::new()));
    let json = format!(r#"{{"time":"2026-11-22T05:42:04Z","tree":"{first}","paths":["/a"]}}"#);
    let snapshot: VaultSnapshot = serde_json::from_str(&json).unwrap();
    refused(crate::stats::compute_vault_stats(at, &[snapshot]).map(|_| ()));
    let restored = bench.restore_tree(first, &bench.dir.path().join("out")).unwrap();
    assert_eq!(restored.faults.len(), 1, "{:?}", restored.faults.first());
}

/// Valid text with some bytes replaced, removed or duplicated.
fn mutated_text(valid: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let edit = (any::<prop::sample::Index>(), any::<u8>(), 0..4_u8);
    prop::collection::vec(edit, 0..8).prop_map(move |edits| {
        let mut bytes = valid.as_bytes().to_vec();
        for (at, byte, kind) in edits {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, byte),
                _ => bytes.extend_from_within(at..),
            }
        }
        bytes
    })
}

const VALID_TREE: &str = r#"{"nodes":[{"name":"a\\x41","type":"file","mode":420,"mtime":"2026-11-22T05:42:04.123456789Z","uid":1,"size":4,"content":["0102030405060708090a0b0c0d0e0f100102030405060708090a0b0c0d0e0f10"],"extended_attributes":[{"name":"user.x","value":"AAE="}]},{"name":"b","type":"dir","mode":2147484141,"subtree":"0102030405060708090a0b0c0d0e0f100102030405060708090a0b0c0d0e0f10"}]}"#;
const VALID_INDEX: &str = r#"{"supersedes":[],"packs":[{"id":"0102030405060708090a0b0c0d0e0f100102030405060708090a0b0c0d0e0f10","blobs":[{"id":"0102030405060708090a0b0c0d0e0f100102030405060708090a0b0c0d0e0f10","type":"data","offset":0,"length":38,"uncompressed_length":112}]}],"packs_to_delete":[]}"#;
const VALID_LOCK: &str = r#"{"time":"2026-11-22T05:42:04.123456789+01:00","exclusive":true,"hostname":"h","username":"u","pid":4294967295,"uid":1,"gid":1}"#;
const VALID_SNAPSHOT: &str = r#"{"time":"2026-11-22T05:42:04.123456789+01:00","tree":"0102030405060708090a0b0c0d0e0f100102030405060708090a0b0c0d0e0f10","paths":["/srv"],"hostname":"h","username":"u","uid":1,"gid":1,"tags":["a"]}"#;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Any input gives a result, and one that a restore may trust.
    #[test]
    fn no_bytes_make_a_decoder_panic(
        tree in mutated_text(VALID_TREE),
        index in mutated_text(VALID_INDEX),
        snapshot in mutated_text(VALID_SNAPSHOT),
        lock in mutated_text(VALID_LOCK),
        header in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        if let Ok(tree) = SnapshotTree::parse(&tree) {
            for node in &tree.nodes {
                let name = node.name.as_slice();
                prop_assert!(!name.is_empty() && name != b"." && name != b"..");
                prop_assert!(!name.contains(&b'/') && !name.contains(&0));
            }
            // A parsed value can be written and parsed again.
            prop_assert_eq!(SnapshotTree::parse(&tree.to_bytes()).unwrap(), tree);
        }
        if let Ok(stored) = serde_json::from_slice::<StoredIndex>(&index) {
            let mut index = VaultIndex::default();
            stored.packs.iter().for_each(|pack| index.add(pack));
            index.totals(PackBlobKind::Data);
        }
        if let Ok(snapshot) = serde_json::from_slice::<VaultSnapshot>(&snapshot) {
            let keep = crate::retention::RetentionPolicy::parse("1h,1d,1w,1m,1y").unwrap();
            let chosen = crate::retention::apply_retention(std::slice::from_ref(&snapshot), &keep);
            prop_assert_eq!(chosen.len(), 1);
        }
        if let Ok(lock) = serde_json::from_slice::<StoredLock>(&lock) {
            // A lock of an unknown process, old or not.
            lock.is_stale(&VaultUser::this_process(), Timestamp::UNIX_EPOCH);
        }
        parse_pack_header(&header);
    }
}
