//! Writes the seeds that only the program itself can make: chunks, trees, packs and documents, in today's formats.
//!
//! Run it in this folder after a change of a format: `cargo run --release --example seeds`.

use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use tympan_content::{Depth, NodePath, Repository, Subtree};
use tympan_store::disk::MemoryDisk;
use tympan_store::{
    Batch, Chunk, ChunkId, ChunkStore, LocalOptions, LocalStore, Map, RefUpdate, Root, Value, body,
    key,
};

/// References stand behind the header, in this many bytes each.
const HEADER: usize = 6;
const REFERENCE: usize = 32;

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
    documents()
}

fn put(target: &str, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let folder = Path::new("corpus").join(target);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(name), bytes)
}

fn records(count: usize) -> Result<Vec<(Vec<u8>, Value)>, Box<dyn Error>> {
    let mut records = Vec::new();
    for number in 0..count {
        let name = format!("page-{number:04}");
        let bytes = Bytes::from(format!("value {number}"));
        records.push((key::record(&["content", &name])?, Value { bytes, body: None }));
    }
    Ok(records)
}

fn sample_batch(count: usize) -> Result<Batch, Box<dyn Error>> {
    let mut batch = Batch::new();
    let content = Map::build(&mut batch, records(count)?.into_iter())?;
    let root = Root { maps: [("content".to_owned(), content)].into() }.write(&mut batch)?;
    body::write(&mut batch, b"a short body", &[])?;
    batch.move_ref(RefUpdate {
        name: "main".to_owned(),
        expected: None,
        new: Some(root),
        at: SystemTime::UNIX_EPOCH,
        author: "seeds".to_owned(),
        message: "begin".to_owned(),
    });
    Ok(batch)
}

fn sample_chunks() -> Result<HashMap<ChunkId, Bytes>, Box<dyn Error>> {
    let mut batch = sample_batch(400)?;
    body::write(&mut batch, &[1; 70_000], &[])?;
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
    let store = LocalStore::open(Arc::new(disk.clone()), LocalOptions::default())?;
    store.commit(sample_batch(20)?)?;
    if is_closed {
        store.close()?;
    }
    let pack = disk.content("pack-000001").ok_or("no pack")?;
    let index = disk.content("pack-000001.index").unwrap_or_default();
    let mut seed = u16::try_from(index.len())?.to_le_bytes().to_vec();
    seed.extend(index);
    seed.extend(pack);
    Ok(seed)
}

fn documents() -> Result<(), Box<dyn Error>> {
    let repository = Repository::memory()?;
    let mut session = repository.session("seeds")?;
    let text = Subtree::new("text", "nt:unstructured")
        .with("text", tympan_content::Property::text("Words. ".repeat(60)))
        .with("count", tympan_content::Value::Long(3));
    let content =
        Subtree::new("jcr:content", "cq:PageContent").with("jcr:title", "Page").with_child(text);
    session.put(&NodePath::new("/page")?, Subtree::new("page", "cq:Page").with_child(content))?;
    session
        .put(&NodePath::new("/small")?, Subtree::new("small", "nt:unstructured").with("a", "b"))?;
    session.commit("begin", SystemTime::UNIX_EPOCH)?;
    let snapshot = repository.snapshot()?;
    for name in ["page", "small"] {
        for document in snapshot.documents(&NodePath::new(&format!("/{name}"))?, Depth::Document)? {
            let mut seed = u16::try_from(document.record.len())?.to_le_bytes().to_vec();
            seed.extend_from_slice(&document.record);
            if let Some(id) = document.body {
                seed.extend_from_slice(&body::read(&**repository.chunks(), &id)?.payload);
            }
            put("document", name, &seed)?;
        }
    }
    Ok(())
}
