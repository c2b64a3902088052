//! A vault in a folder of another machine, over SFTP.
//!
//! In: an address, and keys. Out: a [`Backend`](super::Backend) whose calls come from any number of threads.
//!
//! A file is written and read in pieces that are on their way at once, so that a round trip is paid for the file and not
//! for the piece. A call whose connection breaks is done again over a new one, for as long as the patience lasts. Short files
//! are written into files that were opened while nobody waited (`spare`), and so are the folders that are listed behind a lock (`folders`).
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
mod folders;
pub(crate) mod known_hosts;
mod link;
mod spare;

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future;

pub use self::address::SftpAddress;
use self::folders::Folders;
use self::link::{Channel, Failure, Link, Load};
use self::spare::Spares;
use super::{Backend, FileKind, Listing, Staged, TEMPORARY, file_name, folder_name};
use crate::id::Id;

/// What is longer keeps a channel busy.
const SHORT: usize = 256 << 10;

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
    link: Arc<Link>,
    spares: Spares,
    /// Those that are looked at as soon as a lock has appeared.
    folders: Folders,
}

/// What whoever takes a lock lists next.
const LISTED_WITH_LOCKS: [FileKind; 3] = [FileKind::Lock, FileKind::Index, FileKind::Snapshot];

impl SftpBackend {
    /// Names the folder; nothing is connected yet. `place` is how people name it.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub fn new(place: &str, address: SftpAddress, options: SftpOptions) -> io::Result<Self> {
        let root = address.path.clone();
        let link = Arc::new(Link::new(address, options)?);
        let (spares, folders) = (Spares::default(), Folders::default());
        Ok(Self { place: place.to_owned(), root, link, spares, folders })
    }

    /// Returns how often a connection was made anew.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.link.reconnects()
    }

    fn file(&self, kind: FileKind, id: &Id) -> String {
        format!("{}/{}", self.root, file_name(kind, id))
    }

    fn folder(&self, kind: FileKind) -> String {
        format!("{}/{}", self.root, folder_name(kind))
    }

    /// Where files are that have no name yet.
    fn temporary(&self) -> String {
        format!("{}/{TEMPORARY}", self.root)
    }

    async fn list_over(
        &self,
        channel: &Arc<Channel>,
        kind: FileKind,
    ) -> Result<Vec<(Id, u64)>, Failure> {
        match kind {
            FileKind::Config => {
                let path = self.file(kind, &Id::default());
                let length = files::length(channel, &path).await?;
                let length = length.ok_or_else(|| Failure::Said(ErrorKind::NotFound.into()))?;
                Ok(vec![(Id::default(), length)])
            }
            FileKind::Pack => files::list_packs(channel, &format!("{}/data", self.root)).await,
            _ => files::list_ids(channel, &self.folder(kind)).await,
        }
    }

    /// Lists what is in a folder that may have been opened before.
    async fn list_opened(
        &self,
        channel: &Arc<Channel>,
        kind: FileKind,
    ) -> Result<Listing, Failure> {
        match self.folders.take(kind, channel) {
            Some(handle) => files::list_ids_opened(channel, (&self.folder(kind), handle)).await,
            None => self.list_over(channel, kind).await,
        }
    }

    /// Brings bytes into a file without a name; returns what it is called meanwhile.
    async fn stage_over(&self, channel: &Arc<Channel>, bytes: &[u8]) -> Result<String, Failure> {
        let spare = match load_of(bytes.len()) {
            Load::Short => self.spares.take(channel).await,
            Load::Long => None,
        };
        files::stage(channel, (&self.temporary(), spare), bytes).await
    }
}

const fn load_of(length: usize) -> Load {
    if length > SHORT { Load::Long } else { Load::Short }
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
        let is_taken = self.link.run(Load::Short, |channel| async move {
            match files::list(&channel, &self.root).await {
                Ok(entries) => Ok(!entries.is_empty()),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
                Err(error) => Err(error),
            }
        })?;
        if is_taken {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.link.run(Load::Short, |channel| async move {
            files::create_vault(&channel, &self.root).await
        })
    }

    fn list(&self, kind: FileKind) -> io::Result<Vec<(Id, u64)>> {
        self.link.run(Load::Short, |channel| async move { self.list_over(&channel, kind).await })
    }

    fn contains(&self, kind: FileKind, id: &Id) -> io::Result<bool> {
        let path = self.file(kind, id);
        self.link.run(Load::Short, |channel| {
            let path = &path;
            async move { Ok(files::length(&channel, path).await?.is_some()) }
        })
    }

    fn read(&self, kind: FileKind, id: &Id) -> io::Result<Vec<u8>> {
        let path = self.file(kind, id);
        let load = if kind == FileKind::Pack { Load::Long } else { Load::Short };
        self.link.run(load, |channel| {
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
        self.link.run(load_of(length), |channel| {
            let path = &path;
            async move { files::read_range(channel, path, (start, length)).await }
        })
    }

    fn write(&self, kind: FileKind, id: &Id, bytes: &[u8]) -> io::Result<()> {
        let path = self.file(kind, id);
        self.link.run(load_of(bytes.len()), |channel| {
            let path = &path;
            async move {
                let name = self.stage_over(&channel, bytes).await?;
                let over = (&*channel, channel.abilities().await?);
                files::reveal(over, (&name, path), bytes.len() as u64).await
            }
        })
    }

    fn stage(&self, kind: FileKind, id: &Id, bytes: Vec<u8>) -> io::Result<Staged> {
        let staged = self.link.run(load_of(bytes.len()), |channel| {
            let bytes = &bytes;
            async move {
                if kind != FileKind::Lock {
                    return self.stage_over(&channel, bytes).await;
                }
                let folders = LISTED_WITH_LOCKS.map(|kind| (kind, self.folder(kind)));
                let opening = self.folders.open(&channel, &folders);
                future::join(opening, self.stage_over(&channel, bytes)).await.1
            }
        });
        Ok(Staged { temporary: Some(staged?), ..Staged::held(kind, *id, bytes) })
    }

    fn reveal(&self, staged: &Staged) -> io::Result<()> {
        let Staged { kind, id, bytes, temporary } = staged;
        let Some(name) = temporary else { return self.write(*kind, id, bytes) };
        let path = self.file(*kind, id);
        let revealed = self.link.run(Load::Short, |channel| {
            let path = &path;
            async move {
                let over = (&*channel, channel.abilities().await?);
                files::reveal(over, (name, path), bytes.len() as u64).await
            }
        });
        match revealed {
            // It was revealed, and a connection broke before the host could say so; or the host has lost it.
            Err(error) if error.kind() == ErrorKind::NotFound => self.write(*kind, id, bytes),
            revealed => revealed,
        }
    }

    fn reveal_then_list(
        &self,
        staged: &Staged,
        kinds: &[FileKind],
    ) -> io::Result<Vec<io::Result<Listing>>> {
        let path = self.file(staged.kind, &staged.id);
        let done = self.link.wait(self.link.try_once(Load::Short, |channel| {
            let (path, temporary) = (&path, &staged.temporary);
            async move {
                let Some(name) = temporary else { return Ok(None) };
                // Only OpenSSH's, and what behaves like it, is known to do what it is asked for in that order.
                let abilities = channel.abilities().await?;
                if !abilities.can_replace {
                    return Ok(None);
                }
                let over = (&*channel, abilities);
                let revealing = files::reveal(over, (name, path), staged.bytes.len() as u64);
                let lists = kinds.iter().map(|kind| self.list_opened(&channel, *kind));
                // The first requests of each are sent in this order.
                let (revealed, lists) = future::join(revealing, future::join_all(lists)).await;
                revealed?;
                let lists = lists.into_iter().collect::<Result<Vec<_>, _>>()?;
                // A folder that was opened before may tell of what it held then. One that names what has just appeared
                // does not.
                let own = kinds.iter().position(|kind| *kind == staged.kind);
                let is_seen = own
                    .and_then(|own| lists.get(own))
                    .is_some_and(|list| list.iter().any(|(id, _)| *id == staged.id));
                if is_seen {
                    return Ok(Some(lists));
                }
                let lists = kinds.iter().map(|kind| self.list_over(&channel, *kind));
                future::try_join_all(lists).await.map(Some)
            }
        }));
        match done {
            Some(Ok(Some(lists))) => Ok(lists.into_iter().map(Ok).collect()),
            // Step by step, which tells what is wrong, or goes on over another connection.
            _ => {
                self.reveal(staged)?;
                Ok(kinds.iter().map(|kind| self.list(*kind)).collect())
            }
        }
    }

    fn discard(&self, staged: &Staged) {
        self.folders.close(&self.link);
        let Some(name) = &staged.temporary else { return };
        let removed =
            self.link.wait(self.link.try_once(Load::Short, |channel| async move {
                files::remove(&channel, name).await
            }));
        if let Some(Err(error)) = removed {
            // A prune sweeps it away.
            tracing::debug!(reason = ?error, "a file without a name stays on the host");
        }
    }

    fn expect_writes(&self, files: usize) {
        self.spares.prepare((&self.link, &self.temporary()), files);
    }

    fn expect_no_writes(&self) {
        self.folders.close(&self.link);
        self.spares.remove_all(&self.link);
    }

    fn remove(&self, kind: FileKind, id: &Id) -> io::Result<()> {
        let path = self.file(kind, id);
        self.link.run(Load::Short, |channel| {
            let path = &path;
            async move { files::remove(&channel, path).await }
        })
    }

    fn remove_leftovers(&self, now: SystemTime) -> io::Result<()> {
        let folder = self.temporary();
        self.link.run(Load::Short, |channel| {
            let folder = &folder;
            async move { files::sweep(&channel, folder, now).await }
        })
    }

    fn remove_folders(&self) -> io::Result<()> {
        self.spares.remove_all(&self.link);
        self.link.run(Load::Short, |channel| async move {
            files::remove_vault(&channel, &self.root).await
        })
    }
}
