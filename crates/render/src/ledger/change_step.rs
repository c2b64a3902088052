//! Determines the URLs that a change affects, and which of them are pending until their flushes are stored.
//!
//! Changed aspects are compared with the recorded dependencies. Lists are queried again and pages rendered again,
//! within limits.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tympan_content::{ChunkId, Snapshot};

use super::DependencyLedger;
use super::affected_urls::{AffectedUrls, ListQueryResults, UrlRenderFn};
use super::ledger_error::{LedgerError, LedgerResult};
use super::response_fingerprint::ResponseFingerprint;
use super::url_rendering::{
    AcknowledgedAnswer, FlushCandidate, FollowerStep, StepImpact, UnchangedUrl,
};
use crate::dependency::DependencySet;
use crate::dependency::changed_aspects::ChangedAspects;

/// Maximum number of URLs per change that are rendered to see whether they show it. A rendering takes about a
/// millisecond, and a flush waits for all of them.
const MAX_COMPARED_URLS: usize = 200;
/// Time limit of these renderings. Pages that were slow when they were requested are excluded from the beginning
/// ([`ResponseFingerprint::from_response`]); this limit is for those that are slow now.
const COMPARISON_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of lists that are queried again per change; if there are more, all count as changed.
const MAX_REPEATED_QUERIES: usize = 500;
/// Maximum number of lookups per change for repeated list queries; the remaining lists count as changed.
const MAX_QUERY_LOOKUPS: u64 = 200_000;

impl DependencyLedger {
    /// Returns the URLs that a change of content affects, including those of changes that were not acknowledged.
    ///
    /// # Errors
    /// If the two states cannot be compared.
    pub fn affected_urls(&self, before: &Snapshot, after: &Snapshot) -> LedgerResult<AffectedUrls> {
        self.visibly_affected_urls(before, after, &|_, _| None)
    }

    /// Returns the URLs that visibly change with content, including those of changes that were not acknowledged. URLs
    /// that depend on a change are rendered again and compared, within limits.
    ///
    /// # Errors
    /// If the two states cannot be compared.
    pub fn visibly_affected_urls(
        &self,
        before: &Snapshot,
        after: &Snapshot,
        draw: UrlRenderFn<'_>,
    ) -> LedgerResult<AffectedUrls> {
        let to = after.root_id();
        // An answer continues where the last one ended, stored or not: the URLs of that one are pending until it is
        // stored.
        let begin = self.0.index.lock().answered_root().filter(|end| *end != before.root_id());
        let earlier = begin
            .and_then(|end| self.snapshot_of_last_answer(after, end).transpose())
            .transpose()?;
        let is_lost = begin.is_some() && earlier.is_none();
        let from = earlier.as_ref().unwrap_or(before);
        let compare = |error| LedgerError::Comparison(Box::new(error));
        let touched = match from.root_id() == to {
            true => ChangedAspects::default(),
            false => ChangedAspects::between_snapshots(from, after).map_err(compare)?,
        };
        let counters = &self.0.counters;
        counters.changes.fetch_add(u64::from(!touched.is_empty()), Ordering::Relaxed);
        counters
            .full_invalidations
            .fetch_add(u64::from(touched.is_everything_changed()), Ordering::Relaxed);
        let documents = touched.document_count();
        let is_idle = touched.is_empty() && !is_lost;
        // The visible state before the change is known only for the given state.
        let same = match touched.is_empty() || begin.is_some() {
            true => HashSet::new(),
            false => self.unchanged_list_queries(&touched, before, after),
        };
        let ends = [from.root_id(), to];
        let since = self.changes_since_strays(ends, after);
        let step = FollowerStep { end_roots: ends, changes: Arc::new(touched) };
        let (is_altered, StepImpact { candidates, clock, stray_only_count }) = {
            let mut index = self.0.index.lock();
            let is_altered = index.is_rendering_changed();
            let concerned = index.record_step(step, &same, &since);
            self.0.step_count.store(index.step_count(), Ordering::Release);
            (is_altered, concerned)
        };
        counters.skipped_state_urls.fetch_add(stray_only_count as u64, Ordering::Relaxed);
        let (named, same) = self.split_by_comparison(candidates, after, draw);
        let (number, urls, mut scopes) = self.0.index.lock().collect_answer(&named);
        if is_idle && !is_altered {
            // Nothing changed for the others.
            scopes = self.0.index.lock().pending_scopes(scopes);
        }
        counters.urls_affected.fetch_add(urls.len() as u64, Ordering::Relaxed);
        let spared = same.len();
        Ok(AffectedUrls {
            urls,
            scopes,
            changed_documents: documents,
            unchanged_urls: spared,
            answer_number: number,
            step_end: Some((clock, to)),
            unchanged: same,
        })
    }

    /// Opens the state in which the last answer ended; `None` if it no longer exists, and everything is pending.
    fn snapshot_of_last_answer(
        &self,
        newer: &Snapshot,
        root: ChunkId,
    ) -> LedgerResult<Option<Snapshot>> {
        match newer.snapshot_at(root) {
            Ok(state) => Ok(Some(state)),
            Err(error) if error.is_transient() => {
                Err(LedgerError::Comparison(Box::new(crate::Error::Content(error))))
            }
            Err(error) => {
                tracing::warn!(root = %root, error = %error, "cannot read the state of the last flushes; all \
                    URLs count as affected");
                self.0.index.lock().add_scope("/");
                Ok(None)
            }
        }
    }

    /// Compares the states of strays with the one in which a step ends. States that cannot be read are omitted.
    fn changes_since_strays(
        &self,
        ends: [ChunkId; 2],
        after: &Snapshot,
    ) -> HashMap<ChunkId, ChangedAspects> {
        let roots = self.0.index.lock().stray_roots(ends);
        let compared = roots.into_iter().filter_map(|root| {
            let state = after.snapshot_at(root).ok()?;
            Some((root, ChangedAspects::between_snapshots(&state, after).ok()?))
        });
        compared.collect()
    }

    /// Repeats the list queries whose results a change may have changed; returns those with the same result before and
    /// after it.
    fn unchanged_list_queries(
        &self,
        touched: &ChangedAspects,
        before: &Snapshot,
        after: &Snapshot,
    ) -> HashSet<u64> {
        let mut query_results = self.0.query_results.lock();
        let ListQueryResults { root: state, result_by_query, fragments } = &mut *query_results;
        if *state != Some(before.root_id()) {
            result_by_query.clear();
        }
        *state = Some(after.root_id());
        let doubtful = {
            let mut index = self.0.index.lock();
            let doubtful = index.possibly_changed_queries(touched);
            // Later changes of a list that is no longer recorded would not be noticed.
            result_by_query.retain(|id, _| index.has_list_query(*id));
            doubtful
        };
        if touched.is_everything_changed() || doubtful.len() > MAX_REPEATED_QUERIES {
            // The results of the others may not match what visitors see now, either.
            result_by_query.clear();
            return HashSet::new();
        }
        let (mut same, mut left) = (HashSet::new(), MAX_QUERY_LOOKUPS);
        for listing in doubtful {
            let old = result_by_query.remove(&listing.id());
            if left == 0 {
                continue;
            }
            self.0.counters.lists_requeried.fetch_add(1, Ordering::Relaxed);
            let mut ask = |state: &Snapshot| {
                let (digest, reads) = listing.digest_results(state, fragments)?;
                left = left.saturating_sub(reads);
                Some(digest)
            };
            let old = old.or_else(|| ask(before));
            let new = ask(after);
            result_by_query.extend(new.map(|new| (listing.id(), new)));
            if old.is_some() && old == new {
                same.insert(listing.id());
            }
        }
        self.0.counters.lists_unchanged.fetch_add(same.len() as u64, Ordering::Relaxed);
        same
    }

    /// Renders affected URLs again; returns those that show the change or may, and the others.
    fn split_by_comparison(
        &self,
        candidates: Vec<FlushCandidate>,
        after: &Snapshot,
        draw: UrlRenderFn<'_>,
    ) -> (Vec<Arc<str>>, Vec<UnchangedUrl>) {
        let (mut named, mut same, mut left) = (Vec::new(), Vec::new(), MAX_COMPARED_URLS);
        // Of very many URLs, render only the doubtful ones.
        let is_few = candidates.len() <= MAX_COMPARED_URLS;
        let started_at = Instant::now();
        for candidate in candidates {
            let is_in_time = left > 0 && started_at.elapsed() < COMPARISON_TIMEOUT;
            let is_tried = is_in_time && (is_few || candidate.may_be_unaffected());
            let looked = candidate.fingerprint.as_ref().filter(|_| is_tried).and_then(|look| {
                left -= 1;
                self.0.counters.comparison_renderings.fetch_add(1, Ordering::Relaxed);
                let mut read = DependencySet::default();
                for request in look.repeat_requests(&candidate.url) {
                    let response = draw(after, &request)?;
                    ResponseFingerprint::from_response(&response, &request)
                        .filter(|now| now.equals_ignoring_client(look))?;
                    read = read.union(&response.reads.dependencies());
                }
                Some(read)
            });
            let spared =
                looked.and_then(|read| self.0.index.lock().record_unchanged(&candidate, &read));
            match spared {
                Some(url) => same.push(url),
                None => named.push(candidate.url),
            }
        }
        self.0.counters.urls_unchanged.fetch_add(same.len() as u64, Ordering::Relaxed);
        (named, same)
    }

    /// Returns the URLs that a step from one state to the next affects, for a follower that stores its position
    /// together with the flushes and then acknowledges the step ([`DependencyLedger::acknowledge_step`]). A repeated
    /// request for a step gets the same answer, or more. A follower also requests steps without a difference, because
    /// copies of intermediate states may exist.
    ///
    /// # Errors
    /// If the two states cannot be compared.
    pub fn affected_by_step(
        &self,
        before: &Snapshot,
        after: &Snapshot,
        draw: UrlRenderFn<'_>,
    ) -> LedgerResult<AffectedUrls> {
        let mut answered = self.0.unacknowledged_answer.lock();
        let affected = self.visibly_affected_urls(before, after, draw)?;
        *answered = Some(affected.clone());
        Ok(affected)
    }

    /// Records that the flushes of the last step are stored, and that the follower is at a state. If no requested step
    /// ends there, the changes that led there need no flush, and earlier renderings are compared with this state.
    pub fn acknowledge_step(&self, root: ChunkId) {
        let answered = self.0.unacknowledged_answer.lock().take();
        match answered.filter(|answer| answer.step_end.is_some_and(|(_, end)| end == root)) {
            Some(answer) => self.acknowledge(&answer),
            None => {
                self.0.index.lock().skip_to_root(root);
                self.0.store_signal.notify_one();
            }
        }
    }

    /// Records that the flushes of an answer are stored, so that they will be sent in any case.
    pub fn acknowledge(&self, affected: &AffectedUrls) {
        let AffectedUrls { urls, scopes, answer_number, step_end, .. } = affected;
        let mut index = self.0.index.lock();
        index.acknowledge(AcknowledgedAnswer {
            answer_number: *answer_number,
            step_end: *step_end,
            urls,
            scopes,
        });
        index.acknowledge_unchanged(&affected.unchanged);
        drop(index);
        self.0.store_signal.notify_one();
    }

    /// Returns true if the next answer includes URLs regardless of the change: URLs of a removed publisher whose later
    /// changes are unknown, URLs that were named but not flushed, or the removal of a publisher.
    #[must_use]
    pub fn has_pending_flushes(&self) -> bool {
        self.0.index.lock().has_pending() || !self.0.taken_over_publishers.lock().is_empty()
    }

    /// Returns the pending URLs, as an answer to an empty change.
    #[must_use]
    pub fn pending_flushes(&self) -> AffectedUrls {
        let (number, urls, scopes) = self.0.index.lock().take_pending();
        AffectedUrls { urls, scopes, answer_number: number, ..AffectedUrls::default() }
    }
}
