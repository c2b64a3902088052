//! Stores in a folder of the file system, for tests of crates that may not import the store crates directly.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use tympan_blobs::{BlobStore, LocalBlobStore};
use tympan_store::disk::FileDisk;
use tympan_store::{
    ChunkStore, GarbageCollectionOptions, LocalStore, LocalStoreOptions, RevisionRetention,
};

/// Opens the chunk store and the blob store in a folder, and creates them if needed.
///
/// # Panics
/// If they cannot be opened.
#[must_use]
#[expect(clippy::expect_used, reason = "a test fails by panicking")]
pub fn open_stores(folder: &Path) -> (Arc<dyn ChunkStore>, Arc<dyn BlobStore>) {
    std::fs::create_dir_all(folder).expect("the folder can be made");
    let disk = FileDisk::open(folder.join("store")).expect("the folder of the store can be opened");
    let store =
        LocalStore::open(Arc::new(disk), LocalStoreOptions::default()).expect("the store opens");
    let store: Arc<dyn ChunkStore> = Arc::new(store);
    let blobs = LocalBlobStore::open(&folder.join("blobs"), store.clone()).expect("the blobs open");
    (store, Arc::new(blobs))
}

/// Collects everything but the newest state of each branch, and leased or pinned states.
///
/// # Panics
/// If the collection fails.
#[expect(clippy::expect_used, reason = "a test fails by panicking")]
pub fn collect_history(store: &dyn ChunkStore, now: SystemTime) {
    let options = GarbageCollectionOptions {
        retention: RevisionRetention::KEEP_NEWEST,
        min_live_share: 1.1,
        ..GarbageCollectionOptions::at_time(now)
    };
    store
        .collect_garbage(&options, &mut |_| std::ops::ControlFlow::Continue(()))
        .expect("the collection comes to its end");
}
