//! Receiving: a publisher stores chunks and blobs, then applies the message in one commit.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::time::SystemTime;

use bytes::Bytes;
use tympan_content::{
    BlobId, ChunkId, MIXIN_TYPES, NodePath, PRIMARY_TYPE, Property, Repository, Session, Snapshot,
    SubtreeScope,
};
use tympan_store::ChunkBatch;

use crate::delivery::message::{decode_framed_chunks, parse_chunk_id};
use crate::request::replication_request::{
    ReplicationAction, carries_replication_stamp, is_policy,
};
use crate::{Error, ReplicationMessage, Result};

/// The role of the receiving instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiverRole {
    /// An instance that serves the received content to visitors.
    Publisher,
    /// An author that takes a part of its content from another one; what its own visitors have is its own concern.
    Author,
}

/// The result of applying a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedMessage {
    /// The new root.
    pub root: ChunkId,
    /// The paths of the documents that changed, pages or not.
    pub changed_paths: Vec<NodePath>,
}

/// Applies a message in one commit. Applying it again has no further effect.
///
/// # Errors
/// [`Error::Missing`] with everything that must be sent first; nothing is changed then. [`Error::Malformed`] and errors
/// of the content if the message is invalid.
pub fn apply_replication(
    repository: &Repository,
    message: &ReplicationMessage,
    receiver: ReceiverRole,
    now: SystemTime,
) -> Result<AppliedMessage> {
    let action = ReplicationAction::from_name(&message.action)
        .ok_or_else(|| Error::Malformed(format!("`{}` is not an action", message.action)))?;
    // Chunks and blobs found present must not be collected before the commit references them.
    let _hold = repository.hold_blobs()?;
    check_chunks_and_blobs(repository, message)?;
    let mut session = repository.session(&message.user)?;
    match receiver {
        ReceiverRole::Publisher => session.mark_as_received(),
        ReceiverRole::Author => session.mark_as_received_by_author(),
    }
    let before = session.snapshot()?;
    match action {
        ReplicationAction::Activate => apply_activation(&mut session, message)?,
        ReplicationAction::Deactivate => {
            let retained_paths = message.kept.iter().map(|path| Ok(NodePath::new(path)?));
            let retained_paths = retained_paths.collect::<Result<BTreeSet<NodePath>>>()?;
            let tops = match message.taken_away.as_slice() {
                [] => std::slice::from_ref(&message.path),
                part => part,
            };
            for top in tops {
                let top = NodePath::new(top)?;
                if session.node(&top)?.is_some() {
                    remove_except_retained(&mut session, &top, &retained_paths)?;
                }
            }
        }
    }
    let root = session.commit(&format!("{} {}", action.name(), message.path), now)?;
    let after = session.snapshot()?;
    Ok(AppliedMessage { root, changed_paths: before.changed_paths(&after)? })
}

/// Removes a node with everything below it except the retained documents. These keep the folders and pages above them,
/// without their content, and the policies of these, which may restrict access to them.
fn remove_except_retained(
    session: &mut Session,
    top: &NodePath,
    retained_paths: &BTreeSet<NodePath>,
) -> Result<()> {
    let mut needed = BTreeSet::new();
    for path in retained_paths.iter().filter(|path| path.is_within(top)) {
        let mut above = path.parent();
        while let Some(path) = above.filter(|path| path.is_within(top)) {
            above = path.parent();
            if !needed.insert(path) {
                break;
            }
        }
    }
    if needed.is_empty() && !retained_paths.contains(top) {
        return Ok(session.remove_node(top)?);
    }
    let before = session.snapshot()?;
    let mut removed: BTreeSet<NodePath> = BTreeSet::new();
    for document in before.stored_documents(top, SubtreeScope::Subtree)? {
        let path = document.path;
        // Documents are read from the state before this message, because the message may have removed some already.
        if before.node(&path)?.is_none() {
            continue;
        }
        let parent = path.parent();
        if parent.as_ref().is_some_and(|parent| removed.contains(parent)) {
            removed.insert(path);
        } else if !is_retained(&before, &path, top, retained_paths)? {
            let is_policy = matches!(path.name(), "rep:policy" | "rep:cugPolicy");
            if needed.contains(&path) {
                clear_document(session, &before, &path)?;
            } else if !is_policy || !parent.is_some_and(|parent| needed.contains(&parent)) {
                session.remove_node(&path)?;
                removed.insert(path);
            }
        }
    }
    Ok(())
}

/// Returns true if a document is retained: if the page or asset that it is, or to which it belongs, is retained.
fn is_retained(
    before: &Snapshot,
    path: &NodePath,
    top: &NodePath,
    retained_paths: &BTreeSet<NodePath>,
) -> Result<bool> {
    let mut at = Some(path.clone());
    while let Some(path) = at.filter(|path| path.is_within(top)) {
        if retained_paths.contains(&path) {
            return Ok(true);
        }
        if before.node(&path)?.is_some_and(|node| carries_replication_stamp(&node)) {
            return Ok(false);
        }
        let parent = path.parent();
        let above = parent.as_ref().map(|parent| before.node(parent)).transpose()?.flatten();
        let is_in_folder =
            above.is_some_and(|node| !carries_replication_stamp(&node) && node.is_folder());
        if is_in_folder && !is_policy(&path) {
            // A retained folder keeps its policies, and nothing else.
            return Ok(false);
        }
        at = parent;
    }
    Ok(false)
}

/// Removes everything from a document except its type, which the documents below it need.
fn clear_document(session: &mut Session, before: &Snapshot, path: &NodePath) -> Result<()> {
    let Some(node) = before.node(path)? else { return Ok(()) };
    for child in node.children()? {
        if child.summary().is_none() && !child.name().starts_with("rep:") {
            session.remove_node(child.path())?;
        }
    }
    let mut properties: BTreeMap<String, Property> = node.properties().into_iter().collect();
    properties.retain(|name, _| name == PRIMARY_TYPE || name == MIXIN_TYPES);
    Ok(session.replace_properties(path, properties)?)
}

fn apply_activation(session: &mut Session, message: &ReplicationMessage) -> Result<()> {
    for (path, primary_type) in &message.ancestors {
        let path = NodePath::new(path)?;
        if session.node(&path)?.is_none() {
            session.add_node(&path, primary_type)?;
        }
    }
    for document in &message.documents {
        session.put_document(&document.to_stored()?)?;
    }
    Ok(())
}

/// Checks that every chunk and blob of the message is present.
fn check_chunks_and_blobs(repository: &Repository, message: &ReplicationMessage) -> Result<()> {
    let chunks: Vec<ChunkId> =
        message.chunks.iter().map(|id| parse_chunk_id(id)).collect::<Result<_>>()?;
    let present = repository.chunks().contains_chunks(&chunks)?;
    let chunks: Vec<ChunkId> =
        chunks.into_iter().zip(present).filter(|(_, is_here)| !is_here).map(|(id, _)| id).collect();
    let mut blobs = Vec::new();
    for id in &message.blobs {
        let id = parse_blob_id(id)?;
        // The blob must not be collected before the commit references it.
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

/// Stores framed chunks, and returns their number. They become durable with the commit that needs them.
///
/// # Errors
/// [`Error::Malformed`] if the framing is invalid; errors of the store.
pub fn store_framed_chunks(repository: &Repository, framed: &Bytes) -> Result<usize> {
    let mut batch = ChunkBatch::default();
    let chunks = decode_framed_chunks(framed)?;
    let count = chunks.len();
    for bytes in chunks {
        tympan_store::Chunk::parse(bytes.clone())?;
        batch.add_chunk(bytes);
    }
    repository.chunks().commit(batch)?;
    Ok(count)
}

/// Stores a blob.
///
/// # Errors
/// [`Error::Mismatch`] if the bytes do not match the id.
pub fn store_blob(repository: &Repository, id: &str, source: &mut dyn Read) -> Result<BlobId> {
    let expected = parse_blob_id(id)?;
    match repository.blobs().put_named(&expected, source) {
        Err(tympan_blobs::Error::IdMismatch { expected, actual }) => {
            Err(Error::Mismatch { expected: expected.to_string(), actual: actual.to_string() })
        }
        put => Ok(put.map(|()| expected)?),
    }
}

fn parse_blob_id(text: &str) -> Result<BlobId> {
    text.parse().map_err(|_| Error::Malformed(format!("`{text}` is not a blob id")))
}
