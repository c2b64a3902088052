//! Single chunks: what parses can be read, and its bytes are the ones that were parsed.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tympan_store::Chunk;

fuzz_target!(|data: &[u8]| {
    let bytes = Bytes::copy_from_slice(data);
    let Ok(chunk) = Chunk::parse(bytes.clone()) else { return };
    assert_eq!(chunk.bytes(), &bytes);
    let references = chunk.chunk_refs().count() * 32 + chunk.blob_refs().count() * 40;
    assert_eq!(references + chunk.payload().len() + 6, bytes.len());
});
