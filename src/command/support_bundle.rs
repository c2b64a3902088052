//! `tympan status --bundle`: an archive that lets somebody else see what is wrong with an instance.
//!
//! In: a running instance, and its home on this machine. Out: a ZIP file with versions, health, metrics, settings, the
//! findings of `doctor`, sizes, and the last lines of the logs.
//!
//! Invariants
//! * No content, keys, passwords, tokens, or files of users are read into it. Settings are those of `config show`, which
//!   hides secrets; and words of the home's secret files are replaced wherever they occur.
//! * What cannot be read is a note in the archive: an instance that is down is when it is needed.
//! * Its size is bounded, and its mode is 0600: logs have names of users and addresses of clients.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tempfile::NamedTempFile;
use tympan_terminal::{CommandFault, CommandOutcome, say};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::args::{InstanceLoginArgs, StatusArgs};
use crate::command::config::shown_settings_text;
use crate::command::doctor::diagnose_home_text;
use crate::command::pair::PAIRS_FOLDER;
use crate::command::remote_instance::fetch_text;

/// The last bytes of a log that are taken.
const MAX_LOG_BYTES: u64 = 512 * 1024;
/// The number of logs that are taken.
const MAX_LOGS: usize = 16;
/// The number of files whose sizes are added up.
const MAX_COUNTED_FILES: u64 = 2_000_000;
/// The shortest word of a secret file that is one; shorter ones are names of fields.
const MIN_SECRET_BYTES: usize = 12;
/// The files of a home that hold secrets, beside the pairs.
const SECRET_FILES: [&str; 4] =
    ["replication.key", "initial-password", "login-link", "base.secret"];

/// Writes the archive, which must not exist.
///
/// # Errors
/// If the home is no folder, or the archive exists or cannot be written.
pub(crate) fn write_support_bundle(arguments: &StatusArgs, bundle: &Path) -> CommandOutcome {
    let Some(home) = arguments.home.as_deref() else {
        return Err(CommandFault::usage("name the home of the instance with --home"));
    };
    if !home.is_dir() {
        return Err(CommandFault::usage(format!("there is no folder `{}`", home.display())));
    }
    let secrets = known_secrets(home, &arguments.remote.credentials);
    let failed = |error: &dyn std::fmt::Display| {
        CommandFault::cannot_run(format!("cannot write `{}`: {error}", bundle.display()))
    };
    let folder = bundle.parent().filter(|folder| !folder.as_os_str().is_empty());
    // Temporary files have the mode 0600.
    let file = NamedTempFile::new_in(folder.unwrap_or(Path::new("."))).map_err(|e| failed(&e))?;
    let mut archive = ZipWriter::new(file);
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .unix_permissions(0o600);
    let parts = bundle_parts(arguments, home);
    for (name, text) in &parts {
        archive.start_file(name.as_str(), options).map_err(|error| failed(&error))?;
        archive
            .write_all(without_secrets(text, &secrets).as_bytes())
            .map_err(|error| failed(&error))?;
    }
    let file = archive.finish().map_err(|error| failed(&error))?;
    file.persist_noclobber(bundle).map_err(|error| failed(&error.error))?;
    say!("wrote `{}`: {} files without secrets", bundle.display(), parts.len());
    say!("read them before you send it: logs have names of users, addresses and paths");
    Ok(ExitCode::SUCCESS)
}

/// Returns the files of the archive.
fn bundle_parts(arguments: &StatusArgs, home: &Path) -> BTreeMap<String, String> {
    let remote = |path| fetch_text(&arguments.remote, path);
    let mut parts: BTreeMap<String, String> = [
        ("version.txt", Ok(version_text())),
        ("health.json", remote("/health")),
        ("metrics.txt", remote("/metrics")),
        ("settings.txt", shown_settings_text(home)),
        ("doctor.txt", diagnose_home_text(home)),
        ("sizes.txt", Ok(sizes_text(home))),
    ]
    .into_iter()
    .map(|(name, text)| {
        let text = text.unwrap_or_else(|fault| format!("not available: {}\n", fault.message()));
        (name.to_owned(), text)
    })
    .collect();
    for log in newest_logs(&home.join("logs")) {
        let name = log.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = read_end(&log).unwrap_or_else(|error| format!("not available: {error}\n"));
        parts.insert(format!("logs/{name}"), text);
    }
    parts
}

fn version_text() -> String {
    let [kernel, distribution] = ["/proc/version", "/etc/os-release"]
        .map(|file| std::fs::read_to_string(file).unwrap_or_default());
    format!(
        "tympan {} for {}\n{kernel}{distribution}",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH
    )
}

/// Returns size and number of files of each entry of the home.
fn sizes_text(home: &Path) -> String {
    let mut text = String::new();
    let mut left = MAX_COUNTED_FILES;
    for entry in sorted_entries(home) {
        let (bytes, files) = folder_size(&entry, &mut left);
        let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Writing to a string cannot fail.
        writeln!(text, "{bytes:>16} bytes {files:>9} files  {name}").ok();
    }
    if left == 0 {
        text.push_str("the sizes are incomplete, as there are more files\n");
    }
    text
}

fn folder_size(path: &Path, left: &mut u64) -> (u64, u64) {
    let Ok(facts) = path.symlink_metadata() else { return (0, 0) };
    if !facts.is_dir() {
        *left = left.saturating_sub(1);
        return (facts.len(), 1);
    }
    let (mut bytes, mut files) = (0_u64, 0);
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if *left == 0 {
            break;
        }
        let (more_bytes, more_files) = folder_size(&entry.path(), left);
        bytes = bytes.saturating_add(more_bytes);
        files += more_files;
    }
    (bytes, files)
}

/// Returns the logs that are being written: rotated ones end with a date.
fn newest_logs(folder: &Path) -> Vec<PathBuf> {
    let is_log = |file: &PathBuf| {
        file.extension().is_some_and(|extension| extension == "log" || extension == "jsonl")
    };
    sorted_entries(folder).into_iter().filter(is_log).take(MAX_LOGS).collect()
}

fn sorted_entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut entries: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    entries.sort();
    entries
}

/// Reads the last whole lines of a file.
fn read_end(file: &Path) -> std::io::Result<String> {
    let mut file = File::open(file)?;
    let skipped = file.metadata()?.len().saturating_sub(MAX_LOG_BYTES);
    file.seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    file.take(MAX_LOG_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(match text.split_once('\n') {
        Some((_, whole)) if skipped > 0 => whole.to_owned(),
        _ => text,
    })
}

/// Returns the secrets in the home's files and in the arguments, the longest first.
fn known_secrets(home: &Path, credentials: &InstanceLoginArgs) -> Vec<String> {
    let mut files: Vec<PathBuf> = SECRET_FILES.iter().map(|name| home.join(name)).collect();
    files.extend(sorted_entries(&home.join(PAIRS_FOLDER)));
    files.extend(credentials.token_file.clone());
    let mut texts: Vec<String> =
        files.iter().filter_map(|file| std::fs::read_to_string(file).ok()).collect();
    texts.extend(credentials.token.clone());
    let login = credentials.login.as_deref().and_then(|login| login.split_once(':'));
    let mut secrets: Vec<String> =
        login.map(|(_, password)| password.to_owned()).into_iter().collect();
    let is_separator =
        |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ',' | '?' | '=' | '&');
    let words = texts.iter().flat_map(|text| text.split(is_separator));
    secrets.extend(words.filter(|word| word.len() >= MIN_SECRET_BYTES).map(str::to_owned));
    secrets.retain(|secret| !secret.is_empty());
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets.dedup();
    secrets
}

fn without_secrets(text: &str, secrets: &[String]) -> String {
    secrets.iter().fold(text.to_owned(), |text, secret| match text.contains(secret.as_str()) {
        true => text.replace(secret.as_str(), "***"),
        false => text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_secret_files_are_replaced() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("replication.key"), "a-key-of-32-characters\n").unwrap();
        std::fs::create_dir(home.path().join(PAIRS_FOLDER)).unwrap();
        let pair = "purpose = \"send\"\nkey = \"another-key-of-a-pair\"\n";
        std::fs::write(home.path().join(PAIRS_FOLDER).join("one"), pair).unwrap();
        let credentials = InstanceLoginArgs {
            login: Some("ann:s3cret".to_owned()),
            ..InstanceLoginArgs::default()
        };
        let secrets = known_secrets(home.path(), &credentials);
        let text = "x a-key-of-32-characters, another-key-of-a-pair=s3cret purpose send";
        assert_eq!(without_secrets(text, &secrets), "x ***, ***=*** purpose send");
    }

    #[test]
    fn the_end_of_a_log_begins_with_a_whole_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("request.log");
        std::fs::write(&file, "first\nsecond\n").unwrap();
        assert_eq!(read_end(&file).unwrap(), "first\nsecond\n");
        let line = format!("{}\n", "a".repeat(1023));
        std::fs::write(&file, line.repeat(1000)).unwrap();
        let end = read_end(&file).unwrap();
        assert!(end.len() as u64 <= MAX_LOG_BYTES && end.len() > 500_000);
        assert!(end.lines().all(|line| line.len() == 1023));
    }
}
