//! A standby: a home that follows another one, sweeps what it no longer needs, and can take over.

use std::fmt;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tympan_notation::ByteSize;
use tympan_notation::error_chain_text;

use serde::Serialize;
use tokio::sync::watch;
use tympan_blobs::garbage_collection::SweepMode;
use tympan_replicate::StandbyStore;
use tympan_store::{ChunkId, ChunkStore, GarbageCollectionOptions, StoreRoot};

use crate::access::HomeAccess;
use crate::blob_sharing::{BlobMarkOutcome, RoleSweepReport};
use crate::clone_home::{StandbyStores, open_standby, require_unused_home_dir};
use crate::config::HomeConfig;
use crate::error::{Error, Result};
use crate::garbage_collection::{COLLECTION_INTERVAL, CollectionPacer, DEFAULT_BYTES_PER_SECOND};
use crate::origin::{
    BaseAccess, HomeOrigin, MAIN_BRANCH, create_home_dir, lease_holder_name, open_base_at,
    open_own_packs, promote_standby_home, write_credentials,
};
use crate::private_file::write_private_file;
use crate::trusted_clock::trusted_now;

/// The interval at which a standby polls for changes.
const STANDBY_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The maximum delay after a failure.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);
/// The interval at which the status file is written without changes.
const STATUS_WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// The interval at which a standby sweeps its blobs.
const BLOB_SWEEP_INTERVAL: Duration = Duration::from_hours(24);
/// The status file of a standby.
const STANDBY_STATUS_FILE: &str = "standby.json";

/// An opened standby, and the blobs and chunks that it has of its own.
pub struct StandbyHome {
    standby: StandbyStore,
    stores: StandbyStores,
    from: String,
    dir: PathBuf,
    config: HomeConfig,
}

/// The progress of a standby.
#[derive(Debug, Clone, Serialize)]
pub struct StandbyStatus {
    from: String,
    /// The root of `main`; `None` if nothing was copied yet.
    pub root: Option<String>,
    /// The number of revisions of the origin that are not copied yet.
    pub revisions_behind: u64,
    /// The number of seconds since the standby was as new as its origin; `None` if nothing was copied yet.
    pub seconds_behind: Option<f64>,
    /// The Unix time before which everything that the origin acknowledged is copied.
    complete_until: Option<f64>,
    stated_at: f64,
    /// The obstacle at the moment, if any.
    pub fault: Option<String>,
}

/// An event of a standby that follows its origin.
#[derive(Debug)]
pub enum StandbyEvent<'a> {
    /// The standby has copied everything for the first time.
    Ready,
    /// The standby has copied something, or met or overcame an obstacle.
    News(&'a StandbyStatus),
}

/// A standby that became an independent home.
#[derive(Debug)]
pub struct PromotedStandby {
    /// The root of `main`.
    pub root: ChunkId,
    /// The former origin.
    pub from: String,
    /// The Unix time before which everything that the origin acknowledged is copied, if the last status says so.
    pub complete_until: Option<f64>,
}

impl fmt::Debug for StandbyHome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StandbyHome").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl StandbyHome {
    /// Opens a standby of `from`, which is created in a directory that may contain its configuration and its key only.
    ///
    /// # Errors
    /// [`Error::Refused`] if the directory contains anything else, such as a standby of another origin.
    pub fn open(
        access: &HomeAccess,
        dir: &Path,
        (from, base_access): (&str, &BaseAccess),
    ) -> Result<Self> {
        let origin = match HomeOrigin::read_standby(dir)? {
            Some(origin) if origin.from == from => origin,
            Some(origin) => {
                return Err(Error::refused(format!(
                    "`{}` is a standby of `{}`, not of `{from}`",
                    dir.display(),
                    origin.from
                )));
            }
            None => {
                require_unused_home_dir(dir)?;
                create_home_dir(dir)?;
                let (from, ca) = (from.to_owned(), base_access.ca_file.clone());
                let holder = lease_holder_name(dir)?;
                let origin = HomeOrigin { from, holder, root: None, ca, leases: None };
                write_credentials(dir, base_access)?;
                origin.write_standby(dir)?;
                origin
            }
        };
        let base = if base_access.credentials.is_some() {
            open_base_at(access, from, base_access, dir)?
        } else {
            origin.open_base(access, dir)?
        };
        let config = access.read_config(dir)?;
        let (standby, stores) = open_standby(access, dir, &config, base, &origin.holder)?;
        stores.sharing.register()?;
        Ok(Self { standby, stores, from: from.to_owned(), dir: dir.to_owned(), config })
    }

    /// Follows the origin until `stopped` turns true; blocks the thread.
    pub fn follow_until_stopped(
        &self,
        stopped: &watch::Receiver<bool>,
        tell: &mut dyn FnMut(StandbyEvent<'_>),
    ) {
        // Obstacles are logged; a blob is stored only after the registration has succeeded.
        drop(self.stores.sharing.register_remotely(stopped));
        let mut wait = STANDBY_POLL_INTERVAL;
        let mut is_ready = false;
        let mut fault: Option<String> = None;
        let mut stated = UNIX_EPOCH;
        let mut collected = SystemTime::now();
        let mut swept: Option<SystemTime> = None;
        while !*stopped.borrow() {
            let now = SystemTime::now();
            let looked = self.standby.catch_up(now);
            let is_news = match &looked {
                Ok(done) => done.revisions > 0 || fault.take().is_some() || !is_ready,
                Err(error) => {
                    let reason = error_chain_text(error);
                    let is_news = fault.as_ref() != Some(&reason);
                    fault = Some(reason);
                    is_news
                }
            };
            wait = if looked.is_ok() {
                STANDBY_POLL_INTERVAL
            } else {
                (wait * 2).min(MAX_RETRY_DELAY)
            };
            let is_due = now.duration_since(stated).unwrap_or_default() >= STATUS_WRITE_INTERVAL;
            if is_news || is_due {
                stated = now;
                let status = self.record_status(fault.as_deref());
                if is_news {
                    tell(StandbyEvent::News(&status));
                }
            }
            if looked.is_ok() && !is_ready {
                is_ready = true;
                tell(StandbyEvent::Ready);
            }
            let every = self.config.collect.interval.map_or(COLLECTION_INTERVAL, |span| span.0);
            let is_due = now.duration_since(collected).unwrap_or_default() >= every;
            if is_due && !every.is_zero() {
                collected = now;
                self.collect_garbage(now);
                let since = |at: SystemTime| now.duration_since(at).unwrap_or_default();
                if swept.is_none_or(|at| since(at) >= BLOB_SWEEP_INTERVAL) {
                    swept = Some(now);
                    self.sweep_blobs(stopped);
                }
            }
            if looked.is_ok_and(|done| done.revisions > 0) {
                // More may have been committed in the meantime.
                continue;
            }
            std::thread::sleep(wait);
        }
        tell(StandbyEvent::News(&self.record_status(fault.as_deref())));
    }

    /// Collects data that the standby no longer needs, as an instance does in its home.
    fn collect_garbage(&self, now: SystemTime) {
        let retention = self.config.history.retention();
        let now = trusted_now(&self.dir, &*self.stores.chunks, now);
        let options =
            GarbageCollectionOptions { retention, ..GarbageCollectionOptions::at_time(now) };
        match self.standby.collect_garbage(&options) {
            Ok(done) => tracing::info!(freed_bytes = done.freed_bytes, "garbage collected"),
            Err(error) => {
                tracing::error!(reason = error_chain_text(&error), "garbage collection failed")
            }
        }
    }

    /// Marks the blobs that the standby needs, and sweeps those that no member needs, as an instance does every night.
    fn sweep_blobs(&self, stopped: &watch::Receiver<bool>) {
        match self.mark_and_sweep_blobs(stopped) {
            Ok(Some((marked, sweeps))) => {
                let discarded: u64 =
                    sweeps.iter().map(|(_, swept)| swept.discarded.blob_count).sum();
                tracing::info!(needed = marked.blob_count, discarded, "blobs swept");
                for reason in marked.unreachable_owners {
                    tracing::error!(reason, "cannot notify a blob owner of the needed blobs");
                }
            }
            Ok(None) => {}
            Err(error) => {
                tracing::error!(reason = error_chain_text(&error), "blob sweep failed")
            }
        }
    }

    /// Returns `None` if the standby was stopped before the sweep.
    fn mark_and_sweep_blobs(
        &self,
        stopped: &watch::Receiver<bool>,
    ) -> Result<Option<(BlobMarkOutcome, Vec<RoleSweepReport>)>> {
        let go_on =
            || if *stopped.borrow() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let rate = self.config.collect.rate.map_or(DEFAULT_BYTES_PER_SECOND, ByteSize::as_bytes);
        let mut pacer = CollectionPacer::with_rate(rate.max(1));
        let (sharing, chunks) = (&self.stores.sharing, &*self.stores.chunks);
        let marked = sharing.mark_needed_blobs(chunks, &mut |progress| {
            pacer.throttle(progress);
            go_on()
        })?;
        let Some(marked) = marked else { return Ok(None) };
        let now = trusted_now(&self.dir, chunks, SystemTime::now());
        let options = sharing.sweep_options(SweepMode::Remove, now)?;
        Ok(Some((marked, sharing.sweep(&options, &mut &go_on)?)))
    }

    /// Writes the progress of the standby to the status file.
    fn record_status(&self, fault: Option<&str>) -> StandbyStatus {
        let now = SystemTime::now();
        let lag = self.standby.lag();
        let seconds =
            |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let status = StandbyStatus {
            from: self.from.clone(),
            root: self.standby.local_root().ok().flatten().map(|root| root.to_string()),
            revisions_behind: lag.revisions,
            seconds_behind: lag.age(now).map(|age| age.as_secs_f64()),
            complete_until: lag.complete_until.map(seconds),
            stated_at: seconds(now),
            fault: fault.map(str::to_owned),
        };
        if let Err(fault) = write_status(&self.dir, &status) {
            tracing::warn!(reason = %fault, "cannot write the status file");
        }
        status
    }
}

/// Replaces the status file; it has no value after a crash, so it is not synced.
fn write_status(home: &Path, status: &StandbyStatus) -> std::io::Result<()> {
    let unfinished = home.join("standby.json.tmp");
    write_private_file(&unfinished, &serde_json::to_vec(status)?)?;
    fs::rename(unfinished, home.join(STANDBY_STATUS_FILE))
}

/// Makes a standby an independent home, on which an instance can run.
///
/// # Errors
/// [`Error::Refused`] if the home is no standby; otherwise if it is being followed, or has no complete state.
pub fn promote_standby(home: &Path) -> Result<PromotedStandby> {
    let origin = HomeOrigin::read_standby(home)?
        .ok_or_else(|| Error::refused(format!("`{}` is not a standby", home.display())))?;
    // A running follower holds the lock: it must have stopped before anything is decided.
    let own = open_own_packs(home)?;
    let failed = |error: tympan_store::Error| {
        Error::failed(format!("cannot promote `{}`", home.display()), error)
    };
    let root = own.read_ref(MAIN_BRANCH).map_err(failed)?.ok_or_else(|| {
        Error::failed_alone(format!(
            "`{}` does not have a complete state of `{}` yet; keep following until it prints `ready`",
            home.display(),
            origin.from
        ))
    })?;
    StoreRoot::read(own.as_ref(), &root).map_err(failed)?;
    own.close().map_err(failed)?;
    promote_standby_home(home)?;
    Ok(PromotedStandby { root, from: origin.from, complete_until: last_complete_time(home) })
}

/// Returns the time of `complete_until` in the last status of a standby.
fn last_complete_time(home: &Path) -> Option<f64> {
    let status = fs::read_to_string(home.join(STANDBY_STATUS_FILE)).ok()?;
    let status: serde_json::Value = serde_json::from_str(&status).ok()?;
    status.get("complete_until")?.as_f64()
}
