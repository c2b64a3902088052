//! How SQLite goes about the statements of this room: none grows with jobs that it is not about.

use sqlx::any::AnyPoolOptions;
use sqlx::{AnyPool, Row};

use crate::about::{at_text, below_text, unknown_text};
use crate::claim::oldest_text;
use crate::look::{COUNT_TEXT, NEXT_TEXT, PRUNE_TEXT, list_text};
use crate::round::{MINE_TEXT, RENEW_TEXT};
use crate::{JobState, MIGRATIONS};

async fn database() -> AnyPool {
    sqlx::any::install_default_drivers();
    let pool = AnyPoolOptions::new().max_connections(1).connect("sqlite::memory:").await.unwrap();
    for step in MIGRATIONS {
        sqlx::raw_sql(*step).execute(&pool).await.unwrap();
    }
    pool
}

/// Returns how the table of jobs is looked at, one look after the other.
async fn looks(pool: &AnyPool, text: &str) -> Vec<String> {
    let text = format!("EXPLAIN QUERY PLAN {text}");
    let rows = sqlx::query(sqlx::AssertSqlSafe(text)).fetch_all(pool).await.unwrap();
    let steps = rows.iter().map(|row| row.try_get::<String, _>("detail").unwrap());
    let is_look = |step: &String| step.starts_with("SEARCH job") || step.starts_with("SCAN job");
    // A sort is a look at all that is sorted.
    steps.filter(|step| is_look(step) || step.contains("B-TREE")).collect()
}

async fn check(text: &str, expected: &[&str]) {
    let pool = database().await;
    assert_eq!(looks(&pool, text).await, expected, "{text}");
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
        check(&list_text(state, is_of_topic), &[expected]).await;
    }
}

#[tokio::test]
async fn jobs_are_counted_by_indexes() {
    let pool = database().await;
    let looks = looks(&pool, COUNT_TEXT).await;
    let looks: Vec<&str> =
        looks.iter().filter_map(|step| step.split_once("INDEX ")).map(|(_, index)| index).collect();
    assert_eq!(looks, ["job_ended_of_topic", "job_waiting", "job_delayed", "job_leased"],);
}

#[tokio::test]
async fn jobs_to_remove_are_found_by_when_they_ended() {
    let by_end = "SEARCH job USING INDEX job_ended (ended<?)";
    check(PRUNE_TEXT, &["SEARCH job USING INTEGER PRIMARY KEY (rowid=?)", by_end, by_end]).await;
}

#[tokio::test]
async fn the_next_job_in_order_is_found_without_those_that_ended() {
    let first = "SEARCH job USING INDEX job_open (topic=?)";
    let one = "SEARCH job USING INTEGER PRIMARY KEY (rowid=?)";
    let running = "SCAN job USING INDEX job_leased";
    check(NEXT_TEXT, &[first]).await;
    check(&oldest_text(1), &[one, first, running]).await;
    check(&oldest_text(2), &[one, first, first, running]).await;
}

#[tokio::test]
async fn a_worker_finds_its_jobs_among_those_that_are_leased() {
    check(RENEW_TEXT, &["SCAN job USING INDEX job_leased"]).await;
    check(MINE_TEXT, &["SEARCH job USING INDEX job_leased (lease_until>?)"]).await;
}

#[tokio::test]
async fn jobs_that_were_given_up_are_found_by_what_they_are_about() {
    for (text, range) in [
        (at_text(3), "about=? AND rowid<?"),
        (below_text(), "about>? AND about<?"),
        (unknown_text(), "about=? AND rowid>? AND rowid<?"),
    ] {
        let expected = format!("SEARCH job USING INDEX job_ended_about (topic=? AND {range})");
        check(&text, &[&expected]).await;
    }
}
