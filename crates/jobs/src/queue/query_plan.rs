//! Checks SQLite's query plans of this crate's statements: no statement's cost grows with unrelated jobs.

use sqlx::any::AnyPoolOptions;
use sqlx::{AnyPool, Row};

use crate::job::job_subject::{
    jobs_about_nodes_sql, jobs_below_node_sql, jobs_without_subject_sql,
};
use crate::queue::job_claim::oldest_job_sql;
use crate::queue::job_query::{COUNT_JOBS_SQL, NEXT_ORDERED_SQL, PRUNE_JOBS_SQL, list_jobs_sql};
use crate::worker::worker_round::{RENEW_LEASES_SQL, RUNNING_JOBS_SQL};
use crate::{JOB_MIGRATIONS, JobState};

async fn open_test_database() -> AnyPool {
    sqlx::any::install_default_drivers();
    let pool = AnyPoolOptions::new().max_connections(1).connect("sqlite::memory:").await.unwrap();
    for step in JOB_MIGRATIONS {
        sqlx::raw_sql(*step).execute(&pool).await.unwrap();
    }
    pool
}

/// Returns the accesses to the table of jobs in a query plan, in order.
async fn explain_query_plan(pool: &AnyPool, text: &str) -> Vec<String> {
    let text = format!("EXPLAIN QUERY PLAN {text}");
    let rows = sqlx::query(sqlx::AssertSqlSafe(text)).fetch_all(pool).await.unwrap();
    let steps = rows.iter().map(|row| row.try_get::<String, _>("detail").unwrap());
    let is_look = |step: &String| step.starts_with("SEARCH job") || step.starts_with("SCAN job");
    // A sort reads all sorted rows.
    steps.filter(|step| is_look(step) || step.contains("B-TREE")).collect()
}

async fn assert_query_plan(text: &str, expected: &[&str]) {
    let pool = open_test_database().await;
    assert_eq!(explain_query_plan(&pool, text).await, expected, "{text}");
}

#[tokio::test]
async fn a_page_of_jobs_is_read_without_the_others() {
    for (state, is_of_topic, expected) in [
        (None, false, "SEARCH job USING INTEGER PRIMARY KEY (rowid>?)"),
        (None, true, "SEARCH job USING INDEX job_by_topic (topic=? AND id>?)"),
        (
            Some(JobState::GivenUp),
            false,
            "SEARCH job USING INDEX job_ended_by_state (state=? AND id>?)",
        ),
        (
            Some(JobState::Error),
            true,
            "SEARCH job USING INDEX job_ended_of_topic (topic=? AND state=? AND id>?)",
        ),
        (Some(JobState::Queued), true, "SEARCH job USING INDEX job_open (topic=? AND id>?)"),
    ] {
        assert_query_plan(&list_jobs_sql(state, is_of_topic), &[expected]).await;
    }
}

#[tokio::test]
async fn jobs_are_counted_by_indexes() {
    let pool = open_test_database().await;
    let looks = explain_query_plan(&pool, COUNT_JOBS_SQL).await;
    let looks: Vec<&str> =
        looks.iter().filter_map(|step| step.split_once("INDEX ")).map(|(_, index)| index).collect();
    assert_eq!(looks, ["job_ended_of_topic", "job_waiting", "job_delayed", "job_leased"],);
}

#[tokio::test]
async fn jobs_to_remove_are_found_by_when_they_ended() {
    let by_end = "SEARCH job USING INDEX job_ended (ended<?)";
    assert_query_plan(
        PRUNE_JOBS_SQL,
        &["SEARCH job USING INTEGER PRIMARY KEY (rowid=?)", by_end, by_end],
    )
    .await;
}

#[tokio::test]
async fn the_next_job_in_order_is_found_without_those_that_ended() {
    let first = "SEARCH job USING INDEX job_open (topic=?)";
    let search_plan = "SEARCH job USING INTEGER PRIMARY KEY (rowid=?)";
    let running = "SCAN job USING INDEX job_leased";
    assert_query_plan(NEXT_ORDERED_SQL, &[first]).await;
    assert_query_plan(&oldest_job_sql(1), &[search_plan, first, running]).await;
    assert_query_plan(&oldest_job_sql(2), &[search_plan, first, first, running]).await;
}

#[tokio::test]
async fn a_worker_finds_its_jobs_among_those_that_are_leased() {
    assert_query_plan(RENEW_LEASES_SQL, &["SCAN job USING INDEX job_leased"]).await;
    assert_query_plan(RUNNING_JOBS_SQL, &["SEARCH job USING INDEX job_leased (lease_until>?)"])
        .await;
}

#[tokio::test]
async fn jobs_that_were_given_up_are_found_by_what_they_are_about() {
    for (text, range) in [
        (jobs_about_nodes_sql(3), "about=? AND rowid<?"),
        (jobs_below_node_sql(), "about>? AND about<?"),
        (jobs_without_subject_sql(), "about=? AND rowid>? AND rowid<?"),
    ] {
        let expected = format!("SEARCH job USING INDEX job_ended_about (topic=? AND {range})");
        assert_query_plan(&text, &[&expected]).await;
    }
}
