//! Two files that name URLs before their rows are stored, so that a killed process leaves none unknown.
//!
//! A line is a URL. It is handed to the kernel before the response goes out and never synced: what the kernel has
//! survives the process. When a batch of rows begins to be stored, lines go on in the other file; when it is stored, the
//! file behind it is emptied.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::{Error, Result};

const NAMES: [&str; 2] = ["ledger-0.urls", "ledger-1.urls"];

/// The two files.
#[derive(Debug)]
pub(super) struct Journal {
    files: [File; 2],
    paths: [PathBuf; 2],
    current: usize,
    /// Whether the last line of a file may be without its end, as the disk was full.
    is_torn: [bool; 2],
}

impl Journal {
    /// Opens the files and returns the URLs they name.
    pub(super) fn open(folder: &Path) -> Result<(Self, Vec<String>)> {
        let paths = NAMES.map(|name| folder.join(name));
        let mut urls = Vec::new();
        for path in &paths {
            match std::fs::read(path) {
                Ok(bytes) => {
                    let text = String::from_utf8_lossy(&bytes);
                    // A line without its end was cut by a kill within the call, before its response went out; it does no
                    // harm to have it.
                    urls.extend(text.lines().filter(|url| !url.is_empty()).map(str::to_owned));
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => return Err(Error::Journal { file: path.clone(), source }),
            }
        }
        let open = |path: &PathBuf| {
            let file = File::options().append(true).create(true).mode(0o600).open(path);
            file.map_err(|source| Error::Journal { file: path.clone(), source })
        };
        let [first, second] = &paths;
        let files = [open(first)?, open(second)?];
        // Nor does it to have a kill's line ended once more.
        Ok((Self { files, paths, current: 0, is_torn: [true; 2] }, urls))
    }

    /// Adds a line.
    pub(super) fn add(&mut self, url: &str) -> std::io::Result<()> {
        // No URL of a request holds a line break, but one from elsewhere must not make two of it.
        let mut line = url.replace(['\n', '\r'], "%0A");
        line.push('\n');
        let (Some(file), Some(is_torn)) =
            (self.files.get_mut(self.current), self.is_torn.get_mut(self.current))
        else {
            return Ok(());
        };
        if *is_torn {
            // Behind a part of another line this one would not be found.
            line.insert(0, '\n');
        }
        let written = file.write_all(line.as_bytes());
        *is_torn = written.is_err();
        written
    }

    /// Goes on in the other file; returns which one to empty when what it names is stored.
    pub(super) fn turn(&mut self) -> usize {
        let before = self.current;
        self.current = 1 - self.current;
        before
    }

    /// Empties a file.
    pub(super) fn empty(&mut self, which: usize) {
        if let (Some(file), Some(path)) = (self.files.get(which), self.paths.get(which))
            && let Err(error) = file.set_len(0)
        {
            // Its URLs are taken for uncertain at the next start, which costs drawings and harms nobody.
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
        let (mut journal, _) = Journal::open(folder.path()).unwrap();
        journal.add("/a.html").unwrap();
        let whole = journal.files[0].try_clone().unwrap();
        journal.files[0] = File::options().write(true).open("/dev/full").unwrap();
        journal.add("/cut.html").unwrap_err();
        journal.files[0] = whole;
        // What a full disk had taken of it.
        journal.files[0].write_all(b"/cut").unwrap();
        journal.add("/b.html").unwrap();
        journal.add("/c.html").unwrap();
        // A process that was killed within a line left one, too.
        journal.files[0].write_all(b"/kil").unwrap();
        let (mut journal, _) = Journal::open(folder.path()).unwrap();
        journal.add("/d.html").unwrap();
        let (_, urls) = Journal::open(folder.path()).unwrap();
        assert_eq!(urls, ["/a.html", "/cut", "/b.html", "/c.html", "/kil", "/d.html"]);
    }

    #[test]
    fn names_what_was_added_and_not_emptied() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, urls) = Journal::open(folder.path()).unwrap();
        assert!(urls.is_empty());
        journal.add("/a.html").unwrap();
        let behind = journal.turn();
        journal.add("/b\n.html").unwrap();
        let (_, urls) = Journal::open(folder.path()).unwrap();
        assert_eq!(urls, ["/a.html", "/b%0A.html"]);
        journal.empty(behind);
        let (_, urls) = Journal::open(folder.path()).unwrap();
        assert_eq!(urls, ["/b%0A.html"]);
    }
}
