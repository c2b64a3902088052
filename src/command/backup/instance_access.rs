//! The credentials for the repository of a running instance.

use std::fs;
use std::path::Path;

use tympan_home_backup::InstanceAccess;
use tympan_replicate::RemoteStoreCredentials;
use tympan_terminal::{CommandFault, error_chain_text};
use tympan_web::tls::TlsTrust;

use crate::args::backup::RepositoryInstanceArgs;

/// Reads the credentials for an instance, and the certificates that it is verified with.
///
/// # Errors
/// If a file cannot be read.
pub(super) fn instance_access(
    arguments: &RepositoryInstanceArgs,
) -> Result<InstanceAccess, CommandFault> {
    let RepositoryInstanceArgs { key, token_file, ca } = arguments;
    let trust = ca.as_deref().map(|file| {
        let pem = fs::read(file).map_err(|error| {
            CommandFault::usage(format!("cannot read `{}`: {error}", file.display()))
        })?;
        TlsTrust::from_pem(&pem).map_err(|error| CommandFault::usage(error_chain_text(&error)))
    });
    Ok(InstanceAccess {
        credentials: read_credentials(key.as_deref(), token_file.as_deref())?,
        tls_trust: trust.transpose()?,
    })
}

/// Reads the credentials for an instance from a key file or a token file.
///
/// # Errors
/// If the file cannot be read.
pub(super) fn read_credentials(
    key: Option<&Path>,
    token_file: Option<&Path>,
) -> Result<Option<RemoteStoreCredentials>, CommandFault> {
    let read = |file: &Path| {
        let text = fs::read_to_string(file).map_err(|error| {
            CommandFault::usage(format!("cannot read `{}`: {error}", file.display()))
        })?;
        Ok::<_, CommandFault>(text.trim().to_owned())
    };
    match (key, token_file) {
        (Some(file), _) => Ok(Some(RemoteStoreCredentials::Key(read(file)?))),
        (None, Some(file)) => Ok(Some(RemoteStoreCredentials::Token(read(file)?))),
        (None, None) => Ok(None),
    }
}
