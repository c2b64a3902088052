//! Files that are open on the host before there is anything to write into them: to open one costs a round trip.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tracing::debug;

use super::link::{SftpCallLoad, SftpChannel, SftpLink};
use super::remote_file::{self, SpareFile};

/// What a host has not removed by then stays, until a prune sweeps it away.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Spare files, open or being opened, in the order in which they were asked for.
#[derive(Default)]
pub(super) struct SpareFilePool(Mutex<VecDeque<JoinHandle<Option<SpareFile>>>>);

impl std::fmt::Debug for SpareFilePool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpareFilePool").finish_non_exhaustive()
    }
}

impl SpareFilePool {
    /// Begins to open files until there are so many, in a folder for such files.
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
                // Whoever wants to write will be told why he cannot.
                opened.inspect_err(|error| debug!(reason = ?error, "no spare file")).ok()
            });
            self.0.lock().extend(opening);
        }
    }

    /// Takes one that is open over a channel, waiting for it if it is being opened; nothing if there is none.
    pub(super) async fn take(&self, channel: &Arc<SftpChannel>) -> Option<SpareFile> {
        loop {
            let opening = self.0.lock().pop_front()?;
            match opening.await {
                Ok(Some(spare)) if Arc::ptr_eq(&spare.channel, channel) => return Some(spare),
                Ok(Some(other)) => drop(tokio::spawn(remote_file::remove_spare_file(other))),
                _ => {}
            }
        }
    }

    /// Removes those that were not needed.
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
