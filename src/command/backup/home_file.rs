//! Files of a home that are saved with its repository, so that an instance can go on from a backup.
//!
//! Its configuration and its keys, which the vault seals as all else; where that is asked for, also the state database with
//! jobs and logins, as it is at one moment.
//!
//! Not here: what a home has derived from content (the full-text index, the ledger of a publisher), and its logs.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use tympan_backup::HomeFile;

use crate::command::CommandFault;
use crate::config::{TympanConfig, parse_config_text};
use crate::home::error_chain_text;

/// The configuration.
const CONFIG_FILE: &str = "tympan.toml";
/// What is saved of each home that has it.
const SAVED_FILES: [&str; 2] = [CONFIG_FILE, "replication.key"];
/// The state database.
const STATE_FILE: &str = "state.db";

/// Whether jobs and logins are saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateDatabaseInclusion {
    /// They are.
    Included,
    /// They are not: who restores begins without them.
    Excluded,
}

/// Reads the files of a home that are saved with its repository.
///
/// # Errors
/// If one cannot be read.
pub(crate) fn read_home_files(
    home: &Path,
    state: StateDatabaseInclusion,
) -> Result<Vec<HomeFile>, CommandFault> {
    let mut files = Vec::new();
    for name in SAVED_FILES {
        match fs::read(home.join(name)) {
            Ok(bytes) => files.push(HomeFile { name: name.to_owned(), bytes }),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                let file = home.join(name);
                return Err(CommandFault::cannot_run(format!(
                    "cannot read `{}`: {error}",
                    file.display()
                )));
            }
        }
    }
    if state == StateDatabaseInclusion::Included && home.join(STATE_FILE).exists() {
        files.push(HomeFile { name: STATE_FILE.to_owned(), bytes: read_state_database(home)? });
    }
    Ok(files)
}

/// Reads the state database as it is at one moment, beside the instance that may be writing it.
fn read_state_database(home: &Path) -> Result<Vec<u8>, CommandFault> {
    let file = home.join(STATE_FILE);
    let cannot = |reason: String| {
        CommandFault::cannot_run(format!("cannot copy `{}`: {reason}", file.display()))
    };
    let dir = tempfile::tempdir().map_err(|error| cannot(error.to_string()))?;
    let copy = dir.path().join(STATE_FILE);
    // Whoever calls may be on a thread of another runtime, which no second one may be entered from.
    let copied = std::thread::scope(|scope| {
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| error.to_string())?;
            runtime
                .block_on(tympan_store::copy_state_database(&file, &copy))
                .map_err(|error| error_chain_text(&error))
        };
        scope.spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    copied.map_err(cannot)?;
    fs::read(&copy).map_err(|error| cannot(error.to_string()))
}

/// Writes saved files into a home that was restored; returns under which names. A configuration by which the repository or
/// its blobs lie elsewhere is not that of the new home, which has them in its folder: it is put beside.
///
/// # Errors
/// If one cannot be written.
pub(super) fn write_home_files(
    home: &Path,
    files: &[HomeFile],
) -> Result<Vec<String>, CommandFault> {
    let mut names = Vec::new();
    for HomeFile { name, bytes } in files {
        // What a vault says is not to be trusted with the place of a file.
        if name != STATE_FILE && !SAVED_FILES.contains(&name.as_str()) {
            continue;
        }
        let is_elsewhere = name == CONFIG_FILE && is_stored_elsewhere(bytes);
        let name = if is_elsewhere { format!("{name}.saved") } else { name.clone() };
        let file = home.join(&name);
        let write = || -> std::io::Result<()> {
            let mut out =
                fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file)?;
            out.write_all(bytes)?;
            out.sync_all()
        };
        write().map_err(|error| {
            CommandFault::cannot_run(format!("cannot write `{}`: {error}", file.display()))
        })?;
        names.push(name);
    }
    Ok(names)
}

/// Tells whether a configuration puts the repository or its blobs elsewhere than into the home; also where it cannot be read.
fn is_stored_elsewhere(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let config: Result<TympanConfig, _> = parse_config_text(CONFIG_FILE, &text);
    config.map_or(true, |config| {
        config.database.url.is_some()
            || config.blobs.url.is_some()
            || !config.blobs.delegates.is_empty()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_of_another_place_is_put_beside() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| HomeFile {
            name: name.to_owned(),
            bytes: text.as_bytes().to_vec(),
        };
        let files = [
            file(CONFIG_FILE, "[database]\nurl = \"postgres://x\"\n"),
            file("replication.key", "key"),
            file("../outside", "no"),
        ];
        assert_eq!(
            write_home_files(dir.path(), &files).unwrap(),
            ["tympan.toml.saved", "replication.key"]
        );
        assert!(!dir.path().join(CONFIG_FILE).exists());
        let read_again = read_home_files(dir.path(), StateDatabaseInclusion::Included).unwrap();
        assert_eq!(read_again, [file("replication.key", "key")]);
        assert!(is_stored_elsewhere(b"nonsense ="));
        assert!(!is_stored_elsewhere(b"[collect]\nevery = \"1h\"\n"));
    }
}
