//! Arguments of `tympan backup` that define how a vault's location is accessed.

use std::num::NonZeroU64;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tympan_notation::{ByteSize, ParseQuantityError};

use super::heading;

/// How the location of a vault is accessed.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct VaultLocationArgs {
    /// Number of concurrent requests to another machine; number of packs that are written at once.
    #[arg(
        long,
        value_name = "COUNT",
        value_parser = clap::value_parser!(u8).range(1..=64),
        help_heading = heading::CONNECTION
    )]
    pub(crate) connections: Option<u8>,
    /// A file with the private key for SSH. Without one, the agent and the usual files in `~/.ssh` are tried.
    #[arg(long, value_name = "FILE", help_heading = heading::CONNECTION)]
    pub(crate) ssh_key: Vec<PathBuf>,
    /// The file of known hosts, instead of `~/.ssh/known_hosts` and that of the system.
    #[arg(long, value_name = "FILE", help_heading = heading::CONNECTION)]
    pub(crate) ssh_known_hosts: Option<PathBuf>,
    /// The handling of unknown hosts; a host whose key has changed is always refused.
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        default_value = "yes",
        help_heading = heading::CONNECTION
    )]
    pub(crate) ssh_host_keys_check: HostKeyCheckMode,
    /// For `rest:`: a file whose first line is the password of the user that the address, or TYMPAN_REST_USER, names.
    /// Without it, TYMPAN_REST_PASSWORD is used.
    #[arg(long, value_name = "FILE", help_heading = heading::CONNECTION)]
    pub(crate) rest_password_file: Option<PathBuf>,
    /// For `rest:https:`: a PEM file with the certificate that must have signed the server's.
    #[arg(long, value_name = "FILE", help_heading = heading::CONNECTION)]
    pub(crate) vault_ca: Option<PathBuf>,
    /// Limits uploads: `2 MiB` per second; a number alone is in KiB, as in restic.
    #[arg(
        long,
        value_name = "RATE",
        value_parser = parse_rate_arg,
        help_heading = heading::CONNECTION
    )]
    pub(crate) limit_upload: Option<NonZeroU64>,
    /// Limits downloads, in the same units.
    #[arg(
        long,
        value_name = "RATE",
        value_parser = parse_rate_arg,
        help_heading = heading::CONNECTION
    )]
    pub(crate) limit_download: Option<NonZeroU64>,
    /// Removes and replaces nothing in the vault except locks.
    #[arg(long, env = "TYMPAN_VAULT_APPEND_ONLY", help_heading = heading::CONNECTION)]
    pub(crate) append_only: bool,
    /// The size of the local cache of a vault on another machine, which saves repeated downloads: index, snapshots and
    /// folders, encrypted as in the vault. `0` disables it; default 1 GiB, or the value that `tune` has found.
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = parse_size_arg,
        help_heading = heading::CONNECTION
    )]
    pub(crate) tree_cache: Option<u64>,
}

/// The default size of the local cache of a vault on another machine.
const DEFAULT_TREE_CACHE_BYTES: u64 = 1 << 30;

impl VaultLocationArgs {
    /// Returns the size of the local cache of a vault on another machine.
    pub(crate) fn tree_cache_bytes(&self) -> u64 {
        self.tree_cache.unwrap_or(DEFAULT_TREE_CACHE_BYTES)
    }
}

/// The handling of unknown SSH hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum HostKeyCheckMode {
    /// Unknown hosts are refused.
    #[default]
    Yes,
    /// The keys of unknown hosts are recorded.
    AcceptNew,
}

/// Parses a rate in bytes per second, or in KiB per second if it is a number alone.
pub(super) fn parse_rate_arg(text: &str) -> Result<NonZeroU64, String> {
    let bytes = match text.trim().parse::<u64>() {
        Ok(kib) => kib.checked_mul(1024),
        Err(_) => parse_size_arg(text.trim_end_matches("/s")).ok(),
    };
    let unknown =
        || format!("`{text}` is not a rate; write `2 MiB/s`, or a number of KiB per second");
    bytes.and_then(NonZeroU64::new).ok_or_else(unknown)
}

/// Parses a size in bytes.
pub(super) fn parse_size_arg(text: &str) -> Result<u64, ParseQuantityError> {
    text.parse().map(ByteSize::as_bytes)
}
