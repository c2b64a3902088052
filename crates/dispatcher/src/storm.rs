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
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tympan_web::flush_message::{Action, FlushMessage, Numbering, Scope};

use crate::cache::{Deleted, Docroot, Fate, Named, Root};
use crate::config::{Cache, FlushMode};
use crate::dispatcher::{FarmState, Inner};
use crate::flush::Flush;
use crate::freshness::window_end;
use crate::gossip::Event;
use crate::log::Level;
use crate::metrics::Counter;
use crate::numbering::{Numbers, Order};

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
    fn apply_round(&self, farm: &FarmState, docroot: &Arc<Docroot>, round: Vec<Waiting>) {
        let Some(cache) = &farm.farm.cache else { return };
        let flushes: Vec<&Flush> = round.iter().map(|waiting| &waiting.flush).collect();
        // Held until the files are changed, as another farm may have the same document root.
        let mut numbers = docroot.numbers.lock();
        let heard =
            Heard::of(&flushes, || numbers.take().unwrap_or_else(|| docroot.read_numbers()));
        let is_doubtful = heard.as_ref().is_some_and(Heard::is_doubtful);
        let change = || self.change_files(docroot, cache, &flushes, is_doubtful);
        let mut done = self.flights.while_nothing_is_stored(change);
        if is_doubtful && done.failure.is_none() {
            done.note(self.note_for_siblings(farm, Event::Stats));
        }
        if let Some(heard) = heard {
            // What was not carried out was not heard, and comes again.
            let is_done = done.failure.is_none();
            *numbers = is_done.then(|| self.keep_numbers(farm, docroot, cache, heard));
        }
        drop(numbers);
        docroot.note_outcome(
            &done.failure.as_ref().map_or(Ok(()), |failure| Err(failure.kind().into())),
        );
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

    /// Counts and writes down what was heard; returns it.
    fn keep_numbers(
        &self,
        farm: &FarmState,
        docroot: &Arc<Docroot>,
        cache: &Cache,
        heard: Heard,
    ) -> Numbers {
        for (source, order) in &heard.orders {
            if let Some(root) = &farm.docroot {
                root.orders.count(*order);
            }
            if order.is_doubtful() {
                tracing::warn!(farm = %farm.farm.name, agent = source, reason = order.name(),
                    "flushes may have been missed: all pages count as out of date");
                self.log(Level::Warn, || {
                    format!(
                        "Flushes of {source} may have been missed ({}): touched all stat files",
                        order.name()
                    )
                });
            } else if *order == Order::Restarted {
                tracing::info!(farm = %farm.farm.name, agent = source, "a sender of flushes began anew");
            }
        }
        if let Err(error) = docroot.write_numbers(&heard.numbers.to_text(), cache.mode) {
            // After a restart the next flush will look as if some before it were lost, which is safe.
            tracing::warn!(farm = %farm.farm.name, reason = %error, "cannot write down which flushes came");
        }
        heard.numbers
    }

    /// Returns the caches of all farms that keep their files in a document root: numbers count for all of them.
    fn caches_on<'a>(&'a self, docroot: &'a Docroot) -> impl Iterator<Item = &'a Cache> {
        let is_there = |farm: &&Arc<FarmState>| {
            farm.docroot.as_ref().is_some_and(|root| root.path() == docroot.path())
        };
        let farms = self.farms.iter().filter(is_there);
        farms.filter_map(|farm| farm.farm.cache.as_ref())
    }

    /// Touches all stat files of all farms on a document root; no window is waited for, as nobody knows when the missed
    /// changes were made. Those that were touched from `since` on stay as they are.
    pub(crate) fn touch_all(&self, docroot: &Docroot, since: Option<SystemTime>) -> Deleted {
        let (mut done, mut touched) = (Deleted::default(), BTreeSet::new());
        let now = self.runtime.clock.tick();
        for cache in self.caches_on(docroot) {
            done.note(docroot.touch_all_stats(cache, (now, since), &mut touched));
        }
        done
    }

    fn change_files(
        &self,
        docroot: &Docroot,
        cache: &Cache,
        flushes: &[&Flush],
        is_doubtful: bool,
    ) -> Deleted {
        let mut done = Deleted::default();
        let now = self.runtime.clock.tick();
        let mut touched = BTreeSet::new();
        if is_doubtful {
            // Nobody knows when the missed changes were made, so no window is waited for.
            for cache in self.caches_on(docroot) {
                done.note(docroot.touch_all_stats(cache, (now, None), &mut touched));
            }
        }
        let now = window_end(now, cache.flush_window);
        for flush in flushes {
            if flush.message.scope != Some(Scope::ResourceOnly) {
                // What can be removed is removed nevertheless.
                for handle in &flush.handles {
                    done.note(docroot.touch_stats(handle, cache, now, &mut touched));
                }
            }
        }
        for file in &touched {
            self.log(Level::Debug, || format!("Touched {}", file.display()));
        }
        let named = flushes.iter().flat_map(|flush| {
            let handles = flush.handles.iter().chain(&flush.variants);
            handles.map(|handle| Named { handle, fate: fate(cache, flush.message.action) })
        });
        let named: Vec<Named<'_>> = named.collect();
        let nothing = BTreeSet::new();
        let listed = flushes.first().map_or(&nothing, |flush| &flush.listed);
        done.add(docroot.flush(&named, listed));
        for flush in flushes.iter().filter(|flush| is_gone(flush.message.action)) {
            for handle in &flush.handles {
                done.add(docroot.remove_below(handle));
            }
        }
        for file in listed {
            done.add(docroot.mark_file(file));
        }
        done
    }
}

/// What the numbers of some flushes say.
struct Heard {
    numbers: Numbers,
    orders: Vec<(String, Order)>,
}

impl Heard {
    /// Notes the numbers of flushes; nothing if none of them has one.
    fn of(flushes: &[&Flush], known: impl FnOnce() -> Numbers) -> Option<Self> {
        let numbered = |flush: &&Flush| {
            let FlushMessage { numbering, sequence, .. } = &flush.message;
            numbering.clone().map(|numbering| (numbering, *sequence))
        };
        let mut numbered = flushes.iter().filter_map(numbered).peekable();
        numbered.peek()?;
        let mut numbers = known();
        let note = |(numbering, sequence): (Numbering, Option<u64>)| {
            let order = numbers.note(&numbering, sequence);
            (numbering.source, order)
        };
        let orders = numbered.map(note).collect();
        Some(Self { numbers, orders })
    }

    fn is_doubtful(&self) -> bool {
        self.orders.iter().any(|(_, order)| order.is_doubtful())
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

/// Returns what happens to the files of a handle.
pub(crate) fn fate(cache: &Cache, action: Action) -> Fate {
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
