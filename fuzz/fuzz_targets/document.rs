//! Records and bodies that another instance sent: refused, or read back whole.
//!
//! Input: the length of the record in two bytes, the record, and the payload of its body, if there is one.
#![no_main]

use std::time::SystemTime;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tympan_content::{NodePath, Repository, StoredDocument, Subtree, SubtreeScope};
use tympan_store::{ChunkBatch, body};

fuzz_target!(|data: &[u8]| {
    let Some((length, rest)) = data.split_first_chunk::<2>() else { return };
    let Some((record, payload)) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))
    else {
        return;
    };
    let repository = Repository::in_memory().expect("memory does not fail");
    let mut batch = ChunkBatch::new();
    let body = (!payload.is_empty())
        .then(|| body::write_body(&mut batch, payload, &[]).expect("short enough"));
    repository.chunks().commit(batch).expect("memory does not fail");

    let path = NodePath::new("/received").expect("a path");
    let document =
        StoredDocument { path: path.clone(), record_bytes: Bytes::copy_from_slice(record), body };
    let mut session = repository.session("fuzz").expect("memory does not fail");
    if session.put_document(&document).is_err()
        || session.commit("receive", SystemTime::UNIX_EPOCH).is_err()
    {
        return;
    }
    let snapshot = repository.snapshot().expect("memory does not fail");
    let node = snapshot.node(&path).expect("it was accepted").expect("it was stored");
    let tree: Subtree = node.read_subtree().expect("it was accepted");
    assert!(tree.node_count() >= 1);
    for child in node.children().expect("it was accepted") {
        drop(child.properties());
    }
    drop(snapshot.stored_documents(&path, SubtreeScope::Subtree).expect("it was accepted"));
});
