//! The certificate of an author or publisher, which is read again when its files change and on SIGHUP.
//!
//! Invariants
//! * A certificate that cannot be read, or does not fit its key, never takes the place of one that works.

use std::path::{Path, PathBuf};

use tokio::sync::watch;
use tympan_web::listen::Front;
use tympan_web::tls::{Identity, Offering, Tls};

use crate::command::Fault;
use crate::command::file_watch::{FileWatch, PERIOD};
use crate::config::Config;
use crate::home::chain;

/// What a listener shows, and where it comes from.
#[derive(Debug, Clone)]
pub(super) struct Certificate {
    tls: Tls,
    chain: PathBuf,
    key: PathBuf,
}

impl Certificate {
    /// Returns the certificate of a listener that speaks TLS.
    pub(super) fn of(front: &Front, config: &Config) -> Option<Self> {
        let section = &config.listen;
        let (chain, key) = (section.tls_certificate.clone()?, section.tls_key.clone()?);
        Some(Self { tls: front.tls.clone()?, chain, key })
    }

    /// Reads the files again, for those who connect from now on.
    pub(super) fn renew(&self) {
        let file = self.chain.display();
        let renewed = identity(&self.chain, &self.key).and_then(|own| {
            let offering = Offering { identities: vec![own], ..Offering::default() };
            self.tls.replace(&offering).map_err(|error| Fault::usage(chain(&error)))
        });
        match renewed {
            Ok(()) => tracing::info!(%file, "the certificate was read again"),
            Err(fault) => {
                tracing::error!(%file, reason = %fault.message(), "the changed certificate cannot be used; the old one stays");
            }
        }
    }

    /// Reads the files again whenever they changed, until `stopped` turns true.
    pub(super) async fn follow(self, mut stopped: watch::Receiver<bool>) {
        let mut watch = FileWatch::new(vec![self.chain.clone(), self.key.clone()]);
        loop {
            tokio::select! {
                // Also when whoever could say so is gone.
                _ = stopped.wait_for(|stopped| *stopped) => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
            if watch.has_changed() {
                watch.note_seen();
                self.renew();
            }
        }
    }
}

/// Reads a certificate chain and its key.
///
/// # Errors
/// If a file cannot be read, or one does not fit the other.
fn identity(certificate: &Path, key: &Path) -> Result<Identity, Fault> {
    let read = |file: &Path| {
        std::fs::read(file)
            .map_err(|error| Fault::usage(format!("cannot read `{}`: {error}", file.display())))
    };
    Identity::from_pem(&read(certificate)?, &read(key)?)
        .map_err(|error| Fault::usage(chain(&error)))
}

/// Returns TLS with the certificate in these files.
///
/// # Errors
/// If a file cannot be read, or one does not fit the other.
pub(super) fn read_tls(certificate: &Path, key: &Path) -> Result<Tls, Fault> {
    let identities = vec![identity(certificate, key)?];
    Tls::new(&Offering { identities, ..Offering::default() })
        .map_err(|error| Fault::usage(chain(&error)))
}
