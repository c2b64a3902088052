//! The dependency ledger: which URLs were drawn from what, so that a change names exactly the URLs that show it.
//!
//! In: for each drawing its URL and [`DependencySet`]; two states of content. Out: [`AffectedUrls`]: the URLs whose drawings
//! may differ between the two.
//!
//! ```text
//! ticket ─> snapshot ─> render ─> record ─> the response goes out
//! commit ─> step(before, after) ─> flushes are stored ─> stored
//! ```
//!
//! Invariants
//! * A response that goes out after [`DependencyLedger::record`] said [`RecordOutcome::Recorded`] is named by every later answer whose
//!   change concerns it, whenever the process ends: the URL is in a file before, and a URL whose dependencies were not
//!   stored in time depends on everything.
//! * A drawing that began before a change and is recorded after it was answered is not kept if the change concerns it, or
//!   if it is of a state that is neither end of the changes that were answered: [`RecordOutcome::Outdated`].
//! * A copy of a state that a change passes over, as content went on before anybody asked, is named by the answer to that
//!   change if what it was drawn from differs at its end. That holds also where nothing differs between both ends of the
//!   change, or a list answers the same at both.
//! * What is recorded for a URL grows until the URL was flushed, as copies of several drawings may be about.
//! * A URL that a change concerns is left out of an answer only if it was drawn again from the state after the change and
//!   every copy that is about looks the same; or if the change concerns it through lists alone, and these were asked again
//!   in both states and answer the same.
//! * Memory is bounded: the URLs that were not drawn for longest are given up, and their folder is flushed as a whole
//!   with the next change.
//!
//! On failure: a database that cannot be written is tried again; meanwhile the file grows. Without the file nothing is
//! kept, and [`RecordOutcome::NotRecorded`] says that no copy of the response may be kept either.
//!
//! A follower that stands at a state has stored the flushes for all that led there. Each copy of a state at which it does not
//! stand is a stray: most are of the state where it will arrive a moment later, and none any more when it has.
//!
//! The states that are compared are given as those see them for whom drawings are recorded: visitors without a login.
//!
//! A program with other settings, or another program, may draw the same content otherwise. What was drawn before is in doubt
//! then, and named by the next answer unless it looks the same. So it is where templates change while the program runs
//! ([`DependencyLedger::set_renderer_fingerprint`]); a drawing that began before that was answered is outdated when it is recorded afterwards.
//!
//! Not here: sending flushes (`replicate`), and what of a change matters ([`crate::ChangedAspects`]).

mod affected_urls;
mod counters;
mod dependency_index;
mod flush_scope;
mod journal;
mod maintenance;
mod response_fingerprint;
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
use crate::content_reader::RequestFacts;
use crate::dependency::DependencySet;
use crate::response::{RenderOutcome, RenderResponse};

pub use self::affected_urls::{AffectedUrls, UrlRenderFn};
pub use self::counters::LedgerCounters;
pub use self::response_fingerprint::ResponseFingerprint;
pub use self::table::MIGRATIONS;

/// How often the lock is tried by those who may not wait for it. Most hold it for about as long as that takes, and what was
/// drawn meanwhile would be drawn again.
const TRY_LOCK_COUNT: u32 = 64;

/// The result of everything here that can fail.
pub type LedgerResult<T, E = LedgerError> = std::result::Result<T, E>;

/// An error of the ledger.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// Content could not be compared.
    #[error("cannot compare the two states of content")]
    Comparison(#[source] Box<crate::Error>),
    /// The database could not be read or written.
    #[error("cannot {action} the ledger of what pages were drawn from")]
    Database {
        /// What was tried.
        action: &'static str,
        /// The cause.
        source: sqlx::Error,
    },
    /// The file of URLs whose rows are on their way cannot be used.
    #[error("cannot use `{}`, which names the URLs that were drawn lately", file.display())]
    JournalFile {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

/// How a ledger is opened.
#[derive(Debug, Clone)]
pub struct LedgerOptions {
    /// The database of small state, with [`MIGRATIONS`] applied.
    pub pool: AnyPool,
    /// The folder of the two files that name URLs before their rows are stored.
    pub folder: PathBuf,
    /// The name of this publisher among all that use the database.
    pub publisher: String,
    /// Changes with each start of the machine: files that were not synced survive the process, not the machine.
    pub boot: String,
    /// More URLs than this are not kept one by one.
    pub max_urls: usize,
    /// Names what decides about drawings beside content: the program and its settings. What was drawn under another name may
    /// look otherwise now.
    pub renderer_fingerprint: String,
}

/// How many URLs are kept one by one unless configured: about 100 MiB of memory for pages of 50 dependencies.
pub const DEFAULT_MAX_URLS: usize = 100_000;

/// The moment at which a drawing began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenderTicket(u64);

/// Tells what an answer read from what others did, for as long as the process lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DependencyDigest(u64);

/// What became of a drawing that was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordOutcome {
    /// Changes will find it.
    Recorded,
    /// A change that concerns it was answered while it was drawn: draw it anew.
    Outdated,
    /// It could not be noted, so that no copy of it may be kept anywhere.
    NotRecorded,
    /// It shows that nothing is there, as too many URLs do by now: no copy of it may be kept anywhere.
    TooManyFaults,
}

/// The ledger of one publisher. Clones share it.
#[derive(Clone)]
pub struct DependencyLedger(Arc<LedgerState>);

struct LedgerState {
    index: Mutex<UrlDependencyIndex>,
    /// How many steps were answered, as the index says.
    step_count: AtomicU64,
    table: LedgerTable,
    counters: LedgerCounters,
    /// Rings when there are rows to store.
    store_signal: Notify,
    /// Held while a batch is stored.
    write_lock: tokio::sync::Mutex<()>,
    /// The newest answer to a follower whose flushes are not stored yet.
    unacknowledged_answer: Mutex<Option<AffectedUrls>>,
    query_results: Mutex<ListQueryResults>,
    /// Publishers whose rows were taken over, and nobody asked for yet.
    taken_over_publishers: Mutex<Vec<String>>,
    /// What digests of reads begin with, so that nobody who decides about reads can aim at one.
    digest_keys: [u64; 2],
}

impl DependencyLedger {
    /// Opens the ledger: reads what was stored, and what the last process had no time to store.
    ///
    /// # Errors
    /// If the database or the files cannot be used.
    pub async fn open(options: LedgerOptions, now: SystemTime) -> LedgerResult<Self> {
        let (journal, unstored) = LedgerJournal::open(&options.folder)?;
        let table = LedgerTable::new(options.pool, options.publisher, options.boot);
        let StoredLedger { rows, is_complete: is_whole, renderer_fingerprint: drawn_by } =
            table.open(now).await?;
        let [_, gone] = table.publisher_names().await?;
        let mut index = UrlDependencyIndex::new(journal, options.max_urls);
        for row in rows {
            index.load_row(row);
        }
        for url in unstored {
            index.load_unstored_url(&url);
        }
        let is_drawn_alike = drawn_by.as_ref() == Some(&options.renderer_fingerprint);
        match (is_whole, drawn_by.is_some() && !is_drawn_alike) {
            (true, _) => {}
            (false, true) => index.add_pending_scope("/"),
            (false, false) => index.add_scope("/"),
        }
        if !is_drawn_alike {
            index.mark_all_doubtful();
        }
        let counters = LedgerCounters::default();
        let (bell, writing) = (Notify::new(), tokio::sync::Mutex::default());
        let index = Mutex::new(index);
        let (answered, answers) = (Mutex::default(), Mutex::default());
        let keys = [1, 2].map(|number: u64| RandomState::new().hash_one(number));
        let steps = AtomicU64::new(0);
        let inner = LedgerState {
            index,
            step_count: steps,
            table,
            counters,
            store_signal: bell,
            write_lock: writing,
            unacknowledged_answer: answered,
            query_results: answers,
            taken_over_publishers: Mutex::new(gone),
            digest_keys: keys,
        };
        let ledger = Self(Arc::new(inner));
        ledger.store_pending().await?;
        ledger.0.index.lock().clear_journal();
        if !is_drawn_alike {
            // All rows say by now that they are in doubt.
            ledger.0.table.set_renderer_fingerprint(&options.renderer_fingerprint).await?;
        }
        Ok(ledger)
    }

    /// Begins a drawing; the snapshot must be taken after this. Never waits.
    #[must_use]
    pub fn begin_rendering(&self) -> RenderTicket {
        // Whoever sees a step's number sees at least the state in which it ends: that was read before.
        RenderTicket(self.0.step_count.load(Ordering::Acquire))
    }

    /// Records what a URL was drawn from, before the drawing goes out, and of which state it is: nothing if that does not
    /// follow from one state alone ([`tympan_content::Snapshot::visible_root_id`]). The URL is its path as it was asked for, without the query:
    /// copies of all its variants are kept under it.
    pub fn record(
        &self,
        (ticket, root): (RenderTicket, Option<ChunkId>),
        url: &str,
        read: &DependencySet,
    ) -> RecordOutcome {
        let drawn = UrlRendering {
            url,
            root,
            dependencies: read,
            digest: None,
            fingerprint: None,
            is_fault: false,
        };
        self.record_rendering(ticket, drawn)
    }

    /// Digests what an answer read, for [`DependencyLedger::record_if_known`].
    #[must_use]
    pub fn digest_dependencies(&self, answer: &RenderResponse) -> DependencyDigest {
        DependencyDigest(answer.reads.digest(self.0.digest_keys))
    }

    /// Records an answer that shows something and was recorded before, as [`DependencyLedger::record_answer`] would, if that can be
    /// done without waiting for anything: neither for a disk nor, longer than a moment, for the ledger's lock. Tells whether
    /// it was.
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
        self.0.counters.recorded.fetch_add(u64::from(is_known), Ordering::Relaxed);
        is_known
    }

    /// Records an answer before it goes out. What is one visitor's or one moment's alone is kept by nobody, and not noted.
    pub fn record_answer(
        &self,
        (ticket, root): (RenderTicket, Option<ChunkId>),
        url: &str,
        answer: &RenderResponse,
        look: Option<ResponseFingerprint>,
    ) -> RecordOutcome {
        if answer.reads.facts.intersects(RequestFacts::USER) || answer.reads.is_uncacheable() {
            return RecordOutcome::Recorded;
        }
        let is_fault = matches!(
            answer.outcome,
            RenderOutcome::NotFound | RenderOutcome::BadRequest | RenderOutcome::MethodNotAllowed
        );
        // Most answers are like the one before, and a digest costs less than a set.
        let digest = answer.reads.digest(self.0.digest_keys);
        let sketch = UrlRenderingDigest { url, root, digest, fingerprint: look.as_ref(), is_fault };
        if self.0.index.lock().record_if_known(ticket.0, sketch) {
            self.0.counters.recorded.fetch_add(1, Ordering::Relaxed);
            return RecordOutcome::Recorded;
        }
        let (read, digest) = (&answer.reads.dependencies(), Some(digest));
        self.record_rendering(
            ticket,
            UrlRendering { url, root, dependencies: read, digest, fingerprint: look, is_fault },
        )
    }

    fn record_rendering(&self, ticket: RenderTicket, drawn: UrlRendering<'_>) -> RecordOutcome {
        let counters = &self.0.counters;
        let count = |counter: &AtomicU64, by: u64| counter.fetch_add(by, Ordering::Relaxed);
        count(&counters.recorded, 1);
        let kept = self.0.index.lock().record(ticket.0, drawn);
        match kept {
            IndexRecordOutcome::AlreadyKnown => RecordOutcome::Recorded,
            IndexRecordOutcome::Changed { evicted_count: given_up } => {
                count(&counters.grown, 1);
                count(&counters.given_up, given_up);
                self.0.store_signal.notify_one();
                RecordOutcome::Recorded
            }
            IndexRecordOutcome::Outdated => {
                count(&counters.outdated, 1);
                RecordOutcome::Outdated
            }
            IndexRecordOutcome::NotRecorded => {
                count(&counters.lost, 1);
                RecordOutcome::NotRecorded
            }
            IndexRecordOutcome::TooManyFaults => {
                count(&counters.crowded, 1);
                RecordOutcome::TooManyFaults
            }
        }
    }

    /// Takes note that the same content may be drawn otherwise from now on, as templates or settings changed: the next answer
    /// names all that was drawn before, but for what looks the same. `renderer_fingerprint` is what decides about answers now, as in
    /// [`LedgerOptions::renderer_fingerprint`].
    ///
    /// # Errors
    /// If the database cannot be written. The next answer names all the same; call it again, as a process that is killed
    /// would not know of it.
    pub async fn set_renderer_fingerprint(&self, drawn_by: &str) -> LedgerResult<()> {
        self.0.index.lock().mark_rendering_changed();
        // That all are in doubt must be known before nobody can tell any more that something changed.
        self.store_pending().await?;
        self.0.table.set_renderer_fingerprint(drawn_by).await
    }

    /// Returns the names of all publishers that have a ledger in the database, this one among them, but for those whose
    /// URLs were taken over.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn publisher_names(&self) -> LedgerResult<Vec<String>> {
        let [here, _] = self.0.table.publisher_names().await?;
        Ok(here)
    }

    /// Returns the publishers whose URLs were taken over since the last call; the first call of a process also names those
    /// of earlier ones.
    #[must_use]
    pub fn take_taken_over_publishers(&self) -> Vec<String> {
        std::mem::take(&mut self.0.taken_over_publishers.lock())
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &LedgerCounters {
        &self.0.counters
    }

    /// Returns how many URLs have copies of states at which the follower does not stand: none, while nothing changes.
    #[must_use]
    pub fn stray_url_count(&self) -> usize {
        self.0.index.lock().stray_url_count()
    }

    /// Returns how many URLs and how many dependencies are kept.
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

    /// A ledger whose database is never asked.
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
        let answer = RenderResponse {
            outcome: RenderOutcome::Ok,
            content_type: "image/png".into(),
            headers: Vec::new(),
            body: crate::response::RenderResponseBody::Empty,
            reads: crate::content_reader::RequestReads::default(),
            timing: crate::timing::RenderTiming::default(),
            failed_component_count: 0,
            fragment_counts: crate::template::FragmentLookupCounts::default(),
        };
        let look =
            ResponseFingerprint::from_response(&answer, &RenderRequest::get("/a.png")).unwrap();
        let digest = ledger.digest_dependencies(&answer);
        let is_known =
            || ledger.record_if_known((ledger.begin_rendering(), root), "/a.png", digest, &look);
        assert!(!is_known(), "nobody drew it");
        let when = (ledger.begin_rendering(), Some(root));
        let kept = ledger.record_answer(when, "/a.png", &answer, Some(look.clone()));
        assert_eq!(kept, RecordOutcome::Recorded);
        assert!(is_known());
        // Whoever held the lock and waited for it again would wait for ever.
        let held = ledger.0.index.lock();
        assert!(!is_known());
        drop(held);
        assert!(is_known());
        let recorded = ledger.0.counters.recorded.load(Ordering::Relaxed);
        assert_eq!(recorded, 3, "as often as it was answered");
    }
}
