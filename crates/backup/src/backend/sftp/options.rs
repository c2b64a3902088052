//! The options of a connection to an SFTP host.

use std::path::PathBuf;
use std::time::Duration;

/// The policy for hosts that are not in any known-hosts file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownHostPolicy {
    /// The host is refused.
    #[default]
    Refuse,
    /// The key is written to the first known-hosts file. A host that presents another key than before is refused
    /// anyway.
    Record,
}

/// Connection options.
#[derive(Clone, Debug)]
pub struct SftpOptions {
    /// The user if the address names none.
    pub user: String,
    /// Explicitly configured private key files; if there are any, no others are tried.
    pub keys: Vec<PathBuf>,
    /// Private key files that are tried if they exist.
    pub default_keys: Vec<PathBuf>,
    /// The socket of the SSH agent.
    pub agent: Option<PathBuf>,
    /// The known-hosts files; new keys are written to the first.
    pub known_hosts: Vec<PathBuf>,
    /// The policy for unknown hosts.
    pub unknown_host: UnknownHostPolicy,
    /// The number of concurrent calls.
    pub connections: usize,
    /// How long a call is retried after its connection broke.
    pub retry_timeout: Duration,
}

impl Default for SftpOptions {
    fn default() -> Self {
        Self {
            user: String::new(),
            keys: Vec::new(),
            default_keys: Vec::new(),
            agent: None,
            known_hosts: Vec::new(),
            unknown_host: UnknownHostPolicy::default(),
            connections: 5,
            retry_timeout: Duration::from_mins(2),
        }
    }
}
