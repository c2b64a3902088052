//! The dependency ledger of a publisher as the source of the URLs that its flushes name.

use std::fmt;
use std::sync::{Arc, Weak};

use tympan_content::{ChunkId, NodePath, Snapshot, Viewer};
use tympan_notation::error_chain_text;
use tympan_render::RenderRequest;
use tympan_render::ledger::{DependencyLedger, LedgerError};
use tympan_replicate::{AffectedUrlResolver, AffectedUrlSet};

use crate::instance::Instance;

/// Shortens the name of a ledger to that under which its publisher flushes.
pub fn shorten_ledger_name(name: &str) -> String {
    name.chars().take(12).collect()
}

/// Finds the URLs that a change affects, for flushes.
pub struct LedgerUrlResolver {
    ledger: DependencyLedger,
    /// Renders the content that a change may affect; weak because the instance owns the replicator that uses this.
    instance: Weak<Instance>,
}

impl LedgerUrlResolver {
    /// Resolves with the ledger of an instance.
    pub fn new(ledger: DependencyLedger, instance: &Arc<Instance>) -> Self {
        Self { ledger, instance: Arc::downgrade(instance) }
    }
}

impl fmt::Debug for LedgerUrlResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ledger.fmt(f)
    }
}

impl AffectedUrlResolver for LedgerUrlResolver {
    fn find_affected_urls(
        &self,
        before: &Snapshot,
        after: &Snapshot,
        _: &[NodePath],
    ) -> tympan_replicate::Result<AffectedUrlSet> {
        let instance = self.instance.upgrade();
        let draw = |state: &Snapshot, request: &RenderRequest<'_>| {
            instance.as_ref()?.render_for_visitors(state, request)
        };
        let [before, after] = [before, after].map(|state| state.as_viewer(&Viewer::anonymous()));
        match self.ledger.affected_by_step(&before, &after, &draw) {
            Ok(affected) if affected.scopes.is_empty() => Ok(AffectedUrlSet::Urls(affected.urls)),
            Ok(affected) => {
                Ok(AffectedUrlSet::UrlsAndFolders { urls: affected.urls, folders: affected.scopes })
            }
            Err(LedgerError::Comparison(error)) => match *error {
                tympan_render::Error::Content(error) => Err(error.into()),
                error => Ok(everything_affected(&error)),
            },
            Err(error) => Ok(everything_affected(&error)),
        }
    }

    fn mark_flushes_stored(&self, root: ChunkId) {
        self.ledger.acknowledge_step(root);
    }

    fn has_pending_urls(&self) -> bool {
        self.ledger.has_pending_flushes()
    }

    fn take_gone_publishers(&self) -> Vec<String> {
        self.ledger
            .take_taken_over_publishers()
            .iter()
            .map(|name| shorten_ledger_name(name))
            .collect()
    }
}

fn everything_affected(error: &dyn std::error::Error) -> AffectedUrlSet {
    tracing::warn!(
        error = error_chain_text(error),
        "cannot determine the URLs affected by a change; treating all as affected"
    );
    AffectedUrlSet::everything()
}
