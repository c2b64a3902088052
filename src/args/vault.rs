//! How the place of a vault is reached, in the words of `tympan backup`.

use std::num::NonZeroU64;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// How the place of a vault is reached and used.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct VaultLocationArgs {
    /// Calls to another machine that are on their way at once; packs that are written at once.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) connections: Option<u8>,
    /// A file with the private key for SSH. Without one, the agent and the usual files in `~/.ssh` are tried.
    #[arg(long, value_name = "FILE")]
    pub(crate) ssh_key: Vec<PathBuf>,
    /// The file of known hosts, in place of `~/.ssh/known_hosts` and that of the system.
    #[arg(long, value_name = "FILE")]
    pub(crate) ssh_known_hosts: Option<PathBuf>,
    /// What to do about a host that nothing is known of; one that shows another key than before is always refused.
    #[arg(long, value_enum, value_name = "WHAT", default_value = "yes")]
    pub(crate) ssh_host_keys_check: HostKeyCheckMode,
    /// For `rest:`: a file whose first line is the password of the user that the address, or TYMPAN_REST_USER, names. Without
    /// it, TYMPAN_REST_PASSWORD has the password.
    #[arg(long, value_name = "FILE")]
    pub(crate) rest_password_file: Option<PathBuf>,
    /// For `rest:https:`: a PEM file with the certificate that must have signed the server's.
    #[arg(long, value_name = "FILE")]
    pub(crate) vault_ca: Option<PathBuf>,
    /// Uploads no faster: `2 MiB` in a second; a number alone is in KiB, as for restic.
    #[arg(long, value_name = "RATE", value_parser = parse_rate_arg)]
    pub(crate) limit_upload: Option<NonZeroU64>,
    /// Downloads no faster, in the same units.
    #[arg(long, value_name = "RATE", value_parser = parse_rate_arg)]
    pub(crate) limit_download: Option<NonZeroU64>,
    /// Removes and replaces nothing in the vault but locks.
    #[arg(long, env = "TYMPAN_VAULT_APPEND_ONLY")]
    pub(crate) append_only: bool,
    /// How much of a vault on another machine is kept here, so that it need not be fetched again: index, snapshots and
    /// folders, sealed as there. `0` keeps nothing; usually 1 GiB, or what `tune` has found.
    #[arg(long, value_name = "SIZE", value_parser = parse_size_arg)]
    pub(crate) tree_cache: Option<u64>,
}

/// How much of a vault on another machine is kept here unless something else is said.
const DEFAULT_TREE_CACHE_BYTES: u64 = 1 << 30;

impl VaultLocationArgs {
    /// Returns how much of a vault on another machine is kept here.
    pub(crate) fn tree_cache_bytes(&self) -> u64 {
        self.tree_cache.unwrap_or(DEFAULT_TREE_CACHE_BYTES)
    }
}

/// What to do about hosts that nothing is known of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum HostKeyCheckMode {
    /// They are refused.
    #[default]
    Yes,
    /// Their keys are recorded.
    AcceptNew,
}

/// Reads a rate in bytes, or in KiB if it is a number alone.
pub(super) fn parse_rate_arg(text: &str) -> Result<NonZeroU64, String> {
    let bytes = match text.trim().parse::<u64>() {
        Ok(kib) => kib.checked_mul(1024),
        Err(_) => crate::config::parse_size(text.trim_end_matches("/s")),
    };
    let unknown = || format!("`{text}` is no rate; write `2 MiB`, or a number of KiB in a second");
    bytes.and_then(NonZeroU64::new).ok_or_else(unknown)
}

/// Reads a size, or `0`.
pub(crate) fn parse_size_arg(text: &str) -> Result<u64, String> {
    let bytes = if text.trim() == "0" { Some(0) } else { crate::config::parse_size(text) };
    bytes.ok_or_else(|| format!("`{text}` is no size; write `64 MiB`"))
}
