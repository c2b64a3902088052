//! Files of a home that are saved with its repository, so that an instance can continue from a backup.
//!
//! Saved are its configuration and its keys, which the vault encrypts like all data; if requested, also the state
//! database with jobs and logins, as a consistent copy.
//!
//! Not saved are data that a home has derived from content (the full-text index, the ledger of a publisher), and its
//! logs.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use tympan_backup::HomeFile;
use tympan_home::{CONFIG_FILE, HomeAccess, KEY_FILE, STATE_FILE};

use crate::error::{Error, Result};

/// The files that are saved of each home that has them.
const SAVED_FILES: [&str; 2] = [CONFIG_FILE, KEY_FILE];

/// Whether a save includes jobs and logins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateDatabaseInclusion {
    /// They are saved.
    Included,
    /// They are not saved: a restored home starts without them.
    Excluded,
}

/// Reads the files of a home that are saved with its repository.
///
/// # Errors
/// If one cannot be read.
pub(crate) fn read_home_files(home: &Path, state: StateDatabaseInclusion) -> Result<Vec<HomeFile>> {
    let mut files = Vec::new();
    for name in SAVED_FILES {
        match fs::read(home.join(name)) {
            Ok(bytes) => files.push(HomeFile { name: name.to_owned(), bytes }),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                let file = home.join(name);
                let action = format!("cannot read `{}`", file.display());
                return Err(Error::File { action, source: error });
            }
        }
    }
    if state == StateDatabaseInclusion::Included && home.join(STATE_FILE).exists() {
        files.push(HomeFile { name: STATE_FILE.to_owned(), bytes: read_state_database(home)? });
    }
    Ok(files)
}

/// Reads a consistent copy of the state database, even while the instance writes it.
fn read_state_database(home: &Path) -> Result<Vec<u8>> {
    let file = home.join(STATE_FILE);
    let failed =
        |source| Error::File { action: format!("cannot copy `{}`", file.display()), source };
    let dir = tempfile::tempdir().map_err(failed)?;
    let copy = dir.path().join(STATE_FILE);
    // The caller may run on a thread of another runtime, where a second runtime cannot be entered.
    let copied = std::thread::scope(|scope| {
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime
                .block_on(tympan_store::copy_state_database(&file, &copy))
                .map_err(std::io::Error::other)
        };
        scope.spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    copied.map_err(failed)?;
    fs::read(&copy).map_err(failed)
}

/// Writes saved files into a restored home; returns the names of the written files. A configuration that stores the
/// repository or its blobs outside the home does not apply to the new home, which has them in its folder: it is written
/// under another name.
///
/// # Errors
/// If one cannot be written.
pub fn write_home_files(
    access: &HomeAccess,
    home: &Path,
    files: &[HomeFile],
) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for HomeFile { name, bytes } in files {
        // File names from a vault are not trusted as paths.
        if name != STATE_FILE && !SAVED_FILES.contains(&name.as_str()) {
            continue;
        }
        let is_elsewhere = name == CONFIG_FILE && is_stored_elsewhere(access, bytes);
        let name = if is_elsewhere { format!("{name}.saved") } else { name.clone() };
        let file = home.join(&name);
        let write = || -> std::io::Result<()> {
            let mut out =
                fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file)?;
            out.write_all(bytes)?;
            out.sync_all()
        };
        write().map_err(|source| {
            let action = format!("cannot write `{}`", file.display());
            Error::File { action, source }
        })?;
        names.push(name);
    }
    Ok(names)
}

/// Returns true if a configuration stores the repository or its blobs outside the home, or if it cannot be parsed.
fn is_stored_elsewhere(access: &HomeAccess, bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    (access.parse_config)(CONFIG_FILE, &text).map_or(true, |config| {
        config.database.url.is_some()
            || config.blobs.url.is_some()
            || !config.blobs.delegates.is_empty()
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use tympan_home::{BlobsSection, CollectSection, DatabaseSection, HomeConfig, HomeProcess};

    use super::*;

    /// Some sections of `tympan.toml`.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields, default)]
    #[derive(Default)]
    struct TestConfig {
        blobs: BlobsSection,
        collect: CollectSection,
        database: DatabaseSection,
    }

    fn access() -> HomeAccess {
        HomeAccess {
            parse_config: |file, text| {
                let TestConfig { blobs, collect, database } = tympan_home::parse_toml(file, text)?;
                Ok(HomeConfig { blobs, collect, database, ..HomeConfig::default() })
            },
            read_bucket_settings: || Ok(Vec::new()),
            database_url: None,
            blob_url: None,
            process: HomeProcess::Command,
        }
    }

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
            write_home_files(&access(), dir.path(), &files).unwrap(),
            ["tympan.toml.saved", "replication.key"]
        );
        assert!(!dir.path().join(CONFIG_FILE).exists());
        let read_again = read_home_files(dir.path(), StateDatabaseInclusion::Included).unwrap();
        assert_eq!(read_again, [file("replication.key", "key")]);
        assert!(is_stored_elsewhere(&access(), b"nonsense ="));
        assert!(!is_stored_elsewhere(&access(), b"[collect]\ninterval = \"1h\"\n"));
    }
}
