//! Follows the files of a site's folder that are read live: they affect renderings without a change of content.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use tympan_notation::error_chain_text;

use super::DependencyLedger;
use crate::script::DirScriptSource;

/// The polling interval of a site's folder; polling several hundred files takes about a millisecond.
const SITE_POLL_INTERVAL: Duration = Duration::from_secs(1);

impl DependencyLedger {
    /// Updates the fingerprint of the renderer whenever the files of the folder `site` change, so that the ledger names
    /// what was rendered with the old files, until `stop` turns true. `known_state` is their state when the ledger was
    /// opened; `fingerprint` returns the fingerprint for a state.
    pub async fn follow_site_folder(
        self,
        site: PathBuf,
        mut known_state: Option<u64>,
        fingerprint: impl Fn(u64) -> String + Send,
        mut stop: watch::Receiver<bool>,
    ) {
        while !*stop.borrow() {
            let folder = site.clone();
            let state =
                tokio::task::spawn_blocking(move || DirScriptSource::dir_state_hash(&folder)).await;
            match state {
                Ok(Ok(state)) if known_state != Some(state) => {
                    match self.set_renderer_fingerprint(&fingerprint(state)).await {
                        Ok(()) => known_state = Some(state),
                        // Retried at the next poll.
                        Err(error) => tracing::warn!(
                            reason = %error_chain_text(&error),
                            "cannot update the ledger; will retry"
                        ),
                    }
                }
                Ok(Err(error)) => tracing::warn!(
                    file = %site.display(),
                    reason = %error_chain_text(&error),
                    "cannot read the site's files"
                ),
                Ok(Ok(_)) | Err(_) => {}
            }
            tokio::select! {
                () = tokio::time::sleep(SITE_POLL_INTERVAL) => {}
                _ = stop.changed() => {}
            }
        }
    }
}
