//! Flushes that come while others are carried out wait for each other, and are then carried out together.
//!
//! A storm of flushes costs as much as its files, not as much as its messages: a folder is listed once for all handles in
//! it, a `.stat` file is touched once, and between two rounds the disk is left to visitors as long as the round took.
//!
//! Invariants
//! * A flush is answered after its files were changed.
//! * Flushes that list pages to be fetched again are carried out by themselves, in their order.
//! * Removing what large folders held is nobody's wait: they are renamed away, and emptied afterwards.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tympan_web::flush_message::{Action, Scope};

use crate::cache::{Deleted, Docroot, Fate, Named, Root};
use crate::config::{Cache, FlushMode};
use crate::dispatcher::{FarmState, Inner};
use crate::flush::Flush;
use crate::freshness::window_end;
use crate::log::Level;
use crate::metrics::Counter;

/// The longest pause between two rounds.
const MAX_PAUSE: Duration = Duration::from_millis(100);
/// Rounds shorter than this need no pause.
const MIN_PAUSE: Duration = Duration::from_millis(2);

/// The flushes of a farm that wait.
#[derive(Debug, Default)]
pub(crate) struct Storm(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Waiting>,
    is_working: bool,
}

#[derive(Debug)]
struct Waiting {
    flush: Flush,
    done: oneshot::Sender<std::io::Result<()>>,
}

impl Storm {
    /// Adds a flush; returns whether nobody works yet.
    fn push(&self, waiting: Waiting) -> bool {
        let mut state = self.0.lock();
        state.waiting.push(waiting);
        !std::mem::replace(&mut state.is_working, true)
    }

    /// Takes all that wait; without any, nobody works any more.
    fn take(&self) -> Vec<Waiting> {
        let mut state = self.0.lock();
        let waiting = std::mem::take(&mut state.waiting);
        state.is_working = !waiting.is_empty();
        waiting
    }
}

impl Inner {
    /// Changes the files of a flush, together with those of others that wait.
    pub(crate) async fn apply_with_others(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        root: Arc<Root>,
        flush: Flush,
    ) -> std::io::Result<()> {
        let (done, wait) = oneshot::channel();
        if farm.storm.push(Waiting { flush, done }) {
            let (inner, farm) = (Arc::clone(self), Arc::clone(farm));
            tokio::task::spawn_blocking(move || inner.work_off_storm(&farm, &root));
        }
        wait.await.unwrap_or_else(|_panicked| Err(std::io::ErrorKind::Other.into()))
    }

    fn work_off_storm(&self, farm: &FarmState, root: &Root) {
        let guard = Working(farm);
        loop {
            let waiting = farm.storm.take();
            if waiting.is_empty() {
                std::mem::forget(guard);
                return;
            }
            let started = Instant::now();
            let outcome = root.current().map(|docroot| {
                for round in rounds(waiting) {
                    self.apply_round(farm, &docroot, round);
                }
                docroot.empty_trash();
            });
            if let Err(error) = outcome {
                tracing::error!(farm = %farm.farm.name, reason = %error, "cannot open the document root");
            }
            let spent = started.elapsed();
            if spent > MIN_PAUSE {
                std::thread::sleep(spent.min(MAX_PAUSE));
            }
        }
    }

    /// Changes the files of several flushes and tells those who sent them.
    fn apply_round(&self, farm: &FarmState, docroot: &Docroot, round: Vec<Waiting>) {
        let Some(cache) = &farm.farm.cache else { return };
        let flushes: Vec<&Flush> = round.iter().map(|waiting| &waiting.flush).collect();
        let done =
            self.flights.while_nothing_is_stored(|| self.change_files(docroot, cache, &flushes));
        self.memory.note_change();
        self.metrics.add(Counter::FilesDeleted, done.removed as u64);
        self.metrics.add(Counter::FilesMarked, done.marked as u64);
        tracing::debug!(farm = %farm.farm.name, flushes = flushes.len(), removed = done.removed,
            marked = done.marked, "flushes applied");
        for waiting in round {
            let outcome = match &done.failure {
                None => Ok(()),
                Some(failure) => Err(std::io::Error::new(failure.kind(), failure.to_string())),
            };
            // The agent may have left.
            waiting.done.send(outcome).ok();
        }
    }

    fn change_files(&self, docroot: &Docroot, cache: &Cache, flushes: &[&Flush]) -> Deleted {
        let mut done = Deleted::default();
        let now = window_end(self.runtime.clock.tick(), cache.flush_window);
        let mut touched = BTreeSet::new();
        for flush in flushes {
            if flush.message.scope != Some(Scope::ResourceOnly) {
                // What can be removed is removed nevertheless.
                done.note(docroot.touch_stats(&flush.handle, cache, now, &mut touched));
            }
        }
        for file in &touched {
            self.log(Level::Debug, || format!("Touched {}", file.display()));
        }
        let named: Vec<Named<'_>> = flushes
            .iter()
            .map(|flush| Named { handle: &flush.handle, fate: fate(cache, flush.message.action) })
            .collect();
        let nothing = BTreeSet::new();
        let listed = flushes.first().map_or(&nothing, |flush| &flush.listed);
        done.add(docroot.flush(&named, listed));
        for flush in flushes.iter().filter(|flush| is_gone(flush.message.action)) {
            done.add(docroot.remove_below(&flush.handle));
        }
        for file in listed {
            done.add(docroot.mark_file(file));
        }
        done
    }
}

/// Lets the next flush begin to work if this one panics.
struct Working<'a>(&'a FarmState);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        *self.0.storm.0.lock() = State::default();
    }
}

fn is_gone(action: Action) -> bool {
    matches!(action, Action::Deactivate | Action::Delete)
}

fn fate(cache: &Cache, action: Action) -> Fate {
    match cache.flush_mode {
        FlushMode::Soft if !is_gone(action) => Fate::Mark,
        FlushMode::Soft | FlushMode::Delete => Fate::Delete,
    }
}

/// Splits flushes into those that may be carried out together.
fn rounds(waiting: Vec<Waiting>) -> Vec<Vec<Waiting>> {
    let mut rounds: Vec<Vec<Waiting>> = Vec::new();
    let mut is_open = false;
    for one in waiting {
        let is_plain = one.flush.listed.is_empty();
        match rounds.last_mut().filter(|_| is_open && is_plain) {
            Some(round) => round.push(one),
            None => rounds.push(vec![one]),
        }
        is_open = is_plain;
    }
    rounds
}
