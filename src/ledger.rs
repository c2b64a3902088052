//! The dependency ledger of a publisher: its location, its name, and what affects its responses besides content.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use tympan_content::BlobId;
use tympan_home::{Home, create_private_dir, random_text, write_secret_file};
use tympan_render::DirScriptSource;
use tympan_render::ledger::{DependencyLedger, LedgerOptions};
use tympan_server::shorten_ledger_name;
use tympan_store::StateDatabase;
use tympan_terminal::{CommandFault, error_chain_text};

use crate::config::TympanConfig;
use crate::home_fault::home_fault;

/// A file whose content changes at each boot of the machine.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// Everything besides content and a site's live files that determines responses: the version of the program, the
/// settings that affect responses, and the key that signs image URLs.
pub(crate) struct RenderingFacts {
    settings: String,
    key: String,
}

impl RenderingFacts {
    /// Reads the settings of a configuration.
    pub(crate) fn new(config: &TympanConfig, key: &str) -> Self {
        let max_ages: Vec<_> =
            config.back_ends.iter().map(|(name, backend)| (name, &backend.max_age)).collect();
        let settings = format!(
            "{:?} {:?} {max_ages:?} {}",
            config.timing,
            config.ledger.surrogate_key,
            env!("CARGO_PKG_VERSION"),
        );
        Self { settings, key: key.to_owned() }
    }

    /// Returns a fingerprint of these facts and of the state of a site's files that are read live.
    pub(crate) fn fingerprint(&self, site: Option<u64>) -> String {
        let site = site.map(|state| format!(" {state:x}")).unwrap_or_default();
        let Self { settings, key } = self;
        BlobId::hash_of(format!("answers\n{settings}{site}\n{key}").as_bytes()).to_string()
    }
}

/// Opens the ledger of a home, for a renderer with this fingerprint.
///
/// # Errors
/// If its files or tables cannot be used.
pub(crate) async fn open_home_ledger(
    home: &Home,
    state: &StateDatabase,
    config: &TympanConfig,
    renderer_fingerprint: &str,
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
        max_urls: config.ledger.max_urls(),
        renderer_fingerprint: renderer_fingerprint.to_owned(),
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

/// Returns the name under which a publisher's flushes are counted: a prefix of its ledger's name.
///
/// # Errors
/// If it cannot be read or created.
pub(crate) fn publisher_short_name(home: &Home) -> Result<String, CommandFault> {
    Ok(shorten_ledger_name(&read_or_create_publisher_name(
        &home.dir.join("ledger").join("publisher"),
    )?))
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
