//! A merge join of two sorted lists: existing blobs and needed ids.

use std::iter::Peekable;
use std::ops::ControlFlow;

use tympan_store::BlobId;

use super::blob_tally::BlobTally;
use super::id_sorter::{BlobIdSorter, SortedBlobIds};
use super::member_list::{RegisteredMember, list_members};
use crate::{ListedBlob, Result, WriteBlobs};

/// Returns each listed blob with a flag that is true if the blob is needed.
pub(super) struct NeededBlobJoin<N: Iterator<Item = Result<[u8; 32]>>> {
    listed: SortedBlobIds,
    needed: Peekable<N>,
}

impl<N: Iterator<Item = Result<[u8; 32]>>> NeededBlobJoin<N> {
    pub(super) fn new(listed: SortedBlobIds, needed: N) -> Self {
        Self { listed, needed: needed.peekable() }
    }

    /// Advances to the first id that is not before `digest`, and returns true if it is equal.
    fn advance_to_digest(&mut self, digest: &[u8; 32]) -> Result<bool> {
        let is_before =
            |entry: &Result<[u8; 32]>| entry.as_ref().is_ok_and(|candidate| candidate < digest);
        while self.needed.next_if(is_before).is_some() {}
        match self.needed.peek() {
            Some(Ok(next)) => Ok(next == digest),
            Some(Err(_)) => self.needed.next().transpose().map(|_| false),
            None => Ok(false),
        }
    }
}

impl<N: Iterator<Item = Result<[u8; 32]>>> Iterator for NeededBlobJoin<N> {
    type Item = Result<(ListedBlob, bool)>;

    fn next(&mut self) -> Option<Self::Item> {
        let listed = match self.listed.next()? {
            Ok(listed) => listed,
            Err(error) => return Some(Err(error)),
        };
        // By digest alone: a truncated blob is damaged, not garbage.
        Some(self.advance_to_digest(listed.id.digest()).map(|is_needed| (listed, is_needed)))
    }
}

/// The contents of a storage, and the repositories that share it.
#[derive(Debug, Clone, Default)]
pub struct BlobCensus {
    /// Blobs that can be read.
    pub live: BlobTally,
    /// Blobs in the trash.
    pub trash: BlobTally,
    /// The repositories.
    pub members: Vec<RegisteredMember>,
}

/// Counts the blobs in a storage, without reading a blob.
///
/// # Errors
/// If the storage fails or cannot be listed.
pub fn count_blobs(storage: &dyn WriteBlobs) -> Result<BlobCensus> {
    let mut census = BlobCensus { members: list_members(storage)?, ..BlobCensus::default() };
    storage.list(&mut |listed| {
        census.live.add(&listed);
        ControlFlow::Continue(())
    })?;
    storage.list_trash(&mut |listed| {
        census.trash.add(&listed);
        ControlFlow::Continue(())
    })?;
    Ok(census)
}

/// Returns the missing ones of some blobs, ascending and distinct, at most `limit`, and their total number. `present`
/// are listed blobs; any other one is checked with `is_here`.
///
/// # Errors
/// If temporary files fail, or an error of `is_here`.
pub fn find_missing_blobs(
    is_here: &mut dyn FnMut(&BlobId) -> Result<bool>,
    needed: BlobIdSorter,
    present: BlobIdSorter,
    limit: usize,
) -> Result<(Vec<BlobId>, u64)> {
    let mut present = present.finish()?.peekable();
    let (mut missing, mut count) = (Vec::new(), 0);
    let mut last = None;
    for needed_id in needed.finish()? {
        let id = needed_id?.id;
        if last.replace(id) == Some(id) {
            continue;
        }
        while present.next_if(|entry| entry.as_ref().is_ok_and(|listed| listed.id < id)).is_some() {
        }
        let is_listed = match present.peek() {
            Some(Ok(listed)) => listed.id == id,
            Some(Err(_)) => match present.next() {
                Some(Err(error)) => return Err(error),
                _ => false,
            },
            None => false,
        };
        // It may have been moving from one storage to another.
        if !is_listed && !is_here(&id)? {
            count += 1;
            if missing.len() < limit {
                missing.push(id);
            }
        }
    }
    Ok((missing, count))
}
