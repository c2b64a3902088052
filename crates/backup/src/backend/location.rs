//! The location of a vault: a local folder, a folder on an SSH host, a bucket or a REST server; and the access to it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tympan_blobs::{BucketOptions, ObjectBucket};
use tympan_web::tls::TlsTrust;

use super::append_only::AppendOnlyBackend;
use super::local::LocalBackend;
use super::rest::{RestAddress, RestBackend, RestLogin};
use super::s3::{S3Address, S3Backend};
use super::sftp::{SftpAddress, SftpBackend, SftpOptions};
use super::transfer_limit::{RateLimitedBackend, TransferLimits};
use super::vault_backend::VaultBackend;
use crate::error::{Error, Result};
use crate::vault_password::read_password_file;
use tympan_notation::error_chain_text;

/// The default number of concurrent requests to a bucket or a host.
const DEFAULT_CONNECTIONS: usize = 5;
/// The timeout of a request to a vault's bucket, including retries, before a run fails.
const BUCKET_REQUEST_TIMEOUT: Duration = Duration::from_mins(1);
/// The maximum time without data in a response of a bucket.
const BUCKET_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The settings of a bucket client as name and value, or the reason why they cannot be read.
pub(crate) type BucketClientSettings = Result<Vec<(String, String)>, String>;

/// How the location of a vault is accessed.
#[derive(Clone, Debug, Default)]
pub struct VaultAccess {
    /// The number of concurrent requests to another machine; default 5.
    pub connections: Option<usize>,
    /// The keys, the known hosts and the user for SSH hosts.
    pub sftp: SftpOptions,
    /// The user of a REST server, if its address names none.
    pub rest_user: Option<String>,
    /// The password of that user.
    pub rest_password: Option<String>,
    /// A file whose first line is the password, instead of `rest_password`.
    pub rest_password_file: Option<PathBuf>,
    /// A PEM file with the certificate that must have signed that of a REST server; default those of the system.
    pub rest_ca: Option<PathBuf>,
    /// Returns the settings of bucket clients from the files and the environment of this process's user.
    pub bucket_settings: Option<fn() -> BucketClientSettings>,
    /// The maximum rates of transfers.
    pub limits: TransferLimits,
    /// True if nothing in the vault may be removed or replaced except locks.
    pub is_append_only: bool,
}

/// Returns the backend of the vault at a location; does not connect yet.
///
/// # Errors
/// [`Error::InvalidRequest`] if the address, or a file that configures the access, is invalid.
pub fn open_vault_backend(location: &str, access: &VaultAccess) -> Result<Arc<dyn VaultBackend>> {
    let mut backend = open_unlimited_backend(location, access)?;
    if access.limits != TransferLimits::default() {
        backend = Arc::new(RateLimitedBackend::new(backend, access.limits));
    }
    if access.is_append_only {
        backend = Arc::new(AppendOnlyBackend::new(backend));
    }
    Ok(backend)
}

fn open_unlimited_backend(location: &str, access: &VaultAccess) -> Result<Arc<dyn VaultBackend>> {
    let connections = access.connections.unwrap_or(DEFAULT_CONNECTIONS);
    if let Some(address) = SftpAddress::parse(location) {
        let options = SftpOptions { connections, ..access.sftp.clone() };
        let address = address.map_err(Error::InvalidRequest)?;
        let backend = SftpBackend::new(location, address, options);
        return Ok(Arc::new(backend.map_err(|error| Error::Access(error.to_string()))?));
    }
    if let Some(address) = S3Address::parse(location) {
        let objects = open_bucket(address.map_err(Error::InvalidRequest)?, access)?;
        return Ok(Arc::new(S3Backend::new(location.to_owned(), objects, connections)));
    }
    if let Some(address) = RestAddress::parse(location) {
        return open_rest_server(address.map_err(Error::InvalidRequest)?, access, connections);
    }
    let unknown = ["az:", "az://", "b2:", "gs:", "swift:", "azure:", "rclone:"];
    if let Some(scheme) = unknown.iter().find(|scheme| location.starts_with(**scheme)) {
        return Err(Error::InvalidRequest(format!(
            "vaults at `{scheme}…` are not supported; name a folder, `sftp://…`, `s3:…` or `rest:…`"
        )));
    }
    Ok(Arc::new(LocalBackend::new(location.strip_prefix("file://").unwrap_or(location))))
}

fn open_rest_server(
    address: RestAddress,
    access: &VaultAccess,
    connections: usize,
) -> Result<Arc<dyn VaultBackend>> {
    let user = address.user.clone().or_else(|| access.rest_user.clone());
    let password =
        match &access.rest_password_file {
            Some(file) => {
                let text = String::from_utf8(read_password_file(file)?);
                Some(text.map_err(|_| {
                    Error::InvalidRequest(format!("`{}` is not UTF-8", file.display()))
                })?)
            }
            None => access.rest_password.clone(),
        };
    let login = user.map(|user| RestLogin { user, password: password.unwrap_or_default() });
    let trust = match &access.rest_ca {
        Some(file) => {
            let pem = std::fs::read(file).map_err(|error| {
                Error::InvalidRequest(format!("cannot read `{}`: {error}", file.display()))
            })?;
            let trust = TlsTrust::from_pem(&pem);
            Some(trust.map_err(|error| Error::InvalidRequest(error_chain_text(&error)))?)
        }
        None if address.url.starts_with("https:") => Some(system_roots()?),
        None => None,
    };
    let backend = RestBackend::new(address, login.as_ref(), (trust, connections));
    Ok(Arc::new(backend.map_err(|error| Error::Access(error.to_string()))?))
}

fn system_roots() -> Result<TlsTrust> {
    TlsTrust::system_roots().map_err(|error| Error::Access(error_chain_text(&error)))
}

/// Returns true if a setting of the environment would override the address of a vault.
fn is_location_setting(setting: &str) -> bool {
    let location_settings = [
        "aws_endpoint",
        "aws_endpoint_url",
        "aws_endpoint_url_s3",
        "aws_virtual_hosted_style_request",
        "aws_s3_express",
    ];
    location_settings.iter().any(|name| setting.eq_ignore_ascii_case(name))
}

fn open_bucket(address: S3Address, access: &VaultAccess) -> Result<ObjectBucket> {
    let url = format!("s3://{}/{}", address.bucket, address.prefix);
    let mut options = BucketOptions::new(url, "");
    // No visitor waits for a backup, so that longer timeouts are acceptable.
    options.request_timeout = BUCKET_REQUEST_TIMEOUT;
    options.idle_timeout = BUCKET_IDLE_TIMEOUT;
    // Settings given here take precedence over the defaults.
    options.settings.push(("AWS_REGION".to_owned(), "us-east-1".to_owned()));
    if let Some(read_settings) = access.bucket_settings {
        let usual = read_settings().map_err(Error::InvalidRequest)?;
        // Only the address determines where the vault is.
        options.settings.extend(usual.into_iter().filter(|(name, _)| !is_location_setting(name)));
    }
    if let Some(region) = address.region {
        options.settings.push(("AWS_REGION".to_owned(), region));
    }
    if address.endpoint.starts_with("https:") {
        options.trust = Some(system_roots()?);
    }
    options.settings.push(("AWS_ENDPOINT_URL".to_owned(), address.endpoint));
    ObjectBucket::open(&options).map_err(|error| Error::InvalidRequest(error_chain_text(&error)))
}

/// Returns a location for trials next to a vault; below it if the vault is a whole bucket, the root of a server, or a
/// home directory there.
pub fn trial_location_beside(vault: &str, process: u32) -> String {
    let vault = vault.trim_end_matches('/');
    let is_home = SftpAddress::parse(vault)
        .is_some_and(|address| address.is_ok_and(|address| address.path == "."));
    let is_top = is_home
        || S3Address::parse(vault)
            .is_some_and(|address| address.is_ok_and(|address| address.prefix.is_empty()))
        || RestAddress::parse(vault).is_some_and(|address| {
            address.is_ok_and(|address| address.url.matches('/').count() == 3)
        });
    format!("{vault}{}tune-{process}", if is_top { '/' } else { '-' })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_stay_in_the_bucket_and_on_the_server() {
        for (vault, trials) in [
            ("/backup/site/", "/backup/site-tune-7"),
            ("sftp://ann@host/~/repo", "sftp://ann@host/~/repo-tune-7"),
            ("sftp://ann@host/~", "sftp://ann@host/~/tune-7"),
            ("sftp:ann@host:~", "sftp:ann@host:~/tune-7"),
            ("sftp:ann@host:site", "sftp:ann@host:site-tune-7"),
            ("s3:host/bucket/site", "s3:host/bucket/site-tune-7"),
            ("s3:http://host:9000/bucket/", "s3:http://host:9000/bucket/tune-7"),
            ("rest:https://ann@host:8000/site/", "rest:https://ann@host:8000/site-tune-7"),
            ("rest:https://ann@host:8000/", "rest:https://ann@host:8000/tune-7"),
        ] {
            assert_eq!(trial_location_beside(vault, 7), trials);
        }
    }
}
