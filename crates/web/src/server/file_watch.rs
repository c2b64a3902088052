//! Detection of file changes: of configurations and certificates.
//!
//! Invariants
//! * A change is reported only after two equal polls: an editor or a checkout may be in the middle of writing.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

/// The polling interval; a poll costs a few microseconds per file.
pub const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// The data that detects changes: identity, length and time of each file.
type FileFingerprints = Vec<Option<(u64, u64, i64, i64)>>;

/// Files that are polled for changes.
#[derive(Debug)]
pub struct FileWatch {
    files: Vec<PathBuf>,
    last_fingerprints: FileFingerprints,
    unsettled_fingerprints: Option<FileFingerprints>,
}

impl FileWatch {
    /// Starts with the current state of the files.
    pub fn new(files: Vec<PathBuf>) -> Self {
        let fingerprints = read_fingerprints(&files);
        Self { files, last_fingerprints: fingerprints, unsettled_fingerprints: None }
    }

    /// Polls the files; returns true if they differ from the accepted state, and already had the same state at the last
    /// poll.
    pub fn has_changed(&mut self) -> bool {
        let now = read_fingerprints(&self.files);
        now != self.last_fingerprints
            && self.unsettled_fingerprints.replace(now.clone()).as_ref() == Some(&now)
    }

    /// Accepts the current state of the files.
    pub fn accept_current(&mut self) {
        self.last_fingerprints = read_fingerprints(&self.files);
        self.unsettled_fingerprints = None;
    }

    /// Watches other files from now on, if the list differs.
    pub fn watch_files(&mut self, files: Vec<PathBuf>) {
        if files != self.files {
            self.files = files;
            self.accept_current();
        }
    }
}

fn read_fingerprints(files: &[PathBuf]) -> FileFingerprints {
    let read_fingerprint = |file: &PathBuf| {
        let metadata = std::fs::metadata(file).ok()?;
        Some((metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
    };
    files.iter().map(read_fingerprint).collect()
}

#[cfg(test)]
mod tests {
    use super::FileWatch;

    #[test]
    fn a_change_counts_once_it_stands() {
        let dir = tempfile::tempdir().unwrap();
        let (first_file, second_file) = (dir.path().join("one"), dir.path().join("other"));
        std::fs::write(&first_file, "1").unwrap();
        let mut watch = FileWatch::new(vec![first_file.clone(), second_file.clone()]);
        assert!(!watch.has_changed() && !watch.has_changed());
        std::fs::write(&first_file, "12").unwrap();
        assert!(!watch.has_changed(), "it may be in the middle of writing");
        std::fs::write(&first_file, "123").unwrap();
        assert!(!watch.has_changed());
        assert!(watch.has_changed());
        watch.accept_current();
        assert!(!watch.has_changed() && !watch.has_changed());
        // Creation and deletion of a file count as changes.
        std::fs::write(&second_file, "1").unwrap();
        assert!(!watch.has_changed() && watch.has_changed());
        watch.watch_files(vec![first_file]);
        std::fs::remove_file(&second_file).unwrap();
        assert!(!watch.has_changed() && !watch.has_changed());
    }
}
