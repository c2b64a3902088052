//! Errors that occur before a request exists: addresses, certificates, log files.

use std::net::SocketAddr;
use std::path::PathBuf;

/// The reason why a listener could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is in use, not local, or needs rights that the process lacks.
    #[error("cannot listen on {addr}; choose another address or stop the program that uses it")]
    Bind {
        /// The requested address.
        addr: SocketAddr,
        /// The error of the kernel.
        source: std::io::Error,
    },
    /// The bound socket cannot be handed to the async runtime.
    #[error("cannot serve on the listening socket")]
    Serve {
        /// The error of the runtime.
        source: std::io::Error,
    },
    /// A certificate, key or list of roots cannot be used.
    #[error("cannot use the TLS {item}: {reason}")]
    Tls {
        /// `certificate`, `key` or `roots`.
        item: &'static str,
        /// The error in the item.
        reason: String,
    },
    /// A file with a certificate or key cannot be read.
    #[error("cannot read `{}`", file.display())]
    TlsFile {
        /// The file.
        file: PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// A log file cannot be created or appended to.
    #[error("cannot open the log file `{}`", file.display())]
    LogFile {
        /// The file.
        file: PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
}
