//! Whether a part of a file is in memory, and how it gets there, so that who sends it does not wait for a disk.
//!
//! A thread that serves many connections holds all of them up while `sendfile` reads from a disk. What is asked for often is
//! in the page cache, and asking whether it is costs a fraction of a microsecond.

use std::fs::File;
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// Files are read into memory in parts of so many bytes.
const PART_BYTES: usize = 64 * 1024;

/// Tells whether reading a part of a file, which is not empty, would wait for the disk. It looks at the first and at the
/// last byte: the kernel reads ahead and forgets in stretches much longer than what is sent in one go. Where a file system
/// cannot tell, nothing waits.
///
/// Source: `preadv2(2)`, `RWF_NOWAIT`.
pub(crate) fn would_wait(file: &File, start: u64, length: u64) -> bool {
    let is_absent = |at: u64| {
        let mut byte = [0];
        let read = preadv2(file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT);
        read == Err(Errno::AGAIN)
    };
    is_absent(start) || (length > 1 && is_absent(start.saturating_add(length - 1)))
}

/// Reads a part of a file into the page cache, on a thread that may wait. What cannot be read is left for the one who
/// sends it to find.
pub(crate) async fn load(file: Arc<File>, start: u64, length: u64) {
    let read = move || {
        let mut part = vec![0; PART_BYTES];
        let (mut at, end) = (start, start.saturating_add(length));
        while at < end {
            let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(PART_BYTES);
            match part.get_mut(..most).map(|part| file.read_at(part, at)) {
                Some(Ok(count)) if count > 0 => at += count as u64,
                _ => break,
            }
        }
    };
    // It ends early only when the runtime does.
    tokio::task::spawn_blocking(read).await.ok();
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::fs::{Advice, fadvise};

    use super::*;

    fn forgotten(bytes: &[u8]) -> Arc<File> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        Arc::new(file)
    }

    #[tokio::test]
    async fn a_part_that_was_loaded_is_sent_without_waiting() {
        let length = 3 * PART_BYTES as u64 + 5;
        let file = forgotten(&vec![7; usize::try_from(length).unwrap()]);
        // Whether the kernel forgot depends on the file system; that it has what was just read does not.
        load(Arc::clone(&file), 0, length).await;
        assert!(!would_wait(&file, 0, length));
        assert!(!would_wait(&file, length - 1, 1));
    }

    #[tokio::test]
    async fn a_file_shorter_than_its_part_is_loaded_as_far_as_it_goes() {
        let file = forgotten(b"short");
        load(Arc::clone(&file), 2, 1 << 40).await;
        assert!(!would_wait(&file, 0, 5));
        // Behind the end there is nothing to wait for.
        assert!(!would_wait(&file, 0, 1 << 40));
    }
}
