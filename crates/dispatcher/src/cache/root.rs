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
use super::usage::Usage;
use crate::gossip::{Failed, FarmLog};
use crate::negative::Negatives;
use crate::numbering::OrderTally;
use crate::tags::Tags;
use crate::visits::Visits;

/// A document root of one farm.
#[derive(Debug)]
pub(crate) struct Root {
    path: PathBuf,
    mode: u32,
    opened: RwLock<Arc<Docroot>>,
    /// Which files carry which surrogate keys.
    pub(crate) tags: Tags,
    /// Errors in place of its files.
    pub(crate) negatives: Negatives,
    /// At which addresses its pages were asked for.
    pub(crate) visits: Visits,
    /// When the last flush came, whatever it named.
    flushed: Mutex<Option<SystemTime>>,
    /// What it takes of the disk.
    pub(crate) usage: Arc<Usage>,
    /// In which order flushes came.
    pub(crate) orders: OrderTally,
    /// What the siblings of farms are told, by the farms' names.
    logs: Mutex<BTreeMap<String, Arc<FarmLog>>>,
    /// Held while events of a sibling are carried out; what failed of them last.
    pub(crate) hearing: tokio::sync::Mutex<Failed>,
    started: Instant,
    /// The second, counted from `started`, in which the folder was last compared.
    compared: AtomicU64,
}

impl Root {
    /// Returns the root as it was opened last, whatever stands at its path by now.
    pub(crate) fn last_opened(&self) -> Arc<Docroot> {
        Arc::clone(&self.opened.read())
    }

    /// Opens the root at `path`, making it if it is absent.
    pub(crate) fn open(path: &Path, mode: u32) -> io::Result<Self> {
        let usage = Arc::new(Usage::default());
        Ok(Self {
            path: path.to_owned(),
            mode,
            opened: RwLock::new(Arc::new(Docroot::open(path, mode, Arc::clone(&usage))?)),
            tags: Tags::default(),
            negatives: Negatives::default(),
            visits: Visits::default(),
            flushed: Mutex::default(),
            usage,
            orders: OrderTally::default(),
            logs: Mutex::default(),
            hearing: tokio::sync::Mutex::default(),
            started: Instant::now(),
            compared: AtomicU64::new(0),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Notes that a flush came at `now`: no remembered error and no older copy of a sibling counts any more.
    pub(crate) fn note_flush(&self, now: SystemTime) {
        let mut flushed = self.flushed.lock();
        *flushed = flushed.max(Some(now));
        drop(flushed);
        self.negatives.note_flush();
        self.last_opened().note_flush(now);
    }

    /// Returns when the last flush came, of this process or of earlier ones.
    pub(crate) fn flushed_last(&self) -> Option<SystemTime> {
        self.flushed.lock().max(self.last_opened().left)
    }

    /// Returns what the siblings of a farm are told.
    pub(crate) fn log_of(&self, farm: &str) -> Arc<FarmLog> {
        let mut logs = self.logs.lock();
        let log = logs.entry(farm.to_owned()).or_insert_with(|| Arc::new(FarmLog::of(farm)));
        Arc::clone(log)
    }

    /// Tells whether `path` is another name of this root's folder: one with `..`, or through a link.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        let named = std::fs::metadata(path);
        named.is_ok_and(|named| self.last_opened().is_folder(named.dev(), named.ino()))
    }

    /// Returns the open root for reading; compares it with its name at most once a second.
    pub(crate) fn opened(&self) -> Arc<Docroot> {
        let second = self.started.elapsed().as_secs();
        if self.compared.swap(second, Ordering::Relaxed) != second
            && let Ok(opened) = self.current()
        {
            return opened;
        }
        Arc::clone(&self.opened.read())
    }

    /// Returns the open root for changing it, opened anew if its name stands for another folder by now.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(crate) fn current(&self) -> io::Result<Arc<Docroot>> {
        let opened = Arc::clone(&self.opened.read());
        if self.is_current(&opened) {
            return Ok(opened);
        }
        let mut place = self.opened.write();
        if !self.is_current(&place) {
            *place = Arc::new(Docroot::open(&self.path, self.mode, Arc::clone(&self.usage))?);
            self.usage.reset();
            tracing::info!(file = %self.path.display(), "the document root was replaced and is opened anew");
        }
        Ok(Arc::clone(&place))
    }

    fn is_current(&self, opened: &Docroot) -> bool {
        let named = std::fs::metadata(&self.path);
        named.is_ok_and(|named| opened.is_folder(named.dev(), named.ino())) && opened.is_writable()
    }
}
