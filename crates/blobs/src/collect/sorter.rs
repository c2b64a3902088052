//! Sorting more blob ids than memory should hold: sorted runs in temporary files, merged while they are read.
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

use crate::{Error, Listed, Result};

/// Digest, length, and time in microseconds, each in the order in which bytes compare as the values do.
const RECORD_BYTES: usize = 48;
/// Records that are sorted in memory: 3 MiB.
const RUN_RECORDS: usize = 64 * 1024;
/// Runs that are merged at a time.
const MAX_RUNS: usize = 64;
/// Bytes of each run that are read ahead.
const READ_AHEAD: usize = 64 * 1024;

type Record = [u8; RECORD_BYTES];

/// Takes ids in any order.
#[derive(Debug)]
pub struct Sorter {
    scratch: PathBuf,
    buffer: Vec<Record>,
    runs: Vec<File>,
    run_records: usize,
}

impl Sorter {
    /// Makes one whose files lie in the folder `scratch`, which exists.
    #[must_use]
    pub fn new(scratch: &Path) -> Self {
        Self::with_runs_of(scratch, RUN_RECORDS)
    }

    fn with_runs_of(scratch: &Path, run_records: usize) -> Self {
        Self { scratch: scratch.to_owned(), buffer: Vec::new(), runs: Vec::new(), run_records }
    }

    /// Adds an id with its time.
    ///
    /// # Errors
    /// If the temporary files cannot be written.
    pub fn add(&mut self, listed: &Listed) -> Result<()> {
        self.buffer.push(encode(listed));
        if self.buffer.len() < self.run_records {
            return Ok(());
        }
        self.end_run()?;
        if self.runs.len() < MAX_RUNS {
            return Ok(());
        }
        let merged = Merge::of(std::mem::take(&mut self.runs)).map_err(self.failed("read"))?;
        let one = self.write_run(merged)?;
        self.runs.push(one);
        Ok(())
    }

    /// Adds an id whose time does not matter.
    ///
    /// # Errors
    /// If the temporary files cannot be written.
    pub fn add_id(&mut self, id: &BlobId) -> Result<()> {
        self.add(&Listed { id: *id, modified: UNIX_EPOCH })
    }

    /// Returns everything that was added, in ascending order; what was added twice comes twice.
    ///
    /// # Errors
    /// If the temporary files cannot be written or read.
    pub fn finish(mut self) -> Result<Sorted> {
        if self.runs.is_empty() {
            self.buffer.sort_unstable();
            let merge =
                Merge { memory: std::mem::take(&mut self.buffer).into_iter(), ..Merge::default() };
            return Ok(Sorted { merge, scratch: self.scratch });
        }
        if !self.buffer.is_empty() {
            self.end_run()?;
        }
        self.buffer = Vec::new();
        let merge = Merge::of(std::mem::take(&mut self.runs)).map_err(self.failed("read"))?;
        Ok(Sorted { merge, scratch: self.scratch })
    }

    fn end_run(&mut self) -> Result<()> {
        self.buffer.sort_unstable();
        let records = std::mem::take(&mut self.buffer);
        let run = self.write_run(records.iter().copied().map(Ok))?;
        self.runs.push(run);
        // The room is used again.
        self.buffer = records;
        self.buffer.clear();
        Ok(())
    }

    fn write_run(&self, records: impl Iterator<Item = std::io::Result<Record>>) -> Result<File> {
        let write = || -> std::io::Result<File> {
            let mut out =
                BufWriter::with_capacity(READ_AHEAD, tempfile::tempfile_in(&self.scratch)?);
            for record in records {
                out.write_all(&record?)?;
            }
            out.into_inner().map_err(std::io::IntoInnerError::into_error)
        };
        write().map_err(self.failed("write a file in"))
    }

    fn failed(&self, action: &'static str) -> impl FnOnce(std::io::Error) -> Error + use<> {
        let path = self.scratch.clone();
        move |source| Error::Disk { action, path, source }
    }
}

/// Ids in ascending order.
#[derive(Debug)]
pub struct Sorted {
    merge: Merge,
    scratch: PathBuf,
}

impl Iterator for Sorted {
    type Item = Result<Listed>;

    fn next(&mut self) -> Option<Self::Item> {
        let path = || self.scratch.clone();
        let failed = |source| Error::Disk { action: "read a file in", path: path(), source };
        Some(self.merge.next()?.map(|record| decode(&record)).map_err(failed))
    }
}

/// Merges sorted runs.
#[derive(Debug, Default)]
struct Merge {
    /// The only run, if it fits into memory.
    memory: std::vec::IntoIter<Record>,
    runs: Vec<BufReader<File>>,
    /// The next record of each run.
    heads: BinaryHeap<Reverse<(Record, usize)>>,
}

impl Merge {
    fn of(files: Vec<File>) -> std::io::Result<Self> {
        let mut merge = Self::default();
        for mut file in files {
            file.seek(SeekFrom::Start(0))?;
            let mut run = BufReader::with_capacity(READ_AHEAD, file);
            if let Some(first) = read_record(&mut run)? {
                merge.heads.push(Reverse((first, merge.runs.len())));
                merge.runs.push(run);
            }
        }
        Ok(merge)
    }
}

impl Iterator for Merge {
    type Item = std::io::Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(record) = self.memory.next() {
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

/// Reads a record; nothing at the end.
fn read_record(run: &mut impl Read) -> std::io::Result<Option<Record>> {
    let mut record = [0; RECORD_BYTES];
    match run.read_exact(&mut record) {
        Ok(()) => Ok(Some(record)),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn encode(listed: &Listed) -> Record {
    let mut record = [0; RECORD_BYTES];
    let micros = micros_of(listed.modified);
    let bytes = listed.id.digest().iter().copied();
    let bytes = bytes.chain(listed.id.length().to_be_bytes()).chain(micros.to_be_bytes());
    record.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
    record
}

fn decode(record: &Record) -> Listed {
    let (digest, rest) = record.split_first_chunk::<32>().unwrap_or((&[0; 32], &[]));
    let (length, micros) = rest.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
    let micros = micros.first_chunk::<8>().copied().unwrap_or_default();
    let id = BlobId::new(*digest, u64::from_be_bytes(*length));
    Listed { id, modified: time_of(u64::from_be_bytes(micros)) }
}

/// Returns a time in microseconds since 1970; what is before counts as then.
pub(super) fn micros_of(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the time of a number of microseconds since 1970.
pub(super) fn time_of(micros: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_micros(micros)).unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(number: u32) -> Listed {
        // Scattered, and some twice.
        let id = BlobId::of(&(number % 5_000).to_le_bytes());
        Listed { id, modified: UNIX_EPOCH + Duration::from_micros(u64::from(number)) }
    }

    fn check(count: u32, run_records: usize) {
        let dir = tempfile::tempdir().unwrap();
        let mut sorter = Sorter::with_runs_of(dir.path(), run_records);
        let mut model: Vec<Listed> = (0..count).map(listed).collect();
        model.iter().for_each(|one| sorter.add(one).unwrap());
        model.sort_by_key(|one| (one.id, one.modified));
        let sorted: Vec<Listed> = sorter.finish().unwrap().map(Result::unwrap).collect();
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
