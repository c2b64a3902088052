//! Transfer of many blobs in one request, so that a distant publisher costs few round trips whatever their number.
//!
//! A bundle is a sequence of blobs, each as its digest (32 bytes), its length (u64, big-endian) and its bytes.
//! `docs/formats/replication.md` describes the exchange.
//!
//! Invariants
//! * Every blob is checked against its id, and durable when the receiver responds.
//! * Neither side holds more than 8 MiB of a bundle in memory.

use std::io::{Cursor, ErrorKind, Read};

use tympan_content::{BlobId, Repository};

use crate::{Error, Result};

/// The approximate maximum size of a bundle; a larger blob is sent alone.
const BLOB_BUNDLE_BYTES: u64 = 64 << 20;
/// The maximum number of blobs in a bundle.
const MAX_BUNDLE_BLOBS: usize = 4_096;
/// The length of the header before each blob, in bytes.
const BLOB_HEADER_BYTES: usize = 40;
/// Blobs smaller than this are written in batches.
const MAX_BATCHED_BLOB_BYTES: u64 = 1 << 20;
/// The maximum size of a batch, in bytes.
const MAX_BATCH_BYTES: usize = 8 << 20;

/// Divides blobs into bundles, preserving their order.
pub(crate) fn split_into_bundles(blobs: Vec<BlobId>) -> Vec<Vec<BlobId>> {
    let mut bundles: Vec<Vec<BlobId>> = Vec::new();
    let mut bytes = 0;
    for blob in blobs {
        let fits = bytes + blob.length() <= BLOB_BUNDLE_BYTES;
        match bundles.last_mut().filter(|bundle| fits && bundle.len() < MAX_BUNDLE_BLOBS) {
            Some(bundle) => bundle.push(blob),
            None => {
                bundles.push(vec![blob]);
                bytes = 0;
            }
        }
        bytes += blob.length();
    }
    bundles
}

/// Returns the length of a bundle in bytes.
pub(crate) fn bundle_length(blobs: &[BlobId]) -> u64 {
    blobs.iter().map(|blob| BLOB_HEADER_BYTES as u64 + blob.length()).sum()
}

/// Reads a bundle from a repository, blob by blob.
pub(crate) struct BlobBundleReader {
    repository: Repository,
    /// The remaining blobs, in reverse order.
    remaining_blobs: Vec<BlobId>,
    current_blob: Box<dyn Read + Send>,
}

impl BlobBundleReader {
    pub(crate) fn new(repository: Repository, mut blobs: Vec<BlobId>) -> Self {
        blobs.reverse();
        Self { repository, remaining_blobs: blobs, current_blob: Box::new(std::io::empty()) }
    }
}

impl Read for BlobBundleReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            let count = self.current_blob.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            let Some(id) = self.remaining_blobs.pop() else {
                return Ok(0);
            };
            let opened = self.repository.blobs().open(&id).map_err(std::io::Error::other)?;
            let content = opened.ok_or_else(|| std::io::Error::other(Error::LostBlob(id)))?;
            let mut head = id.digest().to_vec();
            head.extend_from_slice(&id.length().to_be_bytes());
            self.current_blob = Box::new(Cursor::new(head).chain(content.into_reader()));
        }
    }
}

/// Stores all blobs of a bundle; returns their number.
///
/// # Errors
/// [`Error::Mismatch`] for bytes that do not match their id, [`Error::Malformed`] for a truncated bundle; errors of the
/// store. Blobs received before the error are retained.
pub fn store_bundle(repository: &Repository, bundle: &mut dyn Read) -> Result<usize> {
    let mut count = 0;
    let mut batch = BlobWriteBatch::default();
    while let Some(id) = read_blob_header(bundle)? {
        count += 1;
        if id.length() >= MAX_BATCHED_BLOB_BYTES {
            let mut bytes = (&mut *bundle).take(id.length());
            repository.blobs().put_named(&id, &mut bytes).map_err(|error| match error {
                tympan_blobs::Error::IdMismatch { expected, actual } => {
                    blob_mismatch_error(&expected, &actual)
                }
                error => error.into(),
            })?;
            continue;
        }
        let mut bytes = Vec::new();
        (&mut *bundle).take(id.length()).read_to_end(&mut bytes).map_err(bundle_read_error)?;
        let actual = BlobId::hash_of(&bytes);
        if actual != id {
            return Err(blob_mismatch_error(&id, &actual));
        }
        batch.add(bytes);
        if batch.total_bytes >= MAX_BATCH_BYTES {
            batch.write_to_repository(repository)?;
        }
    }
    batch.write_to_repository(repository)?;
    Ok(count)
}

/// A batch of small blobs to write together.
#[derive(Default)]
struct BlobWriteBatch {
    blobs: Vec<Vec<u8>>,
    total_bytes: usize,
}

impl BlobWriteBatch {
    fn add(&mut self, blob: Vec<u8>) {
        self.total_bytes += blob.len();
        self.blobs.push(blob);
    }

    fn write_to_repository(&mut self, repository: &Repository) -> Result<()> {
        let blobs: Vec<&[u8]> = self.blobs.iter().map(Vec::as_slice).collect();
        repository.blobs().put_all(&blobs)?;
        *self = Self::default();
        Ok(())
    }
}

/// Reads the header of a blob; `None` at the end.
fn read_blob_header(bundle: &mut dyn Read) -> Result<Option<BlobId>> {
    let mut head = Vec::with_capacity(BLOB_HEADER_BYTES);
    bundle.take(BLOB_HEADER_BYTES as u64).read_to_end(&mut head).map_err(bundle_read_error)?;
    if head.is_empty() {
        return Ok(None);
    }
    let parts = head.split_first_chunk::<32>();
    let parts = parts.and_then(|(digest, length)| Some((*digest, length.first_chunk::<8>()?)));
    let (digest, length) =
        parts.ok_or_else(|| bundle_read_error(ErrorKind::UnexpectedEof.into()))?;
    Ok(Some(BlobId::new(digest, u64::from_be_bytes(*length))))
}

#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` gives")]
fn bundle_read_error(error: std::io::Error) -> Error {
    Error::Malformed(format!("cannot read the blob bundle: {error}"))
}

fn blob_mismatch_error(expected: &BlobId, actual: &BlobId) -> Error {
    Error::Mismatch { expected: expected.to_string(), actual: actual.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository() -> Repository {
        Repository::in_memory().unwrap()
    }

    fn blobs(from: &Repository) -> Vec<BlobId> {
        let lengths = [0_usize, 1, 40, 5_000, 20_000, 1 << 20, (1 << 20) + 1];
        let put = |length: &usize| from.blobs().put(&mut &vec![7; *length][..]).unwrap();
        lengths.iter().map(put).collect()
    }

    fn bundle(from: &Repository, ids: &[BlobId]) -> Vec<u8> {
        let mut bytes = Vec::new();
        BlobBundleReader::new(from.clone(), ids.to_vec()).read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, bundle_length(ids));
        bytes
    }

    #[test]
    fn bundles_arrive_whole() {
        let (from, to) = (repository(), repository());
        let ids = blobs(&from);
        let bytes = bundle(&from, &ids);
        assert_eq!(store_bundle(&to, &mut bytes.as_slice()).unwrap(), ids.len());
        assert!(ids.iter().all(|id| to.blobs().contains(id).unwrap()));
    }

    #[test]
    fn what_is_cut_or_changed_is_refused() {
        let (from, to) = (repository(), repository());
        let ids = blobs(&from);
        let bytes = bundle(&from, &ids[..5]);
        let ends: Vec<usize> =
            (0..=5).map(|count| usize::try_from(bundle_length(&ids[..count])).unwrap()).collect();
        for cut in (0..200).chain(bytes.len() - 200..bytes.len()) {
            let put = store_bundle(&to, &mut &bytes[..cut]);
            assert_eq!(put.is_ok(), ends.contains(&cut), "cut at {cut}: {put:?}");
        }
        for at in [0, 31, 39, 40, 41, 100, bytes.len() - 1] {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            assert!(store_bundle(&to, &mut wrong.as_slice()).is_err(), "byte {at}");
        }
    }

    #[test]
    fn bundles_are_bounded() {
        let id = |length| BlobId::new([0; 32], length);
        let of = |lengths: &[u64]| -> Vec<usize> {
            split_into_bundles(lengths.iter().map(|length| id(*length)).collect())
                .iter()
                .map(Vec::len)
                .collect()
        };
        assert_eq!(of(&[]), [0_usize; 0]);
        assert_eq!(of(&[1, 2, 3]), [3]);
        assert_eq!(of(&[BLOB_BUNDLE_BYTES, 1, BLOB_BUNDLE_BYTES * 9, 1, 1]), [1, 1, 1, 2]);
        assert_eq!(of(&vec![1; MAX_BUNDLE_BLOBS + 1]), [MAX_BUNDLE_BLOBS, 1]);
    }
}
