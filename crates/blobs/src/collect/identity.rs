//! Which repository a home is, when blobs are shared.
//!
//! A home that was copied names itself as its origin does, and its marks would stand in for those of the origin. So a
//! home notes where it is; found elsewhere, it takes a new name. A copy that is made with the whole machine looks the
//! same in every respect: it is found out by the turn of its last marks, which both sides remember.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use super::marks;
use crate::{Error, Result, WriteBlobs};

/// The name of a home among those who share blobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Letters and digits that no other home has.
    pub id: String,
    /// Whether it was found or made.
    pub kinship: Kinship,
    file: PathBuf,
    turns: Vec<String>,
}

/// What a home was found to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kinship {
    /// It is where it was.
    Known,
    /// It never had a name.
    New,
    /// It is a copy of another one, and has a name of its own now.
    Copy,
}

/// Where a file is, as far as the system can tell: no copy of it has the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whereabouts {
    machine: String,
    inode: u64,
    /// In microseconds since 1970; nothing where the file system does not tell.
    born: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Note {
    id: String,
    at: Whereabouts,
}

const ID_FILE: &str = "blobs.id";
const TURN_FILE: &str = "blobs.turn";
/// Turns that a home remembers: places of a composite may have failed at some of them.
const MAX_TURNS: usize = 16;

impl Identity {
    /// Reads the name of a home, or makes one from `fresh`: letters and digits that were never used before. `machine` is
    /// what tells this machine from others.
    ///
    /// # Errors
    /// If the files cannot be read or written.
    pub fn open(home: &Path, machine: &str, fresh: &str) -> Result<Self> {
        let file = home.join(ID_FILE);
        let note: Option<Note> = read(&file)?.and_then(|text| serde_json::from_slice(&text).ok());
        let kinship = match note {
            Some(Note { id, at }) if at == whereabouts(&file, machine)? => {
                let turns = read(&home.join(TURN_FILE))?.unwrap_or_default();
                let turns = String::from_utf8_lossy(&turns);
                let turns = turns.split_whitespace().map(str::to_owned).collect();
                return Ok(Self { id, kinship: Kinship::Known, file, turns });
            }
            Some(_) => Kinship::Copy,
            None => Kinship::New,
        };
        mint(&file, machine, fresh)?;
        Ok(Self { id: fresh.to_owned(), kinship, file, turns: Vec::new() })
    }

    /// Makes sure that the last marks in the place are those of this home, before it marks again with `turn`. If they are
    /// not, it is one of two homes that look the same, and gets the name `fresh`.
    ///
    /// # Errors
    /// If the place fails, or the files cannot be written.
    pub fn begin_turn(
        &mut self,
        place: &dyn WriteBlobs,
        (machine, fresh): (&str, &str),
        turn: &str,
    ) -> Result<()> {
        let last = marks::last(place, &self.id)?.map(|marked| marked.turn);
        if last.as_ref().is_some_and(|last| !self.turns.contains(last)) {
            mint(&self.file, machine, fresh)?;
            *self = Self {
                id: fresh.to_owned(),
                kinship: Kinship::Copy,
                file: self.file.clone(),
                turns: Vec::new(),
            };
        }
        // The former ones count, too: this process may die before the place has the new one.
        let mut turns = self.turns.clone();
        turns.push(turn.to_owned());
        turns.drain(..turns.len().saturating_sub(MAX_TURNS));
        write(&self.file.with_file_name(TURN_FILE), turns.join("\n").as_bytes())?;
        self.turns = turns;
        Ok(())
    }
}

/// Makes a name. The file stays the same one from then on: it is what tells copies apart.
fn mint(file: &Path, machine: &str, fresh: &str) -> Result<()> {
    remove(&file.with_file_name(TURN_FILE))?;
    remove(file)?;
    // Written twice: where it is can be told once it is there. One that holds no name is made again.
    write(file, b"")?;
    let note = Note { id: fresh.to_owned(), at: whereabouts(file, machine)? };
    let text = serde_json::to_vec(&note).map_err(|error| Error::Source(error.into()))?;
    write(file, &text)?;
    let folder = file.parent().unwrap_or(file);
    let synced = fs::File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(failed("sync", folder))
}

fn whereabouts(file: &Path, machine: &str) -> Result<Whereabouts> {
    let metadata = fs::metadata(file).map_err(failed("inspect", file))?;
    let born = metadata.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let born = born.and_then(|since| u64::try_from(since.as_micros()).ok());
    Ok(Whereabouts { machine: machine.to_owned(), inode: metadata.ino(), born })
}

fn read(file: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(file) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", file)(error)),
    }
}

/// Writes into the file, which stays the one that it is.
fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let mut out = fs::OpenOptions::new().write(true).create(true).truncate(true).open(file)?;
        out.write_all(bytes)?;
        out.sync_all()
    };
    write().map_err(failed("write", file))
}

fn remove(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", file)(error)),
        _ => Ok(()),
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Disk { action, path, source }
}
