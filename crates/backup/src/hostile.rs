//! Vaults that somebody made who knows the password and means harm: whatever stands in them, nothing panics, and a restore
//! stays in its target.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;

use crate::backend::{FileKind, LocalBackend};
use crate::id::Id;
use crate::restore::{Existing, RestoreOptions, restore};
use crate::save::Progress;
use crate::vault::index::{BlobKind, Index, StoredIndex};
use crate::vault::lock::{Lock, LockMode, StoredLock};
use crate::vault::node::{Node, NodeKind, Tree};
use crate::vault::snapshot::Snapshot;
use crate::vault::write::{Writer, parse_header};
use crate::vault::{KeyCost, Vault, Who};

struct Bench {
    dir: tempfile::TempDir,
    vault: Arc<Vault>,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let backend = Arc::new(LocalBackend::new(dir.path().join("vault")));
        let by = (&Who::this_process(), Timestamp::UNIX_EPOCH);
        let vault = Vault::init(backend, b"x", KeyCost { log_rounds: 4 }, by).unwrap();
        Self { dir, vault: Arc::new(vault) }
    }

    /// Writes blobs as they are given, and returns the id of the last.
    fn write(&self, blobs: &[(BlobKind, Vec<u8>)]) -> Id {
        let who = Who::this_process();
        let lock = Lock::take(&self.vault, &who, LockMode::Shared, Duration::ZERO).unwrap();
        let writer = Writer::new(&self.vault, &Arc::default(), &lock);
        let ids: Vec<Id> =
            blobs.iter().map(|(kind, bytes)| writer.add(*kind, bytes).unwrap().0).collect();
        writer.finish(&lock).unwrap();
        *ids.last().unwrap()
    }

    /// Restores a folder over what is in the target.
    fn restore(&self, tree: Id, to: &Path) -> crate::error::Result<crate::restore::Restored> {
        let mut node = Node::new("", NodeKind::Dir, 0o755);
        node.subtree = Some(tree);
        let index = Index::load(&self.vault).unwrap();
        let options = RestoreOptions { existing: Existing::Replace, ..RestoreOptions::default() };
        restore((&self.vault, &index), &node, to, (&options, &Progress::default()))
    }
}

/// Names that lead out, and links with files below them: told as faults, and nothing appears outside.
#[test]
fn a_restore_stays_in_its_target() {
    let piece = || (BlobKind::Data, b"harm".to_vec());
    let id = Id::of(b"harm");
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
        let bench = Bench::new();
        let tree = format!("{{\"nodes\":[{}]}}", file(name)).into_bytes();
        let tree = bench.write(&[piece(), (BlobKind::Tree, tree)]);
        let out = bench.dir.path().join("in/out");
        let restored = bench.restore(tree, &out).unwrap();
        assert_eq!(restored.faults.len(), 1, "{name}");
        assert_eq!(fs::read_dir(&out).unwrap().count(), 0, "{name}");
        assert_eq!(fs::read_dir(bench.dir.path().join("in")).unwrap().count(), 1, "{name}");
    }

    // A folder of the name of a link: in the snapshot twice, or in the target before.
    let below = format!("{{\"nodes\":[{}]}}", file("harm")).into_bytes();
    let subtree = Id::of(&below);
    let folder = format!(
        "{{\"name\":\"way\",\"type\":\"dir\",\"mode\":2147484141,\"subtree\":\"{subtree}\"}}"
    );
    let link =
        "{\"name\":\"way\",\"type\":\"symlink\",\"mode\":134218239,\"linktarget\":\"../outside\"}";
    for nodes in [format!("{link},{folder}"), format!("{folder},{link}"), folder.clone()] {
        let bench = Bench::new();
        let tree = format!("{{\"nodes\":[{nodes}]}}").into_bytes();
        let tree = bench.write(&[piece(), (BlobKind::Tree, below.clone()), (BlobKind::Tree, tree)]);
        let (out, outside) = (bench.dir.path().join("in/out"), bench.dir.path().join("in/outside"));
        fs::create_dir_all(&out).unwrap();
        fs::create_dir_all(&outside).unwrap();
        symlink("../outside", out.join("way")).unwrap();
        // Whether it is refused or told: it is not followed.
        bench.restore(tree, &out).ok();
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{nodes}");
    }
}

/// A folder that holds itself ends, as somewhere the names get too long for the system, or is refused; a length that lies is an
/// error.
#[test]
fn lies_about_lengths_are_errors() {
    let bench = Bench::new();
    let id = Id::of(b"harm");
    let mut node = Node::new("file", NodeKind::File, 0o644);
    node.size = u64::MAX;
    node.content = Some(vec![id, Id::of(b"missing")]);
    let tree = Tree::of([node]).to_bytes();
    let tree = bench.write(&[(BlobKind::Data, b"harm".to_vec()), (BlobKind::Tree, tree)]);
    let out = bench.dir.path().join("out");
    let restored = bench.restore(tree, &out).unwrap();
    assert_eq!(restored.faults.len(), 1);
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
    // An index that says a blob is where no pack reaches.
    let file = format!(
        "{{\"packs\":[{{\"id\":\"{id}\",\"blobs\":[{{\"id\":\"{id}\",\"type\":\"data\",\"offset\":4294967295,\"length\":4294967295,\"uncompressed_length\":4294967295}}]}}]}}"
    );
    let stored: StoredIndex = serde_json::from_str(&file).unwrap();
    let bench = Bench::new();
    bench.vault.write_json(FileKind::Index, &stored).unwrap();
    let index = Index::load(&bench.vault).unwrap();
    assert!(bench.vault.read_blob(&index, BlobKind::Data, &id).is_err());
}

/// One number for two files, as the source's system gives it to one after another, or a liar to both: each has its own bytes.
#[test]
fn files_that_share_a_number_keep_their_bytes() {
    let bench = Bench::new();
    let node = |name: &str, bytes: &[u8]| {
        let mut node = Node::new(name, NodeKind::File, 0o644);
        (node.inode, node.device_id, node.links, node.size) = (7, 1, 2, bytes.len() as u64);
        node.content = Some(vec![Id::of(bytes)]);
        node
    };
    let nodes = [node("a", b"one"), node("b", b"other"), node("c", b"other")];
    let tree = Tree::of(nodes).to_bytes();
    let pieces = [(BlobKind::Data, b"one".to_vec()), (BlobKind::Data, b"other".to_vec())];
    let tree = bench.write(&[pieces.as_slice(), &[(BlobKind::Tree, tree)]].concat());
    let out = bench.dir.path().join("out");
    let restored = bench.restore(tree, &out).unwrap();
    assert_eq!(restored.faults, []);
    let read = |name: &str| fs::read_to_string(out.join(name)).unwrap();
    assert_eq!([read("a"), read("b"), read("c")], ["one", "other", "other"]);
    let number =
        |name: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(out.join(name)).unwrap());
    assert_eq!(number("b"), number("c"));
}

/// Folders in more folders than a path can name: all that follow them say so.
#[test]
fn folders_deeper_than_any_path_are_refused() {
    let bench = Bench::new();
    let mut blobs = vec![(BlobKind::Tree, Tree::default().to_bytes())];
    let mut chains = Vec::new();
    for kind in 0..2 {
        for _ in 0..3_000 {
            let mut node = Node::new("a", NodeKind::Dir, 0o755);
            node.uid = kind;
            node.subtree = blobs.last().map(|(_, bytes)| Id::of(bytes));
            blobs.push((BlobKind::Tree, Tree::of([node]).to_bytes()));
        }
        chains.push(Id::of(&blobs.last().unwrap().1));
    }
    bench.write(&blobs);
    let index = Index::load(&bench.vault).unwrap();
    let at = (&*bench.vault, &index);
    let refused = |done: crate::error::Result<()>| {
        let error = done.unwrap_err().to_string();
        assert!(error.contains("deeper than"), "{error}");
    };
    let [one, other] = chains[..] else { panic!("two chains") };
    refused(crate::look::walk(at, &one, Path::new("/"), &mut |_, _| Ok(())));
    refused(crate::look::diff(at, (&one, &other), "", &mut Vec::new()));
    let json = format!(r#"{{"time":"2026-11-22T05:42:04Z","tree":"{one}","paths":["/a"]}}"#);
    let snapshot: Snapshot = serde_json::from_str(&json).unwrap();
    refused(crate::stats::stats(at, &[snapshot]).map(|_| ()));
    let restored = bench.restore(one, &bench.dir.path().join("out")).unwrap();
    assert_eq!(restored.faults.len(), 1, "{:?}", restored.faults.first());
}

/// Valid text with some bytes replaced, removed, or brought twice.
fn mutated(valid: &'static str) -> impl Strategy<Value = Vec<u8>> {
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

const TREE: &str = r#"{"nodes":[{"name":"a\\x41","type":"file","mode":420,"mtime":"2026-11-22T05:42:04.123456789Z","uid":1,"size":4,"content":["0102030405060708090a0b0c0d0e0f100102030405060708090a0b0c0d0e0f10"],"extended_attributes":[{"name":"user.x","value":"AAE="}]},{"name":"b","type":"dir","mode":2147484141,"subtree":"0102030405060708090a0b0c0d0e0f100102030405060708090a0b0c0d0e0f10"}]}"#;
const INDEX: &str = r#"{"supersedes":[],"packs":[{"id":"0102030405060708090a0b0c0d0e0f100102030405060708090a0b0c0d0e0f10","blobs":[{"id":"0102030405060708090a0b0c0d0e0f100102030405060708090a0b0c0d0e0f10","type":"data","offset":0,"length":38,"uncompressed_length":112}]}],"packs_to_delete":[]}"#;
const LOCK: &str = r#"{"time":"2026-11-22T05:42:04.123456789+01:00","exclusive":true,"hostname":"h","username":"u","pid":4294967295,"uid":1,"gid":1}"#;
const SNAPSHOT: &str = r#"{"time":"2026-11-22T05:42:04.123456789+01:00","tree":"0102030405060708090a0b0c0d0e0f100102030405060708090a0b0c0d0e0f10","paths":["/srv"],"hostname":"h","username":"u","uid":1,"gid":1,"tags":["a"]}"#;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever the bytes: an answer, and one that a restore may trust.
    #[test]
    fn no_bytes_make_a_decoder_panic(
        tree in mutated(TREE),
        index in mutated(INDEX),
        snapshot in mutated(SNAPSHOT),
        lock in mutated(LOCK),
        header in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        if let Ok(tree) = Tree::parse(&tree) {
            for node in &tree.nodes {
                let name = node.name.as_slice();
                prop_assert!(!name.is_empty() && name != b"." && name != b"..");
                prop_assert!(!name.contains(&b'/') && !name.contains(&0));
            }
            // What was understood is written and understood again.
            prop_assert_eq!(Tree::parse(&tree.to_bytes()).unwrap(), tree);
        }
        if let Ok(stored) = serde_json::from_slice::<StoredIndex>(&index) {
            let mut index = Index::default();
            stored.packs.iter().for_each(|pack| index.add(pack));
            index.totals(BlobKind::Data);
        }
        if let Ok(snapshot) = serde_json::from_slice::<Snapshot>(&snapshot) {
            let keep = crate::forget::Keep::parse("1h,1d,1w,1m,1y").unwrap();
            let chosen = crate::forget::choose(std::slice::from_ref(&snapshot), &keep);
            prop_assert_eq!(chosen.len(), 1);
        }
        if let Ok(lock) = serde_json::from_slice::<StoredLock>(&lock) {
            // Of a process that nobody knows: old, or not.
            lock.is_stale(&Who::this_process(), Timestamp::UNIX_EPOCH);
        }
        parse_header(&header);
    }
}
