//! Tests of an index on a full disk: it stops following, continues to serve searches, and resumes by itself.

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use tantivy::directory::error::{DeleteError, LockError, OpenReadError, OpenWriteError};
use tantivy::directory::{
    AntiCallToken, Directory, DirectoryLock, FileHandle, Lock, MmapDirectory, TerminatingWrite,
    WatchCallback, WatchHandle, WritePtr,
};
use tympan_content::{NodePath, Property, Repository, Subtree};
use tympan_content_query::{FullTextExpression, FullTextIndex, FullTextRequest};

use super::{SearchIndex, SearchIndexOptions};

/// Set while the simulated disk under the index is full.
static IS_FULL: AtomicBool = AtomicBool::new(false);

fn room() -> io::Result<()> {
    if IS_FULL.load(Ordering::SeqCst) {
        return Err(io::Error::new(io::ErrorKind::StorageFull, "no space left on device"));
    }
    Ok(())
}

#[derive(Debug, Clone)]
struct FullDiskDirectory(MmapDirectory);

struct FullDiskFile(WritePtr);

impl Write for FullDiskFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        room()?;
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl TerminatingWrite for FullDiskFile {
    fn terminate_ref(&mut self, token: AntiCallToken) -> io::Result<()> {
        room()?;
        self.0.flush()?;
        self.0.get_mut().terminate_ref(token)
    }
}

impl Directory for FullDiskDirectory {
    fn get_file_handle(&self, path: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        self.0.get_file_handle(path)
    }

    fn delete(&self, path: &Path) -> Result<(), DeleteError> {
        self.0.delete(path)
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenReadError> {
        self.0.exists(path)
    }

    fn open_write(&self, path: &Path) -> Result<WritePtr, OpenWriteError> {
        room().map_err(|error| OpenWriteError::wrap_io_error(error, path.to_owned()))?;
        Ok(BufWriter::new(Box::new(FullDiskFile(self.0.open_write(path)?))))
    }

    fn atomic_read(&self, path: &Path) -> Result<Vec<u8>, OpenReadError> {
        self.0.atomic_read(path)
    }

    fn atomic_write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        room()?;
        self.0.atomic_write(path, bytes)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.0.sync_directory()
    }

    fn acquire_lock(&self, lock: &Lock) -> Result<DirectoryLock, LockError> {
        self.0.acquire_lock(lock)
    }

    fn watch(&self, callback: WatchCallback) -> tantivy::Result<WatchHandle> {
        self.0.watch(callback)
    }
}

fn open(dir: &Path) -> tantivy::Result<Box<dyn Directory>> {
    Ok(Box::new(FullDiskDirectory(MmapDirectory::open(dir)?)))
}

fn put(repository: &Repository, name: &str) {
    let mut session = repository.session("author").unwrap();
    let tree = Subtree::new("", "nt:unstructured").with_property("text", Property::text("alpha"));
    session.put_node(&NodePath::new(name).unwrap(), tree).unwrap();
    session.commit("edit", UNIX_EPOCH).unwrap();
}

fn count(index: &SearchIndex) -> usize {
    let request = FullTextRequest {
        expression: FullTextExpression::Term("alpha".to_owned()),
        property: None,
        node_types: Vec::new(),
        ancestor: None,
        after: None,
        limit: 100,
        facets: Vec::new(),
        wants_excerpt: false,
    };
    index.search(&request).unwrap().hits.len()
}

#[test]
fn patterns_look_at_no_more_words_than_they_may() {
    let repository = Repository::in_memory().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let index =
        SearchIndex::open(repository.clone(), dir.path(), SearchIndexOptions::default()).unwrap();
    let mut session = repository.session("author").unwrap();
    let text = Property::text("axle bell cove");
    let tree = Subtree::new("", "nt:unstructured").with_property("text", text);
    session.put_node(&NodePath::new("/a").unwrap(), tree).unwrap();
    session.commit("edit", UNIX_EPOCH).unwrap();
    assert!(index.wait_until_current(Duration::from_secs(60)));
    let served = index.state.served_build().unwrap();
    let location =
        crate::searching::word_expansion::WordLocation::of_field(index.state.fields().words);
    // The name of the node is also a word.
    for (most, expected) in [(3, "axle bell"), (100, "axle bell cove")] {
        let left = std::cell::Cell::new(most);
        let words = location.expand(&served.searcher, "", &|word| word.len() > 1, &left).unwrap();
        let words: Vec<String> = words.into_keys().collect();
        assert_eq!(words.join(" "), expected);
        assert_eq!(left.get() == 0, most == 3);
    }
}

#[test]
fn waiting_for_a_build_keeps_nobody_awake() {
    let repository = Repository::in_memory().unwrap();
    let dir = tempfile::tempdir().unwrap();
    // A build that cannot be created is retried after a second.
    let unwritable = |_: &Path| -> tantivy::Result<Box<dyn Directory>> {
        Err(tantivy::TantivyError::SystemError("no".to_owned()))
    };
    let index = SearchIndex::open_with_directory(
        repository,
        dir.path(),
        SearchIndexOptions::default(),
        unwritable,
    )
    .unwrap();
    assert!(!index.wait_until_current(Duration::from_millis(300)));
    let pass_count = index.state.begun_passes();
    // The follower checks every 50 ms, and less often after failures.
    assert!(pass_count < 100, "{pass_count} passes");
}

#[test]
fn a_full_disk_pauses_following_and_nothing_else() {
    let timeout = Duration::from_secs(60);
    let repository = Repository::in_memory().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let index = SearchIndex::open_with_directory(
        repository.clone(),
        dir.path(),
        SearchIndexOptions::default(),
        open,
    )
    .unwrap();
    put(&repository, "/a");
    assert!(index.wait_until_current(timeout));
    assert_eq!(count(&index), 1);
    IS_FULL.store(true, Ordering::SeqCst);
    put(&repository, "/b");
    put(&repository, "/c");
    let reason = index.state.wait_until_paused(timeout);
    let reason = reason.expect("the follower does not say that it pauses");
    assert!(reason.contains("no space left") || reason.contains("worker thread"), "{reason}");
    assert_eq!(count(&index), 1, "searches are answered from the last commit");
    assert_eq!(index.status(UNIX_EPOCH).unwrap().lag_revisions, 2);
    IS_FULL.store(false, Ordering::SeqCst);
    assert!(index.wait_until_current(timeout), "{:?}", index.status(UNIX_EPOCH));
    assert_eq!(count(&index), 3);
    assert_eq!(index.status(UNIX_EPOCH).unwrap().pause_reason, None);
}
