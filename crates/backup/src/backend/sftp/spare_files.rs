//! Files that are opened on the host before they are written: opening one costs a round trip.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tracing::debug;

use super::link::{SftpCallLoad, SftpChannel, SftpLink};
use super::remote_file::{self, SpareFile};

/// Time limit for removing spare files. A prune removes those that remain.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Spare files, open or being opened, in the order of their requests.
#[derive(Default)]
pub(super) struct SpareFilePool(Mutex<VecDeque<JoinHandle<Option<SpareFile>>>>);

impl std::fmt::Debug for SpareFilePool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpareFilePool").finish_non_exhaustive()
    }
}

impl SpareFilePool {
    /// Opens files in a folder of temporary files until `count` are available or being opened.
    pub(super) fn prepare(&self, (link, temporary): (&Arc<SftpLink>, &str), count: usize) {
        let there = self.0.lock().len();
        for _ in there..count {
            let (over, temporary) = (link.clone(), temporary.to_owned());
            let opening = link.spawn(async move {
                let opened = over
                    .try_once(SftpCallLoad::Short, |channel| async move {
                        remote_file::open_spare_file(channel, &temporary).await
                    })
                    .await;
                // The later write reports the reason.
                opened.inspect_err(|error| debug!(reason = ?error, "cannot open a spare file")).ok()
            });
            self.0.lock().extend(opening);
        }
    }

    /// Takes a file that is open over a channel, waiting for it if it is being opened; `None` if there is none.
    pub(super) async fn take(&self, channel: &Arc<SftpChannel>) -> Option<SpareFile> {
        loop {
            let opening = self.0.lock().pop_front()?;
            match opening.await {
                Ok(Some(spare)) if Arc::ptr_eq(&spare.channel, channel) => return Some(spare),
                Ok(Some(stale_spare)) => {
                    drop(tokio::spawn(remote_file::remove_spare_file(stale_spare)))
                }
                _ => {}
            }
        }
    }

    /// Removes the files that were not used.
    pub(super) fn remove_all(&self, link: &SftpLink) {
        let left = std::mem::take(&mut *self.0.lock());
        if left.is_empty() {
            return;
        }
        link.block_on_runtime(async {
            let removing = left.into_iter().map(|opening| async {
                if let Ok(Some(spare)) = opening.await {
                    remote_file::remove_spare_file(spare).await;
                }
            });
            let removed = futures_util::future::join_all(removing);
            tokio::time::timeout(REMOVAL_TIMEOUT, removed).await.ok();
        });
    }
}
