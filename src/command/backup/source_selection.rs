//! The selection of a save: its sources and its exclusions, from arguments and the files that they name.

use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use tympan_backup::{ExcludeRules, FolderMark, expand_glob};
use tympan_terminal::CommandFault;

use super::backup_fault;
use super::save::is_repository_source;
use crate::args::backup::BackupSaveArgs;
use crate::args::exclude::ExcludeArgs;

/// The sources of a save, by kind.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SaveSources {
    /// Repositories, as given.
    pub(super) repositories: Vec<String>,
    /// Folders and files.
    pub(super) folders: Vec<PathBuf>,
}

impl SaveSources {
    /// Reads the sources from the arguments and from the files that they name.
    ///
    /// # Errors
    /// If a file cannot be read, or there are no sources in it.
    pub(super) fn from_args(arguments: &BackupSaveArgs) -> Result<Self, CommandFault> {
        let lists = &arguments.source_lists;
        let mut names: Vec<OsString> = arguments.sources.iter().map(OsString::from).collect();
        for file in &lists.files_from {
            names.extend(sources_from_patterns(&read_text_or_stdin(file)?)?);
        }
        for file in &lists.files_from_verbatim {
            let bytes = read_file_or_stdin(file)?;
            let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            names.extend(lines.map(|line| OsString::from_vec(line.to_vec())));
        }
        for file in &lists.files_from_raw {
            names.extend(sources_from_zero_terminated(&read_file_or_stdin(file)?, file)?);
        }
        if names.is_empty() && !lists.stdin {
            return Err(CommandFault::usage("the given files list no sources"));
        }
        let mut sources = Self::default();
        for name in names {
            match name.into_string() {
                Ok(name) if is_repository_source(&name) => sources.repositories.push(name),
                Ok(name) => sources.folders.push(name.into()),
                Err(name) => sources.folders.push(name.into()),
            }
        }
        Ok(sources)
    }
}

/// Finds the sources that match the patterns in the lines of a text.
fn sources_from_patterns(text: &str) -> Result<Vec<OsString>, CommandFault> {
    let mut names = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| is_content_line(line)) {
        if is_repository_source(line) {
            names.push(line.into());
            continue;
        }
        let paths = expand_glob(line).map_err(backup_fault)?;
        if paths.is_empty() {
            tracing::warn!(file = line, "no file matches a source pattern");
        }
        names.extend(paths.into_iter().map(PathBuf::into_os_string));
    }
    Ok(names)
}

fn sources_from_zero_terminated(bytes: &[u8], file: &Path) -> Result<Vec<OsString>, CommandFault> {
    let Some(bytes) = bytes.strip_suffix(&[0]) else {
        return if bytes.is_empty() {
            Ok(Vec::new())
        } else {
            Err(CommandFault::usage(format!(
                "`{}` does not end with a NUL byte: its last name may be truncated",
                file.display()
            )))
        };
    };
    bytes
        .split(|byte| *byte == 0)
        .map(|name| match name {
            [] => Err(CommandFault::usage(format!("`{}` contains an empty name", file.display()))),
            name => Ok(std::ffi::OsStr::from_bytes(name).to_owned()),
        })
        .collect()
}

/// Reads the exclusions of a save.
///
/// # Errors
/// If a file cannot be read, or a pattern is invalid.
pub(super) fn read_excludes(arguments: &ExcludeArgs) -> Result<ExcludeRules, CommandFault> {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let with_files = |inline_patterns: &[String], files: &[PathBuf]| {
        let mut patterns = inline_patterns.to_vec();
        for file in files {
            patterns.extend(parse_pattern_lines(&read_text_or_stdin(file)?, &variable));
        }
        Ok::<_, CommandFault>(patterns)
    };
    let exact = with_files(&arguments.exclude, &arguments.exclude_file)?;
    let any_case = with_files(&arguments.iexclude, &arguments.iexclude_file)?;
    let mut excludes = ExcludeRules::new(exact)
        .and_then(|excludes| excludes.with_ignore_case_patterns(&any_case))
        .and_then(|excludes| excludes.with_expressions(&arguments.exclude_regex))
        .map_err(backup_fault)?;
    excludes.marks = arguments
        .exclude_if_present
        .iter()
        .map(|text| parse_folder_mark(text))
        .collect::<Result<_, _>>()?;
    if arguments.exclude_caches {
        excludes.marks.push(FolderMark::cache());
    }
    excludes.max_file_bytes = arguments.exclude_larger_than;
    excludes.excludes_other_file_systems = arguments.one_file_system;
    Ok(excludes)
}

/// Parses `NAME` or `NAME:HEADER`.
fn parse_folder_mark(text: &str) -> Result<FolderMark, CommandFault> {
    let (name, header) = text.split_once(':').unwrap_or((text, ""));
    if name.is_empty() || name.contains('/') {
        return Err(CommandFault::usage(format!(
            "`{text}` is not a file name: write `NAME` or `NAME:HEADER`"
        )));
    }
    Ok(FolderMark { name: name.to_owned(), header: header.as_bytes().to_vec() })
}

/// Parses the patterns in the lines of a text.
fn parse_pattern_lines(text: &str, variable: &dyn Fn(&str) -> String) -> Vec<String> {
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

/// Reads a file, or standard input for `-`.
fn read_file_or_stdin(file: &Path) -> Result<Vec<u8>, CommandFault> {
    let read = if file == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        fs::read(file)
    };
    read.map_err(|error| CommandFault::usage(format!("cannot read `{}`: {error}", file.display())))
}

fn read_text_or_stdin(file: &Path) -> Result<String, CommandFault> {
    let bytes = read_file_or_stdin(file)?;
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    String::from_utf8(bytes.to_vec())
        .map_err(|_| CommandFault::usage(format!("`{}` is not UTF-8", file.display())))
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
            [b"a\nb".as_slice(), b"\xff"]
                .map(|name| { std::ffi::OsStr::from_bytes(name).to_owned() })
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
