//! A document root by its name, reopened when the folder is replaced.
//!
//! People clear a cache with `rm -rf` or by renaming the folder while the server runs. The open folder would then be
//! one that is not visible at its path any more.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use parking_lot::{Mutex, RwLock};

use super::docroot::Docroot;
use super::usage::DocrootUsage;
use crate::cache::negative_cache::NegativeCache;
use crate::cache::surrogate_key::SurrogateKeyIndex;
use crate::flush::numbering::FlushOrderCounts;
use crate::flush::propagation::{FailedMessages, FarmEventLog};
use crate::flush::visit_address::VisitAddresses;

/// A document root of one farm.
#[derive(Debug)]
pub(crate) struct DocrootState {
    path: PathBuf,
    mode: u32,
    open_docroot: RwLock<Arc<Docroot>>,
    /// The index of files by surrogate key.
    pub(crate) surrogate_keys: SurrogateKeyIndex,
    /// The cached errors of its files.
    pub(crate) negative_cache: NegativeCache,
    /// The addresses at which its pages were requested.
    pub(crate) visits: VisitAddresses,
    /// The time of the last flush, whatever it named.
    last_flush_at: Mutex<Option<SystemTime>>,
    /// Its disk usage.
    pub(crate) usage: Arc<DocrootUsage>,
    /// The counts of flushes by their order of arrival.
    pub(crate) flush_orders: FlushOrderCounts,
    /// The event logs for the siblings of farms, by farm name.
    event_logs: Mutex<BTreeMap<String, Arc<FarmEventLog>>>,
    /// Held while events of a sibling are applied; holds the last failures.
    pub(crate) failed_messages: tokio::sync::Mutex<FailedMessages>,
    started_at: Instant,
    /// The second, counted from `started_at`, in which the folder was last compared with its name.
    last_compared_second: AtomicU64,
}

impl DocrootState {
    /// Returns the root as it was last opened, whatever its path refers to now.
    pub(crate) fn last_opened(&self) -> Arc<Docroot> {
        Arc::clone(&self.open_docroot.read())
    }

    /// Opens the root at `path` and creates it if it is absent.
    pub(crate) fn open(path: &Path, mode: u32) -> io::Result<Self> {
        let usage = Arc::new(DocrootUsage::default());
        Ok(Self {
            path: path.to_owned(),
            mode,
            open_docroot: RwLock::new(Arc::new(Docroot::open(path, mode, Arc::clone(&usage))?)),
            surrogate_keys: SurrogateKeyIndex::default(),
            negative_cache: NegativeCache::default(),
            visits: VisitAddresses::default(),
            last_flush_at: Mutex::default(),
            usage,
            flush_orders: FlushOrderCounts::default(),
            event_logs: Mutex::default(),
            failed_messages: tokio::sync::Mutex::default(),
            started_at: Instant::now(),
            last_compared_second: AtomicU64::new(0),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Records that a flush came at `now`: cached errors and older copies of siblings become invalid.
    pub(crate) fn record_flush(&self, now: SystemTime) {
        let mut flushed = self.last_flush_at.lock();
        *flushed = flushed.max(Some(now));
        drop(flushed);
        self.negative_cache.invalidate_all();
        self.last_opened().store_flush_time(now);
    }

    /// Returns the time of the last flush of this process or earlier ones.
    pub(crate) fn last_flush_at(&self) -> Option<SystemTime> {
        self.last_flush_at.lock().max(self.last_opened().last_earlier_change)
    }

    /// Returns the event log for the siblings of a farm.
    pub(crate) fn event_log_of(&self, farm: &str) -> Arc<FarmEventLog> {
        let mut logs = self.event_logs.lock();
        let log =
            logs.entry(farm.to_owned()).or_insert_with(|| Arc::new(FarmEventLog::for_farm(farm)));
        Arc::clone(log)
    }

    /// Returns true if `path` is another name of this root's folder, for example one with `..` or through a link.
    pub(crate) fn is_same_folder_as(&self, path: &Path) -> bool {
        let named = std::fs::metadata(path);
        named.is_ok_and(|named| self.last_opened().is_same_folder(named.dev(), named.ino()))
    }

    /// Returns the open root for reading; checks it against its name at most once a second.
    pub(crate) fn docroot_for_reading(&self) -> Arc<Docroot> {
        let second = self.started_at.elapsed().as_secs();
        if self.last_compared_second.swap(second, Ordering::Relaxed) != second
            && let Ok(opened) = self.docroot_for_writing()
        {
            return opened;
        }
        Arc::clone(&self.open_docroot.read())
    }

    /// Returns the open root for writing; reopens it if its name now refers to another folder.
    ///
    /// # Errors
    /// Fails if the root cannot be opened.
    pub(crate) fn docroot_for_writing(&self) -> io::Result<Arc<Docroot>> {
        let opened = Arc::clone(&self.open_docroot.read());
        if self.is_current(&opened) {
            return Ok(opened);
        }
        let mut open_docroot = self.open_docroot.write();
        if !self.is_current(&open_docroot) {
            *open_docroot =
                Arc::new(Docroot::open(&self.path, self.mode, Arc::clone(&self.usage))?);
            self.usage.forget_amount();
            tracing::info!(file = %self.path.display(), "document root replaced and reopened");
        }
        Ok(Arc::clone(&open_docroot))
    }

    fn is_current(&self, opened: &Docroot) -> bool {
        let named = std::fs::metadata(&self.path);
        named.is_ok_and(|named| opened.is_same_folder(named.dev(), named.ino()))
            && opened.is_writable()
    }
}
