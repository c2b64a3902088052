//! The identity of a home among those that share blobs.
//!
//! A copied home has the same name as its original, and its marks would replace those of the original. So a home
//! records its location; if it is found elsewhere, it takes a new name. A copy of the whole machine is
//! indistinguishable; it is detected by the round of its last marks, which both sides record.
//!
//! If a repository is stored in a database, all homes on it are one repository: its name is stored there, too, and is
//! changed by one process at a time.

use std::fmt;
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use tympan_store::PostgresStore;

use super::mark;
use crate::{Error, ReadBlobs, Result};

/// The identity of a home among those that share blobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HomeIdentity {
    /// A unique name of letters and digits.
    pub id: String,
    /// The result of opening the identity.
    pub status: IdentityStatus,
    file: PathBuf,
    mark_rounds: Vec<MarkRound>,
}

/// A mark round that may be the last one in a storage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct MarkRound {
    turn: String,
    /// The storage's own name; empty if it was not recorded.
    place: String,
}

/// The result of opening an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdentityStatus {
    /// The home is at its recorded location.
    Existing,
    /// The home had no name.
    New,
    /// The home is a copy of another one, and now has a new name.
    Copy,
}

/// The identity of a file, as far as the system provides it: no copy has the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFingerprint {
    machine: String,
    inode: u64,
    /// The creation time in microseconds since 1970; `None` if the file system does not provide it.
    born: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct HomeIdentityNote {
    id: String,
    at: FileFingerprint,
}

const ID_FILE: &str = "blobs.id";
const MARK_ROUND_FILE: &str = "blobs.turn";
/// Maximum number of attempts to change a note that others change concurrently.
const MAX_SWAP_ATTEMPTS: usize = 100;

impl HomeIdentity {
    /// Reads the name of a home, or creates one from `fresh`: letters and digits that were never used before. `machine`
    /// identifies this machine.
    ///
    /// # Errors
    /// If the files cannot be read or written.
    pub fn open(home: &Path, machine: &str, fresh: &str) -> Result<Self> {
        let file = home.join(ID_FILE);
        let note: Option<HomeIdentityNote> =
            read_identity_file(&file)?.and_then(|text| serde_json::from_slice(&text).ok());
        let kinship = match note {
            Some(HomeIdentityNote { id, at }) if at == file_fingerprint(&file, machine)? => {
                let turns = read_identity_file(&home.join(MARK_ROUND_FILE))?.unwrap_or_default();
                let turns = String::from_utf8_lossy(&turns);
                let turns = turns.lines().filter_map(MarkRound::parse).collect();
                return Ok(Self { id, status: IdentityStatus::Existing, file, mark_rounds: turns });
            }
            Some(_) => IdentityStatus::Copy,
            None => IdentityStatus::New,
        };
        create_identity(&file, machine, fresh)?;
        Ok(Self { id: fresh.to_owned(), status: kinship, file, mark_rounds: Vec::new() })
    }

    /// Verifies that the last marks in the storage are those of this home, before it marks again with `turn`. If they
    /// are not, it is one of two identical homes, and gets the name `fresh`.
    ///
    /// # Errors
    /// If the storage fails, or the files cannot be written.
    pub fn begin_mark_round(
        &mut self,
        storage: &dyn ReadBlobs,
        (machine, fresh): (&str, &str),
        turn: &str,
    ) -> Result<()> {
        let turns = match next_mark_rounds(storage, &self.id, &self.mark_rounds, turn)? {
            Some(turns) => turns,
            None => {
                create_identity(&self.file, machine, fresh)?;
                *self = Self {
                    id: fresh.to_owned(),
                    status: IdentityStatus::Copy,
                    file: self.file.clone(),
                    mark_rounds: Vec::new(),
                };
                vec![MarkRound { turn: turn.to_owned(), place: format!("{storage:?}") }]
            }
        };
        let text: String = turns.iter().map(|round| format!("{round}\n")).collect();
        write_identity_file(&self.file.with_file_name(MARK_ROUND_FILE), text.as_bytes())?;
        self.mark_rounds = turns;
        Ok(())
    }
}

/// Returns the rounds that may occur in a storage from now on; `None` if the last one there belongs to another
/// repository with the same name.
fn next_mark_rounds(
    storage: &dyn ReadBlobs,
    id: &str,
    known_rounds: &[MarkRound],
    turn: &str,
) -> Result<Option<Vec<MarkRound>>> {
    let last = mark::read_last_marks(storage, id)?.map(|marked| marked.round);
    // A match for any storage counts: a storage that was moved has another name.
    let is_known = |last: &String| known_rounds.iter().any(|round| round.turn == *last);
    if last.as_ref().is_some_and(|last| !is_known(last)) {
        return Ok(None);
    }
    // The current round of the storage stays valid, too: this process may die before the storage has the new one. No
    // other round can occur there any more, however many marks failed.
    let name = format!("{storage:?}");
    let mut turns = known_rounds.to_vec();
    turns.retain(|round| round.place != name);
    let of_place = last.into_iter().chain([turn.to_owned()]);
    turns.extend(of_place.map(|turn| MarkRound { turn, place: name.clone() }));
    Ok(Some(turns))
}

/// A note that several processes read and write.
pub trait CompareAndSwapNote: Send + Sync {
    /// Reads the note; `None` if it was never written.
    ///
    /// # Errors
    /// If the read fails.
    fn read(&self) -> Result<Option<Vec<u8>>>;

    /// Writes the note if its content is `expected`; `false` if it is not. Of several concurrent attempts, one
    /// succeeds.
    ///
    /// # Errors
    /// If the write fails; the note may have been written then.
    fn compare_and_swap(&self, expected: Option<&[u8]>, new: &[u8]) -> Result<bool>;
}

impl CompareAndSwapNote for PostgresStore {
    fn read(&self) -> Result<Option<Vec<u8>>> {
        Ok(self.read_note(ID_FILE)?)
    }

    fn compare_and_swap(&self, expected: Option<&[u8]>, new: &[u8]) -> Result<bool> {
        Ok(self.swap_note(ID_FILE, expected, new)?)
    }
}

/// The identity of a repository in a database, among those that share blobs.
pub struct RepositoryIdentity {
    note: Arc<dyn CompareAndSwapNote>,
    database_location: String,
}

impl fmt::Debug for RepositoryIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedIdentity({})", self.database_location)
    }
}

/// The identity as stored in the database.
#[derive(Debug, Serialize, Deserialize)]
struct RepositoryIdentityNote {
    id: String,
    at: String,
    turns: Vec<MarkRound>,
}

impl RepositoryIdentity {
    /// Stores the identity in `note`. `at` distinguishes the database from its copies.
    #[must_use]
    pub fn new(note: Arc<dyn CompareAndSwapNote>, at: String) -> Self {
        Self { note, database_location: at }
    }

    /// Reads the name, or creates one from `fresh`: letters and digits that were never used before.
    ///
    /// # Errors
    /// If the note cannot be read or written.
    pub fn open(&self, fresh: &str) -> Result<(String, IdentityStatus)> {
        self.update_note(|stored_note| match stored_note {
            Some(note) if note.at == self.database_location => Ok((note, IdentityStatus::Existing)),
            existing_note => Ok((self.new_note(fresh), status_of_note(existing_note.as_ref()))),
        })
    }

    /// Verifies that the last marks in the storage are those of this repository, before it marks again with `turn`. If
    /// they are not, it is one of two identical repositories, and gets the name `fresh`.
    ///
    /// # Errors
    /// If the storage fails, or the note cannot be read or written.
    pub fn begin_mark_round(
        &self,
        storage: &dyn ReadBlobs,
        fresh: &str,
        turn: &str,
    ) -> Result<(String, IdentityStatus)> {
        self.update_note(|stored_note| {
            let (mut note, mut kinship) = match stored_note {
                Some(note) if note.at == self.database_location => (note, IdentityStatus::Existing),
                existing_note => (self.new_note(fresh), status_of_note(existing_note.as_ref())),
            };
            match next_mark_rounds(storage, &note.id, &note.turns, turn)? {
                Some(turns) => note.turns = turns,
                None => {
                    (note, kinship) = (self.new_note(fresh), IdentityStatus::Copy);
                    note.turns
                        .push(MarkRound { turn: turn.to_owned(), place: format!("{storage:?}") });
                }
            }
            Ok((note, kinship))
        })
    }

    fn new_note(&self, fresh: &str) -> RepositoryIdentityNote {
        RepositoryIdentityNote {
            id: fresh.to_owned(),
            at: self.database_location.clone(),
            turns: Vec::new(),
        }
    }

    /// Changes the note, retrying if another process changes it concurrently.
    fn update_note(
        &self,
        change: impl Fn(
            Option<RepositoryIdentityNote>,
        ) -> Result<(RepositoryIdentityNote, IdentityStatus)>,
    ) -> Result<(String, IdentityStatus)> {
        for _ in 0..MAX_SWAP_ATTEMPTS {
            let stored = self.note.read()?;
            let stored_note = stored.as_deref().and_then(|text| serde_json::from_slice(text).ok());
            let (note, kinship) = change(stored_note)?;
            let text = serde_json::to_vec(&note).map_err(Error::NoteEncoding)?;
            let is_same = stored.as_ref() == Some(&text);
            if is_same || self.note.compare_and_swap(stored.as_deref(), &text)? {
                return Ok((note.id, kinship));
            }
        }
        Err(Error::IdentityContended)
    }
}

fn status_of_note(stored_note: Option<&RepositoryIdentityNote>) -> IdentityStatus {
    if stored_note.is_some() { IdentityStatus::Copy } else { IdentityStatus::New }
}

impl MarkRound {
    fn parse(line: &str) -> Option<Self> {
        let (turn, storage_name) = line.split_once(' ').unwrap_or((line, ""));
        (!turn.is_empty()).then(|| Self { turn: turn.to_owned(), place: storage_name.to_owned() })
    }
}

impl fmt::Display for MarkRound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.turn, self.place)
    }
}

/// Returns the name of a home among those that share its blobs, without checking if it is a copy; `None` if it has
/// none. For reading the home of another owner.
///
/// # Errors
/// If the file exists and cannot be read.
pub fn read_home_id(home: &Path) -> Result<Option<String>> {
    let text = read_identity_file(&home.join(ID_FILE))?;
    Ok(text
        .and_then(|text| serde_json::from_slice::<HomeIdentityNote>(&text).ok())
        .map(|note| note.id))
}

/// Creates a name. From then on the file is never replaced: its identity distinguishes the home from copies.
fn create_identity(file: &Path, machine: &str, fresh: &str) -> Result<()> {
    remove_identity_file(&file.with_file_name(MARK_ROUND_FILE))?;
    remove_identity_file(file)?;
    // Written twice: the identity of the file is known only once it exists. A file without a name is created again.
    write_identity_file(file, b"")?;
    let note = HomeIdentityNote { id: fresh.to_owned(), at: file_fingerprint(file, machine)? };
    let text = serde_json::to_vec(&note).map_err(Error::NoteEncoding)?;
    write_identity_file(file, &text)?;
    let folder = file.parent().unwrap_or(file);
    let synced = fs::File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(disk_error("sync", folder))
}

fn file_fingerprint(file: &Path, machine: &str) -> Result<FileFingerprint> {
    let metadata = fs::metadata(file).map_err(disk_error("inspect", file))?;
    let born = metadata.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let born = born.and_then(|since| u64::try_from(since.as_micros()).ok());
    Ok(FileFingerprint { machine: machine.to_owned(), inode: metadata.ino(), born })
}

fn read_identity_file(file: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(file) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(disk_error("read", file)(error)),
    }
}

/// Writes to the existing file without replacing it.
fn write_identity_file(file: &Path, bytes: &[u8]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let mut options = fs::OpenOptions::new();
        let mut out = options.write(true).create(true).truncate(true).mode(0o600).open(file)?;
        out.write_all(bytes)?;
        out.sync_all()
    };
    write().map_err(disk_error("write", file))
}

fn remove_identity_file(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(disk_error("remove", file)(error)),
        _ => Ok(()),
    }
}

fn disk_error(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Disk { action, path, source }
}
