//! A commit obeys the policies of the state that it is written over, whenever these came.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tympan_blobs::MemoryBlobStore;
use tympan_content::{Error, NodePath, Property, Repository, Subtree, ValueType, Viewer};
use tympan_store::{
    BlobId, Chunk, ChunkBatch, ChunkId, ChunkStore, CollectionHold, GarbageCollectionOptions,
    GarbageCollectionProgress, GarbageCollectionReport, LocalStore, ReadChunks, Result, Revision,
    RootLease, RootPin,
};

/// What somebody else does in between.
type Deed = Box<dyn FnOnce() + Send>;

/// A store that lets somebody else do something just before a certain one of its calls.
struct Interrupted {
    inner: Arc<LocalStore>,
    /// How many more calls to let pass, and what happens then.
    deed: Mutex<Option<(u64, Deed)>>,
}

impl Interrupted {
    fn new(inner: Arc<LocalStore>) -> Self {
        Self { inner, deed: Mutex::new(None) }
    }

    fn arrange(&self, calls: u64, deed: Deed) {
        *self.deed.lock() = Some((calls, deed));
    }

    /// Counts a call, and does what was arranged if its time has come.
    fn step(&self) {
        let mut deed = self.deed.lock();
        let is_due = match deed.as_mut() {
            Some((0, _)) => true,
            Some((left, _)) => {
                *left -= 1;
                false
            }
            None => false,
        };
        let due = if is_due { deed.take() } else { None };
        drop(deed);
        if let Some((_, deed)) = due {
            deed();
        }
    }
}

impl ReadChunks for Interrupted {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        self.inner.read_chunk(id)
    }
}

impl ChunkStore for Interrupted {
    fn contains_chunks(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        self.inner.contains_chunks(ids)
    }

    fn read_blob(&self, id: &BlobId) -> Result<Option<bytes::Bytes>> {
        self.inner.read_blob(id)
    }

    fn contains_blob(&self, id: &BlobId) -> Result<bool> {
        self.inner.contains_blob(id)
    }

    fn commit(&self, batch: ChunkBatch) -> Result<()> {
        self.step();
        self.inner.commit(batch)?;
        // What comes after the write is too late to bind it.
        *self.deed.lock() = None;
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn read_ref(&self, name: &str) -> Result<Option<ChunkId>> {
        self.step();
        self.inner.read_ref(name)
    }

    fn list_refs(&self) -> Result<Vec<(String, ChunkId)>> {
        self.inner.list_refs()
    }

    fn ref_history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        self.inner.ref_history(name, before, limit)
    }

    fn list_leases(&self) -> Result<Vec<RootLease>> {
        self.inner.list_leases()
    }

    fn pin_root(&self, root: ChunkId) -> RootPin {
        self.inner.pin_root(root)
    }

    fn begin_hold(&self) -> Result<CollectionHold> {
        self.inner.begin_hold()
    }

    fn collect_garbage(
        &self,
        options: &GarbageCollectionOptions,
        pace: &mut dyn FnMut(&GarbageCollectionProgress) -> ControlFlow<()>,
    ) -> Result<GarbageCollectionReport> {
        self.inner.collect_garbage(options, pace)
    }
}

fn at() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

fn policy(kind: &str) -> Subtree {
    let privileges = Property::parse_list(ValueType::Name, ["jcr:all"]).unwrap();
    let entry = Subtree::new("entry", kind)
        .with_property("rep:principalName", "ann")
        .with_property("rep:privileges", privileges);
    Subtree::new("rep:policy", "rep:ACL").with_child(entry)
}

/// Two processes on one store: the one under test, and somebody else's.
struct Stage {
    store: Arc<Interrupted>,
    here: Repository,
    there: Repository,
}

fn stage() -> Stage {
    let inner = Arc::new(LocalStore::open_in_memory().unwrap());
    let store = Arc::new(Interrupted::new(inner.clone()));
    let blobs = Arc::new(MemoryBlobStore::default());
    let here = Repository::open(store.clone(), blobs.clone()).unwrap();
    let there = Repository::open(inner, blobs).unwrap();
    let mut session = there.session("system").unwrap();
    session.accounts().add_user("ann", "x").unwrap();
    session.accounts().add_group("editors").unwrap();
    session.add_node(&path("/content"), "sling:Folder").unwrap();
    session.add_node(&path("/content/note"), "nt:unstructured").unwrap();
    session.put_node(&path("/content/rep:policy"), policy("rep:GrantACE")).unwrap();
    session.commit("begin", at()).unwrap();
    Stage { store, here, there }
}

/// Lets `deed` happen before each of the calls by which a commit of `ann` is checked and written. Gives how many there
/// are.
fn check_everywhere(deed: fn(&Repository)) -> u64 {
    for calls in 0.. {
        let Stage { store, here, there } = stage();
        let viewer = Viewer::of_user(Some("ann"));
        let mut session = here.session_as(&viewer).unwrap();
        session.set_property(&path("/content/note"), "text", "written".into()).unwrap();
        let is_done = Arc::new(AtomicBool::new(false));
        let noted = is_done.clone();
        store.arrange(
            calls,
            Box::new(move || {
                deed(&there);
                noted.store(true, Ordering::SeqCst);
            }),
        );
        let committed = session.commit("write", at());
        if !is_done.load(Ordering::SeqCst) {
            // The commit makes no more calls than that.
            committed.unwrap();
            return calls;
        }
        let error = committed.expect_err("a policy that came before the write binds it");
        assert!(matches!(error, Error::AccessDenied { .. }), "{calls}: {error}");
        let note = here.snapshot().unwrap().node(&path("/content/note")).unwrap().unwrap();
        assert_eq!(note.text("text"), None, "{calls}");
    }
    unreachable!("the loop has no end")
}

fn deny(repository: &Repository) {
    let mut session = repository.session("system").unwrap();
    session.put_node(&path("/content/rep:policy"), policy("rep:DenyACE")).unwrap();
    session.commit("deny", at()).unwrap();
}

fn disable(repository: &Repository) {
    let mut session = repository.session("system").unwrap();
    session.accounts().set_disabled("ann", Some("left")).unwrap();
    session.commit("disable", at()).unwrap();
}

#[test]
fn a_policy_that_comes_before_the_write_binds_it() {
    // The state is asked for by the check and by the commit itself, and the store is written once.
    assert!(check_everywhere(deny) >= 3);
}

#[test]
fn a_user_who_is_disabled_before_the_write_writes_nothing() {
    assert!(check_everywhere(disable) >= 3);
}

#[test]
fn an_unrelated_change_in_between_costs_no_policy_to_be_read() {
    let Stage { store, here, there } = stage();
    let viewer = Viewer::of_user(Some("ann"));
    let mut session = here.session_as(&viewer).unwrap();
    session.set_property(&path("/content/note"), "text", "written".into()).unwrap();
    // What the check itself reads is read before.
    drop(here.snapshot().unwrap().as_viewer(&viewer));
    let before = here.policy_documents_read();
    let add = move || {
        let mut session = there.session("system").unwrap();
        session.add_node(&path("/content/other"), "nt:unstructured").unwrap();
        session.commit("add", at()).unwrap();
    };
    store.arrange(2, Box::new(add));
    session.commit("write", at()).unwrap();
    assert_eq!(here.policy_documents_read(), before);
    let snapshot = here.snapshot().unwrap();
    assert!(snapshot.node(&path("/content/other")).unwrap().is_some());
}
