//! The sources and the exclusions of a save in files: lists of names, and patterns with variables.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::exclude::FolderMark;
use super::glob::expand_glob;
use crate::error::{Error, Result};

/// The sources of a save, by kind.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SaveSources {
    /// Repositories, as given.
    pub repositories: Vec<String>,
    /// Folders and files.
    pub folders: Vec<PathBuf>,
}

impl SaveSources {
    /// Adds a source by its name.
    pub fn add(&mut self, name: OsString) {
        match name.into_string() {
            Ok(name) if is_repository_source(&name) => self.repositories.push(name),
            Ok(name) => self.folders.push(name.into()),
            Err(name) => self.folders.push(name.into()),
        }
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.repositories.is_empty() && self.folders.is_empty()
    }

    /// Adds the sources that the lines of a text name, or match as patterns; `#` begins a comment.
    ///
    /// # Errors
    /// If a pattern is invalid.
    pub fn add_patterns(&mut self, text: &str) -> Result<()> {
        sources_from_patterns(text)?.into_iter().for_each(|name| self.add(name));
        Ok(())
    }

    /// Adds the sources that the lines name, without interpreting patterns or comments.
    pub fn add_lines(&mut self, bytes: &[u8]) {
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.for_each(|line| self.add(OsString::from_vec(line.to_vec())));
    }

    /// Adds the sources of a file in which each ends with a zero byte.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if a name is empty, or may be truncated.
    pub fn add_zero_terminated(&mut self, bytes: &[u8], file: &Path) -> Result<()> {
        sources_from_zero_terminated(bytes, file)?.into_iter().for_each(|name| self.add(name));
        Ok(())
    }
}

/// Returns true if a source is a repository, by its home or its URL; all others are folders.
pub fn is_repository_source(source: &str) -> bool {
    ["repo:", "http://", "https://"].iter().any(|start| source.starts_with(start))
}

/// Finds the sources that match the patterns in the lines of a text.
fn sources_from_patterns(text: &str) -> Result<Vec<OsString>> {
    let mut names = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| is_content_line(line)) {
        if is_repository_source(line) {
            names.push(line.into());
            continue;
        }
        let paths = expand_glob(line)?;
        if paths.is_empty() {
            tracing::warn!(file = line, "no file matches a source pattern");
        }
        names.extend(paths.into_iter().map(PathBuf::into_os_string));
    }
    Ok(names)
}

fn sources_from_zero_terminated(bytes: &[u8], file: &Path) -> Result<Vec<OsString>> {
    let Some(bytes) = bytes.strip_suffix(&[0]) else {
        return if bytes.is_empty() {
            Ok(Vec::new())
        } else {
            Err(Error::InvalidRequest(format!(
                "`{}` does not end with a NUL byte: its last name may be truncated",
                file.display()
            )))
        };
    };
    bytes
        .split(|byte| *byte == 0)
        .map(|name| match name {
            [] => {
                Err(Error::InvalidRequest(format!("`{}` contains an empty name", file.display())))
            }
            name => Ok(OsStr::from_bytes(name).to_owned()),
        })
        .collect()
}

/// Parses the mark of an excluded folder: `NAME` or `NAME:HEADER`.
///
/// # Errors
/// [`Error::InvalidRequest`] if the name is not that of a file.
pub fn parse_folder_mark(text: &str) -> Result<FolderMark> {
    let (name, header) = text.split_once(':').unwrap_or((text, ""));
    if name.is_empty() || name.contains('/') {
        return Err(Error::InvalidRequest(format!(
            "`{text}` is not a file name: write `NAME` or `NAME:HEADER`"
        )));
    }
    Ok(FolderMark { name: name.to_owned(), header: header.as_bytes().to_vec() })
}

/// Parses the patterns in the lines of a text; `variable` returns the values of variables in them.
pub fn parse_pattern_lines(text: &str, variable: &dyn Fn(&str) -> String) -> Vec<String> {
    let lines = text.lines().map(str::trim).filter(|line| is_content_line(line));
    lines.map(|line| expand_variables(line, variable)).collect()
}

fn is_content_line(line: &str) -> bool {
    !line.is_empty() && !line.starts_with('#')
}

/// Replaces `$NAME` and `${NAME}` by the values of variables, and `$$` by `$`.
fn expand_variables(text: &str, variable: &dyn Fn(&str) -> String) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        if let Some(after) = after.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) =
            after.strip_prefix('{').and_then(|braced| braced.split_once('}'))
        {
            out.push_str(&if name == "$" { "$".to_owned() } else { variable(name) });
            rest = after;
        } else {
            let end = after.find(|letter| !is_part(letter)).unwrap_or(after.len());
            let (name, after) = after.split_at(end);
            if name.is_empty() {
                out.push('$');
            } else {
                out.push_str(&variable(name));
            }
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_files_have_comments_and_variables() {
        let variable = |name: &str| match name {
            "HOME" => "/home/ann".to_owned(),
            _ => String::new(),
        };
        let text =
            "# a comment\n\n  *.tmp \n$HOME/cache\n${HOME}x\n$HOME_x/y\nprice$$\n$\n!keep\r\n";
        let expected = ["*.tmp", "/home/ann/cache", "/home/annx", "/y", "price$", "$", "!keep"];
        assert_eq!(parse_pattern_lines(text, &variable), expected);
    }

    #[test]
    fn names_that_zeros_end_are_whole_or_refused() {
        let read = |bytes: &[u8]| sources_from_zero_terminated(bytes, Path::new("list"));
        assert_eq!(
            read(b"a\nb\0\xff\0").unwrap(),
            [b"a\nb".as_slice(), b"\xff"].map(|name| { OsStr::from_bytes(name).to_owned() })
        );
        assert!(read(b"").unwrap().is_empty());
        assert!(read(b"a\0b").is_err());
        assert!(read(b"a\0\0").is_err());
    }

    #[test]
    fn marks_are_names_and_may_have_a_header() {
        let mark = |text: &str| parse_folder_mark(text).ok().map(|mark| (mark.name, mark.header));
        assert_eq!(mark(".nobackup"), Some((".nobackup".to_owned(), Vec::new())));
        assert_eq!(mark("TAG:a:b"), Some(("TAG".to_owned(), b"a:b".to_vec())));
        assert_eq!(mark(":x"), None);
        assert_eq!(mark("a/b"), None);
    }
}
