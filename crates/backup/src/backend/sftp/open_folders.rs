//! Folders that are opened on the host before they are listed: opening one costs a round trip.
//!
//! The listing of such a folder may show its contents at the time it was opened. The caller has to detect that from the
//! listing.

use std::sync::Arc;

use futures_util::future;
use parking_lot::Mutex;

use super::link::{SftpChannel, SftpLink};
use super::remote_file;
use crate::backend::vault_file::VaultFileKind;

/// Open folder handles, each with the channel that it was opened over.
#[derive(Default)]
pub(super) struct OpenFolderPool(Mutex<Vec<(VaultFileKind, Arc<SftpChannel>, String)>>);

impl std::fmt::Debug for OpenFolderPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenFolderPool").finish_non_exhaustive()
    }
}

impl OpenFolderPool {
    /// Opens folders over a channel. One that cannot be opened is skipped: the later listing reports the error.
    pub(super) async fn open(
        &self,
        channel: &Arc<SftpChannel>,
        folders: &[(VaultFileKind, String)],
    ) {
        let opening = folders.iter().map(|(kind, path)| async move {
            remote_file::open_folder(channel, path).await.ok().map(|handle| (*kind, handle))
        });
        let opened = future::join_all(opening).await.into_iter().flatten();
        let opened = opened.map(|(kind, handle)| (kind, channel.clone(), handle)).collect();
        let before = std::mem::replace(&mut *self.0.lock(), opened);
        close_folders(before);
    }

    /// Takes the open folder of a kind that belongs to a channel.
    pub(super) fn take(&self, kind: VaultFileKind, channel: &Arc<SftpChannel>) -> Option<String> {
        let mut opened = self.0.lock();
        let at =
            opened.iter().position(|(of, over, _)| *of == kind && Arc::ptr_eq(over, channel))?;
        Some(opened.swap_remove(at).2)
    }

    /// Closes the folders that were not used.
    pub(super) fn close(&self, link: &SftpLink) {
        let left = std::mem::take(&mut *self.0.lock());
        if !left.is_empty() {
            link.block_on_runtime(async { close_folders(left) });
        }
    }
}

/// Closes folders without waiting; must be called within a runtime.
fn close_folders(folders: Vec<(VaultFileKind, Arc<SftpChannel>, String)>) {
    for (_, channel, handle) in folders {
        remote_file::close_later(channel, handle);
    }
}
