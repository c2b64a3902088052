//! Where a vault is: a folder here, one on a host with SSH, a bucket; with the files and variables that say how to get
//! there.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tympan_backup::{
    AppendOnly, Backend, Limits, LocalBackend, PacedBackend, Rate, RestAddress, RestBackend,
    RestLogin, S3Address, S3Backend, SftpAddress, SftpBackend, SftpOptions, UnknownHost, Vault,
    Who,
};
use tympan_blobs::{BucketOptions, Objects};
use tympan_web::tls::Trust;

use crate::args::backup::VaultArguments;
use crate::args::vault::{HostKeysCheck, PlaceArguments};
use crate::command::Fault;
use crate::home::chain;

/// Calls to a bucket or a host that are on their way at once.
const CONNECTIONS: u8 = 5;
/// The private keys that are tried, as by OpenSSH.
const KEYS: [&str; 3] = ["id_ed25519", "id_ecdsa", "id_rsa"];

/// Names the place of a vault; nothing is connected yet.
pub(super) fn backend(arguments: &VaultArguments) -> Result<Arc<dyn Backend>, Fault> {
    if arguments.vault.is_empty() {
        return Err(Fault::usage("no vault: name one with `-r VAULT`, or set TYMPAN_VAULT"));
    }
    backend_at(&arguments.vault, &arguments.place)
}

/// As [`backend`], for whoever has no command line.
///
/// # Errors
/// If the address, or a file that says how to get there, makes no sense.
pub(crate) fn backend_at(place: &str, options: &PlaceArguments) -> Result<Arc<dyn Backend>, Fault> {
    let mut backend = bare(place, options)?;
    let limits = Limits {
        upload: options.limit_upload.map(Rate),
        download: options.limit_download.map(Rate),
    };
    if limits != Limits::default() {
        backend = Arc::new(PacedBackend::new(backend, limits));
    }
    if options.append_only {
        backend = Arc::new(AppendOnly::new(backend));
    }
    Ok(backend)
}

fn bare(place: &str, options: &PlaceArguments) -> Result<Arc<dyn Backend>, Fault> {
    let connections = options.connections.unwrap_or(CONNECTIONS).into();
    if let Some(address) = SftpAddress::parse(place) {
        let options = SftpOptions { connections, ..sftp(options) };
        let backend = SftpBackend::new(place, address.map_err(Fault::usage)?, options);
        return Ok(Arc::new(backend.map_err(|error| Fault::with_code(error.to_string(), 1))?));
    }
    if let Some(address) = S3Address::parse(place) {
        let objects = bucket(address.map_err(Fault::usage)?)?;
        return Ok(Arc::new(S3Backend::new(place.to_owned(), objects, connections)));
    }
    if let Some(address) = RestAddress::parse(place) {
        return rest(address.map_err(Fault::usage)?, (options, connections));
    }
    let unknown = ["az:", "az://", "b2:", "gs:", "swift:", "azure:", "rclone:"];
    if let Some(scheme) = unknown.iter().find(|scheme| place.starts_with(**scheme)) {
        return Err(Fault::usage(format!(
            "vaults at `{scheme}…` are not there; name a folder, `sftp://…`, `s3:…` or `rest:…`"
        )));
    }
    Ok(Arc::new(LocalBackend::new(place.strip_prefix("file://").unwrap_or(place))))
}

/// Names a server, with the user and password that a file or the environment has.
fn rest(
    address: RestAddress,
    (options, connections): (&PlaceArguments, usize),
) -> Result<Arc<dyn Backend>, Fault> {
    let text = |names: [&str; 2]| {
        names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    };
    // restic's own words are understood, too.
    let user = address.user.clone().or_else(|| text(["TYMPAN_REST_USER", "RESTIC_REST_USERNAME"]));
    let password = match &options.rest_password_file {
        Some(file) => {
            let bytes = super::open::password_of_file(file)?;
            let text = String::from_utf8(bytes);
            Some(text.map_err(|_| Fault::usage(format!("`{}` holds no text", file.display())))?)
        }
        None => text(["TYMPAN_REST_PASSWORD", "RESTIC_REST_PASSWORD"]),
    };
    let login = user.map(|user| RestLogin { user, password: password.unwrap_or_default() });
    let trust = match &options.vault_ca {
        Some(file) => {
            let pem = std::fs::read(file).map_err(|error| {
                Fault::usage(format!("cannot read `{}`: {error}", file.display()))
            })?;
            Some(Trust::from_pem(&pem).map_err(|error| Fault::usage(chain(&error)))?)
        }
        None if address.url.starts_with("https:") => {
            Some(Trust::system().map_err(|error| Fault::with_code(chain(&error), 1))?)
        }
        None => None,
    };
    let backend = RestBackend::new(address, login.as_ref(), (trust, connections));
    Ok(Arc::new(backend.map_err(|error| Fault::with_code(error.to_string(), 1))?))
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn sftp(options: &PlaceArguments) -> SftpOptions {
    // Without a home nothing is taken from the folder that the program happens to run in.
    let ssh = variable("HOME").map(|home| home.join(".ssh"));
    let known_hosts = match &options.ssh_known_hosts {
        Some(file) => vec![file.clone()],
        None => {
            let own = ssh.iter().map(|ssh| ssh.join("known_hosts"));
            own.chain([PathBuf::from("/etc/ssh/ssh_known_hosts")]).collect()
        }
    };
    let unknown_host = match options.ssh_host_keys_check {
        HostKeysCheck::Yes => UnknownHost::Refuse,
        HostKeysCheck::AcceptNew => UnknownHost::Record,
    };
    SftpOptions {
        user: Who::this_process().user,
        keys: options.ssh_key.clone(),
        usual_keys: ssh.iter().flat_map(|ssh| KEYS.map(|name| ssh.join(name))).collect(),
        agent: variable("SSH_AUTH_SOCK"),
        known_hosts,
        unknown_host,
        ..SftpOptions::default()
    }
}

/// Tells whether a setting of the environment would lead elsewhere than the address of a vault.
fn names_a_place(setting: &str) -> bool {
    let places = [
        "aws_endpoint",
        "aws_endpoint_url",
        "aws_endpoint_url_s3",
        "aws_virtual_hosted_style_request",
        "aws_s3_express",
    ];
    places.iter().any(|place| setting.eq_ignore_ascii_case(place))
}

/// For how long a vault's bucket is asked before a command fails.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long one of its answers may be silent.
const STALL: Duration = Duration::from_secs(30);

fn bucket(address: S3Address) -> Result<Objects, Fault> {
    let url = format!("s3://{}/{}", address.bucket, address.prefix);
    let mut options = BucketOptions::new(url, "");
    // No visitor waits for a backup.
    options.patience = PATIENCE;
    options.stall = STALL;
    // What is given here outdoes what is usual.
    options.settings.push(("AWS_REGION".to_owned(), "us-east-1".to_owned()));
    let usual = crate::places::usual_settings().map_err(Fault::usage)?;
    // The address alone says where the vault is.
    options.settings.extend(usual.into_iter().filter(|(name, _)| !names_a_place(name)));
    if let Some(region) = address.region {
        options.settings.push(("AWS_REGION".to_owned(), region));
    }
    if address.endpoint.starts_with("https:") {
        let trust = Trust::system();
        options.trust = Some(trust.map_err(|error| Fault::with_code(chain(&error), 1))?);
    }
    options.settings.push(("AWS_ENDPOINT_URL".to_owned(), address.endpoint));
    Objects::open(&options).map_err(|error| Fault::usage(chain(&error)))
}

/// Returns the folder for what vaults elsewhere hold and is needed again; nothing if there is no place for it, or nothing
/// is to be kept.
pub(crate) fn kept_folder(max_bytes: u64) -> Option<PathBuf> {
    let caches = variable("XDG_CACHE_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".cache")))
        .map(|caches| caches.join("tympan"));
    caches.filter(|_| max_bytes > 0)
}

/// Keeps here what a vault elsewhere holds and that is needed again; without a place for it, nothing is kept.
pub(crate) fn keep_here(vault: &mut Vault, max_bytes: u64) {
    let Some(dir) = kept_folder(max_bytes) else { return };
    if let Err(error) = vault.keep_in(&dir, max_bytes) {
        tracing::warn!(%error, file = %dir.display(), "nothing of the vault is kept here");
    }
}
