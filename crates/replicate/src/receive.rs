//! Receiving: a publisher takes chunks and blobs, then applies the message in one commit.

use std::io::Read;
use std::time::SystemTime;

use bytes::Bytes;
use tympan_content::{BlobId, ChunkId, NodePath, Repository, Session};
use tympan_store::Batch;

use crate::activation::Action;
use crate::message::{parse_chunk_id, unframe_chunks};
use crate::{Error, Message, Result};

/// What a message did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The new root.
    pub root: ChunkId,
    /// The paths of the documents that differ from before, pages or not.
    pub changed: Vec<NodePath>,
}

/// Applies a message in one commit. Applying it again changes nothing more.
///
/// # Errors
/// [`Error::Missing`] with everything that must be sent first; nothing is changed then. [`Error::Malformed`] and
/// errors of the content if the message makes no sense.
pub fn apply(repository: &Repository, message: &Message, now: SystemTime) -> Result<Applied> {
    let action = Action::find(&message.action)
        .ok_or_else(|| Error::Malformed(format!("`{}` is no action", message.action)))?;
    // What is found present has to stay until the commit refers to it.
    let _hold = repository.hold()?;
    check_parts(repository, message)?;
    let mut session = repository.session(&message.user)?;
    session.follow();
    let before = session.snapshot()?;
    match action {
        Action::Activate => activate(&mut session, message)?,
        Action::Deactivate => {
            let path = NodePath::new(&message.path)?;
            if session.node(&path)?.is_some() {
                session.remove(&path)?;
            }
        }
    }
    let root = session.commit(&format!("{} {}", action.name(), message.path), now)?;
    let after = session.snapshot()?;
    Ok(Applied { root, changed: before.changed_paths(&after)? })
}

fn activate(session: &mut Session, message: &Message) -> Result<()> {
    for (path, primary_type) in &message.ancestors {
        let path = NodePath::new(path)?;
        if session.node(&path)?.is_none() {
            session.add_node(&path, primary_type)?;
        }
    }
    for document in &message.documents {
        session.put_document(&document.open()?)?;
    }
    Ok(())
}

/// Checks that every chunk and blob of the message is here.
fn check_parts(repository: &Repository, message: &Message) -> Result<()> {
    let chunks: Vec<ChunkId> =
        message.chunks.iter().map(|id| parse_chunk_id(id)).collect::<Result<_>>()?;
    let present = repository.chunks().contains_many(&chunks)?;
    let chunks: Vec<ChunkId> =
        chunks.into_iter().zip(present).filter(|(_, is_here)| !is_here).map(|(id, _)| id).collect();
    let mut blobs = Vec::new();
    for id in &message.blobs {
        let id = parse_blob_id(id)?;
        // It must not be collected before the commit names it.
        if !repository.blobs().touch(&id)? {
            blobs.push(id);
        }
    }
    if chunks.is_empty() && blobs.is_empty() {
        Ok(())
    } else {
        Err(Error::Missing { chunks, blobs })
    }
}

/// Keeps framed chunks; they become durable with the commit that needs them. Returns how many there were.
///
/// # Errors
/// [`Error::Malformed`] if the framing is broken; errors of the store.
pub fn put_chunks(repository: &Repository, framed: &Bytes) -> Result<usize> {
    let mut batch = Batch::default();
    let chunks = unframe_chunks(framed)?;
    let count = chunks.len();
    for bytes in chunks {
        tympan_store::Chunk::parse(bytes.clone())?;
        batch.add_chunk(bytes);
    }
    repository.chunks().commit(batch)?;
    Ok(count)
}

/// Keeps a blob.
///
/// # Errors
/// [`Error::Mismatch`] if the bytes are not those that the id names.
pub fn put_blob(repository: &Repository, id: &str, source: &mut dyn Read) -> Result<BlobId> {
    let expected = parse_blob_id(id)?;
    match repository.blobs().put_named(&expected, source) {
        Err(tympan_blobs::Error::Mismatch { expected, actual }) => {
            Err(Error::Mismatch { expected: expected.to_string(), actual: actual.to_string() })
        }
        put => Ok(put.map(|()| expected)?),
    }
}

fn parse_blob_id(text: &str) -> Result<BlobId> {
    text.parse().map_err(|_| Error::Malformed(format!("`{text}` is no blob id")))
}
