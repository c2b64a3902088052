//! Messages from author to publisher: JSON, a NUL, framed chunks.
#![no_main]

use std::time::SystemTime;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tympan_content::Repository;
use tympan_replicate::{ReceiverRole, ReplicationMessage, apply_replication, store_framed_chunks};

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(2, |byte| *byte == 0);
    let (json, chunks) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let repository = Repository::in_memory().expect("memory does not fail");
    drop(store_framed_chunks(&repository, &Bytes::copy_from_slice(chunks)));
    if let Ok(message) = serde_json::from_slice::<ReplicationMessage>(json) {
        drop(apply_replication(
            &repository,
            &message,
            ReceiverRole::Publisher,
            SystemTime::UNIX_EPOCH,
        ));
    }
    repository.snapshot().expect("the repository stays sound");
});
