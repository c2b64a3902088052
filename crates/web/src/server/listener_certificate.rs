//! The TLS certificate of a listener in files, which is reloaded when they change.
//!
//! Invariants
//! * A certificate that cannot be read, or does not match its key, never replaces a working one.

use std::path::{Path, PathBuf};

use tokio::sync::watch;

use crate::server::file_watch::{FileWatch, POLL_INTERVAL};
use crate::tls::{TlsIdentity, TlsServer, TlsServerSettings};
use crate::{Error, Result};

/// The certificate of a listener, and its files.
#[derive(Debug, Clone)]
pub struct ListenerCertificate {
    tls: TlsServer,
    chain_file: PathBuf,
    key_file: PathBuf,
}

impl ListenerCertificate {
    /// Reads a certificate chain and its key, in PEM.
    ///
    /// # Errors
    /// If a file cannot be read, or the key does not match the certificate.
    pub fn read(chain_file: &Path, key_file: &Path) -> Result<Self> {
        let identities = vec![read_identity(chain_file, key_file)?];
        let tls =
            TlsServer::new(&TlsServerSettings { identities, ..TlsServerSettings::default() })?;
        Ok(Self { tls, chain_file: chain_file.to_owned(), key_file: key_file.to_owned() })
    }

    /// Returns the TLS of the listener, whose certificate later reloads replace.
    pub fn tls(&self) -> TlsServer {
        self.tls.clone()
    }

    /// Reloads the files for new connections.
    pub fn reload(&self) {
        let file = self.chain_file.display();
        let renewed = read_identity(&self.chain_file, &self.key_file).and_then(|own| {
            let offering =
                TlsServerSettings { identities: vec![own], ..TlsServerSettings::default() };
            self.tls.replace(&offering)
        });
        match renewed {
            Ok(()) => tracing::info!(%file, "certificate reloaded"),
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(%file, reason = %error, cause, "cannot use the changed certificate; keeping \
                    the old one");
            }
        }
    }

    /// Reloads the files whenever they change, until `stopped` turns true.
    pub async fn reload_on_change(self, mut stopped: watch::Receiver<bool>) {
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

fn read_identity(certificate: &Path, key: &Path) -> Result<TlsIdentity> {
    let read = |file: &Path| {
        std::fs::read(file).map_err(|error| Error::TlsFile { file: file.to_owned(), source: error })
    };
    TlsIdentity::from_pem(&read(certificate)?, &read(key)?)
}
