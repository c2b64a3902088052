//! Checks whether a part of a file is in the page cache, and loads it, so that the sender does not wait for a disk.
//!
//! A thread that serves many connections blocks all of them while `sendfile` reads from a disk. Frequently requested
//! files are in the page cache, and the check costs a fraction of a microsecond.

use std::fs::File;
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// Size of the parts in which files are read into memory.
const READ_PART_BYTES: usize = 64 * 1024;

/// Returns true if reading a non-empty part of a file would wait for the disk. It checks the last byte and one byte in
/// each range of 64 KiB: the kernel mostly reads ahead and evicts in longer ranges, but a file that was read in pieces
/// may have gaps between them. If a file system does not support the check, the result is false.
///
/// Source: `preadv2(2)`, `RWF_NOWAIT`.
pub(crate) fn would_block_on_disk(file: &File, start: u64, length: u64) -> bool {
    let is_absent = |at: u64| {
        let mut byte = [0];
        let read = preadv2(file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT);
        read == Err(Errno::AGAIN)
    };
    let last = start.saturating_add(length.saturating_sub(1));
    (start..last).step_by(READ_PART_BYTES).any(is_absent) || is_absent(last)
}

/// Reads a part of a file into the page cache, on a blocking thread. Read errors are left to the sender.
pub(crate) async fn load_into_page_cache(file: Arc<File>, start: u64, length: u64) {
    let read = move || {
        let mut part = vec![0; READ_PART_BYTES];
        let (mut at, end) = (start, start.saturating_add(length));
        while at < end {
            let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(READ_PART_BYTES);
            match part.get_mut(..most).map(|part| file.read_at(part, at)) {
                Some(Ok(count)) if count > 0 => at += count as u64,
                _ => break,
            }
        }
    };
    // It ends early only if the runtime does.
    tokio::task::spawn_blocking(read).await.ok();
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;
    use std::num::NonZeroU64;
    use std::path::{Path, PathBuf};

    use rustix::fs::{Advice, fadvise};

    use super::*;

    /// The length of the files; `shortcut` sends no longer ones this way.
    const LENGTH: u64 = 256 * 1024;

    fn forgotten_in(folder: &Path, from: u64, count: u64) -> Arc<File> {
        let mut file = tempfile::tempfile_in(folder).unwrap();
        // Page by page: the kernel evicts data that was written at once as a whole.
        for _ in 0..LENGTH / 4096 {
            file.write_all(&[7; 4096]).unwrap();
        }
        file.sync_all().unwrap();
        fadvise(&file, from, NonZeroU64::new(count), Advice::DontNeed).unwrap();
        Arc::new(file)
    }

    /// Returns a folder whose files the kernel evicts on request, and reports as evicted. Files below `/tmp` may exist
    /// only in memory; the program file is on a disk, but perhaps on a file system that cannot report it.
    fn folder(from: u64, count: u64) -> Option<PathBuf> {
        let program = std::env::current_exe().unwrap();
        let folders = [std::env::temp_dir(), program.parent().unwrap().to_owned()];
        // Use a separate file, because the check may make the kernel read.
        folders.into_iter().find(|folder| {
            let (file, mut byte) = (forgotten_in(folder, from, count), [0]);
            let bytes = &mut [IoSliceMut::new(&mut byte)];
            preadv2(&file, bytes, from, ReadWriteFlags::NOWAIT) == Err(Errno::AGAIN)
        })
    }

    /// Returns a file of which a part was evicted from the page cache; only if [`is_forgotten`] holds.
    pub(crate) fn forgotten(from: u64, count: u64) -> Arc<File> {
        forgotten_in(&folder(from, count).unwrap(), from, count)
    }

    /// Returns true if such a part can be evicted in some folder.
    pub(crate) fn is_forgotten(from: u64, count: u64) -> bool {
        let is_forgotten = folder(from, count).is_some();
        if !is_forgotten {
            eprintln!("skipped: no file system forgets what it is told to, or none can tell");
        }
        is_forgotten
    }

    #[tokio::test]
    async fn a_part_that_was_loaded_is_sent_without_waiting() {
        if !is_forgotten(0, LENGTH) {
            return;
        }
        assert!(would_block_on_disk(&forgotten(0, LENGTH), LENGTH - 1, 1));
        let file = forgotten(0, LENGTH);
        assert!(would_block_on_disk(&file, 0, LENGTH));
        load_into_page_cache(Arc::clone(&file), 0, LENGTH).await;
        assert!(!would_block_on_disk(&file, 0, LENGTH));
        assert!(!would_block_on_disk(&file, LENGTH - 1, 1));
    }

    #[test]
    fn a_hole_between_what_is_in_memory_is_found() {
        let part = READ_PART_BYTES as u64;
        for from in [part, 2 * part] {
            if !is_forgotten(from, part) {
                return;
            }
            assert!(would_block_on_disk(&forgotten(from, part), 0, LENGTH), "{from}");
            assert!(would_block_on_disk(&forgotten(from, part), 5, LENGTH - 5), "{from}");
            let file = forgotten(from, part);
            assert!(
                !would_block_on_disk(&file, 0, part) && !would_block_on_disk(&file, 3 * part, part),
                "{from}"
            );
        }
    }

    #[tokio::test]
    async fn a_file_shorter_than_its_part_is_loaded_as_far_as_it_goes() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"short").unwrap();
        let file = Arc::new(file);
        load_into_page_cache(Arc::clone(&file), 2, 1 << 40).await;
        assert!(!would_block_on_disk(&file, 0, 5));
        // There is nothing to wait for beyond the end.
        assert!(!would_block_on_disk(&file, 0, LENGTH));
    }
}
