//! The location of a vault: a local folder, a folder on an SSH host, a bucket or a REST server; with the files and
//! variables that configure the access.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tympan_backup::{
    AppendOnlyBackend, LocalBackend, RateLimit, RateLimitedBackend, RestAddress, RestBackend,
    RestLogin, S3Address, S3Backend, SftpAddress, SftpBackend, SftpOptions, TransferLimits,
    UnknownHostPolicy, Vault, VaultBackend, VaultUser,
};
use tympan_blobs::{BucketOptions, ObjectBucket};
use tympan_terminal::{CommandFault, error_chain_text};
use tympan_web::tls::TlsTrust;

use crate::args::backup::VaultArgs;
use crate::args::vault::{HostKeyCheckMode, VaultLocationArgs};

/// The default number of concurrent requests to a bucket or a host.
const DEFAULT_CONNECTIONS: u8 = 5;
/// The private keys that are tried, as in OpenSSH.
const SSH_KEY_FILES: [&str; 3] = ["id_ed25519", "id_ecdsa", "id_rsa"];

/// Returns the backend of a vault; does not connect yet.
pub(super) fn vault_backend(arguments: &VaultArgs) -> Result<Arc<dyn VaultBackend>, CommandFault> {
    if arguments.vault.is_empty() {
        return Err(CommandFault::usage("no vault: name one with `-r VAULT`, or set TYMPAN_VAULT"));
    }
    vault_backend_at(&arguments.vault, &arguments.place)
}

/// Returns the backend as [`vault_backend`] does, for callers without a command line.
///
/// # Errors
/// If the address, or a file that configures the access, is invalid.
pub(crate) fn vault_backend_at(
    location: &str,
    options: &VaultLocationArgs,
) -> Result<Arc<dyn VaultBackend>, CommandFault> {
    let mut backend = uncached_backend_at(location, options)?;
    let limits = TransferLimits {
        upload: options.limit_upload.map(RateLimit),
        download: options.limit_download.map(RateLimit),
    };
    if limits != TransferLimits::default() {
        backend = Arc::new(RateLimitedBackend::new(backend, limits));
    }
    if options.append_only {
        backend = Arc::new(AppendOnlyBackend::new(backend));
    }
    Ok(backend)
}

fn uncached_backend_at(
    location: &str,
    options: &VaultLocationArgs,
) -> Result<Arc<dyn VaultBackend>, CommandFault> {
    let connections = options.connections.unwrap_or(DEFAULT_CONNECTIONS).into();
    if let Some(address) = SftpAddress::parse(location) {
        let options = SftpOptions { connections, ..sftp_options(options) };
        let backend = SftpBackend::new(location, address.map_err(CommandFault::usage)?, options);
        return Ok(Arc::new(
            backend.map_err(|error| CommandFault::with_code(error.to_string(), 1))?,
        ));
    }
    if let Some(address) = S3Address::parse(location) {
        let objects = open_bucket(address.map_err(CommandFault::usage)?)?;
        return Ok(Arc::new(S3Backend::new(location.to_owned(), objects, connections)));
    }
    if let Some(address) = RestAddress::parse(location) {
        return rest_backend(address.map_err(CommandFault::usage)?, (options, connections));
    }
    let unknown = ["az:", "az://", "b2:", "gs:", "swift:", "azure:", "rclone:"];
    if let Some(scheme) = unknown.iter().find(|scheme| location.starts_with(**scheme)) {
        return Err(CommandFault::usage(format!(
            "vaults at `{scheme}…` are not supported; name a folder, `sftp://…`, `s3:…` or `rest:…`"
        )));
    }
    Ok(Arc::new(LocalBackend::new(location.strip_prefix("file://").unwrap_or(location))))
}

/// Returns a REST server, with the user and password from a file or the environment.
fn rest_backend(
    address: RestAddress,
    (options, connections): (&VaultLocationArgs, usize),
) -> Result<Arc<dyn VaultBackend>, CommandFault> {
    let text = |names: [&str; 2]| {
        names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    };
    // The variables of restic are accepted as well.
    let user = address.user.clone().or_else(|| text(["TYMPAN_REST_USER", "RESTIC_REST_USERNAME"]));
    let password =
        match &options.rest_password_file {
            Some(file) => {
                let bytes = super::vault_session::read_password_file(file)?;
                let text = String::from_utf8(bytes);
                Some(text.map_err(|_| {
                    CommandFault::usage(format!("`{}` is not UTF-8", file.display()))
                })?)
            }
            None => text(["TYMPAN_REST_PASSWORD", "RESTIC_REST_PASSWORD"]),
        };
    let login = user.map(|user| RestLogin { user, password: password.unwrap_or_default() });
    let trust = match &options.vault_ca {
        Some(file) => {
            let pem = std::fs::read(file).map_err(|error| {
                CommandFault::usage(format!("cannot read `{}`: {error}", file.display()))
            })?;
            Some(
                TlsTrust::from_pem(&pem)
                    .map_err(|error| CommandFault::usage(error_chain_text(&error)))?,
            )
        }
        None if address.url.starts_with("https:") => Some(
            TlsTrust::system_roots()
                .map_err(|error| CommandFault::with_code(error_chain_text(&error), 1))?,
        ),
        None => None,
    };
    let backend = RestBackend::new(address, login.as_ref(), (trust, connections));
    Ok(Arc::new(backend.map_err(|error| CommandFault::with_code(error.to_string(), 1))?))
}

fn path_variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn sftp_options(options: &VaultLocationArgs) -> SftpOptions {
    // Without a home directory, nothing is read from the current working directory instead.
    let ssh = path_variable("HOME").map(|home| home.join(".ssh"));
    let known_hosts = match &options.ssh_known_hosts {
        Some(file) => vec![file.clone()],
        None => {
            let own = ssh.iter().map(|ssh| ssh.join("known_hosts"));
            own.chain([PathBuf::from("/etc/ssh/ssh_known_hosts")]).collect()
        }
    };
    let unknown_host = match options.ssh_host_keys_check {
        HostKeyCheckMode::Yes => UnknownHostPolicy::Refuse,
        HostKeyCheckMode::AcceptNew => UnknownHostPolicy::Record,
    };
    SftpOptions {
        user: VaultUser::this_process().user,
        keys: options.ssh_key.clone(),
        default_keys: ssh.iter().flat_map(|ssh| SSH_KEY_FILES.map(|name| ssh.join(name))).collect(),
        agent: path_variable("SSH_AUTH_SOCK"),
        known_hosts,
        unknown_host,
        ..SftpOptions::default()
    }
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

/// The timeout of a request to a vault's bucket, including retries, before a command fails.
const BUCKET_REQUEST_TIMEOUT: Duration = Duration::from_mins(1);
/// The maximum time without data in a response of a bucket.
const BUCKET_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

fn open_bucket(address: S3Address) -> Result<ObjectBucket, CommandFault> {
    let url = format!("s3://{}/{}", address.bucket, address.prefix);
    let mut options = BucketOptions::new(url, "");
    // No visitor waits for a backup, so that longer timeouts are acceptable.
    options.request_timeout = BUCKET_REQUEST_TIMEOUT;
    options.idle_timeout = BUCKET_IDLE_TIMEOUT;
    // Settings given here take precedence over the defaults.
    options.settings.push(("AWS_REGION".to_owned(), "us-east-1".to_owned()));
    let usual = crate::blob_storage::default_bucket_settings().map_err(CommandFault::usage)?;
    // Only the address determines where the vault is.
    options.settings.extend(usual.into_iter().filter(|(name, _)| !is_location_setting(name)));
    if let Some(region) = address.region {
        options.settings.push(("AWS_REGION".to_owned(), region));
    }
    if address.endpoint.starts_with("https:") {
        let trust = TlsTrust::system_roots();
        options.trust =
            Some(trust.map_err(|error| CommandFault::with_code(error_chain_text(&error), 1))?);
    }
    options.settings.push(("AWS_ENDPOINT_URL".to_owned(), address.endpoint));
    ObjectBucket::open(&options).map_err(|error| CommandFault::usage(error_chain_text(&error)))
}

/// Returns the folder that caches data of remote vaults; `None` if there is no location for it, or if the cache is
/// disabled.
pub(crate) fn vault_cache_dir(max_bytes: u64) -> Option<PathBuf> {
    let caches = path_variable("XDG_CACHE_HOME")
        .or_else(|| path_variable("HOME").map(|home| home.join(".cache")))
        .map(|caches| caches.join("tympan"));
    caches.filter(|_| max_bytes > 0)
}

/// Enables the local cache of a remote vault; does nothing if there is no location for it.
pub(crate) fn enable_vault_cache(vault: &mut Vault, max_bytes: u64) {
    let Some(dir) = vault_cache_dir(max_bytes) else { return };
    if let Err(error) = vault.enable_cache(&dir, max_bytes) {
        tracing::warn!(%error, file = %dir.display(), "cannot enable the local cache of the vault");
    }
}
