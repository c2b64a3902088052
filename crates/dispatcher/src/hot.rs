//! The pages that visitors ask for most, which a flush has fetched again by itself (`/x-refetchHot`).
//!
//! Hot is what memory was asked for most since it came there. Pages that a flush would delete are kept and served until
//! they are replaced, as if the flush had listed them; pages that it makes stale are fetched before a visitor asks.
//!
//! Invariants
//! * At most `/x-refetchHot` pages for each flush and `/x-refetchBudget` in a minute, beside those that flushes list.

use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tympan_web::flush_message::{Action, FlushMessage};

use crate::cache::Lookup;
use crate::config::Cache;
use crate::dispatcher::{FarmState, Inner};
use crate::flush::names;
use crate::freshness::{Freshness, judge};
use crate::handle::readings;
use crate::memory::Ready;
use crate::request::encode_path;
use crate::variant::is_variant;

/// What is left of a minute's budget.
#[derive(Debug, Default)]
pub(crate) struct Budget(Mutex<Option<(Instant, u32)>>);

const MINUTE: Duration = Duration::from_secs(60);

impl Budget {
    /// Takes up to `wanted` of what is left.
    fn take(&self, wanted: u32, budget: u32, now: Instant) -> u32 {
        let mut spent = self.0.lock();
        let (since, used) =
            spent.filter(|(since, _)| now.duration_since(*since) < MINUTE).unwrap_or((now, 0));
        let taken = wanted.min(budget.saturating_sub(used));
        *spent = Some((since, used + taken));
        taken
    }
}

/// So many kept pages are judged to find the stale ones, for each that is wanted.
const JUDGED: usize = 16;

impl Inner {
    /// Returns the hot pages among those that a flush would delete.
    pub(crate) fn hot_named(
        &self,
        farm: &FarmState,
        cache: &Cache,
        message: &FlushMessage,
    ) -> Vec<String> {
        let handles = readings(&message.handle);
        self.hot(farm, cache, message, |ready| {
            handles.iter().any(|handle| names(message.action, handle, &ready.source.file))
        })
    }

    /// Returns the hot pages that are stale now.
    pub(crate) fn hot_stale(
        &self,
        farm: &FarmState,
        cache: &Cache,
        message: &FlushMessage,
    ) -> Vec<String> {
        if message.scope.is_some() {
            return Vec::new();
        }
        self.hot(farm, cache, message, |ready| self.is_stale(farm, cache, ready))
    }

    fn hot(
        &self,
        farm: &FarmState,
        cache: &Cache,
        message: &FlushMessage,
        is_wanted: impl Fn(&Ready) -> bool,
    ) -> Vec<String> {
        if cache.refetch_hot == 0 || !matches!(message.action, Action::Activate | Action::Reorder) {
            return Vec::new();
        }
        let wanted = usize::try_from(cache.refetch_hot).unwrap_or(usize::MAX);
        let is_own = |ready: &Ready| {
            let (own, other) = (&farm.docroot, &ready.source.farm.docroot);
            let is_here =
                own.as_ref().map(|root| root.path()) == other.as_ref().map(|root| root.path());
            // Nobody remembers which query a variant was asked by.
            is_here && !is_variant(&ready.source.file)
        };
        let mut found: Vec<String> = Vec::new();
        for ready in self.memory.hottest(is_own).iter().take(wanted.saturating_mul(JUDGED)) {
            let uri = encode_path(&ready.source.path);
            let is_new = !found.contains(&uri) && !message.refetch.contains(&uri);
            if found.len() < wanted && is_new && is_wanted(ready) {
                found.push(uri);
            }
        }
        let count = u32::try_from(found.len()).unwrap_or(u32::MAX);
        let taken = farm.budget.take(count, cache.refetch_budget, Instant::now());
        found.truncate(usize::try_from(taken).unwrap_or(usize::MAX));
        found
    }

    fn is_stale(&self, farm: &FarmState, cache: &Cache, ready: &Ready) -> bool {
        let Some(docroot) = farm.docroot.as_ref().map(|root| root.opened()) else { return false };
        let (file, path): (&Path, &str) = (&ready.source.file, &ready.source.path);
        let Ok(Lookup::File(cached)) = docroot.look_up(file, cache.enable_ttl) else {
            return false;
        };
        let facts = docroot.facts(cache, (file, path), &cached, self.runtime.clock.now());
        judge(facts, cache.patience()) == Freshness::Stale
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, MINUTE};
    use std::time::Instant;

    #[test]
    fn a_budget_lasts_a_minute() {
        let budget = Budget::default();
        let now = Instant::now();
        assert_eq!(budget.take(5, 8, now), 5);
        assert_eq!(budget.take(5, 8, now + MINUTE / 2), 3);
        assert_eq!(budget.take(5, 8, now + MINUTE / 2), 0);
        assert_eq!(budget.take(5, 8, now + MINUTE), 5);
    }
}
