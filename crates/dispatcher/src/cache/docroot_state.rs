//! A document root by its name, opened anew when someone replaced the folder.
//!
//! People clear a cache with `rm -rf` or by renaming the folder while the server runs. The open folder would then be one
//! that nobody sees any more.

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
use crate::flush_numbering::FlushOrderCounts;
use crate::flush_propagation::{FailedMessages, FarmEventLog};
use crate::negative_cache::NegativeCache;
use crate::surrogate_key::SurrogateKeyIndex;
use crate::visit_address::VisitAddresses;

/// A document root of one farm.
#[derive(Debug)]
pub(crate) struct DocrootState {
    path: PathBuf,
    mode: u32,
    open_docroot: RwLock<Arc<Docroot>>,
    /// Which files carry which surrogate keys.
    pub(crate) tags: SurrogateKeyIndex,
    /// Errors in place of its files.
    pub(crate) negative_cache: NegativeCache,
    /// At which addresses its pages were asked for.
    pub(crate) visits: VisitAddresses,
    /// When the last flush came, whatever it named.
    last_flush_at: Mutex<Option<SystemTime>>,
    /// What it takes of the disk.
    pub(crate) usage: Arc<DocrootUsage>,
    /// In which order flushes came.
    pub(crate) flush_orders: FlushOrderCounts,
    /// What the siblings of farms are told, by the farms' names.
    event_logs: Mutex<BTreeMap<String, Arc<FarmEventLog>>>,
    /// Held while events of a sibling are carried out; what failed of them last.
    pub(crate) failed_messages: tokio::sync::Mutex<FailedMessages>,
    started_at: Instant,
    /// The second, counted from `started`, in which the folder was last compared.
    last_compared_second: AtomicU64,
}

impl DocrootState {
    /// Returns the root as it was opened last, whatever stands at its path by now.
    pub(crate) fn last_opened(&self) -> Arc<Docroot> {
        Arc::clone(&self.open_docroot.read())
    }

    /// Opens the root at `path`, making it if it is absent.
    pub(crate) fn open(path: &Path, mode: u32) -> io::Result<Self> {
        let usage = Arc::new(DocrootUsage::default());
        Ok(Self {
            path: path.to_owned(),
            mode,
            open_docroot: RwLock::new(Arc::new(Docroot::open(path, mode, Arc::clone(&usage))?)),
            tags: SurrogateKeyIndex::default(),
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

    /// Notes that a flush came at `now`: no remembered error and no older copy of a sibling counts any more.
    pub(crate) fn record_flush(&self, now: SystemTime) {
        let mut flushed = self.last_flush_at.lock();
        *flushed = flushed.max(Some(now));
        drop(flushed);
        self.negative_cache.record_flush();
        self.last_opened().record_flush(now);
    }

    /// Returns when the last flush came, of this process or of earlier ones.
    pub(crate) fn last_flush_at(&self) -> Option<SystemTime> {
        self.last_flush_at.lock().max(self.last_opened().last_earlier_change)
    }

    /// Returns what the siblings of a farm are told.
    pub(crate) fn event_log_of(&self, farm: &str) -> Arc<FarmEventLog> {
        let mut logs = self.event_logs.lock();
        let log =
            logs.entry(farm.to_owned()).or_insert_with(|| Arc::new(FarmEventLog::for_farm(farm)));
        Arc::clone(log)
    }

    /// Tells whether `path` is another name of this root's folder: one with `..`, or through a link.
    pub(crate) fn is_same_folder_as(&self, path: &Path) -> bool {
        let named = std::fs::metadata(path);
        named.is_ok_and(|named| self.last_opened().is_same_folder(named.dev(), named.ino()))
    }

    /// Returns the open root for reading; compares it with its name at most once a second.
    pub(crate) fn docroot_for_reading(&self) -> Arc<Docroot> {
        let second = self.started_at.elapsed().as_secs();
        if self.last_compared_second.swap(second, Ordering::Relaxed) != second
            && let Ok(opened) = self.docroot_for_writing()
        {
            return opened;
        }
        Arc::clone(&self.open_docroot.read())
    }

    /// Returns the open root for changing it, opened anew if its name stands for another folder by now.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(crate) fn docroot_for_writing(&self) -> io::Result<Arc<Docroot>> {
        let opened = Arc::clone(&self.open_docroot.read());
        if self.is_current(&opened) {
            return Ok(opened);
        }
        let mut place = self.open_docroot.write();
        if !self.is_current(&place) {
            *place = Arc::new(Docroot::open(&self.path, self.mode, Arc::clone(&self.usage))?);
            self.usage.forget_amount();
            tracing::info!(file = %self.path.display(), "the document root was replaced and is opened anew");
        }
        Ok(Arc::clone(&place))
    }

    fn is_current(&self, opened: &Docroot) -> bool {
        let named = std::fs::metadata(&self.path);
        named.is_ok_and(|named| opened.is_same_folder(named.dev(), named.ino()))
            && opened.is_writable()
    }
}
