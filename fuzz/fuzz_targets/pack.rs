//! Pack files and their index files: the store opens with what it can read, or says why not.
//!
//! Input: the length of the index file in two bytes, the index file, the pack.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tympan_store::disk::MemoryDisk;
use tympan_store::{ChunkStore, LocalStore, LocalStoreOptions, ReadChunks, check_store};

fuzz_target!(|data: &[u8]| {
    let Some((length, rest)) = data.split_first_chunk::<2>() else { return };
    let Some((index, pack)) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))
    else {
        return;
    };
    let disk = MemoryDisk::new();
    disk.put_file("pack-000001", pack.to_vec());
    if !index.is_empty() {
        disk.put_file("pack-000001.index", index.to_vec());
    }
    let Ok(store) = LocalStore::open(Arc::new(disk), LocalStoreOptions::default()) else { return };
    for (_, root) in store.list_refs().expect("refs are in memory") {
        drop(store.read_chunk(&root));
    }
    drop(check_store(&store));
});
