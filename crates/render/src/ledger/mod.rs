//! The dependency ledger: records the dependencies of URLs, so that a change names exactly the URLs that show it.
//!
//! Input: for each rendering its URL and [`DependencySet`]; two states of content. Output: [`AffectedUrls`], the URLs
//! whose renderings may differ between the two.
//!
//! ```text
//! ticket ─> snapshot ─> render ─> record ─> the response goes out
//! commit ─> step(before, after) ─> flushes are stored ─> stored
//! ```
//!
//! Invariants
//! * A response that is sent after [`DependencyLedger::record`] returned [`RecordOutcome::Recorded`] is named by every
//!   later answer whose change affects it, even if the process is killed: the URL is written to a file before, and a
//!   URL whose dependencies were not stored in time depends on everything.
//! * A rendering that began before a change and is recorded after the change was answered is rejected if the change
//!   affects it, or if its state is neither end of the answered changes: [`RecordOutcome::Outdated`].
//! * A copy of a state that a change skips, because content moved on before an answer was requested, is named by the
//!   answer to that change if its dependencies differ at the end of the change. That also holds if nothing differs
//!   between both ends of the change, or a list has the same result at both.
//! * The recorded dependencies of a URL grow until the URL is flushed, as copies of several renderings may exist.
//! * An affected URL is omitted from an answer only if it was rendered again from the state after the change and every
//!   existing copy looks the same; or if the change affects it through lists alone, and these were queried again in
//!   both states with the same result.
//! * Memory is bounded: the URLs that were not rendered for longest are evicted, and their folder is flushed as a whole
//!   with the next change.
//!
//! On failure: writes to the database are retried; until then the file grows. Without the file nothing is recorded, and
//! [`RecordOutcome::NotRecorded`] says that the response must not be cached, either.
//!
//! A follower at a state has stored the flushes of all changes that led there. Each copy of another state is a stray:
//! most are of the state that the follower reaches a moment later, and are strays no longer then.
//!
//! The compared states are those visible to anonymous visitors, for whom renderings are recorded.
//!
//! Another program, or other settings, may render the same content differently. Earlier renderings are doubtful then,
//! and named by the next answer unless they look the same. The same applies if templates change while the program runs
//! ([`DependencyLedger::set_renderer_fingerprint`]); a rendering that began before that change was answered is outdated
//! if it is recorded afterwards.
//!
//! Not here: sending flushes (`replicate`), and the effect of a change ([`crate::ChangedAspects`]).

mod affected_urls;
mod change_step;
mod counters;
mod dependency_index;
mod flush_scope;
mod journal;
mod ledger_error;
mod maintenance;
mod response_fingerprint;
mod site_folder;
mod stray_copy;
mod table;
mod url_rendering;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use sqlx::AnyPool;
use tokio::sync::Notify;
use tympan_content::ChunkId;

use self::affected_urls::ListQueryResults;
use self::dependency_index::UrlDependencyIndex;
use self::journal::LedgerJournal;
use self::table::{LedgerTable, StoredLedger};
use self::url_rendering::{IndexRecordOutcome, UrlRendering, UrlRenderingDigest};
use crate::dependency::DependencySet;
use crate::dependency::content_reader::RequestFacts;
use crate::response::{RenderOutcome, RenderResponse};

pub use self::affected_urls::{AffectedUrls, UrlRenderFn};
pub use self::counters::LedgerCounters;
pub use self::ledger_error::{LedgerError, LedgerResult};
pub use self::response_fingerprint::ResponseFingerprint;
pub use self::table::MIGRATIONS;

/// Number of attempts to take the lock for callers that may not wait for it. Most holders need about that time, and a
/// failed attempt means that a page is rendered again.
const TRY_LOCK_COUNT: u32 = 64;

/// Options of a ledger.
#[derive(Debug, Clone)]
pub struct LedgerOptions {
    /// The database for small state, with [`MIGRATIONS`] applied.
    pub pool: AnyPool,
    /// The folder of the two files that name URLs before their rows are stored.
    pub folder: PathBuf,
    /// The name of this publisher, unique in the database.
    pub publisher: String,
    /// Identifies the boot of the machine: unsynced files survive the process, but not the machine.
    pub boot: String,
    /// Maximum number of URLs that are recorded individually.
    pub max_urls: usize,
    /// Identifies everything besides content that affects renderings: the program and its settings. Renderings of
    /// another fingerprint may look different now.
    pub renderer_fingerprint: String,
}

/// Default maximum number of URLs: about 100 MiB of memory for pages with 50 dependencies.
pub const DEFAULT_MAX_URLS: usize = 100_000;

/// The step count at the beginning of a rendering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenderTicket(u64);

/// Distinguishes the reads of responses for the lifetime of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DependencyDigest(u64);

/// The result of recording a rendering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordOutcome {
    /// Later changes will find it.
    Recorded,
    /// A change that affects it was answered during the rendering: render it again.
    Outdated,
    /// It could not be recorded, so that no copy of it may be cached anywhere.
    NotRecorded,
    /// It shows "not found", and too many URLs already do: no copy of it may be cached anywhere.
    TooManyFaults,
}

/// The ledger of one publisher. Clones share the state.
#[derive(Clone)]
pub struct DependencyLedger(Arc<LedgerState>);

struct LedgerState {
    index: Mutex<UrlDependencyIndex>,
    /// The number of answered steps, copied from the index.
    step_count: AtomicU64,
    table: LedgerTable,
    counters: LedgerCounters,
    /// Notified when there are rows to store.
    store_signal: Notify,
    /// Held while a batch is stored.
    write_lock: tokio::sync::Mutex<()>,
    /// The newest answer to a follower whose flushes are not stored yet.
    unacknowledged_answer: Mutex<Option<AffectedUrls>>,
    query_results: Mutex<ListQueryResults>,
    /// Publishers whose rows were taken over, and that were not returned to a caller yet.
    taken_over_publishers: Mutex<Vec<String>>,
    /// Secret keys of the digests of reads, so that collisions cannot be provoked.
    digest_keys: [u64; 2],
}

impl DependencyLedger {
    /// Opens the ledger: reads the stored rows, and the URLs that the last process did not store in time.
    ///
    /// # Errors
    /// If the database or the files cannot be used.
    pub async fn open(options: LedgerOptions, now: SystemTime) -> LedgerResult<Self> {
        let (journal, unstored) = LedgerJournal::open(&options.folder)?;
        let table = LedgerTable::new(options.pool, options.publisher, options.boot);
        let StoredLedger { rows, is_complete, renderer_fingerprint } = table.open(now).await?;
        let [_, retired_names] = table.publisher_names().await?;
        let mut index = UrlDependencyIndex::new(journal, options.max_urls);
        for row in rows {
            index.load_row(row);
        }
        for url in unstored {
            index.load_unstored_url(&url);
        }
        let is_drawn_alike = renderer_fingerprint.as_ref() == Some(&options.renderer_fingerprint);
        match (is_complete, renderer_fingerprint.is_some() && !is_drawn_alike) {
            (true, _) => {}
            (false, true) => index.add_pending_scope("/"),
            (false, false) => index.add_scope("/"),
        }
        if !is_drawn_alike {
            index.mark_all_doubtful();
        }
        let counters = LedgerCounters::default();
        let (store_signal, writing) = (Notify::new(), tokio::sync::Mutex::default());
        let index = Mutex::new(index);
        let (answered, query_results) = (Mutex::default(), Mutex::default());
        let keys = [1, 2].map(|number: u64| RandomState::new().hash_one(number));
        let steps = AtomicU64::new(0);
        let inner = LedgerState {
            index,
            step_count: steps,
            table,
            counters,
            store_signal,
            write_lock: writing,
            unacknowledged_answer: answered,
            query_results,
            taken_over_publishers: Mutex::new(retired_names),
            digest_keys: keys,
        };
        let ledger = Self(Arc::new(inner));
        ledger.store_pending().await?;
        ledger.0.index.lock().clear_journal();
        if !is_drawn_alike {
            // At this point all rows are marked as doubtful.
            ledger.0.table.set_renderer_fingerprint(&options.renderer_fingerprint).await?;
        }
        Ok(ledger)
    }

    /// Begins a rendering; the snapshot must be taken after this. Never waits.
    #[must_use]
    pub fn begin_rendering(&self) -> RenderTicket {
        // A reader of a step's number sees at least the state in which the step ends, because that state was read
        // before.
        RenderTicket(self.0.step_count.load(Ordering::Acquire))
    }

    /// Records the dependencies of a URL before the rendering is sent, and its state, which is `None` if it does not
    /// derive from one state alone ([`tympan_content::Snapshot::visible_root_id`]). The URL is the path as it was
    /// requested, without the query: copies of all its variants are cached under it.
    pub fn record(
        &self,
        (ticket, root): (RenderTicket, Option<ChunkId>),
        url: &str,
        read: &DependencySet,
    ) -> RecordOutcome {
        let rendering = UrlRendering {
            url,
            root,
            dependencies: read,
            digest: None,
            fingerprint: None,
            is_fault: false,
        };
        self.record_rendering(ticket, rendering)
    }

    /// Digests the reads of a response, for [`DependencyLedger::record_if_known`].
    #[must_use]
    pub fn digest_dependencies(&self, response: &RenderResponse) -> DependencyDigest {
        DependencyDigest(response.reads.digest(self.0.digest_keys))
    }

    /// Records a response that shows content and was recorded before, as [`DependencyLedger::record_answer`] would, if
    /// that is possible without waiting for a disk or, longer than a moment, for the ledger's lock. Returns true if it
    /// was recorded.
    #[must_use]
    pub fn record_if_known(
        &self,
        (ticket, root): (RenderTicket, ChunkId),
        url: &str,
        digest: DependencyDigest,
        look: &ResponseFingerprint,
    ) -> bool {
        let mut tries = 0..TRY_LOCK_COUNT;
        let mut index = loop {
            match self.0.index.try_lock() {
                Some(index) => break index,
                None if tries.next().is_none() => return false,
                None => std::hint::spin_loop(),
            }
        };
        let (root, look) = (Some(root), Some(look));
        let sketch =
            UrlRenderingDigest { url, root, digest: digest.0, fingerprint: look, is_fault: false };
        let is_known = index.record_if_known(ticket.0, sketch);
        drop(index);
        self.0.counters.renderings_recorded.fetch_add(u64::from(is_known), Ordering::Relaxed);
        is_known
    }

    /// Records a response before it is sent. Responses for one visitor or one moment are not cached, and not recorded.
    pub fn record_answer(
        &self,
        (ticket, root): (RenderTicket, Option<ChunkId>),
        url: &str,
        response: &RenderResponse,
        look: Option<ResponseFingerprint>,
    ) -> RecordOutcome {
        if response.reads.facts.intersects(RequestFacts::USER) || response.reads.is_uncacheable() {
            return RecordOutcome::Recorded;
        }
        let is_fault = matches!(
            response.outcome,
            RenderOutcome::NotFound | RenderOutcome::BadRequest | RenderOutcome::MethodNotAllowed
        );
        // Most responses equal the one before, and a digest costs less than a set.
        let digest = response.reads.digest(self.0.digest_keys);
        let sketch = UrlRenderingDigest { url, root, digest, fingerprint: look.as_ref(), is_fault };
        if self.0.index.lock().record_if_known(ticket.0, sketch) {
            self.0.counters.renderings_recorded.fetch_add(1, Ordering::Relaxed);
            return RecordOutcome::Recorded;
        }
        let (read, digest) = (&response.reads.dependencies(), Some(digest));
        self.record_rendering(
            ticket,
            UrlRendering { url, root, dependencies: read, digest, fingerprint: look, is_fault },
        )
    }

    fn record_rendering(&self, ticket: RenderTicket, rendering: UrlRendering<'_>) -> RecordOutcome {
        let counters = &self.0.counters;
        let count = |counter: &AtomicU64, by: u64| counter.fetch_add(by, Ordering::Relaxed);
        count(&counters.renderings_recorded, 1);
        let outcome = self.0.index.lock().record(ticket.0, rendering);
        match outcome {
            IndexRecordOutcome::AlreadyKnown => RecordOutcome::Recorded,
            IndexRecordOutcome::Changed { evicted_count } => {
                count(&counters.dependency_additions, 1);
                count(&counters.evictions, evicted_count);
                self.0.store_signal.notify_one();
                RecordOutcome::Recorded
            }
            IndexRecordOutcome::Outdated => {
                count(&counters.renderings_overtaken, 1);
                RecordOutcome::Outdated
            }
            IndexRecordOutcome::NotRecorded => {
                count(&counters.record_failures, 1);
                RecordOutcome::NotRecorded
            }
            IndexRecordOutcome::TooManyFaults => {
                count(&counters.renderings_refused, 1);
                RecordOutcome::TooManyFaults
            }
        }
    }

    /// Records that the same content may render differently from now on, because templates or settings changed: the
    /// next answer names all earlier renderings, except those that look the same. `renderer_fingerprint` identifies
    /// what affects responses now, as in [`LedgerOptions::renderer_fingerprint`].
    ///
    /// # Errors
    /// If the database cannot be written. The next answer names the renderings all the same; call this again, as the
    /// change would be lost if the process is killed.
    pub async fn set_renderer_fingerprint(&self, drawn_by: &str) -> LedgerResult<()> {
        self.0.index.lock().mark_rendering_changed();
        // The doubtful marks must be durable before the evidence of the change is lost.
        self.store_pending().await?;
        self.0.table.set_renderer_fingerprint(drawn_by).await
    }

    /// Returns the names of all publishers with a ledger in the database, including this one, but without those whose
    /// URLs were taken over.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn publisher_names(&self) -> LedgerResult<Vec<String>> {
        let [here, _] = self.0.table.publisher_names().await?;
        Ok(here)
    }

    /// Returns the publishers whose URLs were taken over since the last call; the first call of a process also returns
    /// those of earlier processes.
    #[must_use]
    pub fn take_taken_over_publishers(&self) -> Vec<String> {
        std::mem::take(&mut self.0.taken_over_publishers.lock())
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &LedgerCounters {
        &self.0.counters
    }

    /// Returns the number of URLs with copies of states at which the follower is not: zero while nothing changes.
    #[must_use]
    pub fn stray_url_count(&self) -> usize {
        self.0.index.lock().stray_url_count()
    }

    /// Returns the number of URLs and the number of dependencies.
    #[must_use]
    pub fn url_and_dependency_counts(&self) -> (usize, usize) {
        self.0.index.lock().url_and_dependency_counts()
    }
}

impl fmt::Debug for DependencyLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DependencyLedger").field("publisher", &self.0.table).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::RenderRequest;

    /// A ledger whose database is never used.
    fn ledger(folder: &std::path::Path) -> DependencyLedger {
        sqlx::any::install_default_drivers();
        let pool = AnyPool::connect_lazy("sqlite::memory:").unwrap();
        let (journal, _) = LedgerJournal::open(folder).unwrap();
        DependencyLedger(Arc::new(LedgerState {
            index: Mutex::new(UrlDependencyIndex::new(journal, 100)),
            step_count: AtomicU64::new(0),
            table: LedgerTable::new(pool, "one".to_owned(), "first".to_owned()),
            counters: LedgerCounters::default(),
            store_signal: Notify::new(),
            write_lock: tokio::sync::Mutex::default(),
            unacknowledged_answer: Mutex::default(),
            query_results: Mutex::default(),
            taken_over_publishers: Mutex::default(),
            digest_keys: [1, 2],
        }))
    }

    #[tokio::test]
    async fn what_runs_on_the_threads_of_all_connections_waits_for_no_lock() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = ledger(folder.path());
        let root = ChunkId::from_bytes([7; 32]);
        ledger.acknowledge_step(root);
        let response = RenderResponse {
            outcome: RenderOutcome::Ok,
            content_type: "image/png".into(),
            headers: Vec::new(),
            body: crate::response::RenderResponseBody::Empty,
            reads: crate::dependency::content_reader::RequestReads::default(),
            timing: crate::timing::RenderTiming::default(),
            failed_component_count: 0,
            fragment_counts: crate::fragment::FragmentLookupCounts::default(),
        };
        let look =
            ResponseFingerprint::from_response(&response, &RenderRequest::get("/a.png")).unwrap();
        let digest = ledger.digest_dependencies(&response);
        let is_known =
            || ledger.record_if_known((ledger.begin_rendering(), root), "/a.png", digest, &look);
        assert!(!is_known(), "nobody drew it");
        let when = (ledger.begin_rendering(), Some(root));
        let outcome = ledger.record_answer(when, "/a.png", &response, Some(look.clone()));
        assert_eq!(outcome, RecordOutcome::Recorded);
        assert!(is_known());
        // A holder of the lock that waits for it again would deadlock.
        let guard = ledger.0.index.lock();
        assert!(!is_known());
        drop(guard);
        assert!(is_known());
        let recorded = ledger.0.counters.renderings_recorded.load(Ordering::Relaxed);
        assert_eq!(recorded, 3, "as often as it was answered");
    }
}
