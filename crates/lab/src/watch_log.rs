//! Watches a log file for new lines that tell of errors.
//!
//! A file that was replaced or cut meanwhile is read from its start. A line that is still being written counts with what
//! is there of it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::bytes::Regex;

use crate::{Error, Result};

/// Where a log ended when the watch began.
#[derive(Debug)]
pub struct Watch {
    path: PathBuf,
    pattern: Regex,
    inode: u64,
    length: u64,
}

/// Level words where loggers put them, and what a panic begins with.
const ERRORS: &str =
    r#"(?:^|[\s\[*"=<(])(?:ERROR|FATAL|SEVERE|CRITICAL)(?:[\s\]*":>)]|$)|panicked at"#;

impl Watch {
    /// Begins to watch; lines that `pattern` matches count, or lines of the usual levels.
    ///
    /// # Errors
    /// [`Error::Input`] for a pattern that does not read; [`Error::File`] unless the file is readable or not there yet.
    pub fn begin(path: &Path, pattern: Option<&str>) -> Result<Self> {
        let pattern = Regex::new(pattern.unwrap_or(ERRORS))
            .map_err(|error| Error::Input(format!("the pattern does not read: {error}")))?;
        let (inode, length) = match path.metadata() {
            Ok(data) => (data.ino(), data.len()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => (0, 0),
            Err(error) => return Err(Error::read(path, error)),
        };
        Ok(Self { path: path.to_owned(), pattern, inode, length })
    }

    /// Returns the lines that came since, were added to the file, and tell of errors.
    ///
    /// # Errors
    /// [`Error::File`], also for a file that is not there: what was logged is not known then.
    pub fn errors(&self) -> Result<Vec<String>> {
        let lost = |error| Error::read(&self.path, error);
        let mut file = File::open(&self.path).map_err(lost)?;
        let data = file.metadata().map_err(lost)?;
        let is_same = data.ino() == self.inode && data.len() >= self.length;
        file.seek(SeekFrom::Start(if is_same { self.length } else { 0 })).map_err(lost)?;
        let mut reader = BufReader::new(file);
        let mut found = Vec::new();
        let mut line = Vec::new();
        loop {
            line.clear();
            if reader.read_until(b'\n', &mut line).map_err(lost)? == 0 {
                return Ok(found);
            }
            let plain = without_colors(line.trim_ascii_end());
            if self.pattern.is_match(&plain) {
                found.push(String::from_utf8_lossy(&plain).into_owned());
            }
        }
    }
}

/// Returns a line without the sequences by which terminals show colors.
fn without_colors(line: &[u8]) -> std::borrow::Cow<'_, [u8]> {
    #[expect(clippy::expect_used, reason = "the pattern is a constant")]
    static COLOR: LazyLock<Regex> =
        LazyLock::new(|| Regex::new("\x1b\\[[0-9;]*m").expect("the pattern reads"));
    COLOR.replace_all(line, &b""[..])
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn only_new_lines_of_errors_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("error.log");
        std::fs::write(&path, "21.11.2026 *ERROR* old\n").unwrap();
        let watch = Watch::begin(&path, None).unwrap();
        assert!(watch.errors().unwrap().is_empty());
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"*INFO* GET /error.html\n21.11.2026 *ERROR* [qtp] new\n").unwrap();
        file.write_all(
            b"2026-11-21T00:00:00Z \x1b[31mERROR\x1b[0m store: lost\n{\"level\":\"ERROR\"}\n",
        )
        .unwrap();
        let found = watch.errors().unwrap();
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(found[1], "2026-11-21T00:00:00Z ERROR store: lost");
    }

    #[test]
    fn a_file_that_was_replaced_is_read_from_its_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("error.log");
        let none = Watch::begin(&path, None).unwrap();
        std::fs::write(&path, "ERROR one\nmore\n").unwrap();
        assert_eq!(none.errors().unwrap(), ["ERROR one"]);
        let watch = Watch::begin(&path, Some("lost \\d+")).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(watch.errors(), Err(Error::File { .. })));
        std::fs::write(&path, "lost 7\n").unwrap();
        assert_eq!(watch.errors().unwrap(), ["lost 7"]);
        assert!(Watch::begin(&path, Some("(")).is_err());
    }
}
