//! Watches a log file for new lines that tell of errors.
//!
//! In: a file before a load begins. Out: [`Errors`], the lines that were added to it since, as [`Logged`] beside the goals
//! of the run.
//!
//! A file that was replaced or cut meanwhile is read from its start. At the end of a watch, a line that is still being
//! written counts with what is there of it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::bytes::Regex;

use crate::goal::Judged;
use crate::{Error, Result};

/// Most lines that are kept of a log; further ones are counted.
pub const MOST_LINES: usize = 100;
/// Longest part of a line that is kept, in letters.
const LONGEST_LINE: usize = 1000;

/// Where a log ended when it was last looked at.
#[derive(Debug)]
pub struct Watch {
    path: PathBuf,
    pattern: Regex,
    inode: u64,
    length: u64,
}

/// Lines that tell of errors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Errors {
    /// How many there are.
    pub count: u64,
    /// The first of them, at most [`MOST_LINES`].
    pub lines: Vec<String>,
}

impl Errors {
    fn add(&mut self, line: &[u8]) {
        self.count += 1;
        if self.lines.len() < MOST_LINES {
            let text = String::from_utf8_lossy(line);
            // What a visitor sent may stand in a log, and must not steer the terminal.
            let letters = text.chars().filter(|letter| !letter.is_control() || *letter == '\t');
            self.lines.push(letters.take(LONGEST_LINE).collect());
        }
    }
}

/// What was written to a log while a load ran.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Logged {
    /// The log.
    pub file: String,
    /// Lines that tell of errors.
    pub errors: Errors,
    /// Why the log could not be read, if it could not: what was logged is not known then.
    pub unread: Option<String>,
}

impl Logged {
    /// Returns the goal that nothing is logged as an error, judged.
    #[must_use]
    pub fn judged(&self) -> Judged {
        let measured = match (&self.unread, self.errors.count) {
            (Some(reason), _) => format!("not known: {reason}"),
            (None, 1) => "1 line".to_owned(),
            (None, count) => format!("{count} lines"),
        };
        Judged {
            label: self.file.clone(),
            wanted: "no new lines of errors".to_owned(),
            measured,
            is_met: self.unread.is_none() && self.errors.count == 0,
        }
    }

    /// Returns what the log tells, line by line, for people.
    pub fn told(&self) -> impl Iterator<Item = String> {
        let more = self.errors.count.saturating_sub(self.errors.lines.len() as u64);
        let lines = self.errors.lines.iter();
        let lines = lines.map(|line| format!("ERROR LOGGED {}: {line}", self.file));
        let unread = self.unread.iter().map(|reason| format!("LOG NOT READ {reason}"));
        let more = (more > 0).then(|| format!("ERROR LOGGED {}: {more} more lines", self.file));
        lines.chain(more).chain(unread)
    }

    /// Returns the same for machines.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "file": self.file,
            "count": self.errors.count,
            "lines": self.errors.lines,
            "unread": self.unread,
        })
    }
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

    /// Returns the log.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the lines that came since, were added to the file, and tell of errors.
    ///
    /// # Errors
    /// [`Error::File`], also for a file that is not there: what was logged is not known then.
    pub fn errors(&self) -> Result<Errors> {
        self.read(End::IsThere).map(|(errors, _)| errors)
    }

    /// Returns what [`Watch::errors`] does of lines that are complete, and watches from there on.
    ///
    /// # Errors
    /// As [`Watch::errors`].
    pub fn take_errors(&mut self) -> Result<Errors> {
        let (errors, (inode, length)) = self.read(End::MayGrow)?;
        (self.inode, self.length) = (inode, length);
        Ok(errors)
    }

    /// Returns the errors, and up to where the file was read.
    fn read(&self, end: End) -> Result<(Errors, (u64, u64))> {
        let lost = |error| Error::read(&self.path, error);
        let mut file = File::open(&self.path).map_err(lost)?;
        let data = file.metadata().map_err(lost)?;
        let is_same = data.ino() == self.inode && data.len() >= self.length;
        let mut at = if is_same { self.length } else { 0 };
        file.seek(SeekFrom::Start(at)).map_err(lost)?;
        let mut reader = BufReader::new(file);
        let mut found = Errors::default();
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = reader.read_until(b'\n', &mut line).map_err(lost)?;
            let is_whole = line.ends_with(b"\n");
            if read == 0 || (end == End::MayGrow && !is_whole) {
                return Ok((found, (data.ino(), at)));
            }
            at += read as u64;
            let plain = without_colors(line.trim_ascii_end());
            if self.pattern.is_match(&plain) {
                found.add(&plain);
            }
        }
    }
}

/// What a last line without a line break is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// A line that counts.
    IsThere,
    /// The beginning of one that is looked at later.
    MayGrow,
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
        assert_eq!(watch.errors().unwrap(), Errors::default());
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"*INFO* GET /error.html\n21.11.2026 *ERROR* [qtp] new\n").unwrap();
        file.write_all(
            b"2026-11-21T00:00:00Z \x1b[31mERROR\x1b[0m store: lost\n{\"level\":\"ERROR\"}\n",
        )
        .unwrap();
        let found = watch.errors().unwrap().lines;
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(found[1], "2026-11-21T00:00:00Z ERROR store: lost");
    }

    #[test]
    fn a_file_that_was_replaced_is_read_from_its_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("error.log");
        let none = Watch::begin(&path, None).unwrap();
        std::fs::write(&path, "ERROR one\nmore\n").unwrap();
        assert_eq!(none.errors().unwrap().lines, ["ERROR one"]);
        let watch = Watch::begin(&path, Some("lost \\d+")).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(watch.errors(), Err(Error::File { .. })));
        std::fs::write(&path, "lost 7\n").unwrap();
        assert_eq!(watch.errors().unwrap().lines, ["lost 7"]);
        assert!(Watch::begin(&path, Some("(")).is_err());
    }

    #[test]
    fn each_line_is_taken_once_and_only_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("error.log");
        let mut watch = Watch::begin(&path, None).unwrap();
        let mut file = File::create(&path).unwrap();
        file.write_all(b"ERROR one\nERROR t").unwrap();
        assert_eq!(watch.take_errors().unwrap().lines, ["ERROR one"]);
        assert_eq!(watch.take_errors().unwrap(), Errors::default());
        file.write_all(b"wo\n").unwrap();
        assert_eq!(watch.take_errors().unwrap().lines, ["ERROR two"]);
        file.write_all(b"ERROR three").unwrap();
        assert_eq!(watch.errors().unwrap().lines, ["ERROR three"]);
    }

    #[test]
    fn of_many_lines_the_first_are_kept_and_all_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("error.log");
        let watch = Watch::begin(&path, None).unwrap();
        std::fs::write(&path, format!("ERROR {}\n", "x".repeat(5000)).repeat(250)).unwrap();
        let errors = watch.errors().unwrap();
        assert_eq!((errors.count, errors.lines.len()), (250, MOST_LINES));
        assert_eq!(errors.lines[0].len(), LONGEST_LINE);
        let logged = Logged { file: "a.log".to_owned(), errors, unread: None };
        let told: Vec<String> = logged.told().collect();
        assert_eq!(told.len(), MOST_LINES + 1);
        assert_eq!(told[MOST_LINES], "ERROR LOGGED a.log: 150 more lines");
        let judged = logged.judged();
        assert_eq!((judged.measured.as_str(), judged.is_met), ("250 lines", false));
    }

    #[test]
    fn a_log_that_cannot_be_read_meets_no_goal() {
        let logged = Logged {
            file: "a.log".to_owned(),
            unread: Some("cannot read `a.log`".to_owned()),
            ..Logged::default()
        };
        assert!(!logged.judged().is_met);
        assert_eq!(logged.told().collect::<Vec<_>>(), ["LOG NOT READ cannot read `a.log`"]);
        assert!(Logged::default().judged().is_met);
    }
}
