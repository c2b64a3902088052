//! Very many jobs: lists begin where they are asked to, failed ones are found among those that wait, and what ended long
//! ago goes bit by bit.
//!
//! `TYMPAN_JOBS` says how many; `scripts/torture.sh jobs` makes it 100,000 and prints what was measured.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;
use tokio::sync::watch;
use tympan_jobs::{
    Job, JobContext, JobFilter, JobHandler, JobOutcome, JobState, JobWorker, JobWorkerOptions,
    NewJob,
};
use tympan_testkit::condition_wait::wait_until_async;

use crate::place::both;

/// Jobs of one transaction that adds them.
const PART: usize = 1000;
const YEAR: Duration = Duration::from_secs(365 * 86_400);

struct Failing;

impl JobHandler for Failing {
    fn topic(&self) -> &str {
        "many/failing"
    }

    fn run(&self, _: &Job, _: &JobContext) -> JobOutcome {
        JobOutcome::Failed { reason: "it never works".to_owned() }
    }
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn jobs(topic: &str, count: usize) -> Vec<NewJob> {
    (0..count).map(|number| NewJob::new(topic, json!({ "number": number }))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_are_listed_and_removed_in_parts() {
    let count = number("TYMPAN_JOBS", 5000);
    for place in both() {
        let (queues, now) = (place.open().await, SystemTime::now());
        let timed = |what: &str, begun: Instant| {
            println!("{count} jobs, {what}: {:.0} ms", begun.elapsed().as_secs_f64() * 1e3);
        };
        let begun = Instant::now();
        for part in jobs("many/failing", count).chunks(PART) {
            queues.add_jobs(part.to_vec(), now).await.unwrap();
        }
        timed("added", begun);
        let worker =
            JobWorker::new(queues.clone(), JobWorkerOptions::new("author", "one".to_owned()));
        worker.register_handler(Arc::new(Failing));
        let (stop, stopped) = watch::channel(false);
        let begun = Instant::now();
        let working = tokio::spawn(worker.run(stopped));
        wait_until_async("all jobs are given up", async || {
            queues.statistics().topic_statistics().await.unwrap()["many/failing"].given_up
                >= count as u64
        })
        .await;
        timed("failed", begun);
        stop.send_replace(true);
        working.await.unwrap();
        for part in jobs("many/waiting", count).chunks(PART) {
            queues.add_jobs(part.to_vec(), now).await.unwrap();
        }

        let begun = Instant::now();
        let (mut listed, mut filter) = (0, JobFilter::default());
        filter.state = Some(JobState::Error);
        loop {
            let page = queues.list_jobs(&filter, 1000).await.unwrap();
            assert!(page.windows(2).all(|pair| pair[0].id < pair[1].id), "oldest first");
            assert!(page.iter().all(|job| job.state == JobState::Error));
            listed += page.len();
            filter.after_id = page.last().map(|job| job.id);
            if page.is_empty() {
                break;
            }
        }
        assert_eq!(listed, count);
        timed("those that failed listed, 1000 a page, among as many that wait", begun);
        let begun = Instant::now();
        let topics = queues.statistics().topic_statistics().await.unwrap();
        assert_eq!(
            (topics["many/waiting"].queued, topics["many/failing"].given_up),
            (count as u64, count as u64)
        );
        timed("counted by topic", begun);

        let (begun, before) = (Instant::now(), queues.write_count());
        assert_eq!(
            queues.prune_ended_jobs(now, now).await.unwrap(),
            0,
            "none ended before it was added"
        );
        assert_eq!(queues.prune_ended_jobs(now + YEAR, now + YEAR).await.unwrap(), count as u64);
        timed("removed", begun);
        // Nobody who writes waits for more than a part.
        let transactions = queues.write_count() - before;
        assert!(transactions > count as u64 / 2000, "{transactions} transactions");
        let begun = Instant::now();
        assert_eq!(queues.clear_topic("many/waiting").await.unwrap(), count as u64);
        timed("cleared", begun);
    }
}
