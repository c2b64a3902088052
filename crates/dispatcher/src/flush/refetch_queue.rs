//! The queue of a farm's pages to re-fetch.
//!
//! Invariants
//! * A waiting page is not queued twice; one that is being fetched is queued once more.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::request::view::RequestView;

/// The maximum number of waiting pages; further ones are left to visitors.
const MAX_QUEUED_PAGES: usize = 10_000;

/// The queue of a farm's pages to re-fetch.
#[derive(Debug, Default)]
pub(crate) struct RefetchQueue(Mutex<RefetchQueueState>);

#[derive(Debug, Default)]
struct RefetchQueueState {
    waiting_items: VecDeque<RefetchItem>,
    /// The files of both queues.
    waiting_files: HashSet<PathBuf>,
    running_files: HashSet<PathBuf>,
    /// Pages whose render was lagging, the least recently tried one first.
    postponed_items: VecDeque<RefetchItem>,
    /// True if a task retries the postponed pages.
    has_retry_task: bool,
    /// Files that flushes are about to queue, with the number of these flushes; see [`AnnouncedRefetch`].
    announced_files: HashMap<PathBuf, usize>,
    worker_count: u32,
}

#[derive(Debug)]
pub(super) struct RefetchItem {
    pub(super) view: RequestView,
    pub(super) file: PathBuf,
    pub(super) sequence: Option<u64>,
    /// The time until which the page waits for a lagging render.
    pub(super) retry_deadline: Option<Instant>,
}

impl RefetchQueueState {
    /// Returns true if a new worker must be started for the waiting pages.
    fn try_start_worker(&mut self, workers: u32) -> bool {
        let is_new = self.worker_count < workers;
        self.worker_count += u32::from(is_new);
        is_new
    }
}

impl RefetchQueue {
    /// Returns true if a page waits or is being fetched.
    pub(crate) fn contains(&self, file: &Path) -> bool {
        let state = self.0.lock();
        state.waiting_files.contains(file)
            || state.running_files.contains(file)
            || state.announced_files.contains_key(file)
    }

    /// Counts `files` as waiting, from before they are marked until the returned value is dropped.
    pub(crate) fn announce_files(self: &Arc<Self>, files: BTreeSet<PathBuf>) -> AnnouncedRefetch {
        let mut state = self.0.lock();
        for file in &files {
            *state.announced_files.entry(file.clone()).or_default() += 1;
        }
        drop(state);
        AnnouncedRefetch { queue: Arc::clone(self), files }
    }

    /// Returns the number of waiting pages.
    pub(crate) fn len(&self) -> u64 {
        let state = self.0.lock();
        (state.waiting_items.len() + state.postponed_items.len()) as u64
    }

    /// Adds a page; returns true if a new worker must be started for it.
    pub(super) fn push(&self, item: RefetchItem, workers: u32) -> bool {
        let mut state = self.0.lock();
        if state.waiting_files.contains(&item.file) {
            // The later flush requests the newer content.
            let RefetchQueueState { waiting_items: waiting, postponed_items, .. } = &mut *state;
            let mut items = waiting.iter_mut().chain(postponed_items);
            if let Some(waiting) = items.find(|waiting| waiting.file == item.file) {
                waiting.sequence = waiting.sequence.max(item.sequence);
            }
            return false;
        }
        if state.waiting_files.len() >= MAX_QUEUED_PAGES {
            return false;
        }
        state.waiting_files.insert(item.file.clone());
        state.waiting_items.push_back(item);
        state.try_start_worker(workers)
    }

    /// Puts back a page whose render was lagging; returns true if a retry task must be started.
    pub(super) fn postpone(&self, item: RefetchItem) -> bool {
        let mut state = self.0.lock();
        state.running_files.remove(&item.file);
        // A page flushed again in the meantime is waiting already.
        if !state.waiting_files.insert(item.file.clone()) {
            return false;
        }
        state.postponed_items.push_back(item);
        !std::mem::replace(&mut state.has_retry_task, true)
    }

    /// Releases the least recently tried page of those whose render was lagging; returns true if a new worker must be
    /// started for it, or `None` if there is no such page.
    pub(super) fn retry_postponed(&self, workers: u32) -> Option<bool> {
        let mut state = self.0.lock();
        let Some(item) = state.postponed_items.pop_front() else {
            state.has_retry_task = false;
            return None;
        };
        state.waiting_items.push_front(item);
        Some(state.try_start_worker(workers))
    }

    /// Releases all pages whose render was lagging, as it has caught up; returns the number of new workers to start.
    pub(super) fn release_postponed(&self, workers: u32) -> usize {
        let mut state = self.0.lock();
        let mut released = std::mem::take(&mut state.postponed_items);
        let count = released.len();
        released.append(&mut state.waiting_items);
        state.waiting_items = released;
        (0..count).take_while(|_| state.try_start_worker(workers)).count()
    }

    /// Takes the next page that is not being fetched; if there is none, the worker ends.
    pub(super) fn take_next(&self) -> Option<RefetchItem> {
        let mut state = self.0.lock();
        let next =
            state.waiting_items.iter().position(|item| !state.running_files.contains(&item.file));
        match next.and_then(|next| state.waiting_items.remove(next)) {
            Some(item) => {
                state.waiting_files.remove(&item.file);
                state.running_files.insert(item.file.clone());
                Some(item)
            }
            None => {
                state.worker_count -= 1;
                None
            }
        }
    }

    pub(super) fn mark_done(&self, file: &Path) {
        self.0.lock().running_files.remove(file);
    }

    /// Drops the waiting pages, as their farm no longer exists.
    pub(crate) fn clear(&self) {
        let mut state = self.0.lock();
        state.waiting_items.clear();
        state.postponed_items.clear();
        state.waiting_files.clear();
    }
}

/// Files that a flush is about to queue. Dropping it withdraws the announcement, also if the flush is given up: a page
/// that waits for nothing would stay out of date forever.
#[derive(Debug)]
pub(crate) struct AnnouncedRefetch {
    queue: Arc<RefetchQueue>,
    files: BTreeSet<PathBuf>,
}

impl Drop for AnnouncedRefetch {
    fn drop(&mut self) {
        let mut state = self.queue.0.lock();
        for file in &self.files {
            if let Some(flushes) = state.announced_files.get_mut(file) {
                *flushes -= 1;
                if *flushes == 0 {
                    state.announced_files.remove(file);
                }
            }
        }
    }
}
