//! Checks a plan before anything is sent: its data files exist, and every variable is set by something.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;

use super::TomlCompiler;
use super::toml_table::{TomlSource, closest_word};

/// Maximum length of a header line that is read, in bytes.
const MAX_HEADER_LINE_BYTES: u64 = 1 << 20;

/// Returns the column names from the first line of a data file.
///
/// # Errors
/// A message if the file cannot be read.
pub(super) fn read_header_columns(path: &Path, delimiter: &str) -> Result<Vec<String>, String> {
    let lost = |error| format!("cannot read `{}`: {error}", path.display());
    let file = File::open(path).map_err(lost)?;
    let mut line = Vec::new();
    BufReader::new(file.take(MAX_HEADER_LINE_BYTES)).read_until(b'\n', &mut line).map_err(lost)?;
    let line = String::from_utf8_lossy(&line);
    let line = line.trim_start_matches('\u{feff}').trim_end();
    if line.is_empty() {
        return Err(format!("`{}` is empty", path.display()));
    }
    let delimiter = if delimiter == "\\t" { "\t" } else { delimiter };
    Ok(line.split(delimiter).map(|name| name.trim().trim_matches('"').to_owned()).collect())
}

/// Reports every variable that nothing sets.
pub(super) fn check_variables(compiler: &TomlCompiler<'_>, source: &TomlSource<'_>) {
    let candidates: Vec<&str> = compiler.known_variables.iter().map(String::as_str).collect();
    for (template, at) in &compiler.templates {
        template.for_each_variable(&mut |name| {
            // Functions and groups of extractors set variables of their own, named with a numeric suffix.
            let is_known = compiler.known_variables.iter().any(|variable| {
                name == variable || name.strip_prefix(variable.as_str()).is_some_and(|rest| rest.starts_with('_'))
            });
            if is_known || name.starts_with("JMeterThread.") {
                return;
            }
            let near = closest_word(name, &candidates).map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
            source.add_finding(
                *at,
                format!("variable `{name}` is never set: not in `[variables]`, `data` or `extract`{near}"),
            );
        });
    }
}
