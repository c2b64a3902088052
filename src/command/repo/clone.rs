//! `tympan repo clone`: creates a staging home over another one, a full copy, or a standby.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;
use tokio::sync::watch;
use tympan_blobs::garbage_collection::SweepMode;
use tympan_replicate::{RemoteStoreCredentials, StandbyCopyReport, StandbyStore};
use tympan_store::{ChunkId, GarbageCollectionOptions, LayeredStore, LocalStore, acquire_lease};
use tympan_terminal::{CommandFault, CommandOutcome, error_chain_text, say};

use crate::args::RepoCloneArgs;
use crate::blob_sharing::{BlobSharing, StorageMembership};
use crate::blob_storage;
use crate::command::create_runtime;
use crate::command::instance::ProcessSignals;
use crate::config::{self, TympanConfig};
use crate::garbage_collection::{self, CollectionPacer};
use crate::home::write_private_file;
use crate::home_chunk_store;
use crate::home_origin::{
    self, BaseAccess, BaseWithBlobs, HomeOrigin, LEASE_DURATION, MAIN_BRANCH, create_home_dir,
    lease_holder_name, open_own_packs,
};
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

/// Clones, copies or follows.
pub(super) fn run_clone(clone: &RepoCloneArgs) -> CommandOutcome {
    let from = absolute_origin(&clone.from)?;
    let access = base_access(clone, &from)?;
    if clone.follow {
        return follow_repository(clone, &from, &access);
    }
    if clone.full {
        return copy_repository(clone, &from, &access);
    }
    require_empty_dir(&clone.to)?;
    let base = home_origin::open_base_at(&from, &access, &clone.to)?;
    let holder = lease_holder_name(&clone.to)?;
    let origin = HomeOrigin {
        from: from.clone(),
        holder: holder.clone(),
        root: None,
        ca: access.ca_file.clone(),
        leases: access.lease_dir.clone(),
    };
    let cloned = create_clone(&clone.to, origin, &access, &base);
    let root = match cloned {
        Ok(root) => root,
        Err(fault) => {
            // On failure, release the lease and restore the empty folder, so that nothing incomplete remains.
            base.0.release_lease(&holder).ok();
            fs::remove_dir_all(&clone.to).ok();
            return Err(fault);
        }
    };
    if clone.json {
        say!("{}", json!({ "from": from, "to": clone.to, "root": root.to_string() }));
    } else {
        say!("`{}` is a clone of `{from}` at root {root}", clone.to.display());
        say!("run it with `tympan author --home {}`", clone.to.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Takes a lease on the newest state and creates a home whose `main` starts there.
fn create_clone(
    to: &Path,
    origin: HomeOrigin,
    access: &BaseAccess,
    base: &BaseWithBlobs,
) -> Result<ChunkId, CommandFault> {
    let from = origin.from.clone();
    let failed = |error: tympan_store::Error| {
        CommandFault::cannot_run(format!("cannot clone `{from}`: {}", error_chain_text(&error)))
    };
    let now = SystemTime::now();
    let lease = acquire_lease(base.0.as_ref(), &origin.holder, MAIN_BRANCH, (now, LEASE_DURATION));
    let lease = lease.map_err(failed)?;
    let root = lease.root;
    let origin = HomeOrigin { root: Some(root.to_string()), ..origin };
    // The file is written first: a store without it would be taken for an empty home.
    create_home_dir(to)?;
    home_origin::write_credentials(to, access)?;
    origin.write_clone(to)?;
    let own = open_own_packs(to)?;
    let store = LayeredStore::new(own, Arc::clone(&base.0), lease).map_err(failed)?;
    home_origin::start_clone_branch(&store, &from).map_err(failed)?;
    Ok(root)
}

/// Copies everything into an independent home.
fn copy_repository(clone: &RepoCloneArgs, from: &str, access: &BaseAccess) -> CommandOutcome {
    require_unused_home_dir(&clone.to)?;
    let base = home_origin::open_base_at(from, access, &clone.to)?;
    let config = config::read_home_config(&clone.to)?;
    let (standby, own) = open_standby((&clone.to, &config), base, &lease_holder_name(&clone.to)?)?;
    own.sharing.register()?;
    let done = standby.catch_up(SystemTime::now());
    let done = done.map_err(|error| {
        CommandFault::cannot_run(format!("cannot copy `{from}`: {}", error_chain_text(&error)))
    })?;
    let root = standby.local_root().ok().flatten().map(|root| root.to_string()).unwrap_or_default();
    if clone.json {
        let StandbyCopyReport { sync_stats: synced, large_blobs, .. } = done;
        say!(
            "{}",
            json!({
                "from": from, "to": clone.to, "root": root, "chunks": synced.fetched_chunks,
                "blobs": synced.fetched_blobs + large_blobs, "bytes": synced.fetched_bytes,
            })
        );
    } else {
        say!(
            "`{}` is a copy of `{from}` at root {root}: {} chunks, {} blobs",
            clone.to.display(),
            done.sync_stats.fetched_chunks,
            done.sync_stats.fetched_blobs + done.large_blobs
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Follows the origin until a signal.
fn follow_repository(clone: &RepoCloneArgs, from: &str, access: &BaseAccess) -> CommandOutcome {
    let to = &clone.to;
    let origin = match HomeOrigin::read_standby(to)? {
        Some(origin) if origin.from == from => origin,
        Some(origin) => {
            return Err(CommandFault::usage(format!(
                "`{}` is a standby of `{}`, not of `{from}`",
                to.display(),
                origin.from
            )));
        }
        None => {
            require_unused_home_dir(to)?;
            create_home_dir(to)?;
            let (from, ca) = (from.to_owned(), access.ca_file.clone());
            let origin =
                HomeOrigin { from, holder: lease_holder_name(to)?, root: None, ca, leases: None };
            home_origin::write_credentials(to, access)?;
            origin.write_standby(to)?;
            origin
        }
    };
    let base = if access.credentials.is_some() {
        home_origin::open_base_at(from, access, to)?
    } else {
        origin.open_base(to)?
    };
    let config = config::read_home_config(to)?;
    let (standby, own) = open_standby((to, &config), base, &origin.holder)?;
    own.sharing.register()?;
    let (from, to, is_json) = (from.to_owned(), to.clone(), clone.json);
    let follower = StandbyFollower { standby, stores: own, from, to, is_json, config };
    create_runtime(4)?.block_on(async {
        let mut signals = ProcessSignals::listen()?;
        let (stop, stopped) = watch::channel(false);
        // Obstacles are logged; a blob is stored only after the registration has succeeded.
        drop(follower.stores.sharing.register_remotely(&stopped));
        let work = tokio::task::spawn_blocking(move || follower.follow_until_stopped(&stopped));
        signals.wait_for_end().await;
        stop.send_replace(true);
        work.await.map_err(|error| CommandFault::cannot_run(error.to_string()))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A running standby.
struct StandbyFollower {
    standby: StandbyStore,
    stores: StandbyStores,
    from: String,
    to: PathBuf,
    is_json: bool,
    config: TympanConfig,
}

impl StandbyFollower {
    fn follow_until_stopped(&self, stopped: &watch::Receiver<bool>) {
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
                self.report_status(fault.as_deref(), is_news);
            }
            if looked.is_ok() && !is_ready {
                is_ready = true;
                say!("ready");
            }
            let every = self
                .config
                .collect
                .every
                .map_or(garbage_collection::COLLECTION_INTERVAL, |span| span.0);
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
        self.report_status(fault.as_deref(), true);
    }

    /// Collects data that the standby no longer needs, as an instance does in its home.
    fn collect_garbage(&self, now: SystemTime) {
        let retention = self.config.history.retention();
        let now = trusted_now(&self.to, &*self.stores.chunks, now);
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
        let go_on =
            || if *stopped.borrow() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let rate = self
            .config
            .collect
            .rate
            .map_or(garbage_collection::DEFAULT_BYTES_PER_SECOND, |rate| rate.0);
        let mut pacer = CollectionPacer::with_rate(rate.max(1));
        let sharing = &self.stores.sharing;
        let done = sharing.mark_needed_blobs(&*self.stores.chunks, &mut |progress| {
            pacer.throttle(progress);
            go_on()
        });
        let swept = done.and_then(|marked| match marked {
            Some(marked) => {
                let now = trusted_now(&self.to, &*self.stores.chunks, SystemTime::now());
                let options = sharing.sweep_options(SweepMode::Remove, now)?;
                let swept = sharing.sweep(&options, &mut &go_on)?;
                Ok(Some((marked, swept)))
            }
            None => Ok(None),
        });
        match swept {
            Ok(Some((marked, sweeps))) => {
                let discarded: u64 =
                    sweeps.iter().map(|(_, swept)| swept.discarded.blob_count).sum();
                tracing::info!(needed = marked.blob_count, discarded, "blobs swept");
                for reason in marked.unreachable_owners {
                    tracing::error!(reason, "cannot notify a blob owner of the needed blobs");
                }
            }
            Ok(None) => {}
            Err(fault) => tracing::error!(reason = fault.message(), "blob sweep failed"),
        }
    }

    /// Writes the progress of the standby to the status file and, if it is news, to standard output.
    fn report_status(&self, fault: Option<&str>, is_news: bool) {
        let now = SystemTime::now();
        let lag = self.standby.lag();
        let age = lag.age(now).map(|age| age.as_secs_f64());
        let root = self.standby.local_root().ok().flatten().map(|root| root.to_string());
        let seconds =
            |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let status = json!({
            "from": self.from,
            "root": root,
            "revisions_behind": lag.revisions,
            "seconds_behind": age,
            "complete_until": lag.complete_until.map(seconds),
            "stated_at": seconds(now),
            "fault": fault,
        });
        if let Err(fault) = write_status(&self.to, &status.to_string()) {
            tracing::warn!(reason = %fault, "cannot write the status file");
        }
        if !is_news {
            return;
        }
        if self.is_json {
            say!("{status}");
            return;
        }
        let behind = age.map_or_else(
            || "nothing was copied yet".to_owned(),
            |age| format!("complete until {age:.1} s ago, {} revisions behind", lag.revisions),
        );
        match fault {
            None => say!("{}: {behind}", root.unwrap_or_default()),
            Some(fault) => say!("{}: {behind}; {fault}", root.unwrap_or_default()),
        }
    }
}

/// Replaces the status file; it has no value after a crash, so it is not synced.
fn write_status(home: &Path, text: &str) -> std::io::Result<()> {
    let unfinished = home.join("standby.json.tmp");
    write_private_file(&unfinished, text.as_bytes())?;
    fs::rename(unfinished, home.join(STANDBY_STATUS_FILE))
}

/// Returns the last status of a standby.
pub(super) fn last_status(home: &Path) -> Option<serde_json::Value> {
    serde_json::from_str(&fs::read_to_string(home.join(STANDBY_STATUS_FILE)).ok()?).ok()
}

/// Returns the access to a running instance from the arguments.
fn base_access(clone: &RepoCloneArgs, from: &str) -> Result<BaseAccess, CommandFault> {
    let read_secret = |file: &PathBuf| match fs::read_to_string(file) {
        Ok(secret) => Ok(secret.trim().to_owned()),
        Err(error) => {
            Err(CommandFault::usage(format!("cannot read `{}`: {error}", file.display())))
        }
    };
    let secret = match (&clone.key, &clone.token_file, &clone.token) {
        (Some(file), ..) => Some(RemoteStoreCredentials::Key(read_secret(file)?)),
        (None, Some(file), _) => Some(RemoteStoreCredentials::Token(read_secret(file)?)),
        (None, None, Some(token)) => Some(RemoteStoreCredentials::Token(token.clone())),
        (None, None, None) => None,
    };
    let ca = clone.ca.as_ref().map(fs::canonicalize).transpose();
    let ca = ca
        .map_err(|error| CommandFault::usage(format!("cannot read the file of `--ca`: {error}")))?;
    let leases = clone.leases.as_deref().map(|folder| lease_folder(folder, from)).transpose()?;
    Ok(BaseAccess { credentials: secret, ca_file: ca, lease_dir: leases })
}

/// Returns the folder for the lease, if the home that is cloned honors leases in it.
fn lease_folder(folder: &Path, from: &str) -> Result<PathBuf, CommandFault> {
    if home_origin::is_instance_url(from) {
        return Err(CommandFault::usage("`--leases` requires a home that is given as a directory"));
    }
    let folder = fs::canonicalize(folder).map_err(|error| {
        CommandFault::usage(format!("cannot use `{}`: {error}", folder.display()))
    })?;
    let heeded = config::read_home_config(Path::new(from))?.history.leases;
    if heeded.iter().any(|heeded_folder| {
        fs::canonicalize(heeded_folder).is_ok_and(|real_path| real_path == folder)
    }) {
        return Ok(folder);
    }
    Err(CommandFault::usage(format!(
        "`{from}` does not honor leases in `{}`: add it to `leases` in the section `[history]` of its \
         `tympan.toml`, and restart its instance",
        folder.display()
    )))
}

/// A standby's own stores.
struct StandbyStores {
    chunks: Arc<LocalStore>,
    sharing: BlobSharing,
}

/// Opens a standby, with its blobs in the storage of its configuration.
fn open_standby(
    (to, config): (&Path, &TympanConfig),
    base: BaseWithBlobs,
    holder: &str,
) -> Result<(StandbyStore, StandbyStores), CommandFault> {
    let chunks = open_own_packs(to)?;
    let membership = StorageMembership::new(to, None);
    let section = home_chunk_store::effective_blob_section(to, config)?;
    let blobs = blob_storage::open_home_blobs((to, &section), &membership, chunks.clone(), None)?;
    let standby = StandbyStore::new(base, (chunks.clone(), blobs.store.clone()), holder.to_owned());
    Ok((standby, StandbyStores { chunks, sharing: BlobSharing::new(membership, &blobs) }))
}

/// Refuses a directory that is not empty.
fn require_empty_dir(to: &Path) -> Result<(), CommandFault> {
    require_only_known_entries(&[], to)
}

/// Refuses a directory with anything except files that prepare a new home.
fn require_unused_home_dir(to: &Path) -> Result<(), CommandFault> {
    require_only_known_entries(&["tympan.toml", "replication.key"], to)
}

fn require_only_known_entries(known_names: &[&str], to: &Path) -> Result<(), CommandFault> {
    let is_known = |entry: std::io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| known_names.iter().any(|name| entry.file_name() == *name))
    };
    match fs::read_dir(to).map(|mut entries| entries.all(is_known)) {
        Ok(true) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Ok(false) => Err(CommandFault::usage(format!("`{}` is not empty", to.display()))),
        Err(error) => Err(CommandFault::usage(format!("cannot use `{}`: {error}", to.display()))),
    }
}

/// Returns the absolute path of a directory; a URL is returned unchanged.
fn absolute_origin(from: &str) -> Result<String, CommandFault> {
    if home_origin::is_instance_url(from) {
        return Ok(from.trim_end_matches('/').to_owned());
    }
    let path = fs::canonicalize(from)
        .map_err(|error| CommandFault::usage(format!("cannot clone `{from}`: {error}")))?;
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        CommandFault::usage(format!("the name of `{}` is not UTF-8", path.display()))
    })
}
