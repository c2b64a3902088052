//! Noticing that files changed: those of a configuration, and certificates.
//!
//! Invariants
//! * A change counts once it stands for one look: an editor or a checkout may be in the middle of writing.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

/// How often files are compared; a look costs a few microseconds a file.
pub(super) const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// What tells whether files changed: identity, length and time of each.
type FileFingerprints = Vec<Option<(u64, u64, i64, i64)>>;

/// Files that are looked at now and then.
#[derive(Debug)]
pub(super) struct FileWatch {
    files: Vec<PathBuf>,
    last_fingerprints: FileFingerprints,
    unsettled_fingerprints: Option<FileFingerprints>,
}

impl FileWatch {
    /// Begins with the files as they are.
    pub(super) fn new(files: Vec<PathBuf>) -> Self {
        let seen = read_fingerprints(&files);
        Self { files, last_fingerprints: seen, unsettled_fingerprints: None }
    }

    /// Looks at the files; tells whether they differ from those that were seen, and did so at the last look already.
    pub(super) fn has_changed(&mut self) -> bool {
        let now = read_fingerprints(&self.files);
        now != self.last_fingerprints
            && self.unsettled_fingerprints.replace(now.clone()).as_ref() == Some(&now)
    }

    /// Takes the files as they are for those that were seen.
    pub(super) fn accept_current(&mut self) {
        self.last_fingerprints = read_fingerprints(&self.files);
        self.unsettled_fingerprints = None;
    }

    /// Looks at other files from now on, if they are others.
    pub(super) fn watch_files(&mut self, files: Vec<PathBuf>) {
        if files != self.files {
            self.files = files;
            self.accept_current();
        }
    }
}

fn read_fingerprints(files: &[PathBuf]) -> FileFingerprints {
    let one = |file: &PathBuf| {
        let metadata = std::fs::metadata(file).ok()?;
        Some((metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
    };
    files.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::FileWatch;

    #[test]
    fn a_change_counts_once_it_stands() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (dir.path().join("one"), dir.path().join("other"));
        std::fs::write(&one, "1").unwrap();
        let mut watch = FileWatch::new(vec![one.clone(), other.clone()]);
        assert!(!watch.has_changed() && !watch.has_changed());
        std::fs::write(&one, "12").unwrap();
        assert!(!watch.has_changed(), "it may be in the middle of writing");
        std::fs::write(&one, "123").unwrap();
        assert!(!watch.has_changed());
        assert!(watch.has_changed());
        watch.accept_current();
        assert!(!watch.has_changed() && !watch.has_changed());
        // A file that comes or goes is a change as well.
        std::fs::write(&other, "1").unwrap();
        assert!(!watch.has_changed() && watch.has_changed());
        watch.watch_files(vec![one]);
        std::fs::remove_file(&other).unwrap();
        assert!(!watch.has_changed() && !watch.has_changed());
    }
}
