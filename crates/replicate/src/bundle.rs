//! Many blobs in one request, so that a far publisher costs a few waits whatever their number.
//!
//! A bundle is one blob after the other: the digest (32 bytes), the length (u64, big-endian), the bytes.
//! `docs/formats/replication.md` describes the exchange.
//!
//! Invariants
//! * Every blob is checked against its id, and durable when the receiver answers.
//! * Neither side holds more than 8 MiB of it in memory.

use std::io::{Cursor, ErrorKind, Read};

use tympan_content::{BlobId, Repository};

use crate::{Error, Result};

/// Bundles hold about this many bytes; a larger blob goes alone.
pub(crate) const BUNDLE_BYTES: u64 = 64 << 20;
/// Bundles hold at most so many blobs.
const BUNDLE_BLOBS: usize = 4_096;
/// Bytes before each blob.
const HEAD_BYTES: usize = 40;
/// Blobs below this are put together.
const TOGETHER_BYTES: u64 = 1 << 20;
/// Bytes that are put together.
const BATCH_BYTES: usize = 8 << 20;

/// Divides blobs into bundles, in order.
pub(crate) fn divide(blobs: Vec<BlobId>) -> Vec<Vec<BlobId>> {
    let mut bundles: Vec<Vec<BlobId>> = Vec::new();
    let mut bytes = 0;
    for blob in blobs {
        let fits = bytes + blob.length() <= BUNDLE_BYTES;
        match bundles.last_mut().filter(|bundle| fits && bundle.len() < BUNDLE_BLOBS) {
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
pub(crate) fn length_of(blobs: &[BlobId]) -> u64 {
    blobs.iter().map(|blob| HEAD_BYTES as u64 + blob.length()).sum()
}

/// Reads a bundle out of a repository, one blob after the other.
pub(crate) struct BundleReader {
    repository: Repository,
    /// Last first.
    left: Vec<BlobId>,
    current: Box<dyn Read + Send>,
}

impl BundleReader {
    pub(crate) fn new(repository: Repository, mut blobs: Vec<BlobId>) -> Self {
        blobs.reverse();
        Self { repository, left: blobs, current: Box::new(std::io::empty()) }
    }
}

impl Read for BundleReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            let count = self.current.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            let Some(id) = self.left.pop() else {
                return Ok(0);
            };
            let opened = self.repository.blobs().open(&id).map_err(std::io::Error::other)?;
            let content = opened.ok_or_else(|| std::io::Error::other(Error::BlobLost(id)))?;
            let mut head = id.digest().to_vec();
            head.extend_from_slice(&id.length().to_be_bytes());
            self.current = Box::new(Cursor::new(head).chain(content.into_reader()));
        }
    }
}

/// Keeps all blobs of a bundle; returns how many there were.
///
/// # Errors
/// [`Error::Mismatch`] for bytes that are not those that the id names, [`Error::Malformed`] for a bundle that breaks off;
/// errors of the store. What came before is kept.
pub fn put_blobs(repository: &Repository, bundle: &mut dyn Read) -> Result<usize> {
    let mut count = 0;
    let mut batch = Batch::default();
    while let Some(id) = read_head(bundle)? {
        count += 1;
        if id.length() >= TOGETHER_BYTES {
            let mut bytes = (&mut *bundle).take(id.length());
            repository.blobs().put_named(&id, &mut bytes).map_err(|error| match error {
                tympan_blobs::Error::Mismatch { expected, actual } => mismatch(&expected, &actual),
                error => error.into(),
            })?;
            continue;
        }
        let mut bytes = Vec::new();
        (&mut *bundle).take(id.length()).read_to_end(&mut bytes).map_err(broken)?;
        let actual = BlobId::of(&bytes);
        if actual != id {
            return Err(mismatch(&id, &actual));
        }
        batch.add(bytes);
        if batch.bytes >= BATCH_BYTES {
            batch.put(repository)?;
        }
    }
    batch.put(repository)?;
    Ok(count)
}

/// Blobs that are put together.
#[derive(Default)]
struct Batch {
    blobs: Vec<Vec<u8>>,
    bytes: usize,
}

impl Batch {
    fn add(&mut self, blob: Vec<u8>) {
        self.bytes += blob.len();
        self.blobs.push(blob);
    }

    fn put(&mut self, repository: &Repository) -> Result<()> {
        let blobs: Vec<&[u8]> = self.blobs.iter().map(Vec::as_slice).collect();
        repository.blobs().put_all(&blobs)?;
        *self = Self::default();
        Ok(())
    }
}

/// Reads what stands before a blob; nothing at the end.
fn read_head(bundle: &mut dyn Read) -> Result<Option<BlobId>> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    bundle.take(HEAD_BYTES as u64).read_to_end(&mut head).map_err(broken)?;
    if head.is_empty() {
        return Ok(None);
    }
    let parts = head.split_first_chunk::<32>();
    let parts = parts.and_then(|(digest, length)| Some((*digest, length.first_chunk::<8>()?)));
    let (digest, length) = parts.ok_or_else(|| broken(ErrorKind::UnexpectedEof.into()))?;
    Ok(Some(BlobId::new(digest, u64::from_be_bytes(*length))))
}

#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` gives")]
fn broken(error: std::io::Error) -> Error {
    Error::Malformed(format!("the bundle of blobs breaks off: {error}"))
}

fn mismatch(expected: &BlobId, actual: &BlobId) -> Error {
    Error::Mismatch { expected: expected.to_string(), actual: actual.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository() -> Repository {
        Repository::memory().unwrap()
    }

    fn blobs(from: &Repository) -> Vec<BlobId> {
        let lengths = [0_usize, 1, 40, 5_000, 20_000, 1 << 20, (1 << 20) + 1];
        let put = |length: &usize| from.blobs().put(&mut &vec![7; *length][..]).unwrap();
        lengths.iter().map(put).collect()
    }

    fn bundle(from: &Repository, ids: &[BlobId]) -> Vec<u8> {
        let mut bytes = Vec::new();
        BundleReader::new(from.clone(), ids.to_vec()).read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, length_of(ids));
        bytes
    }

    #[test]
    fn bundles_arrive_whole() {
        let (from, to) = (repository(), repository());
        let ids = blobs(&from);
        let bytes = bundle(&from, &ids);
        assert_eq!(put_blobs(&to, &mut bytes.as_slice()).unwrap(), ids.len());
        assert!(ids.iter().all(|id| to.blobs().contains(id).unwrap()));
    }

    #[test]
    fn what_is_cut_or_changed_is_refused() {
        let (from, to) = (repository(), repository());
        let ids = blobs(&from);
        let bytes = bundle(&from, &ids[..5]);
        let ends: Vec<usize> =
            (0..=5).map(|count| usize::try_from(length_of(&ids[..count])).unwrap()).collect();
        for cut in (0..200).chain(bytes.len() - 200..bytes.len()) {
            let put = put_blobs(&to, &mut &bytes[..cut]);
            assert_eq!(put.is_ok(), ends.contains(&cut), "cut at {cut}: {put:?}");
        }
        for at in [0, 31, 39, 40, 41, 100, bytes.len() - 1] {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            assert!(put_blobs(&to, &mut wrong.as_slice()).is_err(), "byte {at}");
        }
    }

    #[test]
    fn bundles_are_bounded() {
        let id = |length| BlobId::new([0; 32], length);
        let of = |lengths: &[u64]| -> Vec<usize> {
            divide(lengths.iter().map(|length| id(*length)).collect())
                .iter()
                .map(Vec::len)
                .collect()
        };
        assert_eq!(of(&[]), [0_usize; 0]);
        assert_eq!(of(&[1, 2, 3]), [3]);
        assert_eq!(of(&[BUNDLE_BYTES, 1, BUNDLE_BYTES * 9, 1, 1]), [1, 1, 1, 2]);
        assert_eq!(of(&vec![1; BUNDLE_BLOBS + 1]), [BUNDLE_BLOBS, 1]);
    }
}
