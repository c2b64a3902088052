//! The queues: order, leases, retries, keys, on both databases.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::json;
use tympan_jobs::{Error, Job, JobClaim, JobQueues, JobState, NewJob};

use crate::place::{Place, both};

const LEASE: Duration = Duration::from_secs(60);

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

fn new_job(properties: serde_json::Value) -> NewJob {
    NewJob::new("a/t", properties).with_user("ann")
}

fn claim(worker: &str) -> JobClaim<'_> {
    JobClaim { worker, lease: LEASE }
}

async fn ordered(queues: &JobQueues, worker: &str, now: SystemTime) -> Option<Job> {
    queues.claim_in_order(&["a/t"], claim(worker), now).await.unwrap()
}

async fn any(queues: &JobQueues, worker: &str, now: SystemTime) -> Option<Job> {
    queues.claim_jobs("a/t", "", 1, claim(worker), now).await.unwrap().pop()
}

#[tokio::test]
async fn jobs_come_in_order_and_once() {
    for place in both() {
        let queues = place.open().await;
        for number in 0..3 {
            queues.add_job(new_job(json!({ "number": number })), at(0)).await.unwrap();
        }
        for number in 0..3 {
            let job = any(&queues, "w", at(1)).await.unwrap();
            assert_eq!(
                (&job.properties["number"], job.attempt, job.user.as_str()),
                (&json!(number), 1, "ann")
            );
            queues.finish_job(job.id, "w").await.unwrap();
        }
        assert!(any(&queues, "w", at(1)).await.is_none());
        assert_eq!(queues.statistics().count_jobs("a/t").await.unwrap(), 0);
    }
}

#[tokio::test]
async fn a_dead_workers_job_runs_again_after_its_lease() {
    for place in both() {
        let queues = place.open().await;
        queues.add_job(new_job(json!(1)), at(0)).await.unwrap();
        let job = ordered(&queues, "dead", at(0)).await.unwrap();
        assert!(ordered(&queues, "w", at(59)).await.is_none());
        assert_eq!(queues.statistics().next_ordered_run("a/t").await.unwrap(), Some(at(60)));
        let again = ordered(&queues, "w", at(60)).await.unwrap();
        assert_eq!((again.id, again.attempt), (job.id, 2));
        assert!(matches!(queues.finish_job(job.id, "dead").await, Err(Error::LeaseLost(_))));
        assert!(matches!(
            queues.renew_lease(job.id, "dead", LEASE, at(60)).await,
            Err(Error::LeaseLost(_))
        ));
        queues.renew_lease(again.id, "w", LEASE, at(100)).await.unwrap();
        assert!(ordered(&queues, "dead", at(159)).await.is_none());
        queues.finish_job(again.id, "w").await.unwrap();
    }
}

#[tokio::test]
async fn an_ordered_queue_waits_for_its_oldest_job() {
    for place in both() {
        let queues = place.open().await;
        queues.add_job(new_job(json!("first")), at(0)).await.unwrap();
        queues.add_job(new_job(json!("second")), at(0)).await.unwrap();
        let first = ordered(&queues, "w", at(0)).await.unwrap();
        assert!(ordered(&queues, "v", at(0)).await.is_none());
        queues.fail_job(first.id, "w", "refused", Some(at(30)), at(0)).await.unwrap();
        assert!(ordered(&queues, "w", at(29)).await.is_none());
        let loose = any(&queues, "v", at(29)).await.unwrap();
        assert_eq!(loose.properties, json!("second"));
        assert!(ordered(&queues, "w", at(30)).await.is_none(), "one at a time");
        queues.finish_job(loose.id, "v").await.unwrap();
        let first = ordered(&queues, "w", at(30)).await.unwrap();
        assert_eq!(
            (first.properties, first.last_error.as_deref()),
            (json!("first"), Some("refused"))
        );
    }
}

#[tokio::test]
async fn a_job_given_up_stays_until_someone_acts_and_blocks_nobody() {
    for place in both() {
        let queues = place.open().await;
        queues.add_job(new_job(json!("bad")).with_key("k"), at(0)).await.unwrap();
        queues.add_job(new_job(json!("good")), at(0)).await.unwrap();
        let bad = ordered(&queues, "w", at(0)).await.unwrap();
        queues.fail_job(bad.id, "w", "never works", None, at(0)).await.unwrap();
        let good = ordered(&queues, "w", at(0)).await.unwrap();
        assert_eq!(good.properties, json!("good"));
        let listed = queues.list_topic("a/t", 10).await.unwrap();
        assert_eq!(
            listed.iter().map(|job| job.state).collect::<Vec<_>>(),
            [JobState::GivenUp, JobState::Active]
        );
        let next = queues.add_job(new_job(json!("bad")).with_key("k"), at(1)).await.unwrap();
        assert_ne!(next, bad.id, "what was given up keeps nobody from asking again");
        assert!(queues.retry_job(bad.id, at(5)).await.unwrap());
        assert!(!queues.cancel_job(good.id).await.unwrap(), "a running job is not cancelled");
        assert!(queues.cancel_job(bad.id).await.unwrap());
    }
}

#[tokio::test]
async fn the_same_key_is_the_same_job() {
    for place in both() {
        let queues = place.open().await;
        let one = queues.add_job(new_job(json!(1)).with_key("k"), at(0)).await.unwrap();
        let two = queues.add_job(new_job(json!(2)).with_key("k"), at(0)).await.unwrap();
        let other =
            queues.add_job(NewJob::new("a/other", json!(1)).with_key("k"), at(0)).await.unwrap();
        assert_eq!((one, queues.statistics().count_jobs("a/t").await.unwrap()), (two, 1));
        assert_ne!(one, other, "a key belongs to its topic");
        let all = vec![
            new_job(json!(3)),
            new_job(json!(4)).with_key("k"),
            new_job(json!(5)),
            new_job(json!(6)).with_key("l"),
        ];
        let ids = queues.add_jobs(all, at(0)).await.unwrap();
        assert_eq!((ids.len(), ids[1]), (4, one));
        let stored = queues.list_topic("a/t", 10).await.unwrap();
        let of = |at: usize| stored.iter().find(|job| job.id == ids[at]).unwrap();
        assert_eq!(
            [0, 1, 2, 3].map(|at| of(at).properties.clone()),
            [json!(3), json!(1), json!(5), json!(6)]
        );
    }
}

#[tokio::test]
async fn jobs_survive_reopening() {
    for place in both() {
        let queues = place.open().await;
        queues.add_job(new_job(json!({ "path": "/content" })), at(0)).await.unwrap();
        ordered(&queues, "w", at(0)).await.unwrap();
        drop(queues);
        let queues = place.open().await;
        assert_eq!(queues.release_all_claims().await.unwrap(), 1);
        let job = ordered(&queues, "w", at(1)).await.unwrap();
        assert_eq!((job.properties, job.attempt), (json!({ "path": "/content" }), 2));
    }
}

#[tokio::test]
async fn workers_never_share_a_job() {
    for place in both() {
        let queues = place.open().await;
        let jobs = (0..40).map(|number| new_job(json!(number)));
        queues.add_jobs(jobs.collect(), at(0)).await.unwrap();
        let place = Arc::new(place);
        let workers = (0..4).map(|worker| {
            let place = place.clone();
            tokio::spawn(async move {
                // As processes of their own do, which share nothing but the database.
                let queues = place.open().await;
                let name = format!("w{worker}");
                let mut done = Vec::new();
                while done.len() + queues.list_topic("a/t", 1).await.unwrap().len() > done.len() {
                    if let Some(job) = any(&queues, &name, at(1)).await {
                        queues.finish_job(job.id, &name).await.unwrap();
                        done.push(job.properties.as_i64().unwrap());
                    }
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
}

#[tokio::test]
async fn jobs_added_at_once_are_all_there_and_share_their_syncs() {
    for place in both() {
        let queues = place.open().await;
        let adding = (0..200).map(|number| {
            let queues = queues.clone();
            tokio::spawn(
                async move { queues.add_job(new_job(json!(number)), at(0)).await.unwrap() },
            )
        });
        let mut ids = Vec::new();
        for one in adding.collect::<Vec<_>>() {
            ids.push(one.await.unwrap());
        }
        let stored = queues.list_topic("a/t", 1000).await.unwrap();
        for (number, id) in ids.iter().enumerate() {
            let job = stored.iter().find(|job| job.id == *id).unwrap();
            assert_eq!(job.properties, json!(number), "each caller has the number of its own job");
        }
        assert_eq!(stored.len(), 200);
    }
}

#[tokio::test]
async fn held_jobs_wait_for_their_release_and_survive_a_crash() {
    for place in both() {
        let queues = place.open().await;
        let ids = queues
            .held_jobs()
            .add(vec![new_job(json!(1)), new_job(json!(2))], at(0))
            .await
            .unwrap();
        queues.add_job(new_job(json!(3)), at(0)).await.unwrap();
        assert!(ordered(&queues, "w", at(1)).await.is_none(), "the order holds");
        let late = ordered(&queues, "w", at(600)).await.unwrap();
        assert_eq!((late.id, late.attempt), (ids[0], 1), "nothing is held for ever");
        queues.finish_job(late.id, "w").await.unwrap();
        let second = ordered(&queues, "w", at(600)).await.unwrap();
        assert_eq!(second.id, ids[1]);
        queues.finish_job(second.id, "w").await.unwrap();
        let third = ordered(&queues, "w", at(600)).await.unwrap();
        queues.finish_job(third.id, "w").await.unwrap();
        let ids = queues
            .held_jobs()
            .add(vec![new_job(json!(4)), new_job(json!(5))], at(0))
            .await
            .unwrap();
        queues.add_job(new_job(json!(6)), at(0)).await.unwrap();
        queues.held_jobs().discard(&ids[1..]).await.unwrap();
        queues.held_jobs().release(&[(ids[0], json!("known by now"))], at(1)).await.unwrap();
        for expected in [json!("known by now"), json!(6)] {
            let job = ordered(&queues, "w", at(1)).await.unwrap();
            assert_eq!(job.properties, expected);
            queues.finish_job(job.id, "w").await.unwrap();
        }
        queues.held_jobs().add(vec![new_job(json!("orphan"))], at(2)).await.unwrap();
        drop(queues);
        let queues = place.open().await;
        assert_eq!(queues.release_all_claims().await.unwrap(), 1);
        let job = ordered(&queues, "w", at(3)).await.unwrap();
        assert_eq!(job.properties, json!("orphan"));
    }
}

#[tokio::test]
async fn a_follower_and_its_jobs_move_together_and_once() {
    for place in both() {
        let queues = place.open().await;
        let jobs = || vec![new_job(json!("a to b"))];
        assert_eq!(queues.followers().root_of("f").await.unwrap(), None);
        assert!(queues.followers().advance("f", (None, "a"), Vec::new(), at(0)).await.unwrap());
        assert!(queues.followers().advance("f", (Some("a"), "b"), jobs(), at(0)).await.unwrap());
        assert!(
            !queues.followers().advance("f", (Some("a"), "b"), jobs(), at(0)).await.unwrap(),
            "the second is too late"
        );
        assert!(!queues.followers().advance("f", (None, "a"), jobs(), at(0)).await.unwrap());
        assert_eq!(queues.followers().root_of("f").await.unwrap().as_deref(), Some("b"));
        assert_eq!(queues.statistics().count_jobs("a/t").await.unwrap(), 1);
    }
}

#[tokio::test]
async fn a_place_is_divided_once_and_forgotten() {
    for place in both() {
        let queues = place.open().await;
        let names = ["f/one", "f/two", "f/three"].map(str::to_owned);
        assert!(
            !queues.followers().split("f", &names).await.unwrap(),
            "there is nothing to divide"
        );
        assert_eq!(queues.followers().root_of("f/one").await.unwrap(), None);
        assert!(queues.followers().advance("f", (None, "a"), Vec::new(), at(0)).await.unwrap());
        assert!(
            queues.followers().advance("f/three", (None, "c"), Vec::new(), at(0)).await.unwrap()
        );
        // Whoever begins first does it for all.
        let followers = queues.followers();
        let (one, two) = tokio::join!(followers.split("f", &names), followers.split("f", &names));
        assert_eq!([one.unwrap(), two.unwrap()].iter().filter(|done| **done).count(), 1);
        for (name, root) in [("f", None), ("f/one", Some("a")), ("f/two", Some("a"))] {
            assert_eq!(queues.followers().root_of(name).await.unwrap().as_deref(), root, "{name}");
        }
        assert_eq!(queues.followers().root_of("f/three").await.unwrap().as_deref(), Some("c"));
        queues.followers().remove("f/two").await.unwrap();
        let mut left = queues.followers().all_roots().await.unwrap();
        left.sort();
        assert_eq!(left, ["a", "c"]);
    }
}

#[tokio::test]
async fn what_is_no_job_is_refused() {
    let place = Place::sqlite();
    let queues = place.open().await;
    let bad = queues.add_job(NewJob::new("no topic", json!(1)), at(0)).await;
    assert!(matches!(bad, Err(Error::InvalidTopic(_))));
    let large = json!("x".repeat(tympan_jobs::MAX_JOB_PROPERTIES_BYTES));
    assert!(matches!(queues.add_job(new_job(large), at(0)).await, Err(Error::TooLarge { .. })));
    assert!(queues.list_jobs(&tympan_jobs::JobFilter::default(), 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn jobs_of_older_databases_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state.db");
    let state = tympan_testkit::StateDatabase::open(&file).await.unwrap();
    state.migrate_tables("jobs", &tympan_jobs::JOB_MIGRATIONS[..4]).await.unwrap();
    sqlx::query(
        "INSERT INTO job (queue, topic, payload, state, attempt, run_at, created, created_by) \
         VALUES ('replication/author/publish', 'tympan/replicate', '7', 'QUEUED', 0, 1, 1, 'ann')",
    )
    .execute(state.pool())
    .await
    .unwrap();
    state.migrate_tables("jobs", tympan_jobs::JOB_MIGRATIONS).await.unwrap();
    let queues = JobQueues::new(state.pool().clone());
    let topic = "com/day/cq/replication/job/author/publish";
    let job = queues.claim_in_order(&[topic], claim("w"), at(0)).await.unwrap().unwrap();
    assert_eq!(job.properties, json!(7));
}

#[tokio::test]
async fn jobs_given_up_are_found_by_what_they_are_about() {
    let node = |path: &str| tympan_content::NodePath::new(path).unwrap();
    for place in both() {
        let queues = place.open().await;
        let mut jobs = vec![new_job(json!("of an earlier version"))];
        // Neighbors in the order of bytes, and in the order of a language that passes over punctuation.
        for path in ["/", "/c", "/c/a", "/c/a/b", "/c/a-b", "/c/a0", "/c/A/b", "/c/a/b/c", "/d"] {
            jobs.push(new_job(json!(path)).with_subject_path(node(path)));
        }
        let ids = queues.add_jobs(jobs, at(0)).await.unwrap();
        let id_of = |path: &str| {
            let at =
                ["", "/", "/c", "/c/a", "/c/a/b", "/c/a-b", "/c/a0", "/c/A/b", "/c/a/b/c", "/d"];
            ids[at.iter().position(|at| *at == path).unwrap()]
        };
        for _ in &ids {
            let job = ordered(&queues, "w", at(0)).await.unwrap();
            queues.fail_job(job.id, "w", "refused", None, at(0)).await.unwrap();
        }
        let later = queues.add_job(new_job(json!("later")), at(1)).await.unwrap();
        let waiting = queues
            .add_job(new_job(json!("waits")).with_subject_path(node("/c/a")), at(1))
            .await
            .unwrap();
        let found = async |path: &str, before| {
            queues.find_given_up_about("a/t", &node(path), before).await.unwrap()
        };
        for (path, expected) in [
            ("/c/a", vec!["/", "/c", "/c/a", "/c/a/b", "/c/a/b/c"]),
            ("/c/a/b/x", vec!["/", "/c", "/c/a", "/c/a/b"]),
            ("/c/A", vec!["/", "/c", "/c/A/b"]),
            ("/e", vec!["/"]),
        ] {
            let expected: Vec<_> = expected.into_iter().map(id_of).collect();
            assert_eq!(found(path, later).await, expected, "{path}");
        }
        assert_eq!(found("/", later).await, ids[1..]);
        assert_eq!(found("/c/a", id_of("/c/a/b")).await, ["/", "/c", "/c/a"].map(id_of));
        assert!(!found("/c/a", tympan_jobs::JobId(waiting.0 + 1)).await.contains(&waiting));
        assert!(queues.find_given_up_about("a/u", &node("/c"), later).await.unwrap().is_empty());
        let unknown = queues.list_given_up_without_subject("a/t", None, later, 9).await.unwrap();
        assert_eq!(unknown.iter().map(|job| job.id).collect::<Vec<_>>(), [ids[0]]);
        let none =
            queues.list_given_up_without_subject("a/t", Some(ids[0]), later, 9).await.unwrap();
        assert!(none.is_empty());
    }
}
