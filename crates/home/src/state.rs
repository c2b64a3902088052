//! The state database of a home, which its instance and commands open at the same time.

use std::fs;
use std::path::Path;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tympan_store::StateDatabase;

use crate::access::HomeAccess;
use crate::config::HomeConfig;
use crate::error::{Error, Result};
use crate::home_format::check_home_format;
use crate::private_file::{sync_folder, write_private_file};

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
    check_home_format(dir)?;
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
    if shared.is_none() {
        copy_before_migration(&state, &file, tables).await?;
    }
    for group in tables {
        state.migrate_tables(group.name, group.migrations).await.map_err(failed)?;
    }
    Ok(state)
}

/// The copy of the state database as it was before a program migrated it last.
pub const STATE_COPY_FILE: &str = "state.db.before-upgrade";

/// Copies the file of a state database, if an older program wrote it and this one is about to change its tables. An
/// older copy is replaced.
async fn copy_before_migration(
    state: &StateDatabase,
    file: &Path,
    tables: &[StateTableGroup],
) -> Result<()> {
    let failed = |error: tympan_store::Error| {
        Error::failed(
            format!("cannot read the version of the tables of `{}`", file.display()),
            error,
        )
    };
    let (mut has_tables, mut is_outdated) = (false, false);
    for group in tables {
        let applied = state.applied_steps(group.name).await.map_err(failed)?;
        has_tables |= applied > 0;
        is_outdated |= applied < group.migrations.len();
    }
    // A new database has nothing to lose.
    if !has_tables || !is_outdated {
        return Ok(());
    }
    let copy = file.with_file_name(STATE_COPY_FILE);
    let unfinished = file.with_file_name("state.db.before-upgrade.tmp");
    let copy_failed = |error: std::io::Error| {
        Error::failed(
            format!("cannot copy `{}` before its tables are changed", file.display()),
            error,
        )
    };
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(copy_failed(error));
        }
        _ => {}
    }
    // The database engine writes into an empty file, but would create one that others can read.
    write_private_file(&unfinished, b"").map_err(copy_failed)?;
    tympan_store::copy_state_database(file, &unfinished).await.map_err(failed)?;
    let keep = || {
        fs::File::open(&unfinished)?.sync_all()?;
        fs::rename(&unfinished, &copy)?;
        file.parent().map_or(Ok(()), sync_folder)
    };
    keep().map_err(copy_failed)?;
    tracing::info!(
        file = %copy.display(),
        "copied the state database, whose tables are brought up to date now"
    );
    Ok(())
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
