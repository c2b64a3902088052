//! Ids and frames in the bodies of requests to a store. `docs/formats/remote-store.md` describes them.

use bytes::Bytes;
use tympan_content::{BlobId, ChunkId};

use crate::{Error, Result};

/// The maximum number of ids in a request.
pub(crate) const MAX_REQUEST_IDS: usize = 4_096;
/// A response ends after the frame that exceeds this length, in bytes.
pub(crate) const MAX_RESPONSE_BYTES: usize = 8 << 20;
/// The maximum length of a frame, in bytes: small blobs and chunks are below 64 KiB, the format of packs allows more.
pub(crate) const MAX_FRAME_BYTES: usize = 1 << 20;
const ABSENT_FRAME_LENGTH: u32 = u32::MAX;
const ENCODED_BLOB_ID_BYTES: usize = 40;

pub(crate) fn encode_chunk_ids(ids: &[ChunkId]) -> Bytes {
    ids.iter().flat_map(|id| *id.as_bytes()).collect::<Vec<u8>>().into()
}

/// Decodes a list of chunk ids.
///
/// # Errors
/// [`Error::Malformed`] for a truncated id, or too many ids.
pub(crate) fn decode_chunk_ids(bytes: &[u8]) -> Result<Vec<ChunkId>> {
    let (ids, rest) = bytes.as_chunks::<32>();
    check_id_list(ids.len(), rest)?;
    Ok(ids.iter().map(|id| ChunkId::from_bytes(*id)).collect())
}

pub(crate) fn encode_blob_ids(ids: &[BlobId]) -> Bytes {
    let encode = |id: &BlobId| {
        let mut bytes = [0; ENCODED_BLOB_ID_BYTES];
        let (digest, length) = bytes.split_at_mut(32);
        digest.copy_from_slice(id.digest());
        length.copy_from_slice(&id.length().to_be_bytes());
        bytes
    };
    ids.iter().flat_map(encode).collect::<Vec<u8>>().into()
}

/// Decodes a list of blob ids.
///
/// # Errors
/// [`Error::Malformed`] for a truncated id, or too many ids.
pub(crate) fn decode_blob_ids(bytes: &[u8]) -> Result<Vec<BlobId>> {
    let (ids, rest) = bytes.as_chunks::<ENCODED_BLOB_ID_BYTES>();
    check_id_list(ids.len(), rest)?;
    let decode = |id: &[u8; ENCODED_BLOB_ID_BYTES]| {
        let (digest, length) = id.split_first_chunk::<32>()?;
        Some(BlobId::new(*digest, u64::from_be_bytes(*length.first_chunk()?)))
    };
    Ok(ids.iter().filter_map(decode).collect())
}

fn check_id_list(count: usize, rest: &[u8]) -> Result<()> {
    if count > MAX_REQUEST_IDS || !rest.is_empty() {
        return Err(Error::Malformed(format!(
            "the body is not a list of at most {MAX_REQUEST_IDS} ids"
        )));
    }
    Ok(())
}

/// Encodes the result of `read` for each id as a frame, until the response reaches its maximum length.
pub(crate) fn encode_frames<I: Copy>(
    ids: &[I],
    mut read: impl FnMut(I) -> Result<Option<Bytes>>,
) -> Result<Bytes> {
    let mut out = Vec::new();
    for id in ids {
        match read(*id)? {
            None => out.extend_from_slice(&ABSENT_FRAME_LENGTH.to_be_bytes()),
            Some(bytes) => {
                let length = u32::try_from(bytes.len()).unwrap_or(ABSENT_FRAME_LENGTH);
                out.extend_from_slice(&length.to_be_bytes());
                out.extend_from_slice(&bytes);
            }
        }
        if out.len() >= MAX_RESPONSE_BYTES {
            break;
        }
    }
    Ok(out.into())
}

/// Decodes a response, which may have frames for only the first of `expected_count` ids.
///
/// # Errors
/// [`Error::Malformed`] for no frame, more frames than ids, a frame that is too long or truncated.
pub(crate) fn decode_frames(bytes: &Bytes, expected_count: usize) -> Result<Vec<Option<Bytes>>> {
    let malformed = |reason: &str| Error::Malformed(format!("the response {reason}"));
    let mut frames = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if frames.len() == expected_count {
            return Err(malformed("contains more than requested"));
        }
        let length = bytes.get(at..).and_then(<[u8]>::first_chunk::<4>);
        let length = u32::from_be_bytes(*length.ok_or_else(|| malformed("is truncated"))?);
        at += 4;
        if length == ABSENT_FRAME_LENGTH {
            frames.push(None);
            continue;
        }
        let end = at + length as usize;
        if length as usize > MAX_FRAME_BYTES {
            return Err(malformed("contains a frame that is too long"));
        }
        if end > bytes.len() {
            return Err(malformed("is truncated"));
        }
        frames.push(Some(bytes.slice(at..end)));
        at = end;
    }
    if frames.is_empty() { Err(malformed("is empty")) } else { Ok(frames) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_frames_come_apart_again() {
        let chunks = [ChunkId::hash_of(b"a"), ChunkId::hash_of(b"b")];
        assert_eq!(decode_chunk_ids(&encode_chunk_ids(&chunks)).unwrap(), chunks);
        let blobs = [BlobId::hash_of(b"a"), BlobId::new([3; 32], u64::MAX)];
        assert_eq!(decode_blob_ids(&encode_blob_ids(&blobs)).unwrap(), blobs);
        assert!(decode_chunk_ids(&[1; 31]).is_err() && decode_blob_ids(&[1; 41]).is_err());
        assert!(decode_chunk_ids(&vec![0; 32 * (MAX_REQUEST_IDS + 1)]).is_err());
        let items = [Some(Bytes::from_static(b"one")), None, Some(Bytes::new())];
        let framed = encode_frames(&[0, 1, 2], |at: usize| Ok(items[at].clone())).unwrap();
        assert_eq!(decode_frames(&framed, 3).unwrap(), items);
        assert_eq!(decode_frames(&framed, 4).unwrap().len(), 3);
        assert!(decode_frames(&framed, 2).is_err(), "more than was asked for");
        assert!(decode_frames(&Bytes::new(), 2).is_err());
        for cut in 1..framed.len() {
            // The result does not matter, but decoding must not panic.
            decode_frames(&framed.slice(..cut), 3).ok();
        }
        assert!(decode_frames(&framed.slice(..6), 3).is_err());
        assert!(decode_frames(&Bytes::from_static(&[0x7F; 8]), 3).is_err(), "too long");
    }

    #[test]
    fn a_long_answer_ends_early() {
        let piece = Bytes::from(vec![7; MAX_FRAME_BYTES]);
        let ids: Vec<usize> = (0..100).collect();
        let framed = encode_frames(&ids, |_| Ok(Some(piece.clone()))).unwrap();
        let frames = decode_frames(&framed, 100).unwrap();
        assert!((2..100).contains(&frames.len()), "{}", frames.len());
        assert!(framed.len() < MAX_RESPONSE_BYTES + MAX_FRAME_BYTES + 8);
    }
}
