//! The dependency ledger: which URLs were drawn from what, so that a change names exactly the URLs that show it.
//!
//! In: for each drawing its URL and [`Dependencies`]; two states of content. Out: [`Affected`]: the URLs whose drawings
//! may differ between the two.
//!
//! ```text
//! ticket ─> snapshot ─> render ─> record ─> the response goes out
//! commit ─> step(before, after) ─> flushes are stored ─> stored
//! ```
//!
//! Invariants
//! * A response that goes out after [`Ledger::record`] said [`Recorded::Kept`] is named by every later answer whose
//!   change concerns it, whenever the process ends: the URL is in a file before, and a URL whose dependencies were not
//!   stored in time depends on everything.
//! * A drawing that began before a change and is recorded after it was answered is not kept if the change concerns it, or
//!   if it is of a state that is neither end of the changes that were answered: [`Recorded::Outdated`].
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
//! kept, and [`Recorded::Lost`] says that no copy of the response may be kept either.
//!
//! A follower that stands at a state has stored the flushes for all that led there. Each copy of a state at which it does not
//! stand is a stray: most are of the state where it will arrive a moment later, and none any more when it has.
//!
//! The states that are compared are given as those see them for whom drawings are recorded: visitors without a login.
//!
//! A program with other settings, or another program, may draw the same content otherwise. What was drawn before is in doubt
//! then, and named by the next answer unless it looks the same. So it is where templates change while the program runs
//! ([`Ledger::draw_otherwise`]); a drawing that began before that was answered is outdated when it is recorded afterwards.
//!
//! Not here: sending flushes (`replicate`), and what of a change matters ([`crate::Touched`]).

mod drawing;
mod index;
mod journal;
mod look;
mod scopes;
mod strays;
mod table;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use sqlx::AnyPool;
use tokio::sync::Notify;
use tympan_content::{ChunkId, Snapshot};

use self::drawing::{Candidate, Concerned, Drawn, Kept, Settled, Sketch, Spared, Step};
use self::index::Index;
use self::journal::Journal;
use self::table::{Opened, Table};
use crate::dependency::Dependencies;
use crate::reads::Facts;
use crate::request::RenderRequest;
use crate::response::{Outcome, RenderResponse};
use crate::touched::Touched;

pub use self::look::Look;
pub use self::table::MIGRATIONS;

/// How long rows wait for company before they are stored.
const LINGER: Duration = Duration::from_millis(100);
/// How often a publisher says that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// A publisher that was silent for longer is dead, and its URLs are taken over.
const SILENCE: Duration = Duration::from_secs(60);

/// The most URLs of one change that are drawn to see whether they show it. A drawing takes about a millisecond, and a
/// flush waits for all of them.
const MAX_COMPARED: usize = 200;
/// The most lists that are asked again for one change; of more, all count as if they had another answer.
const MAX_ASKED: usize = 500;
/// The most look-ups for lists that are asked again for one change; the other lists count as if they had another answer.
const MAX_LIST_READS: u64 = 200_000;

/// How often the lock is tried by those who may not wait for it. Most hold it for about as long as that takes, and what was
/// drawn meanwhile would be drawn again.
const TRIES: u32 = 64;

/// Draws a request as visitors get it from a state; nothing if that cannot be done now.
pub type Draw<'a> = &'a dyn Fn(&Snapshot, &RenderRequest<'_>) -> Option<RenderResponse>;

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the ledger.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Content could not be compared.
    #[error("cannot compare the two states of content")]
    Compare(#[source] Box<crate::Error>),
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
    Journal {
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
    pub drawn_by: String,
}

/// How many URLs are kept one by one unless configured: about 100 MiB of memory for pages of 50 dependencies.
pub const MAX_URLS: usize = 100_000;

/// The moment at which a drawing began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

/// Tells what an answer read from what others did, for as long as the process lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadDigest(u64);

/// What became of a drawing that was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// Changes will find it.
    Kept,
    /// A change that concerns it was answered while it was drawn: draw it anew.
    Outdated,
    /// It could not be noted, so that no copy of it may be kept anywhere.
    Lost,
    /// It shows that nothing is there, as too many URLs do by now: no copy of it may be kept anywhere.
    Crowded,
}

/// What a change concerns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Affected {
    /// Paths of URLs, as they were asked for, sorted.
    pub urls: Vec<String>,
    /// Paths below which there may be URLs that are not known one by one; `/` means anything.
    pub scopes: Vec<String>,
    /// How many documents differ.
    pub documents: usize,
    /// How many URLs were drawn from what differs and look the same.
    pub spared: usize,
    /// The answer's number, for [`Ledger::settle`].
    number: u64,
    /// When it was found out what the change concerns, and the state in which it ends.
    end: Option<(u64, ChunkId)>,
    same: Vec<Spared>,
}

impl Affected {
    /// Tells whether nothing has to be flushed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.urls.is_empty() && self.scopes.is_empty()
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        /// What a ledger counts.
        #[derive(Debug, Default)]
        pub struct LedgerCounters { $($(#[doc = $doc])+ pub $name: AtomicU64,)+ }

        impl LedgerCounters {
            /// Returns name, meaning and value of each counter.
            pub fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), concat!($($doc),+).trim_ascii(), self.$name.load(Ordering::Relaxed)),)+].into_iter()
            }
        }
    };
}

counters! {
    /// Drawings recorded.
    recorded,
    /// Drawings that read what no earlier one of their URL had read; rows are stored for these.
    grown,
    /// Drawings done again, as a change overtook them, or may have.
    outdated,
    /// Drawings that could not be noted; a rise means that the disk is full or broken.
    lost,
    /// Changes answered.
    changes,
    /// URLs named by answers.
    named,
    /// Drawings made to see whether a URL shows a change.
    compared,
    /// URLs that were drawn from what changed, and do not show it.
    spared,
    /// Lists that were asked again, as a change may have changed their answers.
    asked,
    /// Those of them with the same answer as before.
    unchanged,
    /// Drawings of URLs with nothing to show that were not noted, and so not cached; a rise means that somebody makes up
    /// addresses.
    crowded,
    /// URLs that a change concerns for a copy of a state that it passed over; many mean that activations follow each other
    /// faster than they are answered.
    strays,
    /// Answers that named every URL, as rights were changed.
    everything,
    /// URLs given up, so that memory stays bounded; a rise means that the bound is too low.
    given_up,
    /// Drawings that read so much that the ledger keeps subtrees instead.
    coarse,
    /// URLs taken over from publishers that are gone.
    taken_over,
    /// Rows stored.
    stored,
}

/// The ledger of one publisher. Clones share it.
#[derive(Clone)]
pub struct Ledger(Arc<Inner>);

struct Inner {
    index: Mutex<Index>,
    /// How many steps were answered, as the index says.
    steps: AtomicU64,
    table: Table,
    counters: LedgerCounters,
    /// Rings when there are rows to store.
    bell: Notify,
    /// Held while a batch is stored.
    writing: tokio::sync::Mutex<()>,
    /// The newest answer to a follower whose flushes are not stored yet.
    answered: Mutex<Option<Affected>>,
    answers: Mutex<Answers>,
    /// Publishers whose rows were taken over, and nobody asked for yet.
    gone: Mutex<Vec<String>>,
    /// What digests of reads begin with, so that nobody who decides about reads can aim at one.
    keys: [u64; 2],
}

/// What lists answer in a state.
#[derive(Debug, Default)]
struct Answers {
    state: Option<ChunkId>,
    known: HashMap<u64, u64>,
}

impl Ledger {
    /// Opens the ledger: reads what was stored, and what the last process had no time to store.
    ///
    /// # Errors
    /// If the database or the files cannot be used.
    pub async fn open(options: LedgerOptions, now: SystemTime) -> Result<Self> {
        let (journal, unstored) = Journal::open(&options.folder)?;
        let table = Table::new(options.pool, options.publisher, options.boot);
        let Opened { rows, is_whole, drawn_by } = table.open(now).await?;
        let [_, gone] = table.publishers().await?;
        let mut index = Index::new(journal, options.max_urls);
        for row in rows {
            index.load(row);
        }
        for url in unstored {
            index.load_unstored(&url);
        }
        let is_drawn_alike = drawn_by.as_ref() == Some(&options.drawn_by);
        match (is_whole, drawn_by.is_some() && !is_drawn_alike) {
            (true, _) => {}
            (false, true) => index.add_due("/"),
            (false, false) => index.add_scope("/"),
        }
        if !is_drawn_alike {
            index.doubt_all();
        }
        let counters = LedgerCounters::default();
        let (bell, writing) = (Notify::new(), tokio::sync::Mutex::default());
        let index = Mutex::new(index);
        let (answered, answers) = (Mutex::default(), Mutex::default());
        let keys = [1, 2].map(|number: u64| RandomState::new().hash_one(number));
        let steps = AtomicU64::new(0);
        let inner = Inner {
            index,
            steps,
            table,
            counters,
            bell,
            writing,
            answered,
            answers,
            gone: Mutex::new(gone),
            keys,
        };
        let ledger = Self(Arc::new(inner));
        ledger.store().await?;
        ledger.0.index.lock().empty_journal();
        if !is_drawn_alike {
            // All rows say by now that they are in doubt.
            ledger.0.table.note_drawn_by(&options.drawn_by).await?;
        }
        Ok(ledger)
    }

    /// Begins a drawing; the snapshot must be taken after this. Never waits.
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        // Whoever sees a step's number sees at least the state in which it ends: that was read before.
        Ticket(self.0.steps.load(Ordering::Acquire))
    }

    /// Records what a URL was drawn from, before the drawing goes out, and of which state it is: nothing if that does not
    /// follow from one state alone ([`Snapshot::seen_root`]). The URL is its path as it was asked for, without the query:
    /// copies of all its variants are kept under it.
    pub fn record(
        &self,
        (ticket, root): (Ticket, Option<ChunkId>),
        url: &str,
        read: &Dependencies,
    ) -> Recorded {
        let drawn = Drawn { url, root, read, digest: None, look: None, is_fault: false };
        self.note(ticket, drawn)
    }

    /// Digests what an answer read, for [`Ledger::is_known_now`].
    #[must_use]
    pub fn digest_of(&self, answer: &RenderResponse) -> ReadDigest {
        ReadDigest(answer.reads.digest(self.0.keys))
    }

    /// Records an answer that shows something and was recorded before, as [`Ledger::record_answer`] would, if that can be
    /// done without waiting for anything: neither for a disk nor, longer than a moment, for the ledger's lock. Tells whether
    /// it was.
    #[must_use]
    pub fn is_known_now(
        &self,
        (ticket, root): (Ticket, ChunkId),
        url: &str,
        digest: ReadDigest,
        look: &Look,
    ) -> bool {
        let mut tries = 0..TRIES;
        let mut index = loop {
            match self.0.index.try_lock() {
                Some(index) => break index,
                None if tries.next().is_none() => return false,
                None => std::hint::spin_loop(),
            }
        };
        let (root, look) = (Some(root), Some(look));
        let sketch = Sketch { url, root, digest: digest.0, look, is_fault: false };
        let is_known = index.is_known(ticket.0, sketch);
        drop(index);
        self.0.counters.recorded.fetch_add(u64::from(is_known), Ordering::Relaxed);
        is_known
    }

    /// Records an answer before it goes out. What is one visitor's or one moment's alone is kept by nobody, and not noted.
    pub fn record_answer(
        &self,
        (ticket, root): (Ticket, Option<ChunkId>),
        url: &str,
        answer: &RenderResponse,
        look: Option<Look>,
    ) -> Recorded {
        if answer.reads.facts.has(Facts::USER) || answer.reads.is_momentary() {
            return Recorded::Kept;
        }
        let is_fault = matches!(
            answer.outcome,
            Outcome::NotFound | Outcome::BadRequest | Outcome::MethodNotAllowed
        );
        // Most answers are like the one before, and a digest costs less than a set.
        let digest = answer.reads.digest(self.0.keys);
        let sketch = Sketch { url, root, digest, look: look.as_ref(), is_fault };
        if self.0.index.lock().is_known(ticket.0, sketch) {
            self.0.counters.recorded.fetch_add(1, Ordering::Relaxed);
            return Recorded::Kept;
        }
        let (read, digest) = (&answer.reads.dependencies(), Some(digest));
        self.note(ticket, Drawn { url, root, read, digest, look, is_fault })
    }

    fn note(&self, ticket: Ticket, drawn: Drawn<'_>) -> Recorded {
        let counters = &self.0.counters;
        let count = |counter: &AtomicU64, by: u64| counter.fetch_add(by, Ordering::Relaxed);
        count(&counters.recorded, 1);
        let kept = self.0.index.lock().record(ticket.0, drawn);
        match kept {
            Kept::Known => Recorded::Kept,
            Kept::Grown { given_up } => {
                count(&counters.grown, 1);
                count(&counters.given_up, given_up);
                self.0.bell.notify_one();
                Recorded::Kept
            }
            Kept::Outdated => {
                count(&counters.outdated, 1);
                Recorded::Outdated
            }
            Kept::Lost => {
                count(&counters.lost, 1);
                Recorded::Lost
            }
            Kept::Crowded => {
                count(&counters.crowded, 1);
                Recorded::Crowded
            }
        }
    }

    /// Returns the URLs that a change of content concerns, those of changes that were not settled included.
    ///
    /// # Errors
    /// If the two states cannot be compared.
    pub fn affected(&self, before: &Snapshot, after: &Snapshot) -> Result<Affected> {
        self.affected_shown(before, after, &|_, _| None)
    }

    /// Returns the URLs that show a change of content, those of changes that were not settled included: what was drawn
    /// from something that differs is drawn again and compared, as long as that is not too much.
    ///
    /// # Errors
    /// If the two states cannot be compared.
    pub fn affected_shown(
        &self,
        before: &Snapshot,
        after: &Snapshot,
        draw: Draw<'_>,
    ) -> Result<Affected> {
        let to = after.root_id();
        // Answers go on where the last one ended, stored or not: what that one named is owed until it is.
        let begin = self.0.index.lock().end().filter(|end| *end != before.root_id());
        let earlier = begin.and_then(|end| self.state_at(after, end).transpose()).transpose()?;
        let is_lost = begin.is_some() && earlier.is_none();
        let from = earlier.as_ref().unwrap_or(before);
        let compare = |error| Error::Compare(Box::new(error));
        let touched = match from.root_id() == to {
            true => Touched::default(),
            false => Touched::between(from, after).map_err(compare)?,
        };
        let counters = &self.0.counters;
        counters.changes.fetch_add(u64::from(!touched.is_empty()), Ordering::Relaxed);
        counters.everything.fetch_add(u64::from(touched.is_everything()), Ordering::Relaxed);
        let documents = touched.documents();
        let is_idle = touched.is_empty() && !is_lost;
        // What visitors see of the state before is told of that state alone that was given.
        let same = match touched.is_empty() || begin.is_some() {
            true => HashSet::new(),
            false => self.ask_lists(&touched, before, after),
        };
        let ends = [from.root_id(), to];
        let since = self.since_strays(ends, after);
        let step = Step { ends, touched: Arc::new(touched) };
        let (is_altered, Concerned { candidates, seen, strays }) = {
            let mut index = self.0.index.lock();
            let is_altered = index.is_altered();
            let concerned = index.concerned(step, &same, &since);
            self.0.steps.store(index.steps(), Ordering::Release);
            (is_altered, concerned)
        };
        counters.strays.fetch_add(strays as u64, Ordering::Relaxed);
        let (named, same) = self.compare(candidates, after, draw);
        let (number, urls, mut scopes) = self.0.index.lock().answer(&named);
        if is_idle && !is_altered {
            // Nothing changed for the others.
            scopes = self.0.index.lock().due(scopes);
        }
        counters.named.fetch_add(urls.len() as u64, Ordering::Relaxed);
        let spared = same.len();
        Ok(Affected { urls, scopes, documents, spared, number, end: Some((seen, to)), same })
    }

    /// Reads the state in which the last answer ended; nothing if it is gone, and everything is owed.
    fn state_at(&self, newer: &Snapshot, root: ChunkId) -> Result<Option<Snapshot>> {
        match newer.state_at(root) {
            Ok(state) => Ok(Some(state)),
            Err(error) if error.is_transient() => {
                Err(Error::Compare(Box::new(crate::Error::Content(error))))
            }
            Err(error) => {
                tracing::warn!(root = %root, error = %error, "the state of the last flushes is gone");
                self.0.index.lock().add_scope("/");
                Ok(None)
            }
        }
    }

    /// Compares the states that strays are of with the one in which a step ends. One that cannot be read is left out.
    fn since_strays(&self, ends: [ChunkId; 2], after: &Snapshot) -> HashMap<ChunkId, Touched> {
        let roots = self.0.index.lock().stray_roots(ends);
        let compared = roots.into_iter().filter_map(|root| {
            let state = after.state_at(root).ok()?;
            Some((root, Touched::between(&state, after).ok()?))
        });
        compared.collect()
    }

    /// Asks the lists again whose answers a change may have changed; returns those with the same answer before and after it.
    fn ask_lists(&self, touched: &Touched, before: &Snapshot, after: &Snapshot) -> HashSet<u64> {
        let mut answers = self.0.answers.lock();
        let Answers { state, known } = &mut *answers;
        if *state != Some(before.root_id()) {
            known.clear();
        }
        *state = Some(after.root_id());
        let doubtful = {
            let mut index = self.0.index.lock();
            let doubtful = index.doubtful_listings(touched);
            // Of a list that nobody notes any more, later changes would not be noticed.
            known.retain(|id, _| index.has_listing(*id));
            doubtful
        };
        if touched.is_everything() || doubtful.len() > MAX_ASKED {
            // Also what is known of others may not hold for what visitors see now.
            known.clear();
            return HashSet::new();
        }
        let (mut same, mut left) = (HashSet::new(), MAX_LIST_READS);
        for listing in doubtful {
            let old = known.remove(&listing.id());
            if left == 0 {
                continue;
            }
            self.0.counters.asked.fetch_add(1, Ordering::Relaxed);
            let mut ask = |state: &Snapshot| {
                let (digest, reads) = listing.answer(state)?;
                left = left.saturating_sub(reads);
                Some(digest)
            };
            let old = old.or_else(|| ask(before));
            let new = ask(after);
            known.extend(new.map(|new| (listing.id(), new)));
            if old.is_some() && old == new {
                same.insert(listing.id());
            }
        }
        self.0.counters.unchanged.fetch_add(same.len() as u64, Ordering::Relaxed);
        same
    }

    /// Draws URLs that a change concerns again; returns those that show it or may, and the others.
    fn compare(
        &self,
        candidates: Vec<Candidate>,
        after: &Snapshot,
        draw: Draw<'_>,
    ) -> (Vec<Arc<str>>, Vec<Spared>) {
        let (mut named, mut same, mut left) = (Vec::new(), Vec::new(), MAX_COMPARED);
        // Of very many only those are worth a drawing of which it is doubtful.
        let is_few = candidates.len() <= MAX_COMPARED;
        for candidate in candidates {
            let is_tried = left > 0 && (is_few || candidate.is_doubtful());
            let looked = candidate.look.as_ref().filter(|_| is_tried).and_then(|look| {
                left -= 1;
                self.0.counters.compared.fetch_add(1, Ordering::Relaxed);
                let mut read = Dependencies::default();
                for request in look.requests(&candidate.url) {
                    let drawn = draw(after, &request)?;
                    Look::of(&drawn, &request).filter(|now| now.is_like(look))?;
                    read = read.union(&drawn.reads.dependencies());
                }
                Some(read)
            });
            let spared = looked.and_then(|read| self.0.index.lock().spare(&candidate, &read));
            match spared {
                Some(one) => same.push(one),
                None => named.push(candidate.url),
            }
        }
        self.0.counters.spared.fetch_add(same.len() as u64, Ordering::Relaxed);
        (named, same)
    }

    /// Returns the URLs that a step from one state to the next concerns, for a follower that stores its place together
    /// with the flushes and then tells so ([`Ledger::stored`]). A step that is asked for again gets the same answer, or more.
    /// A follower asks also where nothing seems to differ: copies of states in between may be about.
    ///
    /// # Errors
    /// If the two states cannot be compared.
    pub fn step(&self, before: &Snapshot, after: &Snapshot, draw: Draw<'_>) -> Result<Affected> {
        let mut answered = self.0.answered.lock();
        let affected = self.affected_shown(before, after, draw)?;
        *answered = Some(affected.clone());
        Ok(affected)
    }

    /// Takes note that the same content may be drawn otherwise from now on, as templates or settings changed: the next answer
    /// names all that was drawn before, but for what looks the same. `drawn_by` is what decides about answers now, as in
    /// [`LedgerOptions::drawn_by`].
    ///
    /// # Errors
    /// If the database cannot be written. The next answer names all the same; call it again, as a process that is killed
    /// would not know of it.
    pub async fn draw_otherwise(&self, drawn_by: &str) -> Result<()> {
        self.0.index.lock().alter();
        // That all are in doubt must be known before nobody can tell any more that something changed.
        self.store().await?;
        self.0.table.note_drawn_by(drawn_by).await
    }

    /// Notes that the flushes for the last step are stored, and that the follower stands at a state. If no step was asked
    /// for that ends there, nobody was to be told of what led there, and what was drawn before is held against it.
    pub fn stored(&self, root: ChunkId) {
        let answered = self.0.answered.lock().take();
        match answered.filter(|answer| answer.end.is_some_and(|(_, end)| end == root)) {
            Some(answer) => self.settle(&answer),
            None => {
                self.0.index.lock().pass(root);
                self.0.bell.notify_one();
            }
        }
    }

    /// Notes that the flushes for an answer are stored, so that they will be sent whatever happens.
    pub fn settle(&self, affected: &Affected) {
        let Affected { urls, scopes, number, end, .. } = affected;
        let mut index = self.0.index.lock();
        index.settle(Settled { number: *number, end: *end, urls, scopes });
        index.settle_spared(&affected.same);
        drop(index);
        self.0.bell.notify_one();
    }

    /// Tells whether something waits to be named by the next answer although no change concerns it: URLs of a publisher that
    /// is gone, of which nobody told what changed since, what was named and not flushed, and that a publisher is gone.
    #[must_use]
    pub fn is_owing(&self) -> bool {
        self.0.index.lock().is_owing() || !self.0.gone.lock().is_empty()
    }

    /// Returns what is owed, as an answer to no change.
    #[must_use]
    pub fn owed(&self) -> Affected {
        let (number, urls, scopes) = self.0.index.lock().owed();
        Affected { urls, scopes, number, ..Affected::default() }
    }

    /// Returns the names of all publishers that have a ledger in the database, this one among them, but for those whose
    /// URLs were taken over.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn publishers(&self) -> Result<Vec<String>> {
        let [here, _] = self.0.table.publishers().await?;
        Ok(here)
    }

    /// Returns the publishers whose URLs were taken over since the last call; the first call of a process also names those
    /// of earlier ones.
    #[must_use]
    pub fn take_gone(&self) -> Vec<String> {
        std::mem::take(&mut self.0.gone.lock())
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &LedgerCounters {
        &self.0.counters
    }

    /// Returns how many URLs have copies of states at which the follower does not stand: none, while nothing changes.
    #[must_use]
    pub fn strays(&self) -> usize {
        self.0.index.lock().strays()
    }

    /// Returns how many URLs and how many dependencies are kept.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        self.0.index.lock().size()
    }

    /// Stores rows when there are some, says that this publisher is alive, and takes over from those that are not, until
    /// told to stop. Then everything is stored.
    pub async fn run(self, mut stop: tokio::sync::watch::Receiver<bool>) {
        let mut beat = tokio::time::interval(HEARTBEAT);
        while !*stop.borrow() {
            tokio::select! {
                () = self.0.bell.notified() => {
                    tokio::time::sleep(LINGER).await;
                    self.try_to("store", self.store().await);
                }
                _ = beat.tick() => self.try_to("keep", self.beat().await),
                _ = stop.changed() => {}
            }
        }
        let closed = self.close().await;
        self.try_to("close", closed);
    }

    /// Does what has to be done now and then.
    async fn beat(&self) -> Result<()> {
        match self.0.table.is_shared() {
            true => self.keep(SystemTime::now()).await,
            false => self.store().await,
        }
    }

    fn try_to(&self, action: &'static str, result: Result<()>) {
        if let Err(error) = result {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(action, error = %error, reason = cause, "the ledger is behind");
            // Tried again with the next beat at the latest.
        }
    }

    /// Stores what was recorded since the last call; returns when it is durable.
    ///
    /// # Errors
    /// If the database cannot be written; nothing is lost then.
    pub async fn store(&self) -> Result<()> {
        let _turn = self.0.writing.lock().await;
        let Some(batch) = self.0.index.lock().take_batch() else { return Ok(()) };
        let stored = self.0.table.write(&batch).await;
        self.0.index.lock().end_batch(&batch, stored.is_ok());
        self.0.counters.stored.fetch_add(batch.rows.len() as u64, Ordering::Relaxed);
        stored
    }

    /// Says that this publisher is alive and takes over the URLs of those that are not.
    ///
    /// # Errors
    /// If the database cannot be used.
    pub async fn keep(&self, now: SystemTime) -> Result<()> {
        if !self.0.table.beat(now).await? {
            // Another one took this publisher for dead and has its rows.
            self.0.index.lock().mark_all();
            self.0.bell.notify_one();
        }
        self.store().await?;
        for gone in self.0.table.gone(now, SILENCE).await? {
            let Some(Opened { rows, is_whole, .. }) = self.0.table.take_over(&gone, now).await?
            else {
                continue;
            };
            self.0.counters.taken_over.fetch_add(rows.len() as u64, Ordering::Relaxed);
            tracing::info!(
                publisher = gone.name(),
                urls = rows.len(),
                "URLs of a publisher that is gone are taken over"
            );
            self.adopt(rows, is_whole);
            self.store().await?;
            self.0.table.forget(&gone).await?;
            self.0.gone.lock().push(gone.name().to_owned());
        }
        Ok(())
    }

    /// Takes up rows of a publisher that is gone: changes that came since it went were answered without them.
    fn adopt(&self, rows: Vec<table::Row>, is_whole: bool) {
        let mut index = self.0.index.lock();
        rows.into_iter().for_each(|row| index.take_over(row));
        if !is_whole {
            index.add_due("/");
        }
    }

    /// Stores everything and notes that nothing is missing.
    ///
    /// # Errors
    /// If the database cannot be written; the next start finds the URLs in the files.
    pub async fn close(&self) -> Result<()> {
        self.store().await?;
        self.0.table.close().await
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("publisher", &self.0.table).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ledger whose database is never asked.
    fn ledger(folder: &std::path::Path) -> Ledger {
        sqlx::any::install_default_drivers();
        let pool = AnyPool::connect_lazy("sqlite::memory:").unwrap();
        let (journal, _) = Journal::open(folder).unwrap();
        Ledger(Arc::new(Inner {
            index: Mutex::new(Index::new(journal, 100)),
            steps: AtomicU64::new(0),
            table: Table::new(pool, "one".to_owned(), "first".to_owned()),
            counters: LedgerCounters::default(),
            bell: Notify::new(),
            writing: tokio::sync::Mutex::default(),
            answered: Mutex::default(),
            answers: Mutex::default(),
            gone: Mutex::default(),
            keys: [1, 2],
        }))
    }

    #[tokio::test]
    async fn what_runs_on_the_threads_of_all_connections_waits_for_no_lock() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = ledger(folder.path());
        let root = ChunkId::from_bytes([7; 32]);
        ledger.stored(root);
        let answer = RenderResponse {
            outcome: Outcome::Ok,
            content_type: "image/png".into(),
            headers: Vec::new(),
            body: crate::response::Body::Empty,
            reads: crate::reads::Reads::default(),
            timing: crate::timing::Timing::default(),
            failed_components: 0,
            fragments: crate::template::FragmentCounts::default(),
        };
        let look = Look::of(&answer, &RenderRequest::get("/a.png")).unwrap();
        let digest = ledger.digest_of(&answer);
        let is_known = || ledger.is_known_now((ledger.ticket(), root), "/a.png", digest, &look);
        assert!(!is_known(), "nobody drew it");
        let when = (ledger.ticket(), Some(root));
        let kept = ledger.record_answer(when, "/a.png", &answer, Some(look.clone()));
        assert_eq!(kept, Recorded::Kept);
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
