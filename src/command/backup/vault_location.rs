//! The access to the location of a vault, from the command line and the environment.

use std::path::PathBuf;
use std::sync::Arc;

use tympan_backup::{
    RateLimit, SftpOptions, TransferLimits, UnknownHostPolicy, VaultAccess, VaultBackend,
    VaultUser, open_vault_backend,
};
use tympan_terminal::CommandFault;

use super::backup_fault;
use crate::args::backup::VaultArgs;
use crate::args::vault::{HostKeyCheckMode, VaultLocationArgs};
use crate::home::default_bucket_settings;

/// The private keys that are tried, as in OpenSSH.
const SSH_KEY_FILES: [&str; 3] = ["id_ed25519", "id_ecdsa", "id_rsa"];

/// Returns the backend of a vault; does not connect yet.
pub(super) fn vault_backend(arguments: &VaultArgs) -> Result<Arc<dyn VaultBackend>, CommandFault> {
    if arguments.vault.is_empty() {
        return Err(CommandFault::usage("no vault: name one with `-r VAULT`, or set TYMPAN_VAULT"));
    }
    open_vault_backend(&arguments.vault, &vault_access(&arguments.place)).map_err(backup_fault)
}

/// Returns how the location of a vault is accessed.
pub(crate) fn vault_access(arguments: &VaultLocationArgs) -> VaultAccess {
    let text = |names: [&str; 2]| {
        names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    };
    VaultAccess {
        connections: arguments.connections.map(usize::from),
        sftp: sftp_options(arguments),
        // The variables of restic are accepted as well.
        rest_user: text(["TYMPAN_REST_USER", "RESTIC_REST_USERNAME"]),
        rest_password: text(["TYMPAN_REST_PASSWORD", "RESTIC_REST_PASSWORD"]),
        rest_password_file: arguments.rest_password_file.clone(),
        rest_ca: arguments.vault_ca.clone(),
        bucket_settings: Some(default_bucket_settings),
        limits: TransferLimits {
            upload: arguments.limit_upload.map(RateLimit),
            download: arguments.limit_download.map(RateLimit),
        },
        is_append_only: arguments.append_only,
    }
}

fn path_variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn sftp_options(arguments: &VaultLocationArgs) -> SftpOptions {
    // Without a home directory, nothing is read from the current working directory instead.
    let ssh = path_variable("HOME").map(|home| home.join(".ssh"));
    let known_hosts = match &arguments.ssh_known_hosts {
        Some(file) => vec![file.clone()],
        None => {
            let own = ssh.iter().map(|ssh| ssh.join("known_hosts"));
            own.chain([PathBuf::from("/etc/ssh/ssh_known_hosts")]).collect()
        }
    };
    let unknown_host = match arguments.ssh_host_keys_check {
        HostKeyCheckMode::Yes => UnknownHostPolicy::Refuse,
        HostKeyCheckMode::AcceptNew => UnknownHostPolicy::Record,
    };
    SftpOptions {
        user: VaultUser::this_process().user,
        keys: arguments.ssh_key.clone(),
        default_keys: ssh.iter().flat_map(|ssh| SSH_KEY_FILES.map(|name| ssh.join(name))).collect(),
        agent: path_variable("SSH_AUTH_SOCK"),
        known_hosts,
        unknown_host,
        ..SftpOptions::default()
    }
}

/// Returns the folder that caches data of remote vaults; `None` if there is no location for it, or if the cache is
/// disabled.
pub(crate) fn vault_cache_dir(max_bytes: u64) -> Option<PathBuf> {
    let caches = path_variable("XDG_CACHE_HOME")
        .or_else(|| path_variable("HOME").map(|home| home.join(".cache")))
        .map(|caches| caches.join("tympan"));
    caches.filter(|_| max_bytes > 0)
}

/// Returns this user's folder for configuration; `None` if there is no location for it.
pub(crate) fn user_config_dir() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let config = variable("XDG_CONFIG_HOME").filter(|folder| folder.is_absolute());
    let config = config.or_else(|| Some(variable("HOME")?.join(".config")))?;
    config.is_absolute().then_some(config)
}
