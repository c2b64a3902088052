//! The worker of a process: claims the jobs of topics that have handlers, and runs them as their queues say.
//!
//! In: handlers, configurations of queues. Out: outcomes, stored.
//!
//! One loop writes: each round is one transaction with all that ended, all that is claimed and, now and then, the leases
//! of all that runs, so that many short jobs share one sync.
//!
//! Invariants
//! * Not more jobs of a queue run at once than it allows, and not more in all than there are threads.
//! * What another process reserves for itself is left to it as long as it lives.
//! * A worker that stops gives back what it has not begun, and what does not end in time.
//!
//! On failure: what cannot be stored is kept and stored when the database is there again; the leases tell others when not
//! to wait any longer.
//!
//! Not here: in which order jobs are chosen (`choose`), and what a round does to the tables (`round`).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, watch};
use tracing::{error, info, warn};

use crate::config::{QueueConfig, QueueSet};
use crate::error::chain;
use crate::floor::{Ended, Floor};
use crate::handler::JobContext;
use crate::topic::TopicPattern;
use crate::{Handler, JobId, Queues};

/// How a worker works.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// What the process is: `author`, `publish`, `assets`.
    pub role: String,
    /// A name that no other process has, now or later.
    pub name: String,
    /// Jobs that run at once at most, of all queues together.
    pub threads: usize,
    /// The processors of which queues take shares.
    pub cores: usize,
    /// How long others wait for this process before its jobs run again.
    pub lease: Duration,
    /// How often the queues are looked at if nobody in this process adds something.
    pub idle: Duration,
    /// The topics that it takes, as patterns of queues; all if there are none.
    pub takes: Vec<TopicPattern>,
    /// Whether those are left to it by others as long as it lives.
    pub is_reserving: bool,
    /// How long jobs that run may go on when the worker stops.
    pub drain: Duration,
    /// What has to be the same in all processes on the database, by names: such as which folder holds their blobs. See
    /// [`Queues::unlike`].
    pub facts: BTreeMap<String, String>,
    /// The clock by which ended jobs are removed.
    pub removal_clock: RemovalClock,
}

/// The clock by which ended jobs are removed for their age: one that jumped ahead must not make all of them look old.
#[derive(Clone)]
pub struct RemovalClock(Arc<dyn Fn(SystemTime) -> SystemTime + Send + Sync>);

impl RemovalClock {
    /// Asks `trusted` for the time that is trusted, given what the clock says. It is called now and then where jobs are
    /// claimed, so it must not take long.
    #[must_use]
    pub fn new(trusted: impl Fn(SystemTime) -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(trusted))
    }

    /// Returns the trusted time, which is never later than `now`.
    pub(crate) fn at(&self, now: SystemTime) -> SystemTime {
        (self.0)(now).min(now)
    }
}

impl Default for RemovalClock {
    /// Trusts what the clock says.
    fn default() -> Self {
        Self::new(|now| now)
    }
}

impl fmt::Debug for RemovalClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemovalClock")
    }
}

impl WorkerOptions {
    /// Returns the usual ones; `name` is one that no other process has.
    #[must_use]
    pub fn new(role: &str, name: String) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            role: role.to_owned(),
            name,
            threads: 64,
            cores,
            lease: Duration::from_secs(60),
            idle: Duration::from_secs(1),
            takes: Vec::new(),
            is_reserving: false,
            drain: Duration::from_secs(20),
            facts: BTreeMap::new(),
            removal_clock: RemovalClock::default(),
        }
    }
}

/// Carries out jobs. Clones are the same worker.
#[derive(Clone)]
pub struct Worker {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) queues: Queues,
    pub(crate) options: WorkerOptions,
    handlers: RwLock<Vec<(TopicPattern, Arc<dyn Handler>)>>,
    config: RwLock<Arc<QueueSet>>,
    /// Jobs by queue: those that run, and those that are claimed and wait for their turn.
    load: Mutex<BTreeMap<String, (usize, usize)>>,
    /// Why queues cannot be worked off at the moment, if they cannot.
    fault: Mutex<Option<String>>,
}

/// A job that was claimed.
pub(crate) struct Held {
    pub(crate) topic: String,
    pub(crate) attempt: u32,
    pub(crate) run_at: SystemTime,
    pub(crate) context: JobContext,
    pub(crate) queue: String,
    /// Whether its attempt is counted in the table.
    pub(crate) is_counted: bool,
    /// Whether someone asked for it to stop.
    pub(crate) is_stopped: bool,
}

/// What the loop of a worker knows.
pub(crate) struct Desk {
    pub(crate) floor: Arc<Floor>,
    pub(crate) held: HashMap<JobId, Held>,
    /// Who was served last, by queue.
    pub(crate) served: HashMap<String, String>,
    /// How long a job of a queue takes, roughly.
    pub(crate) pace: HashMap<String, Duration>,
    /// What ended and is not stored yet.
    pub(crate) ended: Vec<Ended>,
    /// When leases were renewed.
    pub(crate) renewed: Option<Instant>,
    /// When jobs were asked for that someone stopped, and progress was stored.
    pub(crate) looked: Option<Instant>,
    /// Topics of the table, for ordered queues.
    pub(crate) topics: Vec<String>,
    pub(crate) is_stopping: bool,
    /// Whether more jobs that ended long ago wait to be removed.
    pub(crate) is_pruning: bool,
    is_failing: bool,
}

impl Worker {
    /// Makes a worker without handlers, with the queues that come with the program.
    #[must_use]
    pub fn new(queues: Queues, options: WorkerOptions) -> Self {
        let inner = Inner {
            queues,
            options,
            handlers: RwLock::default(),
            config: RwLock::new(Arc::new(QueueSet::default())),
            load: Mutex::default(),
            fault: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Lets a handler have the jobs of its topic. Of several whose patterns cover a topic, the closest gets it.
    pub fn register(&self, handler: Arc<dyn Handler>) {
        let pattern = TopicPattern::of_handler(handler.topic());
        self.inner.handlers.write().push((pattern, handler));
        self.inner.queues.ring();
    }

    /// Replaces the configurations of queues. What is claimed already is carried out as before.
    pub fn configure(&self, queues: Vec<QueueConfig>) {
        *self.inner.config.write() = Arc::new(QueueSet::new(queues));
        self.inner.queues.ring();
    }

    /// Returns the queues as they are configured now.
    #[must_use]
    pub fn queue_set(&self) -> Arc<QueueSet> {
        self.inner.config.read().clone()
    }

    /// Returns the stored queues.
    #[must_use]
    pub fn queues(&self) -> &Queues {
        &self.inner.queues
    }

    /// Returns the options.
    #[must_use]
    pub fn options(&self) -> &WorkerOptions {
        &self.inner.options
    }

    /// Returns the topics that have a handler here, as patterns.
    #[must_use]
    pub fn handled(&self) -> Vec<String> {
        self.inner.handlers.read().iter().map(|(pattern, _)| pattern.text().to_owned()).collect()
    }

    /// Tells whether some handler here takes a topic.
    #[must_use]
    pub fn handles(&self, topic: &str) -> bool {
        self.inner.handler_of(topic).is_some()
    }

    /// Returns for each queue that has any how many jobs run in this process, and how many are claimed and wait.
    #[must_use]
    pub fn load(&self) -> BTreeMap<String, (usize, usize)> {
        self.inner.load.lock().clone()
    }

    /// Returns why queues cannot be worked off at the moment; nothing if they can.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        self.inner.fault.lock().clone()
    }

    /// Works until `stop` turns true, then lets running jobs end.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let (sender, mut ended) = mpsc::unbounded_channel();
        let mut desk = Desk::new(Floor::new(self.inner.options.threads, sender));
        while !*stop.borrow() {
            let wait = self.round(&mut desk, &mut ended).await;
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.inner.queues.rung() => {}
                Some(one) = ended.recv() => desk.ended.push(one),
                _ = stop.changed() => {}
            }
        }
        self.drain(&mut desk, &mut ended).await;
    }

    /// Stores what ended and begins what may run. Returns how long to wait for the next round.
    async fn round(&self, desk: &mut Desk, ended: &mut mpsc::UnboundedReceiver<Ended>) -> Duration {
        while let Ok(one) = ended.try_recv() {
            desk.ended.push(one);
        }
        let wait = match self.inner.write_round(desk, SystemTime::now()).await {
            Ok(wait) => {
                if std::mem::take(&mut desk.is_failing) {
                    info!("queues can be worked off again");
                    *self.inner.fault.lock() = None;
                }
                wait
            }
            Err(failure) => {
                let reason = chain(&failure);
                if !std::mem::replace(&mut desk.is_failing, true) {
                    error!(reason, "queues cannot be worked off");
                }
                *self.inner.fault.lock() = Some(reason);
                // What ended meanwhile is kept, and stored with the next round that succeeds.
                tokio::time::sleep(FAILING).await;
                Duration::ZERO
            }
        };
        desk.floor.begin();
        *self.inner.load.lock() = desk.floor.load();
        wait
    }

    /// Lets running jobs end, tells those that ask to stop, and gives back the rest.
    async fn drain(&self, desk: &mut Desk, ended: &mut mpsc::UnboundedReceiver<Ended>) {
        desk.is_stopping = true;
        let until = Instant::now() + self.inner.options.drain;
        desk.floor.clear_ready(|_| true);
        for held in desk.held.values() {
            held.context.cancel();
        }
        loop {
            while let Ok(one) = ended.try_recv() {
                desk.ended.push(one);
            }
            if let Err(failure) = self.inner.write_round(desk, SystemTime::now()).await {
                warn!(reason = %chain(&failure), "what ended cannot be stored");
            }
            let runs = desk.held.values().any(|held| held.context.began().is_some());
            let left = until.saturating_duration_since(Instant::now());
            if !runs || left.is_zero() {
                break;
            }
            tokio::select! {
                Some(one) = ended.recv() => desk.ended.push(one),
                () = tokio::time::sleep(left.min(self.inner.options.lease / 3)) => {}
            }
        }
        if let Err(failure) = self.inner.leave(desk).await {
            warn!(reason = %chain(&failure), "the worker could not say that it ends");
        }
        self.inner.load.lock().clear();
    }
}

/// How long a worker waits for a database that fails.
const FAILING: Duration = Duration::from_millis(500);

impl Inner {
    /// Returns the handler of a topic.
    pub(crate) fn handler_of(&self, topic: &str) -> Option<Arc<dyn Handler>> {
        let handlers = self.handlers.read();
        let covering = handlers.iter().filter(|(pattern, _)| pattern.covers(topic));
        covering.max_by_key(|(pattern, _)| pattern.closeness()).map(|(_, handler)| handler.clone())
    }

    pub(crate) fn queue_set(&self) -> Arc<QueueSet> {
        self.config.read().clone()
    }
}

impl Desk {
    fn new(floor: Arc<Floor>) -> Self {
        Self {
            floor,
            held: HashMap::new(),
            served: HashMap::new(),
            pace: HashMap::new(),
            ended: Vec::new(),
            renewed: None,
            looked: None,
            topics: Vec::new(),
            is_stopping: false,
            is_pruning: false,
            is_failing: false,
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("options", &self.inner.options).finish_non_exhaustive()
    }
}
