//! A farm and its run-time state.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cache::DocrootState;
use crate::cache::variant_limiter::VariantLimiter;
use crate::config::FarmConfig;
use crate::flush::batch_queue::FlushQueue;
use crate::flush::hot_refetch_budget::HotRefetchBudget;
use crate::flush::invalidate_handler::HandlerCallQueue;
use crate::flush::propagation::FarmSiblings;
use crate::flush::refetch_queue::RefetchQueue;
use crate::observe::metrics::FarmMetrics;
use crate::request::vanity_list::VanityList;
use crate::upstream::Upstream;
use crate::upstream::request_coalescing::FetchCoalescer;
use crate::upstream::shadow::FarmShadow;

/// A farm and its run-time state.
#[derive(Debug)]
pub(crate) struct FarmState {
    pub(crate) config: Arc<FarmConfig>,
    pub(crate) docroot: Option<Arc<DocrootState>>,
    pub(crate) upstream: Upstream,
    /// The siblings that may have a page.
    pub(crate) sibling_upstream: Option<Upstream>,
    /// The siblings to which flushes are passed on.
    pub(crate) flush_siblings: Option<FarmSiblings>,
    /// The other renders whose responses are compared.
    pub(crate) shadow: Option<FarmShadow>,
    pub(crate) refetch_queue: Arc<RefetchQueue>,
    pub(crate) flush_queue: FlushQueue,
    pub(crate) handlers: Arc<HandlerCallQueue>,
    pub(crate) hot_refetch_budget: Arc<HotRefetchBudget>,
    /// The limiter of variants per page and client.
    pub(crate) variant_limiter: Option<Arc<VariantLimiter>>,
    pub(crate) vanity_list: Arc<VanityList>,
    pub(crate) farm_metrics: Arc<FarmMetrics>,
}

impl FarmState {
    /// Returns the absolute path of a file below the document root.
    pub(crate) fn absolute_path(&self, file: &Path) -> PathBuf {
        match &self.docroot {
            Some(docroot) => docroot.path().join(file),
            None => file.to_owned(),
        }
    }

    /// Returns true if a newer file is pending, so that visitors get the old one in the meantime.
    pub(crate) fn is_replacement_pending(&self, file: &Path, fetches: &FetchCoalescer) -> bool {
        self.refetch_queue.contains(file) || fetches.is_fetching(&self.absolute_path(file))
    }

    /// Invalidates all cached errors of the farm's document root after a flush.
    pub(crate) fn invalidate_cached_errors(&self) {
        if let Some(root) = &self.docroot {
            root.negative_cache.invalidate_all();
        }
    }
}
