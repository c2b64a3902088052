//! The folder in which people read a repository.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use tympan_backup::{
    BackupProgress, BackupRepositorySource, DocumentChange, DocumentView, Error, IndexedVault,
    LiveStore, RenderedContent, RenderedFile, Result, RootDocuments, SaveOptions, SaveSession,
    SaveSummary, VaultIndex, VaultLock, VaultLockMode, VaultUser, find_path, save_repository,
    walk_tree, write_file_content,
};
use tympan_blobs::ReadOnlyBlobFolder;
use tympan_store::{
    BlobId, ChunkBatch, ChunkId, ChunkStore, Error as StoreError, LocalStore, MapValue, RefUpdate,
    StoreRoot, body,
};

use crate::vault_bench::{Bench, cases, noise, now};

/// A repository of documents by path, and what each root holds.
struct Site {
    store: Arc<LocalStore>,
    states: BTreeMap<ChunkId, BTreeMap<String, Vec<u8>>>,
    drawn: AtomicUsize,
    /// A document that cannot be drawn.
    broken: Mutex<Option<String>>,
    /// Whether the repository cannot be reached when one is drawn.
    is_away: AtomicBool,
}

impl Site {
    fn new() -> Self {
        let store = Arc::new(LocalStore::open_in_memory().unwrap());
        Self {
            store,
            states: BTreeMap::new(),
            drawn: AtomicUsize::new(0),
            broken: Mutex::default(),
            is_away: AtomicBool::new(false),
        }
    }

    /// Makes these documents, with those above them, the state of `main`.
    fn commit(&mut self, documents: &BTreeMap<String, Vec<u8>>) -> ChunkId {
        let old = self.store.read_ref("main").unwrap();
        let mut batch = ChunkBatch::new();
        let mut root = StoreRoot::default();
        let mut edits = BTreeMap::new();
        for (path, text) in documents {
            let blob = BlobId::hash_of(text);
            batch.add_blob(blob, text.clone().into());
            let id = body::write_body(&mut batch, path.as_bytes(), &[blob]).unwrap();
            let value = MapValue { bytes: b"x".to_vec().into(), body: Some(id) };
            edits.insert(path.clone().into_bytes(), Some(value));
        }
        let map = root.map("content").edit(&*self.store, &mut batch, edits).unwrap();
        root.maps.insert("content".to_owned(), map);
        let new = root.write(&mut batch).unwrap();
        batch.add_ref_update(RefUpdate {
            name: "main".to_owned(),
            expected_root: old,
            new_root: Some(new),
            updated_at: SystemTime::now(),
            author: "test".to_owned(),
            message: String::new(),
        });
        self.store.commit(batch).unwrap();
        self.states.insert(new, documents.clone());
        new
    }

    fn save(&self, bench: &Bench) -> Option<SaveSummary> {
        self.try_save(bench).unwrap()
    }

    fn try_save(&self, bench: &Bench) -> Result<Option<SaveSummary>> {
        let who = VaultUser::this_process();
        let lock =
            VaultLock::acquire(&bench.vault, &who, VaultLockMode::Shared, Duration::ZERO).unwrap();
        let index = Arc::new(VaultIndex::load(&bench.vault).unwrap());
        let progress = BackupProgress::default();
        let session = SaveSession::new(&bench.vault, &index, &lock, &progress);
        let base = LiveStore::new(self.store.clone());
        let blobs = ReadOnlyBlobFolder::new(&bench.path("no blobs"));
        let (reference, path) = ("main", "/tympan/site");
        let view = Some(self as &dyn DocumentView);
        let source = BackupRepositorySource {
            base: &base,
            blobs: &blobs,
            reference,
            path,
            view,
            base_owner: None,
            files: &[],
        };
        save_repository(&session, source, &SaveOptions::new(who, now()))
    }
}

impl DocumentView for Site {
    fn open(&self, root: &ChunkId) -> Result<Box<dyn RootDocuments + '_>> {
        Ok(Box::new(At { site: self, documents: &self.states[root] }))
    }
}

struct At<'a> {
    site: &'a Site,
    documents: &'a BTreeMap<String, Vec<u8>>,
}

impl RootDocuments for At<'_> {
    fn changes_since(&self, since: &ChunkId) -> Result<Option<Vec<DocumentChange>>> {
        let Some(before) = self.site.states.get(since) else { return Ok(None) };
        let paths: std::collections::BTreeSet<&String> =
            before.keys().chain(self.documents.keys()).collect();
        let differs = |path: &&&String| before.get(**path) != self.documents.get(**path);
        let change = |path: &String| DocumentChange {
            path: path.clone(),
            exists: self.documents.contains_key(path),
        };
        Ok(Some(paths.iter().filter(differs).map(|path| change(path)).collect()))
    }

    fn children(&self, path: &str) -> Result<Vec<String>> {
        let above = if path == "/" { "" } else { path };
        let name = |path: &String| {
            let name = path.strip_prefix(above)?.strip_prefix('/')?;
            (!name.is_empty() && !name.contains('/')).then(|| name.to_owned())
        };
        Ok(self.documents.keys().filter_map(name).collect())
    }

    fn render_document(&self, path: &str) -> Result<Vec<RenderedFile>> {
        self.site.drawn.fetch_add(1, Ordering::Relaxed);
        if self.site.is_away.load(Ordering::Relaxed) {
            let (base, reason) = ("site".to_owned(), "it does not answer".to_owned());
            return Err(StoreError::Remote { base, reason, is_transient: true }.into());
        }
        if self.site.broken.lock().unwrap().as_deref() == Some(path) {
            let reason = "its blob is away".to_owned();
            return Err(Error::Document { path: path.to_owned(), reason });
        }
        let Some(text) = self.documents.get(path) else { return Ok(Vec::new()) };
        let file = |place: &[&str], content| {
            let place = place.iter().map(|name| name.as_bytes().to_vec()).collect();
            RenderedFile { path: place, content }
        };
        let blob = RenderedContent::Blob(BlobId::hash_of(text));
        Ok(vec![
            file(&[".content.xml"], RenderedContent::Text(format!("<{path}>").into_bytes())),
            file(&["_files", "bytes"], blob),
        ])
    }

    fn folder_name(&self, name: &str) -> Vec<u8> {
        name.as_bytes().to_vec()
    }
}

/// Returns all files below `content`, as they come out of the vault.
fn files(bench: &Bench, saved: &SaveSummary) -> BTreeMap<String, Vec<u8>> {
    let index = bench.index();
    let content = find_path(&bench.vault, &index, &saved.snapshot, "/content").unwrap();
    let mut files = BTreeMap::new();
    walk_tree(
        IndexedVault::new(&bench.vault, &index),
        &content.subtree.unwrap(),
        Path::new(""),
        &mut |path, node| {
            if node.subtree.is_none() {
                let mut bytes = Vec::new();
                write_file_content(IndexedVault::new(&bench.vault, &index), node, &mut bytes)?;
                files.insert(path.display().to_string(), bytes);
            }
            Ok(())
        },
    )
    .unwrap();
    files
}

fn expected(documents: &BTreeMap<String, Vec<u8>>) -> BTreeMap<String, Vec<u8>> {
    let of = |(path, text): (&String, &Vec<u8>)| {
        let folder = path.trim_end_matches('/');
        [
            (format!("{folder}/.content.xml"), format!("<{path}>").into_bytes()),
            (format!("{folder}/_files/bytes"), text.clone()),
        ]
    };
    documents.iter().flat_map(of).collect()
}

#[test]
fn one_edit_renders_one_document() {
    let bench = Bench::new();
    let mut site = Site::new();
    let mut documents = BTreeMap::from([("/".to_owned(), b"root".to_vec())]);
    for section in 0..20 {
        documents.insert(format!("/s{section}"), format!("section {section}").into_bytes());
        for page in 0..20 {
            let text = format!("{section} {page}").into_bytes();
            documents.insert(format!("/s{section}/p{page}"), text);
        }
    }
    site.commit(&documents);
    let first = site.save(&bench).unwrap();
    assert_eq!(files(&bench, &first), expected(&documents));
    let drawn = site.drawn.load(Ordering::Relaxed);
    documents.insert("/s3/p7".to_owned(), noise(900, 3));
    documents.remove("/s4/p4");
    site.commit(&documents);
    let second = site.save(&bench).unwrap();
    assert_eq!(files(&bench, &second), expected(&documents));
    assert_eq!(site.drawn.load(Ordering::Relaxed) - drawn, 1);
    bench.restic_ok(&["check", "--read-data"]);
}

fn states() -> impl Strategy<Value = Vec<Vec<(usize, Option<u8>)>>> {
    let edit = (0..PATHS.len(), prop::option::weighted(0.7, any::<u8>()));
    prop::collection::vec(prop::collection::vec(edit, 1..5), 1..6)
}

const PATHS: [&str; 9] = ["/a", "/a/b", "/a/b/c", "/a/d", "/e", "/e/f", "/e/f/g", "/e/f/h", "/i"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn differences_give_what_rendering_all_gives(rounds in states()) {
        let bench = Bench::new();
        let mut site = Site::new();
        let mut documents = BTreeMap::from([("/".to_owned(), b"root".to_vec())]);
        site.commit(&documents);
        site.save(&bench).unwrap();
        for round in rounds {
            for (place, text) in round {
                let path = PATHS[place];
                match text {
                    None => documents.retain(|one, _| {
                        one != path && !one.starts_with(&format!("{path}/"))
                    }),
                    Some(seed) => {
                        // Those above come along.
                        for (end, _) in path.match_indices('/').skip(1) {
                            documents.entry(path[..end].to_owned()).or_insert_with(|| vec![1]);
                        }
                        documents.insert(path.to_owned(), vec![seed; 30]);
                    }
                }
            }
            site.commit(&documents);
            let Some(saved) = site.save(&bench) else { continue };
            prop_assert_eq!(files(&bench, &saved), expected(&documents));
            let other = Bench::new();
            prop_assert_eq!(site.save(&other).unwrap().snapshot.tree, saved.snapshot.tree);
        }
    }
}

/// What could not be drawn once is there in the next snapshot, although it did not change; unless it is gone by then.
#[test]
fn what_could_not_be_rendered_is_tried_again() {
    let bench = Bench::new();
    let mut site = Site::new();
    let document = |path: &str| (path.to_owned(), format!("text of {path}").into_bytes());
    let mut documents: BTreeMap<String, Vec<u8>> =
        ["/", "/a", "/a/b", "/a/b/c", "/d"].map(document).into();
    site.commit(&documents);
    *site.broken.lock().unwrap() = Some("/a/b".to_owned());
    let first = site.save(&bench).unwrap();
    let mut lacking = expected(&documents);
    files(&bench, &first).keys().for_each(|path| drop(lacking.remove(path)));
    assert_eq!(lacking.into_keys().collect::<Vec<_>>(), ["/a/b/.content.xml", "/a/b/_files/bytes"]);
    // It cannot be drawn the second time either, and then it can.
    documents.insert("/d".to_owned(), b"changed".to_vec());
    site.commit(&documents);
    let second = site.save(&bench).unwrap();
    assert_eq!(files(&bench, &second).get("/d/_files/bytes").unwrap(), b"changed");
    assert!(!files(&bench, &second).contains_key("/a/b/.content.xml"));
    *site.broken.lock().unwrap() = None;
    documents.insert("/d".to_owned(), b"changed again".to_vec());
    site.commit(&documents);
    let drawn = site.drawn.load(Ordering::Relaxed);
    let third = site.save(&bench).unwrap();
    assert_eq!(files(&bench, &third), expected(&documents));
    assert_eq!(site.drawn.load(Ordering::Relaxed) - drawn, 2);
    let index = bench.index();
    assert!(find_path(&bench.vault, &index, &second.snapshot, "/undrawn.json").is_ok());
    assert!(find_path(&bench.vault, &index, &third.snapshot, "/undrawn.json").is_err());

    // What is gone is not looked for.
    *site.broken.lock().unwrap() = Some("/a/b/c".to_owned());
    documents.insert("/a/b/c".to_owned(), b"new".to_vec());
    site.commit(&documents);
    site.save(&bench).unwrap();
    documents.retain(|path, _| !path.starts_with("/a/"));
    site.commit(&documents);
    let last = site.save(&bench).unwrap();
    assert_eq!(files(&bench, &last), expected(&documents));
}

/// Nothing is wrong with a document that cannot be drawn for now: no snapshot is made without it.
#[test]
fn a_repository_out_of_reach_ends_the_save() {
    let bench = Bench::new();
    let mut site = Site::new();
    let documents = BTreeMap::from([("/".to_owned(), b"root".to_vec())]);
    site.commit(&documents);
    site.is_away.store(true, Ordering::Relaxed);
    let ended = site.try_save(&bench).unwrap_err();
    assert!(ended.is_transient(), "{ended:?}");
    assert!(bench.vault.read_snapshots().unwrap().is_empty());
    site.is_away.store(false, Ordering::Relaxed);
    let saved = site.save(&bench).unwrap();
    assert_eq!(files(&bench, &saved), expected(&documents));
}
