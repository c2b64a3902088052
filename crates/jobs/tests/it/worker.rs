//! The worker: how many run at once, how often again, what stops, who takes what.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tympan_jobs::{
    Job, JobContext, JobFilter, JobHandler, JobOutcome, JobQueues, JobState, JobWorker,
    JobWorkerOptions, MaxParallel, NewJob, QUEUE_FACTORY, QueueConfig, QueueKind, RemovalClock,
    ScheduleRule, TopicPattern,
};
use tympan_testkit::condition_wait::wait_until_async;

use crate::place::{Place, both};

type Work = dyn Fn(&Job, &JobContext) -> JobOutcome + Send + Sync;

/// A handler that does what a test says, and tells of every end.
struct Doing {
    topic: &'static str,
    work: Box<Work>,
    ended: mpsc::UnboundedSender<Job>,
}

impl JobHandler for Doing {
    fn topic(&self) -> &str {
        self.topic
    }

    fn run(&self, job: &Job, context: &JobContext) -> JobOutcome {
        let outcome = (self.work)(job, context);
        self.ended.send(job.clone()).ok();
        outcome
    }
}

struct Running {
    worker: JobWorker,
    queues: JobQueues,
    ended: mpsc::UnboundedReceiver<Job>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Running {
    async fn next(&mut self) -> Job {
        self.ended.recv().await.unwrap()
    }

    async fn stop(self) {
        self.stop.send_replace(true);
        self.task.await.unwrap();
    }

    /// Waits until the table says what the test expects.
    async fn until(&self, is_so: impl Fn(&[Job]) -> bool) -> Vec<Job> {
        loop {
            let jobs = self.queues.list_jobs(&JobFilter::default(), 1000).await.unwrap();
            if is_so(&jobs) {
                return jobs;
            }
            tokio::task::yield_now().await;
        }
    }
}

fn options(name: &str) -> JobWorkerOptions {
    JobWorkerOptions {
        cores: 2,
        poll_interval: Duration::from_millis(20),
        ..JobWorkerOptions::new("author", name.to_owned())
    }
}

fn start_with(
    queues: JobQueues,
    options: JobWorkerOptions,
    configs: Vec<QueueConfig>,
    topic: &'static str,
    work: impl Fn(&Job, &JobContext) -> JobOutcome + Send + Sync + 'static,
) -> Running {
    let (sender, ended) = mpsc::unbounded_channel();
    let worker = JobWorker::new(queues.clone(), options);
    worker.set_queue_configs(configs);
    worker.register_handler(Arc::new(Doing { topic, work: Box::new(work), ended: sender }));
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(worker.clone().run(stopped));
    Running { worker, queues, ended, stop, task }
}

async fn start(
    place: &Place,
    configs: Vec<QueueConfig>,
    work: impl Fn(&Job, &JobContext) -> JobOutcome + Send + Sync + 'static,
) -> Running {
    start_with(place.open().await, options("w"), configs, "a/**", work)
}

fn queue(name: &str, topic: &str, parallel: f64) -> QueueConfig {
    QueueConfig {
        max_parallel: MaxParallel::from_number(parallel),
        retry_delay: Duration::ZERO,
        pid: format!("{QUEUE_FACTORY}-{name}"),
        ..QueueConfig::new(name, &[topic])
    }
}

fn jobs(topic: &str, count: usize) -> Vec<NewJob> {
    (0..count).map(|number| NewJob::new(topic, json!(number))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_job_runs_once_and_not_more_at_once_than_allowed() {
    for place in both() {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (counted, peak) = (now.clone(), most.clone());
        let mut running = start(&place, vec![queue("q", "a/*", 2.0)], move |_, _| {
            peak.fetch_max(counted.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::yield_now();
            counted.fetch_sub(1, Ordering::SeqCst);
            JobOutcome::Done
        })
        .await;
        running.queues.add_jobs(jobs("a/b", 300), SystemTime::now()).await.unwrap();
        let mut seen = Vec::new();
        for _ in 0..300 {
            seen.push(running.next().await.properties.as_i64().unwrap());
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..300).collect::<Vec<_>>());
        assert!((1..=2).contains(&most.load(Ordering::SeqCst)), "{most:?}");
        running.until(<[Job]>::is_empty).await;
        let topics = running.queues.statistics().topic_statistics().await.unwrap();
        assert_eq!(topics["a/b"].finished, 300);
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_tried_as_often_as_its_queue_says() {
    for place in both() {
        let twice = QueueConfig { retries: Some(2), ..queue("q", "a/*", 1.0) };
        let mut running = start(&place, vec![twice], |job, context| {
            assert_eq!(context.is_last_attempt(), job.attempt == 3);
            JobOutcome::Retry { after: None, reason: format!("no {}", job.attempt) }
        })
        .await;
        running.queues.add_jobs(jobs("a/b", 1), SystemTime::now()).await.unwrap();
        for attempt in 1..=3 {
            assert_eq!(running.next().await.attempt, attempt);
        }
        let left = running.until(|jobs| jobs[0].state == JobState::GivenUp).await;
        assert_eq!((left[0].attempt, left[0].last_error.as_deref()), (3, Some("no 3")));
        assert!(running.queues.retry_job(left[0].id, SystemTime::now()).await.unwrap());
        assert_eq!(running.next().await.attempt, 1, "a person's retry begins anew");
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_a_failure_with_its_reason() {
    let place = Place::sqlite();
    let running = start(&place, Vec::new(), |_, _| panic!("no such thing")).await;
    running.queues.add_jobs(jobs("a/b", 1), SystemTime::now()).await.unwrap();
    let left = running.until(|jobs| jobs[0].state == JobState::Error).await;
    assert_eq!(left[0].last_error.as_deref(), Some("the handler panicked: no such thing"));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_look_again_are_not_given_up() {
    let place = Place::sqlite();
    let once = QueueConfig { retries: Some(0), ..queue("q", "a/*", 1.0) };
    let looks = AtomicUsize::new(0);
    let mut running = start(&place, vec![once], move |_, _| {
        if looks.fetch_add(1, Ordering::SeqCst) < 5 {
            JobOutcome::Wait { after: Duration::from_millis(1) }
        } else {
            JobOutcome::Done
        }
    })
    .await;
    running.queues.add_jobs(jobs("a/b", 1), SystemTime::now()).await.unwrap();
    for _ in 0..6 {
        assert_eq!(running.next().await.attempt, 1);
    }
    running.until(<[Job]>::is_empty).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn running_jobs_tell_how_far_they_are_and_hear_that_they_stop() {
    for place in both() {
        let mut running = start(&place, Vec::new(), |_, context| {
            context.report_progress(3, 7, "drawing");
            while !context.is_cancelled() {
                context.renew_lease().unwrap();
                std::thread::yield_now();
            }
            JobOutcome::Cancelled
        })
        .await;
        running.queues.add_jobs(jobs("a/b", 1), SystemTime::now()).await.unwrap();
        let seen = running.until(|jobs| jobs[0].progress.is_some()).await;
        let progress = seen[0].progress.clone().unwrap();
        assert_eq!((progress.completed, progress.total, &*progress.message), (3, 7, "drawing"));
        assert!(running.queues.request_stop(seen[0].id).await.unwrap());
        running.next().await;
        running.until(|jobs| jobs[0].state == JobState::Stopped).await;
        assert_eq!(
            running.queues.statistics().topic_statistics().await.unwrap()["a/b"].cancelled,
            1
        );
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ordered_queues_keep_their_order_over_topics_and_retries() {
    for place in both() {
        let ordered = QueueConfig { kind: QueueKind::Ordered, ..queue("q", "a/*", 8.0) };
        let failed = AtomicUsize::new(0);
        let mut running = start(&place, vec![ordered], move |job, _| {
            if job.properties == json!(1) && failed.fetch_add(1, Ordering::SeqCst) < 2 {
                return JobOutcome::Retry { after: None, reason: "not yet".to_owned() };
            }
            JobOutcome::Done
        })
        .await;
        let all = (0..12).map(|number| NewJob::new(format!("a/{}", number % 3), json!(number)));
        running.queues.add_jobs(all.collect(), SystemTime::now()).await.unwrap();
        let mut seen = Vec::new();
        for _ in 0..14 {
            seen.push(running.next().await.properties.as_i64().unwrap());
        }
        assert_eq!(seen, [0, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_queue_begins_nothing_and_others_go_on() {
    let place = Place::sqlite();
    let configs = vec![queue("one", "a/one", 1.0), queue("two", "a/two", 1.0)];
    let mut running = start(&place, configs, |_, _| JobOutcome::Done).await;
    running.queues.pause_queue("one", "ann", SystemTime::now()).await.unwrap();
    running.queues.add_jobs(jobs("a/one", 3), SystemTime::now()).await.unwrap();
    running.queues.add_jobs(jobs("a/two", 3), SystemTime::now()).await.unwrap();
    for _ in 0..3 {
        assert_eq!(running.next().await.topic, "a/two");
    }
    assert_eq!(running.queues.statistics().count_jobs("a/one").await.unwrap(), 3);
    assert!(running.queues.resume_queue("one").await.unwrap());
    for _ in 0..3 {
        assert_eq!(running.next().await.topic, "a/one");
    }
    running.stop().await;
}

/// Source 000: a queue for one workflow model, made while the general one is busy.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_for_one_model_takes_its_jobs_at_once() {
    let place = Place::sqlite();
    let general = "a/job/etc/workflow/models/dam-xmp-writeback/jcr_content/model";
    let special = "a/job/etc/workflow/models/dam/update_asset/jcr_content/model";
    let gate = Arc::new(Mutex::new(()));
    let (closed, is_special) = (gate.clone(), special);
    let mut running = start(&place, vec![queue("general", "a/job*", 1.0)], move |job, _| {
        if job.topic != is_special {
            drop(closed.lock());
        }
        JobOutcome::Done
    })
    .await;
    let blocked = gate.lock_arc_or_panic();
    running.queues.add_jobs(jobs(general, 1), SystemTime::now()).await.unwrap();
    running.until(|jobs| jobs[0].state == JobState::Active).await;
    running.queues.add_jobs(jobs(special, 2), SystemTime::now()).await.unwrap();
    let seen = running.queues.statistics().topic_statistics().await.unwrap();
    assert!(seen.contains_key(special), "topics are listed with their model");
    assert_eq!(running.worker.queue_set().queue_for_topic(special).name, "general");
    running
        .worker
        .set_queue_configs(vec![queue("general", "a/job*", 1.0), queue("assets", special, 0.5)]);
    for _ in 0..2 {
        assert_eq!(running.next().await.topic, special, "the general queue is still busy");
    }
    assert_eq!(running.worker.queue_set().queue_for_topic(special).name, "assets");
    assert_eq!(running.worker.queue_set().queue_for_topic(general).name, "general");
    drop(blocked);
    assert_eq!(running.next().await.topic, general);
    running.stop().await;
}

/// A lock whose guard may be held over awaits of a test.
trait LockForTest {
    fn lock_arc_or_panic(&self) -> Box<dyn std::any::Any + Send>;
}

impl LockForTest for Arc<Mutex<()>> {
    fn lock_arc_or_panic(&self) -> Box<dyn std::any::Any + Send> {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let (held, is_held) = std::sync::mpsc::channel();
        let lock = self.clone();
        std::thread::spawn(move || {
            let guard = lock.lock();
            held.send(()).unwrap();
            // Ends when the sender is dropped.
            receiver.recv().ok();
            drop(guard);
        });
        is_held.recv().unwrap();
        Box::new(sender)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_living_process_reserves_is_left_to_it() {
    for place in both() {
        let own = JobWorkerOptions {
            accepted_topics: vec![TopicPattern::parse_queue_pattern("a/dam/*")],
            reserves_topics: true,
            ..options("assets")
        };
        let mut assets =
            start_with(place.open().await, own, Vec::new(), "a/**", |_, _| JobOutcome::Done);
        while assets.queues.statistics().live_workers(SystemTime::now()).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        let mut author = start(&place, Vec::new(), |_, _| JobOutcome::Done).await;
        author.queues.add_jobs(jobs("a/dam/x", 20), SystemTime::now()).await.unwrap();
        author.queues.add_jobs(jobs("a/b", 20), SystemTime::now()).await.unwrap();
        for _ in 0..20 {
            assert_eq!(assets.next().await.topic, "a/dam/x");
            assert_eq!(author.next().await.topic, "a/b");
        }
        assets.stop().await;
        author.queues.add_jobs(jobs("a/dam/x", 1), SystemTime::now()).await.unwrap();
        assert_eq!(author.next().await.topic, "a/dam/x", "nobody else is there");
        author.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stops_lets_jobs_end_and_gives_back_the_rest() {
    for place in both() {
        let running = start(&place, vec![queue("q", "a/*", 1.0)], |job, context| {
            while !context.is_cancelled() {
                std::thread::yield_now();
            }
            if job.properties == json!(0) { JobOutcome::Cancelled } else { JobOutcome::Done }
        })
        .await;
        running.queues.add_jobs(jobs("a/b", 3), SystemTime::now()).await.unwrap();
        running.until(|jobs| jobs[0].state == JobState::Active).await;
        let queues = running.queues.clone();
        running.stop().await;
        let left = queues.list_jobs(&JobFilter::default(), 10).await.unwrap();
        let states: Vec<_> = left.iter().map(|job| (job.state, job.attempt)).collect();
        assert_eq!(states, [(JobState::Queued, 0); 3], "what was stopped by the stop is not spent");
        assert!(queues.statistics().live_workers(SystemTime::now()).await.unwrap().is_empty());
    }
}

/// Jobs that were claimed ahead have no attempt to give back: counted below zero, they looked like spent ones.
#[tokio::test(flavor = "multi_thread")]
async fn looks_of_short_jobs_claimed_ahead_cost_no_attempts() {
    for place in both() {
        let seen = Mutex::new(std::collections::BTreeSet::new());
        let twice = QueueConfig { retries: Some(1), ..queue("q", "a/*", 1.0) };
        let mut running = start(&place, vec![twice], move |job, _| {
            assert_eq!(job.attempt, 1);
            if seen.lock().insert(job.id) {
                JobOutcome::Wait { after: Duration::ZERO }
            } else {
                JobOutcome::Done
            }
        })
        .await;
        running.queues.add_jobs(jobs("a/b", 200), SystemTime::now()).await.unwrap();
        for _ in 0..400 {
            running.next().await;
        }
        running.until(<[Job]>::is_empty).await;
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_processes_keep_dying_is_given_up() {
    let place = Place::sqlite();
    let queues = place.open().await;
    queues.add_jobs(jobs("a/b", 1), SystemTime::now()).await.unwrap();
    let claim = tympan_jobs::JobClaim { worker: "dead", lease: Duration::ZERO };
    for attempt in 1..=3 {
        let job = queues.claim_jobs("a/b", "", 1, claim, SystemTime::now()).await.unwrap();
        assert_eq!(job[0].attempt, attempt);
    }
    let twice = QueueConfig { retries: Some(2), ..queue("q", "a/*", 1.0) };
    let running = start(&place, vec![twice], |_, _| panic!("it is not begun again")).await;
    let left = running.until(|jobs| jobs[0].state == JobState::Error).await;
    let reason = left[0].last_error.as_deref().unwrap();
    assert_eq!(reason, "the process that ran it ended in each of 3 attempts");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_that_keep_jobs_show_what_is_done_until_it_is_old() {
    let place = Place::sqlite();
    let keeping = QueueConfig { keeps_finished_jobs: true, ..queue("q", "a/*", 1.0) };
    let running = start(&place, vec![keeping], |_, _| JobOutcome::Done).await;
    running.queues.add_jobs(jobs("a/b", 1), SystemTime::now()).await.unwrap();
    running.until(|jobs| jobs[0].state == JobState::Succeeded).await;
    let past = SystemTime::UNIX_EPOCH;
    assert_eq!(running.queues.prune_ended_jobs(past, past).await.unwrap(), 0);
    let now = SystemTime::now();
    assert_eq!(running.queues.prune_ended_jobs(now, past).await.unwrap(), 1);
    running.stop().await;
}

/// What the clock says now makes nothing old that it does not make old for whoever looks after it.
#[tokio::test(flavor = "multi_thread")]
async fn ended_jobs_go_by_a_clock_that_has_not_jumped() {
    let long_ago = SystemTime::now() - Duration::from_hours(60 * 24);
    for (trusted, left) in [(long_ago, 1), (SystemTime::now(), 0)] {
        let place = Place::sqlite();
        let queues = place.open().await;
        let id = queues.add_jobs(jobs("a/b", 1), long_ago).await.unwrap()[0];
        let claim = tympan_jobs::JobClaim { worker: "dead", lease: Duration::from_secs(60) };
        queues.claim_jobs("a/b", "", 1, claim, long_ago).await.unwrap();
        queues.fail_job(id, "dead", "no", None, long_ago).await.unwrap();
        let clock = RemovalClock::new(move |_| trusted);
        let options = JobWorkerOptions { removal_clock: clock, ..options("w") };
        let mut running = start_with(queues, options, Vec::new(), "a/**", |_, _| JobOutcome::Done);
        // The first round removes, and claims this.
        running.queues.add_jobs(jobs("a/c", 1), SystemTime::now()).await.unwrap();
        running.next().await;
        running.until(|jobs| jobs.iter().all(|job| job.topic == "a/b")).await;
        let of_old = running.queues.list_topic("a/b", 10).await.unwrap();
        assert_eq!(of_old.len(), left);
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_add_their_job_and_move_on() {
    for place in both() {
        let queues = place.open().await;
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let job = NewJob::new("a/b", json!("again"));
        queues.schedules().add("nightly", "0 0 2 * * ?", &job, long_ago).await.unwrap();
        let first = queues.schedules().list().await.unwrap();
        assert_eq!(
            first[0].next_run,
            ScheduleRule::parse("0 0 2 * * ?").unwrap().next_run_after(long_ago)
        );
        queues.schedules().add("nightly", "0 0 2 * * ?", &job, SystemTime::now()).await.unwrap();
        assert_eq!(
            queues.schedules().list().await.unwrap(),
            first,
            "what stays the same keeps its time"
        );
        let mut running =
            start_with(queues, options("w"), Vec::new(), "a/**", |_, _| JobOutcome::Done);
        assert_eq!(running.next().await.properties, json!("again"));
        running.until(<[Job]>::is_empty).await;
        let next = running.queues.schedules().list().await.unwrap()[0].next_run.unwrap();
        assert!(next > SystemTime::now(), "times that passed are made up for once");
        assert!(
            running.queues.schedules().add("bad", "0 0 0 30 2 ?", &job, long_ago).await.is_err()
        );
        assert!(running.queues.schedules().remove("nightly").await.unwrap());
        running.stop().await;
    }
}

/// The count that row A4 rests on: jobs share transactions, so that a job costs a small part of a sync. One write a job,
/// in adding or in running, would be ten times this bound.
#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_share_one_write() {
    const JOBS: usize = 3000;
    for place in both() {
        let handle = |_: &Job, _: &JobContext| JobOutcome::Done;
        let mut running = start(&place, vec![queue("q", "a/*", 8.0)], handle).await;
        let before = running.queues.write_count();
        running.queues.add_jobs(jobs("a/b", JOBS), SystemTime::now()).await.unwrap();
        for _ in 0..JOBS {
            running.next().await;
        }
        running.until(<[Job]>::is_empty).await;
        let writes = running.queues.write_count() - before;
        println!("{writes} writes for {JOBS} jobs");
        assert!(writes <= JOBS as u64 / 5, "{writes} writes for {JOBS} jobs");
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_that_add_at_the_same_time_share_one_write() {
    const CALLERS: usize = 500;
    let place = crate::place::Place::sqlite();
    let queues = place.open().await;
    let before = queues.write_count();
    let callers = (0..CALLERS).map(|number| {
        let (queues, job) = (queues.clone(), NewJob::new("a/b", json!(number)));
        tokio::spawn(async move { queues.add_job(job, SystemTime::now()).await })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap().unwrap();
    }
    let writes = queues.write_count() - before;
    println!("{writes} writes for {CALLERS} jobs");
    assert!(writes <= CALLERS as u64 / 2, "{writes} writes for {CALLERS} jobs");
}

/// As on a full disk: the engine ends transactions by itself. When there is room again, queues are worked off.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_goes_on_when_the_disk_has_space_again() {
    let dir = tempfile::tempdir().unwrap();
    let state = tympan_testkit::StateDatabase::open(&dir.path().join("state.db")).await.unwrap();
    state.migrate_tables("jobs", tympan_jobs::JOB_MIGRATIONS).await.unwrap();
    for step in [
        "CREATE TABLE full (id BIGINT)",
        "CREATE TRIGGER no_room BEFORE UPDATE ON job WHEN EXISTS (SELECT 1 FROM full) \
         BEGIN SELECT RAISE(ROLLBACK, 'the disk is full'); END",
        "INSERT INTO full VALUES (1)",
    ] {
        sqlx::query(step).execute(state.pool()).await.unwrap();
    }
    let queues = JobQueues::new(state.pool().clone());
    let mut running =
        start_with(queues.clone(), options("one"), Vec::new(), "a/b", |_, _| JobOutcome::Done);
    queues.add_job(NewJob::new("a/b", json!({})), SystemTime::now()).await.unwrap();
    wait_until_async("the worker tells of the full disk", async || {
        running.worker.claim_fault().is_some_and(|fault| fault.contains("the disk is full"))
    })
    .await;
    sqlx::query("DELETE FROM full").execute(state.pool()).await.unwrap();
    assert_eq!(running.next().await.topic, "a/b");
    wait_until_async("the worker goes on", async || running.worker.claim_fault().is_none()).await;
    running.stop().await;
}
