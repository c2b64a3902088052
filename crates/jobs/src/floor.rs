//! Where claimed jobs run: each queue with as many at once as it allows, on a bounded number of threads.
//!
//! A thread that ends a job takes the next one that is ready at once, so that nothing waits for the outcome to be stored.

use std::collections::{BTreeMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tracing::debug;

use crate::handler::JobContext;
use crate::pool::Pool;
use crate::{Handler, Job, JobId, Outcome, Priority};

/// An attempt that ended.
pub(crate) struct Ended {
    pub(crate) id: JobId,
    pub(crate) outcome: Outcome,
    pub(crate) ran: Duration,
}

/// A claimed job with what it takes to run it.
pub(crate) struct Ready {
    pub(crate) job: Job,
    pub(crate) context: JobContext,
    pub(crate) handler: Arc<dyn Handler>,
}

/// What a queue allows now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowance {
    pub(crate) jobs: usize,
    pub(crate) priority: Priority,
}

struct Place {
    allowance: Allowance,
    running: usize,
    ready: VecDeque<Ready>,
}

/// The running and the ready jobs of a process.
pub(crate) struct Floor {
    places: Mutex<BTreeMap<String, Place>>,
    pool: Pool,
    threads: usize,
    ended: mpsc::UnboundedSender<Ended>,
}

impl Floor {
    pub(crate) fn new(threads: usize, ended: mpsc::UnboundedSender<Ended>) -> Arc<Self> {
        let threads = threads.max(1);
        Arc::new(Self { places: Mutex::default(), pool: Pool::new(threads), threads, ended })
    }

    /// Adds a claimed job.
    pub(crate) fn push(&self, queue: &str, allowance: Allowance, ready: Ready) {
        let mut places = self.places.lock();
        let place = places.entry(queue.to_owned()).or_insert_with(|| Place {
            allowance,
            running: 0,
            ready: VecDeque::new(),
        });
        place.allowance = allowance;
        place.ready.push_back(ready);
    }

    /// Tells what queues allow now.
    pub(crate) fn allow(&self, allowance: impl Fn(&str) -> Option<Allowance>) {
        for (name, place) in self.places.lock().iter_mut() {
            if let Some(allowance) = allowance(name) {
                place.allowance = allowance;
            }
        }
    }

    /// Begins what may run.
    pub(crate) fn begin(self: &Arc<Self>) {
        loop {
            let next = {
                let mut places = self.places.lock();
                self.next(&mut places)
            };
            let Some((queue, ready)) = next else { return };
            let (floor, id) = (self.clone(), ready.job.id);
            if let Err(failure) = self.pool.run(Box::new(move || floor.work(queue, ready))) {
                let reason = format!("no thread can be started: {failure}");
                let outcome = Outcome::Retry { after: None, reason };
                self.ended.send(Ended { id, outcome, ran: Duration::ZERO }).ok();
                return;
            }
        }
    }

    /// Runs a job, and then others as long as there are any.
    fn work(self: Arc<Self>, mut queue: String, mut ready: Ready) {
        loop {
            self.run(ready);
            let mut places = self.places.lock();
            if let Some(place) = places.get_mut(&queue) {
                place.running = place.running.saturating_sub(1);
            }
            let Some(next) = self.next(&mut places) else {
                places.retain(|_, place| place.running > 0 || !place.ready.is_empty());
                return;
            };
            (queue, ready) = next;
        }
    }

    /// Takes the next ready job: of the queue with the highest priority, then of the one with the fewest running.
    fn next(&self, places: &mut BTreeMap<String, Place>) -> Option<(String, Ready)> {
        if places.values().map(|place| place.running).sum::<usize>() >= self.threads {
            return None;
        }
        let open = places
            .iter_mut()
            .filter(|(_, place)| !place.ready.is_empty() && place.running < place.allowance.jobs);
        let (name, place) = open.max_by_key(|(_, place)| {
            (place.allowance.priority, std::cmp::Reverse(place.running))
        })?;
        let ready = place.ready.pop_front()?;
        place.running += 1;
        Some((name.clone(), ready))
    }

    fn run(&self, ready: Ready) {
        let Ready { job, context, handler } = ready;
        let (began, id) = (Instant::now(), job.id);
        // A job whose lease ran out while it waited belongs to someone else by now.
        let outcome = if context.begin(SystemTime::now()) {
            let run = AssertUnwindSafe(|| handler.run(&job, &context));
            std::panic::catch_unwind(run).unwrap_or_else(|panic| {
                let reason = format!("the handler panicked: {}", panic_text(&*panic));
                Outcome::Failed { reason }
            })
        } else {
            Outcome::Wait { after: Duration::ZERO }
        };
        debug!(job = id.0, topic = job.topic, attempt = job.attempt, "job ended");
        // The worker is gone when the process ends before the job.
        self.ended.send(Ended { id, outcome, ran: began.elapsed() }).ok();
    }

    /// Counts the jobs of a queue that run or are ready.
    pub(crate) fn holds(&self, queue: &str) -> usize {
        let places = self.places.lock();
        places.get(queue).map_or(0, |place| place.running + place.ready.len())
    }

    /// Counts the running and the ready jobs of each queue.
    pub(crate) fn load(&self) -> BTreeMap<String, (usize, usize)> {
        let places = self.places.lock();
        let counts = |place: &Place| (place.running, place.ready.len());
        places.iter().map(|(name, place)| (name.clone(), counts(place))).collect()
    }

    /// Forgets the ready jobs of some queues, which will not be begun here, and returns their numbers.
    pub(crate) fn clear_ready(&self, of: impl Fn(&str) -> bool) -> Vec<JobId> {
        let mut places = self.places.lock();
        let cleared = places
            .iter_mut()
            .filter(|(name, _)| of(name))
            .flat_map(|(_, place)| place.ready.drain(..));
        cleared.map(|ready| ready.job.id).collect()
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
