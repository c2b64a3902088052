//! A vault in a folder of another machine, over SFTP.
//!
//! In: an address, and keys. Out: a [`Backend`](super::Backend) whose calls come from any number of threads.
//!
//! A file is written and read in pieces that are on their way at once, so that a round trip is paid for the file and not
//! for the piece. A call whose connection breaks is done again over a new one, for as long as the patience lasts.
//!
//! Invariants
//! * A file is written under a name of its own in `tmp`, synced where the host offers that, and renamed: after a loss of
//!   the connection, or of the process here, it is whole or absent. Whether a loss of power there keeps the name is up
//!   to the host's file system: SFTP cannot sync a folder.
//! * No byte is sent to a host whose key is not the one that it is known by.
//!
//! Not here: passwords; `~/.ssh/config`.

mod address;
mod connect;
mod files;
pub(crate) mod known_hosts;
mod link;

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

pub use self::address::SftpAddress;
use self::link::{Failure, Link};
use super::{Backend, FileKind, file_name, folder_name};
use crate::id::Id;

/// What to do about a host of which nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownHost {
    /// It is refused.
    #[default]
    Refuse,
    /// Its key is written into the first file of known hosts. One that shows another key than before is refused anyway.
    Record,
}

/// How a host is reached.
#[derive(Clone, Debug)]
pub struct SftpOptions {
    /// The user, where the address names none.
    pub user: String,
    /// Files with private keys that were named; then no others are tried.
    pub keys: Vec<PathBuf>,
    /// Files with private keys that are tried if they are there.
    pub usual_keys: Vec<PathBuf>,
    /// The socket of the agent of keys.
    pub agent: Option<PathBuf>,
    /// The files that say which host has which key; new ones go into the first.
    pub known_hosts: Vec<PathBuf>,
    /// What to do about a host that none of them knows.
    pub unknown_host: UnknownHost,
    /// Calls that are on their way at once.
    pub connections: usize,
    /// For how long a call is tried again whose connection broke.
    pub patience: Duration,
}

impl Default for SftpOptions {
    fn default() -> Self {
        Self {
            user: String::new(),
            keys: Vec::new(),
            usual_keys: Vec::new(),
            agent: None,
            known_hosts: Vec::new(),
            unknown_host: UnknownHost::default(),
            connections: 5,
            patience: Duration::from_mins(2),
        }
    }
}

/// A vault's folder on another machine.
#[derive(Debug)]
pub struct SftpBackend {
    place: String,
    root: String,
    link: Link,
}

impl SftpBackend {
    /// Names the folder; nothing is connected yet. `place` is how people name it.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub fn new(place: &str, address: SftpAddress, options: SftpOptions) -> io::Result<Self> {
        let root = address.path.clone();
        Ok(Self { place: place.to_owned(), root, link: Link::new(address, options)? })
    }

    /// Returns how often a connection was made anew.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.link.reconnects()
    }

    fn file(&self, kind: FileKind, id: &Id) -> String {
        format!("{}/{}", self.root, file_name(kind, id))
    }
}

impl Backend for SftpBackend {
    fn place(&self) -> String {
        self.place.clone()
    }

    fn connections(&self) -> usize {
        self.link.options().connections
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn create(&self) -> io::Result<()> {
        let is_taken = self.link.run(|channel| async move {
            match files::list(&channel, &self.root).await {
                Ok(entries) => Ok(!entries.is_empty()),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
                Err(error) => Err(error),
            }
        })?;
        if is_taken {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.link.run(|channel| async move { files::create_vault(&channel, &self.root).await })
    }

    fn list(&self, kind: FileKind) -> io::Result<Vec<(Id, u64)>> {
        self.link.run(|channel| async move {
            match kind {
                FileKind::Config => {
                    let path = self.file(kind, &Id::default());
                    let length = files::length(&channel, &path).await?;
                    let length = length.ok_or_else(|| Failure::Said(ErrorKind::NotFound.into()))?;
                    Ok(vec![(Id::default(), length)])
                }
                FileKind::Pack => files::list_packs(&channel, &format!("{}/data", self.root)).await,
                _ => {
                    let folder = format!("{}/{}", self.root, folder_name(kind));
                    files::list_ids(&channel, &folder).await
                }
            }
        })
    }

    fn contains(&self, kind: FileKind, id: &Id) -> io::Result<bool> {
        let path = self.file(kind, id);
        self.link.run(|channel| {
            let path = &path;
            async move { Ok(files::length(&channel, path).await?.is_some()) }
        })
    }

    fn read(&self, kind: FileKind, id: &Id) -> io::Result<Vec<u8>> {
        let path = self.file(kind, id);
        self.link.run(|channel| {
            let path = &path;
            async move { files::read(channel, path).await }
        })
    }

    fn read_range(
        &self,
        kind: FileKind,
        id: &Id,
        start: u64,
        length: usize,
    ) -> io::Result<Vec<u8>> {
        let path = self.file(kind, id);
        self.link.run(|channel| {
            let path = &path;
            async move { files::read_range(channel, path, (start, length)).await }
        })
    }

    fn write(&self, kind: FileKind, id: &Id, bytes: &[u8]) -> io::Result<()> {
        let path = self.file(kind, id);
        let temporary = format!("{}/tmp", self.root);
        self.link.run(|channel| {
            let (path, temporary) = (&path, &temporary);
            async move { files::write(&channel, (temporary, path), bytes).await }
        })
    }

    fn remove(&self, kind: FileKind, id: &Id) -> io::Result<()> {
        let path = self.file(kind, id);
        self.link.run(|channel| {
            let path = &path;
            async move { files::remove(&channel, path).await }
        })
    }

    fn remove_leftovers(&self, now: SystemTime) -> io::Result<()> {
        let folder = format!("{}/tmp", self.root);
        self.link.run(|channel| {
            let folder = &folder;
            async move { files::sweep(&channel, folder, now).await }
        })
    }
}
