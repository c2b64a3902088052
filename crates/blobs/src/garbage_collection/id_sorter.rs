//! External sorting of blob ids: sorted runs in temporary files, merged while they are read.
//!
//! In: ids in any order, each with a time. Out: the same in ascending order.
//!
//! Invariants
//! * Memory stays under 10 MiB, whatever the number: one buffer of ids, and a piece of each run.
//! * The files have no name: nothing is left when the process dies.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tympan_store::BlobId;

use crate::{Error, ListedBlob, Result};

/// Digest, length, and time in microseconds, each encoded so that the order of bytes is that of the values.
const ID_RECORD_BYTES: usize = 48;
/// Number of records that are sorted in memory: 3 MiB.
const RECORDS_PER_RUN: usize = 64 * 1024;
/// Maximum number of runs that are merged at a time.
const MAX_MERGED_RUNS: usize = 64;
/// Number of bytes of each run that are read ahead.
const RUN_READ_AHEAD_BYTES: usize = 64 * 1024;

type BlobIdRecord = [u8; ID_RECORD_BYTES];

/// Sorts ids that are added in any order.
#[derive(Debug)]
pub struct BlobIdSorter {
    scratch_dir: PathBuf,
    buffer: Vec<BlobIdRecord>,
    runs: Vec<File>,
    records_per_run: usize,
}

impl BlobIdSorter {
    /// Creates a sorter whose temporary files are in the existing folder `scratch`.
    #[must_use]
    pub fn new(scratch: &Path) -> Self {
        Self::with_records_per_run(scratch, RECORDS_PER_RUN)
    }

    fn with_records_per_run(scratch: &Path, run_records: usize) -> Self {
        Self {
            scratch_dir: scratch.to_owned(),
            buffer: Vec::new(),
            runs: Vec::new(),
            records_per_run: run_records,
        }
    }

    /// Adds an id with its time.
    ///
    /// # Errors
    /// If the temporary files cannot be written.
    pub fn add(&mut self, listed: &ListedBlob) -> Result<()> {
        self.buffer.push(encode_record(listed));
        if self.buffer.len() < self.records_per_run {
            return Ok(());
        }
        self.end_run()?;
        if self.runs.len() < MAX_MERGED_RUNS {
            return Ok(());
        }
        let merged = BlobIdRunMerge::from_files(std::mem::take(&mut self.runs))
            .map_err(self.disk_error("read"))?;
        let run = self.write_run(merged)?;
        self.runs.push(run);
        Ok(())
    }

    /// Adds an id whose time does not matter.
    ///
    /// # Errors
    /// If the temporary files cannot be written.
    pub fn add_id(&mut self, id: &BlobId) -> Result<()> {
        self.add(&ListedBlob { id: *id, modified: UNIX_EPOCH })
    }

    /// Returns all added ids in ascending order; duplicates are retained.
    ///
    /// # Errors
    /// If the temporary files cannot be written or read.
    pub fn finish(mut self) -> Result<SortedBlobIds> {
        if self.runs.is_empty() {
            self.buffer.sort_unstable();
            let merge = BlobIdRunMerge {
                in_memory_run: std::mem::take(&mut self.buffer).into_iter(),
                ..BlobIdRunMerge::default()
            };
            return Ok(SortedBlobIds { merge, scratch_dir: self.scratch_dir });
        }
        if !self.buffer.is_empty() {
            self.end_run()?;
        }
        self.buffer = Vec::new();
        let merge = BlobIdRunMerge::from_files(std::mem::take(&mut self.runs))
            .map_err(self.disk_error("read"))?;
        Ok(SortedBlobIds { merge, scratch_dir: self.scratch_dir })
    }

    fn end_run(&mut self) -> Result<()> {
        self.buffer.sort_unstable();
        let records = std::mem::take(&mut self.buffer);
        let run = self.write_run(records.iter().copied().map(Ok))?;
        self.runs.push(run);
        // Reuse the allocation.
        self.buffer = records;
        self.buffer.clear();
        Ok(())
    }

    fn write_run(
        &self,
        records: impl Iterator<Item = std::io::Result<BlobIdRecord>>,
    ) -> Result<File> {
        let write = || -> std::io::Result<File> {
            let mut out = BufWriter::with_capacity(
                RUN_READ_AHEAD_BYTES,
                tempfile::tempfile_in(&self.scratch_dir)?,
            );
            for record in records {
                out.write_all(&record?)?;
            }
            out.into_inner().map_err(std::io::IntoInnerError::into_error)
        };
        write().map_err(self.disk_error("write a file in"))
    }

    fn disk_error(&self, action: &'static str) -> impl FnOnce(std::io::Error) -> Error + use<> {
        let path = self.scratch_dir.clone();
        move |source| Error::Disk { action, path, source }
    }
}

/// Ids in ascending order.
#[derive(Debug)]
pub struct SortedBlobIds {
    merge: BlobIdRunMerge,
    scratch_dir: PathBuf,
}

impl Iterator for SortedBlobIds {
    type Item = Result<ListedBlob>;

    fn next(&mut self) -> Option<Self::Item> {
        let path = || self.scratch_dir.clone();
        let failed = |source| Error::Disk { action: "read a file in", path: path(), source };
        Some(self.merge.next()?.map(|record| decode_record(&record)).map_err(failed))
    }
}

/// Merges sorted runs.
#[derive(Debug, Default)]
struct BlobIdRunMerge {
    /// The only run, if it fits into memory.
    in_memory_run: std::vec::IntoIter<BlobIdRecord>,
    runs: Vec<BufReader<File>>,
    /// The next record of each run.
    heads: BinaryHeap<Reverse<(BlobIdRecord, usize)>>,
}

impl BlobIdRunMerge {
    fn from_files(files: Vec<File>) -> std::io::Result<Self> {
        let mut merge = Self::default();
        for mut file in files {
            file.seek(SeekFrom::Start(0))?;
            let mut run = BufReader::with_capacity(RUN_READ_AHEAD_BYTES, file);
            if let Some(first) = read_record(&mut run)? {
                merge.heads.push(Reverse((first, merge.runs.len())));
                merge.runs.push(run);
            }
        }
        Ok(merge)
    }
}

impl Iterator for BlobIdRunMerge {
    type Item = std::io::Result<BlobIdRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(record) = self.in_memory_run.next() {
            return Some(Ok(record));
        }
        let mut head = self.heads.peek_mut()?;
        let Reverse((record, run)) = *head;
        let next = self.runs.get_mut(run).map(read_record);
        match next {
            Some(Ok(Some(next))) => *head = Reverse((next, run)),
            Some(Ok(None)) | None => {
                PeekMut::pop(head);
            }
            Some(Err(error)) => return Some(Err(error)),
        }
        Some(Ok(record))
    }
}

/// Reads a record; `None` at the end.
fn read_record(run: &mut impl Read) -> std::io::Result<Option<BlobIdRecord>> {
    let mut record = [0; ID_RECORD_BYTES];
    match run.read_exact(&mut record) {
        Ok(()) => Ok(Some(record)),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn encode_record(listed: &ListedBlob) -> BlobIdRecord {
    let mut record = [0; ID_RECORD_BYTES];
    let micros = to_unix_micros(listed.modified);
    let bytes = listed.id.digest().iter().copied();
    let bytes = bytes.chain(listed.id.length().to_be_bytes()).chain(micros.to_be_bytes());
    record.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
    record
}

fn decode_record(record: &BlobIdRecord) -> ListedBlob {
    let (digest, rest) = record.split_first_chunk::<32>().unwrap_or((&[0; 32], &[]));
    let (length, micros) = rest.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
    let micros = micros.first_chunk::<8>().copied().unwrap_or_default();
    let id = BlobId::new(*digest, u64::from_be_bytes(*length));
    ListedBlob { id, modified: from_unix_micros(u64::from_be_bytes(micros)) }
}

/// Returns a time in microseconds since 1970; an earlier time counts as 1970.
pub(super) fn to_unix_micros(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Converts microseconds since 1970 to a time.
pub(super) fn from_unix_micros(micros: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_micros(micros)).unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(number: u32) -> ListedBlob {
        // In random order, with some duplicates.
        let id = BlobId::hash_of(&(number % 5_000).to_le_bytes());
        ListedBlob { id, modified: UNIX_EPOCH + Duration::from_micros(u64::from(number)) }
    }

    fn check(count: u32, run_records: usize) {
        let dir = tempfile::tempdir().unwrap();
        let mut sorter = BlobIdSorter::with_records_per_run(dir.path(), run_records);
        let mut model: Vec<ListedBlob> = (0..count).map(listed).collect();
        model.iter().for_each(|entry| sorter.add(entry).unwrap());
        model.sort_by_key(|entry| (entry.id, entry.modified));
        let sorted: Vec<ListedBlob> = sorter.finish().unwrap().map(Result::unwrap).collect();
        assert!(sorted == model, "{count} in runs of {run_records}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn any_number_comes_back_in_order() {
        check(0, 4);
        check(3, 4);
        check(4, 4);
        check(9, 4);
        // More runs than are merged at a time.
        check(6_000, 7);
        check(7_000, 70_000);
    }
}
