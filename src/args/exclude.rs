//! What is saved and what stays out, in the words of `tympan backup save`, which are restic's.

use std::path::PathBuf;

use clap::Args;

/// What stays out of a backup.
#[derive(Debug, Default, Args)]
pub(crate) struct ExcludeArgs {
    /// Leaves out what fits: `*.tmp`, `/srv/*/cache`. `*` stands for anything within a name, `**` for any names, `?` for a
    /// character, `[a-z]` for one of some and `[^a-z]` for one of the others; `\` takes the meaning from what follows; `!`
    /// before a pattern takes back what those before it leave out.
    #[arg(short = 'e', long, value_name = "PATTERN")]
    pub(crate) exclude: Vec<String>,
    /// The same, whatever the case of letters.
    #[arg(long, value_name = "PATTERN")]
    pub(crate) iexclude: Vec<String>,
    /// Reads patterns from the lines of a file. `#` begins a comment, `$NAME` stands for a variable, and `$$` for `$`.
    #[arg(long, value_name = "FILE")]
    pub(crate) exclude_file: Vec<PathBuf>,
    /// The same, whatever the case of letters.
    #[arg(long, value_name = "FILE")]
    pub(crate) iexclude_file: Vec<PathBuf>,
    /// Leaves out paths in which a regular expression is found, as `--exclude` of Obnam does.
    #[arg(long, value_name = "REGEX")]
    pub(crate) exclude_regex: Vec<String>,
    /// Leaves out what is in folders with a file of this name, but for that file; with `NAME:HEADER`, if the file begins so.
    #[arg(long, value_name = "NAME[:HEADER]")]
    pub(crate) exclude_if_present: Vec<String>,
    /// Leaves out what is in folders that a `CACHEDIR.TAG` marks.
    #[arg(long)]
    pub(crate) exclude_caches: bool,
    /// Leaves out files with more bytes than this: `20M`, `1 GiB`.
    #[arg(long, value_name = "SIZE", value_parser = parse_file_size_arg)]
    pub(crate) exclude_larger_than: Option<u64>,
    /// Stays on the file systems of the sources.
    #[arg(short = 'x', long)]
    pub(crate) one_file_system: bool,
}

/// Sources that no argument names.
#[derive(Debug, Default, Args)]
pub(crate) struct SourceListArgs {
    /// Reads sources from the lines of a file, or of standard input for `-`; `*`, `?` and `[…]` stand for names that are
    /// there, and `#` begins a comment.
    #[arg(long, value_name = "FILE")]
    pub(crate) files_from: Vec<PathBuf>,
    /// Reads sources from the lines of a file as they are.
    #[arg(long, value_name = "FILE")]
    pub(crate) files_from_verbatim: Vec<PathBuf>,
    /// Reads sources from a file in which a zero byte ends each.
    #[arg(long, value_name = "FILE")]
    pub(crate) files_from_raw: Vec<PathBuf>,
    /// Saves standard input as one file.
    #[arg(long, conflicts_with_all = ["sources", "files_from", "files_from_verbatim", "files_from_raw", "to"])]
    pub(crate) stdin: bool,
    /// The name of that file.
    #[arg(long, value_name = "NAME", default_value = "stdin", requires = "stdin")]
    pub(crate) stdin_filename: String,
}

/// Reads a size as restic writes it, `20M`, or as everywhere here, `20 MiB`.
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
        _ => crate::config::parse_size(trimmed),
    };
    bytes.ok_or_else(|| format!("`{text}` is no size; write `20M` or `20 MiB`"))
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
