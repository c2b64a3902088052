//! The dependency ledger of a publisher: where it lies, and under which name.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use tympan_render::ledger::{Ledger, LedgerOptions, MAX_URLS};
use tympan_store::State;

use crate::command::Fault;
use crate::home::{Home, chain, random_text, write_secret};

/// Changes with each start of the machine.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Opens the ledger of a home.
///
/// # Errors
/// If its files or tables cannot be used.
pub(crate) async fn open(home: &Home, state: &State) -> Result<Ledger, Fault> {
    let folder = home.dir.join("ledger");
    let failed = |error: &dyn std::error::Error| {
        Fault::cannot_run(format!(
            "cannot open the ledger in `{}`: {}",
            folder.display(),
            chain(error)
        ))
    };
    fs::create_dir_all(&folder).map_err(|error| failed(&error))?;
    let options = LedgerOptions {
        pool: state.pool().clone(),
        publisher: name(&folder.join("publisher"))?,
        // Without it, every start counts as one of the machine.
        boot: fs::read_to_string(BOOT).ok().map_or_else(random_text, Ok)?,
        max_urls: home.config.ledger.max_urls.unwrap_or(MAX_URLS),
        folder: folder.clone(),
    };
    Ledger::open(options, SystemTime::now()).await.map_err(|error| failed(&error))
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
