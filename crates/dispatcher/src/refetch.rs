//! Fetching flushed pages again in the background, in the order in which they were named.
//!
//! Invariants
//! * A page that waits is not queued twice; one that is being fetched is queued once more.
//! * At most `/x-refetchConcurrency` pages of a farm are fetched at once, so that a flush makes no storm of its own.
//! * Over a reload what waits is fetched by the new configuration, or forgotten with its farm.
//! * A page that waits for a render to catch up takes no place of another one. Of those that wait one is tried at a time,
//!   for all: a render that is late is not made later.
//!
//! On failure: a page is tried three times, then left to the next visitor. A render that says that its content is older than
//! what was flushed is asked again for half a minute.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, header};
use parking_lot::Mutex;
use tokio::time::Instant;
use tympan_web::flush_message::FlushMessage;

use crate::cacheable::check_request;
use crate::config::{Farm, is_plain};
use crate::dispatcher::{FarmState, Inner};
use crate::fetch::{Fetch, First, is_behind, start};
use crate::flight::{Flight, Outcome, Role};
use crate::forward::{Purpose, request_headers};
use crate::glob::Glob;
use crate::log::Level;
use crate::metrics::Counter;
use crate::request::RequestView;
use crate::upstream::{Call, CallBody};
use crate::variant;
use crate::visits::{Doors, Visit};

/// How often a page is tried.
const TRIES: u32 = 3;
/// How many fetches of visitors are waited for in vain before that counts as a failure.
const MAX_JOINED: u32 = 10;
/// The pause after the first failure; it doubles.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a page waits for a render that has the content which was flushed.
const BEHIND_PATIENCE: Duration = Duration::from_secs(30);
/// The pause until a render that was behind is asked again, for one of the pages that wait for it.
const BEHIND_PAUSE: Duration = Duration::from_millis(250);
/// Pages that wait, at most; what does not fit is left to visitors.
const MAX_WAITING: usize = 10_000;

/// The pages of a farm that wait to be fetched again.
#[derive(Debug, Default)]
pub(crate) struct Queue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Item>,
    /// Those in `waiting` and in `behind`.
    waiting_files: HashSet<PathBuf>,
    running: HashSet<PathBuf>,
    /// Pages whose render was behind, the one that was asked for longest ago first.
    behind: VecDeque<Item>,
    /// Whether someone asks again for pages in `behind`.
    is_asking: bool,
    /// Files that flushes are about to queue, with how many flushes are; see [`Announced`].
    announced: HashMap<PathBuf, usize>,
    workers: u32,
    /// Who works on it since the last reload.
    successor: Option<(Weak<Inner>, Weak<FarmState>)>,
}

#[derive(Debug)]
struct Item {
    view: RequestView,
    file: PathBuf,
    sequence: Option<u64>,
    /// How long it waits for a render that was behind.
    until: Option<Instant>,
}

impl State {
    /// Tells whether a new worker has to be started for what waits.
    fn may_start(&mut self, workers: u32) -> bool {
        let is_new = self.workers < workers;
        self.workers += u32::from(is_new);
        is_new
    }
}

impl Queue {
    /// Tells whether a page waits or is being fetched.
    pub(crate) fn holds(&self, file: &Path) -> bool {
        let state = self.0.lock();
        state.waiting_files.contains(file)
            || state.running.contains(file)
            || state.announced.contains_key(file)
    }

    /// Counts `files` as waiting already, from before they are marked until what is returned is dropped.
    pub(crate) fn announce(self: &Arc<Self>, files: BTreeSet<PathBuf>) -> Announced {
        let mut state = self.0.lock();
        for file in &files {
            *state.announced.entry(file.clone()).or_default() += 1;
        }
        drop(state);
        Announced { queue: Arc::clone(self), files }
    }

    /// Returns how many pages wait.
    pub(crate) fn len(&self) -> u64 {
        let state = self.0.lock();
        (state.waiting.len() + state.behind.len()) as u64
    }

    /// Adds a page; returns whether a new worker has to be started for it.
    fn push(&self, item: Item, workers: u32) -> bool {
        let mut state = self.0.lock();
        if state.waiting_files.contains(&item.file) {
            // The later flush asks for the newer content.
            let State { waiting, behind, .. } = &mut *state;
            let mut known = waiting.iter_mut().chain(behind);
            if let Some(waiting) = known.find(|waiting| waiting.file == item.file) {
                waiting.sequence = waiting.sequence.max(item.sequence);
            }
            return false;
        }
        if state.waiting_files.len() >= MAX_WAITING {
            return false;
        }
        state.waiting_files.insert(item.file.clone());
        state.waiting.push_back(item);
        state.may_start(workers)
    }

    /// Puts a page back whose render was behind; returns whether someone has to be told to ask again.
    fn postpone(&self, item: Item) -> bool {
        let mut state = self.0.lock();
        state.running.remove(&item.file);
        // If it was flushed anew meanwhile, it waits already.
        if !state.waiting_files.insert(item.file.clone()) {
            return false;
        }
        state.behind.push_back(item);
        !std::mem::replace(&mut state.is_asking, true)
    }

    /// Lets the page be tried again that was tried longest ago of those whose render was behind; returns whether a new
    /// worker has to be started for it, or nothing without such a page.
    fn ask_again(&self, workers: u32) -> Option<bool> {
        let mut state = self.0.lock();
        let Some(item) = state.behind.pop_front() else {
            state.is_asking = false;
            return None;
        };
        state.waiting.push_front(item);
        Some(state.may_start(workers))
    }

    /// Lets all pages be tried again whose render was behind, as it has caught up; returns how many new workers have to be
    /// started for them.
    fn release(&self, workers: u32) -> usize {
        let mut state = self.0.lock();
        let mut released = std::mem::take(&mut state.behind);
        let count = released.len();
        released.append(&mut state.waiting);
        state.waiting = released;
        (0..count).take_while(|_| state.may_start(workers)).count()
    }

    /// Takes the next page that is not being fetched; without one the worker ends.
    fn take(&self) -> Option<Item> {
        let mut state = self.0.lock();
        let next = state.waiting.iter().position(|item| !state.running.contains(&item.file));
        match next.and_then(|next| state.waiting.remove(next)) {
            Some(item) => {
                state.waiting_files.remove(&item.file);
                state.running.insert(item.file.clone());
                Some(item)
            }
            None => {
                state.workers -= 1;
                None
            }
        }
    }

    fn done(&self, file: &Path) {
        self.0.lock().running.remove(file);
    }

    /// Lets what waits be fetched as another configuration says.
    pub(crate) fn hand_over(&self, inner: &Arc<Inner>, farm: &Arc<FarmState>) {
        self.0.lock().successor = Some((Arc::downgrade(inner), Arc::downgrade(farm)));
    }

    /// Forgets what waits, as its farm is gone.
    pub(crate) fn clear(&self) {
        let mut state = self.0.lock();
        state.waiting.clear();
        state.behind.clear();
        state.waiting_files.clear();
    }

    /// Returns the dispatcher and the farm of the last reload.
    fn successor(&self) -> Option<(Arc<Inner>, Arc<FarmState>)> {
        let state = self.0.lock();
        let (inner, farm) = state.successor.as_ref()?;
        Some((inner.upgrade()?, farm.upgrade()?))
    }
}

/// Files that a flush is about to queue. Dropping it ends that, also where the flush is given up: a page that waits for
/// nothing would be out of date for ever.
#[derive(Debug)]
pub(crate) struct Announced {
    queue: Arc<Queue>,
    files: BTreeSet<PathBuf>,
}

impl Drop for Announced {
    fn drop(&mut self) {
        let mut state = self.queue.0.lock();
        for file in &self.files {
            if let Some(flushes) = state.announced.get_mut(file) {
                *flushes -= 1;
                if *flushes == 0 {
                    state.announced.remove(file);
                }
            }
        }
    }
}

/// Reads a URI of a re-fetch list; nothing if it cannot be cached.
///
/// The page is asked for as by the visitor for whom it was stored: its links may name host and scheme.
pub(crate) fn target(farm: &FarmState, uri: &str, doors: &Doors) -> Option<(RequestView, PathBuf)> {
    let mut view = RequestView::from_url(Method::GET, uri, HeaderMap::new()).ok()?;
    let file = check_request(&farm.farm, &view).ok()?;
    let visits = farm.docroot.as_ref().map(|root| &root.visits);
    let of_others = || {
        let site = visits.and_then(|visits| visits.find_site(&file));
        match own_address(&farm.farm, doors) {
            // Whoever came by another name does not decide for new pages.
            Some(own) => {
                let site = site.filter(|site| site.is_at(&own, doors));
                Some(match site {
                    Some(site) => site.named_as(&own),
                    None => Arc::new(own),
                })
            }
            None => site.or_else(|| visits.filter(|_| view.host.is_empty())?.last()),
        }
    };
    let visit = visits.and_then(|visits| visits.find(&file)).or_else(of_others);
    if let Some(visit) = visit {
        visit.apply(&mut view);
    }
    Some((view, file))
}

/// The address under which visitors know the farm, if one is written out.
fn own_address(farm: &Farm, doors: &Doors) -> Option<Visit> {
    let entry = farm.virtual_hosts.iter().find(|entry| entry.is_name())?;
    let name = entry.host.source();
    let port = entry.port.as_ref().map(Glob::source).filter(|port| is_plain(port));
    let host = port.map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"));
    let is_tls = match entry.scheme.as_ref().map(Glob::source) {
        Some("https") => true,
        Some("http") => false,
        _ => doors.are_encrypted(),
    };
    Some(Visit::plain(HeaderValue::from_str(&host).ok()?, is_tls))
}

impl Inner {
    /// Queues the pages that `message` lists.
    pub(crate) fn refetch(self: &Arc<Self>, farm: &Arc<FarmState>, message: &FlushMessage) {
        let workers = workers(farm);
        for uri in &message.refetch {
            let Some((view, file)) = target(farm, uri, &self.doors) else {
                self.log(Level::Debug, || format!("nothing to re-fetch for [{uri}]"));
                continue;
            };
            let item = Item { view, file, sequence: message.sequence, until: None };
            if farm.refetch.push(item, workers) {
                tokio::spawn(Arc::clone(self).work_off(Arc::clone(farm)));
            }
        }
    }

    fn work_off(self: Arc<Self>, farm: Arc<FarmState>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            while let Some(item) = farm.refetch.take() {
                // The queue outlives a reload, and its farm may have other renders and rules since then.
                let newer = farm.refetch.successor();
                let (inner, farm) = newer.unwrap_or_else(|| (Arc::clone(&self), Arc::clone(&farm)));
                if check_request(&farm.farm, &item.view).is_ok_and(|file| file == item.file) {
                    inner.fetch_again(&farm, item).await;
                } else {
                    farm.refetch.done(&item.file);
                    inner.memory.note_change();
                }
            }
        })
    }

    /// Fetches one page, or puts it back.
    async fn fetch_again(self: &Arc<Self>, farm: &Arc<FarmState>, item: Item) {
        let key = farm.absolute(&item.file);
        let (mut failures, mut joined) = (0, 0);
        let is_done = loop {
            match self.try_again(farm, &key, &item).await {
                Tried::Done => break true,
                Tried::Behind if item.until.is_none_or(|until| Instant::now() < until) => {
                    return self.postpone(farm, item);
                }
                Tried::Behind => break false,
                Tried::Again if joined < MAX_JOINED => {
                    joined += 1;
                    continue;
                }
                Tried::Again | Tried::Failed => failures += 1,
            }
            if failures == TRIES {
                break false;
            }
            tokio::time::sleep(PAUSE * 2_u32.pow(failures - 1)).await;
        };
        farm.refetch.done(&item.file);
        // Whoever kept the old file for as long as it was awaited looks again.
        self.memory.note_change();
        self.metrics.count(if is_done { Counter::Refetches } else { Counter::RefetchFailures });
        if !is_done {
            tracing::warn!(farm = %farm.farm.name, path = %item.view.path, "a flushed page could not be fetched again");
        } else if item.until.is_some() {
            for _ in 0..farm.refetch.release(workers(farm)) {
                tokio::spawn(Arc::clone(self).work_off(Arc::clone(farm)));
            }
        }
    }

    /// Puts a page back whose render was behind. A publisher that is behind gets the content by itself, and another one may
    /// have it already.
    fn postpone(self: &Arc<Self>, farm: &Arc<FarmState>, item: Item) {
        let until = item.until.unwrap_or_else(|| Instant::now() + BEHIND_PATIENCE);
        if farm.refetch.postpone(Item { until: Some(until), ..item }) {
            tokio::spawn(Arc::clone(self).ask_again(Arc::clone(farm)));
        }
    }

    /// Asks again now and then for pages whose render was behind.
    async fn ask_again(self: Arc<Self>, farm: Arc<FarmState>) {
        loop {
            tokio::time::sleep(BEHIND_PAUSE).await;
            match farm.refetch.ask_again(workers(&farm)) {
                None => return,
                Some(false) => {}
                Some(true) => drop(tokio::spawn(Arc::clone(&self).work_off(Arc::clone(&farm)))),
            }
        }
    }

    async fn try_again(self: &Arc<Self>, farm: &Arc<FarmState>, key: &Path, item: &Item) -> Tried {
        let first = match self.flights.lead_or_join(key) {
            Role::Join(flight) => return tried_by(&flight, item).await,
            Role::Pass(_) => return Tried::Failed,
            Role::Lead(ticket) => {
                let cache = farm.farm.cache.as_ref();
                let target = cache.map(|cache| variant::target_of(cache, &item.view));
                let fetch = Fetch {
                    call: Call {
                        method: Method::GET,
                        target: target.unwrap_or_else(|| item.view.wire_target()),
                        headers: request_headers(&farm.farm, &item.view, Purpose::Cache),
                        body: CallBody::empty(),
                        sticky: None,
                    },
                    file: item.file.clone(),
                    path: item.view.path.as_str().to_owned(),
                    host: item.view.headers.get(header::HOST).cloned(),
                    visit: None,
                    sequence: item.sequence,
                    info: "caching",
                };
                start(self, farm, ticket, fetch).await
            }
        };
        match first {
            Ok(First::Page(_)) => Tried::Done,
            Ok(First::Answer(response, ..)) if matches!(response.status().as_u16(), 404 | 410) => {
                Tried::Done
            }
            Ok(First::Behind) => Tried::Behind,
            _ => Tried::Failed,
        }
    }
}

/// Waits for a visitor's fetch, which does as well if it began after the flush.
async fn tried_by(flight: &Flight, item: &Item) -> Tried {
    let outcome = flight.outcome().await;
    if flight.is_flushed() {
        // Nothing of it is stored.
        flight.end().await;
        return Tried::Again;
    }
    match outcome {
        Outcome::Again => Tried::Again,
        Outcome::Shared(page) if is_behind(item.sequence, &page.headers) => Tried::Behind,
        Outcome::Shared(_) => Tried::Done,
        Outcome::Alone(_) | Outcome::Failed(_) => Tried::Failed,
    }
}

/// How many pages of a farm are fetched at once.
fn workers(farm: &FarmState) -> u32 {
    farm.farm.cache.as_ref().map_or(1, |cache| cache.refetch_concurrency)
}

/// How one attempt to fetch a page ended.
enum Tried {
    /// Its file is new, or rightly gone.
    Done,
    /// The render has older content than what was flushed.
    Behind,
    /// Another one's fetch came to nothing.
    Again,
    Failed,
}
