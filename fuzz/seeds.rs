//! Writes the seeds that only the program itself can make: chunks, trees, packs and documents, in today's formats.
//!
//! Run it in this folder after a change of a format: `cargo run --release --example seeds`.

use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use tympan_content::{NodePath, Repository, Subtree, SubtreeScope};
use tympan_store::disk::{Disk, MemoryDisk};
use tympan_store::{
    BlobId, ByteSize, Chunk, ChunkBatch, ChunkId, ChunkStore, GarbageCollectionOptions, LocalStore,
    LocalStoreOptions, MapValue, RefUpdate, RootLease, SortedMap, StoreRoot, body, key,
};

/// References stand behind the header, in this many bytes each.
const HEADER: usize = 6;
const REFERENCE: usize = 32;
/// In front of each payload in a pack.
const RECORD_HEADER: usize = 52;

fn main() -> Result<(), Box<dyn Error>> {
    let chunks = sample_chunks()?;
    let mut seen = Vec::new();
    for bytes in chunks.values() {
        let kind = Chunk::parse(bytes.clone())?.kind();
        if !seen.contains(&kind) && bytes.len() < 8_000 {
            seen.push(kind);
            put("chunk", &format!("{kind:?}").to_lowercase(), bytes)?;
        }
    }
    put("tree", "map", &forged(200)?)?;
    put("tree", "small", &forged(3)?)?;
    put("pack", "open", &pack(false)?)?;
    put("pack", "sealed", &pack(true)?)?;
    records_and_indexes()?;
    documents()
}

fn put(target: &str, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let folder = Path::new("corpus").join(target);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(name), bytes)
}

fn records(count: usize) -> Result<Vec<(Vec<u8>, MapValue)>, Box<dyn Error>> {
    let mut records = Vec::new();
    for number in 0..count {
        let name = format!("page-{number:04}");
        let bytes = Bytes::from(format!("value {number}"));
        records.push((key::record_key(&["content", &name])?, MapValue { bytes, body: None }));
    }
    Ok(records)
}

fn sample_batch(count: usize) -> Result<ChunkBatch, Box<dyn Error>> {
    let mut batch = ChunkBatch::new();
    let content = SortedMap::build(&mut batch, records(count)?.into_iter())?;
    let root = StoreRoot { maps: [("content".to_owned(), content)].into() }.write(&mut batch)?;
    body::write_body(&mut batch, b"a short body", &[])?;
    batch.add_ref_update(RefUpdate {
        name: "main".to_owned(),
        expected_root: None,
        new_root: Some(root),
        updated_at: SystemTime::UNIX_EPOCH,
        author: "seeds".to_owned(),
        message: "begin".to_owned(),
    });
    Ok(batch)
}

fn sample_chunks() -> Result<HashMap<ChunkId, Bytes>, Box<dyn Error>> {
    let mut batch = sample_batch(400)?;
    body::write_body(&mut batch, &[1; 70_000], &[])?;
    Ok(batch.chunks().map(|(id, bytes)| (*id, bytes.clone())).collect())
}

/// Writes a map so that the first byte of each reference is the number of its chunk, the root first.
fn forged(count: usize) -> Result<Vec<u8>, Box<dyn Error>> {
    let batch = sample_batch(count)?;
    let mut chunks: Vec<(ChunkId, Bytes)> =
        batch.chunks().map(|(id, bytes)| (*id, bytes.clone())).collect();
    chunks.reverse();
    let number_of: HashMap<ChunkId, u8> =
        (0..=u8::MAX).zip(&chunks).map(|(number, (id, _))| (*id, number)).collect();
    let mut seed = Vec::new();
    for (_, bytes) in &chunks {
        let chunk = Chunk::parse(bytes.clone())?;
        let mut bytes = bytes.to_vec();
        for (index, id) in chunk.chunk_refs().enumerate() {
            let number = number_of.get(&id).copied().unwrap_or_default();
            if let Some(byte) = bytes.get_mut(HEADER + index * REFERENCE) {
                *byte = number;
            }
        }
        seed.extend_from_slice(&u16::try_from(bytes.len())?.to_le_bytes());
        seed.extend_from_slice(&bytes);
    }
    Ok(seed)
}

fn pack(is_closed: bool) -> Result<Vec<u8>, Box<dyn Error>> {
    let disk = MemoryDisk::new();
    let store = LocalStore::open(Arc::new(disk.clone()), LocalStoreOptions::default())?;
    store.commit(sample_batch(20)?)?;
    if is_closed {
        store.close()?;
    }
    let pack = disk.file_content("pack-000001").ok_or("no pack")?;
    let index = disk.file_content("pack-000001.index").unwrap_or_default();
    let mut seed = u16::try_from(index.len())?.to_le_bytes().to_vec();
    seed.extend(index);
    seed.extend(pack);
    Ok(seed)
}

/// Writes what a store leaves that had refs and leases moved and its garbage collected.
fn records_and_indexes() -> Result<(), Box<dyn Error>> {
    let disk = MemoryDisk::new();
    let options =
        LocalStoreOptions { pack_limit: ByteSize::from_kib(4), ..LocalStoreOptions::default() };
    let store = LocalStore::open(Arc::new(disk.clone()), options)?;
    store.commit(sample_batch(300)?)?;
    let root = store.read_ref("main")?.ok_or("no ref")?;
    let mut batch = ChunkBatch::new();
    for (holder, expires) in [("backup", None), ("clone", Some(SystemTime::UNIX_EPOCH))] {
        batch.grant_lease(RootLease { holder: holder.to_owned(), root, expires_at: expires });
    }
    batch.add_blob(BlobId::hash_of(b"icon"), Bytes::from_static(b"icon"));
    store.commit(batch)?;
    let mut batch = ChunkBatch::new();
    batch.release_lease("clone");
    store.commit(batch)?;
    put_files(&disk, "full")?;
    let collected = GarbageCollectionOptions {
        min_live_share: 1.0,
        ..GarbageCollectionOptions::at_time(SystemTime::UNIX_EPOCH)
    };
    store.collect_garbage(&collected, &mut |_| ControlFlow::Continue(()))?;
    store.close()?;
    put_files(&disk, "collected")
}

fn put_files(disk: &MemoryDisk, word: &str) -> Result<(), Box<dyn Error>> {
    for name in disk.list_folder("")? {
        let content = disk.file_content(&name).ok_or("no file")?;
        if name.ends_with(".index") {
            put("index", &format!("{word}-{name}"), &content)?;
            continue;
        }
        put("record", &format!("{word}-{name}"), &content)?;
        for (number, payload) in payloads(&content).enumerate() {
            put("commit", &format!("{word}-{name}-{number}"), payload)?;
        }
    }
    Ok(())
}

/// Returns the payloads of heads and commit records of a pack.
fn payloads(pack: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = pack;
    let all = std::iter::from_fn(move || {
        let kind = *rest.get(4)?;
        let stored = u32::from_le_bytes(*rest.get(8..)?.first_chunk()?);
        let (payload, after) =
            rest.get(RECORD_HEADER..)?.split_at_checked(usize::try_from(stored).ok()?)?;
        rest = after;
        Some((kind, payload))
    });
    all.filter(|(kind, _)| matches!(kind, 1 | 4)).map(|(_, payload)| payload)
}

fn documents() -> Result<(), Box<dyn Error>> {
    let repository = Repository::in_memory()?;
    let mut session = repository.session("seeds")?;
    let text = Subtree::new("text", "nt:unstructured")
        .with_property("text", tympan_content::Property::text("Words. ".repeat(60)))
        .with_property("count", tympan_content::Value::Long(3));
    let content = Subtree::new("jcr:content", "cq:PageContent")
        .with_property("jcr:title", "Page")
        .with_child(text);
    session
        .put_node(&NodePath::new("/page")?, Subtree::new("page", "cq:Page").with_child(content))?;
    session.put_node(
        &NodePath::new("/small")?,
        Subtree::new("small", "nt:unstructured").with_property("a", "b"),
    )?;
    session.commit("begin", SystemTime::UNIX_EPOCH)?;
    let snapshot = repository.snapshot()?;
    for name in ["page", "small"] {
        for document in snapshot
            .stored_documents(&NodePath::new(&format!("/{name}"))?, SubtreeScope::Document)?
        {
            let mut seed = u16::try_from(document.record_bytes.len())?.to_le_bytes().to_vec();
            seed.extend_from_slice(&document.record_bytes);
            if let Some(id) = document.body {
                seed.extend_from_slice(&body::read_body(&**repository.chunks(), &id)?.payload);
            }
            put("document", name, &seed)?;
        }
    }
    Ok(())
}
