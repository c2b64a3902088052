//! A vault in a folder on another machine, over SFTP.
//!
//! In: an address, and keys. Out: a [`VaultBackend`](super::VaultBackend) whose calls come from any number of threads.
//!
//! A file is written and read in pieces that are transferred concurrently, so that a round trip is paid per file and
//! not per piece. A call whose connection breaks is repeated over a new one until the retry timeout. Short files are
//! written to files that were opened ahead of time (`spare_files`), and the folders that are listed after taking a lock
//! are opened ahead of time, too (`open_folders`).
//!
//! Invariants
//! * A file is written under a unique name in `tmp`, synced where the host supports it, and renamed: after a loss of
//!   the connection, or of this process, it is complete or absent. Whether the name survives a power loss on the host
//!   is up to the host's file system: SFTP cannot sync a folder.
//! * No byte is sent to a host whose key does not match its known one.
//!
//! Not here: passwords; `~/.ssh/config`.

mod address;
mod connection;
mod failure;
pub(crate) mod known_hosts;
mod link;
mod open_folders;
mod options;
mod remote_file;
mod spare_files;

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::future;

pub use self::address::SftpAddress;
use self::failure::SftpFailure;
use self::link::{SftpCallLoad, SftpChannel, SftpLink};
use self::open_folders::OpenFolderPool;
pub use self::options::{SftpOptions, UnknownHostPolicy};
use self::spare_files::SpareFilePool;
use super::staged_file::StagedFile;
use super::vault_backend::VaultBackend;
use super::vault_file::{
    TEMP_DIR, VaultFileKind, VaultFileListing, kind_folder_name, vault_file_path,
};
use crate::object_id::VaultObjectId;

/// Calls with more bytes than this count as long.
const SHORT_CALL_BYTES: usize = 256 << 10;

/// A vault in a folder on another machine.
#[derive(Debug)]
pub struct SftpBackend {
    location: String,
    root: String,
    link: Arc<SftpLink>,
    spare_files: SpareFilePool,
    /// The folders that are listed as soon as a lock has been written.
    open_folders: OpenFolderPool,
}

/// The kinds that are listed after taking a lock.
const KINDS_LISTED_WITH_LOCKS: [VaultFileKind; 3] =
    [VaultFileKind::Lock, VaultFileKind::Index, VaultFileKind::Snapshot];

impl SftpBackend {
    /// Creates a backend for the folder, without connecting. `location` is the location as shown to users.
    ///
    /// # Errors
    /// If the system cannot create threads.
    pub fn new(location: &str, address: SftpAddress, options: SftpOptions) -> io::Result<Self> {
        let root = address.path.clone();
        let link = Arc::new(SftpLink::new(address, options)?);
        let (spares, folders) = (SpareFilePool::default(), OpenFolderPool::default());
        Ok(Self {
            location: location.to_owned(),
            root,
            link,
            spare_files: spares,
            open_folders: folders,
        })
    }

    /// Returns the number of reconnections.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.link.reconnects()
    }

    fn file_path(&self, kind: VaultFileKind, id: &VaultObjectId) -> String {
        format!("{}/{}", self.root, vault_file_path(kind, id))
    }

    fn folder_path(&self, kind: VaultFileKind) -> String {
        format!("{}/{}", self.root, kind_folder_name(kind))
    }

    /// Returns the folder of staged files.
    fn temp_folder_path(&self) -> String {
        format!("{}/{TEMP_DIR}", self.root)
    }

    async fn list_over(
        &self,
        channel: &Arc<SftpChannel>,
        kind: VaultFileKind,
    ) -> Result<Vec<(VaultObjectId, u64)>, SftpFailure> {
        match kind {
            VaultFileKind::Config => {
                let path = self.file_path(kind, &VaultObjectId::default());
                let length = remote_file::find_file_length(channel, &path).await?;
                let length =
                    length.ok_or_else(|| SftpFailure::Rejected(ErrorKind::NotFound.into()))?;
                Ok(vec![(VaultObjectId::default(), length)])
            }
            VaultFileKind::Pack => {
                remote_file::list_packs(channel, &format!("{}/data", self.root)).await
            }
            _ => remote_file::list_ids(channel, &self.folder_path(kind)).await,
        }
    }

    /// Lists a folder that may have been opened ahead of time.
    async fn list_preopened(
        &self,
        channel: &Arc<SftpChannel>,
        kind: VaultFileKind,
    ) -> Result<VaultFileListing, SftpFailure> {
        match self.open_folders.take(kind, channel) {
            Some(handle) => {
                remote_file::list_ids_in_open_folder(channel, &self.folder_path(kind), handle).await
            }
            None => self.list_over(channel, kind).await,
        }
    }

    /// Writes bytes to a staged file; returns its temporary name.
    async fn stage_over(
        &self,
        channel: &Arc<SftpChannel>,
        bytes: &[u8],
    ) -> Result<String, SftpFailure> {
        let spare = match call_load(bytes.len()) {
            SftpCallLoad::Short => self.spare_files.take(channel).await,
            SftpCallLoad::Long => None,
        };
        remote_file::stage_file(channel, (&self.temp_folder_path(), spare), bytes).await
    }
}

const fn call_load(length: usize) -> SftpCallLoad {
    if length > SHORT_CALL_BYTES { SftpCallLoad::Long } else { SftpCallLoad::Short }
}

impl VaultBackend for SftpBackend {
    fn location(&self) -> String {
        self.location.clone()
    }

    fn connections(&self) -> usize {
        self.link.options().connections
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn create(&self) -> io::Result<()> {
        let is_taken = self.link.run_with_retries(SftpCallLoad::Short, |channel| async move {
            match remote_file::list_folder(&channel, &self.root).await {
                Ok(entries) => Ok(!entries.is_empty()),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
                Err(error) => Err(error),
            }
        })?;
        if is_taken {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.link.run_with_retries(SftpCallLoad::Short, |channel| async move {
            remote_file::create_vault_folders(&channel, &self.root).await
        })
    }

    fn list(&self, kind: VaultFileKind) -> io::Result<Vec<(VaultObjectId, u64)>> {
        self.link.run_with_retries(SftpCallLoad::Short, |channel| async move {
            self.list_over(&channel, kind).await
        })
    }

    fn contains(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<bool> {
        let path = self.file_path(kind, id);
        self.link.run_with_retries(SftpCallLoad::Short, |channel| {
            let path = &path;
            async move { Ok(remote_file::find_file_length(&channel, path).await?.is_some()) }
        })
    }

    fn read(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<Vec<u8>> {
        let path = self.file_path(kind, id);
        let load =
            if kind == VaultFileKind::Pack { SftpCallLoad::Long } else { SftpCallLoad::Short };
        self.link.run_with_retries(load, |channel| {
            let path = &path;
            async move { remote_file::read_file(channel, path).await }
        })
    }

    fn read_range(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        start: u64,
        length: usize,
    ) -> io::Result<Vec<u8>> {
        let path = self.file_path(kind, id);
        self.link.run_with_retries(call_load(length), |channel| {
            let path = &path;
            async move { remote_file::read_file_range(channel, path, (start, length)).await }
        })
    }

    fn write(&self, kind: VaultFileKind, id: &VaultObjectId, bytes: &[u8]) -> io::Result<()> {
        let path = self.file_path(kind, id);
        self.link.run_with_retries(call_load(bytes.len()), |channel| {
            let path = &path;
            async move {
                let name = self.stage_over(&channel, bytes).await?;
                let over = (&*channel, channel.capabilities().await?);
                remote_file::reveal_file(over, (&name, path), bytes.len() as u64).await
            }
        })
    }

    fn stage(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        bytes: Vec<u8>,
    ) -> io::Result<StagedFile> {
        let staged = self.link.run_with_retries(call_load(bytes.len()), |channel| {
            let bytes = &bytes;
            async move {
                if kind != VaultFileKind::Lock {
                    return self.stage_over(&channel, bytes).await;
                }
                let folders = KINDS_LISTED_WITH_LOCKS.map(|kind| (kind, self.folder_path(kind)));
                let opening = self.open_folders.open(&channel, &folders);
                future::join(opening, self.stage_over(&channel, bytes)).await.1
            }
        });
        Ok(StagedFile { temp_name: Some(staged?), ..StagedFile::in_memory(kind, *id, bytes) })
    }

    fn reveal(&self, staged: &StagedFile) -> io::Result<()> {
        let StagedFile { kind, id, bytes, temp_name } = staged;
        let Some(name) = temp_name else { return self.write(*kind, id, bytes) };
        let path = self.file_path(*kind, id);
        let revealed = self.link.run_with_retries(SftpCallLoad::Short, |channel| {
            let path = &path;
            async move {
                let over = (&*channel, channel.capabilities().await?);
                remote_file::reveal_file(over, (name, path), bytes.len() as u64).await
            }
        });
        match revealed {
            // The file was revealed and the connection broke before the response, or the host has lost it.
            Err(error) if error.kind() == ErrorKind::NotFound => self.write(*kind, id, bytes),
            revealed => revealed,
        }
    }

    fn reveal_then_list(
        &self,
        staged: &StagedFile,
        kinds: &[VaultFileKind],
    ) -> io::Result<Vec<io::Result<VaultFileListing>>> {
        let path = self.file_path(staged.kind, &staged.id);
        let done = self.link.block_on_runtime(self.link.try_once(SftpCallLoad::Short, |channel| {
            let (path, temporary) = (&path, &staged.temp_name);
            async move {
                let Some(name) = temporary else { return Ok(None) };
                // Only OpenSSH's server, and compatible ones, are known to process requests in the order in which they
                // are sent.
                let abilities = channel.capabilities().await?;
                if !abilities.can_replace {
                    return Ok(None);
                }
                let over = (&*channel, abilities);
                let revealing =
                    remote_file::reveal_file(over, (name, path), staged.bytes.len() as u64);
                let lists = kinds.iter().map(|kind| self.list_preopened(&channel, *kind));
                // The first requests of each are sent in this order.
                let (revealed, lists) = future::join(revealing, future::join_all(lists)).await;
                revealed?;
                let lists = lists.into_iter().collect::<Result<Vec<_>, _>>()?;
                // A folder that was opened before may list what it contained then. A listing that includes the file
                // that was revealed is current.
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
            // Repeat step by step, which reports the error or continues over another connection.
            _ => {
                self.reveal(staged)?;
                Ok(kinds.iter().map(|kind| self.list(*kind)).collect())
            }
        }
    }

    fn discard(&self, staged: &StagedFile) {
        self.open_folders.close(&self.link);
        let Some(name) = &staged.temp_name else { return };
        let removed = self.link.block_on_runtime(
            self.link.try_once(SftpCallLoad::Short, |channel| async move {
                remote_file::remove_file(&channel, name).await
            }),
        );
        if let Some(Err(error)) = removed {
            // A prune removes it.
            tracing::debug!(reason = ?error, "cannot remove a temporary file from the host");
        }
    }

    fn expect_writes(&self, files: usize) {
        self.spare_files.prepare((&self.link, &self.temp_folder_path()), files);
    }

    fn expect_no_writes(&self) {
        self.open_folders.close(&self.link);
        self.spare_files.remove_all(&self.link);
    }

    fn remove(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<()> {
        let path = self.file_path(kind, id);
        self.link.run_with_retries(SftpCallLoad::Short, |channel| {
            let path = &path;
            async move { remote_file::remove_file(&channel, path).await }
        })
    }

    fn remove_leftovers(&self, now: SystemTime) -> io::Result<()> {
        let folder = self.temp_folder_path();
        self.link.run_with_retries(SftpCallLoad::Short, |channel| {
            let folder = &folder;
            async move { remote_file::remove_abandoned_files(&channel, folder, now).await }
        })
    }

    fn remove_folders(&self) -> io::Result<()> {
        self.spare_files.remove_all(&self.link);
        self.link.run_with_retries(SftpCallLoad::Short, |channel| async move {
            remote_file::remove_vault_folders(&channel, &self.root).await
        })
    }
}
