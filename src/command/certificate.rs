//! The TLS certificate of an author or publisher, which is reloaded when its files change and on SIGHUP.
//!
//! Invariants
//! * A certificate that cannot be read, or does not match its key, never replaces a working one.

use std::path::{Path, PathBuf};

use tokio::sync::watch;
use tympan_terminal::{CommandFault, error_chain_text};
use tympan_web::listen::ListenerOptions;
use tympan_web::tls::{TlsIdentity, TlsServer, TlsServerSettings};

use crate::command::file_watch::{FileWatch, POLL_INTERVAL};
use crate::config::TympanConfig;

/// The certificate of a listener, and its files.
#[derive(Debug, Clone)]
pub(super) struct ListenerCertificate {
    tls: TlsServer,
    chain_file: PathBuf,
    key_file: PathBuf,
}

impl ListenerCertificate {
    /// Returns the certificate of a listener; `None` without TLS.
    pub(super) fn from_listener(front: &ListenerOptions, config: &TympanConfig) -> Option<Self> {
        let section = &config.listen;
        let (chain, key) = (section.tls_certificate.clone()?, section.tls_key.clone()?);
        Some(Self { tls: front.tls.clone()?, chain_file: chain, key_file: key })
    }

    /// Reloads the files for new connections.
    pub(super) fn reload(&self) {
        let file = self.chain_file.display();
        let renewed = read_identity(&self.chain_file, &self.key_file).and_then(|own| {
            let offering =
                TlsServerSettings { identities: vec![own], ..TlsServerSettings::default() };
            self.tls
                .replace(&offering)
                .map_err(|error| CommandFault::usage(error_chain_text(&error)))
        });
        match renewed {
            Ok(()) => tracing::info!(%file, "certificate reloaded"),
            Err(fault) => {
                tracing::error!(%file, reason = %fault.message(), "cannot use the changed certificate; \
                    keeping the old one");
            }
        }
    }

    /// Reloads the files whenever they change, until `stopped` turns true.
    pub(super) async fn reload_on_change(self, mut stopped: watch::Receiver<bool>) {
        let mut watch = FileWatch::new(vec![self.chain_file.clone(), self.key_file.clone()]);
        loop {
            tokio::select! {
                // Also ends if the sender was dropped.
                _ = stopped.wait_for(|stopped| *stopped) => return,
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
            if watch.has_changed() {
                watch.accept_current();
                self.reload();
            }
        }
    }
}

/// Reads a certificate chain and its key.
///
/// # Errors
/// If a file cannot be read, or the key does not match the certificate.
fn read_identity(certificate: &Path, key: &Path) -> Result<TlsIdentity, CommandFault> {
    let read = |file: &Path| {
        std::fs::read(file).map_err(|error| {
            CommandFault::usage(format!("cannot read `{}`: {error}", file.display()))
        })
    };
    TlsIdentity::from_pem(&read(certificate)?, &read(key)?)
        .map_err(|error| CommandFault::usage(error_chain_text(&error)))
}

/// Returns a TLS server with the certificate in these files.
///
/// # Errors
/// If a file cannot be read, or the key does not match the certificate.
pub(super) fn read_tls(certificate: &Path, key: &Path) -> Result<TlsServer, CommandFault> {
    let identities = vec![read_identity(certificate, key)?];
    TlsServer::new(&TlsServerSettings { identities, ..TlsServerSettings::default() })
        .map_err(|error| CommandFault::usage(error_chain_text(&error)))
}
