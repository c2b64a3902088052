//! Arguments that select what is saved and what is excluded, named as in restic.

use std::path::PathBuf;

use clap::Args;
use tympan_notation::ByteSize;

use super::heading;

/// Exclusions from a backup.
#[derive(Debug, Default, Args)]
pub(crate) struct ExcludeArgs {
    /// Leaves out what matches: `*.tmp`, `/srv/*/cache`. `*` matches anything within a name, `**` any number of names,
    /// `?` one character, `[a-z]` one of a set and `[^a-z]` one outside it; `\` escapes the next character; `!` before
    /// a pattern includes again what earlier patterns leave out.
    #[arg(short = 'e', long, value_name = "PATTERN", help_heading = heading::SELECTION)]
    pub(crate) exclude: Vec<String>,
    /// Like `--exclude`, but case-insensitive.
    #[arg(long, value_name = "PATTERN", help_heading = heading::SELECTION)]
    pub(crate) iexclude: Vec<String>,
    /// Reads patterns from the lines of a file. `#` begins a comment, `$NAME` is replaced by an environment variable,
    /// and `$$` by `$`.
    #[arg(long, value_name = "FILE", help_heading = heading::SELECTION)]
    pub(crate) exclude_file: Vec<PathBuf>,
    /// Like `--exclude-file`, but case-insensitive.
    #[arg(long, value_name = "FILE", help_heading = heading::SELECTION)]
    pub(crate) iexclude_file: Vec<PathBuf>,
    /// Leaves out paths that match a regular expression anywhere, like `--exclude` of Obnam.
    #[arg(long, value_name = "REGEX", help_heading = heading::SELECTION)]
    pub(crate) exclude_regex: Vec<String>,
    /// Leaves out the contents of folders that have a file of this name, except that file; with `NAME:HEADER`, only if
    /// the file begins with the header.
    #[arg(long, value_name = "NAME[:HEADER]", help_heading = heading::SELECTION)]
    pub(crate) exclude_if_present: Vec<String>,
    /// Leaves out the contents of folders that a `CACHEDIR.TAG` marks.
    #[arg(long, help_heading = heading::SELECTION)]
    pub(crate) exclude_caches: bool,
    /// Leaves out files larger than this: `20M`, `1 GiB`.
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = parse_file_size_arg,
        help_heading = heading::SELECTION
    )]
    pub(crate) exclude_larger_than: Option<u64>,
    /// Does not cross into other file systems than those of the sources.
    #[arg(short = 'x', long, help_heading = heading::SELECTION)]
    pub(crate) one_file_system: bool,
}

/// Sources given by other means than arguments.
#[derive(Debug, Default, Args)]
pub(crate) struct SourceListArgs {
    /// Reads sources from the lines of a file, or of standard input for `-`; `*`, `?` and `[…]` match existing names,
    /// and `#` begins a comment.
    #[arg(long, value_name = "FILE", help_heading = heading::SELECTION)]
    pub(crate) files_from: Vec<PathBuf>,
    /// Reads sources from the lines of a file, without interpreting patterns or comments.
    #[arg(long, value_name = "FILE", help_heading = heading::SELECTION)]
    pub(crate) files_from_verbatim: Vec<PathBuf>,
    /// Reads sources from a file in which each ends with a zero byte.
    #[arg(long, value_name = "FILE", help_heading = heading::SELECTION)]
    pub(crate) files_from_raw: Vec<PathBuf>,
    /// Saves standard input as one file.
    #[arg(
        long,
        conflicts_with_all = ["sources", "files_from", "files_from_verbatim", "files_from_raw", "to"],
        help_heading = heading::SELECTION
    )]
    pub(crate) stdin: bool,
    /// The name of that file.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "stdin",
        requires = "stdin",
        help_heading = heading::SELECTION
    )]
    pub(crate) stdin_filename: String,
}

/// Parses a size in restic's notation, `20M`, or in Tympan's, `20 MiB`.
fn parse_file_size_arg(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let (digits, unit) = trimmed
        .split_at(trimmed.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(trimmed.len()));
    let shift = match unit {
        "" | "b" | "B" => Some(0),
        "k" | "K" => Some(10),
        "m" | "M" => Some(20),
        "g" | "G" => Some(30),
        "t" | "T" => Some(40),
        _ => None,
    };
    let bytes = match (digits.parse::<u64>(), shift) {
        (Ok(number), Some(shift)) => number.checked_mul(1 << shift),
        _ => trimmed.parse().ok().map(ByteSize::as_bytes),
    };
    bytes.ok_or_else(|| format!("`{text}` is not a size; write `20M` or `20 MiB`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_restic_writes_them_too() {
        for (text, bytes) in [
            ("0", 0),
            ("17", 17),
            ("2k", 2048),
            ("1M", 1 << 20),
            ("3 MiB", 3 << 20),
            ("1G", 1 << 30),
        ] {
            assert_eq!(parse_file_size_arg(text), Ok(bytes), "{text}");
        }
        for text in ["", "k", "1X", "-1", "99999999999999T"] {
            assert!(parse_file_size_arg(text).is_err(), "{text}");
        }
    }
}
