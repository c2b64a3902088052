//! Excluding items from a backup: patterns, regular expressions, large files, marked folders, other file systems.

use std::fs::{File, Metadata};
use std::io::Read;
use std::path::Path;

use regex::bytes::{RegexSet, RegexSetBuilder};

use super::pattern::{ExcludePathPatterns, LetterCase, MalformedPattern};
use crate::error::{Error, Result};

/// A marker file whose presence excludes everything else in its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderMark {
    /// The name of the marker file.
    pub name: String,
    /// The bytes that the file must begin with; if empty, any file matches.
    pub header: Vec<u8>,
}

impl FolderMark {
    /// Returns the marker of cache folders, by <https://bford.info/cachedir/>.
    #[must_use]
    pub fn cache() -> Self {
        let header = b"Signature: 8a477f597d28d172789f06886806bc55".to_vec();
        Self { name: "CACHEDIR.TAG".to_owned(), header }
    }

    /// Returns true if a folder has this marker.
    fn is_in(&self, folder: &Path) -> bool {
        let file = folder.join(&self.name);
        if self.header.is_empty() {
            return file.symlink_metadata().is_ok();
        }
        let mut begin = Vec::new();
        let read = File::open(file)
            .and_then(|file| file.take(self.header.len() as u64).read_to_end(&mut begin));
        read.is_ok() && begin == self.header
    }
}

/// The exclude rules of a backup.
#[derive(Clone, Debug, Default)]
pub struct ExcludeRules {
    patterns: Vec<String>,
    exact_case: ExcludePathPatterns,
    any_case: ExcludePathPatterns,
    expressions: RegexSet,
    /// Folders with one of these markers are saved empty, except for the marker.
    pub marks: Vec<FolderMark>,
    /// Files with more bytes than this are excluded.
    pub max_file_bytes: Option<u64>,
    /// Folders on other file systems are saved empty.
    pub excludes_other_file_systems: bool,
}

impl ExcludeRules {
    /// Parses patterns with restic's syntax: `*` matches anything within a name, `**` any names, `?` a character,
    /// `[a-z]` one of a set, `[^a-z]` one outside of it; `\` escapes the next character. A pattern that begins with `/`
    /// matches whole paths; another one matches names anywhere in them. A pattern that begins with `!` includes again
    /// what earlier patterns exclude.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for a malformed pattern.
    pub fn new(patterns: Vec<String>) -> Result<Self> {
        let exact = ExcludePathPatterns::parse(&patterns, LetterCase::Exact)
            .map_err(malformed_pattern_error)?;
        Ok(Self { patterns, exact_case: exact, ..Self::default() })
    }

    /// Also excludes what matches patterns regardless of letter case.
    ///
    /// # Errors
    /// As [`ExcludeRules::new`].
    pub fn with_ignore_case_patterns(mut self, patterns: &[String]) -> Result<Self> {
        self.any_case = ExcludePathPatterns::parse(patterns, LetterCase::Ignored)
            .map_err(malformed_pattern_error)?;
        Ok(self)
    }

    /// Also excludes paths that contain a match of a regular expression, as Obnam does.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for a malformed expression.
    pub fn with_expressions(mut self, expressions: &[String]) -> Result<Self> {
        self.expressions = RegexSetBuilder::new(expressions).build().map_err(|error| {
            Error::InvalidRequest(format!("invalid regular expression for excludes: {error}"))
        })?;
        Ok(self)
    }

    /// Returns the case-sensitive patterns.
    #[must_use]
    pub fn patterns(&self) -> &[String] {
        &self.patterns
    }

    /// Returns true if an absolute path is excluded.
    #[must_use]
    pub fn contains(&self, path: &Path) -> bool {
        use std::os::unix::ffi::OsStrExt;
        self.exact_case.is_match(path)
            || self.any_case.is_match(path)
            || (!self.expressions.is_empty()
                && self.expressions.is_match(path.as_os_str().as_bytes()))
    }

    /// Returns true if a file is excluded for its size.
    pub(crate) fn is_too_large(&self, facts: &Metadata) -> bool {
        facts.is_file() && self.max_file_bytes.is_some_and(|limit| facts.len() > limit)
    }

    /// Returns the markers in a folder. In a folder with markers, nothing else is saved.
    pub(crate) fn marks_in(&self, folder: &Path) -> Vec<&FolderMark> {
        self.marks.iter().filter(|mark| mark.is_in(folder)).collect()
    }

    /// Returns true if a source is excluded; restic applies the same rules to sources as to what is below them.
    pub(crate) fn contains_source(&self, path: &Path, facts: &Metadata) -> bool {
        let is_marked = || {
            let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
                return false;
            };
            self.marks_in(folder).iter().any(|mark| name != mark.name.as_str())
        };
        self.contains(path) || self.is_too_large(facts) || is_marked()
    }
}

fn malformed_pattern_error(MalformedPattern { pattern }: MalformedPattern) -> Error {
    Error::InvalidRequest(format!(
        "invalid pattern `{pattern}`: a `[` needs a closing `]` and at least one character, and a `\\` needs \
         a following character"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, inside: &[&str], outside: &[&str]) {
        let excludes = ExcludeRules::new(vec![pattern.to_owned()]).unwrap();
        for path in inside {
            assert!(excludes.contains(Path::new(path)), "{pattern} has {path}");
        }
        for path in outside {
            assert!(!excludes.contains(Path::new(path)), "{pattern} has not {path}");
        }
    }

    #[test]
    fn patterns_match_as_people_expect() {
        check("*.o", &["/a/b.o", "/.o", "/a/b.o/c"], &["/a/b.op"]);
        check("/home/*/cache", &["/home/me/cache"], &["/home/cache", "/x/home/me/cache"]);
        check("a/**/z", &["/a/z", "/q/a/b/c/z"], &["/ba/z"]);
        check("tmp/", &["/tmp", "/a/tmp"], &["/a/tmpx"]);
        check("ü?.[ab]", &["/x/üy.a"], &["/x/üy.c"]);
        assert!(ExcludeRules::new(vec!["[".to_owned()]).is_err());
    }

    #[test]
    fn expressions_are_found_anywhere_in_a_path() {
        let expressions = [r"\.o$".to_owned(), "^/srv/(a|ä)/".to_owned()];
        let excludes = ExcludeRules::default().with_expressions(&expressions).unwrap();
        for path in ["/a/b.o", "/srv/ä/x", "/srv/a/x"] {
            assert!(excludes.contains(Path::new(path)), "{path}");
        }
        assert!(!excludes.contains(Path::new("/x/srv/a/x.oo")));
        // A shell pattern is not a valid regular expression.
        let refused = ExcludeRules::default().with_expressions(&["*.tmp".to_owned()]);
        assert!(matches!(refused, Err(Error::InvalidRequest(_))), "{refused:?}");
    }
}
