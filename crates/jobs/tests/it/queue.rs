//! The queues: order, leases, retries, keys.

use std::time::{Duration, SystemTime};

use serde_json::json;
use tympan_jobs::{Claim, Error, JobState, MIGRATIONS, NewJob, Order, Queues};
use tympan_testkit::State;

const LEASE: Duration = Duration::from_secs(60);

async fn open(dir: &tempfile::TempDir) -> Queues {
    let state = State::open(&dir.path().join("state.db")).await.unwrap();
    state.migrate("jobs", MIGRATIONS).await.unwrap();
    Queues::new(state.pool().clone())
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

fn new_job<'a>(payload: &'a serde_json::Value, key: Option<&'a str>) -> NewJob<'a> {
    NewJob { queue: "q", topic: "t", payload, key, user: "ann" }
}

fn claim(worker: &str, order: Order) -> Claim<'_> {
    Claim { queue: "q", order, worker, lease: LEASE }
}

#[tokio::test]
async fn jobs_come_in_order_and_once() {
    let dir = tempfile::tempdir().unwrap();
    let queues = open(&dir).await;
    for number in 0..3 {
        queues.add(new_job(&json!({ "number": number }), None), at(0)).await.unwrap();
    }
    for number in 0..3 {
        let job = queues.claim(claim("w", Order::Loose), at(1)).await.unwrap().unwrap();
        assert_eq!(
            (&job.payload["number"], job.attempt, job.user.as_str()),
            (&json!(number), 1, "ann")
        );
        queues.finish(job.id, "w").await.unwrap();
    }
    assert!(queues.claim(claim("w", Order::Loose), at(1)).await.unwrap().is_none());
    assert_eq!(queues.count("q").await.unwrap(), 0);
}

#[tokio::test]
async fn a_dead_workers_job_runs_again_after_its_lease() {
    let dir = tempfile::tempdir().unwrap();
    let queues = open(&dir).await;
    queues.add(new_job(&json!(1), None), at(0)).await.unwrap();
    let job = queues.claim(claim("dead", Order::Strict), at(0)).await.unwrap().unwrap();
    assert!(queues.claim(claim("w", Order::Strict), at(59)).await.unwrap().is_none());
    assert_eq!(queues.next_run("q", Order::Strict).await.unwrap(), Some(at(60)));
    let again = queues.claim(claim("w", Order::Strict), at(60)).await.unwrap().unwrap();
    assert_eq!((again.id, again.attempt), (job.id, 2));
    assert!(matches!(queues.finish(job.id, "dead").await, Err(Error::LeaseLost(_))));
    queues.finish(again.id, "w").await.unwrap();
}

#[tokio::test]
async fn a_strict_queue_waits_for_its_oldest_job() {
    let dir = tempfile::tempdir().unwrap();
    let queues = open(&dir).await;
    queues.add(new_job(&json!("first"), None), at(0)).await.unwrap();
    queues.add(new_job(&json!("second"), None), at(0)).await.unwrap();
    let first = queues.claim(claim("w", Order::Strict), at(0)).await.unwrap().unwrap();
    assert!(queues.claim(claim("v", Order::Strict), at(0)).await.unwrap().is_none());
    queues.fail(first.id, "w", "refused", Some(at(30))).await.unwrap();
    assert!(queues.claim(claim("w", Order::Strict), at(29)).await.unwrap().is_none());
    let loose = queues.claim(claim("v", Order::Loose), at(29)).await.unwrap().unwrap();
    assert_eq!(loose.payload, json!("second"));
    let first = queues.claim(claim("w", Order::Strict), at(30)).await.unwrap().unwrap();
    assert_eq!((first.payload, first.last_error.as_deref()), (json!("first"), Some("refused")));
}

#[tokio::test]
async fn a_job_given_up_stays_until_someone_acts_and_blocks_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let queues = open(&dir).await;
    queues.add(new_job(&json!("bad"), None), at(0)).await.unwrap();
    queues.add(new_job(&json!("good"), None), at(0)).await.unwrap();
    let bad = queues.claim(claim("w", Order::Strict), at(0)).await.unwrap().unwrap();
    queues.fail(bad.id, "w", "never works", None).await.unwrap();
    let good = queues.claim(claim("w", Order::Strict), at(0)).await.unwrap().unwrap();
    assert_eq!(good.payload, json!("good"));
    let listed = queues.list("q", 10).await.unwrap();
    assert_eq!(
        listed.iter().map(|job| job.state).collect::<Vec<_>>(),
        [JobState::GivenUp, JobState::Active]
    );
    assert!(queues.retry(bad.id, at(5)).await.unwrap());
    assert!(!queues.cancel(good.id).await.unwrap(), "a running job is not cancelled");
    assert!(queues.cancel(bad.id).await.unwrap());
}

#[tokio::test]
async fn the_same_key_is_the_same_job() {
    let dir = tempfile::tempdir().unwrap();
    let queues = open(&dir).await;
    let one = queues.add(new_job(&json!(1), Some("k")), at(0)).await.unwrap();
    let two = queues.add(new_job(&json!(2), Some("k")), at(0)).await.unwrap();
    assert_eq!((one, queues.count("q").await.unwrap()), (two, 1));
}

#[tokio::test]
async fn jobs_survive_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let queues = open(&dir).await;
    queues.add(new_job(&json!({ "path": "/content" }), None), at(0)).await.unwrap();
    queues.claim(claim("w", Order::Strict), at(0)).await.unwrap().unwrap();
    drop(queues);
    let queues = open(&dir).await;
    assert_eq!(queues.release_all().await.unwrap(), 1);
    let job = queues.claim(claim("w", Order::Strict), at(1)).await.unwrap().unwrap();
    assert_eq!((job.payload, job.attempt), (json!({ "path": "/content" }), 2));
}

#[tokio::test]
async fn workers_never_share_a_job() {
    let dir = tempfile::tempdir().unwrap();
    let queues = open(&dir).await;
    for number in 0..40 {
        queues.add(new_job(&json!(number), None), at(0)).await.unwrap();
    }
    let workers = (0..4).map(|worker| {
        let queues = queues.clone();
        tokio::spawn(async move {
            let name = format!("w{worker}");
            let mut done = Vec::new();
            while let Some(job) = queues.claim(claim(&name, Order::Loose), at(1)).await.unwrap() {
                queues.finish(job.id, &name).await.unwrap();
                done.push(job.payload.as_i64().unwrap());
            }
            done
        })
    });
    let mut all = Vec::new();
    for worker in workers.collect::<Vec<_>>() {
        all.extend(worker.await.unwrap());
    }
    all.sort_unstable();
    assert_eq!(all, (0..40).collect::<Vec<_>>());
}

#[tokio::test]
async fn held_jobs_wait_for_their_release_and_survive_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let queues = open(&dir).await;
    let ids = queues
        .add_held(&[new_job(&json!(1), None), new_job(&json!(2), None)], at(0))
        .await
        .unwrap();
    queues.add(new_job(&json!(3), None), at(0)).await.unwrap();
    assert!(
        queues.claim(claim("w", Order::Strict), at(1)).await.unwrap().is_none(),
        "the order holds"
    );
    let late = queues.claim(claim("w", Order::Strict), at(600)).await.unwrap().unwrap();
    assert_eq!((late.id, late.attempt), (ids[0], 1), "nothing is held for ever");
    queues.finish(late.id, "w").await.unwrap();
    let ids = [ids[1], queues.add_held(&[new_job(&json!(2), None)], at(0)).await.unwrap()[0]];
    queues.discard(&ids[1..]).await.unwrap();
    queues.release(&[(ids[0], json!("known by now"))], at(1)).await.unwrap();
    for expected in [json!("known by now"), json!(3)] {
        let job = queues.claim(claim("w", Order::Strict), at(1)).await.unwrap().unwrap();
        assert_eq!(job.payload, expected);
        queues.finish(job.id, "w").await.unwrap();
    }
    queues.add_held(&[new_job(&json!("orphan"), None)], at(2)).await.unwrap();
    drop(queues);
    let queues = open(&dir).await;
    assert_eq!(queues.release_all().await.unwrap(), 1);
    let job = queues.claim(claim("w", Order::Strict), at(3)).await.unwrap().unwrap();
    assert_eq!(job.payload, json!("orphan"));
}

#[tokio::test]
async fn a_follower_and_its_jobs_move_together_and_once() {
    let dir = tempfile::tempdir().unwrap();
    let queues = open(&dir).await;
    assert_eq!(queues.digested("f").await.unwrap(), None);
    assert!(queues.digest("f", (None, "a"), &[], at(0)).await.unwrap());
    let payload = json!("a to b");
    let jobs = [new_job(&payload, None)];
    assert!(queues.digest("f", (Some("a"), "b"), &jobs, at(0)).await.unwrap());
    assert!(
        !queues.digest("f", (Some("a"), "b"), &jobs, at(0)).await.unwrap(),
        "the second is too late"
    );
    assert!(!queues.digest("f", (None, "a"), &jobs, at(0)).await.unwrap());
    assert_eq!(queues.digested("f").await.unwrap().as_deref(), Some("b"));
    assert_eq!(queues.count("q").await.unwrap(), 1);
}
