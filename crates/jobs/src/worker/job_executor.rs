//! Runs claimed jobs: each queue with its allowed concurrency, on a bounded number of threads.
//!
//! A thread that ends a job takes the next ready job at once, without waiting for the outcome to be stored.

use std::collections::{BTreeMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tracing::debug;

use crate::worker::job_handler::JobContext;
use crate::worker::thread_pool::ThreadPool;
use crate::{Job, JobHandler, JobId, JobOutcome, JobPriority};

/// An attempt that ended.
pub(crate) struct EndedAttempt {
    pub(crate) id: JobId,
    pub(crate) outcome: JobOutcome,
    pub(crate) run_time: Duration,
}

/// A claimed job with the data needed to run it.
pub(crate) struct ReadyJob {
    pub(crate) job: Job,
    pub(crate) context: JobContext,
    pub(crate) handler: Arc<dyn JobHandler>,
}

/// The current limits of a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueAllowance {
    pub(crate) max_jobs: usize,
    pub(crate) priority: JobPriority,
}

struct LocalQueue {
    allowance: QueueAllowance,
    running_count: usize,
    ready_jobs: VecDeque<ReadyJob>,
}

/// The running and the ready jobs of a process.
pub(crate) struct JobExecutor {
    queues: Mutex<BTreeMap<String, LocalQueue>>,
    pool: ThreadPool,
    thread_limit: usize,
    ended_sender: mpsc::UnboundedSender<EndedAttempt>,
}

impl JobExecutor {
    pub(crate) fn new(threads: usize, ended: mpsc::UnboundedSender<EndedAttempt>) -> Arc<Self> {
        let threads = threads.max(1);
        Arc::new(Self {
            queues: Mutex::default(),
            pool: ThreadPool::new(threads),
            thread_limit: threads,
            ended_sender: ended,
        })
    }

    /// Adds a claimed job.
    pub(crate) fn push_ready(&self, queue: &str, allowance: QueueAllowance, ready_job: ReadyJob) {
        let mut queues = self.queues.lock();
        let local_queue = queues.entry(queue.to_owned()).or_insert_with(|| LocalQueue {
            allowance,
            running_count: 0,
            ready_jobs: VecDeque::new(),
        });
        local_queue.allowance = allowance;
        local_queue.ready_jobs.push_back(ready_job);
    }

    /// Updates the limits of the queues.
    pub(crate) fn update_allowances(&self, allowance: impl Fn(&str) -> Option<QueueAllowance>) {
        for (name, local_queue) in self.queues.lock().iter_mut() {
            if let Some(allowance) = allowance(name) {
                local_queue.allowance = allowance;
            }
        }
    }

    /// Starts the jobs that may run.
    pub(crate) fn start_ready(self: &Arc<Self>) {
        loop {
            let next = {
                let mut queues = self.queues.lock();
                self.take_next_ready(&mut queues)
            };
            let Some((queue, ready_job)) = next else { return };
            let (executor, id) = (self.clone(), ready_job.job.id);
            if let Err(failure) =
                self.pool.run_task(Box::new(move || executor.run_until_idle(queue, ready_job)))
            {
                let reason = format!("cannot start a thread: {failure}");
                let outcome = JobOutcome::Retry { after: None, reason };
                self.ended_sender.send(EndedAttempt { id, outcome, run_time: Duration::ZERO }).ok();
                return;
            }
        }
    }

    /// Runs a job, and then other ready jobs until there are none.
    fn run_until_idle(self: Arc<Self>, mut queue: String, mut ready_job: ReadyJob) {
        loop {
            self.run_job(ready_job);
            let mut queues = self.queues.lock();
            if let Some(local_queue) = queues.get_mut(&queue) {
                local_queue.running_count = local_queue.running_count.saturating_sub(1);
            }
            let Some(next) = self.take_next_ready(&mut queues) else {
                queues.retain(|_, local_queue| {
                    local_queue.running_count > 0 || !local_queue.ready_jobs.is_empty()
                });
                return;
            };
            (queue, ready_job) = next;
        }
    }

    /// Takes the next ready job: of the queue with the highest priority, then of the one with the fewest running.
    fn take_next_ready(
        &self,
        queues: &mut BTreeMap<String, LocalQueue>,
    ) -> Option<(String, ReadyJob)> {
        if queues.values().map(|local_queue| local_queue.running_count).sum::<usize>()
            >= self.thread_limit
        {
            return None;
        }
        let open = queues.iter_mut().filter(|(_, local_queue)| {
            !local_queue.ready_jobs.is_empty()
                && local_queue.running_count < local_queue.allowance.max_jobs
        });
        let (name, local_queue) = open.max_by_key(|(_, local_queue)| {
            (local_queue.allowance.priority, std::cmp::Reverse(local_queue.running_count))
        })?;
        let ready_job = local_queue.ready_jobs.pop_front()?;
        local_queue.running_count += 1;
        Some((name.clone(), ready_job))
    }

    fn run_job(&self, ready_job: ReadyJob) {
        let ReadyJob { job, context, handler } = ready_job;
        let (began, id) = (Instant::now(), job.id);
        // A job whose lease expired while it waited may belong to another worker.
        let outcome = if context.mark_started(SystemTime::now()) {
            let run = AssertUnwindSafe(|| handler.run(&job, &context));
            std::panic::catch_unwind(run).unwrap_or_else(|panic| {
                let reason = format!("the handler panicked: {}", panic_message(&*panic));
                JobOutcome::Failed { reason }
            })
        } else {
            JobOutcome::Wait { after: Duration::ZERO }
        };
        debug!(job = id.0, topic = job.topic, attempt = job.attempt, "job ended");
        // The worker is gone if the process ends before the job.
        self.ended_sender.send(EndedAttempt { id, outcome, run_time: began.elapsed() }).ok();
    }

    /// Returns the number of running and ready jobs of a queue.
    pub(crate) fn count_held(&self, queue: &str) -> usize {
        let queues = self.queues.lock();
        queues
            .get(queue)
            .map_or(0, |local_queue| local_queue.running_count + local_queue.ready_jobs.len())
    }

    /// Returns the numbers of running and ready jobs of each queue.
    pub(crate) fn queue_load(&self) -> BTreeMap<String, (usize, usize)> {
        let queues = self.queues.lock();
        let counts =
            |local_queue: &LocalQueue| (local_queue.running_count, local_queue.ready_jobs.len());
        queues.iter().map(|(name, local_queue)| (name.clone(), counts(local_queue))).collect()
    }

    /// Removes the ready jobs of some queues, which are then not started here, and returns their numbers.
    pub(crate) fn clear_ready(&self, of: impl Fn(&str) -> bool) -> Vec<JobId> {
        let mut queues = self.queues.lock();
        let cleared = queues
            .iter_mut()
            .filter(|(name, _)| of(name))
            .flat_map(|(_, local_queue)| local_queue.ready_jobs.drain(..));
        cleared.map(|ready_job| ready_job.job.id).collect()
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
