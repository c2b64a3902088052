//! The dependency ledger of a publisher: where it lies, under which name, and how flushes ask it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};
use std::{fmt, fs};

use http::HeaderName;
use tokio::sync::watch;
use tympan_content::{BlobId, ChunkId, NodePath, Snapshot, Viewer};
use tympan_render::ledger::{Error, Ledger, LedgerOptions, MAX_URLS};
use tympan_render::{DirSource, RenderRequest};
use tympan_replicate::{Affected, Reach};
use tympan_server::Instance;
use tympan_store::State;

use crate::command::Fault;
use crate::config::Config;
use crate::home::{Home, chain, create_closed, random_text, write_secret};

/// Changes with each start of the machine.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// How often a site's folder is looked at; a look at some hundred files costs about a millisecond.
const LOOK: Duration = Duration::from_secs(1);

/// Names what decides about answers beside content: the version of the program, the settings that show in answers, the
/// key that addresses of pictures are signed with, and the files of a site that are read live.
fn drawn_by(config: &Config, key: &str, site: Option<u64>) -> String {
    let max_ages: Vec<_> =
        config.back_ends.iter().map(|(name, one)| (name, &one.max_age)).collect();
    let settings = format!(
        "{:?} {:?} {max_ages:?} {}{}",
        config.timing,
        config.ledger.surrogate_key,
        env!("CARGO_PKG_VERSION"),
        site.map(|state| format!(" {state:x}")).unwrap_or_default()
    );
    BlobId::of(format!("answers\n{settings}\n{key}").as_bytes()).to_string()
}

/// Opens the ledger of a home.
///
/// # Errors
/// If its files or tables cannot be used.
pub(crate) async fn open(
    home: &Home,
    state: &State,
    (key, site): (&str, Option<u64>),
) -> Result<Ledger, Fault> {
    let folder = home.dir.join("ledger");
    let failed = |error: &dyn std::error::Error| {
        Fault::cannot_run(format!(
            "cannot open the ledger in `{}`: {}",
            folder.display(),
            chain(error)
        ))
    };
    create_closed(&folder).map_err(|error| failed(&error))?;
    let options = LedgerOptions {
        pool: state.pool().clone(),
        publisher: name(&folder.join("publisher"))?,
        // Without it, every start counts as one of the machine.
        boot: fs::read_to_string(BOOT).ok().map_or_else(random_text, Ok)?,
        max_urls: home.config.ledger.max_urls.unwrap_or(MAX_URLS),
        drawn_by: drawn_by(&home.config, key, site),
        folder: folder.clone(),
    };
    Ledger::open(options, SystemTime::now()).await.map_err(|error| failed(&error))
}

/// Returns the state of a site's files that are read live.
///
/// # Errors
/// If a folder cannot be read.
pub(crate) fn state_of(site: Option<&Path>) -> Result<Option<u64>, Fault> {
    let state = site.map(DirSource::state_of).transpose();
    state.map_err(|error| Fault::cannot_run(chain(&error)))
}

/// Has the ledger name what was drawn by the files of a site whenever these change, until `stop` turns true. `known` is
/// their state when the ledger was opened.
pub(crate) async fn follow_site(
    ledger: Ledger,
    (config, key): (Config, String),
    (site, mut known): (PathBuf, Option<u64>),
    mut stop: watch::Receiver<bool>,
) {
    while !*stop.borrow() {
        let looked = site.clone();
        let state = tokio::task::spawn_blocking(move || DirSource::state_of(&looked)).await;
        match state {
            Ok(Ok(state)) if known != Some(state) => {
                let told = ledger.draw_otherwise(&drawn_by(&config, &key, Some(state))).await;
                match told {
                    Ok(()) => known = Some(state),
                    // Tried again at the next look.
                    Err(error) => tracing::warn!(reason = %chain(&error), "the ledger is behind"),
                }
            }
            Ok(Err(error)) => {
                tracing::warn!(file = %site.display(), reason = %chain(&error), "cannot look at the site's files");
            }
            Ok(Ok(_)) | Err(_) => {}
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            _ = stop.changed() => {}
        }
    }
}

/// Returns the name under which a publisher's flushes are counted: the begin of the one that its ledger has.
///
/// # Errors
/// If it cannot be read or made.
pub(crate) fn short_name(home: &Home) -> Result<String, Fault> {
    Ok(short(&name(&home.dir.join("ledger").join("publisher"))?))
}

/// Shortens the name of a ledger to that under which its publisher flushes.
pub(crate) fn short(name: &str) -> String {
    name.chars().take(12).collect()
}

/// Reads which header names the keys of answers.
///
/// # Errors
/// If no header can have that name.
pub(crate) fn surrogate_key(config: &Config) -> Result<Option<HeaderName>, Fault> {
    let named = config.ledger.surrogate_key.as_deref();
    named
        .map(|name| {
            HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
                Fault::cannot_run(format!(
                    "`surrogate_key = \"{name}\"` in `[ledger]` is no name of a header"
                ))
            })
        })
        .transpose()
}

/// Reads the name of this publisher, or makes one.
fn name(file: &Path) -> Result<String, Fault> {
    match fs::read_to_string(file) {
        Ok(name) if !name.trim().is_empty() => Ok(name.trim().to_owned()),
        _ => {
            let name = random_text()?;
            write_secret(file, &name)?;
            Ok(name)
        }
    }
}

/// Tells flushes which URLs a change reaches.
pub(crate) struct Reached {
    ledger: Ledger,
    /// Draws what a change may show in; the instance holds the replicator that asks.
    instance: Weak<Instance>,
}

impl Reached {
    pub(crate) fn new(ledger: Ledger, instance: &Arc<Instance>) -> Self {
        Self { ledger, instance: Arc::downgrade(instance) }
    }
}

impl fmt::Debug for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ledger.fmt(f)
    }
}

impl Affected for Reached {
    fn affected(
        &self,
        before: &Snapshot,
        after: &Snapshot,
        _: &[NodePath],
    ) -> tympan_replicate::Result<Reach> {
        let instance = self.instance.upgrade();
        let draw = |state: &Snapshot, request: &RenderRequest<'_>| {
            instance.as_ref()?.draw_for_visitors(state, request)
        };
        let [before, after] = [before, after].map(|state| state.seen_by(&Viewer::anonymous()));
        match self.ledger.step(&before, &after, &draw) {
            Ok(affected) if affected.scopes.is_empty() => Ok(Reach::Urls(affected.urls)),
            Ok(affected) => Ok(Reach::Below { urls: affected.urls, folders: affected.scopes }),
            Err(Error::Compare(error)) => match *error {
                tympan_render::Error::Content(error) => Err(error.into()),
                error => Ok(unknown(&error)),
            },
            Err(error) => Ok(unknown(&error)),
        }
    }

    fn stored(&self, root: ChunkId) {
        self.ledger.stored(root);
    }

    fn is_owing(&self) -> bool {
        self.ledger.is_owing()
    }

    fn gone(&self) -> Vec<String> {
        self.ledger.take_gone().iter().map(|name| short(name)).collect()
    }
}

fn unknown(error: &dyn std::error::Error) -> Reach {
    tracing::warn!(error = chain(error), "the ledger cannot tell which URLs a change reaches");
    Reach::everything()
}
