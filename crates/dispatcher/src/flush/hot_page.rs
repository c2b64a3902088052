//! Automatic re-fetching of the most requested pages after a flush (`/x-refetchHot`).
//!
//! A page is hot by the number of requests since it entered memory. Pages that a flush would delete are retained and
//! served until they are replaced, as if the flush had listed them; pages that it makes stale are fetched before a
//! visitor requests them.
//!
//! Invariants
//! * At most `/x-refetchHot` pages are fetched for each flush and `/x-refetchBudget` in a minute, besides those that
//!   flushes list.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tympan_web::flush_message::{FlushAction, FlushMessage};

use crate::cache::CacheFileLookup;
use crate::cache::freshness::{CacheFileFreshness, assess_freshness};
use crate::cache::page_variant::is_variant_file;
use crate::cache::response_memory::{CachedResponse, ResponseMemory};
use crate::config::CacheConfig;
use crate::dispatcher_parts::DispatcherParts;
use crate::dispatcher_runtime::DispatcherRuntime;
use crate::farm_state::FarmState;
use crate::flush::handle::{candidate_paths, flush_names_file};
use crate::request::view::encode_path;

/// The number of cached pages checked for staleness per wanted page.
const CHECKED_PER_WANTED: usize = 16;

/// Finds the most requested pages among those that flushes concern.
#[derive(Debug)]
pub(crate) struct HotPageFinder {
    response_memory: Arc<ResponseMemory>,
    runtime: Arc<DispatcherRuntime>,
}

impl HotPageFinder {
    pub(crate) fn new(parts: &DispatcherParts) -> Self {
        Self {
            response_memory: Arc::clone(&parts.response_memory),
            runtime: Arc::clone(&parts.runtime),
        }
    }

    /// Returns the hot pages among those that a flush would delete.
    pub(crate) fn hot_deleted_pages(
        &self,
        farm: &FarmState,
        cache: &CacheConfig,
        message: &FlushMessage,
    ) -> Vec<String> {
        let handles = candidate_paths(&message.handle);
        self.hot_pages(farm, cache, message, |response| {
            handles
                .iter()
                .any(|handle| flush_names_file(message.action, handle, &response.source.file))
        })
    }

    /// Returns the hot pages that are stale now.
    pub(crate) fn hot_stale_pages(
        &self,
        farm: &FarmState,
        cache: &CacheConfig,
        message: &FlushMessage,
    ) -> Vec<String> {
        if message.scope.is_some() {
            return Vec::new();
        }
        self.hot_pages(farm, cache, message, |response| {
            self.is_response_stale(farm, cache, response)
        })
    }

    fn hot_pages(
        &self,
        farm: &FarmState,
        cache: &CacheConfig,
        message: &FlushMessage,
        is_wanted: impl Fn(&CachedResponse) -> bool,
    ) -> Vec<String> {
        if cache.refetch_hot == 0
            || !matches!(message.action, FlushAction::Activate | FlushAction::Reorder)
        {
            return Vec::new();
        }
        let page_limit = usize::try_from(cache.refetch_hot).unwrap_or(usize::MAX);
        let is_own = |response: &CachedResponse| {
            let (own, source_docroot) = (&farm.docroot, &response.source.farm.docroot);
            let is_here = own.as_ref().map(|root| root.path())
                == source_docroot.as_ref().map(|root| root.path());
            // The query of a variant is not stored.
            is_here && !is_variant_file(&response.source.file)
        };
        let mut uris: Vec<String> = Vec::new();
        for response in self
            .response_memory
            .hottest(is_own)
            .iter()
            .take(page_limit.saturating_mul(CHECKED_PER_WANTED))
        {
            let uri = encode_path(&response.source.path);
            let is_new = !uris.contains(&uri) && !message.refetch.contains(&uri);
            if uris.len() < page_limit && is_new && is_wanted(response) {
                uris.push(uri);
            }
        }
        let count = u32::try_from(uris.len()).unwrap_or(u32::MAX);
        let granted_count =
            farm.hot_refetch_budget.take_up_to(count, cache.refetch_budget, Instant::now());
        uris.truncate(usize::try_from(granted_count).unwrap_or(usize::MAX));
        uris
    }

    fn is_response_stale(
        &self,
        farm: &FarmState,
        cache: &CacheConfig,
        response: &CachedResponse,
    ) -> bool {
        let Some(docroot) = farm.docroot.as_ref().map(|root| root.docroot_for_reading()) else {
            return false;
        };
        let (file, path): (&Path, &str) = (&response.source.file, &response.source.path);
        let Ok(CacheFileLookup::File(cached)) = docroot.look_up_file(file, cache.enable_ttl) else {
            return false;
        };
        let facts = docroot.freshness_facts(cache, file, path, &cached, self.runtime.clock.now());
        assess_freshness(facts, cache.stale_limits()) == CacheFileFreshness::Stale
    }
}
