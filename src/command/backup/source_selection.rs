//! The selection of a save: its sources and its exclusions, from arguments and the files that they name.

use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use tympan_backup::{
    ExcludeRules, FolderMark, SaveSources, parse_folder_mark, parse_pattern_lines,
};
use tympan_terminal::CommandFault;

use super::backup_fault;
use crate::args::backup::BackupSaveArgs;
use crate::args::exclude::ExcludeArgs;

/// Reads the sources from the arguments and from the files that they name.
///
/// # Errors
/// If a file cannot be read, or there are no sources in it.
pub(super) fn read_sources(arguments: &BackupSaveArgs) -> Result<SaveSources, CommandFault> {
    let lists = &arguments.source_lists;
    let mut sources = SaveSources::default();
    arguments.sources.iter().for_each(|name| sources.add(OsString::from(name)));
    for file in &lists.files_from {
        sources.add_patterns(&read_text_or_stdin(file)?).map_err(backup_fault)?;
    }
    for file in &lists.files_from_verbatim {
        sources.add_lines(&read_file_or_stdin(file)?);
    }
    for file in &lists.files_from_raw {
        sources.add_zero_terminated(&read_file_or_stdin(file)?, file).map_err(backup_fault)?;
    }
    if sources.is_empty() && !lists.stdin {
        return Err(CommandFault::usage("the given files list no sources"));
    }
    Ok(sources)
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
    let marks = arguments.exclude_if_present.iter().map(|text| parse_folder_mark(text));
    excludes.marks = marks.collect::<Result<_, _>>().map_err(backup_fault)?;
    if arguments.exclude_caches {
        excludes.marks.push(FolderMark::cache());
    }
    excludes.max_file_bytes = arguments.exclude_larger_than;
    excludes.excludes_other_file_systems = arguments.one_file_system;
    Ok(excludes)
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
