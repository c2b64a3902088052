//! `tympan repo clone`: a staging home over another one, a full copy, or a standby.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;
use tokio::sync::watch;
use tympan_blobs::collect::SweepMode;
use tympan_replicate::{CaughtUp, Credentials, Standby};
use tympan_store::{ChunkId, CollectOptions, CompositeStore, LocalStore, take_lease};

use crate::args::Clone;
use crate::backend;
use crate::base::{self, Access, LEASE_LIFE, MAIN, Opened, Origin, create, holder_of, open_own};
use crate::blobs::{Membership, Sharing};
use crate::clock::trusted_now;
use crate::collection::{self, Pacer};
use crate::command::instance::Signals;
use crate::command::{Fault, Outcome, runtime};
use crate::config::{self, Config};
use crate::home::{chain, write_closed};
use crate::places;
use crate::say;

/// How often a standby looks for something new.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long it waits after a failure, at most.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// How often the status file is written while nothing changes.
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// How often it sweeps its blobs.
const SWEEP_EVERY: Duration = Duration::from_hours(24);
/// Where a standby tells how far it is.
const STATUS_FILE: &str = "standby.json";

/// Clones, copies or follows.
pub(super) fn run(clone: &Clone) -> Outcome {
    let from = absolute(&clone.from)?;
    let access = access(clone, &from)?;
    if clone.follow {
        return follow(clone, &from, &access);
    }
    if clone.full {
        return copy(clone, &from, &access);
    }
    require_empty(&clone.to)?;
    let base = base::open(&from, &access, &clone.to)?;
    let holder = holder_of(&clone.to)?;
    let origin = Origin {
        from: from.clone(),
        holder: holder.clone(),
        root: None,
        ca: access.ca.clone(),
        leases: access.leases.clone(),
    };
    let cloned = make_clone(&clone.to, origin, &access, &base);
    let root = match cloned {
        Ok(root) => root,
        Err(fault) => {
            // Nothing half-done is left: neither the lease nor what was empty before.
            base.0.release(&holder).ok();
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

/// Takes a lease on the newest state and makes a home whose `main` begins there.
fn make_clone(to: &Path, origin: Origin, access: &Access, base: &Opened) -> Result<ChunkId, Fault> {
    let from = origin.from.clone();
    let failed = |error: tympan_store::Error| {
        Fault::cannot_run(format!("cannot clone `{from}`: {}", chain(&error)))
    };
    let now = SystemTime::now();
    let lease = take_lease(base.0.as_ref(), &origin.holder, MAIN, (now, LEASE_LIFE));
    let lease = lease.map_err(failed)?;
    let root = lease.root;
    let origin = Origin { root: Some(root.to_string()), ..origin };
    // The file comes first: a store without it would pass for an empty home.
    create(to)?;
    base::write_credentials(to, access)?;
    origin.write_clone(to)?;
    let own = open_own(to)?;
    let store = CompositeStore::new(own, Arc::clone(&base.0), lease).map_err(failed)?;
    base::begin_clone(&store, &from).map_err(failed)?;
    Ok(root)
}

/// Copies everything into a home of its own.
fn copy(clone: &Clone, from: &str, access: &Access) -> Outcome {
    require_bare(&clone.to)?;
    let base = base::open(from, access, &clone.to)?;
    let config = config::read(&clone.to)?;
    let (standby, own) = open_standby((&clone.to, &config), base, &holder_of(&clone.to)?)?;
    own.sharing.register()?;
    let done = standby.catch_up(SystemTime::now());
    let done = done
        .map_err(|error| Fault::cannot_run(format!("cannot copy `{from}`: {}", chain(&error))))?;
    let root = standby.root().ok().flatten().map(|root| root.to_string()).unwrap_or_default();
    if clone.json {
        let CaughtUp { synced, large_blobs, .. } = done;
        say!(
            "{}",
            json!({
                "from": from, "to": clone.to, "root": root, "chunks": synced.chunks,
                "blobs": synced.blobs + large_blobs, "bytes": synced.bytes,
            })
        );
    } else {
        say!(
            "`{}` is a copy of `{from}` at root {root}: {} chunks, {} blobs",
            clone.to.display(),
            done.synced.chunks,
            done.synced.blobs + done.large_blobs
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Follows until a signal.
fn follow(clone: &Clone, from: &str, access: &Access) -> Outcome {
    let to = &clone.to;
    let origin = match Origin::of_standby(to)? {
        Some(origin) if origin.from == from => origin,
        Some(origin) => {
            return Err(Fault::usage(format!(
                "`{}` is a standby of `{}`, not of `{from}`",
                to.display(),
                origin.from
            )));
        }
        None => {
            require_bare(to)?;
            create(to)?;
            let (from, ca) = (from.to_owned(), access.ca.clone());
            let origin = Origin { from, holder: holder_of(to)?, root: None, ca, leases: None };
            base::write_credentials(to, access)?;
            origin.write_standby(to)?;
            origin
        }
    };
    let base =
        if access.secret.is_some() { base::open(from, access, to)? } else { origin.open(to)? };
    let config = config::read(to)?;
    let (standby, own) = open_standby((to, &config), base, &origin.holder)?;
    own.sharing.register()?;
    let (from, to, is_json) = (from.to_owned(), to.clone(), clone.json);
    let follower = Follower { standby, own, from, to, is_json, config };
    runtime(4)?.block_on(async {
        let mut signals = Signals::listen()?;
        let (stop, stopped) = watch::channel(false);
        // What is in the way is in the log; a blob is stored only after it worked.
        drop(follower.own.sharing.register_far(&stopped));
        let work = tokio::task::spawn_blocking(move || follower.run(&stopped));
        signals.wait().await;
        stop.send_replace(true);
        work.await.map_err(|error| Fault::cannot_run(error.to_string()))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A standby at work.
struct Follower {
    standby: Standby,
    own: Own,
    from: String,
    to: PathBuf,
    is_json: bool,
    config: Config,
}

impl Follower {
    fn run(&self, stopped: &watch::Receiver<bool>) {
        let mut wait = LOOK_EVERY;
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
                    let reason = chain(error);
                    let is_news = fault.as_ref() != Some(&reason);
                    fault = Some(reason);
                    is_news
                }
            };
            wait = if looked.is_ok() { LOOK_EVERY } else { (wait * 2).min(MAX_WAIT) };
            let is_due = now.duration_since(stated).unwrap_or_default() >= STATUS_EVERY;
            if is_news || is_due {
                stated = now;
                self.state(fault.as_deref(), is_news);
            }
            if looked.is_ok() && !is_ready {
                is_ready = true;
                say!("ready");
            }
            let every = self.config.collect.every.map_or(collection::EVERY, |span| span.0);
            let is_due = now.duration_since(collected).unwrap_or_default() >= every;
            if is_due && !every.is_zero() {
                collected = now;
                self.collect(now);
                let since = |at: SystemTime| now.duration_since(at).unwrap_or_default();
                if swept.is_none_or(|at| since(at) >= SWEEP_EVERY) {
                    swept = Some(now);
                    self.sweep_blobs(stopped);
                }
            }
            if looked.is_ok_and(|done| done.revisions > 0) {
                // More may have come meanwhile.
                continue;
            }
            std::thread::sleep(wait);
        }
        self.state(fault.as_deref(), true);
    }

    /// Collects what the standby has no use for any more, as an instance does in its home.
    fn collect(&self, now: SystemTime) {
        let retention = self.config.history.retention();
        let now = trusted_now(&self.to, &*self.own.chunks, now);
        let options = CollectOptions { retention, ..CollectOptions::at(now) };
        match self.standby.collect(&options) {
            Ok(done) => tracing::info!(freed_bytes = done.freed_bytes, "garbage collected"),
            Err(error) => tracing::error!(reason = chain(&error), "no garbage is collected"),
        }
    }

    /// Says which blobs the standby needs, and sweeps those that nobody does, as an instance does every night.
    fn sweep_blobs(&self, stopped: &watch::Receiver<bool>) {
        let go_on =
            || if *stopped.borrow() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let rate = self.config.collect.rate.map_or(collection::BYTES_PER_SECOND, |rate| rate.0);
        let mut pacer = Pacer::at(rate.max(1));
        let sharing = &self.own.sharing;
        let done = sharing.mark(&*self.own.chunks, &mut |progress| {
            pacer.wait(progress);
            go_on()
        });
        let swept = done.and_then(|marked| match marked {
            Some(marked) => {
                let now = trusted_now(&self.to, &*self.own.chunks, SystemTime::now());
                let options = sharing.sweep_options(SweepMode::Remove, now)?;
                let swept = sharing.sweep(&options, &mut &go_on)?;
                Ok(Some((marked, swept)))
            }
            None => Ok(None),
        });
        match swept {
            Ok(Some((marked, places))) => {
                let discarded: u64 = places.iter().map(|(_, swept)| swept.discarded.blobs).sum();
                tracing::info!(needed = marked.count, discarded, "blobs swept");
                for reason in marked.untold {
                    tracing::error!(reason, "not told which blobs are needed");
                }
            }
            Ok(None) => {}
            Err(fault) => tracing::error!(reason = fault.message(), "no blobs are swept"),
        }
    }

    /// Says how far the standby is, in the status file and, if it is news, on standard output.
    fn state(&self, fault: Option<&str>, is_news: bool) {
        let now = SystemTime::now();
        let lag = self.standby.lag();
        let age = lag.age(now).map(|age| age.as_secs_f64());
        let root = self.standby.root().ok().flatten().map(|root| root.to_string());
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
            tracing::warn!(reason = %fault, "the status file was not written");
        }
        if !is_news {
            return;
        }
        if self.is_json {
            say!("{status}");
            return;
        }
        let behind = age.map_or_else(
            || "nothing is copied yet".to_owned(),
            |age| format!("complete until {age:.1} s ago, {} revisions behind", lag.revisions),
        );
        match fault {
            None => say!("{}: {behind}", root.unwrap_or_default()),
            Some(fault) => say!("{}: {behind}; {fault}", root.unwrap_or_default()),
        }
    }
}

/// Replaces the status file; it is worth nothing after a crash, so it is not synced.
fn write_status(home: &Path, text: &str) -> std::io::Result<()> {
    let unfinished = home.join("standby.json.tmp");
    write_closed(&unfinished, text.as_bytes())?;
    fs::rename(unfinished, home.join(STATUS_FILE))
}

/// Returns what a standby stated last.
pub(super) fn last_status(home: &Path) -> Option<serde_json::Value> {
    serde_json::from_str(&fs::read_to_string(home.join(STATUS_FILE)).ok()?).ok()
}

/// Returns what the arguments say about reading from a running instance.
fn access(clone: &Clone, from: &str) -> Result<Access, Fault> {
    let read_key = |file: &PathBuf| {
        let key = fs::read_to_string(file)
            .map_err(|error| Fault::usage(format!("cannot read `{}`: {error}", file.display())))?;
        Ok::<_, Fault>(Credentials::Key(key.trim().to_owned()))
    };
    let secret = match (&clone.key, &clone.token) {
        (Some(file), _) => Some(read_key(file)?),
        (None, Some(token)) => Some(Credentials::Token(token.clone())),
        (None, None) => None,
    };
    let ca = clone.ca.as_ref().map(fs::canonicalize).transpose();
    let ca =
        ca.map_err(|error| Fault::usage(format!("cannot read the file of `--ca`: {error}")))?;
    let leases = clone.leases.as_deref().map(|folder| lease_folder(folder, from)).transpose()?;
    Ok(Access { secret, ca, leases })
}

/// Returns the folder that is to hold the lease, if the home that is cloned pays heed to it.
fn lease_folder(folder: &Path, from: &str) -> Result<PathBuf, Fault> {
    if base::is_url(from) {
        return Err(Fault::usage("`--leases` is for a home that is read by its directory"));
    }
    let folder = fs::canonicalize(folder)
        .map_err(|error| Fault::usage(format!("cannot use `{}`: {error}", folder.display())))?;
    let heeded = config::read(Path::new(from))?.history.leases;
    if heeded.iter().any(|one| fs::canonicalize(one).is_ok_and(|one| one == folder)) {
        return Ok(folder);
    }
    Err(Fault::usage(format!(
        "`{from}` pays no heed to leases in `{}`: add it to `leases` in the section `[history]` of its `tympan.toml`, and \
         restart its instance",
        folder.display()
    )))
}

/// What a standby has of its own.
struct Own {
    chunks: Arc<LocalStore>,
    sharing: Sharing,
}

/// Opens a standby, with its blobs where its configuration says.
fn open_standby(
    (to, config): (&Path, &Config),
    base: Opened,
    holder: &str,
) -> Result<(Standby, Own), Fault> {
    let chunks = open_own(to)?;
    let membership = Membership::of(to, None);
    let section = backend::chosen_blobs(to, config)?;
    let blobs = places::open((to, &section), &membership, chunks.clone(), None)?;
    let standby = Standby::new(base, (chunks.clone(), blobs.store.clone()), holder.to_owned());
    Ok((standby, Own { chunks, sharing: Sharing::new(membership, &blobs) }))
}

/// Refuses a directory in which something is.
fn require_empty(to: &Path) -> Result<(), Fault> {
    require_nothing_but(&[], to)
}

/// Refuses a directory in which something is that was not put there for the home to be.
fn require_bare(to: &Path) -> Result<(), Fault> {
    require_nothing_but(&["tympan.toml", "replication.key"], to)
}

fn require_nothing_but(known: &[&str], to: &Path) -> Result<(), Fault> {
    let is_known = |entry: std::io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| known.iter().any(|known| entry.file_name() == *known))
    };
    match fs::read_dir(to).map(|mut entries| entries.all(is_known)) {
        Ok(true) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Ok(false) => Err(Fault::usage(format!("`{}` is not empty", to.display()))),
        Err(error) => Err(Fault::usage(format!("cannot use `{}`: {error}", to.display()))),
    }
}

/// Returns a directory as it is found from anywhere; a URL as it is.
fn absolute(from: &str) -> Result<String, Fault> {
    if base::is_url(from) {
        return Ok(from.trim_end_matches('/').to_owned());
    }
    let path = fs::canonicalize(from)
        .map_err(|error| Fault::usage(format!("cannot clone `{from}`: {error}")))?;
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Fault::usage(format!("the name of `{}` is not UTF-8", path.display())))
}
