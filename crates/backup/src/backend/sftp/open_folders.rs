//! Folders that are open on the host before they are to be listed: to open one costs a round trip.
//!
//! What such a folder tells may be what it held when it was opened. Whoever lists it has to see in it that it is not.

use std::sync::Arc;

use futures_util::future;
use parking_lot::Mutex;

use super::link::{SftpChannel, SftpLink};
use super::remote_file;
use crate::backend::VaultFileKind;

/// Open folders, each with the channel that it was opened over.
#[derive(Default)]
pub(super) struct OpenFolderPool(Mutex<Vec<(VaultFileKind, Arc<SftpChannel>, String)>>);

impl std::fmt::Debug for OpenFolderPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenFolderPool").finish_non_exhaustive()
    }
}

impl OpenFolderPool {
    /// Opens folders over a channel. One that cannot be opened is left out: whoever lists it will be told why.
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

    /// Takes the one of a kind that was opened over a channel.
    pub(super) fn take(&self, kind: VaultFileKind, channel: &Arc<SftpChannel>) -> Option<String> {
        let mut opened = self.0.lock();
        let at =
            opened.iter().position(|(of, over, _)| *of == kind && Arc::ptr_eq(over, channel))?;
        Some(opened.swap_remove(at).2)
    }

    /// Closes those that were not needed.
    pub(super) fn close(&self, link: &SftpLink) {
        let left = std::mem::take(&mut *self.0.lock());
        if !left.is_empty() {
            link.block_on_runtime(async { close_folders(left) });
        }
    }
}

/// Closes folders, without waiting for it; within a runtime.
fn close_folders(folders: Vec<(VaultFileKind, Arc<SftpChannel>, String)>) {
    for (_, channel, handle) in folders {
        remote_file::close_later(channel, handle);
    }
}
