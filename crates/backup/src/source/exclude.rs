//! What stays out of a backup: patterns, folders marked as caches, other file systems.

use std::path::Path;

use regex::bytes::{RegexSet, RegexSetBuilder};

use crate::error::{Error, Result};

/// What begins a file that marks its folder as a cache.
pub(crate) const CACHE_MARK: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";

/// What stays out.
#[derive(Clone, Debug, Default)]
pub struct Excludes {
    patterns: Vec<String>,
    set: RegexSet,
    /// Whether folders that a `CACHEDIR.TAG` marks are left empty, but for the mark.
    pub caches: bool,
    /// Whether folders on other file systems are left empty.
    pub other_file_systems: bool,
}

impl Excludes {
    /// Reads patterns: `*` stands for anything within a name, `**` for any names, `?` for a letter, `[a-z]` for one of
    /// some. A pattern that begins with `/` is about whole paths; another one about the end of them.
    ///
    /// # Errors
    /// [`Error::Refused`] for a pattern that cannot be understood.
    pub fn new(patterns: Vec<String>) -> Result<Self> {
        let expressions: Vec<String> = patterns.iter().map(|pattern| expression(pattern)).collect();
        let set = RegexSetBuilder::new(expressions)
            .unicode(false)
            .build()
            .map_err(|error| Error::Refused(format!("cannot understand an exclude: {error}")))?;
        Ok(Self { patterns, set, ..Self::default() })
    }

    /// Returns the patterns.
    #[must_use]
    pub fn patterns(&self) -> &[String] {
        &self.patterns
    }

    /// Tells whether an absolute path stays out.
    #[must_use]
    pub fn contains(&self, path: &Path) -> bool {
        use std::os::unix::ffi::OsStrExt;
        !self.patterns.is_empty() && self.set.is_match(path.as_os_str().as_bytes())
    }
}

fn expression(pattern: &str) -> String {
    let trimmed = pattern.trim_end_matches('/');
    let mut text = if trimmed.starts_with('/') { "^(?s-u:" } else { "(?s-u:(?:^|/)" }.to_owned();
    let mut letters = trimmed.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '*' if letters.peek() == Some(&'*') => {
                letters.next();
                if letters.peek() == Some(&'/') {
                    letters.next();
                    text.push_str("(?:.*/)?");
                } else {
                    text.push_str(".*");
                }
            }
            '*' => text.push_str("[^/]*"),
            '?' => text.push_str("[^/]"),
            '[' => text.push('['),
            ']' => text.push(']'),
            '-' | '^' => text.push(letter),
            letter => text.push_str(&bytes_of(letter)),
        }
    }
    text.push_str(")$");
    text
}

/// Writes a letter as its bytes, since paths are bytes.
fn bytes_of(letter: char) -> String {
    let mut buffer = [0; 4];
    letter
        .encode_utf8(&mut buffer)
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'_' => char::from(byte).to_string(),
            byte => format!("\\x{byte:02x}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, inside: &[&str], outside: &[&str]) {
        let excludes = Excludes::new(vec![pattern.to_owned()]).unwrap();
        for path in inside {
            assert!(excludes.contains(Path::new(path)), "{pattern} has {path}");
        }
        for path in outside {
            assert!(!excludes.contains(Path::new(path)), "{pattern} has not {path}");
        }
    }

    #[test]
    fn patterns_match_as_people_expect() {
        check("*.o", &["/a/b.o", "/.o"], &["/a/b.o/c", "/a/b.op"]);
        check("/home/*/cache", &["/home/me/cache"], &["/home/cache", "/x/home/me/cache"]);
        check("a/**/z", &["/a/z", "/q/a/b/c/z"], &["/ba/z"]);
        check("tmp/", &["/tmp", "/a/tmp"], &["/a/tmpx"]);
        check("ü?.[ab]", &["/x/üy.a"], &["/x/üy.c"]);
        assert!(Excludes::new(vec!["[".to_owned()]).is_err());
    }
}
