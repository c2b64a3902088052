//! Two files that name URLs before their rows are stored, so that a killed process leaves no URL unknown.
//!
//! A line is a URL. It is written to the kernel before the response is sent, and never synced: the kernel's buffers
//! survive the process. When storing a batch of rows begins, lines go to the other file; when it is stored, the first
//! file is emptied.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::ledger_error::{LedgerError, LedgerResult};

const JOURNAL_FILE_NAMES: [&str; 2] = ["ledger-0.urls", "ledger-1.urls"];

/// The two files.
#[derive(Debug)]
pub(super) struct LedgerJournal {
    files: [File; 2],
    paths: [PathBuf; 2],
    current_file: usize,
    /// True if the last line of a file may be truncated because the disk was full.
    is_maybe_truncated: [bool; 2],
}

impl LedgerJournal {
    /// Opens the files and returns the URLs they name.
    pub(super) fn open(folder: &Path) -> LedgerResult<(Self, Vec<String>)> {
        let paths = JOURNAL_FILE_NAMES.map(|name| folder.join(name));
        let mut urls = Vec::new();
        for path in &paths {
            match std::fs::read(path) {
                Ok(bytes) => {
                    let text = String::from_utf8_lossy(&bytes);
                    // A line without its end was truncated by a kill during the write, before its response was sent;
                    // including it does no harm.
                    urls.extend(text.lines().filter(|url| !url.is_empty()).map(str::to_owned));
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => return Err(LedgerError::JournalFile { file: path.clone(), source }),
            }
        }
        let open = |path: &PathBuf| {
            let file = File::options().append(true).create(true).mode(0o600).open(path);
            file.map_err(|source| LedgerError::JournalFile { file: path.clone(), source })
        };
        let [first, second] = &paths;
        let files = [open(first)?, open(second)?];
        // Terminating a truncated line once more does no harm, either.
        Ok((Self { files, paths, current_file: 0, is_maybe_truncated: [true; 2] }, urls))
    }

    /// Appends a line.
    pub(super) fn append_url(&mut self, url: &str) -> std::io::Result<()> {
        // No requested URL contains a line break, but one from another source must not become two lines.
        let mut line = url.replace(['\n', '\r'], "%0A");
        line.push('\n');
        let (Some(file), Some(is_torn)) = (
            self.files.get_mut(self.current_file),
            self.is_maybe_truncated.get_mut(self.current_file),
        ) else {
            return Ok(());
        };
        if *is_torn {
            // Appended to a partial line, this one would not be found.
            line.insert(0, '\n');
        }
        let written = file.write_all(line.as_bytes());
        *is_torn = written.is_err();
        written
    }

    /// Switches to the other file; returns the one to empty when its URLs are stored.
    pub(super) fn rotate(&mut self) -> usize {
        let before = self.current_file;
        self.current_file = 1 - self.current_file;
        before
    }

    /// Empties a file.
    pub(super) fn clear_file(&mut self, which: usize) {
        if let (Some(file), Some(path)) = (self.files.get(which), self.paths.get(which))
            && let Err(error) = file.set_len(0)
        {
            // At the next start its URLs count as doubtful, which costs renderings and does no harm.
            tracing::warn!(file = %path.display(), error = %error, "cannot empty a file of the ledger");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_behind_one_that_was_cut_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = LedgerJournal::open(folder.path()).unwrap();
        journal.append_url("/a.html").unwrap();
        let whole = journal.files[0].try_clone().unwrap();
        journal.files[0] = File::options().write(true).open("/dev/full").unwrap();
        journal.append_url("/cut.html").unwrap_err();
        journal.files[0] = whole;
        // The partial line that a full disk accepted.
        journal.files[0].write_all(b"/cut").unwrap();
        journal.append_url("/b.html").unwrap();
        journal.append_url("/c.html").unwrap();
        // A process killed during a write leaves a partial line, too.
        journal.files[0].write_all(b"/kil").unwrap();
        let (mut journal, _) = LedgerJournal::open(folder.path()).unwrap();
        journal.append_url("/d.html").unwrap();
        let (_, urls) = LedgerJournal::open(folder.path()).unwrap();
        assert_eq!(urls, ["/a.html", "/cut", "/b.html", "/c.html", "/kil", "/d.html"]);
    }

    #[test]
    fn names_what_was_added_and_not_emptied() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, urls) = LedgerJournal::open(folder.path()).unwrap();
        assert!(urls.is_empty());
        journal.append_url("/a.html").unwrap();
        let behind = journal.rotate();
        journal.append_url("/b\n.html").unwrap();
        let (_, urls) = LedgerJournal::open(folder.path()).unwrap();
        assert_eq!(urls, ["/a.html", "/b%0A.html"]);
        journal.clear_file(behind);
        let (_, urls) = LedgerJournal::open(folder.path()).unwrap();
        assert_eq!(urls, ["/b%0A.html"]);
    }
}
