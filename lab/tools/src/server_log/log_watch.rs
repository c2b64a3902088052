//! Watches a log file for new lines that report errors.
//!
//! In: a file before a load begins. Out: [`LogErrors`], the lines that were added to it since, as `LogWatchResult`
//! beside the goals of the run.
//!
//! A file that was replaced or truncated in the meantime is read from its start. At the end of a watch, an incomplete
//! last line counts with the part that is present.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::bytes::Regex;
use tympan_lab_engine::measurement::log_watch_result::LogErrors;

use crate::{Error, Result};

/// The position in a log at the last check.
#[derive(Debug)]
pub struct LogWatch {
    path: PathBuf,
    pattern: Regex,
    inode: u64,
    read_length: u64,
}

/// Level names at the position that loggers use, and the beginning of a panic message.
const ERROR_LINE_PATTERN: &str =
    r#"(?:^|[\s\[*"=<(])(?:ERROR|FATAL|SEVERE|CRITICAL)(?:[\s\]*":>)]|$)|panicked at"#;

impl LogWatch {
    /// Starts a watch; counts lines that match `pattern`, or by default lines of the usual error levels.
    ///
    /// # Errors
    /// [`Error::UnusableInput`] for an invalid pattern; [`Error::FileAccess`] unless the file is readable or does not
    /// exist yet.
    pub fn start(path: &Path, pattern: Option<&str>) -> Result<Self> {
        let pattern = Regex::new(pattern.unwrap_or(ERROR_LINE_PATTERN))
            .map_err(|error| Error::UnusableInput(format!("invalid pattern: {error}")))?;
        let (inode, length) = match path.metadata() {
            Ok(data) => (data.ino(), data.len()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => (0, 0),
            Err(error) => return Err(Error::read_failed(path, error)),
        };
        Ok(Self { path: path.to_owned(), pattern, inode, read_length: length })
    }

    /// Returns the path of the log.
    #[must_use]
    pub fn log_path(&self) -> &Path {
        &self.path
    }

    /// Returns the error lines that were added to the file since the last position.
    ///
    /// # Errors
    /// [`Error::FileAccess`], also for a missing file: its errors are then unknown.
    pub fn read_errors(&self) -> Result<LogErrors> {
        self.read_until(UnterminatedLine::Counted).map(|(errors, _)| errors)
    }

    /// Returns the same as [`LogWatch::read_errors`] for complete lines, and advances the position past them.
    ///
    /// # Errors
    /// As [`LogWatch::read_errors`].
    pub fn take_errors(&mut self) -> Result<LogErrors> {
        let (errors, (inode, length)) = self.read_until(UnterminatedLine::Deferred)?;
        (self.inode, self.read_length) = (inode, length);
        Ok(errors)
    }

    /// Returns the errors, and the position up to which the file was read.
    fn read_until(&self, end: UnterminatedLine) -> Result<(LogErrors, (u64, u64))> {
        let lost = |error| Error::read_failed(&self.path, error);
        let mut file = File::open(&self.path).map_err(lost)?;
        let data = file.metadata().map_err(lost)?;
        let is_same = data.ino() == self.inode && data.len() >= self.read_length;
        let mut at = if is_same { self.read_length } else { 0 };
        file.seek(SeekFrom::Start(at)).map_err(lost)?;
        let mut reader = BufReader::new(file);
        let mut errors = LogErrors::default();
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = reader.read_until(b'\n', &mut line).map_err(lost)?;
            let is_whole = line.ends_with(b"\n");
            if read == 0 || (end == UnterminatedLine::Deferred && !is_whole) {
                return Ok((errors, (data.ino(), at)));
            }
            at += read as u64;
            let plain = strip_ansi_colors(line.trim_ascii_end());
            if self.pattern.is_match(&plain) {
                errors.add_line(&plain);
            }
        }
    }
}

/// The treatment of a last line without a line break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnterminatedLine {
    /// Counted as a line.
    Counted,
    /// Left for the next check, as the beginning of a line.
    Deferred,
}

/// Returns a line without ANSI color sequences.
fn strip_ansi_colors(line: &[u8]) -> std::borrow::Cow<'_, [u8]> {
    #[expect(clippy::expect_used, reason = "the pattern is a constant")]
    static COLOR: LazyLock<Regex> =
        LazyLock::new(|| Regex::new("\x1b\\[[0-9;]*m").expect("the pattern is valid"));
    COLOR.replace_all(line, &b""[..])
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use tympan_lab_engine::measurement::log_watch_result::{
        LogWatchResult, MAX_LOGGED_LINE_LEN, MAX_LOGGED_LINES,
    };

    #[test]
    fn only_new_lines_of_errors_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("error.log");
        std::fs::write(&path, "21.11.2026 *ERROR* old\n").unwrap();
        let watch = LogWatch::start(&path, None).unwrap();
        assert_eq!(watch.read_errors().unwrap(), LogErrors::default());
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"*INFO* GET /error.html\n21.11.2026 *ERROR* [qtp] new\n").unwrap();
        file.write_all(
            b"2026-11-21T00:00:00Z \x1b[31mERROR\x1b[0m store: lost\n{\"level\":\"ERROR\"}\n",
        )
        .unwrap();
        let lines = watch.read_errors().unwrap().first_lines;
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert_eq!(lines[1], "2026-11-21T00:00:00Z ERROR store: lost");
    }

    #[test]
    fn a_file_that_was_replaced_is_read_from_its_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("error.log");
        let none = LogWatch::start(&path, None).unwrap();
        std::fs::write(&path, "ERROR one\nmore\n").unwrap();
        assert_eq!(none.read_errors().unwrap().first_lines, ["ERROR one"]);
        let watch = LogWatch::start(&path, Some("lost \\d+")).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(watch.read_errors(), Err(Error::FileAccess { .. })));
        std::fs::write(&path, "lost 7\n").unwrap();
        assert_eq!(watch.read_errors().unwrap().first_lines, ["lost 7"]);
        assert!(LogWatch::start(&path, Some("(")).is_err());
    }

    #[test]
    fn each_line_is_taken_once_and_only_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("error.log");
        let mut watch = LogWatch::start(&path, None).unwrap();
        let mut file = File::create(&path).unwrap();
        file.write_all(b"ERROR one\nERROR t").unwrap();
        assert_eq!(watch.take_errors().unwrap().first_lines, ["ERROR one"]);
        assert_eq!(watch.take_errors().unwrap(), LogErrors::default());
        file.write_all(b"wo\n").unwrap();
        assert_eq!(watch.take_errors().unwrap().first_lines, ["ERROR two"]);
        file.write_all(b"ERROR three").unwrap();
        assert_eq!(watch.read_errors().unwrap().first_lines, ["ERROR three"]);
    }

    #[test]
    fn of_many_lines_the_first_are_kept_and_all_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("error.log");
        let watch = LogWatch::start(&path, None).unwrap();
        std::fs::write(&path, format!("ERROR {}\n", "x".repeat(5000)).repeat(250)).unwrap();
        let errors = watch.read_errors().unwrap();
        assert_eq!((errors.error_count, errors.first_lines.len()), (250, MAX_LOGGED_LINES));
        assert_eq!(errors.first_lines[0].len(), MAX_LOGGED_LINE_LEN);
        let logged = LogWatchResult { log_file: "a.log".to_owned(), errors, read_failure: None };
        let lines: Vec<String> = logged.describe_lines().collect();
        assert_eq!(lines.len(), MAX_LOGGED_LINES + 1);
        assert_eq!(lines[MAX_LOGGED_LINES], "ERROR LOGGED a.log: 150 more lines");
        let judged = logged.to_judged_goal();
        assert_eq!((judged.measured.as_str(), judged.is_met), ("250 lines", false));
    }

    #[test]
    fn a_log_that_cannot_be_read_meets_no_goal() {
        let logged = LogWatchResult {
            log_file: "a.log".to_owned(),
            read_failure: Some("cannot read `a.log`".to_owned()),
            ..LogWatchResult::default()
        };
        assert!(!logged.to_judged_goal().is_met);
        assert_eq!(
            logged.describe_lines().collect::<Vec<_>>(),
            ["LOG NOT READ cannot read `a.log`"]
        );
        assert!(LogWatchResult::default().to_judged_goal().is_met);
    }
}
