//! The state database of a home, which its instance and commands open at the same time.

use std::path::Path;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tympan_store::StateDatabase;

use crate::access::HomeAccess;
use crate::config::HomeConfig;
use crate::error::{Error, Result};

/// The file of the state database.
pub const STATE_FILE: &str = "state.db";

/// The tables that one component has in the state database.
#[derive(Debug, Clone, Copy)]
pub struct StateTableGroup {
    /// The name under which the database records the steps that were run.
    pub name: &'static str,
    /// The steps that create the tables and bring them up to date.
    pub migrations: &'static [&'static str],
}

/// Opens the state database with these tables: the file of the home, or if a database stores the repository, a schema
/// next to the repository's, so that all instances on it share jobs and logins.
///
/// # Errors
/// If the database cannot be opened or migrated.
pub async fn open_state_database(
    access: &HomeAccess,
    dir: &Path,
    config: &HomeConfig,
    tables: &[StateTableGroup],
) -> Result<StateDatabase> {
    let file = dir.join(STATE_FILE);
    let shared = state_database_location(access, config);
    let failed = |error: tympan_store::Error| {
        let action = match &shared {
            Some(_) => "cannot open the state database".to_owned(),
            None => format!("cannot open `{}`", file.display()),
        };
        Error::failed(action, error)
    };
    let state = match &shared {
        Some((url, schema)) => StateDatabase::connect(url, schema).await.map_err(failed)?,
        None => StateDatabase::open(&file).await.map_err(failed)?,
    };
    for group in tables {
        state.migrate_tables(group.name, group.migrations).await.map_err(failed)?;
    }
    Ok(state)
}

/// Returns the location of the state database if a database stores the repository: its URL, and the name of the schema.
fn state_database_location(access: &HomeAccess, config: &HomeConfig) -> Option<(String, String)> {
    let section = &config.database;
    let mut url = access.database_url(config)?.clone();
    if let Some(authority) = &section.tls_ca {
        let joint = if url.contains('?') { '&' } else { '?' };
        let file = utf8_percent_encode(&authority.to_string_lossy(), NON_ALPHANUMERIC).to_string();
        url = format!("{url}{joint}sslmode=verify-full&sslrootcert={file}");
    }
    let schema = section.schema.as_deref().unwrap_or("tympan");
    Some((url, format!("{schema}_state")))
}
