//! The dependency ledger of a publisher: its location, its name, and its use by flushes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use http::HeaderName;
use tokio::sync::watch;
use tympan_content::BlobId;
use tympan_home::{Home, create_private_dir, random_text, write_secret_file};
use tympan_render::DirScriptSource;
use tympan_render::ledger::{DEFAULT_MAX_URLS, DependencyLedger, LedgerOptions};
use tympan_server::shorten_ledger_name;
use tympan_store::StateDatabase;
use tympan_terminal::{CommandFault, error_chain_text};

use crate::config::TympanConfig;
use crate::home_fault::home_fault;

/// A file whose content changes at each boot of the machine.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// The polling interval of a site's folder; polling several hundred files takes about a millisecond.
const SITE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Returns a fingerprint of everything besides content that determines responses: the version of the program, the
/// settings that affect responses, the key that signs image URLs, and the files of a site that are read live.
fn rendering_fingerprint(config: &TympanConfig, key: &str, site: Option<u64>) -> String {
    let max_ages: Vec<_> =
        config.back_ends.iter().map(|(name, backend)| (name, &backend.max_age)).collect();
    let settings = format!(
        "{:?} {:?} {max_ages:?} {}{}",
        config.timing,
        config.ledger.surrogate_key,
        env!("CARGO_PKG_VERSION"),
        site.map(|state| format!(" {state:x}")).unwrap_or_default()
    );
    BlobId::hash_of(format!("answers\n{settings}\n{key}").as_bytes()).to_string()
}

/// Opens the ledger of a home.
///
/// # Errors
/// If its files or tables cannot be used.
pub(crate) async fn open_home_ledger(
    (home, config): (&Home, &TympanConfig),
    state: &StateDatabase,
    (key, site): (&str, Option<u64>),
) -> Result<DependencyLedger, CommandFault> {
    let folder = home.dir.join("ledger");
    let failed = |error: &dyn std::error::Error| {
        CommandFault::cannot_run(format!(
            "cannot open the ledger in `{}`: {}",
            folder.display(),
            error_chain_text(error)
        ))
    };
    create_private_dir(&folder).map_err(|error| failed(&error))?;
    let options = LedgerOptions {
        pool: state.pool().clone(),
        publisher: read_or_create_publisher_name(&folder.join("publisher"))?,
        // Without the boot id, every start counts as a boot of the machine.
        boot: fs::read_to_string(BOOT_ID_FILE)
            .ok()
            .map_or_else(random_text, Ok)
            .map_err(home_fault)?,
        max_urls: config.ledger.max_urls.unwrap_or(DEFAULT_MAX_URLS),
        renderer_fingerprint: rendering_fingerprint(config, key, site),
        folder: folder.clone(),
    };
    DependencyLedger::open(options, SystemTime::now()).await.map_err(|error| failed(&error))
}

/// Returns the state of a site's files that are read live.
///
/// # Errors
/// If a folder cannot be read.
pub(crate) fn site_files_state(site: Option<&Path>) -> Result<Option<u64>, CommandFault> {
    let state = site.map(DirScriptSource::dir_state_hash).transpose();
    state.map_err(|error| CommandFault::cannot_run(error_chain_text(&error)))
}

/// Updates the rendering fingerprint of the ledger whenever the files of a site change, so that the ledger names what
/// was rendered with the old files, until `stop` turns true. `known_state` is their state when the ledger was opened.
pub(crate) async fn follow_site(
    ledger: DependencyLedger,
    (config, key): (TympanConfig, String),
    (site, mut known_state): (PathBuf, Option<u64>),
    mut stop: watch::Receiver<bool>,
) {
    while !*stop.borrow() {
        let looked = site.clone();
        let state =
            tokio::task::spawn_blocking(move || DirScriptSource::dir_state_hash(&looked)).await;
        match state {
            Ok(Ok(state)) if known_state != Some(state) => {
                let result = ledger
                    .set_renderer_fingerprint(&rendering_fingerprint(&config, &key, Some(state)))
                    .await;
                match result {
                    Ok(()) => known_state = Some(state),
                    // Retried at the next poll.
                    Err(error) => {
                        tracing::warn!(reason = %error_chain_text(&error), "cannot update the ledger; will \
                            retry")
                    }
                }
            }
            Ok(Err(error)) => {
                tracing::warn!(file = %site.display(), reason = %error_chain_text(&error), "cannot read the \
                    site's files");
            }
            Ok(Ok(_)) | Err(_) => {}
        }
        tokio::select! {
            () = tokio::time::sleep(SITE_POLL_INTERVAL) => {}
            _ = stop.changed() => {}
        }
    }
}

/// Returns the name under which a publisher's flushes are counted: a prefix of its ledger's name.
///
/// # Errors
/// If it cannot be read or created.
pub(crate) fn publisher_short_name(home: &Home) -> Result<String, CommandFault> {
    Ok(shorten_ledger_name(&read_or_create_publisher_name(
        &home.dir.join("ledger").join("publisher"),
    )?))
}

/// Returns the header that names the keys of responses.
///
/// # Errors
/// If the name is no valid header name.
pub(crate) fn surrogate_key(config: &TympanConfig) -> Result<Option<HeaderName>, CommandFault> {
    let named = config.ledger.surrogate_key.as_deref();
    named
        .map(|name| {
            HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
                CommandFault::cannot_run(format!(
                    "`surrogate_key = \"{name}\"` in `[ledger]` is not a header name"
                ))
            })
        })
        .transpose()
}

/// Reads the name of this publisher, or creates one.
fn read_or_create_publisher_name(file: &Path) -> Result<String, CommandFault> {
    match fs::read_to_string(file) {
        Ok(name) if !name.trim().is_empty() => Ok(name.trim().to_owned()),
        _ => {
            let name = random_text().map_err(home_fault)?;
            write_secret_file(file, &name).map_err(home_fault)?;
            Ok(name)
        }
    }
}
