//! An SSH connection to a host: the host key is verified, then the user authenticates with a key.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use russh::client::{self, Handle};
use russh::keys::agent::AgentIdentity;
use russh::keys::agent::client::AgentClient;
use russh::keys::{
    Algorithm, HashAlg, PrivateKeyWithHashAlg, PublicKey, PublicKeyOrCertificate, load_secret_key,
};
use russh::{Preferred, SshId};
use tracing::{info, warn};

use super::address::SftpAddress;
use super::failure::SftpFailure;
use super::known_hosts::{self, HostKeyStatus};
use super::options::{SftpOptions, UnknownHostPolicy};

/// Timeout for connecting and authenticating.
const CONNECT_TIMEOUT: Duration = Duration::from_mins(1);
/// Interval of keepalive requests on an idle connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Window of a channel: bytes that the other side may send before they are acknowledged.
const CHANNEL_WINDOW_BYTES: u32 = 8 << 20;

/// An SSH connection over which channels are opened.
pub(super) type SshConnection = Handle<HostKeyVerifier>;

/// Verifies the key that a host presents.
#[derive(Debug)]
pub(super) struct HostKeyVerifier {
    host_name: String,
    options: Arc<SftpOptions>,
    /// The reason the host was refused.
    refusal: Arc<Mutex<Option<String>>>,
}

impl client::Handler for HostKeyVerifier {
    type Error = russh::Error;

    async fn check_server_key(
        &mut self,
        server_key: &PublicKeyOrCertificate,
    ) -> Result<bool, Self::Error> {
        let admitted = self.verify_host_key(&server_key.public_key());
        let is_admitted = admitted.is_ok();
        *self.refusal.lock() = admitted.err();
        Ok(is_admitted)
    }
}

impl HostKeyVerifier {
    /// Accepts the host key, or returns the reason for refusing it.
    fn verify_host_key(&self, key: &PublicKey) -> Result<(), String> {
        let name = &self.host_name;
        let print = key.fingerprint(HashAlg::Sha256);
        let text = key
            .to_openssh()
            .map_err(|error| format!("cannot encode the host key of `{name}`: {error}"))?;
        let mut words = text.split(' ');
        let written = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let mut verdict = (HostKeyStatus::Unknown, Path::new(""));
        for file in &self.options.known_hosts {
            match known_hosts::look_up_host_key(&read_known_hosts(file)?, name, written) {
                // A key that one file revokes is not used, whatever another file says.
                status @ HostKeyStatus::Revoked(_) => {
                    verdict = (status, file);
                    break;
                }
                HostKeyStatus::Trusted => verdict = (HostKeyStatus::Trusted, file),
                status @ HostKeyStatus::Changed(_) if verdict.0 == HostKeyStatus::Unknown => {
                    verdict = (status, file);
                }
                _ => {}
            }
        }
        match (verdict, self.options.unknown_host) {
            ((HostKeyStatus::Trusted, _), _) => Ok(()),
            ((HostKeyStatus::Revoked(line), file), _) => Err(format!(
                "the host `{name}` presented the key {print}, which line {line} of `{}` marks as revoked",
                file.display()
            )),
            ((HostKeyStatus::Changed(line), file), _) => Err(format!(
                "the host `{name}` presented the key {print}, but line {line} of `{}` has a different key: \
                 someone may be intercepting the connection; if the host key was replaced, remove that line",
                file.display()
            )),
            ((HostKeyStatus::Unknown, _), UnknownHostPolicy::Refuse) => Err(format!(
                "the host `{name}` is not known; it presented the key {print}: if this key is correct, add it \
                 with `ssh-keyscan`, or accept it once with `--ssh-host-keys-check accept-new`"
            )),
            ((HostKeyStatus::Unknown, _), UnknownHostPolicy::Record) => {
                let file = self.options.known_hosts.first();
                let file = file.ok_or_else(|| "no known-hosts file is configured".to_owned())?;
                known_hosts::append_known_host(file, name, written)
                    .map_err(|error| format!("cannot write `{}`: {error}", file.display()))?;
                info!(host = %name, key = %print, file = %file.display(), "host key recorded");
                Ok(())
            }
        }
    }
}

fn read_known_hosts(file: &Path) -> Result<String, String> {
    match std::fs::read(file) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        // A file that cannot be read must not lead to trust.
        Err(error) => Err(format!("cannot read `{}`: {error}", file.display())),
    }
}

/// Connects and authenticates the user.
pub(super) async fn connect_ssh(
    address: &SftpAddress,
    options: &Arc<SftpOptions>,
) -> Result<SshConnection, SftpFailure> {
    let name = known_hosts::known_host_name(&address.host, address.port);
    let refusal = Arc::new(Mutex::new(None));
    let doorkeeper = HostKeyVerifier {
        host_name: name.clone(),
        options: options.clone(),
        refusal: refusal.clone(),
    };
    let connecting = client::connect(
        Arc::new(ssh_client_config(&name, options)),
        (address.host.as_str(), address.port),
        doorkeeper,
    );
    let late =
        || SftpFailure::connection_lost(ErrorKind::TimedOut, format!("`{name}` does not respond"));
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.map_err(|_| late())?;
    let mut connection = connected.map_err(|error| match refusal.lock().take() {
        Some(text) => SftpFailure::Rejected(io::Error::new(ErrorKind::PermissionDenied, text)),
        None => failure_from_ssh_error(&name, &error),
    })?;
    let proving = authenticate(&mut connection, address, options);
    tokio::time::timeout(CONNECT_TIMEOUT, proving).await.map_err(|_| late())??;
    Ok(connection)
}

fn ssh_client_config(name: &str, options: &SftpOptions) -> client::Config {
    let key_kinds: Vec<String> = options
        .known_hosts
        .iter()
        .filter_map(|file| read_known_hosts(file).ok())
        .flat_map(|text| known_hosts::known_key_kinds(&text, name))
        .collect();
    // A host with several keys should present one that is already known.
    let is_known = |algorithm: &Algorithm| {
        let kind =
            if matches!(algorithm, Algorithm::Rsa { .. }) { "ssh-rsa" } else { algorithm.as_str() };
        key_kinds.iter().any(|key_kind| key_kind == kind)
    };
    // SHA-1 is no longer secure.
    let mut keys: Vec<Algorithm> = Preferred::DEFAULT
        .key
        .iter()
        .filter(|candidate| !matches!(candidate, Algorithm::Rsa { hash: None }))
        .cloned()
        .collect();
    keys.sort_by_key(|algorithm| !is_known(algorithm));
    client::Config {
        client_id: SshId::Standard(concat!("SSH-2.0-tympan_", env!("CARGO_PKG_VERSION")).into()),
        window_size: CHANNEL_WINDOW_BYTES,
        keepalive_interval: Some(KEEPALIVE_INTERVAL),
        nodelay: true,
        preferred: Preferred { key: keys.into(), ..Preferred::DEFAULT },
        ..client::Config::default()
    }
}

/// Tries the configured keys, or else those of the agent and then the default files.
async fn authenticate(
    connection: &mut SshConnection,
    address: &SftpAddress,
    options: &SftpOptions,
) -> Result<(), SftpFailure> {
    let user = address.user.as_ref().unwrap_or(&options.user);
    let mut tried = Vec::new();
    if options.keys.is_empty()
        && let Some(socket) = &options.agent
        && try_agent(connection, user, socket, &mut tried).await?
    {
        return Ok(());
    }
    let usual = options.default_keys.iter().filter(|file| file.is_file());
    let files: Vec<&PathBuf> =
        if options.keys.is_empty() { usual.collect() } else { options.keys.iter().collect() };
    for file in files {
        let key = match load_secret_key(file, None) {
            Ok(key) => Arc::new(key),
            Err(error) => {
                let hint = match error {
                    russh::keys::Error::KeyIsEncrypted => ", add it to the agent with `ssh-add`",
                    _ => "",
                };
                tried.push(format!("`{}` ({error}{hint})", file.display()));
                continue;
            }
        };
        let hash = choose_rsa_hash(connection, &key.algorithm()).await?;
        let key = PrivateKeyWithHashAlg::new(key, hash);
        let result = connection.authenticate_publickey(user.clone(), key).await;
        if result.map_err(|error| failure_from_ssh_error(&address.host, &error))?.success() {
            return Ok(());
        }
        tried.push(format!("`{}`", file.display()));
    }
    let tried = if tried.is_empty() { "none".to_owned() } else { tried.join(", ") };
    Err(SftpFailure::Rejected(io::Error::new(
        ErrorKind::PermissionDenied,
        format!(
            "the host `{}` accepts none of these keys for `{user}`: {tried}; give another one with \
             `--ssh-key`",
            address.host
        ),
    )))
}

async fn try_agent(
    connection: &mut SshConnection,
    user: &str,
    socket: &Path,
    tried: &mut Vec<String>,
) -> Result<bool, SftpFailure> {
    let listed = async {
        let mut agent = AgentClient::connect_uds(socket).await?;
        let identities = agent.request_identities().await?;
        Ok::<_, russh::keys::Error>((agent, identities))
    };
    let (mut agent, identities) = match listed.await {
        Ok(listed) => listed,
        Err(error) => {
            warn!(%error, file = %socket.display(), "cannot use the SSH agent");
            return Ok(false);
        }
    };
    for identity in identities {
        let AgentIdentity::PublicKey { key, comment } = identity else { continue };
        let hash = choose_rsa_hash(connection, &key.algorithm()).await?;
        match connection.authenticate_publickey_with(user, key, hash, &mut agent).await {
            Ok(result) if result.success() => return Ok(true),
            Ok(_) => tried.push(format!("`{comment}` from the agent")),
            Err(error) => tried.push(format!("`{comment}` from the agent ({error})")),
        }
    }
    Ok(false)
}

/// Chooses the hash algorithm for signatures with an RSA key.
async fn choose_rsa_hash(
    connection: &SshConnection,
    algorithm: &Algorithm,
) -> Result<Option<HashAlg>, SftpFailure> {
    if !matches!(algorithm, Algorithm::Rsa { .. }) {
        return Ok(None);
    }
    let best = connection
        .best_supported_rsa_hash()
        .await
        .map_err(|error| failure_from_ssh_error("", &error))?;
    Ok(best.flatten().or(Some(HashAlg::Sha512)))
}

/// Converts an SSH error to the failure that the caller handles.
pub(super) fn failure_from_ssh_error(name: &str, error: &russh::Error) -> SftpFailure {
    let said = |kind| SftpFailure::Rejected(io::Error::new(kind, format!("`{name}`: {error}")));
    match error {
        russh::Error::NoCommonAlgo { .. } | russh::Error::WrongServerSig => {
            said(ErrorKind::InvalidData)
        }
        russh::Error::IO(source) => {
            SftpFailure::connection_lost(source.kind(), format!("cannot reach `{name}`: {source}"))
        }
        _ => SftpFailure::connection_lost(ErrorKind::ConnectionReset, format!("`{name}`: {error}")),
    }
}
